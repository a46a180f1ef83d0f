"""Networks in context beside the same networks trained directly."""

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.datasets import load_diabetes, load_iris, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

import icgd
from icgd.errors import (
    DataError,
    OverflowedRunError,
    SettingError,
    UnknownNameError,
    UnsupportedProblemError,
)
from icgd.estimators import InContextClassifier, InContextRegressor
from icgd.estimators.base import seed_of
from icgd.estimators.networks import LEAST_CURVATURE, SOLVERS, sharpness

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = (part[:80] for part in load_diabetes(return_X_y=True, scaled=False))


PLAIN = {"solver": "gradient", "alpha": 0.0}


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
    fit = InContextRegressor((6, 4), max_iter=40, random_state=0, **PLAIN).fit(X, Y)
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


def test_three_classes_are_trained_by_cross_entropy():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    fit = InContextClassifier((6,), max_iter=30, random_state=0, **PLAIN).fit(x, names)

    def loss(outputs, labels):
        return torch.nn.functional.cross_entropy(outputs, labels)

    outputs, losses = trained_directly(fit, x, np.eye(3)[y], loss)
    assert losses[0] > 1.5 * losses[-1]
    np.testing.assert_allclose(fit.loss_curve_[:-1], losses, rtol=1e-5)
    np.testing.assert_allclose(fit.decision_function(x), outputs, atol=1e-4)
    np.testing.assert_allclose(fit.predict_proba(x), softmax(outputs, axis=1), rtol=1e-4)
    assert (fit.predict(x) == fit.classes_[outputs.argmax(1)]).all()
    assert fit.score(x, names) > 0.8


def test_cross_entropy_is_trained_by_every_construction_that_has_its_layers():
    x, y = load_iris(return_X_y=True)
    few = {"hidden_layer_sizes": (3,), "max_iter": 5, "random_state": 0, **PLAIN}
    fits = {
        name: InContextClassifier(construction=name, **few).fit(x, y)
        for name in ("relu-stack", "softmax-stack")
    }
    for name, fit in fits.items():
        assert fit.compiled_.summary().construction == name
        expected = fits["softmax-stack"].predict_proba(x)
        np.testing.assert_allclose(fit.predict_proba(x), expected, rtol=1e-2)
    with pytest.raises(
        UnsupportedProblemError, match="slope of the cross_entropy loss is not a sum"
    ):
        InContextClassifier(construction="recursion", **few).fit(x, y)
    two = InContextClassifier(construction="recursion", **few).fit(x[:100], y[:100])
    assert two.score(x[:100], y[:100]) > 0.9


def test_two_classes_share_one_output():
    x, y = load_iris(return_X_y=True)
    fit = InContextClassifier((4,), max_iter=30, random_state=0, **PLAIN).fit(x[:100], y[:100])
    assert fit.decision_function(x).shape == (150,)
    assert fit.compiled_.problem.target.output_width == 1
    assert fit.compiled_.problem.loss == "logistic"
    np.testing.assert_array_equal(fit.predict_proba(x)[:, 1], expit(fit.decision_function(x)))
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
    few = {"max_iter": 5, "random_state": 0, **PLAIN}
    given = InContextRegressor((3,), construction=icgd.ReluStack(pieces=256), **few).fit(X, Y)
    named = InContextRegressor((3,), construction="softmax-stack", **few).fit(X, Y)
    assert named.compiled_.summary().construction == "softmax-stack"
    np.testing.assert_allclose(given.predict(X), named.predict(X), rtol=1e-3)


def test_a_step_size_that_is_found_is_halved_until_the_loss_falls(monkeypatch):
    plain = {"max_iter": 10, "random_state": 0, **PLAIN}
    own = InContextRegressor((4,), step_size=0.125, **plain).fit(X, Y)
    assert own.compiled_.problem.update.step_size == 0.125
    with pytest.warns(ConvergenceWarning, match="The loss rises to .*: halve the step size"):
        InContextRegressor((4,), step_size=64.0, **plain).fit(X, Y)
    with monkeypatch.context() as patch:
        patch.setattr("icgd.estimators.networks.sharpness", lambda *_: 1 / 64)
        found = InContextRegressor((4,), **plain).fit(X, Y)
    size = found.compiled_.problem.update.step_size
    assert size < 8.0
    assert np.log2(64.0 / size) == int(np.log2(64.0 / size))
    assert (np.diff(found.loss_curve_) < 0).all()


