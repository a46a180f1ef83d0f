import csv
import json
import re
from importlib import import_module

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import icgd
from icgd.backends.fused import FusedStack
from icgd.cli.show import plain
from icgd.problems import oracles as network
from icgd.problems.convergence import convergence
from tests import machines
from tests.bare_oracles import on_network as reference
from tests.cli.files import PROBLEM, TRAIN, compiled_run, listing, write_all

FILES = ["new.csv", "run.safetensors", "train.csv"]
X = np.array([[0.5, -1, 2, 0], [1, 0.25, -3, 1], [-2, 1, 0, 0.125]])
Y = np.array([[1], [-0.5], [0.75]])
QUERIES = np.array([[-1, 0.5, 0, 1], [0.25, 0, 0, 0.0]])


@pytest.fixture
def run(command, tmp_path):
    """`icgd run` on files that the folder holds."""
    write_all(tmp_path)
    return lambda *options: command("run", "run.safetensors", "train.csv", *options)


def risk(parameters: torch.Tensor) -> float:
    return float(reference.risk(PROBLEM, parameters, torch.tensor(X), torch.tensor(Y)))


def test_json_holds_the_librarys_risks_and_predictions(run):
    data = json.loads(run("--queries", "new.csv", "--seed", "7", "--json").stdout)
    expected = compiled_run().run(X, Y, queries=QUERIES, seed=7)
    task = compiled_run().task(X, Y, seed=7)
    found = convergence(PROBLEM.oracle, task, expected.parameters)
    assert data == {
        "steps": 2,
        "ending": "all steps taken",
        "risk_before": risk(expected.parameters[0]),
        "risk_after": risk(expected.parameters[-1]),
        "objective_before": None,
        "objective_after": None,
        "coefficients": None,
        "convergence": plain(found),
        "labels": ["price"],
        "predictions": expected.predictions.tolist(),
        "measure": None,
        "score": None,
    }
    assert 0 < found.left < 1
    assert data["risk_after"] < data["risk_before"]


def test_tables_show_the_risks_and_predictions(run):
    text = run("--queries", "new.csv").stdout
    expected = compiled_run().run(X, Y, queries=QUERIES)
    assert f"{risk(expected.parameters[0]):.6g}" in text
    assert f"{risk(expected.parameters[-1]):.6g}" in text
    assert f"{expected.predictions[1, 0]:.6g}" in text


