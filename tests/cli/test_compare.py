import json
import re

import pytest

from icgd.environment import Memory

TANH = """
steps = 2
target = {widths = [1, 1], output_activation = "tanh"}
update.box = 1.0
domain = {x = 1.0, y = 2.0}
"""


@pytest.fixture
def compare(command, toml):
    """`icgd compare` on a small problem."""
    return lambda *options, lines=TANH: command("compare", toml(lines), *options)


def test_the_tables_have_a_row_for_each_construction(compare):
    ran = compare("--examples", "2")
    assert ran.code == 0
    for name in ("relu-stack", "softmax-stack", "universal"):
        assert ran.stdout.count(f"  {name}  ") == 3
        assert len(re.findall(rf"  {name} +literal  ", ran.stdout)) == 2
    assert "Size of the transformer" in ran.stdout
    assert "fused" not in ran.stdout
    assert "functional does not take part: it trains the function of a kernel" in ran.stdout


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_rows_come_from_the_backend_that_was_asked_for(backend, compare):
    ran = compare("--examples", "2", "--backend", backend)
    assert len(re.findall(rf"  relu-stack +{backend}  ", ran.stdout)) == 2


def test_rows_whose_literal_run_is_long_are_fused_and_say_so(compare, monkeypatch):
    monkeypatch.setattr("icgd.backends.registry.MOST_FLOPS", 10**7)
    ran = compare("--examples", "2")
    words = " ".join(ran.stdout.split())
    assert re.search(r"relu-stack is run fused: a literal run takes [\d.e+]+ operations", words)
    assert "relu-stack fused" in words


def test_dense_rows_that_do_not_fit_in_memory_are_named(compare, monkeypatch):
    room = Memory(8 * 4000, "60% of what is left")
    monkeypatch.setattr("icgd.environment.usable_memory", lambda: room)
    monkeypatch.setattr("icgd.environment.SURELY_FREE", 0)
    ran = compare("--examples", "2", "--backend", "dense")
    words = " ".join(ran.stdout.split())
    assert "relu-stack does not take part: The dense transformer of" in words
    assert "softmax-stack dense" in words


def test_an_unknown_backend_is_refused(compare):
    refused = compare("--backend", "fusd").refusal()
    assert refused.startswith("Unknown backend 'fusd'")


def test_numbers_and_picture_are_written(compare, tmp_path):
    lines = "steps = 2\ntarget = {kernel = 'rbf', input_width = 2}\n"
    ran = compare("--out", "new", "--json", lines=lines)
    assert ran.code == 0
    data = json.loads(ran.stdout)
    assert data == json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert [row["construction"] for row in data["rows"]] == ["functional"]
    assert data["problem"]["target"]["heads"][0]["kernel"] == "rbf"
    assert (tmp_path / "new" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_sizes_are_refused(compare):
    refused = compare("--examples", "0")
    assert refused.refusal() == "--examples must be a whole number of at least 1, got 0."


def test_linear_models_are_compared_with_a_step_size_of_their_data(compare):
    lines = "steps = 2\ntarget = {link = 'identity', input_width = 2}\n"
    ran = compare("--json", lines=lines)
    assert {row["backend"] for row in json.loads(ran.stdout)["rows"]} == {"literal"}
    assert all("within its" in row["verdict"] for row in json.loads(ran.stdout)["rows"])
    ran = compare("--json", "--backend", "fused", lines=lines)
    data = json.loads(ran.stdout)
    rows = {row["construction"]: row for row in data["rows"]}
    assert list(rows) == ["linear-stack", "cot-ridge", "cot-glm"]
    assert all("within its" in row["verdict"] for row in data["rows"])
    assert rows["linear-stack"]["run_error"] <= 1e-14
    assert 0 < data["problem"]["update"]["step_size"] < 1
