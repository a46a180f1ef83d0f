"""Configs: files and options, keys that are refused, and the tasks and models that they make."""

import re
import tomllib
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path

import pytest
import torch

from icgd.errors import CheckpointError, DataError, IcgdError, OwnCodeError, SettingError
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.config import KEYS, Config, read_config
from icgd_papers.training.covariates import Ellipsoid, ShiftedMixture
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.labels import KernelProcess, Teachers
from icgd_papers.training.loading import load
from icgd_papers.training.loop import train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.references import function_named, imported
from icgd_papers.training.run_config import model_of, task_of, train_config
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import CausalTask, Curriculum, InContextTask

TEXT = """
folder = "results/first"
[data]
labels = "exp"
n_examples = 14
spectrum = [1, 0.25]
[training]
n_steps = 5
learning_rate = 1
"""

SMALL = {"n_steps": 3, "batch_size": 4, "log_every": 1, "n_examples": 3, "input_width": 2}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path():
    path = Path("sub/run.toml")
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


# Reading and writing


def test_a_file_gives_its_values_and_defaults_the_rest(path):
    config = read_config(path)
    assert config.data.labels == "exp"
    assert config.data.spectrum == (1.0, 0.25)
    assert config.training == Settings(n_steps=5, learning_rate=1.0)
    assert config.model.kernels == ("linear",)
    assert Path(config.folder) == Path("sub/results/first")
    path.write_text("")
    assert read_config(path) == replace(Config(), folder="sub/run")


def test_options_replace_what_the_file_says(path):
    options = {"n_steps": 9, "kernels": "exp,relu", "labels": None, "folder": "elsewhere"}
    config = read_config(path, {**options, "spectrum": "2,3.5"})
    assert config.training.n_steps == 9
    assert config.model.kernels == ("exp", "relu")
    assert config.data.labels == "exp"
    assert config.data.spectrum == (2.0, 3.5)
    assert config.folder == "elsewhere"
    assert read_config(path, {"spectrum": ""}).data.spectrum == ()


def test_the_text_reads_back_and_explains_every_key(path):
    config = read_config(path)
    again = Path("sub/again.toml")
    again.write_text(config.text(again.parent))
    assert read_config(again) == config
    for name, key in KEYS.items():
        pattern = rf"^# {re.escape(key.text)}\n(# )?{name} ="
        assert re.search(pattern, again.read_text(), re.M), name
        assert key.text.endswith((".", "..."))
    assert tomllib.loads(again.read_text())["training"]["learning_rate"] == 1.0


def test_texts_and_numbers_of_every_kind_read_back(path):
    strange = "caf\u00e9 \U0001f600 \x7f \t \"'\\ run"
    config = read_config(path, {"labels": strange, "spectrum": [inf, -inf, 1e300, 0.1, 5e-324]})
    again = Path("sub/again.toml")
    again.write_text(config.text(again.parent), encoding="utf-8-sig")  # a byte order mark is fine
    assert read_config(again) == config
    again.write_text(read_config(path, {"validation_share": nan, "tasks": "t.csv"}).text(Path()))
    assert isnan(read_config(again).data.validation_share)


def test_paths_are_relative_to_the_file_that_names_them(path):
    Path("mine.py").touch()
    Path("sub/other.py").touch()
    path.write_text('imports = ["other", "math", "package.pyramids"]\n')
    config = read_config(path, {"tasks": "tasks.csv", "generator": "mine.py:draw"})
    assert config.imports == ("sub/other.py", "math", "package.pyramids")
    text = config.text(Path(config.folder))
    assert 'folder = "."' in text
    assert 'tasks = "../../tasks.csv"' in text
    assert 'generator = "../../mine.py:draw"' in text
    assert 'imports = ["../other.py", "math", "package.pyramids"]' in text


