"""The oracle of linear models: by hand, against autograd, and against scikit-learn."""

import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from torch import Tensor

from icgd.errors import DataError, OverflowedRunError, SettingError
from icgd.problems.data import Domain, as_task
from icgd.problems.linear_model import LINKS, LinearModel
from icgd.problems.oracles import soft_threshold
from icgd.problems.problem import Problem
from icgd.problems.spectrum import over_box, sized
from icgd.problems.steps import ProximalStep
from tests.bare_oracles import bare_task
from tests.bare_oracles import on_linear_model as reference


def numbers(*values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


X, Y, W = numbers((1, 2), (3, -1)), numbers((1,), (-2,)), numbers(0.5, 1)


def test_one_step_of_the_lasso_by_hand():
    """Scores 2.5, 0.5; residuals 1.5, 2.5; gradient (1.5 + 7.5, 3 - 2.5) / 2, then 0.1 off."""
    model, update = LinearModel(2), ProximalStep(0.1, l1=1.0)
    assert reference.oracle(model, update).scores(W, X).flatten().tolist() == [2.5, 0.5]
    assert reference.gradient(model, update, W, X, Y).tolist() == [4.5, 0.25]
    torch.testing.assert_close(reference.step(model, update, W, X, Y), numbers(0, 0.875))


def test_penalties_leave_the_intercept_alone_and_the_sum_is_n_times_the_mean():
    """With b = -1: scores 1.5, -0.5; residuals 0.5, 1.5; gradient (5, -0.5, 2)."""
    model = LinearModel(2, intercept=True, reduction="sum")
    update, w = ProximalStep(0.1, l2=2.0, l1=0.5), numbers(0.5, 1, -1)
    assert reference.gradient(model, update, w, X, Y).tolist() == [6, 1.5, 2]
    torch.testing.assert_close(
        reference.step(model, update, w, X, Y), numbers(-0.05, 0.8, -1.2), rtol=0, atol=1e-15
    )
    risk = (1.5**2 / 2 - 1.5) + (0.5**2 / 2 - 1.0)
    assert float(reference.oracle(model, update).risk(bare_task(X, Y, w), w)) == pytest.approx(risk)
    objective = risk + 2.0 * (0.5**2 + 1) / 2 + 0.5 * 1.5
    assert float(reference.objective(model, update, w, X, Y)) == pytest.approx(objective)


def test_the_soft_threshold_stops_at_zero():
    values = numbers(-3, -1, -0.5, 0, 0.5, 1, 3)
    moved = soft_threshold(values, torch.ones_like(values))
    assert moved.tolist() == [-2, 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_gradient_is_that_of_autograd_for_every_task_of_a_batch(link, reduction):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(3, 6, 2, generator=generator), torch.rand(3, 6, 1, generator=generator)
    x, y, w = x.double(), y.double(), torch.randn(3, 3, generator=generator).double()
    w.requires_grad_()
    model, update = LinearModel(2, link, True, reduction), ProximalStep(0.1, l2=0.7)
    objective = reference.objective(model, update, w, x, y)
    assert objective.shape == (3,)
    (truth,) = torch.autograd.grad(objective.sum(), w)
    ours = reference.gradient(model, update, w.detach(), x, y)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_the_recurrence_of_the_textbooks(nesterov):
    """FISTA in its own sequences x and y (Beck and Teboulle 2009), and the heavy ball."""
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(9, 2, generator=generator).double(), torch.rand(9, 1, generator=generator)
    model, momenta = LinearModel(2, "logistic", intercept=True), (0.0, 0.3, 0.5, 0.9)
    update = ProximalStep(0.7, l2=0.1, l1=0.05, momentum=momenta, nesterov=nesterov)
    plain, threshold = ProximalStep(0.7, l2=0.1), numbers(0.035, 0.035, 0)
    found = reference.train(model, update, numbers(0.5, -1, 0.2), x, y.double(), 4)
    before = now = numbers(0.5, -1, 0.2)
    for step, momentum in enumerate(momenta):
        ahead = now + momentum * (now - before)
        slope = reference.gradient(model, plain, ahead if nesterov else now, x, y.double())
        moved = ahead - 0.7 * slope
        before, now = now, moved.sign() * (moved.abs() - threshold).clamp(min=0.0)
        torch.testing.assert_close(found[step + 1], now, rtol=1e-13, atol=1e-14)
    assert (found[4] - found[3]).abs().max() > 1e-2


def test_fista_needs_fewer_steps_than_descent():
    x = (
        torch.diag(numbers(10, 1, 0.3))
        @ torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()).Q
    )
    model, w, y = LinearModel(3, reduction="sum"), numbers(0, 0, 0), x @ numbers(1, -2, 3)
    found = {}
    for momentum in (None, 0.94):
        update = ProximalStep(0.01, momentum=momentum, nesterov=momentum is not None)
        oracle, task = reference.oracle(model, update), bare_task(x, y[:, None], w)
        found[momentum] = oracle.descend(task, tolerance=1e-8, most_steps=100_000)
        assert found[momentum].converged
        again = oracle.train(task, found[momentum].n_steps)
        assert torch.equal(again[-1], found[momentum].weights)
        assert (oracle.stepped(task, again) - again[1:]).abs().max() == 0
    assert found[None].n_steps > 10 * found[0.94].n_steps


def test_momentum_has_no_rigorous_proof():
    update = ProximalStep(0.1, box=1.0, momentum=0.5)
    oracle = reference.oracle(LinearModel(2), update)
    with pytest.raises(SettingError, match="A rigorous proof takes steps without momentum"):
        oracle.described(bare_task(X, Y, W), 3)


def test_the_history_goes_step_by_step_with_the_step_size_of_the_data():
    model, update = LinearModel(2, "logistic"), ProximalStep(l1=0.1)
    y = numbers((0,), (1,))
    history = reference.train(model, update, W, X, y, n_steps=3)
    assert torch.equal(history[0], W)
    for before, after in pairwise(history):
        assert torch.equal(after, reference.step(model, sized(model, update, X), before, X, y))
    assert torch.equal(reference.step(model, update, W, X, y), history[1])


def test_a_batch_runs_each_task_and_stops_when_all_have_settled():
    model, update = LinearModel(2), ProximalStep(0.1, l2=0.5, l1=0.1)
    x, y, start = torch.stack([X, X / 2]), torch.stack([Y, Y]), torch.stack([W, W])
    together = reference.train(model, update, start, x, y, n_steps=3)
    limits = {"tolerance": 1e-6, "most_steps": 500}
    n_steps = []
    for task in range(2):
        alone = reference.train(model, update, W, x[task], y[task], n_steps=3)
        torch.testing.assert_close(together[task], alone, rtol=1e-14, atol=0)
        stopped = reference.descend(model, update, W, x[task], y[task], **limits)
        n_steps.append(stopped.n_steps)
    assert n_steps[0] != n_steps[1]
    assert reference.descend(model, update, start, x, y, **limits).n_steps == max(n_steps)


def test_a_run_stops_at_the_first_change_below_the_tolerance():
    model, update = LinearModel(2), ProximalStep(0.1)
    history = reference.train(model, update, W, X, Y, n_steps=40)
    changes = history.diff(dim=0).abs().amax(-1)
    tolerance = float(changes[24])
    stopped = reference.descend(model, update, W, X, Y, tolerance=tolerance, most_steps=40)
    assert stopped.n_steps == 25
    assert stopped.last_change == tolerance
    assert stopped.converged
    assert torch.equal(stopped.weights, history[25])
    short = reference.descend(model, update, W, X, Y, tolerance=tolerance, most_steps=24)
    assert (short.n_steps, short.converged) == (24, False)


def test_runs_that_cannot_be_are_refused():
    model = LinearModel(2)
    limits = {"tolerance": 1e-9, "most_steps": 10_000}
    problem = Problem(model, "matching", ProximalStep(), Domain(4.0, 4.0))
    with pytest.raises(OverflowedRunError, match="step_size=10 is too large for these data"):
        reference.descend(model, ProximalStep(10.0), W, X, Y, **limits)
    with pytest.raises(DataError, match=r"initial has shape \(3,\); expected \(2,\)"):
        as_task(problem, X, Y, initial=numbers(1, 2, 3))
    with pytest.raises(SettingError, match="The poisson link has no largest slope"):
        reference.train(LinearModel(2, "poisson"), ProximalStep(), W, X, Y**2, n_steps=1)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Data, a model of ours and the coefficients that scikit-learn finds, intercept last."""

    model: LinearModel
    update: ProximalStep
    x: Tensor
    y: Tensor
    truth: Tensor
    n_steps: int
    box: float | None = None


@cache
def diabetes():
    data = load_diabetes()
    return standardised(data.data), data.target


@cache
def breast_cancer():
    data = load_breast_cancer()
    return standardised(data.data), data.target.astype(float)


@cache
def counts():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5))
    return x, generator.poisson(np.exp(x @ [0.3, -0.2, 0.4, 0.0, 0.1] + 0.5)).astype(float)


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def fitted(data, estimator, link, reduction, n_steps, *, box=None, **penalty) -> Fitted:
    x, y = data
    estimator.fit(x, y)
    truth = np.append(estimator.coef_, estimator.intercept_)
    return Fitted(
        LinearModel(x.shape[1], link, True, reduction),
        ProximalStep(**penalty),
        torch.tensor(x),
        torch.tensor(y)[:, None],
        torch.tensor(truth),
        n_steps,
        box,
    )


def ridge(alpha, n_steps):
    """sum (z - y)^2 + alpha |w|^2: half of it, over n."""
    x, y = diabetes()
    estimator = Ridge(alpha=alpha, solver="cholesky")
    return fitted((x, y), estimator, "identity", "mean", n_steps, l2=alpha / len(y))


def lasso(alpha, n_steps):
    """(1 / 2n) sum (z - y)^2 + alpha |w|_1: the same."""
    estimator = Lasso(alpha=alpha, tol=1e-14, max_iter=10**5)
    return fitted(diabetes(), estimator, "identity", "mean", n_steps, l1=alpha)


def elastic_net(alpha, share, n_steps):
    """(1 / 2n) sum (z - y)^2 + alpha share |w|_1 + alpha (1 - share) |w|^2 / 2: the same."""
    estimator = ElasticNet(alpha=alpha, l1_ratio=share, tol=1e-14, max_iter=10**5)
    penalty = {"l1": alpha * share, "l2": alpha * (1 - share)}
    return fitted(diabetes(), estimator, "identity", "mean", n_steps, **penalty)


def logistic(c, n_steps):
    """c sum loss + |w|^2 / 2: the same over c."""
    estimator = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    return fitted(breast_cancer(), estimator, "logistic", "sum", n_steps, l2=1 / c)


def poisson(alpha, n_steps):
    """(1 / n) sum (half the deviance) + alpha |w|^2 / 2: the same, less a constant."""
    estimator = PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-12)
    return fitted(counts(), estimator, "poisson", "mean", n_steps, box=0.6, l2=alpha)


FITTED = {
    "ridge": lambda: ridge(100.0, 160),
    "lasso": lambda: lasso(1.0, 198),
    "elastic net": lambda: elastic_net(0.5, 0.4, 116),
    "logistic": lambda: logistic(0.01, 564),
    "poisson": lambda: poisson(0.1, 752),
}


@pytest.mark.parametrize("name", FITTED)
def test_descent_finds_the_coefficients_of_scikit_learn_in_the_steps_that_are_documented(name):
    assert_found_at_the_last_step(FITTED[name]())


def assert_found_at_the_last_step(case):
    scores = over_box(case.model, case.x, case.box) if case.box else None
    update = sized(case.model, case.update, case.x, scores)
    start = case.model.initial_parameters()
    history = reference.train(case.model, update, start, case.x, case.y, case.n_steps)
    errors = (history - case.truth).abs().amax(-1) / case.truth.abs().max()
    assert errors[-1] <= 1e-6 < errors[-2]


WEAKLY_PENALISED = {
    "ridge": lambda: ridge(1.0, 4514),
    "lasso": lambda: lasso(0.1, 2848),
    "logistic": lambda: logistic(1.0, 21322),
}


@pytest.mark.parametrize("name", WEAKLY_PENALISED)
def test_the_coefficients_of_scikit_learn_stay_where_they_are(name):
    """Where descent from 0 takes thousands of steps."""
    case = WEAKLY_PENALISED[name]()
    slightly_more = replace(case.update, l2=case.update.l2 + 0.01)
    after, moved = (
        reference.step(case.model, update, case.truth, case.x, case.y) - case.truth
        for update in (case.update, slightly_more)
    )
    assert after.abs().max() <= 1e-9 * case.truth.abs().max() < moved.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("name", WEAKLY_PENALISED)
def test_descent_from_zero_finds_them_too(name):
    assert_found_at_the_last_step(WEAKLY_PENALISED[name]())


def test_the_example_of_the_page_runs():
    page = Path(__file__).parents[3] / "docs" / "problems" / "statistical_models.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["found"].converged
    assert names["found"].weights[0] > 0.5
