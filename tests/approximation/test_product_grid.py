"""Slopes of two variables by one head on a product of lattices, and what is proved about them."""

import mpmath
import pytest
import torch

import icgd
from icgd.approximation.product_grid import mean_of_slope
from icgd.errors import ConstructionError
from icgd.problems.surface import surface_of

CASES = {
    "-y*sigmoid(-t*y)": (4.0, 1.0, 2_000),
    "1-y*exp(-t)": (4.0, 3.0, 1_000),
    "(tanh(t)-y)*sech2(t)": (4.0, 1.0, 2_100),
    "t*exp(-t*y)": (2.0, 1.0, 1_000),
    "(1+y**2)*tanh(t-y)": (2.0, 1.0, 1_300),
    "(t-y)/(1+(t*y)**2)": (2.0, 2.0, 8_300),  # its panels have to be narrow along t and y
}


def drawn(reach: float, label_reach: float, n: int):
    generator = torch.Generator().manual_seed(0)
    t, y = torch.rand(2, n, generator=generator, dtype=torch.float64) * 2 - 1
    return reach * t, label_reach * y


def head(fit, t, y):
    """What softmax attention to the tokens returns."""
    points, label_points, offsets, values = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in (fit.points, fit.label_points, fit.offsets, fit.values)
    )
    scores = t[:, None] * points + y[:, None] * label_points + offsets
    return torch.softmax(scores, dim=-1) @ values


def slopes(loss, t, y):
    return loss.slope(t[:, None], y[:, None])[:, 0]


@pytest.mark.parametrize("text", CASES)
def test_no_sample_is_beyond_the_proved_error(text):
    loss, (reach, label_reach, most_tokens) = icgd.Loss(slope=text), CASES[text]
    fit = mean_of_slope(loss, reach, label_reach)
    assert len(fit.values) <= most_tokens
    size = surface_of(loss, reach, label_reach).size
    t, y = drawn(reach, label_reach, 4000)
    seen = max(
        float((head(fit, *part) - slopes(loss, *part)).abs().max())
        for part in zip(t.split(1000), y.split(1000), strict=True)
    )
    assert 0 < seen <= fit.error <= 2e-11 * max(1, size)
    ends = torch.tensor([-reach, reach, -reach, reach]), torch.tensor([1.0, 1, -1, -1])
    corners = ends[0].double(), label_reach * ends[1].double()
    assert (head(fit, *corners) - slopes(loss, *corners)).abs().max() <= fit.error


@pytest.mark.parametrize("text", CASES)
def test_balls_bound_size_slopes_and_rounding(text):
    loss, (reach, label_reach, _) = icgd.Loss(slope=text), CASES[text]
    surface = surface_of(loss, reach, label_reach)
    t, y = (part.requires_grad_() for part in drawn(reach, label_reach, 2000))
    u = slopes(loss, t, y)
    gradients = torch.autograd.grad(u.sum(), (t, y))
    assert surface.low <= u.min() <= u.max() <= surface.high
    assert surface.size <= 1.4 * u.abs().max()
    for gradient, bound in zip(
        gradients, (surface.steepness, surface.label_steepness), strict=True
    ):
        assert gradient.abs().max() <= bound <= 2 * gradient.abs().max()
    names = {"sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)), "sech2": lambda z: mpmath.sech(z) ** 2}
    known = {**names, "exp": mpmath.exp, "tanh": mpmath.tanh}
    exact = mpmath.workdps(40)(lambda a, b: eval(text, known | {"t": a, "y": b}))
    pairs = zip(t.tolist()[:200], y.tolist(), u.tolist(), strict=False)
    off = max(abs(float(exact(mpmath.mpf(a), mpmath.mpf(b)) - c)) for a, b, c in pairs)
    assert 0 < off <= surface.rounding * 2.0**-53


@pytest.mark.parametrize(
    ("text", "reach", "label_reach", "message"),
    [
        (
            "y*abs(t-y)",
            1.0,
            1.0,
            "is not proved to be analytic near predictions up to 1 .* slope with kinks",
        ),
        ("t/(t**2+y**2)", 1.0, 1.0, "is not finite for predictions up to 1 and labels up to 1"),
        ("t*exp(y)", 65.0, 1.0, r"defined on \[-64, 64\] only. Define it there, by low= and high="),
        ("sin(40*t*y)", 4.0, 4.0, "A head of 16384 tokens cannot return .* relu-stack"),
    ],
)
def test_what_cannot_be_proved_is_refused(text, reach, label_reach, message):
    with pytest.raises(ConstructionError, match=message):
        mean_of_slope(icgd.Loss(slope=text), reach, label_reach)
