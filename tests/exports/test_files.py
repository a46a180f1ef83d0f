"""Files with sparse weights, read without icgd."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import icgd
from icgd.backends.prompt import encode

FOLDER = Path(__file__).parents[2] / "docs" / "exports"
EXAMPLE, USE = re.findall(
    r"```python\n(.*?)```", (FOLDER / "files.md").read_text("utf-8"), flags=re.DOTALL
)
LOADER = (FOLDER / "run_file.py").read_text("utf-8")
DECODER = (FOLDER / "decode_chain.py").read_text("utf-8")

WITHOUT_ICGD = f"""
import sys
sys.modules["icgd"] = None
{LOADER}
from pathlib import Path
from safetensors.torch import load_file, save_file
for folder in sorted(path for path in Path().iterdir() if path.is_dir()):
    prompt = load_file(folder / "prompt.safetensors")["stream"]
    try:
        found = dict(enumerate(streams(str(folder / "run.safetensors"), prompt)))
    except NotImplementedError as error:
        (folder / "error.txt").write_text(str(error))
        continue
    save_file({{str(n): x.contiguous() for n, x in found.items()}}, folder / "streams.safetensors")
"""

STEP, DOMAIN = icgd.GradientStep(0.5, box=2.0), icgd.Domain(2.0, 2.0)
MOMENTUM = icgd.MomentumStep((0.5, 0.25), 2.0, batch_size=2)
NETWORK = icgd.Problem(icgd.MLP((2, 3, 3, 1), "tanh"), "squared", STEP, DOMAIN)
CLASSES = icgd.Problem(icgd.MLP((2, 3), biases=True), "cross_entropy", MOMENTUM, DOMAIN)
RUNS = {
    "relu-stack": (NETWORK, icgd.ReluStack(pieces=16)),
    "softmax-stack": (NETWORK, icgd.SoftmaxStack()),
    "a schedule": (CLASSES, icgd.ReluStack()),
    "recursion": (NETWORK, icgd.Recursion(units=32)),
    "recursion of sigmoids": (NETWORK, icgd.Recursion(units=32, unit_activation="sigmoid")),
    "recursion of gelu": (NETWORK, icgd.Recursion(units=32, unit_activation="gelu")),
    "recursion of elu": (NETWORK, icgd.Recursion(units=32, unit_activation="elu")),
}


def write(compiled, task, folder):
    compiled.save(folder / "run.safetensors", weights="sparse")
    save_file({"stream": encode(compiled.program, task)}, folder / "prompt.safetensors")


KERNEL = icgd.Problem(
    icgd.KernelMachine(2, "rbf"), "squared", icgd.FunctionalStep(0.1, noise=0.1), DOMAIN
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """All runs, and the folder in which one process without icgd loads them."""
    folder, runs = tmp_path_factory.mktemp("loaded"), {}
    for name, (problem, construction) in {**RUNS, "kernel": (KERNEL, None)}.items():
        compiled = icgd.compile(problem, construction, n_steps=2)
        x = torch.linspace(-1, 1, 10, dtype=torch.float64).view(5, 2)
        y = torch.arange(5) % 3 if problem is CLASSES else x.sin().sum(1)
        seed = None if problem is KERNEL else 0
        runs[name] = compiled, compiled.task(x, y, queries=x[:2], seed=seed)
        (folder / name).mkdir()
        write(*runs[name], folder / name)
    command = [sys.executable, "-c", WITHOUT_ICGD]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return folder, runs


@pytest.mark.parametrize("name", RUNS)
def test_the_loader_of_the_page_gives_every_stream_of_the_literal_run(name, loaded):
    folder, runs = loaded
    compiled, task = runs[name]
    found = load_file(folder / name / "streams.safetensors")
    layout = compiled.stack.layout
    trace = compiled.run_task(task, backend="literal", trace=True).trace
    assert trace.keys() == set(layout.names)
    expected = torch.cat([trace[name] for name in layout.names], dim=-1)
    assert len(found) == len(expected) - 1 == compiled.stack.n_layers
    loaded = torch.stack([found[str(number)] for number in range(len(found))])
    assert (loaded - expected[1:]).abs().max() <= 1e-11
    assert (expected[-1] - expected[0]).abs().max() > 0.1


def test_the_loader_is_short_and_runs_the_example_of_its_page(tmp_path, monkeypatch):
    assert len(LOADER.splitlines()) <= 70
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)
    names: dict[str, object] = {}
    exec(EXAMPLE, names)
    exec(USE, names)
    layout, literal = (
        names["compiled"].stack.layout,
        names["compiled"].run_task(names["task"], backend="literal"),
    )
    assert (names["final"][-2:, layout.range_of("y")] - literal.predictions).abs().max() <= 1e-12


DECODE = f"""
import sys
sys.modules["icgd"] = sys.modules["torch"] = None
{DECODER}
np.save("tokens.npy", decode("run.safetensors", np.load("prompt.npy")))
"""
CHAIN_STEP = icgd.GradientStep(0.5, box=2.0, batch_size=2)
CHAINS = {
    "relu": icgd.Problem(icgd.MLP((2, 3, 3, 1), "relu"), "squared", CHAIN_STEP, DOMAIN),
    "tanh": icgd.Problem(icgd.MLP((2, 3, 1), "tanh", biases=True), "huber", CHAIN_STEP, DOMAIN),
    "a schedule": icgd.Problem(icgd.MLP((2, 3, 3), "relu"), "cross_entropy", MOMENTUM, DOMAIN),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_decoder_of_the_page_generates_the_chain(name, tmp_path):
    """Numpy alone, from the weights of the file; the first prompt tokens are data."""
    compiled = icgd.compile(CHAINS[name], "cot-network", n_steps=2)
    x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(4, 2)
    y = torch.arange(4) % 3 if name == "a schedule" else x.sin().sum(1)
    compiled.save(tmp_path / "run.safetensors", weights="sparse")
    expected = icgd.decode(compiled, x, y, seed=0).tokens
    n_prompt = 2 * 2 + compiled.problem.network.depth
    np.save(tmp_path / "prompt.npy", expected[:n_prompt].numpy())
    done = subprocess.run(
        [sys.executable, "-c", DECODE], cwd=tmp_path, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    found = torch.from_numpy(np.load(tmp_path / "tokens.npy"))
    assert found.shape == expected.shape
    is_flat = [
        torch.full((slot.width,), slot.name == "flat") for slot in compiled.program.rows.slots
    ]
    is_flat = torch.cat(is_flat)
    assert (found - expected)[:, ~is_flat].abs().max() <= 1e-12
    # How flat a unit is was divided by the width of a kink.
    assert torch.equal(found[:, is_flat] >= 1, expected[:, is_flat] >= 1)
    assert (expected[-1] - expected[n_prompt - 1]).abs().max() > 1e-2
    assert len(DECODER.splitlines()) <= 85


def test_the_loader_names_a_kind_that_it_does_not_know(loaded):
    message = "block.0 is a layer of kind kernel, which has no rule here"
    assert (loaded[0] / "kernel" / "error.txt").read_text() == message


def test_what_a_file_says_of_kernels(tmp_path):
    compiled = icgd.compile(KERNEL, n_steps=1)
    compiled.save(tmp_path / "run.safetensors", weights="sparse")
    with safe_open(tmp_path / "run.safetensors", framework="pt") as file:
        layer = json.loads(file.metadata()["layers"])["layers"]["block.0"]
    assert layer["patterns"] == [{"kernel": "rbf", "shape": None}, {"itself": "examples"}]
    place = compiled.stack.layout.range_of("is_example").start
    assert layer["example_feature"] == place