def test_predictions_are_written_with_every_digit(run, tmp_path):
    assert run("--queries", "new.csv", "--out", "prices.csv").code == 0
    with (tmp_path / "prices.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["d", "c", "b", "a", "price"]  # the queries as their file has them
    expected = compiled_run().run(X, Y, queries=QUERIES).predictions
    assert [[float(row[4])] for row in rows] == expected.tolist()
    assert [[float(cell) for cell in row[3::-1]] for row in rows] == QUERIES.tolist()
    assert listing(tmp_path) == ["new.csv", "prices.csv", "run.safetensors", "train.csv"]


def test_queries_are_written_with_the_digits_of_their_file(run, tmp_path):
    """A number of many digits, or one with zeros in front, names a row."""
    (tmp_path / "new.csv").write_text("d;c;b;a;id\n1;,5;0,10;0;12345678901234567891\n1;1;1;1;007\n")
    assert run("--queries", "new.csv", "--out", "prices.csv").code == 0
    with (tmp_path / "prices.csv").open(newline="") as file:
        first, second = list(csv.reader(file))[1:]
    assert first[:5] == ["1", ".5", "0.10", "0", "12345678901234567891"]
    assert second[4] == "007"


def test_without_queries_nothing_is_predicted(run):
    assert json.loads(run("--json").stdout)["predictions"] == []
    assert "Predictions" not in run().stdout


def test_a_label_column_may_stand_anywhere(run):
    data = json.loads(run("--label", "a", "--json").stdout)
    inputs = np.column_stack([X[:, 1:], Y])
    before = compiled_run().run(inputs, X[:, :1]).parameters[0]
    predictions = network.predict(PROBLEM.target, before, torch.tensor(inputs))
    assert data["labels"] == ["a"]
    assert data["risk_before"] == pytest.approx(
        float(((predictions - torch.tensor(X[:, :1])) ** 2).mean() / 2), rel=1e-12
    )


def test_dense_and_float32_reach_the_library(run):
    fused = json.loads(run("--queries", "new.csv", "--json").stdout)["predictions"]
    dense = json.loads(run("--queries", "new.csv", "--backend", "dense", "--json").stdout)
    single = json.loads(run("--queries", "new.csv", "--dtype", "float32", "--json").stdout)
    assert np.allclose(dense["predictions"], fused, rtol=1e-11)
    assert np.allclose(single["predictions"], fused, rtol=1e-4)
    assert single["predictions"] != fused


@pytest.mark.parametrize(
    ("replaced", "by", "message"),
    [
        (
            "2,0,1",
            "two,0,1",
            "train.csv, line 2, column 'c': 'two' is not a number. "
            "Give --encode, which makes numbers of texts and dates, or leave the column out: "
            "--ignore c.",
        ),
        (
            "-3,1,-0.5",
            "nan,1,-0.5",
            "train.csv, line 3 has no value in column 'c'. Fill it, or remove the line, or give "
            "--missing drop, mean or median.",
        ),
        (
            "-3,1,-0.5",
            "-5,1,-0.5",
            "train.csv, column 'c' goes to -5, but the transformer was made for 4 at most. Compile "
            "with [domain] x = 5.005 or larger in problem.toml, or with --data a table that holds "
            "such values.",
        ),
        (
            "0.125,0.75",
            "0.125,2.5",
            "train.csv, column 'price' goes to 2.5, but the transformer was made for 2 at most. "
            "Compile with [domain] y = 2.502 or larger in problem.toml, or with --data a table "
            "that holds such values.",
        ),
        (
            "-3,1,-0.5",
            "-3,1",
            "train.csv, line 3 has no value in column 'price'. Fill it, or remove the line, or "
            "give --missing drop, mean or median.",
        ),
        (
            TRAIN,
            "a,price\n1,2\n",
            "train.csv has 1 columns of inputs (a); the model has 4. Name the label columns with "
            "--target and columns to leave out with --ignore, or compile for this table with "
            "--data.",
        ),
    ],
)
def test_bad_data_are_refused_and_nothing_is_written(run, tmp_path, replaced, by, message):
    (tmp_path / "train.csv").write_text(TRAIN.replace(replaced, by))
    assert run("--queries", "new.csv", "--out", "prices.csv").refusal() == message
    assert listing(tmp_path) == FILES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--label", "prize"],
            "Unknown column 'prize' in train.csv; known are a, b, c, d, price. "
            "Did you mean 'price'?",
        ),
        (
            ["--label", "a", "--label", "b"],
            "The model has 1 output, but the label columns are a, b. "
            "Give --target once for each output.",
        ),
        (["--queries", "old.csv"], "Cannot read old.csv: No such file or directory."),
        (["--out", "p.csv"], "--output has no effect without --queries; give both or neither."),
        (
            ["--queries", "new.csv", "--out", "missing/p.csv"],
            "Cannot write missing/p.csv: there is no folder missing.",
        ),
    ],
)
def test_bad_options_are_refused_and_nothing_is_written(run, tmp_path, options, message):
    assert run(*options).refusal() == message
    assert listing(tmp_path) == FILES


def test_dense_weights_that_do_not_fit_are_refused(run, tmp_path, monkeypatch):
    machines.of_memory(monkeypatch, 1000)
    message = run("--backend", "dense").refusal()
    parameters = compiled_run().summary().parameters
    assert f"{parameters:,} weights takes about " in message
    assert message.endswith("Run with --backend fused, which needs neither weights nor scores.")
    assert listing(tmp_path) == FILES


