import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from icgd_papers.training.config import KEYS, read_config
from icgd_papers.training.tasks import InContextTask

SMALL = ["--n-steps", "4", "--batch-size", "4", "--log-every", "2", "--n-examples", "3"]


def test_every_key_is_an_option(command):
    shown = command("train", "--help").stdout
    for name in KEYS:
        assert f"--{name.replace('_', '-')}" in shown


def test_options_alone_train_and_say_what_came_out(command):
    shown = command("train", *SMALL, "--kernels", "linear", "--folder", "out").stdout
    assert "first row" in shown
    assert "Saved out; draw its log with: icgd plot out" in shown
    rows = json.loads(Path("out/log.json").read_text())
    assert f"{rows[-1]['loss']:.6g}" in shown
    data = json.loads(command("train", *SMALL, "--folder", "out", "--json").stdout)
    assert data["last"]["loss"] == rows[-1]["loss"]


def test_a_config_with_every_default_is_written_and_trains(command):
    assert "Saved run.toml" in command("train", *SMALL, "--init", "run.toml").stdout
    assert not Path("run").exists()
    refusal = command("train", "--init", "run.toml").refusal()
    assert refusal == "Cannot write run.toml: it exists already."
    assert read_config("run.toml").training.n_steps == 4
    command("train", "run.toml", "--n-steps", "2")
    assert read_config("run/config.toml").training.n_steps == 2


@pytest.mark.parametrize("name", ["log.csv", "log.json", "config.toml"])
def test_files_of_ones_own_are_left_alone(command, name):
    Path(name).write_text("# mine\n")
    said = command("train", *SMALL, "--folder", ".").refusal()
    assert said.startswith(f"{name} was not written by a training of icgd")
    assert Path(name).read_text() == "# mine\n"


def test_a_config_may_stand_in_the_folder_of_its_run(command):
    Path("run").mkdir()
    command("train", *SMALL, "--folder", "run", "--init", "run/config.toml")
    with Path("run/config.toml").open("a") as file:
        file.write("\n# a remark\n")
    assert command("train", "run/config.toml").code == 0
    assert command("train", "run/config.toml", "--n-steps", "6").code == 0
    assert len(json.loads(Path("run/log.json").read_text())) == 4


def test_a_truth_value_may_be_turned_off_again(command):
    Path("run.toml").write_text("[data]\naverage_labels = true\n")
    command("train", "run.toml", *SMALL, "--no-average-labels")
    assert read_config("run/config.toml").data.average_labels is False


def test_ctrl_c_says_what_was_saved_and_the_same_command_goes_on(command):
    """`command` makes the folder; the process is one of its own, as Ctrl-C ends it."""
    line = [sys.executable, "-m", "icgd.cli.app", "train", "--n-steps", "100000"]
    line += ["--batch-size", "2", "--n-examples", "2", "--n-layers", "1"]
    started = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=os.environ)
    while not list(Path().glob("run/checkpoint-*")):
        assert started.poll() is None, started.stderr.read()
    started.send_signal(signal.SIGINT)
    _, said = started.communicate()
    assert started.returncode == 130
    assert "of 100000 steps. The checkpoint of this step is in run; run the same" in said
    assert "Traceback" not in said


def test_wrong_input_is_refused_in_one_line(command):
    said = command("train", "--folder", "a", "--device", "cuda:5").refusal()
    assert said.startswith("device='cuda:5' cannot be used here")
    Path("run.toml").write_text("[training]\nbatchsize = 3\n")
    assert "Did you mean 'batch_size'?" in command("train", "run.toml").refusal()
    assert command("train", "none.toml").refusal().startswith("Cannot read none.toml")
    assert not Path("a").exists()


OWN = """
import torch

def draw(n_tasks, generator):
    raise ValueError("no luck")

def make():
    return torch.nn.Linear(1, 1)
"""


