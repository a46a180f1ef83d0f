"""Values and slopes of the losses against torch's own."""

import pytest
import torch
from torch.nn import functional

from icgd.errors import UnknownNameError
from icgd.problems.activations import CLIP, DOUBLE, NEGATE
from icgd.problems.losses import LOSSES, loss_named

TORCH = {
    "squared": lambda p, y: functional.mse_loss(p, y, reduction="none").sum(-1),
    "logistic": lambda p, y: functional.binary_cross_entropy_with_logits(
        p, y, reduction="none"
    ).sum(-1),
    "huber": lambda p, y: functional.huber_loss(p, y, reduction="none").sum(-1),
    "cross_entropy": lambda p, y: functional.cross_entropy(p, y, reduction="none"),
}


def predictions_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    """Residuals on both sides of Huber's kinks; soft labels that sum to 1."""
    generator = torch.Generator().manual_seed(0)
    p = 3 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    return p, y / y.sum(-1, keepdim=True)


def test_all_losses_are_tested():
    assert TORCH.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", TORCH)
def test_values_are_those_of_torch(name):
    p, y = predictions_and_labels()
    torch.testing.assert_close(LOSSES[name].value(p, y), TORCH[name](p, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TORCH)
def test_slopes_are_those_of_torch(name):
    p, y = predictions_and_labels()
    p.requires_grad_()
    (expected,) = torch.autograd.grad(TORCH[name](p, y).sum(), p)
    torch.testing.assert_close(LOSSES[name].slope(p, y), expected, rtol=1e-12, atol=1e-12)


def test_cross_entropy_is_that_of_classes():
    p, _ = predictions_and_labels()
    classes = torch.arange(len(p)) % p.shape[-1]
    one_hot = torch.nn.functional.one_hot(classes, p.shape[-1]).double()
    expected = torch.nn.functional.cross_entropy(p, classes, reduction="none")
    torch.testing.assert_close(LOSSES["cross_entropy"].value(p, one_hot), expected)


@pytest.mark.parametrize("name", ["squared", "logistic", "huber"])
def test_the_parts_of_a_slope_sum_to_it(name):
    p, y = predictions_and_labels()
    parts = LOSSES[name].slope_parts
    total = sum(part.function(part.prediction * p + part.label * y) for part in parts)
    torch.testing.assert_close(total, LOSSES[name].slope(p, y))


def test_only_cross_entropy_couples_its_outputs():
    assert [name for name, loss in LOSSES.items() if loss.slope_parts is None] == ["cross_entropy"]


def test_which_losses_need_probabilities():
    needing = {name for name, loss in LOSSES.items() if loss.labels_are_probabilities}
    assert needing == {"logistic", "cross_entropy"}


@pytest.mark.parametrize(
    ("function", "values"),
    [(DOUBLE, (-6.0, -1.0, 4.0)), (NEGATE, (3.0, 0.5, -2.0)), (CLIP, (-1.0, -0.5, 1.0))],
)
def test_the_functions_of_one_variable(function, values):
    z = torch.tensor([-3.0, -0.5, 2.0], dtype=torch.float64)
    assert tuple(function(z).tolist()) == values
    pieces = [sum(knot < point for knot in function.knots) for point in z.tolist()]
    assert function.derivative()(z).tolist() == [function.slopes[piece] for piece in pieces]


def test_an_unknown_loss_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        loss_named("square")
    assert str(caught.value) == (
        "Unknown loss 'square'; known are squared, logistic, huber, cross_entropy. "
        "Did you mean 'squared'?"
    )
    assert loss_named("huber") is LOSSES["huber"]
