import json
import re
from pathlib import Path

import pytest

import icgd
from icgd.cli.linear_options import LinearOptions
from icgd.cli.problem_options import problem_from
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
        box="2.0",
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


def test_the_number_of_examples_is_an_option_of_a_layer_with_heads_for_each(command, data):
    made = ("--link", "logistic", "--widths", "2,1", "--step-from", "sold.csv", "--label", "sold")
    given = (*made, "--examples", "4", "-o", "m.safetensors", "--construction")
    outcome = command("compile", *given, "linear-stack")
    assert outcome.code == 2
    assert "linear-stack has no setting 'n_examples'" in outcome.stderr
    assert command("compile", *given, "cot-glm").code == 0


def test_a_linear_model_is_compiled_sized_and_verified(command, tmp_path, data):
    made = ("--link", "logistic", "--widths", "2,1", "--intercept", "--l2", "0.5", "--steps", "3")
    sized = ("--step-from", "sold.csv", "--label", "sold")
    outcome = command("compile", *made, *sized, "--listing", "-o", "m.safetensors")
    assert outcome.code == 0
    assert "3 layers used 3 times, 2 to predict" in outcome.stdout
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
    page = Path(__file__).parents[2] / "docs" / "constructions" / "linear_stack.md"
    lines = re.findall("^    icgd (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    rows = ["0.5,1,-1,1", "-1,0.25,2,0", "1,-2,0.5,0", "2,1,-0.5,1", "-0.5,-1,1,1"]
    (tmp_path / "patients.csv").write_text("\n".join(["a,b,c,ill", *rows]))
    (tmp_path / "new.csv").write_text("a,b,c\n1,1,1\n")
    outcomes = [command(*line.split()) for line in lines]
    assert [outcome.code for outcome in outcomes] == [0, 0, 0, 0]
    assert re.search(r"\d+ of 200: weights move no more", outcomes[1].stdout)