def test_a_path_is_found_from_a_folder_that_is_a_link():
    """The parent of a linked folder is the parent of what it links to."""
    Path("far/store").mkdir(parents=True)
    Path("run").symlink_to(Path("far/store").resolve())
    text = read_config(None, {"tasks": "t.csv"}).text(Path("run"))
    assert 'tasks = "../../t.csv"' in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nn_stepz = 3\n", "Unknown key 'n_stepz' in run.toml [training]; known are n_"),
        ("[training]\nn_stepz = 3\n", "Did you mean 'n_steps'?"),
        ("folders = 'a'\n", "Unknown key 'folders' in run.toml; known are folder, imports, call"),
        ("[trainning]\n", "Unknown section '[trainning]' in run.toml; known are [data], [model]"),
        ("[training]\nn_steps = '3'\n", "n_steps must be a whole number, got '3'"),
        ("[training]\nn_steps = true\n", "n_steps must be a whole number, got True"),
        ("[training]\nn_steps = 0\n", "n_steps must be a whole number of at least 1, got 0"),
        ("[training]\nautocast = 'yes'\n", "autocast must be true or false, got 'yes'"),
        ("[data]\nspectrum = 3\n", "spectrum must be a list, each entry a number, got 3"),
        ("[data]\nspectrum = '1,x'\n", "spectrum must be a number, got 'x'"),
        ("[data]\nlabels = 3\n", "labels must be a text, got 3"),
        (
            '[data]\nlabels = "b\\u0000"\n',
            r"labels must be a text that can be written, got 'b\x00'",
        ),
        ("[training\n", "Cannot read run.toml: Expected ']'"),
        (f"a = {'[' * 5000}", "Cannot read run.toml: it is nested too deeply"),
        ("folder = ''\n", "folder must be the name of a file or folder, got ''"),
        ("[model]\nn_blocks = 2\n", "n_blocks has no effect without kind='decoder'; give both or"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text, message):
    Path("run.toml").write_text(text)
    with pytest.raises(IcgdError, match=re.escape(message)):
        read_config("run.toml")


def test_a_missing_file_a_device_and_an_unknown_option_are_named():
    with pytest.raises(DataError, match=r"Cannot read none\.toml: No such file"):
        read_config("none.toml")
    with pytest.raises(DataError, match="Cannot read /dev/null: it is a device or a pipe; a file"):
        read_config("/dev/null")
    with pytest.raises(IcgdError, match=r"Unknown key 'steps'; .*Did you mean 'n_steps'\?"):
        read_config(None, {"steps": 3})


# From a config to a trained model


def test_a_config_trains_what_python_trains():
    """The same laws, model and settings, written out."""
    options = {**SMALL, "inputs": "ellipsoid", "spectrum": "1,4", "labels": "exp"}
    options |= {"kernels": "exp", "n_layers": 2, "model_seed": 3, "seed": 5}
    trained = train_config(read_config(None, options))
    covariates = Ellipsoid(torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)))
    machine = trained.task.labels.machine
    task = InContextTask(covariates, KernelProcess(machine, covariates.whitening), 3)
    model = KernelTransformer(2, 2, ("exp",), transforms_covariates=False, seed=3)
    log = train(model, task, Settings(3, 4, 0.01, seed=5, log_every=1))
    assert trained.log == log
    assert torch.equal(trained.model.B, model.B)
    assert machine.heads[0].kernel == "exp"


DECODER = {**SMALL, "kind": "decoder", "n_blocks": 1, "width": 8, "n_heads": 2, "model_seed": 3}


def test_a_config_trains_a_decoder_on_teachers_as_python_does():
    options = {**DECODER, "attention": "relu", "tokens": "interleaved", "n_positions": 7}
    options |= {"inputs": "shifted-mixture", "weights": "0.7,0.3", "labels": "teachers"}
    options |= {"teacher_layers": 2, "hidden_width": 4, "teacher_mean": 0.5, "every_token": True}
    options |= {"curriculum_batches": 2, "first_width": 1}
    trained = train_config(read_config(None, options))
    inputs = ShiftedMixture(torch.eye(2, dtype=torch.float64), (0.7, 0.3))
    labels = Teachers(2, 4, 0.5, whitening=inputs.whitening)
    task = CausalTask(InContextTask(inputs, labels, 3), Curriculum(1, 3, 2))
    sizes = {"input_width": 2, "n_blocks": 1, "width": 8, "n_heads": 2, "seed": 3}
    model = Decoder(**sizes, attention="relu", tokens="interleaved", n_positions=7)
    log = train(model, task, Settings(3, 4, 0.01, log_every=1))
    assert trained.log == log
    assert trained.task.description() == task.description()
    assert torch.equal(trained.model.qkv, model.qkv)
    assert torch.equal(load("run").qkv, model.qkv)


