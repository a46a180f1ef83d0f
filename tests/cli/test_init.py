"""From a table to a verified run: example, init, compile, run, verify, with nothing typed twice."""

import json
import tomllib

import numpy as np
import polars as pl
import pytest

import icgd
from icgd.cli.cars_demo import read_cars

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
    assert frame["mpg"].to_list() == read_cars()[2][:, 0].tolist()
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
    raw = command("init", "shop.csv", "--no-standardize", "-o", "raw.toml").stdout
    assert "standardize no: inputs go from" in " ".join(raw.split())
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
        "new.csv, line 2, column 'colour' has the category 'gren', which the examples do "
        "not have; known are blue, green, red. Did you mean 'green'?"
    )


def test_what_users_may_have_written_is_not_replaced(command, tmp_path):
    command("example", "cars.csv")
    command("init", "cars.csv")
    assert command("init", "cars.csv").code == command("example", "cars.csv").code == 0
    (tmp_path / "problem.toml").write_text("steps = 3\n")
    (tmp_path / "cars.csv").write_text("a,b\n1,2\n3,5\n")
    for words in (("init", "cars.csv"), ("example", "cars.csv")):
        assert "exists already, with other content" in command(*words).refusal()
    assert (tmp_path / "problem.toml").read_text() == "steps = 3\n"


def test_options_that_contradict_the_compiled_file_replace_it_and_say_so(command, tmp_path):
    rows = [f"{a},{a * a % 5},{a % 3 - 1}" for a in range(-3, 4)]
    (tmp_path / "d.csv").write_text("a,b,c\n" + "\n".join(rows) + "\n")
    made = ("compile", "--data", "d.csv", "--target", "b", "--standardize", "--steps", "2")
    assert command(*made, "--hidden", "3", "-o", "r.safetensors").code == 0
    assert icgd.load(tmp_path / "r.safetensors").table == {
        "target": ["b"],
        "standardize": True,
        "inputs": ["a", "c"],
    }
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


TEN = "a,b,y\n" + "".join(f"{i % 3},{i * i % 7},{i % 4 - 1}\n" for i in range(10))


def test_a_table_in_another_order_of_columns_trains_the_same(command, tmp_path):
    (tmp_path / "d.csv").write_text(TEN)
    command("compile", "--data", "d.csv", "--hidden", "3", "--steps", "2", "-o", "r.safetensors")
    table = pl.read_csv(tmp_path / "d.csv")
    table.select("y", "b", "a", id="b").write_csv(tmp_path / "other.csv")
    first, second = (
        json.loads(command("run", "r.safetensors", *files, "--json").stdout)
        for files in (
            ("d.csv", "--queries", "d.csv"),
            ("other.csv", "--queries", "other.csv", "--ignore", "id", "--target", "y"),
        )
    )
    assert first["labels"] == ["y"]
    assert first == second
    table.rename({"b": "c"}).write_csv(tmp_path / "other.csv")
    outcome = command("run", "r.safetensors", "other.csv")
    assert outcome.code == 0
    assert "other.csv has c where the table that was compiled for has b" in outcome.stderr


def test_a_file_of_predictions_may_be_asked_again(command, tmp_path):
    (tmp_path / "d.csv").write_text(TEN)
    command("compile", "--data", "d.csv", "--hidden", "3", "--steps", "2", "-o", "r.safetensors")
    for queries, out in (("d.csv", "1.csv"), ("1.csv", "2.csv")):
        assert command("run", "r.safetensors", "d.csv", "--queries", queries, "-o", out).code == 0
    answers = pl.read_csv(tmp_path / "2.csv")
    assert answers.columns == ["a", "b", "y", "predicted y", "predicted predicted y"]
    assert answers["predicted y"].to_list() == answers["predicted predicted y"].to_list()


def test_queries_may_have_only_those_categories_that_are_numbers(command, tmp_path):
    (tmp_path / "d.csv").write_text("size,y\nS,1\n38,2\n40,3\nS,2\n38,1\n")
    made = ("compile", "--data", "d.csv", "--encode", "--hidden", "3", "--steps", "2")
    assert command(*made, "-o", "r.safetensors").code == 0
    (tmp_path / "q.csv").write_text("size\n40\n38\n")
    run = ("run", "r.safetensors", "d.csv", "--json", "--queries")
    answers = json.loads(command(*run, "d.csv").stdout)["predictions"]
    assert json.loads(command(*run, "q.csv").stdout)["predictions"] == [answers[2], answers[1]]


