"""From a table to a verified run: example, init, compile, run, verify, with nothing typed twice."""

import json
import tomllib

import numpy as np
import polars as pl
import pytest

import icgd
from icgd.cli.cars import read_cars

SHOP = """\
day,colour,size,kind
2024-01-01,red,1,cheap
2024-01-02,blue,,dear
2024-01-05,red,3,cheap
2024-02-01,green,2.5,dear
2024-02-03,blue,2,mid
"""


def test_a_table_is_compiled_run_and_verified_as_python_does(command, tmp_path):
    assert command("example", "cars.csv").stdout == "Saved cars.csv\n"
    assert command("init", "cars.csv").code == 0
    compiled = command("compile", "problem.toml", "--steps", "5", "-o", "run.safetensors")
    assert (compiled.code, compiled.stderr) == (0, "")
    ran = command("run", "run.safetensors", "cars.csv", "--queries", "cars.csv", "--json")
    predictions = np.array(json.loads(ran.stdout)["predictions"])

    frame = pl.read_csv(tmp_path / "cars.csv").drop("car")
    assert frame["mpg"].to_list() == read_cars().mpg.tolist()
    X, y = frame.drop("mpg").to_numpy().astype(float), frame["mpg"].to_numpy()[:, None]
    X = (X - X.mean(0)) / X.std(0)
    labels = (y - y.mean()) / y.std()
    found = tomllib.loads((tmp_path / "problem.toml").read_text())
    bounds = found["domain"]
    assert bounds["x"] == pytest.approx(1.25 * np.abs(X).max(), rel=5e-3)
    assert bounds["y"] == pytest.approx(1.25 * np.abs(labels).max(), rel=5e-3)
    network, step = icgd.MLP((5, 16, 1), "tanh", biases=True), icgd.GradientStep(0.1, box=3.0)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(**bounds))
    own = icgd.compile(problem, n_steps=5)
    assert icgd.load(tmp_path / "run.safetensors") == own
    expected = own.run(X, labels, queries=X, seed=0).predictions.numpy() * y.std() + y.mean()
    assert np.abs(predictions - expected).max() <= 1e-12 * np.abs(expected).max()

    verified = command("verify", "run.safetensors", "cars.csv", "--json")
    report = icgd.verify(own, X, labels, seed=0)
    assert json.loads(verified.stdout)["step_errors"] == pytest.approx(
        report.step_errors.tolist(), abs=1e-15
    )
    assert verified.stderr == ran.stderr == ""


def test_init_says_what_it_found(command, tmp_path):
    (tmp_path / "shop.csv").write_text(SHOP)
    said = command("init", "shop.csv", "-o", "shop.toml").stdout
    words = " ".join(said.split())
    assert "inputs day, colour=blue, colour=green, colour=red, size" in words
    assert "encode yes: day: dates; colour: 3 categories" in words
    assert "missing mean: 1 value missing, in size" in words
    assert said.endswith("Next: icgd compile shop.toml -o run.safetensors\n")
    data = json.loads(command("init", "shop.csv", "--output", "again.toml", "--json").stdout)
    text = (tmp_path / "shop.toml").read_text()
    assert text == (tmp_path / "again.toml").read_text()
    assert data["problem"] == tomllib.loads(text)
    assert data["problem"]["loss"] == "cross_entropy"
    assert data["problem"]["table"] == {
        "data": "shop.csv",
        "standardize": True,
        "target": ["kind"],
        "encode": True,
        "missing": "mean",
    }


