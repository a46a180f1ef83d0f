"""Losses that a text defines: their slopes taken apart, their values, their names, bad texts."""

import pytest
import torch

import icgd
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.losses import Loss, loss_named, quantile, read_loss

SLOPES = {
    "tanh(t - y)": lambda t, y: torch.tanh(t - y),
    "2 * (t - y)": lambda t, y: 2 * (t - y),
    "exp(t) - y": lambda t, y: t.exp() - y,
    "tanh(t - y) + t - y": lambda t, y: torch.tanh(t - y) + t - y,
    "exp(t) + t - y": lambda t, y: t.exp() + t - y,
    "abs(t - 2*y) * (t - 2*y) + 1/2": lambda t, y: (t - 2 * y).abs() * (t - 2 * y) + 0.5,
    "pi + sigmoid(t)**3 - atan(y)": lambda t, y: torch.pi + torch.sigmoid(t) ** 3 - torch.atan(y),
    "-y * sigmoid(-t * y)": lambda t, y: -y * torch.sigmoid(-t * y),
    "(1 + y**2) * tanh(t - y)": lambda t, y: (1 + y**2) * torch.tanh(t - y),
}
PARTS = {
    "tanh(t - y)": [(1.0, -1.0, "tanh")],
    "2 * (t - y)": [(1.0, -1.0, "double")],
    "exp(t) - y": [(1.0, 0.0, "exp"), (0.0, 1.0, "negate")],
    "tanh(t - y) + t - y": [(1.0, -1.0, "x + tanh(x) on -64 to 64")],
    "exp(t) + t - y": [(1.0, 0.0, "x + exp(x) on -64 to 64"), (0.0, 1.0, "negate")],
    "sign(t - y)": [(1.0, -1.0, "-1 up to 0, 1 on -64 to 64")],
    "-y * sigmoid(-t * y)": None,
    "(1 + y**2) * tanh(t - y)": None,
}


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(3 * torch.randn(2, 40, 2, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("slope", SLOPES)
def test_slopes_are_those_of_the_text(slope):
    t, y = pairs()
    torch.testing.assert_close(Loss(slope).slope(t, y), SLOPES[slope](t, y), rtol=0, atol=1e-13)


@pytest.mark.parametrize("slope", PARTS)
def test_slopes_are_sums_of_functions_of_one_variable_where_they_can_be(slope):
    parts = Loss(slope).slope_terms
    known = parts and [(part.prediction, part.label, part.function.name) for part in parts]
    assert known == PARTS[slope]


@pytest.mark.parametrize("slope", SLOPES)
def test_the_slope_is_the_gradient_of_the_value(slope):
    t, y = pairs()
    t.requires_grad_()
    loss = Loss(slope)
    (gradient,) = torch.autograd.grad(loss.value(t, y).sum(), t)
    torch.testing.assert_close(gradient, loss.slope(t, y), rtol=1e-3, atol=1e-3)
    assert loss.value(torch.zeros(1, 2), torch.ones(1, 2)) == 0


@pytest.mark.parametrize("slope", SLOPES)
def test_a_loss_is_found_by_its_name(slope):
    loss = Loss(slope, low=-5, high=5)
    assert loss_named(loss.name) == loss
    assert loss != Loss(slope)


def test_a_problem_keeps_the_text():
    step, domain = icgd.GradientStep(0.1, box=1.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 1)), icgd.Loss(slope="tanh(t - y)"), step, domain)
    assert problem.loss == "tanh(t - y) on -64 to 64"
    assert icgd.Problem.from_data(problem.to_data()) == problem
    assert problem.facts()["loss"] == "tanh(t - y) on -64 to 64"


def test_a_quantile_is_least_at_that_quantile():
    y = torch.arange(101.0, dtype=torch.float64)[:, None]
    values = [float(quantile(0.9).value(y * 0 + t, y).sum()) for t in range(101)]
    assert min(range(101), key=values.__getitem__) == 90
    slopes = quantile(0.9).slope(torch.tensor([[-1.0], [0.0], [1.0]]), torch.zeros(3, 1))
    torch.testing.assert_close(slopes, torch.tensor([[-0.9], [-0.9], [0.1]]))
    with pytest.raises(UnknownNameError, match="Unknown loss 'quantile_2'"):
        loss_named("quantile_2")


@pytest.mark.parametrize(
    ("slope", "message"),
    [
        ("y**2", r"does not depend on the prediction t"),
        ("1 / (t - y)", r"with x = t - y: .* no finite value near x = 0"),
        ("t^2", r"Write \*\* for powers"),
        ("__import__('os')", r"Unknown function '__import__'|is not allowed"),
    ],
)
def test_bad_texts_are_refused(slope, message):
    with pytest.raises((SettingError, UnknownNameError), match=message):
        Loss(slope)


def test_unknown_variables_are_named():
    with pytest.raises(UnknownNameError, match="Unknown variable 'x' in 'tanh\\(x - y\\)'"):
        Loss("tanh(x - y)")


def test_a_combination_inside_and_outside_of_a_function_is_one():
    (part,) = Loss("tanh(t - y + sin(t - y))").slope_terms
    assert (part.prediction, part.label) == (1.0, -1.0)
    assert Loss("tanh(t - y + sin(t + y))").slope_terms is None


def test_the_name_of_a_slope_can_be_read_or_is_refused():
    text = "t"
    for _ in range(5):
        text = f"log(cosh({text}))"
    assert read_loss(Loss(text).name) == Loss(text)
    with pytest.raises(SettingError, match="characters when simplified; at most 4000 are allowed"):
        Loss(f"log(cosh(log(cosh(log(cosh({text}))))))")