def test_the_linear_model_and_the_kernel_that_init_suggests_are_compiled(command, tmp_path):
    command("example", "cars.csv")
    command("init", "cars.csv")
    text = (tmp_path / "problem.toml").read_text()
    start = text.index("hidden = ")
    end = text.index("# In place of")
    dropped = ("loss =", "optimiser =", "step_size =")
    for line, also in (('link = "identity"', ()), ('kernel = "rbf"', ("box =",))):
        changed = text[:start] + line + "\n" + text[end:]
        kept = [row for row in changed.splitlines() if not row.startswith((*dropped, *also))]
        (tmp_path / "own.toml").write_text("\n".join(kept))
        outcome = command("compile", "own.toml", "--steps", "2", "-o", "own.safetensors")
        assert outcome.code == 0, outcome


def test_categories_of_parquet_are_texts_and_what_is_no_number_is_refused(command, tmp_path):
    frame = pl.read_csv(TEN.encode()).with_columns(
        kind=pl.Series([*"xyxyxyzzzx"], dtype=pl.Categorical)
    )
    frame.write_parquet(tmp_path / "d.parquet")
    assert command("init", "d.parquet").code == 0
    found = tomllib.loads((tmp_path / "problem.toml").read_text())
    assert found["loss"] == "cross_entropy"
    for column in (pl.duration(hours=pl.col("a")), pl.concat_list("a", "b")):
        frame.select("a", "b", bad=column, y="y").write_parquet(tmp_path / "e.parquet")
        refusal = command("init", "e.parquet", "-o", "e.toml").refusal()
        assert refusal.startswith("e.parquet, column 'bad' has type ")
        assert refusal.endswith("--ignore bad.")


def test_numbers_that_are_texts_in_parquet_are_encoded_or_refused(command, tmp_path):
    frame = pl.DataFrame({"a": ["1", "2", "1"], "y": [1.0, 2.0, 3.0]})
    frame.write_parquet(tmp_path / "d.parquet")
    made = ("compile", "--data", "d.parquet", "--steps", "1", "-o", "r.safetensors")
    assert command(*made).refusal() == (
        "d.parquet, line 1, column 'a': '1' is a text, not a number. Give --encode, which makes "
        "numbers of texts and dates, or leave the column out: --ignore a."
    )
    assert command(*made, "--encode").code == 0


def test_two_columns_of_one_name_after_encoding_are_refused(command, tmp_path):
    (tmp_path / "d.csv").write_text("kind,kind=x,y\nx,1,2\nz,2,3\nx,3,1\n")
    assert "has two columns called 'kind=x'" in command("init", "d.csv").refusal()


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_r2_compares_labels_with_labels(command, tmp_path, loss):
    rows = [(x / 10, int(x > 0)) for x in range(-10, 11)]
    (tmp_path / "d.csv").write_text("x,y\n" + "\n".join(f"{x},{y}" for x, y in rows))
    made = ("compile", "--data", "d.csv", "--loss", loss, "--hidden", "3", "--steps", "40")
    assert command(*made, "--step-size", "0.5", "-o", "r.safetensors").code == 0
    outcome = json.loads(
        command("run", "r.safetensors", "d.csv", "--queries", "d.csv", "--json").stdout
    )
    scores, y = np.array(outcome["predictions"])[:, 0], np.array([label for _, label in rows])
    expected = 1 / (1 + np.exp(-scores)) if loss == "logistic" else np.exp(scores)
    r2 = 1 - ((expected - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert outcome["score"] == pytest.approx(r2, rel=1e-12)


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


def test_a_table_whose_inputs_are_all_names_is_refused_by_their_names(command, tmp_path):
    (tmp_path / "d.csv").write_text('amount,y\n"1,234",1\n"2,345",2\n"3,1",3\n"4,5",4\n')
    refusal = command("init", "d.csv").refusal()
    assert refusal.startswith("d.csv has no column to learn from: amount has a different text")