def test_what_own_code_raises_is_said_in_one_line_with_its_place(command):
    Path("mine.py").write_text(OWN)
    said = command("train", *SMALL, "--generator", "mine.py:draw").refusal()
    assert said == "Your own code raised ValueError: no luck (mine.py, line 5)."
    said = command("train", *SMALL, "--factory", "mine.py:draw").refusal()
    assert said == (
        "Your own code raised TypeError: draw() missing 2 required positional arguments: "
        "'n_tasks' and 'generator'."
    )
    said = command("train", *SMALL, "--factory", "mine.py:make").refusal()
    assert said == (
        "model must be a model whose forward takes (x, y), as InContextTask calls it, got 'Linear'."
    )


def test_sizes_that_no_memory_holds_are_refused_in_one_line(command):
    said = command("train", *SMALL, "--n-layers", str(2**62)).refusal()
    assert said.startswith("A model of 345,876,451,382,054,092,800 numbers takes about 2,576,980,3")
    assert said.endswith("Give smaller sizes.")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--n-examples", 10**9), "Drawing 4 prompts of 1,000,000,000 examples, 5 inputs and 1"),
        (("--output-width", 10**9), "Drawing 4 prompts of 3 examples, 5 inputs and 1,000,000,000"),
        (("--batch-size", 10**11), "Drawing 100,000,000,000 prompts of 3 examples"),
        (("--input-width", 10**6), "The covariance of 1,000,000 inputs"),
        (("--labels", "teachers", "--hidden-width", 10**6), "Drawing 4 prompts of 3 examples"),
    ],
)
def test_prompts_that_no_memory_holds_are_refused_before_any_is_drawn(
    command, monkeypatch, options, what
):
    monkeypatch.setattr(InContextTask, "draw", lambda *_: pytest.fail("a prompt was drawn"))
    said = command("train", *SMALL, *options).refusal()
    assert said.startswith(f"{what}")
    assert " takes about " in said
    assert "GiB may be used" in said
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--teacher-layers", 0), "teacher_layers must be a whole number of at least 1, got 0."),
        (("--teacher-layers", 10**8), "teacher_layers must be at most 1000, got 100000000."),
        (("--teacher-mean", "nan"), "teacher_mean must be a finite number, got nan."),
        (
            ("--curriculum-batches", 0),
            "curriculum_batches must be a whole number of at least 1, got 0.",
        ),
        (
            ("--autocast", "--dtype", "float64"),
            "autocast has no effect without dtype='float32'; give both or neither.",
        ),
        (
            ("--n-positions", 3),
            "A prompt of 3 examples and a query takes 4 places; the decoder has n_positions=3. "
            "Give shorter prompts, or make a decoder with n_positions=4, or without positions "
            "(n_positions=None).",
        ),
        (
            ("--inputs", "shifted-mixture", "--centres", "1e300,2"),
            "Labels of Teachers, 3 layers, N(0, I) overflow",
        ),
    ],
)
def test_a_decoder_that_cannot_be_trained_is_refused_by_the_name_of_the_key(
    command, options, message
):
    decoder = ("--kind", "decoder", "--every-token", "--labels", "teachers", "--n-blocks", 1)
    said = command("train", *SMALL, *decoder, *options).refusal()
    assert said.startswith(message)
    assert not Path("run").exists()


def test_a_model_that_predicts_queries_alone_is_refused_before_the_folder_is_made(command):
    said = command("train", *SMALL, "--every-token").refusal()
    assert said == (
        "model must be a model that predicts every token (a Decoder), got 'KernelTransformer'."
    )
    assert not Path("run").exists()


def test_a_config_written_to_another_folder_names_the_same_files(command):
    Path("tasks.csv").write_text("task,a,y\n0,1,10\n0,2,20\n1,3,30\n1,4,40\n")
    Path("sub").mkdir()
    command("train", *SMALL, "--tasks", "tasks.csv", "--init", "sub/run.toml")
    config = read_config("sub/run.toml")
    assert Path(config.data.tasks).resolve() == Path("tasks.csv").resolve()
    assert Path(config.folder).resolve() == Path("run").resolve()
