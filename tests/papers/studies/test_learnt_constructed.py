"""Which models are compared with constructions, and what the table and the picture say."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from icgd_papers.studies.learnt_constructed import CONSTRUCTIONS, SIMILARITY, Constructed, Outcome

ROOT = Path(__file__).parents[3]


def outcome(learnt):
    """Constructions with 4, 3, 2 and 1 times the loss of the learnt model."""
    constructed = {
        family: Constructed(factor * learnt, 1 - factor / 10, 0.1 * factor)
        for family, factor in zip(CONSTRUCTIONS, (4, 3, 2, 1), strict=True)
    }
    return Outcome(learnt, learnt / 2, 0.01, learnt, constructed, seconds=1.0)


def rows_of(preset="smoke"):
    studies = SIMILARITY.studies(preset, seed=0)
    return SIMILARITY.rows(studies, [outcome(0.1 * study.n_layers) for study in studies])


def test_labels_and_attention_have_the_same_kernel_and_inputs_stay_where_they_are():
    studies = SIMILARITY.studies("laptop", seed=4)
    assert {study.seed for study in studies} == {4, 5, 6}
    assert {study.n_layers for study in studies} == {1, 2, 3}
    assert {study.kernel for study in studies} == {"linear", "relu", "exp"}
    model = studies[0].model
    assert (model.labels, model.attention) == ("linear", ("linear",))
    assert (model.n_examples, model.transforms_covariates) == (14, False)


def test_a_study_finds_what_training_and_constructions_reach():
    [study] = [s for s in SIMILARITY.studies("smoke", 0) if (s.kernel, s.n_layers) == ("exp", 2)]
    study = replace(study, budget=replace(study.budget, n_steps=30, batch_size=50, n_test=50))
    found = study.train()
    losses = [found.constructed[family].loss for family in CONSTRUCTIONS]
    assert found.bayes_loss < min(losses)
    assert found.bayes_loss < found.learnt_loss < 3
    assert 0 < found.off_descent < 1
    assert all(-1 <= each.cosine <= 1 for each in found.constructed.values())
    assert study.outcome_of(asdict(found)) == found


def test_there_is_a_row_for_each_model_and_family():
    rows = rows_of()
    assert len(rows) == 3 * 2 * 4
    first = rows[0]
    assert first == {
        **{"kernel": "linear", "n_examples": 14, "n_layers": 1, "seed": 0, "logarithmic": False},
        **{"family": "constant step", "loss": 0.4, "cosine": 0.6, "prediction_difference": 0.4},
        **{"learnt_loss": 0.1, "nearest_loss": 0.1, "off_descent": 0.01, "bayes_loss": 0.05},
        "seconds": 1.0,
    }


def test_the_summary_has_means_over_the_seeds():
    summary = SIMILARITY.summary(rows_of("laptop"))
    assert summary.names[:3] == ("kernel", "layers", "learnt")
    assert summary.rows[1] == (
        *("linear", "2", "0.2000", "0.8000", "0.6000", "0.4000", "0.2000", "0.1000"),
        *("0.6000", "0.7000", "0.8000", "0.9000"),
    )


def test_the_picture_has_losses_above_and_cosines_below():
    figure = SIMILARITY.picture(rows_of("laptop"))
    assert len(figure.axes) == 6
    losses, cosines = figure.axes[0], figure.axes[3]
    assert len(losses.lines) == 4 + 2  # constructions, the learnt model, the best predictor
    assert losses.lines[4].get_ydata().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert cosines.lines[1].get_ydata().tolist() == pytest.approx([0.3] * 3)
    assert cosines.get_xticks().tolist() == [1, 2, 3]


def test_the_docs_show_the_committed_numbers():
    numbers = json.loads((ROOT / "results/learnt-constructed/laptop.json").read_text())
    page = (ROOT / "docs/training/models.md").read_text(encoding="utf-8")
    for row in numbers["summary"]:
        assert f"| {' | '.join(row.values())} |" in page
    assert SIMILARITY.summary(numbers["rows"]).rows == tuple(
        tuple(row.values()) for row in numbers["summary"]
    )
    assert "dirty" not in numbers["commit"]
