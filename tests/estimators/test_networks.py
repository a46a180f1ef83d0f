"""Networks in context beside the same networks trained directly."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

import icgd
from icgd.errors import OverflowedRunError, SettingError, UnknownNameError
from icgd.estimators import InContextClassifier, InContextRegressor
from icgd.estimators.networks import FLAT, sharpness

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = (part[:80] for part in load_diabetes(return_X_y=True, scaled=False))


def trained_directly(fit, X, y, loss):
    """Outputs at X of the same network, by autograd from the same start, and its losses."""
    x = torch.tensor(StandardScaler().fit_transform(X))
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    problem = fit.compiled_.problem
    start = [matrix.clone() for matrix in problem.network.matrices(fit._task.initial)]
    weights = [matrix.requires_grad_() for matrix in start]
    losses = []

    def outputs():
        hidden = x
        for matrix in weights[:-1]:
            hidden = torch.tanh(hidden @ matrix.T)
        return hidden @ weights[-1].T

    for _ in range(fit.n_iter_):
        risk = loss(outputs(), torch.tensor(y)) / 2
        losses.append(float(risk.detach()))
        for matrix, slope in zip(weights, torch.autograd.grad(risk, weights), strict=True):
            matrix.data -= problem.update.step_size * slope
    return outputs().detach().numpy(), losses


def test_a_regressor_is_the_network_trained_directly():
    fit = InContextRegressor((6, 4), max_iter=40, random_state=0).fit(X, Y)
    mean, size = Y.mean(), Y.std()
    labels = ((Y - mean) / size)[:, None]
    last = torch.nn.functional.mse_loss
    outputs, losses = trained_directly(fit, X, labels, last)
    np.testing.assert_allclose(fit.loss_curve_[:-1], losses, rtol=1e-4)
    assert fit.n_iter_ == 40
    assert len(fit.loss_curve_) == 41
    np.testing.assert_allclose(fit.predict(X), outputs[:, 0] * size + mean, rtol=1e-4)
    assert fit.score(X, Y) > 0.5
    assert [matrix.shape for matrix in fit.coefs_] == [(6, 11), (4, 6), (1, 4)]


def test_a_classifier_has_a_logistic_output_for_each_class():
    x, y = load_iris(return_X_y=True)
    fit = InContextClassifier((6,), max_iter=30, random_state=0).fit(x, y)

    def loss(outputs, labels):
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            outputs, labels, reduction="none"
        )
        return each.sum(1).mean()

    _, losses = trained_directly(fit, x, np.eye(3)[y], loss)
    np.testing.assert_allclose(fit.loss_curve_[:-1], losses, rtol=1e-4)
    scores = fit.decision_function(x)
    shares = expit(scores)
    np.testing.assert_allclose(fit.predict_proba(x), shares / shares.sum(1, keepdims=True))
    assert fit.score(x, y) > 0.9


def test_two_classes_share_one_output():
    x, y = load_iris(return_X_y=True)
    fit = InContextClassifier((4,), max_iter=30, random_state=0).fit(x[:100], y[:100])
    assert fit.decision_function(x).shape == (150,)
    assert fit.compiled_.problem.target.output_width == 1
    assert fit.score(x[:100], y[:100]) == 1.0


def test_without_hidden_layers_the_model_is_linear():
    fit = InContextRegressor((), max_iter=300).fit(X, Y)
    outputs = fit.predict(np.stack([X[0], X[1], X[0] + X[1]]))
    middle = fit.predict(X.mean(0, keepdims=True)) * 0 + Y.mean()
    assert fit.compiled_.problem.target.widths == (11, 1)
    assert np.isfinite(outputs).all()
    assert fit.predict((X[:1] + X[1:2]) / 2) == pytest.approx(outputs[:2].mean(), rel=1e-9)
    assert middle.shape == (1,)


def test_any_construction_may_be_compiled():
    few = {"max_iter": 5, "random_state": 0}
    given = InContextRegressor((3,), construction=icgd.ReluStack(pieces=256), **few).fit(X, Y)
    named = InContextRegressor((3,), construction="softmax-stack", **few).fit(X, Y)
    assert named.compiled_.summary().construction == "softmax-stack"
    np.testing.assert_allclose(given.predict(X), named.predict(X), rtol=1e-3)


def test_a_step_size_that_is_found_is_halved_until_the_loss_falls(monkeypatch):
    own = InContextRegressor((4,), max_iter=10, random_state=0, step_size=0.125).fit(X, Y)
    assert own.compiled_.problem.update.step_size == 0.125
    with pytest.warns(ConvergenceWarning, match="The loss rises to .*: halve the step size"):
        InContextRegressor((4,), max_iter=10, random_state=0, step_size=64.0).fit(X, Y)
    with monkeypatch.context() as patch:
        patch.setattr("icgd.estimators.networks.sharpness", lambda *_: 1 / 64)
        found = InContextRegressor((4,), max_iter=10, random_state=0).fit(X, Y)
    size = found.compiled_.problem.update.step_size
    assert size < 8.0
    assert np.log2(64.0 / size) == int(np.log2(64.0 / size))
    assert (np.diff(found.loss_curve_) < 0).all()


def test_a_loss_that_never_falls_is_an_error(monkeypatch):
    monkeypatch.setattr("icgd.estimators.networks.sharpness", lambda *_: 1e-12)
    message = "^The loss is larger after the run than before it, even with step_size=2.44141e"
    with pytest.raises(OverflowedRunError, match=message):
        InContextRegressor((4,), max_iter=5, random_state=0).fit(X, Y)


def test_weights_never_reach_the_box():
    fit = InContextRegressor((4,), max_iter=50, random_state=0).fit(X, Y)
    assert max(np.abs(matrix).max() for matrix in fit.coefs_) < fit.compiled_.problem.box


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"hidden_layer_sizes": (0,)}, SettingError, "hidden_layer_sizes.*0"),
        ({"activation": "step"}, UnknownNameError, "Unknown activation 'step'"),
        ({"construction": "none"}, UnknownNameError, "Unknown construction 'none'"),
        ({"step_size": -1.0}, SettingError, "step_size.*-1"),
        ({"max_iter": 0}, SettingError, "max_iter.*0"),
        ({"max_iter": -2}, SettingError, "max_iter.*-2"),
    ],
)
def test_bad_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        InContextRegressor(**settings).fit(X, Y)


def network(loss="squared"):
    target = icgd.MLP((3, 5, 2))
    return icgd.Problem(target, loss, icgd.GradientStep(1.0, 9.0), icgd.Domain(9.0, 9.0))


def test_it_is_the_largest_eigenvalue_of_the_hessian():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    problem = network("logistic")
    task = icgd.as_task(problem, x, (x[:, :2] > 0).double(), seed=0)

    def risk(weights):
        return problem.oracle.risk(task, weights)

    hessian = torch.autograd.functional.hessian(risk, task.initial)
    largest = float(torch.linalg.eigvalsh(hessian).abs().max())
    assert sharpness(problem.oracle, task) == pytest.approx(largest, rel=0.05)


def test_a_flat_start_has_a_floor():
    problem = network()
    zeros = np.zeros(problem.target.n_parameters)
    task = icgd.as_task(problem, np.zeros((4, 3)), np.zeros((4, 2)), initial=zeros)
    assert sharpness(problem.oracle, task) == FLAT
