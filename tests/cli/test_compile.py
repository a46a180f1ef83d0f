import json
import math
import re
from importlib import import_module

import pytest
from safetensors import safe_open

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from tests import machines
from tests.cli.files import PROBLEM, TRAIN, compiled_run, listing

SMALL = "steps = 2\ntarget.widths = [4, 3, 1]\n"
SAVED = ("-o", "run.safetensors")


@pytest.fixture
def compiled(command, toml):
    """`icgd compile` on the small problem and further lines of its problem.toml."""
    return lambda lines="", *options: command("compile", toml(SMALL + lines), *SAVED, *options)


PIECES = "settings.pieces = 8\n"


def test_the_file_holds_what_the_library_compiles(compiled, tmp_path):
    outcome = compiled(PIECES)
    assert outcome.code == 0
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded == compiled_run()
    assert listing(tmp_path) == ["problem.toml", "run.safetensors"]


def test_tables_show_size_functions_and_certificate(compiled):
    text = compiled(PIECES).stdout
    run = compiled_run()
    assert "6 layers used 2 times, 3 to predict" in text
    assert f"{run.summary().parameters:,} (" in text
    assert "tanh    10 pieces" in text
    assert f"{run.certificate().domain_step:.2g}" in text
    title = "Largest error of a trained value, proved for all data in the domain (literal backend,"
    assert f"{title} float64, up to 1,024 tokens)" in " ".join(text.split())
    assert text.endswith("Saved run.safetensors\n")


def test_json_holds_the_librarys_numbers(compiled):
    outcome = compiled(PIECES, "--json")
    data, run = json.loads(outcome.stdout), compiled_run()
    certificate, summary = run.certificate(), run.summary()
    assert data["file"] == "run.safetensors"
    assert icgd.Problem.from_data(data["problem"]) == PROBLEM
    assert data["certificate"] == {
        "domain_step": certificate.domain_step,
        "domain_trajectory": None,
        "paper_step": certificate.paper_step,
        "n_tokens": 1024,
        "widest": 6.0,
        "condition": None,
        "stated": [],
        "estimated": [],
        "backend": "literal",
        "dtype": "float64",
        "domain_predictions": None,
        "says_nothing": ["domain_trajectory"],
    }
    assert certificate.domain_trajectory >= 6.0, "two weights in the box are no farther apart"
    assert compiled(PIECES).stdout.count("no information (beyond the box)") == 1
    assert data["summary"]["parameters"] == summary.parameters
    assert data["summary"]["dense_bytes"] == 8 * summary.parameters
    assert {"name": "identity", "fineness": "1 piece", "error": 0.0} in data["functions"]
    tanh = next(function for function in data["functions"] if function["name"] == "tanh")
    assert tanh["fineness"] == "10 pieces"
    assert tanh["error"] == run.program.relu_sum("tanh").error
    assert "listing" not in data


def test_listing_prints_the_program(compiled):
    assert compiled_run().listing() in compiled(PIECES, "--listing").stdout
    data = json.loads(compiled(PIECES, "--listing", "--json").stdout)
    assert data["listing"] == compiled_run().listing()


def test_tolerance_is_proved(compiled):
    lines = "construction = 'relu-stack'\ntolerance = 0.05\n"
    data = json.loads(compiled(lines, "--json").stdout)
    assert data["certificate"]["domain_step"] <= 0.05
    pieces = [int(function["fineness"].split()[0]) for function in data["functions"]]
    assert 4 < max(pieces) < 1000


SOFTMAX = """
construction = "softmax-stack"
settings.registers = 66
update.box = 1.0
domain.x = 1.0
"""


def test_softmax_stack_is_compiled_with_the_registers_asked_for(compiled):
    data = json.loads(compiled(SOFTMAX, "--json").stdout)
    loaded = icgd.load("run.safetensors")
    assert loaded.program.construction == "softmax-stack"
    assert loaded.program.n_registers == data["summary"]["n_registers"] == 66
    assert data["certificate"]["paper_step"] is None
    assert data["certificate"]["domain_step"] == loaded.certificate().domain_step < 1e-7
    tanh = loaded.program.look_up("tanh")
    expected = {"name": "tanh", "fineness": "65 lattice points", "error": tanh.error}
    assert expected in data["functions"]


def test_the_table_of_softmax_stack_shows_registers_and_no_bound_of_a_paper(compiled):
    text = compiled(SOFTMAX).stdout
    assert re.search(r"registers +66 ", text)
    assert re.search(r"tanh +65 lattice points, error at most \d", text)
    assert "(a) the whole run" in text
    assert "closed form" not in text
    assert "5 layers used 2 times, 3 to predict" in text


