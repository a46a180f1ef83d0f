import json

import pytest

import icgd
from tests.linear_cases import compiled_of, data, problem_of

X, Y, _ = data()


def compiled(**settings: object) -> icgd.Compiled:
    problem = problem_of("logistic", l1=0.0, step_size=None, box=4.0, **settings)
    return compiled_of(icgd.sized_problem(problem, X), n_steps=9)


@pytest.fixture
def guarantee(command, tmp_path):
    """`icgd guarantee` on a model and its data."""
    compiled().save(tmp_path / "model.safetensors")
    rows = [",".join(map(str, [*x, *y])) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["a,b,c,share", *rows]))
    return lambda *options: command("guarantee", "model.safetensors", "train.csv", *options)


def test_the_table_shows_what_is_promised_beside_what_was_found(guarantee):
    outcome, found = guarantee(), icgd.guarantee(compiled(), X, Y)
    assert outcome.code == 0
    assert "After 9 steps" in outcome.stdout
    numbers = (found.distance, found.distance_bound, found.contraction_bound, found.excess_bound)
    for number in numbers:
        assert f"{number:.3g}" in outcome.stdout
    assert "Theorem 3.1" in outcome.stdout
    assert "coefficients within ±4" in outcome.stdout
    assert "Every promise is kept, as measured." in outcome.stdout


def test_json_holds_all_digits(guarantee):
    data, found = json.loads(guarantee("--json").stdout), icgd.guarantee(compiled(), X, Y)
    assert data["holds"] is True
    assert (data["verdict"], data["meaning"]) == ("KEPT", "Every promise is kept, as measured.")
    assert (data["theorem"], data["n_steps"], data["box"]) == ("3.1", 9, 4.0)
    for name in ("distance", "distance_bound", "excess", "step_error", "start_distance"):
        assert data[name] == getattr(found, name)


def test_a_network_has_no_such_theorem(command, tmp_path):
    network = icgd.Problem(
        icgd.MLP((3, 1)), "squared", icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0)
    )
    icgd.compile(network, "relu-stack", n_steps=1).save(tmp_path / "run.safetensors")
    (tmp_path / "train.csv").write_text("0.5,0.5,0.5,1\n")
    outcome = command("guarantee", "run.safetensors", "train.csv")
    assert outcome.code == 2
    assert "theorems on linear models" in outcome.stderr


@pytest.fixture
def flat(command, tmp_path):
    """`icgd guarantee` on data in which a column stands twice."""
    problem = problem_of("identity", l1=0.05, l2=0.0, step_size=None, box=4.0, intercept=False)
    twice = X[:, [0, 1, 0]]
    compiled_of(icgd.sized_problem(problem, twice), 9).save(tmp_path / "model.safetensors")
    rows = [",".join(map(str, [*x, *y])) for x, y in zip(twice.tolist(), Y.tolist(), strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["a,b,c,share", *rows]))
    return lambda *options: command("guarantee", "model.safetensors", "train.csv", *options)


def test_what_is_not_known_is_said_and_is_no_success(flat):
    outcome = flat()
    assert outcome.code == 2
    text = " ".join(outcome.stdout.split())
    assert "Whether every promise is kept is not known" in text
    assert "accuracy of the minimiser not known" in text
    assert "Every promise is kept" not in text
    data = json.loads(flat("--json").stdout)
    assert (data["verdict"], data["holds"]) == ("NOT_KNOWN", False)
    assert (data["distance_verdict"], data["excess_verdict"]) == ("NOT_KNOWN", "KEPT")
    assert data["distance_slack"] is None