def test_a_file_that_is_no_compiled_run_is_refused(run, tmp_path):
    path = tmp_path / "run.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert run().refusal().startswith("run.safetensors is damaged or not a safetensors file (")
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert run().refusal() == (
        "run.safetensors is damaged: its checksum does not match. Compile it again."
    )
    save_file({"weight": torch.zeros(2)}, path)
    assert run().refusal() == (
        "run.safetensors is a safetensors file, but not one that icgd wrote: "
        "its metadata has no 'icgd' entry."
    )
    path.unlink()
    assert run().refusal() == "There is no file run.safetensors."


def test_the_example_of_the_help_works(run, command, tmp_path):
    assert run().code == 0
    assert command(*command("run", "--help").example()).code == 0
    assert (tmp_path / "prices.csv").read_text().startswith("d,c,b,a,price\n")


def test_a_kernel_learns_from_a_table_and_warns_of_steps_that_diverge(command, toml, tmp_path):
    (tmp_path / "d.csv").write_text("x,y\n0,1\n1,0\n0.5,0.25\n")
    (tmp_path / "q.csv").write_text("x\n0.5\n")
    file = toml("target = {kernel = 'laplace', input_width = 1}")
    make = ("compile", file, "-o", tmp_path / "f.safetensors")
    assert command(*make, "--steps", "400", "--step-size", "0.5").code == 0
    ran = command(
        "run", tmp_path / "f.safetensors", tmp_path / "d.csv", "--queries", tmp_path / "q.csv"
    )
    assert "0.25" in ran.stdout
    assert ran.stderr == ""
    assert command(*make, "--step-size", "5", "--steps", "2").code == 0
    ran = command("run", tmp_path / "f.safetensors", tmp_path / "d.csv")
    assert ran.code == 0
    assert ran.stderr.startswith("icgd: warning: The steps diverge on these data: the error grows")


@pytest.fixture
def ridge(command, tmp_path):
    """`icgd run` of a linear model, and the library's own run up to where it stops."""
    problem = icgd.Problem(
        icgd.LinearModel(4, intercept=True),
        "matching",
        icgd.ProximalStep(0.1, l2=0.5, box=3.0),
        icgd.Domain(4.0, 2.0),
    )
    compiled = icgd.compile(problem, n_steps=400)
    write_all(tmp_path)
    compiled.save(tmp_path / "run.safetensors", weights=False)
    own = compiled.run(X, Y, queries=QUERIES, stop_below=1e-6)
    options = ("run", "run.safetensors", "train.csv", "--queries", "new.csv")
    return lambda *more: command(*options, *more), own


def test_a_linear_model_stops_and_names_its_coefficients(ridge):
    run, own = ridge
    data = json.loads(run("--stop-below", "1e-6", "--json").stdout)
    last = own.parameters[-1].tolist()
    assert 10 < data["steps"] == own.stopped_after < 400
    assert data["ending"] == "weights move no more"
    names = ["a", "b", "c", "d", "(intercept)"]
    assert data["coefficients"] == dict(zip(names, last, strict=True))
    assert data["predictions"] == own.predictions.tolist()
    scores = X @ last[:4] + last[4]
    loss = float(np.mean((scores - Y[:, 0]) ** 2 - Y[:, 0] ** 2)) / 2
    assert data["risk_after"] == pytest.approx(loss, rel=1e-12)
    penalty = 0.5 / 2 * float(np.square(last[:4]).sum())
    assert data["objective_after"] == pytest.approx(loss + penalty, rel=1e-12)


def test_the_tables_of_a_linear_model_tell_the_same(ridge):
    run, own = ridge
    text = run("--stop-below", "1e-6").stdout
    assert f"{own.stopped_after} of 400: weights move no more" in text
    assert re.search(rf"\(intercept\) +{float(own.parameters[-1, -1]):.6g} ", text)
    assert "with penalties after" in text


def test_a_run_that_is_not_done_says_what_would_do(ridge, tmp_path):
    run, _ = ridge
    assert "Training has not converged" not in run().stdout
    loaded = icgd.load(tmp_path / "run.safetensors")
    icgd.compile(loaded.problem, n_steps=2).save(tmp_path / "run.safetensors", weights=False)
    text = " ".join(run().stdout.split())
    found = json.loads(run("--json").stdout)["convergence"]
    assert found["left"] > found["enough"] == 1e-4
    assert f"to its minimum, {100 * found['left']:.3g}% is left" in text
    assert f"It needs about {found['more_steps']:.0f} more steps of 0.1." in text


def test_an_interrupted_run_prints_what_it_knows(ridge, tmp_path, monkeypatch):
    run, own = ridge

    class Interrupting:
        """A progress bar at which the user presses Ctrl-C after three steps."""

        def __enter__(self):
            return self.see

        def __exit__(self, *_):
            return None

        def see(self, done, total):
            if done == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(import_module("icgd.cli.run"), "progress", lambda title: Interrupting())
    outcome = run("--json", "--out", "p.csv")
    data = json.loads(outcome.stdout)
    assert outcome.code == 130
    assert (data["steps"], data["ending"]) == (3, "interrupted")
    assert list(data["coefficients"].values()) == own.parameters[3].tolist()
    assert "3 of 400: interrupted" in run().stdout
    written = (tmp_path / "p.csv").read_text().splitlines()[1:]
    assert [float(line.split(",")[-1]) for line in written] == [v for [v] in data["predictions"]]


def test_an_interrupted_run_without_predictions_writes_none(run, tmp_path, monkeypatch):
    """Ctrl-C came before the first step, so there was nothing yet that could predict."""

    def interrupted(program, task):
        if task.batch:  # the trial of what was loaded
            return FusedStack(program, task)
        raise KeyboardInterrupt

    monkeypatch.setattr("icgd.backends.fused.FusedStack", interrupted)
    asked = ("--queries", "train.csv", "--out", "p.csv", "--plot", "p.svg")
    outcome = run(*asked, "--json")
    data = json.loads(outcome.stdout)
    assert (outcome.code, data["steps"], data["ending"]) == (130, 0, "interrupted")
    assert (data["predictions"], data["measure"], data["score"]) == ([], None, None)
    assert listing(tmp_path) == sorted([*FILES, "p.svg"])
    printed = run(*asked).stdout
    assert "0 of 2: interrupted" in printed
    assert "Saved p.svg" in printed
    assert "p.csv" not in printed


def test_a_kernel_cannot_be_told_to_stop(command, toml, tmp_path):
    write_all(tmp_path)
    file = toml("target = {kernel = 'rbf', input_width = 4}")
    command("compile", file, "-o", "run.safetensors")
    refusal = command("run", "run.safetensors", "train.csv", "--stop-below", "1").refusal()
    assert refusal.startswith("--stop-below works with runs that train weights only")


def test_a_run_in_float32_of_what_was_compiled_for_float64_says_so(run, tmp_path):
    icgd.compile(PROBLEM, "softmax-stack", n_steps=2).save(tmp_path / "run.safetensors")
    ran = run("--dtype", "float32", "--backend", "dense")
    assert ran.code == 0
    assert ran.stderr.startswith("icgd: warning: This softmax-stack was compiled for float64, but")
    assert "Compile with dtype='float32' (--dtype float32)" in ran.stderr
    assert run("--dtype", "float32").stderr == ""


IRIS = """\
long,wide,kind
1.4,0.2,rose
4.7,1.4,lily
1.3,,rose
4.5,1.5,lily
"""


def trained_on(command, tmp_path, text, *options, compile_options=()):
    """One compile and one run on a table; new.csv has the same rows."""
    (tmp_path / "data.csv").write_text(text)
    (tmp_path / "new.csv").write_text(text.replace(",,", ",0.3,"))
    made = command(
        "compile", *compile_options, "--data", "data.csv", "-o", "run.safetensors", *options
    )
    assert made.code == 0, made
    ran = command("run", "run.safetensors", "data.csv", "--queries", "new.csv", "--json")
    assert ran.stderr == ""
    assert ran.code == 0, ran
    return json.loads(ran.stdout)


def test_text_classes_with_an_output_each(command, tmp_path):
    network = ("--hidden", "4", "--loss", "cross_entropy", "--steps", "40", "--step-size", "1")
    fill = ("--missing", "drop", "--standardize")
    data = trained_on(command, tmp_path, IRIS, *fill, compile_options=network)
    assert data["labels"] == ["kind", "score of lily", "score of rose"]
    assert [row[0] for row in data["predictions"]] == ["rose", "lily", "rose", "lily"]
    assert (data["measure"], data["score"]) == ("accuracy", 1.0)


def test_text_classes_with_one_output(command, toml, tmp_path):
    file = toml("steps = 300\ntarget.link = 'logistic'\nupdate.l2 = 0.01")
    fill = ("--missing", "mean", "--standardize")
    data = trained_on(command, tmp_path, IRIS, *fill, compile_options=(file,))
    assert data["labels"] == ["kind", "score of rose"]
    assert [row[0] for row in data["predictions"]] == ["rose", "lily", "rose", "lily"]
    assert all((row[1] > 0.5) == (row[0] == "rose") for row in data["predictions"])


def test_standard_units_are_those_of_the_table_and_predictions_are_not_in_them(command, tmp_path):
    """Far and large labels: without standard units nothing would be learnt in few steps."""
    rows = [(x, 5000.0 + 300.0 * x) for x in (100.0, 101.0, 102.0, 103.0, 104.0)]
    text = "x;y\n" + "".join(f"{x};{y}\n" for x, y in rows).replace(".", ",")
    network = ("--hidden", "8", "--steps", "300", "--step-size", "0.5")
    data = trained_on(command, tmp_path, text, "--standardize", compile_options=network)
    predictions = [row[0] for row in data["predictions"]]
    assert np.allclose(predictions, [y for _, y in rows], atol=30)
    assert data["measure"] == "R²"
    expected = (
        1
        - np.square(np.subtract(predictions, [y for _, y in rows])).sum()
        / np.square(300.0 * np.array([-2, -1, 0, 1, 2])).sum()
    )
    assert data["score"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (IRIS, (), "data.csv, line 4 has no value in column 'wide'."),
        (IRIS, ("--missing", "fill"), "--missing must be one of refuse, drop, mean, median, got"),
        (IRIS.replace("lily", "rose"), ("--missing", "drop"), "has only the class 'rose'"),
        (IRIS, ("--target", "sort"), "Unknown column 'sort' in data.csv; known are long, wide"),
        ("", (), "Cannot read data.csv: it is empty."),
        ("0,1,2\n0.5,0.5,1\n", (), "may be a header or an example. Give --header or"),
        (IRIS, ("--delimiter", "comma", "--decimal", "dot"), "Unknown decimal 'dot'"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_before_compiling(
    command, tmp_path, text, options, message
):
    (tmp_path / "data.csv").write_text(text)
    made = ("compile", "--data", "data.csv", "-o", "run.safetensors")
    assert message in command(*made, *options).refusal()
    assert listing(tmp_path) == ["data.csv"]


def test_a_query_cannot_be_dropped_and_is_not_scored_if_its_class_is_unknown(command, tmp_path):
    network = ("--hidden", "", "--steps", "1")
    trained_on(command, tmp_path, IRIS, "--missing", "drop", compile_options=network)
    run = ("run", "run.safetensors", "data.csv", "--missing", "drop", "--queries", "q.csv")
    (tmp_path / "q.csv").write_text(IRIS)
    refusal = command(*run).refusal()
    assert refusal.startswith("q.csv, line 4 has no value in column 'wide', and a query cannot be")
    (tmp_path / "q.csv").write_text("long,wide,kind\n1,1,Lily\n")
    outcome = command(*run, "--json")
    assert outcome.stderr == (
        "icgd: warning: The predictions are not scored: q.csv, column 'kind' has the class 'Lily', "
        "which the examples lack; known are lily, rose. Did you mean 'lily'?\n"
    )
    data = json.loads(outcome.stdout)
    assert (outcome.code, len(data["predictions"]), data["score"]) == (0, 1, None)


OWN = """\
Tag;2023;2024;Klasse
2024-01-01;3,5;0,25;gut
2024-01-02;1,5;NA;schlecht
2024-01-03;3,25;0,5;gut
2024-01-04;1,25;-0,5;schlecht
"""


def test_a_table_with_dates_and_gaps_becomes_a_verified_run_and_two_pictures(command, tmp_path):
    (tmp_path / "own.csv").write_text(OWN)
    table = ("--header", "--ignore", "Tag", "--missing", "median", "--standardize")
    network = ("--hidden", "4", "--loss", "cross_entropy", "--steps", "30", "--step-size", "1")
    made = command("compile", *network, "--data", "own.csv", *table, "-o", "r.safetensors")
    assert made.code == 0, made
    ask = ("run", "r.safetensors", "own.csv", "--queries", "own.csv")
    ran = command(*ask, "--plot", "run.png", "-o", "p.csv")
    assert ran.code == 0, ran
    assert re.search(r"accuracy of the predictions +1\n", re.sub(" +\n", "\n", ran.stdout))
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [row["predicted Klasse"] for row in rows] == ["gut", "schlecht", "gut", "schlecht"]
    assert [row["Tag"] for row in rows][:1] == ["2024-01-01"]
    verified = command("verify", "r.safetensors", "own.csv", "--plot", "verdict.svg")
    assert verified.code == 0, verified
    assert "HOLDS" in verified.stdout
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "verdict.svg").read_text()
    assert "Saved run.png" in ran.stdout
    assert "Saved verdict.svg" in verified.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ignore", "Tage"), "Unknown column 'Tage' in own.csv; known are Tag, 2023, 2024, Kl"),
        (("--ignore", "Tag", "--target", "Tag"), "Column 'Tag' is both a label and ignored. Take"),
        ((), "own.csv, line 2, column 'Tag': '2024-01-01' is not a number. Give --encode, which"),
    ],
)
def test_columns_that_are_ignored_must_be_there_and_no_labels(command, tmp_path, options, message):
    (tmp_path / "own.csv").write_text(OWN)
    made = ("compile", "--data", "own.csv", "--header", "--missing", "mean")
    refusal = command(*made, "-o", "r.safetensors", *options).refusal()
    assert refusal.startswith(message)
    assert listing(tmp_path) == ["own.csv"]
    without = command("compile", "--ignore", "Tag", "-o", "r.safetensors")
    assert without.refusal() == "--ignore has no effect without --data; give both or neither."


