"""The checker that all other tests run under sees what it should, in icgd itself."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation as WrongTypeError
from jaxtyping import Float
from torch import Tensor

from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.oracles import Forward, predict
from tests import type_checks

TARGET = MLP((3, 2), "tanh")


@pytest.fixture(autouse=True)
def _only_under_the_checker(request):
    if not request.config.getoption("jaxtyping_packages"):
        pytest.skip("make test-types runs it under the checker")


def refuses(what: str):
    return pytest.raises(WrongTypeError, match=rf"(?s){what}.* violates type hint")


def test_an_array_with_too_few_axes_is_refused():
    with refuses("parameter x="):
        predict(TARGET, torch.zeros(6), torch.zeros(3))


def test_an_array_of_whole_numbers_is_refused():
    with refuses("parameter parameters="):
        predict(TARGET, torch.zeros(6).long(), torch.zeros(5, 3))


def test_a_name_of_axes_stands_for_equal_sizes_in_one_call_and_for_any_in_the_next():
    for n_tasks in (2, 4):
        assert predict(TARGET, torch.zeros(n_tasks, 6), torch.ones(n_tasks, 5, 3)).shape[0] > 1
    with refuses("parameter x="):
        predict(TARGET, torch.zeros(2, 6), torch.ones(4, 5, 3))


@pytest.mark.parametrize("place", ["half", "outer.<locals>.half"])
def test_what_a_function_takes_and_returns_is_checked_also_inside_of_another(place: str):
    def half(number: float) -> int:
        return number / 2

    half.__qualname__ = place
    ours = type_checks.jaxtyped(typechecker=None)(half)
    with refuses("1.5"):
        ours(3.0)
    for call in (lambda: ours(3), lambda: ours(number=3)):
        with refuses("3"):
            call()


def test_a_call_like_one_that_passed_is_still_refused_for_a_new_result():
    results = iter([torch.zeros(2), torch.zeros(2), torch.zeros(3), (torch.zeros(2),)])

    def following(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return next(results)

    following.__qualname__ = "following"
    ours = type_checks.jaxtyped(following)
    assert [len(ours(torch.zeros(2))) for _ in "ab"] == [2, 2]
    for _ in "cd":
        with refuses("tensor"):
            ours(torch.zeros(2))
    with refuses("parameter x="):
        ours(torch.zeros(2).long())


def test_the_form_of_a_call_tells_apart_what_its_check_may_tell_apart():
    same = [torch.zeros(2), torch.ones(2)]
    other = [torch.zeros(2).double(), torch.zeros(3), torch.zeros(2, 1), 1, 2, True, "a", None, 0.5]
    forms = [type_checks.form_of(value) for value in (same[1], *other, [same[0]], (same[0],))]
    assert forms.count(type_checks.form_of(same[0])) == 1
    assert len(set(forms)) == len(forms)
    assert type_checks.form_of({"a": 1}) is type_checks.form_of((1, iter(()))) is None


def test_fields_of_a_dataclass_are_checked():
    with refuses("parameter outputs="):
        Forward([], torch.zeros(2))


def test_a_whole_number_is_no_float():
    with refuses("parameter step_size="):
        GradientStep(1, 2.0)
