"""Labels have the law that they claim, and the best prediction is the conditional mean."""

import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from icgd.errors import DataError, DistributionError, KernelError, SettingError
from icgd.problems import kernel_machine as kernels
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd_papers.training.covariates import Ellipsoid, Gaussian
from icgd_papers.training.labels import TASKS_AT_ONCE, KernelProcess, LinearFunctions, ReluNetworks

WIDTH = 3
N_TOKENS = 8  # more than WIDTH: the linear kernel is singular, and relu is not positive
COVARIATES = Gaussian(torch.diag(torch.tensor([1.0, 0.25, 2.0])).double())

KERNELS = {
    "linear": lambda u, w: u @ w,
    "relu": lambda u, w: max(u @ w, 0),
    "exp": lambda u, w: np.exp(u @ w),
    "rbf": lambda u, w: np.exp(-((u - w) ** 2).sum() / 2),
    "polynomial": lambda u, w: (1 + u @ w) ** 2,
}


class UnitNoise(np.random.Generator):
    """Returns the unit vector number `place` as noise: labels are then one column of a factor."""

    def __init__(self, place):
        super().__init__(np.random.PCG64(0))
        self.place = place

    def standard_normal(self, shape):
        noise = np.zeros(shape)
        noise[:, self.place] = 1
        return noise


def inputs(n_tasks=2, n_tokens=N_TOKENS):
    return COVARIATES.sample(n_tasks, n_tokens, np.random.default_rng(5))


def process(name, *, whitened=True):
    whitening = COVARIATES.whitening if whitened else None
    return KernelProcess(KernelMachine(WIDTH, (KernelHead(name),)), whitening)


def kernel_matrix(name, x):
    """The kernel of the whitened points of one task, entry by entry."""
    points = x.numpy() @ np.diag([1.0, 2.0, 0.5**0.5])
    return np.array([[KERNELS[name](u, w) for w in points] for u in points])


def flipped(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.abs(values)) @ vectors.T


def law_of(labels, x, n_noise=N_TOKENS):
    """The covariance that `sample` realises, for each task."""
    columns = [labels.sample(x, UnitNoise(place)) for place in range(n_noise)]
    factor = torch.stack(columns, dim=-1)
    return (factor @ factor.mT).numpy()


def assert_within(tolerance, actual, expected):
    assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_labels_have_the_covariance_with_flipped_eigenvalues(name):
    x = inputs()
    expected = [flipped(kernel_matrix(name, task)) for task in x]
    n_noise = WIDTH if name == "linear" else N_TOKENS
    assert_within(1e-11, law_of(process(name), x, n_noise), expected)
    assert_within(1e-11, process(name).covariance(x).numpy(), expected)


def test_relu_is_really_flipped():
    matrix = kernel_matrix("relu", inputs()[0])
    assert np.linalg.eigvalsh(matrix)[0] < -0.1


def test_positive_and_other_tasks_may_share_a_batch():
    x = inputs(n_tasks=40, n_tokens=5)
    least = [np.linalg.eigvalsh(kernel_matrix("relu", task))[0] for task in x]
    assert min(least) < 0 < max(least)
    expected = [flipped(kernel_matrix("relu", task)) for task in x]
    assert_within(1e-11, law_of(process("relu"), x, 5), expected)


@pytest.mark.parametrize("name", ["relu", "exp"])
def test_the_sample_covariance_of_labels_is_the_flipped_matrix(name):
    x = inputs(n_tasks=1, n_tokens=4)
    y = process(name).sample(x.expand(20_000, -1, -1), np.random.default_rng(2)).numpy()
    products = y[:, :, None] * y[:, None, :]
    error = products.std(0) / len(products) ** 0.5
    assert (np.abs(products.mean(0) - flipped(kernel_matrix(name, x[0]))) < 4 * error).all()


