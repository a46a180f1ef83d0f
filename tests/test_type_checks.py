"""The checker that all other tests run under sees what it should, in icgd itself."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation as WrongTypeError

from icgd.problems.mlp import MLP
from icgd.problems.oracles.network import Forward, predict
from icgd.problems.updates import GradientStep
from tests import type_checks

TARGET = MLP((3, 2), "tanh")


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


def test_fields_of_a_dataclass_are_checked():
    with refuses("parameter outputs="):
        Forward([], torch.zeros(2))


def test_a_whole_number_is_no_float():
    with refuses("parameter step_size="):
        GradientStep(1, 2.0)
