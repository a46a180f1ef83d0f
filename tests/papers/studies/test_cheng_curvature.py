"""Which curvatures are measured, and what their table and picture say."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from icgd_papers.studies.cheng_curvature import CURVATURE, Outcome, smallest_first


def outcome(study):
    """Curvatures of two matrices; antisymmetric ones of linear attention are slightly negative."""
    low = -0.002 if study.attention == "linear" else 0.5
    values = {"antisymmetric": (low + study.seed / 100, 1.0), "symmetric": (0.25, 2.0)}
    errors = dict.fromkeys(values, (0.003, 0.1))
    return Outcome(0.75, values, errors, 2.0)


@pytest.fixture(scope="module")
def rows():
    studies = CURVATURE.studies("laptop", seed=0)
    return CURVATURE.rows(studies, [outcome(study) for study in studies])


def test_every_pair_is_measured_with_a_0_and_free():
    studies = CURVATURE.studies("laptop", seed=3)
    assert {study.seed for study in studies} == {3, 4, 5}
    assert {(study.panel, study.transforms_covariates) for study in studies} == {
        ("a", False),
        ("b", True),
    }
    assert len({(study.labels, study.attention) for study in studies}) == 9
    assert len(studies) == 9 * 2 * 3


def test_eigenvalues_are_those_of_the_mean_with_the_directions_of_the_first_half():
    first = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)  # eigenvalues 1 and 3
    second = torch.tensor([[4.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    kinds = [torch.stack([part, 10 * part]) for part in (first, first, second, 3 * second)]
    values, errors = smallest_first(torch.stack(kinds))
    assert values["antisymmetric"] == pytest.approx((6.0, 6.0))  # (1, -1) and (1, 1) see 3 and 9
    assert values["symmetric"] == pytest.approx((60.0, 60.0))
    assert errors["antisymmetric"] == pytest.approx((3.0, 3.0))


def test_a_study_gives_an_outcome_that_json_can_hold():
    study = CURVATURE.studies("smoke", seed=0)[1]
    found = study.train()
    assert 0 < found.family_loss < 1
    assert [len(values) for values in found.curvatures.values()] == [3, 3]
    assert study.outcome_of(json.loads(json.dumps(asdict(found)))) == found
    again = study.train()
    assert replace(again, seconds=found.seconds) == found


def test_the_summary_has_the_mean_of_the_smallest_curvatures(rows):
    summary = CURVATURE.summary(rows)
    assert summary.names == (
        *("pair", "A", "loss", "antisymmetric", "error of antisymmetric"),
        *("symmetric", "error of symmetric"),
    )
    assert summary.rows[1] == (
        "relu, linear",
        "0",
        "0.7500",
        "8.0e-03",
        "2e-03",
        "2.5e-01",
        "2e-03",
    )
    assert summary.rows[-1][:2] == ("exp, softmax", "free")
    assert len(summary.rows) == 18


def test_a_row_has_the_place_the_outcome_and_every_setting(rows):
    assert len(rows) == 54 * 4
    assert rows[0] == {
        "panel": "a",
        "labels": "linear",
        "attention": "linear",
        "n_examples": 30,
        "n_layers": 3,
        "transforms_covariates": False,
        "seed": 0,
        "kind": "antisymmetric",
        "number": 0,
        "curvature": -0.002,
        "error": 0.003,
        "family_loss": 0.75,
        "seconds": 2.0,
        "n_fit": 1000,
        "n_batches": 8,
        "batch_size": 500,
        "tilt": 0.002,
    }


def test_the_picture_has_a_point_for_each_pair_kind_and_seed(rows):
    figure = CURVATURE.picture(rows)
    for ax, title in zip(figure.axes, ("(a) A = 0", "(b) A free"), strict=True):
        assert ax.get_title(loc="left") == title
        assert len(ax.containers) == 9 * 2 * 3
        assert ax.get_yscale() == "symlog"
        names = [label.get_text() for label in ax.get_xticklabels()]
        assert names[1] == "relu, linear"
    [first, *_] = figure.axes[0].containers
    assert first.lines[0].get_ydata().tolist() == [-0.002]
