"""Values of the wrong kind, in a process of its own, because the tests' type checker stops them."""

import json
import subprocess
import sys

SCRIPT = """
import json, numpy as np, torch, icgd
from icgd.problems.kernel_machine import KernelHead
from torch import nn
from torch.optim import SGD

model = nn.Sequential(nn.Linear(2, 1))
target, update = icgd.MLP((2, 1)), icgd.GradientStep(0.1, 1.0)
problem = icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0))
compiled = icgd.compile(problem, "relu-stack", n_steps=1)
X, y = np.ones((3, 2)), np.ones(3)
calls = {
    "class": lambda: icgd.compile(problem, icgd.ReluStack, n_steps=1),
    "verify": lambda: icgd.verify("run", X, y),
    "guarantee": lambda: icgd.guarantee("run", X, y),
    "task": lambda: icgd.compile(problem, n_steps=1, tolerance=1.0, task="mine"),
    "trace": lambda: compiled.run(X, y, trace=[1]),
    "trace none": lambda: compiled.run(X, y, trace=None),
    "causal": lambda: icgd.run_causal(compiled, compiled.task(X, y)),
    "problem": lambda: icgd.as_task("mine", X, y),
    "sized": lambda: icgd.sized_problem("mine", X),
    "spectrum": lambda: icgd.spectrum("rbf", X),
    "head": lambda: icgd.KernelMachine(3, 1),
    "transform": lambda: KernelHead(transform=10**400),
    "widths": lambda: icgd.MLP(torch.tensor(0.5)),
    "shortcuts": lambda: icgd.MLP((2, 2), shortcuts=3),
    "flat shortcut": lambda: icgd.MLP((2, 2), shortcuts=(0, 1)),
    "long shortcut": lambda: icgd.MLP((2, 2), shortcuts=((0, 1, 1),)),
    "norms": lambda: icgd.MLP((2, 2), norms=1),
    "name of a norm": lambda: icgd.MLP((2, 2), norms=("last",)),
    "norm_eps": lambda: icgd.MLP((2, 2), norms=[1], norm_eps="small"),
    "step size": lambda: icgd.GradientStep("0.1", 1.0),
    "table of step sizes": lambda: icgd.GradientStep([[0.1, 0.2]], 1.0),
    "one beta": lambda: icgd.AdamStep(0.1, 1.0, betas=0.9),
    "three betas": lambda: icgd.AdamStep(0.1, 1.0, betas=(0.9, 0.9, 0.9)),
    "average": lambda: icgd.GradientStep(0.1, 1.0, average="much"),
    "nesterov": lambda: icgd.MomentumStep(0.1, 1.0, nesterov=1),
    "class of a loss": lambda: icgd.from_torch(
        model, nn.MSELoss, SGD(model.parameters(), lr=0.1), domain=icgd.Domain(1.0, 1.0)
    ),
    "no model": lambda: icgd.from_torch(
        None, nn.MSELoss(), SGD(model.parameters(), lr=0.1), domain=icgd.Domain(1.0, 1.0)
    ),
    "initial": lambda: icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0), 0.5),
    "initial text": lambda: icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0), "ab"),
}
found = {}
for name, call in calls.items():
    try:
        call()
        found[name] = "no error"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
numpy_scalars = [
    icgd.ReluStack(pieces=np.int64(8), kink_width=np.float32(0.5)),
    icgd.SoftmaxStack(registers=np.int64(64), kink_width=np.float32(0.5)),
    icgd.Recursion(units=np.int64(64), kink_width=np.float32(0.5)),
    icgd.Universal(np.int64(3), np.int64(2), np.float32(2.0**-10)),
    icgd.CotNetwork(kink_width=np.float32(2.0**-10)),
    icgd.GradientStep(np.array([0.5, 0.25]), np.int64(2), np.int32(3), average=np.float32(0.5)),
    icgd.GradientStep([np.float32(0.5), 0.25], 2.0),
    icgd.AdamStep(torch.tensor([0.5]), 2.0, betas=torch.tensor([0.5, 0.75], dtype=torch.float64)),
]
start = icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0), np.array([0.5, 0.25]))
found["start"] = repr(start.initial)
steps = icgd.compile(problem, "relu-stack", n_steps=np.int64(2)).program.n_steps
found["numpy"] = [repr(construction) for construction in numpy_scalars] + [type(steps).__name__]
print(json.dumps(found))
"""


def test_values_of_the_wrong_kind_are_named_and_numpy_scalars_become_plain_numbers():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    scalars = found.pop("numpy")
    assert found.pop("start") == "(0.5, 0.25)"
    starts = {
        "class": "ConstructionError: construction is the class ReluStack; an object of it is",
        "verify": "SettingError: compiled must be of type Compiled, got 'run'",
        "guarantee": "SettingError: compiled must be of type Compiled, got 'run'",
        "task": "SettingError: task must be of type Task, got 'mine'",
        "trace": "LayoutError: Layout has no slot 1; it has x, y",
        "trace none": "LayoutError: Layout has no slot None; it has x, y",
        "causal": "ProgramError: A causal mask needs a program of type StackProgram, got one of",
        "problem": "SettingError: problem must be of type Problem, got 'mine'",
        "sized": "SettingError: problem must be of type Problem, got 'mine'",
        "spectrum": "SettingError: machine must be of type KernelMachine, got 'rbf'",
        "head": "SettingError: head must be of type KernelHead, got 1",
        "transform": "SettingError: transform must be a matrix of numbers, got 1000",
        "widths": "SettingError: width",
        "shortcuts": "SettingError: shortcuts must be a row of pairs of layers, such as ((0, 2),)",
        "flat shortcut": "SettingError: shortcuts must be a row of pairs of layers, such as ((0",
        "long shortcut": "SettingError: a shortcut has 3 entries; expected 2, such as (0, 2).",
        "norms": "SettingError: norms must be a row of layers, such as (2,), got 1.",
        "name of a norm": "SettingError: a layer in norms must be a whole number of at least 1, g",
        "norm_eps": "SettingError: norm_eps must be a positive finite number, got 'small'.",
        "step size": "SettingError: step_size must be a positive finite number, got '0.1'.",
        "table of step sizes": "SettingError: step_size must be a finite number that is not neg",
        "one beta": "SettingError: betas has 1 entries; expected 2, one for each moment.",
        "three betas": "SettingError: betas has 3 entries; expected 2, one for each moment.",
        "average": "SettingError: average must be a number from 0 to below 1, got 'much'.",
        "nesterov": "SettingError: nesterov must be of type bool, got 1.",
        "class of a loss": "UnreadableError: loss is the class MSELoss, which is not read.",
        "no model": "UnreadableError: model is NoneType, which is not read. It may be Linear, ",
        "initial": "SettingError: initial must be a row of numbers, got 0.5.",
        "initial text": "SettingError: initial must be a row of numbers, got 'ab'.",
    }
    assert found.keys() == starts.keys()
    for name, start in starts.items():
        assert found[name].startswith(start), found[name]
    assert not any("np." in text for text in scalars)
    assert scalars[0] == "ReluStack(pieces=8, kink_width=0.5)"
    assert scalars[5] == "GradientStep(step_size=(0.5, 0.25), box=2.0, batch_size=3, average=0.5)"
    assert (
        scalars[6] == "GradientStep(step_size=(0.5, 0.25), box=2.0, batch_size=None, average=None)"
    )
    assert (
        "step_size=(0.5,), box=2.0, batch_size=None, average=None, betas=(0.5, 0.75)" in scalars[7]
    )
    assert scalars[-1] == "int"