def test_a_decoder_learns_labels_of_several_entries_and_the_query_alone():
    trained = train_config(read_config(None, {**DECODER, "output_width": 2}))
    assert isinstance(trained.task, InContextTask)
    assert trained.model.output_width == 2


def test_labels_may_be_vectors_and_may_be_averaged():
    task = task_of(read_config(None, {"output_width": 3, "n_examples": 4}))
    assert task.sample(2, seed=0, index=0).y.shape == (2, 5, 3)
    averaged = task_of(read_config(None, {"average_labels": True}))
    assert isinstance(averaged, AveragedTask)


def test_the_folder_holds_a_config_that_resumes_it():
    Path("run.toml").write_text('folder = "out"\n[training]\nn_steps = 3\nbatch_size = 4\n')
    first = train_config("run.toml")
    assert train_config("out/config.toml").log == first.log
    assert sorted(path.name for path in Path("out").iterdir()) == [
        ".lock",
        "checkpoint-000000000.safetensors",
        "checkpoint-000000003.safetensors",
        "config.toml",
        "log.csv",
        "log.json",
    ]
    with pytest.raises(CheckpointError, match=r"its settings\.seed is 0, here it is 1"):
        train_config("run.toml", {"seed": 1})


OWN = """
import icgd
import torch
from torch import nn

icgd.register_kernel("own", lambda u, w: torch.exp(-torch.cdist(u, w)))


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, y):
        return self.scale * y[:, :-1].mean(1)


class Rows:
    seen = []

    def __init__(self, folder):
        self.seen.append(str(folder))

    def on_row(self, step, row):
        self.seen.append(step)

    def on_end(self):
        self.seen.append("end")


def draw(n_tasks, generator):
    x = generator.standard_normal((n_tasks, 4, 2))
    return x, x.sum(-1)


def number():
    return 3
"""


def test_own_data_models_kernels_and_callbacks_stand_in_files_beside_the_config():
    """A module needs no .py, and the run resumes from its own folder."""
    Path("mine.py").write_text(OWN)
    Path("run.toml").write_text(
        'imports = ["mine"]\ncallbacks = ["mine:Rows"]\n[data]\ngenerator = "mine:draw"\n'
        '[model]\nkernels = ["own"]\n[training]\nn_steps = 2\nbatch_size = 4\n'
    )
    first = train_config("run.toml")
    assert first.model.input_width == 2
    assert 'generator = "../mine.py:draw"' in Path("run/config.toml").read_text()
    assert train_config("run/config.toml").log == first.log
    assert imported("mine.py").Rows.seen == ["run", 0, 2, "end", "run", "end"]
    trained = train_config(
        "run.toml", {"factory": "mine.py:Mean", "kernels": "linear", "folder": "other"}
    )
    batch = trained.task.sample(4, seed=0, index=0)
    expected = (batch.y[:, :-1].mean(1) - batch.y[:, -1]).square().mean().item()
    assert trained.log.rows[0]["loss"] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(SettingError, match=r"result of .*:number must be a torch module, got 3"):
        train_config("run.toml", {"factory": "mine.py:number", "folder": "third"})
    assert not Path("third").exists()


