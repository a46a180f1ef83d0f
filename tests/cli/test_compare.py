import json
import re

from icgd.environment import Memory

PROBLEM = ("--widths", "1,1", "--output-activation", "tanh", "--box", "1", "--x-bound", "1")


def test_the_tables_have_a_row_for_each_construction(command):
    ran = command("compare", *PROBLEM, "--steps", "2", "--examples", "2")
    assert ran.code == 0
    for name in ("relu-stack", "softmax-stack", "universal"):
        assert ran.stdout.count(f"  {name}  ") == 3
        assert len(re.findall(rf"  {name} +dense  ", ran.stdout)) == 2
    assert "Size of the dense transformer" in ran.stdout
    assert "fused" not in ran.stdout
    assert "functional does not take part: it trains the function of a kernel" in ran.stdout


def test_fused_errors_stand_beside_no_sizes(command):
    ran = command("compare", *PROBLEM, "--steps", "2", "--examples", "2", "--backend", "fused")
    assert len(re.findall(r"  relu-stack +fused  ", ran.stdout)) == 2
    assert "Size of the dense transformer" not in ran.stdout
    assert "A fused run builds no weights: `icgd size` counts those of a dense one." in ran.stdout


def test_rows_that_do_not_fit_in_memory_are_named(command, monkeypatch):
    room = Memory(8 * 4000, "60% of what is left")
    monkeypatch.setattr("icgd.reproductions.comparison.usable_memory", lambda: room)
    ran = command("compare", *PROBLEM, "--steps", "2", "--examples", "2")
    words = " ".join(ran.stdout.split())
    assert "relu-stack is run fused: its dense transformer has" in words
    assert "softmax-stack is run fused" not in words
    assert "softmax-stack dense" in words
    assert "relu-stack fused" in words


def test_an_unknown_backend_is_refused(command):
    refused = command("compare", *PROBLEM, "--backend", "fusd").refusal()
    assert refused.startswith("Unknown backend 'fusd'")


def test_numbers_and_picture_are_written(command, tmp_path):
    ran = command(
        "compare", "--kernel", "rbf", "--widths", "2,1", "--steps", "2", "--out", "new", "--json"
    )
    assert ran.code == 0
    data = json.loads(ran.stdout)
    assert data == json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert [row["construction"] for row in data["rows"]] == ["functional"]
    assert data["problem"]["target"]["heads"][0]["kernel"] == "rbf"
    assert (tmp_path / "new" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_sizes_are_refused(command):
    refused = command("compare", *PROBLEM, "--examples", "0")
    assert refused.refusal() == "n_examples must be a whole number of at least 1, got 0."


def test_linear_models_are_compared_with_a_step_size_of_their_data(command):
    ran = command("compare", "--link", "identity", "--widths", "2,1", "--steps", "2", "--json")
    assert {row["backend"] for row in json.loads(ran.stdout)["rows"]} == {"dense"}
    assert all("within its" in row["verdict"] for row in json.loads(ran.stdout)["rows"])
    ran = command(
        *("compare", "--link", "identity", "--widths", "2,1", "--steps", "2", "--json"),
        *("--backend", "fused"),
    )
    data = json.loads(ran.stdout)
    rows = {row["construction"]: row for row in data["rows"]}
    assert list(rows) == ["cot-ridge", "cot-lasso", "cot-glm"]
    assert all("within its" in row["verdict"] for row in data["rows"])
    assert rows["cot-ridge"]["run_error"] <= 1e-14
    assert 0 < data["problem"]["update"]["step_size"] < 1
