"""The theorems against runs whose every step is pushed off by a known amount."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from icgd.errors import SettingError
from icgd.problems.curvature import Curvature, curvature, over_ball, sized
from icgd.problems.guarantees import InexactDescent
from icgd.problems.linear_model import LinearModel
from icgd.problems.proximal_step import ProximalStep
from tests.bare_oracles import on_linear_model as reference

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(30, 4, generator=GENERATOR, dtype=torch.float64)
SCORES = X @ torch.tensor([0.8, -0.5, 0.0, 0.3], dtype=torch.float64)
NOISE = torch.randn(30, generator=GENERATOR, dtype=torch.float64)
LABELS = {
    "identity": SCORES + NOISE,
    "logistic": (SCORES + NOISE > 0).double(),
    "probit": (SCORES + NOISE > 0).double(),
    "poisson": (SCORES + NOISE / 4).exp().round(),
    "softplus": (SCORES + NOISE).clamp(min=0.0),
}
CASES = [
    ("identity", ProximalStep(l2=0.2)),
    ("identity", ProximalStep(l1=0.2)),
    ("logistic", ProximalStep(l2=0.05)),
    ("probit", ProximalStep(l2=0.05, l1=0.02)),
    ("poisson", ProximalStep(l2=0.1)),
    ("softplus", ProximalStep()),
]
ERROR = 1e-3


@cache
def minimiser(link, update):
    """By exact steps of a size that suits all cases, found by trial."""
    model, update = LinearModel(4, link), replace(update, step_size=0.4)
    start, limits = model.initial_parameters(), {"tolerance": 1e-14, "most_steps": 2000}
    found = reference.descend(model, update, start, X, LABELS[link][:, None], **limits)
    assert found.converged
    return found.weights


def pushed(model, update, y, n_steps, towards):
    """A run from 0 with an error of length ERROR a step: at random, or away from `towards`."""
    w = model.initial_parameters()
    for _ in range(n_steps):
        w = reference.step(model, update, w, X, y)
        push = torch.randn(4, generator=GENERATOR).double() if towards is None else w - towards
        w = w + ERROR * push / push.norm()
    return w


@pytest.mark.parametrize(("link", "penalty"), CASES)
@pytest.mark.parametrize("n_steps", [5, 40])
def test_no_run_ends_further_off_than_the_bounds(link, penalty, n_steps):
    model, y = LinearModel(4, link), LABELS[link][:, None]
    best = minimiser(link, penalty)
    start = float(best.norm())
    ball = over_ball(model, X, best, start + n_steps * ERROR)
    found = curvature(model, penalty, X, ball)
    update = sized(model, penalty, X, ball)
    run = InexactDescent(found, update.step_size, start, ERROR, n_steps)
    slope = reference.gradient(model, update, model.initial_parameters(), X, y).norm()
    lowest = reference.objective(model, update, best, X, y)
    for towards in (None, best):
        w = pushed(model, update, y, n_steps, towards)
        assert 0 < (w - best).norm() <= run.distance() <= run.distance_of_theorem()
        excess = float(reference.objective(model, update, w, X, y) - lowest)
        assert 0 < excess <= run.excess(penalty.l1, 4)
        assert excess <= run.excess_of_theorem(float(slope), penalty.l1, 4)


def test_contraction_is_reached_by_errors_along_the_flattest_direction():
    """f = w^2 / 2 with step 1/2: every step halves what is left and adds the error."""
    run = InexactDescent(Curvature(1.0, 1.0), 0.5, 8.0, 1.0, 3)
    assert run.contraction == 0.5
    assert run.radius == 11.0
    w = 8.0
    for _ in range(3):
        w = w / 2 + 1.0
    assert run.distance() == w == 2.75
    assert run.distance_of_theorem() == pytest.approx(3 + 8 * torch.e**-0.75)
    assert run.excess_of_theorem(8.0, 0.5, 4) == pytest.approx(25 * 3 + 4.5 + 64 / 3)
    assert run.excess(0.5, 4) == pytest.approx(2 * 2.75 + 2.75**2 / 2)


def test_without_strong_convexity_errors_add_up():
    run = InexactDescent(Curvature(0.0, 1.0), 1.0, 2.0, 0.25, 4)
    assert run.distance() == run.distance_of_theorem() == 3.0
    at_start = replace(run, n_steps=0)
    assert at_start.distance() == at_start.distance_of_theorem() == 2.0
    assert at_start.excess_of_theorem(1.0, 0.0, 1) == float("inf")


def test_at_the_printed_step_the_rate_fails():
    """Two over beta, on f = beta w^2 / 2: the run jumps to and fro and never comes closer."""
    x, y = torch.ones(1, 1).double(), torch.ones(1, 1).double()
    model, update = LinearModel(1), ProximalStep(2.0)
    history = reference.train(model, update, model.initial_parameters(), x, y, n_steps=6)
    assert history.flatten().tolist() == [0, 2, 0, 2, 0, 2, 0]
    with pytest.raises(SettingError, match="step_size=2 is above 1 / beta = 1, and the theorems"):
        InexactDescent(curvature(model, update, x), 2.0, 1.0, 0.0, 6)


def test_a_shorter_step_converges_at_its_own_rate_not_at_that_of_one_over_beta():
    """At 0.1 / beta and kappa = 1 the printed exp(-L / 2 kappa) is too small."""
    x, y = torch.ones(1, 1).double(), torch.ones(1, 1).double()
    model, update = LinearModel(1), ProximalStep(0.1)
    left = 1 - reference.train(model, update, model.initial_parameters(), x, y, n_steps=20)[-1]
    run = InexactDescent(curvature(model, update, x), 0.1, 1.0, 0.0, 20)
    assert torch.e ** (-20 / 2) < float(left) <= run.distance() * (1 + 1e-12)
    assert run.distance() < run.distance_of_theorem()