def test_a_loss_that_never_falls_is_an_error(monkeypatch):
    monkeypatch.setattr("icgd.estimators.networks.sharpness", lambda *_: 1e-12)
    message = "^The loss is larger after the run than before it, even with step_size=2.44141e"
    with pytest.raises(OverflowedRunError, match=message):
        InContextRegressor((4,), max_iter=5, random_state=0, **PLAIN).fit(X, Y)


@pytest.mark.parametrize("solver", SOLVERS)
def test_weights_never_reach_the_box(solver):
    fit = InContextRegressor((4,), max_iter=50, random_state=0, solver=solver).fit(X, Y)
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
        ({"solver": "lbfgs"}, UnknownNameError, "Unknown solver 'lbfgs'; known are adam, adamw"),
        (
            {"max_iter": 10**9, "batch_size": 40},
            SettingError,
            "2,000,000,000 steps, but adam steps.* at most 16,666 .* Take max_iter=8,333 or fewer",
        ),
        ({"alpha": -1.0}, SettingError, "alpha.*-1"),
        ({"batch_size": 0}, SettingError, "batch_size.*0"),
        (
            {"construction": "softmax-stack"},
            UnsupportedProblemError,
            "softmax-stack .* has no layers for the root of Adam steps .* use relu-stack",
        ),
    ],
)
def test_bad_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        InContextRegressor(**settings).fit(X, Y)


TORCH = {
    "adam": lambda w, a: torch.optim.Adam(w, 0.02, eps=1e-3, weight_decay=a),
    "adamw": lambda w, a: torch.optim.AdamW(w, 0.02, eps=1e-3, weight_decay=a),
    "rmsprop": lambda w, a: torch.optim.RMSprop(w, 0.02, eps=1e-3, weight_decay=a),
    "momentum": lambda w, a: torch.optim.SGD(w, 0.02, momentum=0.9, weight_decay=a),
    "nesterov": lambda w, a: torch.optim.SGD(w, 0.02, 0.9, weight_decay=a, nesterov=True),
    "gradient": lambda w, a: torch.optim.SGD(w, 0.02, weight_decay=a),
}


