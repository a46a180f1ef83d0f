import json
import math
import re
from importlib import import_module

import pytest
from safetensors import safe_open

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.problems.functions import ACTIVATIONS
from icgd.problems.losses import LOSS_NAMES
from tests import machines
from tests.cli.files import PROBLEM, compiled_run, listing

SMALL = ("compile", "--widths", "4,3,1", "--steps", "2", "-o", "run.safetensors")


def test_the_file_holds_what_the_library_compiles(command, tmp_path):
    outcome = command(*SMALL, "--pieces", "8")
    assert outcome.code == 0
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded == compiled_run()
    assert listing(tmp_path) == ["run.safetensors"]


def test_every_option_reaches_the_problem(command):
    network = ["--activation", "silu", "--output-activation", "tanh"]
    training = ["--loss", "huber", "--step-size", "0.25", "--box", "2"]
    bounds = ["--x-bound", "1.5", "--y-bound", "0.5", "--construction", "relu-stack"]
    assert command(*SMALL, *network, *training, *bounds).code == 0
    assert icgd.load("run.safetensors").problem == icgd.Problem(
        icgd.MLP((4, 3, 1), "silu", "tanh"),
        "huber",
        icgd.GradientStep(0.25, 2.0),
        icgd.Domain(1.5, 0.5),
    )


def test_tables_show_size_functions_and_certificate(command):
    text = command(*SMALL, "--pieces", "8").stdout
    compiled = compiled_run()
    assert "6 layers used 2 times, 3 to predict" in text
    assert f"{compiled.summary().parameters:,} (" in text
    assert "tanh    10 pieces" in text
    assert f"{compiled.certificate().domain_step:.2g}" in text
    title = "Largest error of anything learnt, proved for all data in the domain (literal backend,"
    assert f"{title} float64, up to 1,024 tokens)" in " ".join(text.split())
    assert text.endswith("Saved run.safetensors\n")


def test_json_holds_the_librarys_numbers(command):
    outcome = command(*SMALL, "--pieces", "8", "--json")
    data, compiled = json.loads(outcome.stdout), compiled_run()
    certificate, summary = compiled.certificate(), compiled.summary()
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
    assert command(*SMALL, "--pieces", "8").stdout.count("no information (the box)") == 1
    assert data["summary"]["parameters"] == summary.parameters
    assert data["summary"]["dense_bytes"] == 8 * summary.parameters
    assert {"name": "identity", "fineness": "1 piece", "error": 0.0} in data["functions"]
    tanh = next(function for function in data["functions"] if function["name"] == "tanh")
    assert tanh["fineness"] == "10 pieces"
    assert tanh["error"] == compiled.program.relu_sum("tanh").error
    assert "listing" not in data


def test_listing_prints_the_program(command):
    assert compiled_run().listing() in command(*SMALL, "--pieces", "8", "--listing").stdout
    data = json.loads(command(*SMALL, "--pieces", "8", "--listing", "--json").stdout)
    assert data["listing"] == compiled_run().listing()


def test_tolerance_is_proved(command):
    options = ("--construction", "relu-stack", "--tolerance", "0.05")
    data = json.loads(command(*SMALL, *options, "--json").stdout)
    assert data["certificate"]["domain_step"] <= 0.05
    pieces = [int(function["fineness"].split()[0]) for function in data["functions"]]
    assert 4 < max(pieces) < 1000


SOFTMAX = ("--construction", "softmax-stack", "--registers", "66", "--box", "1", "--x-bound", "1")


def test_softmax_stack_is_compiled_with_the_registers_asked_for(command):
    data = json.loads(command(*SMALL, *SOFTMAX, "--json").stdout)
    loaded = icgd.load("run.safetensors")
    assert loaded.program.construction == "softmax-stack"
    assert loaded.program.n_registers == data["summary"]["n_registers"] == 66
    assert data["certificate"]["paper_step"] is None
    assert data["certificate"]["domain_step"] == loaded.certificate().domain_step < 1e-7
    tanh = loaded.program.look_up("tanh")
    expected = {"name": "tanh", "fineness": "65 lattice points", "error": tanh.error}
    assert expected in data["functions"]


def test_the_table_of_softmax_stack_shows_registers_and_no_bound_of_a_paper(command):
    text = command(*SMALL, *SOFTMAX).stdout
    assert re.search(r"registers +66 ", text)
    assert re.search(r"tanh +65 lattice points, error at most \d", text)
    assert "(a) the whole run" in text
    assert "closed form" not in text
    assert "5 layers used 2 times, 3 to predict" in text