def test_the_compiled_file_knows_categories_dates_and_gaps(command, tmp_path):
    (tmp_path / "shop.csv").write_text(SHOP)
    command("init", "shop.csv")
    made = ("compile", "problem.toml", "--hidden", "4", "--steps", "3", "-o", "r.safetensors")
    assert command(*made).code == 0
    table = icgd.load(tmp_path / "r.safetensors").table
    assert table["codes"] == {"day": "date", "colour": ["blue", "green", "red"]}
    # Rows without one of the categories still have a column for it.
    (tmp_path / "few.csv").write_text(
        "".join(SHOP.splitlines(keepends=True)[:3]) + "2024-01-04,red,1,mid\n"
    )
    (tmp_path / "new.csv").write_text("size,colour,day\n,green,2024-01-03\n")
    asked = ("run", "r.safetensors", "few.csv", "--queries", "new.csv", "--json")
    outcome = command(*asked)
    assert outcome.code == 0, outcome
    assert len(json.loads(outcome.stdout)["predictions"]) == 1
    (tmp_path / "new.csv").write_text("size,colour,day\n1,gren,2024-01-03\n")
    assert command(*asked).refusal() == (
        "new.csv, line 2, column 'colour' has the category 'gren', which the examples lack; known "
        "are blue, green, red. Did you mean 'green'?"
    )


def test_what_users_may_have_written_is_not_replaced(command, tmp_path):
    command("example", "cars.csv")
    command("init", "cars.csv")
    assert command("init", "cars.csv").code == command("example", "cars.csv").code == 0
    (tmp_path / "problem.toml").write_text("steps = 3\n")
    (tmp_path / "cars.csv").write_text("a,b\n1,2\n3,5\n")
    for words in (("init", "cars.csv"), ("example", "cars.csv")):
        assert "exists already, and has another content" in command(*words).refusal()
    assert (tmp_path / "problem.toml").read_text() == "steps = 3\n"


def test_options_that_contradict_the_compiled_file_replace_it_and_say_so(command, tmp_path):
    rows = [f"{a},{a * a % 5},{a % 3 - 1}" for a in range(-3, 4)]
    (tmp_path / "d.csv").write_text("a,b,c\n" + "\n".join(rows) + "\n")
    made = ("compile", "--data", "d.csv", "--target", "b", "--standardize", "--steps", "2")
    assert command(*made, "--hidden", "3", "-o", "r.safetensors").code == 0
    assert icgd.load(tmp_path / "r.safetensors").table == {"target": ["b"], "standardize": True}
    same = command("verify", "r.safetensors", "d.csv", "--target", "b", "--standardize")
    assert (same.code, same.stderr) == (0, "")
    run = ("run", "r.safetensors", "d.csv", "--queries", "d.csv", "--json")
    assert json.loads(command(*run).stdout)["labels"] == ["b"]
    other = command(*run, "--target", "c")
    assert json.loads(other.stdout)["labels"] == ["c"]
    assert other.stderr == (
        "icgd: warning: r.safetensors was compiled with --target b; --target c replaces it here. "
        "Bounds and widths stay as they were compiled.\n"
    )


def test_files_without_a_table_are_read_as_before(command, tmp_path):
    step, domain = icgd.GradientStep(0.1, 3.0), icgd.Domain(4.0, 2.0)
    problem = icgd.Problem(icgd.MLP((1, 1)), "squared", step, domain)
    icgd.compile(problem, "relu-stack", n_steps=1).save(tmp_path / "r.safetensors")
    (tmp_path / "d.csv").write_text("a,name,y\n1,x,2\n2,y,1\n")
    assert icgd.load(tmp_path / "r.safetensors").table is None
    outcome = command("run", "r.safetensors", "d.csv", "--ignore", "name", "--standardize")
    assert (outcome.code, outcome.stderr) == (0, "")


@pytest.mark.parametrize(
    ("given", "names"),
    [(["a,b"], ("a", "b")), (["a", "b, c"], ("a", "b", "c")), (['"a,b",c'], ("a,b", "c"))],
)
def test_several_columns_may_be_ignored_in_one_option_or_in_many(command, tmp_path, given, names):
    header = ",".join(f'"{name}"' for name in (*names, "x", "y"))
    rows = ["u," * len(names) + f"{x},{x * x}" for x in range(-2, 3)]
    (tmp_path / "d.csv").write_text("\n".join([header, *rows]) + "\n")
    options = [word for text in given for word in ("--ignore", text)]
    outcome = command("compile", "--data", "d.csv", *options, "--steps", "1", "-o", "r.safetensors")
    assert outcome.code == 0, outcome
    loaded = icgd.load(tmp_path / "r.safetensors")
    assert loaded.table["ignore"] == list(names)
    assert loaded.problem.network.widths == (1, 16, 1)
