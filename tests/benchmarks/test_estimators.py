"""The page of real data is made from the last measurements, and they are what was asked for."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.estimators import (
    CLASSIFIERS,
    DATA,
    FOLDER,
    N_ROWS,
    REGRESSION,
    REGRESSORS,
    render,
    timed,
    timed_directly,
)

FOUND = json.loads((FOLDER / "real_data.json").read_text(encoding="utf-8"))
STALE = "docs/estimators/real_data.md is not up to date: run `python -m benchmarks.estimators`."


def test_the_page_is_made_of_the_last_measurements():
    page = (FOLDER / "real_data.md").read_text(encoding="utf-8")
    assert page == render(FOUND), STALE


def test_every_model_was_measured_on_every_data_set():
    expected = [
        (name, type(pair.ours).__name__)
        for name in DATA
        for pair in (REGRESSORS if name in REGRESSION else CLASSIFIERS)
    ]
    assert [(row["data"], row["model"]) for row in FOUND["scores"]] == expected, STALE


def test_scores_are_those_of_direct_training():
    assert max(row["apart"] for row in FOUND["scores"]) <= 0.01


def test_the_speed_is_what_was_asked_for():
    speed = FOUND["speed"]
    assert speed["wide"] <= speed["wide directly"] / 5 + 1
    assert max(speed["predict"].values()) < 0.5
    assert N_ROWS == 1000
    assert len(speed["predict"]) == 7


def test_a_large_table_is_learnt_as_by_scikit_learn():
    ours, _, beside, _ = FOUND["large"]
    assert ours["score"] >= beside["score"] - 0.01
    assert ours["ratio"] <= 3
    assert beside["ratio"] == 1


def test_a_large_table_of_classes_is_learnt_as_by_scikit_learn():
    ours, same_steps, by_default = FOUND["large classes"]
    assert ours["score"] >= max(same_steps["score"], by_default["score"]) - 0.01
    assert ours["ratio"] <= 3
    assert same_steps["ratio"] == 1


def test_a_page_by_hand():
    row = {
        "data": "toy", "n": 20, "d": 2, "model": "Ours", "beside": "Theirs", "steps": 1234.0,
        "score": 0.5, "seconds": 0.25, "direct score": 0.501, "direct seconds": 2.0,
        "scikit-learn score": 0.75, "scikit-learn seconds": 0.01, "done": 2 / 3, "apart": 0.0015,
    }  # fmt: skip
    speed = dict.fromkeys(("wide", "wide directly", "wide by autograd", "MLPRegressor"), 0.5)
    large = [{"model": "`Ours()`", "score": 0.95, "seconds": 0.5, "ratio": 0.75}]
    classes = [{"model": "`Theirs()`", "score": 0.875, "seconds": 1.25, "ratio": 1.0}]
    found = {
        "scores": [row],
        "speed": {**speed, "predict": {"Ours": 0.0123}},
        "large": large,
        "large classes": classes,
    }
    page = render(found)
    assert "\n| `Ours()` | 0.950 | 0.50 | 0.75 |\n" in page
    assert "\n| `Theirs()` | 0.875 | 1.25 | 1.00 |\n" in page
    line = "| toy | 20 x 2 | Ours | 1,234 | 0.500 | 0.501 | 1.5e-03 | no | 0.25 | 2.00 |"
    assert f"\n{line}\n" in page
    assert "\n| toy | Ours | 0.500 | 0.25 | Theirs | 0.750 | 0.01 |\n" in page
    assert "\n| Ours | 0.012 |\n" in page


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("pair", [*REGRESSORS, *CLASSIFIERS], ids=lambda p: type(p.ours).__name__)
def test_direct_training_replaces_the_run(pair):
    X, y = DATA["iris"](return_X_y=True)
    split = X[::4], X[1::4], y[::4], y[1::4]
    fit, score, _ = timed(pair.ours.set_params(max_iter=20), *split)
    own = fit.predict(X)
    _, direct, _ = timed_directly(fit, *split)
    assert direct == pytest.approx(score, abs=1e-3)
    assert fit.predict(X) == pytest.approx(own, rel=1e-3)


def test_the_examples_of_the_estimators_page_run(capsys):
    page = (Path(FOLDER) / "estimators.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 2
    assert len(blocks[0].replace("\n\n", "\n").splitlines()) == 3
    exec(blocks[0], {})
    with pytest.warns(match="Training has not converged"):
        exec(blocks[1], {})
    printed = capsys.readouterr().out
    assert "With standardised inputs about 2,200 steps in total suffice" in printed
    assert printed.endswith("True\n")
