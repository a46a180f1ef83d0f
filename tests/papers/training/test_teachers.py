"""Teachers beside networks that are written out, their moments, and what is refused."""

import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from icgd.errors import DataError, DistributionError, SettingError, UnknownNameError
from icgd_papers.training.covariates import ShiftedMixture
from icgd_papers.training.labels import Teachers
from icgd_papers.training.tasks import InContextTask


def points(n_tasks=3, n_tokens=4, width=2):
    return torch.from_numpy(np.random.default_rng(5).standard_normal((n_tasks, n_tokens, width)))


@pytest.mark.parametrize(("activation", "gain"), [("relu", 2**0.5), ("tanh", 1.0)])
def test_each_task_has_a_network_of_its_own(activation, gain):
    """The same random numbers, a task and a token at a time."""
    x, mean = points(), 0.5
    y = Teachers(3, 5, mean, activation).sample(x, np.random.default_rng(0))
    generator = np.random.default_rng(0)
    drawn = [mean + generator.standard_normal((3, *shape)) for shape in ((2, 5), (5, 5), (5, 1))]
    function = {"relu": lambda z: np.maximum(z, 0), "tanh": np.tanh}[activation]
    for task in range(3):
        first, second, last = (layer[task] for layer in drawn)
        for token, point in enumerate(x[task].numpy()):
            hidden = function(gain * point @ first / 2**0.5)
            hidden = function(gain * hidden @ second / 5**0.5)
            assert y[task, token].item() == pytest.approx(
                (hidden @ last / 5**0.5).item(), abs=1e-13
            )


@pytest.mark.parametrize("n_layers", [1, 3, 6])
def test_the_second_moment_is_that_of_the_inputs_at_every_depth(n_layers):
    x = points(1, 1, 5).expand(20_000, 1, 5)
    y = Teachers(n_layers, 20).sample(x, np.random.default_rng(0))[:, 0]
    error = y.square().std() / len(y) ** 0.5
    assert (y.square().mean() - x[0].square().mean()).abs() <= 5 * error
    assert error < 0.2 * x[0].square().mean()


def test_a_relu_teacher_is_the_plain_network_times_a_constant_of_its_sizes():
    """Weights N(mean, I) without any scaling: the constant is the same for all tasks and tokens."""
    x, generator = points(), np.random.default_rng(0)
    y = Teachers(3, 5, -0.5).sample(x, np.random.default_rng(0))
    for n_out, n_in in ((5, 2), (5, 5), (1, 5)):
        weights = -0.5 + torch.from_numpy(generator.standard_normal((3, n_in, n_out)))
        plain = (x if n_in == 2 else torch.relu(plain)) @ weights
    assert_close(y, plain[..., 0] * 2 / 50**0.5)


def test_points_are_whitened_first():
    whitening = torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64))
    x, seed = points(), np.random.default_rng
    plain = Teachers(2, 4).sample(x @ whitening, seed(1))
    assert torch.equal(Teachers(2, 4, whitening=whitening).sample(x, seed(1)), plain)
    with pytest.raises(DataError, match=r"x has shape \(3, 4, 3\); expected \(task, token, 2\)"):
        Teachers(2, 4, whitening=whitening).sample(points(width=3), seed(1))


def test_a_law_describes_itself_and_knows_no_best_prediction():
    labels = Teachers(3, 5, 0.5, "tanh")
    assert labels.description() == {
        "law": "Teachers",
        "whitening": None,
        "n_layers": 3,
        "hidden_width": 5,
        "mean": 0.5,
        "activation": "tanh",
    }
    task = InContextTask(ShiftedMixture.of_width(2), labels, 3)
    assert task.bayes_loss(task.sample(2, seed=0, index=0)) is None
    assert labels.covariance(points()) is None


@pytest.mark.parametrize("mean", [1e20, 1e300])
def test_outputs_that_overflow_are_refused(mean):
    message = rf"Labels of Teachers, 3 layers, N\({mean:g}, I\) overflow: the largest is "
    with pytest.raises(DistributionError, match=message.replace("+", r"\+")):
        Teachers(3, 5, mean).sample(points(), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ((0, 5), SettingError, "n_layers must be a whole number of at least 1, got 0"),
        ((1001, 5), SettingError, "n_layers must be at most 1000, got 1001"),
        ((3, 0), SettingError, "hidden_width must be a whole number of at least 1, got 0"),
        ((3, 5, float("nan")), SettingError, "mean must be a finite number"),
        ((3, 5, 0.0, "rellu"), UnknownNameError, "Did you mean 'relu'?"),
    ],
)
def test_settings_that_make_no_teacher_are_refused(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Teachers(*settings)