@pytest.mark.parametrize("solver", TORCH)
def test_solvers_take_the_steps_of_torch_on_shuffled_batches(solver):
    """80 rows in batches of 32: a pass is 3 steps, and batches go round."""
    weights = np.arange(80) % 4 + 0.5
    fit = InContextRegressor(
        (5,), solver=solver, alpha=0.5, batch_size=32, max_iter=4, step_size=0.02, random_state=0
    ).fit(X, Y, sample_weight=weights)
    assert (fit.n_iter_, fit.compiled_.program.n_steps, len(fit.loss_curve_)) == (4, 12, 5)

    x, y, rates = fit._task.x, fit._task.y, fit._task.rates
    scaled = StandardScaler().fit(X, sample_weight=weights).transform(X)
    order = np.random.default_rng(seed_of(0)).permutation(80)
    np.testing.assert_allclose(x[:, :-1], scaled[order], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(rates[:, 0], (weights / weights.mean())[order])
    problem = fit.compiled_.problem
    initial = problem.network_oracle.weights_of(fit._task.initial)
    start = [m.clone().requires_grad_() for m in problem.network.matrices(initial)]
    decay = 0.5 / (32 * weights.mean())  # alpha over the weight of a batch
    optimiser = TORCH[solver](start, decay)
    for step in range(12):
        if solver != "gradient":
            optimiser.param_groups[0]["lr"] = 0.02 * min(1.0, 2 * (1 - step / 12))
        rows = (32 * step + torch.arange(32)) % 80
        outputs = torch.tanh(x[rows] @ start[0].T) @ start[1].T
        optimiser.zero_grad()
        (rates[rows] * (outputs - y[rows]) ** 2).mean().div(2).backward()
        optimiser.step()
    for ours, theirs in zip(fit.coefs_, start, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-4)


def test_classes_descend_the_loss_of_scikit_learn():
    """Its gradient is twice that of half the mean loss, so that alpha means the same."""
    x, y = load_iris(return_X_y=True)
    for rows, model, scale in (
        (slice(None), InContextClassifier, 2.0),
        (slice(100), InContextClassifier, 2.0),
        (slice(None), InContextRegressor, 1.0),
    ):
        fit = model((4,), max_iter=3).fit(x[rows], y[rows])
        assert fit.compiled_.problem.update.gradient_scale == scale


def test_the_default_penalty_is_half_the_square_of_the_weights_on_all_losses():
    given = {"max_iter": 2, "random_state": 0}
    weights = np.arange(80) % 4 + 0.5
    for batch_size, sample_weight in ((80, None), (32, None), (32, weights)):
        fit = InContextRegressor((4,), batch_size=batch_size, **given)
        fit.fit(X, Y, sample_weight=sample_weight)
        total = 80.0 if sample_weight is None else weights.sum()
        assert fit.compiled_.problem.update.weight_decay == pytest.approx(1 / total)
    same = InContextRegressor((4,), batch_size=32, alpha=32 / 80, **given).fit(X, Y)
    unweighted = InContextRegressor((4,), batch_size=32, **given).fit(X, Y)
    np.testing.assert_allclose(same.predict(X), unweighted.predict(X), rtol=1e-12)


def test_the_default_reaches_scikit_learn_on_large_data():
    x, y = make_friedman1(3000, 10, noise=1.0, random_state=0)
    scaler = StandardScaler().fit(x[:2500])
    real = MLPRegressor(hidden_layer_sizes=(32,), activation="tanh", random_state=0)
    real.fit(scaler.transform(x[:2500]), y[:2500] / 5)
    fit = InContextRegressor(random_state=0).fit(x[:2500], y[:2500])
    assert (fit.n_iter_, fit.compiled_.program.n_steps) == (150, 150 * 13)
    score = real.score(scaler.transform(x[2500:]), y[2500:] / 5)
    assert fit.score(x[2500:], y[2500:]) > score - 0.01 > 0.85


def test_the_weights_of_classes_are_those_of_their_rows():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    heavy = {"versicolor": 10.0}
    given = {"max_iter": 20, "random_state": 0}
    fit = InContextClassifier((4,), class_weight=heavy, **given).fit(x, names)
    rows = np.where(names == "versicolor", 10.0, 1.0)
    same = InContextClassifier((4,), **given).fit(x, names, sample_weight=rows)
    np.testing.assert_array_equal(fit.predict_proba(x), same.predict_proba(x))
    plain = InContextClassifier((4,), **given).fit(x, names)
    found = [(model.predict(x) == "versicolor").sum() for model in (fit, plain)]
    assert found[0] > found[1]
    few = np.r_[0:50, 50:60, 100:150]
    balanced = InContextClassifier((4,), class_weight="balanced", **given).fit(x[few], names[few])
    of_class = {name: balanced._task.rates[names[few] == name].mean() for name in set(names)}
    assert of_class["versicolor"] == pytest.approx(5 * of_class["setosa"])


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ({"setsa": 2.0}, "names the class 'setsa', but y has the classes 'a', 'setosa'"),
        ({"setosa": 0.0}, r"class_weight\['setosa'\] is 0, which leaves no example"),
        ("equal", "must be 'balanced', or a weight for each class"),
    ],
)
def test_weights_of_classes_are_named_as_users_know_them(class_weight, message):
    with pytest.raises(SettingError, match=message):
        InContextClassifier(class_weight=class_weight).fit(X[:4], ["setosa", "a", "a", "setosa"])


def test_weights_of_one_class_are_refused():
    message = "^All examples with a positive weight are of one class, 'no'"
    with pytest.raises(DataError, match=message):
        InContextClassifier().fit(X[:3], ["no", "no", "yes"], sample_weight=[1.0, 2.0, 0.0])


def test_a_row_that_is_too_far_to_be_answered_is_named():
    fit = InContextRegressor((4,), max_iter=3, random_state=0).fit(X, Y)
    rows = X[:2].copy()
    rows[1, 1] = 1e20
    with pytest.raises(DataError, match=r"column 1 \(counted from 0\), row 1 is .* standard dev"):
        fit.predict(rows)


def test_rows_beyond_the_domain_are_answered_after_steps_on_batches():
    fit = InContextRegressor((4,), batch_size=16, max_iter=3, random_state=0).fit(X, Y)
    assert np.isfinite(fit.predict(X.mean(0, keepdims=True) + 50 * X.std(0))).all()


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
    assert sharpness(problem.oracle, task) == LEAST_CURVATURE
