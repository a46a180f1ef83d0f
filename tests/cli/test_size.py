import json
import re

import pytest

import icgd
from tests.cli.files import TRAIN, listing

HUGE = """
construction = "relu-stack"
steps = 1000
target.widths = [1000, 20000, 20000, 1000]
"""


@pytest.fixture
def size(command, toml):
    """`icgd size` of a problem, by default a huge one."""
    return lambda *options, lines=HUGE: command("size", toml(lines), *options)


def huge_summary(n_tokens: int):
    problem = icgd.Problem(
        icgd.MLP((1000, 20000, 20000, 1000)),
        "squared",
        icgd.GradientStep(0.1, 3.0),
        icgd.Domain(4.0, 2.0),
    )
    return icgd.compile(problem, "relu-stack", n_steps=1000).summary(n_tokens)


def test_json_has_every_digit_of_a_huge_transformer(size):
    data, summary = json.loads(size("--json").stdout), huge_summary(33)
    assert data["d_model"] == summary.d_model > 440_000_000
    assert data["n_layers"] == 8 * 1000 + 4
    assert data["parameters"] == summary.parameters > 10**20
    assert data["dense_bytes"] == 8 * summary.parameters
    assert data["flops"] == summary.flops
    assert data["layers"][0] == {
        "title": "forward 1",
        "kind": "attention",
        "d_model": summary.d_model,
        "units": summary.layers[0].units,
        "width": 1001,
        "nonzeros": summary.layers[0].nonzeros,
        "features": summary.layers[0].features,
        "n_grid": 0,
        "n_maps": 2,
        "n_columns": 1,
        "is_cached": False,
    }


def test_the_table_speaks_in_human_units(size, tmp_path):
    text = size().stdout
    assert "8 layers used 1,000 times, 4 to predict" in text
    assert "440 million" in text
    assert "EiB dense" in text
    assert listing(tmp_path) == ["problem.toml"]


def test_flops_follow_the_length_of_the_prompt(size):
    data = json.loads(size("--tokens", "5", "--json").stdout)
    assert data["n_tokens"] == 5
    assert data["flops"] == huge_summary(5).flops


def test_registers_are_counted_beside_the_tokens_of_the_prompt(size):
    lines = "construction = 'softmax-stack'\nsettings.registers = 40\ntarget.widths = [3, 4, 2]"
    data = json.loads(size("--tokens", "5", "--json", lines=lines).stdout)
    assert data["n_registers"] == 40
    assert data["n_tokens"] == 5
    assert data["layers"][0]["kind"] == "softmax"
    assert re.search(r"registers +40 ", size(lines=lines).stdout)


def test_a_prompt_without_tokens_is_refused(size):
    message = size("--tokens", "0").refusal()
    assert message == "--tokens must be a whole number of at least 1, got 0."


def test_the_example_of_the_help_works(command, tmp_path):
    (tmp_path / "train.csv").write_text(TRAIN)
    assert command(*command("size", "--help").example()).code == 0


def test_the_table_says_why_a_construction_was_chosen(size):
    lines = "target = {kernel = 'rbf', input_width = 4}"
    text = " ".join(size(lines=lines).stdout.split())
    assert "(functional) chosen because no other construction serves this problem" in text