@pytest.mark.parametrize(("weights", "stored"), [("dense", True), ("none", False)])
def test_weights_are_stored_on_request(command, weights, stored):
    command(*SMALL, "--pieces", "8", "--weights", weights)
    with safe_open("run.safetensors", framework="pt") as file:
        names = set(file.keys())
    transformer = {name for name, _ in compiled_run().transformer().named_parameters()}
    assert (names == transformer) is stored


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--activation", "tahn"],
            f"Unknown activation 'tahn'; known are {', '.join(ACTIVATIONS)}. Did you mean 'tanh'?",
        ),
        (
            ["--loss", "square"],
            f"Unknown loss 'square'; known are {', '.join(LOSS_NAMES)}. Did you mean 'squared'?",
        ),
        (
            ["--construction", "relu_stack"],
            f"Unknown construction 'relu_stack'; known are {', '.join(CONSTRUCTIONS)}. "
            "Did you mean 'relu-stack'?",
        ),
        (
            ["--construction", "softmax-stack", "--pieces", "8"],
            "softmax-stack has no setting 'pieces'; its settings are registers, kink_width, dtype. "
            "pieces is a setting of relu-stack.",
        ),
        (
            ["--kernel", "rbf", "--widths", "2,1", "--pieces", "8"],
            "functional has no setting 'pieces'; it has no settings. pieces is a setting of "
            "relu-stack.",
        ),
        (
            ["--dtype", "float16"],
            "Unknown dtype 'float16'; known are float64, float32. Did you mean 'float64'?",
        ),
        (
            ["--construction", "softmax-stack", "--registers", "31"],
            "registers must lie between 32 and 1024, got 31.",
        ),
        (
            ["--construction", "softmax-stack", "--registers", "66", "--tolerance", "1"],
            "Give either registers or tolerance, not both.",
        ),
        (["--step-size", "0"], "step_size must be a positive finite number, got 0.0."),
        (["--step-size", "nan"], "step_size must be a positive finite number, got nan."),
        (["--box", "-3"], "box must be a positive finite number, got -3.0."),
        (["--x-bound", "inf"], "domain.x must be a positive finite number, got inf."),
        (["--steps", "-1"], "n_steps must be a whole number of at least 0, got -1."),
        (["--pieces", "0"], "pieces must be a whole number of at least 1, got 0."),
        (["--widths", "4,0,1"], "widths[1] must be a whole number of at least 1, got 0."),
        (["--pieces", "8", "--tolerance", "1"], "Give either pieces or tolerance, not both."),
        (["--tolerance", "0"], "tolerance must be a positive finite number, got 0.0."),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(command, tmp_path, options, message):
    assert command(*SMALL, *options).refusal() == message
    assert listing(tmp_path) == []


def test_what_no_construction_can_do_is_refused(command, tmp_path):
    message = command(*SMALL, "--loss", "cross_entropy", "--x-bound", "1e15").refusal()
    assert message.startswith("No construction can compile this problem. relu-stack")
    assert "recursion: the slope of the cross_entropy loss couples all outputs" in message
    assert listing(tmp_path) == []


def test_an_unreachable_tolerance_is_refused(command, tmp_path):
    message = command(*SMALL, "--activation", "relu", "--tolerance", "0.001").refusal()
    assert message.startswith("tolerance=0.001 cannot be proved by any construction that serves ")
    assert "relu-stack: tolerance=0.001 cannot be proved: the smallest bound is " in message
    assert listing(tmp_path) == []


def test_dense_weights_that_do_not_fit_are_refused(command, tmp_path, monkeypatch):
    machines.of_memory(monkeypatch, 10_000, "half")
    message = command(*SMALL, "--weights", "dense").refusal()
    assert message.startswith("The dense transformer of ")
    assert "0.0 GiB may be used, half. Run with backend='fused', which needs neither wei" in message
    assert listing(tmp_path) == []


def test_sparse_weights_are_stored_and_others_are_refused_by_name(command, tmp_path):
    message = command(*SMALL, "--weights", "spare").refusal()
    assert message.startswith("Unknown kind of weights 'spare'; known are dense, sparse, none.")
    assert listing(tmp_path) == []
    command(*SMALL, "--weights", "sparse")
    with safe_open("run.safetensors", framework="pt") as file:
        assert "block.0.W_Q.indices" in file.keys()  # noqa: SIM118


def test_a_missing_folder_is_refused(command, tmp_path):
    message = command(*SMALL[:-1], "missing/run.safetensors").refusal()
    assert message == "Cannot write missing/run.safetensors: there is no folder missing."
    assert listing(tmp_path) == []


def test_an_interrupted_write_leaves_nothing(command, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save", interrupt)
    assert command(*SMALL).code == 130
    assert listing(tmp_path) == []


def test_the_example_of_the_help_works(command, tmp_path):
    assert command(*command("compile", "--help").example()).code == 0
    assert icgd.load(tmp_path / "run.safetensors").problem.target.widths == (4, 16, 1)
    assert math.isfinite(icgd.load(tmp_path / "run.safetensors").certificate().domain_step)


def test_the_chosen_construction_is_named_with_the_reason(command):
    text = " ".join(command(*SMALL).stdout.split())
    assert "The transformer (softmax-stack) chosen because no other construction is" in text
    reason = json.loads(command(*SMALL, "--json").stdout)["summary"]["chosen_because"]
    assert reason == "no other construction is accurate to rounding with fewer weights"
    assert "chosen" not in command(*SMALL, "--construction", "relu-stack").stdout


def test_settings_without_a_construction_choose_one_that_has_them(command):
    command(*SMALL, "--pieces", "8")
    assert icgd.load("run.safetensors").program.construction == "relu-stack"
    command(*SMALL, "--registers", "66")
    assert icgd.load("run.safetensors").program.n_registers == 66


def test_the_arithmetic_and_the_width_of_kinks_are_settings(command):
    command(*SMALL, "--dtype", "float32", "--kink-width", "0.0625", "--activation", "relu")
    loaded = icgd.load("run.safetensors")
    settings = {"dtype": "float32", "kink_width": 0.0625}
    expected = icgd.compile(loaded.problem, n_steps=2, **settings)
    assert loaded == expected


def test_a_folder_that_is_not_there_is_refused_before_anything_is_compiled(command, monkeypatch):
    monkeypatch.setattr(import_module("icgd.cli.problem_options"), "compile", None)
    refusal = command("compile", "--widths", "4,1", "-o", "missing/run.safetensors").refusal()
    assert refusal == "Cannot write missing/run.safetensors: there is no folder missing."
    assert "folder" in command("compile", "--widths", "4,1", "-o", ".").refusal()


def test_every_loss_is_offered(command):
    text = " ".join(command("compile", "--help").stdout.split())
    assert all(loss in text for loss in LOSS_NAMES)
