"""What functions claim is compared with the real ones: honest claims pass, others are refuted."""

from dataclasses import replace

import pytest

import icgd
from icgd.approximation.claims import check_claims, refutation
from icgd.approximation.class_sums import fit_exponential, fit_reciprocal
from icgd.approximation.grid_mean import mean_of_link
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.approximation.ridge_sum import fit_ridge_sum
from icgd.approximation.root_sum import fit_reciprocal_root
from icgd.errors import ProgramError
from icgd.problems.activations import ACTIVATIONS, TANH
from icgd.problems.class_functions import capped_exponential
from icgd.problems.links import LINKS
from icgd.problems.losses import CLIP
from icgd.problems.roots import reciprocal_root
from icgd.program.functions import Function, ReluSum

BOX = 2.0


def functions_of(construction: str, activation: str, loss: str, **settings) -> tuple[Function, ...]:
    update = icgd.GradientStep(
        0.1, box=BOX, batch_size=1 if construction == "cot-network" else None
    )
    target = icgd.MLP((2, 3, 1), activation)
    problem = icgd.Problem(target, loss, update, icgd.Domain(x=1.0, y=1.0))
    return icgd.compile(problem, construction, n_steps=1, **settings).program.functions


def scaled(function: Function, share: float) -> Function:
    if isinstance(function, ReluSum):
        return replace(function, errors=tuple(share * error for error in function.errors))
    return replace(function, error=share * function.error)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("construction", "losses"),
    [
        ("relu-stack", ["squared", "logistic", "huber"]),
        ("softmax-stack", ["logistic"]),
        ("cot-network", ["squared"]),
        ("recursion", ["logistic"]),
    ],
)
def test_what_constructions_claim_is_not_refuted(construction, losses, activation):
    for loss in losses:
        check_claims(functions_of(construction, activation, loss), BOX)


@pytest.mark.parametrize("activation", ["relu", "cos", "softplus"])
def test_units_of_every_activation_pass(activation):
    functions = functions_of("recursion", "tanh", "huber", unit_activation=activation)
    check_claims(functions, BOX)


@pytest.mark.parametrize("link", LINKS)
def test_means_of_links_pass_and_smaller_claims_do_not(link):
    mean = mean_of_link(link, 5.0)
    assert refutation(mean, None) is None
    for name in ("size", "per_argument", "per_offset"):
        low = replace(mean, **{name: 0.5 * getattr(mean, name)})
        assert f"has a {name} of " in refutation(low, None)
    moved = replace(mean, values=tuple(value + 1e-3 for value in mean.values))
    assert "is off by " in refutation(moved, None)


@pytest.mark.parametrize(
    "function",
    [
        fit_exponential(capped_exponential(11.0), 20.0, 1e-3),
        fit_reciprocal(40.0, 1e-3),
        fit_reciprocal_root(reciprocal_root(0.1), 9.0, 1e-3),
    ],
    ids=lambda function: function.name,
)
def test_functions_of_classes_and_optimisers_pass_and_smaller_claims_do_not(function):
    assert refutation(function, BOX) is None
    assert "is off by " in refutation(scaled(function, 0.8), BOX)


@pytest.mark.parametrize("construction", ["relu-stack", "recursion"])
def test_errors_that_are_set_to_nothing_are_refuted(construction):
    coarse = {"relu-stack": {"pieces": 16}, "recursion": {"units": 24}}[construction]
    functions = functions_of(construction, "tanh", "squared", **coarse)
    inexact = [function for function in functions if function.error > 1e-9]
    assert len(inexact) >= 2
    for function in inexact:
        with pytest.raises(ProgramError, match=r"is off by .* at .*, and claims at most 0$"):
            check_claims([scaled(function, 0.0)], BOX)


def test_the_largest_distance_is_met_up_to_a_few_percent():
    for pieces in (1, 2, 5, 64, 1000):
        fit = fit_relu_sum(TANH, -3.0, 7.0, pieces)
        assert refutation(fit, None) is None
        assert refutation(scaled(fit, 0.95), None) is not None


def test_pieces_beyond_the_range_of_a_function_are_not_held_against_it():
    """Of a small domain a huber loss uses the middle piece alone."""
    fit = fit_relu_sum(CLIP, -0.5, 0.5, 8)
    assert fit.knots == (-1.0, 1.0)
    assert refutation(fit, None) is None
    steeper = replace(fit, slopes=(0.0, 1.25, 0.0))
    assert "is off by " in refutation(steeper, None)


@pytest.mark.parametrize("field", ["slopes", "knots"])
def test_another_number_in_a_sum_is_refuted(field):
    fit = fit_relu_sum(TANH, -2.0, 2.0, 8)
    numbers = list(getattr(fit, field))
    numbers[1] += 0.125
    assert "is off by " in refutation(replace(fit, **{field: tuple(numbers)}), None)


def test_the_claims_of_a_lattice_are_held():
    _, _, value, slope, _ = functions_of("softmax-stack", "tanh", "squared", registers=40)
    for function in (value, slope):
        assert "is off by " in refutation(scaled(function, 0.01), None)
        assert "has a size of " in refutation(replace(function, size=0.1), None)
        low = replace(function, sensitivity=0.5 * function.sensitivity)
        assert "has a sensitivity of " in refutation(low, None)


def test_a_clip_to_another_box_is_refuted():
    clip = next(f for f in functions_of("recursion", "tanh", "squared") if f.name == "clip")
    assert refutation(clip, BOX) is None
    assert "is off by " in refutation(clip, 1.5)


def test_a_sum_of_another_number_of_arguments_is_refuted():
    fit = replace(fit_ridge_sum(TANH, 1.0, "sigmoid", 16), name="a b")
    assert refutation(fit, None) == "takes 1 arguments, expected 2"


def test_what_is_no_number_is_refuted():
    fit = fit_relu_sum(TANH, -2.0, 2.0, 8)
    broken = replace(fit, slopes=(*fit.slopes[:-1], 1e308), high=1e308)
    assert "is off by " in refutation(broken, None)
