"""The figures of cheng: which models they train, how, and what their tables and pictures say."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

from icgd.errors import TrainingError
from icgd_papers.figure import Job
from icgd_papers.figures import cheng
from icgd_papers.figures.cheng import FIRST_A, LABELS, SMALLEST_LOSS, Budget, Model, first_model
from icgd_papers.runner import stored_rows
from icgd_papers.studies import cheng_curvature
from icgd_papers.training.similarity import distances_to_identity

RESULTS = Path(__file__).parents[2] / "results"
FIGURES = {figure.name: figure for figure in cheng.FIGURES}
BUDGET = Budget(n_steps=3, batch_size=4, n_test=6, n_seeds=1, n_rows=1)
MODEL = Model("a", "exp", ("softmax",), 4, 3, transforms_covariates=True, seed=0, budget=BUDGET)


def test_a_layer_starts_with_half_a_step_and_small_moves():
    model = first_model(replace(MODEL, attention=("exp", "linear"), n_examples=20))
    units = torch.tensor([1 / 20, 5 / 20])
    assert torch.allclose(model.r.detach().float(), -0.5 * units.expand(3, 2))
    learnt = model.parametrizations.A.original
    assert learnt.std().item() == pytest.approx(FIRST_A, rel=0.3)
    assert torch.allclose(model.A.float(), learnt.float() * units[:, None, None])


def test_deep_models_start_with_smaller_steps_and_move_their_inputs_less():
    shallow, deep = (first_model(replace(MODEL, n_layers=depth)) for depth in (3, 6))
    assert torch.allclose(deep.r[0], shallow.r[0] / 2)
    assert deep.A.std().item() == pytest.approx(shallow.A.std().item() / 16, rel=0.3)
    assert deep.B.std().item() == pytest.approx(shallow.B.std().item(), rel=0.3)


def test_the_mixed_kernel_follows_the_papers_definition():
    linear, exponential = LABELS["linear + exp"]
    points = torch.tensor([[1.0, 2.0, 3.0, 0.5, -1.0], [0.5, -1.0, 1.0, 2.0, 3.0]]).double()
    value = sum(head.matrix(points[:1], points[1:]) for head in (linear, exponential)).item()
    expected = 0.5 * (0.5 - 2.0) + 0.5 * torch.tensor(3.0 + 1.0 - 3.0).exp().item()
    assert value == pytest.approx(expected)


def test_a_model_is_tested_beside_the_best_predictor_whatever_it_learns_from():
    averaged = cheng.run_losses(MODEL, Job())
    drawn_labels = replace(MODEL, budget=replace(BUDGET, averages_labels=False))
    drawn = cheng.run_losses(drawn_labels, Job())
    assert 0 < averaged["bayes_loss"].item() < averaged["test_loss"].item() < 10
    assert drawn["bayes_loss"].item() == averaged["bayes_loss"].item()
    assert drawn["test_loss"].item() != averaged["test_loss"].item()


def test_training_that_overflows_begins_again_more_slowly(monkeypatch, tmp_path):
    real, rates = cheng.train, []

    def overflowing(model, task, settings, **options):
        rates.append((settings.learning_rate, settings.final_learning_rate))
        if len(rates) <= n_failures:
            raise TrainingError("The loss is nan at step 1")
        return real(model, task, settings, **options)

    monkeypatch.setattr(cheng, "train", overflowing)
    n_failures = 2
    row = cheng.run_losses(MODEL, Job(folder=tmp_path))
    assert row["learning_rate"].item() == 0.005
    assert rates == [(0.02, 0.0002), (0.01, 0.0001), (0.005, 0.00005)]
    n_failures = 99
    with pytest.raises(TrainingError, match="The loss is nan at step 1"):
        cheng.run_losses(MODEL, Job())
    assert len(rates) == 3 + cheng.N_ATTEMPTS


class Killed(BaseException):
    """A stop that no code may catch."""


def test_a_killed_job_resumes_from_its_checkpoint(monkeypatch, tmp_path):
    model = replace(MODEL, budget=replace(BUDGET, n_steps=7, n_rows=7))
    whole = cheng.run_matrices(model, Job())
    monkeypatch.setattr(cheng, "CHECKPOINT_EVERY", 2)

    def kill(step, n_steps, loss):
        if step == 5:
            raise Killed

    with pytest.raises(Killed):
        cheng.run_matrices(model, Job(folder=tmp_path, on_step=kill))
    measured = []

    def counted(model, covariance):
        measured.append(covariance)
        return distances_to_identity(model, covariance)

    monkeypatch.setattr(cheng, "distances_to_identity", counted)
    assert cheng.run_matrices(model, Job(folder=tmp_path)).equals(whole)
    assert 0 < len(measured) <= 4  # steps 4 to 7; the others are in the checkpoint


def test_figures_of_losses_vary_examples_or_layers():
    points = {
        name: {
            (model.panel, model.labels, model.n_examples, model.n_layers)
            for model in FIGURES[name].settings("laptop", 0)
        }
        for name in ("cheng-fig1", "cheng-fig2", "cheng-fig4")
    }
    labels = ("linear", "relu", "exp")
    pairs = list(zip("abc", labels, strict=True))
    assert points["cheng-fig1"] == {(*pair, n, 3) for pair in pairs for n in range(2, 15, 2)}
    panels = [("a", "relu", 14), ("b", "exp", 14), ("c", "relu", 6), ("d", "exp", 6)]
    assert points["cheng-fig2"] == {(*panel, depth) for panel in panels for depth in range(1, 9)}
    heads = {model.attention for model in FIGURES["cheng-fig4"].settings("smoke", 0)}
    assert heads == {("linear",), ("exp",), ("linear", "exp")}


def test_the_control_trains_every_panel_of_figure_1_on_the_other_loss():
    budgets = [
        {(model.labels, model.attention): model.budget for model in figure.settings("laptop", 0)}
        for figure in (FIGURES["cheng-fig1"], FIGURES["cheng-losses"])
    ]
    assert {pair: budget.logarithmic for pair, budget in budgets[0].items()} == {
        pair: pair[0] != "linear" for pair in budgets[0]
    }
    assert budgets[1] == {
        pair: replace(budget, logarithmic=not budget.logarithmic)
        for pair, budget in budgets[0].items()
    }


@pytest.mark.parametrize("preset", ["smoke", "laptop", "paper"])
def test_all_pairs_of_kernels_have_one_budget(preset):
    fixed, free, both = (
        FIGURES[name].settings(preset, 2) for name in ("cheng-fig5", "cheng-fig6", "cheng-fig3")
    )
    assert len({model.budget for model in (*fixed, *free, *both)}) == 1
    for models, frees in ((fixed, {False}), (free, {True})):
        assert {model.transforms_covariates for model in models} == frees
        assert len({(model.panel, model.labels, model.attention) for model in models}) == 9
    assert {(model.n_layers, model.n_examples) for model in both} == {(3, 30)}
    last = [model for model in (*fixed, *free) if model.panel == "i"]
    assert [replace(model, panel="") for model in both] == [replace(m, panel="") for m in last]


def test_small_losses_are_written_and_drawn():
    rows = stored_rows(RESULTS / "cheng-fig4" / "laptop.json")
    tiny = rows.with_columns(test_loss=2e-5, bayes_loss=0.0)
    line = cheng.summarise_losses(tiny).row(0, named=True)
    assert (line["linear"], line["Bayes"], line["best"]) == ("2.0e-05", "0", "linear")
    linear = pl.col("attention") == "linear"
    figure = cheng.draw_losses(
        tiny.with_columns(test_loss=pl.when(linear).then(0.0).otherwise(1.0))
    )
    assert [len(ax.lines) for ax in figure.axes] == [3, 3, 3]  # no best predictor
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([SMALLEST_LOSS] * 8)


def test_losses_are_drawn_as_geometric_means_in_the_range_of_seeds():
    rows = stored_rows(RESULTS / "cheng-fig2" / "laptop.json").with_columns(
        test_loss=0.25 * (1 + 2 * pl.col("seed"))
    )
    panel = cheng.draw_losses(rows).axes[0]
    assert panel.get_title(loc="left") == "(a) relu labels, n = 14"
    assert panel.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert panel.lines[0].get_ydata().tolist() == pytest.approx(
        [(0.25 * 0.75 * 1.25) ** (1 / 3)] * 8
    )
    edges = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (0.25, 1.25)


def distances(*BC_1, A_1=None):
    """The rows of a training of 100 steps with these distances every 25 steps."""
    steps = list(range(0, 125, 25))
    columns = dict.fromkeys(("BC_0", "BC_2", "A_0"), 0.01) | {"BC_1": BC_1, "A_1": A_1}
    frame = pl.DataFrame({"step": steps, "n_steps": 100, **columns}, strict=False)
    return frame.with_columns(pl.col("A_1").cast(pl.Float64))


@pytest.mark.parametrize(
    ("BC_1", "A_1", "end"),
    [
        ((0.9, 0.5, 0.3, 0.2, 0.09), None, "converged"),
        ((0.9, 0.5, 0.3, 0.2, 0.17), None, "moving"),
        ((0.9, 0.5, 0.3, 0.2, 0.19), None, "stalled"),
        ((0.9, 0.5, 0.3, 0.09, 0.02), 0.4, "stalled"),
    ],
)
def test_the_end_of_a_training_is_judged_by_one_criterion(BC_1, A_1, end):
    assert cheng.ending(distances(*BC_1, A_1=A_1)) == end


@pytest.mark.parametrize(
    ("antisymmetric", "seed_2", "point"),
    [(0.5, 0.3, "minimum"), (-0.5, -0.3, "saddle"), (-0.5, 0.3, "undecided")],
)
def test_a_point_is_a_minimum_or_a_saddle_if_all_seeds_agree(antisymmetric, seed_2, point):
    is_symmetric, is_last = pl.col("kind") == "symmetric", pl.col("seed") == 2
    value = pl.when(is_symmetric).then(0.7).when(is_last).then(seed_2).otherwise(antisymmetric)
    rows = stored_rows(RESULTS / "cheng-curvature" / "laptop.json").with_columns(curvature=value)
    summary = cheng_curvature.summarise(rows)
    assert len(summary) == 18
    assert set(summary["best point"]) == {point}
    assert summary["symmetric"][0] == "7.0e-01 to 7.0e-01"


def test_a_curvature_job_is_repeatable():
    [setting, *_] = cheng_curvature.settings("smoke", seed=0)
    rows = cheng_curvature.run(setting, Job())
    assert rows.equals(cheng_curvature.run(setting, Job()))
    assert rows["number"].to_list() == [0, 1, 2, 0, 1, 2]
    assert rows["family_loss"].unique().item() > 0