@pytest.mark.parametrize(("distance", "least", "most"), [(0.0, 0.0, 1e-13), (1e-6, 1e-7, 1e-5)])
def test_labels_of_close_points_differ_as_much_as_they_should(distance, least, most):
    x, labels = inputs(n_tasks=30), process("rbf")
    x[:, 6] = x[:, 5] + distance
    assert_within(1e-13, law_of(labels, x), [kernel_matrix("rbf", task) for task in x])
    y = labels.sample(x, np.random.default_rng(0))
    assert least <= (y[:, 6] - y[:, 5]).abs().max() < most


def test_several_linear_heads_sum_up():
    transform = ((1.0, 0.0, 3.0), (0.0, 2.0, 0.0), (0.0, 0.0, 0.0))
    heads = (KernelHead("linear", weight=0.5), KernelHead("linear", transform))
    machine, x = KernelMachine(WIDTH, heads), inputs()
    assert_within(1e-12, law_of(KernelProcess(machine), x, 2 * WIDTH), machine.gram(x))


@pytest.mark.parametrize("name", ["relu", "exp", "rbf"])
def test_the_best_prediction_is_the_conditional_mean(name):
    x = inputs()
    y = process(name).sample(x, np.random.default_rng(0))
    for task, best in enumerate(process(name).bayes(x, y)):
        whole = flipped(kernel_matrix(name, x[task]))
        weights = np.linalg.solve(whole[:-1, :-1], whole[:-1, -1])
        assert_allclose(best, weights @ y[task, :-1].numpy(), rtol=1e-9)


@pytest.mark.parametrize("name", ["relu", "linear", "exp"])
def test_no_other_linear_combination_has_a_smaller_risk(name):
    x, labels = inputs(n_tasks=1, n_tokens=3), process(name)
    basis = torch.eye(3).double()
    weights = [labels.bayes(x, row[None]).item() for row in basis[:2]]
    whole = flipped(kernel_matrix(name, x[0]))

    def risk(left, right):
        combination = np.array([left, right, -1.0])
        return combination @ whole @ combination

    nearby = [risk(weights[0] + a, weights[1] + b) for a in (-0.1, 0, 0.1) for b in (-0.1, 0, 0.1)]
    assert min(nearby) == nearby[4] == pytest.approx(risk(*weights))


def test_the_best_prediction_equals_a_gaussian_process_of_scikit_learn():
    gaussian_process = pytest.importorskip("sklearn.gaussian_process")
    x = inputs()
    labels = process("rbf", whitened=False)
    y = labels.sample(x, np.random.default_rng(0))
    for task, best in enumerate(labels.bayes(x, y)):
        kernel = gaussian_process.kernels.RBF(1.0)
        model = gaussian_process.GaussianProcessRegressor(kernel, alpha=1e-13, optimizer=None)
        model.fit(x[task, :-1].numpy(), y[task, :-1].numpy())
        assert_allclose(best, model.predict(x[task, -1:].numpy())[0], rtol=1e-8)


@pytest.mark.parametrize("name", ["linear", "polynomial"])
def test_labels_of_few_features_are_predicted_exactly_from_many_examples(name):
    x = inputs(n_tasks=5, n_tokens=14)  # 3 and 10 features
    y = process(name).sample(x, np.random.default_rng(0))
    assert_within(1e-9, process(name).bayes(x, y), y[:, -1])


def test_a_query_among_the_examples_has_its_label():
    x = inputs()
    x[:, -1] = x[:, 2]
    y = process("rbf").sample(x, np.random.default_rng(0))
    assert_within(1e-12, process("rbf").bayes(x, y), y[:, 2])


def test_linear_functions_are_linear_and_their_best_prediction_is_the_shortest():
    labels, x = LinearFunctions(COVARIATES.whitening), inputs(n_tokens=3)
    assert_within(1e-12, law_of(labels, x, WIDTH), labels.covariance(x))
    assert_within(1e-12, labels.covariance(x)[0], kernel_matrix("linear", x[0]))
    y = labels.sample(x, np.random.default_rng(0))
    points = (x @ COVARIATES.whitening).numpy()
    shortest = [np.linalg.pinv(p[:-1]) @ v[:-1].numpy() for p, v in zip(points, y, strict=True)]
    expected = [p[-1] @ theta for p, theta in zip(points, shortest, strict=True)]
    assert_allclose(labels.bayes(x, y), expected, rtol=1e-9)