def test_a_table_of_tasks_is_read_beside_the_config():
    rows = [f"{task},{x},{2 * x}" for task in range(20) for x in (task, task + 1, task - 1)]
    Path("tasks.csv").write_text("task,x,y\n" + "\n".join(rows) + "\n")
    config = read_config(None, {"tasks": "tasks.csv", "validation_share": 0.25})
    task = task_of(config)
    assert (len(task.x), task.n_held_out) == (20, 5)
    assert model_of(config, task).input_width == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "uniform"}, "Unknown law of inputs 'uniform'; known are gaussian, ellipsoid"),
        ({"inputs": "shifted"}, "Did you mean 'shifted-mixture'?"),
        ({"labels": "expo"}, "Unknown law of labels 'expo'; known are linear, relu-network,"),
        ({"labels": "teacher"}, "Did you mean 'teachers'?"),
        ({"labels": "softmax"}, "softmax"),
        ({"spectrum": "1,2"}, "spectrum has 2 entries; expected 3, one for each input"),
        ({"kernels": "expp"}, "Unknown kernel 'expp'"),
        ({"kind": "decodr"}, "Unknown kind of model 'decodr'; known are kernel-transformer, decod"),
        ({"kind": "decoder", "attention": "soft"}, "Did you mean 'softmax'?"),
        ({"tasks": "a.csv", "generator": "a.py:b"}, "Give either tasks or generator, not both."),
        ({"tasks": "a.csv"}, "Cannot read a.csv: No such file"),
        ({"generator": "a.py:b"}, "a.py cannot be imported (FileNotFoundError"),
        ({"callbacks": "tensorbord"}, "'tensorbord' does not name a function"),
        ({"device": "cuda:7"}, "device='cuda:7' cannot be used here"),
        ({"device": "gpu"}, "Unknown device 'gpu'"),
        ({"model_seed": -1}, "model_seed must be a whole number of at least 0, got -1"),
        ({"kind": "decoder", "n_layers": 2}, "n_layers has no effect without kind='kernel-trans"),
        ({"weights": "0.5,0.5"}, "weights has no effect without inputs='shifted-mixture'"),
        ({"n_clusters": 3}, "n_clusters has no effect without inputs='mixture'"),
        ({"hidden_width": 3}, "hidden_width has no effect without labels='relu-network' or 'teach"),
        ({"teacher_mean": 0.5}, "teacher_mean has no effect without labels='teachers'"),
        ({"shuffle_tokens": True}, "shuffle_tokens has no effect without tasks; give both or neit"),
        ({"curriculum_batches": 5}, "curriculum_batches has no effect without every_token=True"),
        ({"first_width": 1}, "first_width has no effect without curriculum_batches"),
        ({"average_labels": True, "every_token": True}, "either average_labels or every_token"),
        ({"kind": "decoder", "n_positions": 3}, "3 examples and a query takes 4 places; the deco"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(options, message):
    with pytest.raises(IcgdError, match=re.escape(message)):
        train_config(read_config(None, {**SMALL, **({"input_width": 3} | options)}))
    assert not Path("run").exists()


# Names of the user's own functions


def test_a_function_is_found_in_a_file_and_in_a_module(tmp_path):
    Path("mine.py").write_text("COUNT = []\n\ndef draw():\n    COUNT.append(1)\n    return 7\n")
    assert function_named("mine.py:draw")() == 7
    assert function_named(f"{tmp_path}/mine.py:draw")() == 7
    assert imported("mine.py").COUNT == [1, 1]  # the file was run once
    assert function_named("math:sqrt")(9) == 3


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mine.py", "'mine.py' does not name a function; expected a file or a module, a colon and"),
        ("mine.py:", "does not name a function"),
        ("mine.py:drew", "mine.py has no function called 'drew'. Did you mean 'draw'?"),
        ("none.py:draw", "none.py cannot be imported (FileNotFoundError:"),
        ("no_such_module_here:draw", "no_such_module_here cannot be imported (ModuleNotFoundError"),
        ("broken.py:draw", "broken.py cannot be imported (ZeroDivisionError: division by zero)."),
    ],
)
def test_what_cannot_be_found_is_said(reference, message):
    Path("mine.py").write_text("def draw(): ...\n")
    Path("broken.py").write_text("1 / 0\n")
    with pytest.raises(OwnCodeError, match=re.escape(message)):
        function_named(reference)
