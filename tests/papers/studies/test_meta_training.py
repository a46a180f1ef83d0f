"""The stages of meta-learning: tasks, what learns, and in which units."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from icgd.learnable import LearnableRun
from icgd_papers.reproduction import Conduct
from icgd_papers.studies.meta_learning import BUDGETS
from icgd_papers.studies.meta_training import (
    CANDIDATES,
    TASK,
    TEST_INDEX,
    Descent,
    NearTask,
    Stages,
    batch_of,
    best_step_size,
    compiled_run,
    in_units,
    sines,
)
from icgd_papers.training.units import Units


@pytest.fixture(scope="module")
def run():
    return LearnableRun(compiled_run(3), step_sizes=[0.5, 0.4, 0.3, 0.2, 0.1], seed=1)


def test_tasks_are_sines_of_any_height_and_phase():
    x, y = sines(50, np.random.default_rng(0))
    assert x.shape == (50, 20, 2)
    assert (x[..., 1] == 1).all()
    assert x[..., 0].abs().max() <= 1
    waves = torch.stack([torch.sin(2 * x[..., 0]), torch.cos(2 * x[..., 0])], -1)
    fits = torch.linalg.lstsq(waves, y.unsqueeze(-1)).solution
    torch.testing.assert_close((waves @ fits).squeeze(-1), y)
    heights = fits.squeeze(-1).norm(dim=-1)
    assert heights.min() >= 0.2
    assert heights.max() <= 1
    assert heights.max() - heights.min() > 0.6


def test_the_best_step_size_has_the_smallest_loss_after_the_last_step(run):
    parts = batch_of(TEST_INDEX, 20, 0)
    x, y, queries, labels = parts
    candidates = (0.1, 0.5, 5.0)
    losses = []
    with torch.no_grad():
        for size in candidates:
            single = LearnableRun(compiled_run(3), step_sizes=size, seed=1)
            losses.append(float((single(x, y, queries) - labels).square().mean()))
    assert best_step_size(run, parts, candidates) == candidates[losses.index(min(losses))]
    assert CANDIDATES[0] == 0.05
    assert 6 < CANDIDATES[-1] < 7


def test_descent_predicts_what_the_transformer_predicts_and_has_its_gradients(run):
    x, y, queries, labels = batch_of(TEST_INDEX, 5, 0)
    gradients = []
    for module in (run, Descent(run)):
        loss = (module(x, y, queries) - labels).square().mean()
        gradients.append(torch.autograd.grad(loss, (module.initial, module.step_sizes)))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_descent_goes_back_into_the_transformer_with_any_step_size(run):
    descent = Descent(run)
    with torch.no_grad():
        descent.step_sizes[2] = -0.01  # learning may find it; nobody would ask for it
        again = descent.in_transformer(compiled_run(3))
        x, y, queries, _ = batch_of(TEST_INDEX, 3, 0)
        predicted = again(x, y, queries)
        torch.testing.assert_close(predicted, descent(x, y, queries), rtol=0, atol=1e-10)


def test_units_change_no_prediction_and_are_the_inverse_of_large_output_weights(run):
    x, y, queries, _ = batch_of(TEST_INDEX, 3, 0)
    tuned = in_units(run.untied())
    with torch.no_grad():
        assert torch.equal(tuned(x, y, queries), run.untied()(x, y, queries))
    units = [module for module in tuned.modules() if isinstance(module, Units)]
    assert {float(module.units) for module in units} == {1.0, 2.0**-13}


def test_near_tasks_have_the_models_own_predictions_for_labels(run):
    tuned = run.untied()
    task = NearTask(tuned)
    batch = task.sample(4, seed=0, index=3)
    assert torch.equal(batch.x, TASK.sample(4, seed=0, index=3).x)
    assert task.loss(tuned, batch).item() == 0.0
    with torch.no_grad():
        other = LearnableRun(compiled_run(3), step_sizes=0.1, seed=1)
        x, y, queries, _ = TASK.parts(batch)
        expected = (other(x, y, queries) - tuned(x, y, queries)).square().mean()
        torch.testing.assert_close(task.loss(other, batch), expected)
    assert task.description()["family"] == TASK.description()


def test_stages_tell_of_their_steps_and_continue_in_their_folders(run, tmp_path):
    told = []
    conduct = Conduct(on_step=lambda step, n_steps, loss: told.append((step, n_steps)))
    budget = replace(BUDGETS["smoke"], batch_size=2)
    stages = Stages(0, budget, conduct, tmp_path)
    first, second = Descent(run), Descent(run)
    stages.learn("one", first, 2, 0.02)
    stages.learn("two", second, 1, 0.02)
    assert told == [(1, budget.n_steps), (2, budget.n_steps), (3, budget.n_steps)]
    assert budget.n_steps == 1 + 2 + 2 + 1 + 1
    again = Descent(run)
    Stages(0, budget, conduct, tmp_path).learn("one", again, 2, 0.02)
    assert len(told) == 3  # it was finished
    assert torch.equal(again.initial, first.initial)
    assert not torch.equal(again.initial, run.initial)


def test_rates_rise_for_ten_steps_and_fall_to_a_hundredth():
    stages = Stages(7, BUDGETS["laptop"], Conduct(), None)
    settings = stages.settings(100, 0.02)
    assert (settings.seed, settings.dtype, settings.batch_size) == (7, "float64", 16)
    assert settings.learning_rate_at(0) == pytest.approx(0.002)
    assert settings.learning_rate_at(10) == 0.02
    assert settings.final_learning_rate == pytest.approx(0.0002)
    assert stages.settings(1, 0.02).warmup_steps == 0