def test_relu_networks_have_the_arc_cosine_covariance():
    x, width = inputs(n_tasks=1, n_tokens=3), 4
    labels = ReluNetworks(width, COVARIATES.whitening)
    y = labels.sample(x.expand(40_000, -1, -1), np.random.default_rng(3)).numpy()
    points = (x[0] @ COVARIATES.whitening).numpy()
    norms = np.linalg.norm(points, axis=1)
    angle = np.arccos(np.clip(points @ points.T / np.outer(norms, norms), -1, 1))
    shape = np.sin(angle) + (np.pi - angle) * np.cos(angle)
    products = y[:, :, None] * y[:, None, :]
    error = products.std(0) / len(products) ** 0.5
    expected = width * np.outer(norms, norms) * shape / (2 * np.pi)
    assert (np.abs(products.mean(0) - expected) < 4 * error).all()
    assert labels.bayes(x, torch.zeros(1, 3).double()) is None


@pytest.mark.parametrize("name", ["linear", "relu", "rbf"])
def test_the_true_label_of_the_query_is_not_read(name):
    x = inputs()
    y = process(name).sample(x, np.random.default_rng(0))
    hidden = y.clone()
    hidden[:, -1] = torch.nan
    assert torch.equal(process(name).bayes(x, hidden), process(name).bayes(x, y))


def test_a_large_batch_is_its_parts():
    x, labels = inputs(TASKS_AT_ONCE + 3, 4), process("exp")
    y = labels.sample(x, np.random.default_rng(0))
    assert_allclose(labels.bayes(x, y)[-3:], labels.bayes(x[-3:], y[-3:]), rtol=1e-12)
    noise = np.random.default_rng(0).standard_normal(y.shape)
    last = np.linalg.cholesky(kernel_matrix("exp", x[-1])) @ noise[-1]
    assert_within(1e-12, y[-1], last)


def test_a_kernel_that_is_not_symmetric_is_refused(monkeypatch):
    message = "A kernel process needs a symmetric kernel, and 'softmax' is not."
    with pytest.raises(KernelError, match=re.escape(message)):
        process("softmax")
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))
    kernels.register_kernel("lopsided", lambda left, right: left[..., :1] * right.sum(-1)[:, None])
    with pytest.raises(KernelError, match="Kernel 'lopsided' is not symmetric"):
        process("lopsided").sample(inputs(), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: LinearFunctions(torch.ones(2, 3)),
            DistributionError,
            "whitening must be a square matrix",
        ),
        (
            lambda: KernelProcess(KernelMachine(4), COVARIATES.whitening),
            DistributionError,
            "The labels are a function of 4 inputs, but the covariates have 3.",
        ),
        (
            lambda: process("rbf").sample(torch.ones(1, 2, 5), np.random.default_rng(0)),
            DataError,
            "(task, token, 3)",
        ),
        (
            lambda: ReluNetworks(0),
            SettingError,
            "hidden_width must be a whole number of at least 1",
        ),
        (
            lambda: process("exp").sample(100 * inputs(), np.random.default_rng(0)),
            KernelError,
            "Kernel 'exp' returned inf",
        ),
    ],
)
def test_labels_that_cannot_be_drawn_are_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_a_description_tells_laws_apart():
    whitening = Ellipsoid.of_seed(0).whitening
    laws = [
        KernelProcess(KernelMachine(5, (KernelHead(name),)), whitening) for name in ("relu", "exp")
    ]
    laws += [
        KernelProcess(KernelMachine(5, (KernelHead("exp"),))),
        LinearFunctions(),
        LinearFunctions(whitening),
    ]
    laws += [ReluNetworks(3), ReluNetworks(4)]
    assert len({str(law.description()) for law in laws}) == len(laws)
