"""The curves of wang-rates, and that they are measured."""

from dataclasses import asdict
from math import sqrt

import pytest

from icgd_papers.results import reproduce
from icgd_papers.studies.lottery import Lottery
from icgd_papers.studies.wang_rates import RATES, Outcome


def test_every_activation_and_dimension_has_its_curves():
    studies = RATES.studies("laptop", seed=3)
    cases = [(study.curve, study.case) for study in studies]
    assert cases[:4] == [
        ("heads and units", name) for name in ("relu", "elu", "softplus", "sigmoid")
    ]
    assert cases[4:6] == [("drawn units", "1"), ("greedy units", "1")]
    assert len(cases) == 10
    assert {study.seed for study in studies} == {3}


def test_the_smoke_preset_measures_falling_errors_beside_the_bounds(tmp_path):
    done = reproduce(RATES, "smoke", out=tmp_path)
    rows = done.numbers["rows"]
    heads = [row for row in rows if row["curve"] == "heads and units"]
    assert [row["allowed"] for row in heads] == [None, None]
    assert heads[0]["size"] < heads[1]["size"]
    assert heads[1]["error"] < heads[0]["error"] / sqrt(heads[1]["size"] / heads[0]["size"])
    for row in rows[2:]:
        bound = Lottery(int(row["case"])).constant / sqrt(row["size"])
        assert row["allowed"] == pytest.approx(bound, rel=1e-5)
        assert row["error"] <= bound
    assert done.summary.rows[0][:3] == ("heads and units", "relu", "260 to 476")
    assert done.files == ("smoke.json", "smoke.csv", "smoke.png")


def test_an_outcome_is_read_back_from_json():
    study = RATES.studies("smoke", seed=0)[0]
    outcome = Outcome((1, 2), (0.5, 0.25), (None, 0.3), 1.5)
    data = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(outcome).items()}
    assert study.outcome_of(data) == outcome
