import json
import re
from pathlib import Path

import numpy as np
import pytest

import icgd
from icgd.cli.linear_options import LinearOptions, sized_by
from icgd.cli.problem_options import problem_from
from icgd.errors import DataError, DomainError, SettingError
from tests.cli.files import PROBLEM, listing

LABELLED = "age,sold,size\n1,1,0.5\n-2,0,1\n0.5,0,-1\n2,1,3\n"
LOGISTIC = {"widths": "2,1", "link": "logistic"}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "sold.csv"
    path.write_text(LABELLED)
    return path


def test_every_option_reaches_the_problem():
    problem = problem_from(
        "2,1",
        link="poisson",
        intercept=True,
        l2=0.5,
        l1=0.25,
        reduction="sum",
        score_bound=3.0,
        step_size=0.01,
        box=2.0,
        x_bound=1.0,
        y_bound=9.0,
    )
    assert problem == icgd.Problem(
        icgd.LinearModel(2, "poisson", True, "sum"),
        "matching",
        icgd.ProximalStep(0.01, 0.5, 0.25, 2.0),
        icgd.Domain(1.0, 9.0, 3.0),
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**LOGISTIC, "kernel": "rbf"}, "Give either --kernel or --link, not both."),
        ({**LOGISTIC, "activation": "relu"}, "Give either --activation or --link, not both."),
        ({**LOGISTIC, "loss": "squared"}, "Give either --loss or --link, not both."),
        ({**LOGISTIC, "batch_size": 1}, "Give either --batch-size or --link, not both."),
        ({"widths": "2,1", "l2": 0.0}, "--l2 has no effect without --link"),
        ({"widths": "2,1", "intercept": True}, "--intercept has no effect without --link"),
        ({"widths": "2,1", "kernel": "rbf", "score_bound": 1.0}, "--score-bound has no effect"),
        ({"widths": "2,3,1", "link": "logistic"}, "one output, such as 4,1, got 2,3,1."),
        ({"widths": "2,2", "link": "logistic"}, "one output, such as 4,1, got 2,2."),
        ({"widths": "2,1", "link": "logit"}, "Unknown link 'logit'.* Did you mean 'logistic'"),
        ({**LOGISTIC, "l1": -0.5}, "l1 must not be negative, got -0.5"),
        ({**LOGISTIC, "reduction": "max"}, "reduction must be one of mean, sum, got 'max'."),
        ({"widths": "2,1", "kernel": "rbf", "activation": "relu"}, "either --activation or --ker"),
    ],
)
def test_contradictions_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        problem_from(**settings)


def test_options_that_were_not_given_are_no_contradiction():
    LinearOptions().refuse()
    assert problem_from("4,3,1") == PROBLEM


def test_the_step_comes_from_the_data(data):
    problem = problem_from(**LOGISTIC, l2=0.5)
    sized = sized_by(problem, data, ["sold"])
    inputs = np.array([[1.0, 0.5], [-2, 1], [0.5, -1], [2, 3]])
    steepest = np.linalg.eigvalsh(inputs.T @ inputs).max() / 4 / 4 + 0.5
    assert sized.update.step_size == pytest.approx(1 / steepest, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "label", "error", "message"),
    [
        ({**LOGISTIC, "step_size": 0.1}, "sold", SettingError, "either --step-size or --step-from"),
        ({"widths": "2,1"}, "sold", SettingError, "--step-from has no effect without --link"),
        (LOGISTIC, "age", DataError, r"y\[1, 0\] is -2; the logistic link needs labels between 0"),
        ({**LOGISTIC, "x_bound": 2.5}, "sold", DomainError, r"X\[3, 1\] is 3, outside"),
        ({"widths": "3,1", "link": "probit"}, "sold", DataError, "3 columns; the model needs 4"),
    ],
)
def test_data_that_do_not_fit_are_refused(data, settings, label, error, message):
    with pytest.raises(error, match=message):
        sized_by(problem_from(**settings), data, [label])


def test_a_step_size_must_come_from_somewhere():
    with pytest.raises(SettingError, match="Give --step-size or --step-from; got neither"):
        sized_by(problem_from(**LOGISTIC), None, None)
    with pytest.raises(SettingError, match="--label has no effect without --step-from"):
        sized_by(PROBLEM, None, ["sold"])


def test_the_number_of_examples_is_no_option_of_a_linear_model(command, data):
    made = ("--link", "logistic", "--widths", "2,1", "--step-from", "sold.csv", "--label", "sold")
    outcome = command("compile", *made, "--examples", "4", "-o", "m.safetensors")
    assert outcome.code == 2
    assert "cot-glm takes prompts of any length; leave n_examples out" in outcome.stderr


def test_a_linear_model_is_compiled_sized_and_verified(command, tmp_path, data):
    made = ("--link", "logistic", "--widths", "2,1", "--intercept", "--l2", "0.5", "--steps", "3")
    sized = ("--step-from", "sold.csv", "--label", "sold")
    outcome = command("compile", *made, *sized, "--listing", "-o", "m.safetensors")
    assert outcome.code == 0
    assert "11: 3 for each of 3 steps, 2 to predict" in outcome.stdout
    assert "grid tokens              2" in outcome.stdout
    assert "mean = logistic(<w, x> + b)" in outcome.stdout
    assert icgd.load(tmp_path / "m.safetensors").program.n_examples is None
    for backend in ("fused", "dense"):
        checked = ("m.safetensors", "sold.csv", "--label", "sold", "--backend", backend, "--json")
        report = json.loads(command("verify", *checked).stdout)
        assert report["verdict"] == "HOLDS"
        assert report["largest"]["trajectory_bounds"] < 1e-11
    assert listing(tmp_path) == ["m.safetensors", "sold.csv"]
    size = json.loads(command("size", *made, "--step-size", "1", "--tokens", "9", "--json").stdout)
    assert (size["n_tokens"], size["max_heads"]) == (9, 2)


def test_the_commands_of_the_page_work(command, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "constructions" / "cot_linear.md"
    lines = re.findall("^    icgd (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    rows = ["0.5,1,-1,1", "-1,0.25,2,0", "1,-2,0.5,0", "2,1,-0.5,1", "-0.5,-1,1,1"]
    (tmp_path / "patients.csv").write_text("\n".join(["a,b,c,ill", *rows]))
    (tmp_path / "new.csv").write_text("a,b,c\n1,1,1\n")
    outcomes = [command(*line.split()) for line in lines]
    assert [outcome.code for outcome in outcomes] == [0, 0, 0, 0]
    assert re.search(r"\d+ of 200: weights move no more", outcomes[1].stdout)
