"""Each line is what its own function predicts; settings come from other prompts."""

from dataclasses import asdict, replace

import pytest

from icgd_papers.figures.wu_baselines import BaselineStudy
from icgd_papers.figures.wu_constructed import Constructed
from icgd_papers.figures.wu_curves import BUDGETS
from icgd_papers.figures.wu_direct import DirectTraining
from icgd_papers.figures.wu_references import (
    arc_cosine,
    label_mean,
    r_squared,
    relative_error,
    ridge,
)
from icgd_papers.figures.wu_setting import Law
from icgd_papers.reproduction import Conduct
from tests.papers.committed import committed

SMOKE = BUDGETS["smoke"]
LAW = Law((0.5, 0.5))
STUDY = BaselineStudy(3, LAW, 1, SMOKE)


class StoppedError(Exception):
    pass


def test_every_line_is_measured_on_the_same_prompts():
    found = {(point.line, point.n_examples): point.r_squared for point in STUDY.train().points}
    test = SMOKE.test(3, LAW, seed=1)
    for n in (2, 4, 6):
        x, y = test.x[:, : n + 1], test.y[:, : n + 1]
        wanted = {
            "label mean": label_mean(x, y),
            "ridge": ridge(x, y, 1.0),
            "arc-cosine": arc_cosine(x, y, 3),
            "direct, last epoch": DirectTraining(3, 4, 3, 0.01, seed=1).predictions(x, y)[-1],
            "constructed, 2 steps": Constructed(3, 4, 0.05, seed=1).predictions(x, y, 2),
        }
        for line, predictions in wanted.items():
            assert found[line, n] == r_squared(predictions - y[:, -1], y[:, -1]), line


def test_the_best_epoch_is_at_least_as_good_as_the_last():
    points = {(p.line, p.n_examples): p for p in STUDY.train().points}
    for n in SMOKE.lengths:
        best, last = points["direct, best epoch", n], points["direct, last epoch", n]
        assert best.r_squared >= last.r_squared
        assert best.setting == last.setting == 0.01


def test_settings_are_those_with_the_least_error_on_other_prompts():
    plan = replace(SMOKE.baselines, penalties=(0.01, 1.0, 100.0), step_sizes=(1e-6, 0.05))
    study = replace(STUDY, budget=replace(SMOKE, baselines=plan))
    chosen = study._chosen("cpu")
    batch = study.budget.choice(3, seed=1)
    errors = {
        penalty: relative_error(ridge(batch.x, batch.y, penalty), batch.y)
        for penalty in plan.penalties
    }
    assert chosen["ridge"] == min(errors, key=errors.get)
    assert chosen["constructed, 2 steps"] in plan.step_sizes


def test_an_interrupted_study_keeps_what_it_found(tmp_path):
    def on_step(step, n_steps, _):
        assert n_steps == 4
        if step == 3:  # the choice, and two lengths
            raise StoppedError

    with pytest.raises(StoppedError):
        STUDY.train_with(Conduct(on_step=on_step), tmp_path)
    kept = {path.name for path in tmp_path.glob("*.json")} - {"seconds.json"}
    assert kept == {"choice.json", "length-2.json", "length-4.json"}
    found = STUDY.train_with(Conduct(), tmp_path)
    assert found.points == STUDY.train().points
    assert STUDY.outcome_of(asdict(found)) == found


def test_time_and_work_are_estimated():
    assert 0 < STUDY.step_seconds("cpu") < 20
    assert STUDY.n_steps == 4
    assert replace(STUDY, n_layers=6).work > STUDY.work


@pytest.mark.parametrize("figure", ["wu-fig1", "wu-fig2"])
def test_committed_results_are_those_of_this_code(figure):
    """Few examples, where a change of the first weights shows most; rounding may differ."""
    n, study = 5, BaselineStudy(3, Law(), 0, BUDGETS["laptop"])
    test = study.budget.test(3, study.law, seed=0)
    x, y = test.x[:, : n + 1], test.y[:, : n + 1]
    stored = {
        row["line"]: row
        for row in committed(figure)["rows"]
        if row["panel"] == "a" and row["seed"] == 0 and row["n_examples"] == n
    }
    epochs = study._direct(stored["direct, last epoch"]["setting"], "cpu").predictions(x, y)
    found = {
        "direct, last epoch": epochs[-1],
        "label mean": label_mean(x, y),
        "ridge": ridge(x, y, stored["ridge"]["setting"]),
        "arc-cosine": arc_cosine(x, y, 3),
    }
    for line, predictions in found.items():
        value = r_squared(predictions - y[:, -1], y[:, -1])
        assert value == pytest.approx(stored[line]["r_squared"], abs=5e-3), line