@pytest.mark.parametrize("name", ["run.jpg", "there/is/none.png"])
@pytest.mark.parametrize("what", ["run", "verify"])
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(run, command, what, name):
    refusal = command(what, "run.safetensors", "train.csv", "--plot", name).refusal()
    assert name in refusal


GAPS = "age,size,price\n1,,3\n4,,6\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (GAPS, ("--missing", "drop"), "data.csv, column 'size' has no values"),
        (GAPS, ("--missing", "mean"), "data.csv, column 'size' has no values"),
        (GAPS, (), "Fill it, or remove the line, or give --missing drop, mean or median."),
        (
            "age,size,price\n1,2,3\n4,5,\n",
            ("--missing", "mean"),
            "data.csv, line 3 has no value in column 'price'. Fill it, or remove the line, or give "
            "--missing drop: labels are not made up.",
        ),
        (
            "age,size,price\n1,2,3\n",
            ("--ignore", "age", "--ignore", "size", "--ignore", "price"),
            "data.csv has no columns besides the ignored ones: age, size, price.",
        ),
    ],
)
def test_what_nothing_can_be_made_of_is_said_with_what_would_help(
    command, tmp_path, text, options, message
):
    (tmp_path / "data.csv").write_text(text)
    made = ("compile", "--data", "data.csv", "-o", "run.safetensors")
    refusal = command(*made, *options).refusal()
    assert message in refusal
    assert ("--ignore size" in refusal) == ("has no values" in message)
    assert listing(tmp_path) == ["data.csv"]


