"""meta-gradients and meta-learning: gradients through a run, and what learns by them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from icgd.errors import CheckpointError
from icgd.learnable import LearnableRun
from icgd_papers.figure import Job
from icgd_papers.runner import stored_results, stored_rows
from icgd_papers.studies import meta_gradients, meta_learning
from icgd_papers.studies.meta_learning import (
    ALL,
    BEST,
    HAND,
    LONGER,
    NEAREST,
    SIZES,
    START,
    TASK,
    TEST_INDEX,
    Descent,
    NearTask,
    compiled_run,
    in_units,
)
from icgd_papers.training import train

ROOT = Path(__file__).parents[2]
SETTING = meta_learning.settings("smoke", 0)[0]
X, Y, QUERIES, LABELS = TASK.parts(TASK.sample(5, seed=0, index=TEST_INDEX))


@pytest.fixture(scope="module")
def run():
    return LearnableRun(compiled_run(3), step_sizes=[0.5, 0.4, 0.3, 0.2, 0.1], seed=1)


def test_gradients_err_by_rounding_except_through_pieces():
    softmax, relu, pieces = (
        meta_gradients.run(setting, Job()).row(0, named=True)
        for setting in meta_gradients.settings("smoke", 0)
    )
    for row in (softmax, relu):
        assert row["pieces"] is None
        errors = [row[name] for name in ("prediction_error", "step_size_error", "start_error")]
        assert max(errors) < meta_gradients.ASKED / 10
    assert pieces["case"] == "relu-stack, tanh, squared, 32 pieces"
    assert 1e-3 < pieces["start_error"] < 0.2
    committed = stored_rows(ROOT / "results/meta-gradients/laptop.json")
    exact = committed.filter(pl.col("pieces").is_null())
    largest = exact.select(pl.max_horizontal(pl.col("step_size_error", "start_error").max()))
    assert largest.item() < meta_gradients.ASKED


def test_tasks_are_sines_of_any_height_and_phase():
    x, y = meta_learning.sines(50, np.random.default_rng(0))
    assert (x[..., 1] == 1).all()
    assert x[..., 0].abs().max() <= 1
    waves = torch.stack([torch.sin(2 * x[..., 0]), torch.cos(2 * x[..., 0])], -1)
    fits = torch.linalg.lstsq(waves, y.unsqueeze(-1)).solution
    torch.testing.assert_close((waves @ fits).squeeze(-1), y)
    heights = fits.squeeze(-1).norm(dim=-1)
    assert 0.2 <= heights.min() < 0.4 < 0.8 < heights.max() <= 1


def test_the_best_step_size_has_the_smallest_loss_after_the_last_step(run, monkeypatch):
    candidates = (0.1, 0.5, 5.0)
    monkeypatch.setattr(meta_learning, "CANDIDATES", candidates)
    losses = []
    for size in candidates:
        single = LearnableRun(compiled_run(3), step_sizes=size, seed=1)
        losses.append(float((single(X, Y, QUERIES) - LABELS).detach().square().mean()))
    best = meta_learning.best_step_size(run, (X, Y, QUERIES, LABELS))
    assert best == candidates[losses.index(min(losses))]


def test_descent_has_the_predictions_and_gradients_of_the_transformer(run):
    descent = Descent(run)
    gradients = []
    for module in (run, descent):
        loss = (module(X, Y, QUERIES) - LABELS).square().mean()
        gradients.append(torch.autograd.grad(loss, (module.initial, module.step_sizes)))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        descent.step_sizes[2] = -0.01  # learning may get there; nobody would ask for it
        again = descent.in_transformer(compiled_run(3))(X, Y, QUERIES)
        torch.testing.assert_close(again, descent(X, Y, QUERIES), rtol=0, atol=1e-10)


def test_units_change_no_prediction_and_are_the_inverse_of_large_output_weights(run):
    tuned = in_units(run.untied())
    with torch.no_grad():
        assert torch.equal(tuned(X, Y, QUERIES), run.untied()(X, Y, QUERIES))
    units = {float(buffer) for name, buffer in tuned.named_buffers() if name.endswith("units")}
    assert units == {1.0, 2.0**-13}
    # In a fixed order: the gradient's norm is a sum over parameters, and training all weights
    # amplifies its rounding.
    for layer, plain in zip(tuned.transformer.block, run.transformer.block, strict=False):
        names = [name for name, _ in plain.named_parameters() if name not in ("W_O", "W_out")]
        assert list(layer.parametrizations) == names


def test_near_tasks_have_the_models_predictions_for_labels(run):
    tuned = run.untied()
    batch = TASK.sample(4, seed=0, index=3)
    assert NearTask(tuned).loss(tuned, batch).item() == 0.0
    other = LearnableRun(compiled_run(3), step_sizes=0.1, seed=1)
    x, y, queries, _ = TASK.parts(batch)
    with torch.no_grad():
        expected = (other(x, y, queries) - tuned(x, y, queries)).square().mean()
        torch.testing.assert_close(NearTask(tuned).loss(other, batch), expected)


def test_a_job_learns_stage_by_stage_and_resumes(tmp_path):
    setting = replace(SETTING, start_steps=8, batch_size=4, n_test=20)
    steps = []

    def stop_while_all_weights_learn(step, n_steps, loss):
        steps.append(step)
        if step == 12:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        meta_learning.run(setting, Job(tmp_path, on_step=stop_while_all_weights_learn))
    assert steps == list(range(1, 13))  # of 1 + 8 + 2 + 1 + 1
    rows = meta_learning.run(setting, Job(tmp_path))
    assert rows.equals(meta_learning.run(setting, Job()))

    lines = {name: rows.filter(line=name).sort("step") for name in rows["line"].unique()}
    last = {name: line["loss"][-1] for name, line in lines.items()}
    assert last[START] < last[BEST] < last[HAND]
    first = {name: line["loss"][0] for name, line in lines.items()}
    assert first[HAND] == first[BEST] == first[SIZES] != first[START]
    sizes = {name: line["step_size"].drop_nulls().to_list() for name, line in lines.items()}
    assert sizes[HAND] == [0.1] * 5
    assert len(set(sizes[BEST])) == 1
    assert sizes[SIZES] != sizes[BEST]
    assert sizes[ALL] == sizes[LONGER] != sizes[START]
    for name in (HAND, BEST, SIZES, START, LONGER):  # these are still descent
        assert lines[name]["weight_distance"].max() < 1e-12
        assert lines[name]["prediction_distance"].max() < 1e-12
    assert lines[ALL]["prediction_distance"][-1] > 1e-6
    assert lines[NEAREST]["prediction_distance"][-1] != lines[ALL]["prediction_distance"][-1]
    learning = {name: line.row(0, named=True) for name, line in lines.items()}
    rates = {name: (row["learning_steps"], row["learning_rate"]) for name, row in learning.items()}
    assert rates == {
        HAND: (0, None),
        BEST: (0, None),
        SIZES: (1, 0.05),
        START: (8, 0.02),
        LONGER: (10, 0.02),
        ALL: (11, 3e-6),
        NEAREST: (11, 0.003),
    }


def test_a_checkpoint_of_another_run_is_refused(run, tmp_path):
    settings = meta_learning.training_settings(SETTING, 1, 0.02)
    train(LearnableRun(compiled_run(3)), TASK, settings, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"problem\.target"):
        train(LearnableRun(compiled_run(4)), TASK, settings, folder=tmp_path)


def test_rates_rise_for_ten_steps_and_fall_to_a_hundredth():
    settings = meta_learning.training_settings(SETTING, 100, 0.02)
    assert (settings.seed, settings.dtype, settings.batch_size) == (0, "float64", 2)
    assert settings.learning_rate_at(0) == pytest.approx(0.002)
    assert settings.learning_rate_at(10) == 0.02
    assert settings.final_learning_rate == pytest.approx(0.0002)
    assert meta_learning.training_settings(SETTING, 1, 0.02).warmup_steps == 0


def test_the_picture_shows_losses_and_distances_from_the_first_step_on():
    rows = stored_rows(ROOT / "results/meta-learning/laptop.json")
    losses, distances = meta_learning.draw(rows).axes
    mean = (
        rows.filter(line=SIZES)
        .group_by("step", maintain_order=True)
        .agg(pl.col("loss").log().mean().exp())
    )
    assert losses.lines[2].get_ydata() == pytest.approx(mean["loss"].to_numpy())
    assert len(losses.lines) == 6
    assert distances.lines[1].get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert distances.lines[2].get_linestyle() == "--"


@pytest.mark.parametrize(
    ("figure", "left_out"),
    [("meta-gradients", ()), ("meta-learning", ("1", "3", "smallest to largest", "in the mean"))],
)
def test_the_page_shows_the_committed_numbers(figure, left_out):
    page = (ROOT / "docs/reproductions/meta_learning.md").read_text(encoding="utf-8")
    for line in stored_results(ROOT / f"results/{figure}/laptop.json")["summary"]:
        cells = [cell for name, cell in line.items() if name not in left_out]
        assert f"| {' | '.join(cells)} |" in page
