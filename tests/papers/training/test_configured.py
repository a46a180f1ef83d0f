import json
import re
from pathlib import Path

import pytest
import torch

from icgd.errors import CheckpointError, IcgdError, SettingError
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.causal_task import CausalTask, Curriculum
from icgd_papers.training.config import read_config
from icgd_papers.training.configured import model_of, task_of, train_config
from icgd_papers.training.covariates import Ellipsoid, ShiftedMixture
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.loading import load
from icgd_papers.training.loop import train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import InContextTask
from icgd_papers.training.teachers import Teachers

SMALL = {"n_steps": 3, "batch_size": 4, "log_every": 1, "n_examples": 3, "input_width": 2}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


def test_the_folder_holds_a_config_that_goes_on_with_it():
    Path("run.toml").write_text('folder = "out"\n[training]\nn_steps = 3\nbatch_size = 4\n')
    first = train_config("run.toml")
    again = train_config("out/config.toml")
    assert again.log == first.log
    assert sorted(path.name for path in Path("out").iterdir() if path.is_file()) == [
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


def make():
    return Mean()


def draw(n_tasks, generator):
    x = generator.standard_normal((n_tasks, 4, 2))
    return x, x.sum(-1)


def number():
    return 3
"""


def test_own_data_models_and_kernels_stand_in_files_beside_the_config():
    Path("mine.py").write_text(OWN)
    Path("run.toml").write_text(
        'imports = ["mine.py"]\n[data]\ngenerator = "mine.py:draw"\n[model]\nkernels = ["own"]\n'
        "[training]\nn_steps = 2\nbatch_size = 4\n"
    )
    assert train_config("run.toml").model.input_width == 2
    trained = train_config("run.toml", {"factory": "mine.py:make", "folder": "other"})
    assert type(trained.model).__name__ == "Mean"
    x = trained.task.sample(4, seed=0, index=0)
    expected = (x.y[:, :-1].mean(1) - x.y[:, -1]).square().mean().item()
    assert trained.log.rows[0]["loss"] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(
        SettingError, match=r"The result of .*:number must be a torch module, got 3"
    ):
        train_config("run.toml", {"factory": "mine.py:number", "folder": "third"})
    assert not Path("third").exists()


def test_a_module_beside_the_config_needs_no_py_and_the_run_goes_on_from_its_folder():
    Path("mine.py").write_text(OWN)
    Path("run.toml").write_text(
        'imports = ["mine"]\n[data]\ngenerator = "mine:draw"\n[model]\nkernels = ["own"]\n'
        "[training]\nn_steps = 2\nbatch_size = 4\n"
    )
    first = train_config("run.toml").log
    assert 'generator = "../mine.py:draw"' in Path("run/config.toml").read_text()
    assert train_config("run/config.toml").log == first


def test_a_table_of_tasks_is_read_beside_the_config():
    rows = [f"{task},{x},{2 * x}" for task in range(20) for x in (task, task + 1, task - 1)]
    Path("tasks.csv").write_text("task,x,y\n" + "\n".join(rows) + "\n")
    config = read_config(None, {"tasks": "tasks.csv", "validation_share": 0.25})
    task = task_of(config)
    assert (len(task.x), task.n_held_out) == (20, 5)
    assert model_of(config, task).input_width == 1


def test_labels_may_be_vectors_and_may_be_averaged():
    task = task_of(read_config(None, {"output_width": 3, "n_examples": 4}))
    assert task.sample(2, seed=0, index=0).y.shape == (2, 5, 3)
    averaged = task_of(read_config(None, {"average_labels": True}))
    assert isinstance(averaged, AveragedTask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "uniform"}, "Unknown law of inputs 'uniform'; known are gaussian, ellipsoid"),
        ({"labels": "expo"}, "Unknown law of labels 'expo'; known are linear, relu-network,"),
        ({"labels": "softmax"}, "softmax"),
        ({"spectrum": "1,2"}, "spectrum"),
        ({"kernels": "expp"}, "Unknown kernel 'expp'"),
        ({"tasks": "a.csv", "generator": "a.py:b"}, "Give either tasks or generator, not both."),
        ({"tasks": "a.csv"}, "Cannot read a.csv: No such file"),
        ({"generator": "a.py:b"}, "a.py cannot be imported (FileNotFoundError"),
        ({"device": "cuda:7"}, "device='cuda:7' is not there: torch finds cpu"),
        ({"device": "gpu"}, "Unknown device 'gpu'"),
        ({"n_steps": 0}, "n_steps must be a whole number of at least 1, got 0"),
        ({"model_seed": -1}, "model_seed must be a whole number of at least 0, got -1"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(options, message):
    with pytest.raises(IcgdError, match=re.escape(message)):
        train_config(read_config(None, {**SMALL, **({"input_width": 3} | options)}))
    assert not Path("run").exists()


def test_the_log_is_plain_json():
    train_config(read_config(None, SMALL))
    rows = json.loads(Path("run/log.json").read_text())
    assert [row["step"] for row in rows] == [0, 1, 2, 3]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_blocks": 2}, "n_blocks has no effect without kind='decoder'; give both or neither."),
        ({"tokens": "interleaved"}, "tokens has no effect without kind='decoder'"),
        ({"kind": "decoder", "n_layers": 2}, "n_layers has no effect without kind='kernel-trans"),
        ({"weights": "0.5,0.5"}, "weights has no effect without inputs='shifted-mixture'"),
        ({"teacher_mean": 0.5}, "teacher_mean has no effect without labels='teachers'"),
        ({"curriculum_batches": 5}, "curriculum_batches has no effect without every_token=True"),
        ({"first_width": 1}, "first_width has no effect without curriculum_batches"),
        ({"average_labels": True, "every_token": True}, "either average_labels or every_token"),
        ({"kind": "decodr"}, "Unknown kind of model 'decodr'; known are kernel-transformer, decod"),
        ({"kind": "decoder", "attention": "soft"}, "Did you mean 'softmax'?"),
        ({"labels": "teacher"}, "Did you mean 'teachers'?"),
        ({"inputs": "shifted"}, "Did you mean 'shifted-mixture'?"),
        ({"kind": "decoder", "n_positions": 3}, "3 examples and a query takes 4 places; the deco"),
    ],
)
def test_keys_without_effect_and_unknown_names_are_refused_before_training(options, message):
    with pytest.raises(IcgdError, match=re.escape(message)):
        train_config(read_config(None, {**SMALL, **options}))
    assert not Path("run").exists()