def test_a_gap_in_a_query_is_refused_with_what_would_help(run, tmp_path):
    (tmp_path / "new.csv").write_text("a,b,c,d\n1,2,3,\n")
    assert run("--queries", "new.csv").refusal() == (
        "new.csv, line 2 has no value in column 'd', and a query cannot be dropped. Fill it, or "
        "give --missing mean or median, which are those of the examples."
    )


def test_a_text_in_a_query_is_refused_where_gaps_are_filled(run, tmp_path):
    (tmp_path / "new.csv").write_text("a,b,c,d\n1,2,3,x4\n")
    refusal = run("--queries", "new.csv", "--missing", "mean").refusal()
    assert refusal.startswith("new.csv, line 2, column 'd': 'x4' is not a number.")


def test_equal_labels_have_no_r2_and_the_table_says_why(command, tmp_path):
    text = "x,y\n1,3\n2,3\n4,3\n"
    (tmp_path / "data.csv").write_text(text)
    make = ("compile", "--hidden", "", "--steps", "2", "--data", "data.csv")
    assert command(*make, "-o", "run.safetensors").code == 0
    ask = ("run", "run.safetensors", "data.csv", "--queries", "data.csv")
    assert "R² of the predictions" in command(*ask).stdout
    assert "none: the labels of all queries are equal" in command(*ask).stdout
    assert json.loads(command(*ask, "--json").stdout)["score"] is None