@pytest.mark.parametrize(("weights", "stored"), [("dense", True), ("none", False)])
def test_weights_are_stored_on_request(compiled, weights, stored):
    compiled(PIECES, "--weights", weights)
    with safe_open("run.safetensors", framework="pt") as file:
        names = set(file.keys())
    transformer = {name for name, _ in compiled_run().transformer().named_parameters()}
    assert (names == transformer) is stored


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "construction = 'relu_stack'",
            "problem.toml: Unknown construction 'relu_stack'; known are "
            f"{', '.join(CONSTRUCTIONS)}. Did you mean 'relu-stack'?",
        ),
        (
            "construction = 'softmax-stack'\nsettings.pieces = 8",
            "problem.toml: softmax-stack has no setting 'pieces'; its settings are registers, "
            "kink_width, dtype. pieces is a setting of relu-stack.",
        ),
        (
            "settings.pieces = 8\ntolerance = 1.0",
            "problem.toml: Give either pieces or tolerance, not both.",
        ),
        (
            "update.box = -3.0",
            "problem.toml, [update]: box must be a positive finite number, got -3",
        ),
        ("domain.x = inf", "problem.toml, [domain]: x must be a positive finite number, got inf."),
        (
            "settings.pieces = 0",
            "problem.toml, [settings]: pieces must be a whole number of at leas",
        ),
        (
            "construction = 'relu-stack'\ntarget.activation = 'relu'\ntolerance = 0.001",
            "tolerance=0.001 cannot be proved: the smallest bound is ",
        ),
        (
            "loss = 'cross_entropy'\ndomain.x = 1e15",
            "No construction can compile this problem. relu-stack",
        ),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(compiled, tmp_path, lines, message):
    assert compiled(lines).refusal().startswith(message)
    assert listing(tmp_path) == ["problem.toml"]


def test_dense_weights_that_do_not_fit_are_refused(compiled, tmp_path, monkeypatch):
    machines.of_memory(monkeypatch, 10_000, "half")
    message = compiled("", "--weights", "dense").refusal()
    assert message.startswith("The dense transformer of ")
    assert "0.0 GiB may be used, half. Run with --backend fused, which needs neither wei" in message
    assert listing(tmp_path) == ["problem.toml"]


def test_sparse_weights_are_stored_and_others_are_refused_by_name(compiled, tmp_path):
    message = compiled("", "--weights", "spare").refusal()
    assert message.startswith("Unknown kind of weights 'spare'; known are dense, sparse, none.")
    assert listing(tmp_path) == ["problem.toml"]
    compiled("", "--weights", "sparse")
    with safe_open("run.safetensors", framework="pt") as file:
        assert "block.0.W_Q.indices" in file.keys()  # noqa: SIM118


def test_an_interrupted_write_leaves_nothing(compiled, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save", interrupt)
    assert compiled().code == 130
    assert listing(tmp_path) == ["problem.toml"]


def test_the_example_of_the_help_works(command, tmp_path):
    (tmp_path / "train.csv").write_text(TRAIN)
    assert command(*command("compile", "--help").example()).code == 0
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded.problem.network.widths == (4, 16, 16, 1)
    assert math.isfinite(loaded.certificate().domain_step)


def test_the_chosen_construction_is_named_with_the_reason(compiled):
    text = " ".join(compiled().stdout.split())
    assert "The transformer (softmax-stack) chosen because no other construction is" in text
    reason = json.loads(compiled("", "--json").stdout)["summary"]["chosen_because"]
    assert reason == "no other construction is accurate to rounding with fewer weights"
    assert "chosen" not in compiled("construction = 'relu-stack'").stdout


def test_settings_without_a_construction_choose_one_that_has_them(compiled):
    compiled("settings = {dtype = 'float32', kink_width = 0.0625}\ntarget.activation = 'relu'")
    loaded = icgd.load("run.safetensors")
    assert loaded == icgd.compile(loaded.problem, n_steps=2, dtype="float32", kink_width=0.0625)


def test_a_folder_that_is_not_there_is_refused_before_anything_is_compiled(command, monkeypatch):
    monkeypatch.setattr(import_module("icgd.cli.problem_file"), "compile", None)
    refusal = command("compile", "-o", "missing/run.safetensors").refusal()
    assert refusal == "Cannot write missing/run.safetensors: there is no folder missing."
    assert "folder" in command("compile", "-o", ".").refusal()
