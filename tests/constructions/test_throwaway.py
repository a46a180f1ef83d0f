"""CONTRIBUTING's "Add a construction", followed literally by a construction that is thrown away.

It trains one linear layer by the squared loss, with instructions that exist.
"""

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, final

import pytest
import torch

import icgd
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.backends.registry import BACKENDS
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import UnsupportedProblemError
from icgd.problems.functions import IDENTITY_FUNCTION
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    Combination,
    MapSlots,
    Summand,
    WipeSlots,
)
from icgd.program.layout import IS_EXAMPLE, IS_QUERY, ONE, TOKENS_PER_EXAMPLE, Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from tests.cases import make_case
from tests.contracts.backend import STEP_TOLERANCE, BackendContract, proved_step_error

NAME = "identity"


@final
@dataclass(frozen=True)
class LinearStack(AbstractConstruction):
    """Descent on |W x - y|^2: predict, subtract the label, add the mean outer product, clip."""

    name: ClassVar[str] = "linear-stack"

    def objection(self, problem: Problem) -> str | None:
        network = problem.network
        if network.depth == 1 and network.output_activation == NAME and problem.loss == "squared":
            return None
        return "it trains one linear layer by the squared loss; relu-stack trains networks."

    def build(self, problem: Problem, n_steps: int, **_: Any) -> StackProgram:
        target, step = problem.network, problem.gradient_step
        outputs, inputs = target.output_width, target.input_width
        reach = step.box * problem.domain.x * inputs + problem.domain.y
        forward = Layer("forward", (ApplyUnits("weights", "x", NAME, "units"),))
        gap = Summand(Combination(("units", "y"), (1.0, -1.0)), NAME)
        copied = Summand(Combination.of("units"), NAME)
        gate = 4 * reach
        return StackProgram(
            construction=self.name,
            layout=Layout(
                (
                    Slot("x", (inputs,), Role.INPUT),
                    Slot("y", (outputs,), Role.LABEL),
                    Slot("weights", (outputs, inputs), Role.PARAMETER),
                    Slot("units", (outputs,), Role.SCRATCH),
                    Slot("gap", (outputs,), Role.SCRATCH),
                    *(
                        Slot(name, (1,), Role.CONSTANT)
                        for name in (ONE, IS_EXAMPLE, IS_QUERY, TOKENS_PER_EXAMPLE)
                    ),
                )
            ),
            functions=(fit_relu_sum(IDENTITY_FUNCTION, -reach, reach),),
            block=(
                forward,
                Layer("gap", (MapSlots((gap,), IS_EXAMPLE, (IS_QUERY,), gate, "gap"),)),
                Layer("step", (AccumulateOuterProduct("gap", "x", -step.step_size, "weights"),)),
                Layer(
                    "clip and wipe",
                    (ClipSlots(("weights",), step.box, ONE), WipeSlots(("units", "gap"))),
                ),
            ),
            n_steps=n_steps,
            prediction=(
                forward,
                Layer(
                    "copy",
                    (
                        MapSlots((copied,), IS_QUERY, (IS_EXAMPLE,), gate, "y"),
                        WipeSlots(("units",)),
                    ),
                ),
            ),
        )


LINEAR_STACK = LinearStack()
CASE = make_case(MLP((3, 2), "identity"), "squared")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Step 4: one line in the registry, here for the time of a test."""
    monkeypatch.setitem(CONSTRUCTIONS, LINEAR_STACK.name, LINEAR_STACK)


def compiled() -> icgd.Compiled:
    return icgd.compile(CASE.problem, construction="linear-stack", n_steps=3)


def contract_of(backend: str) -> BackendContract:
    contract = BackendContract()
    contract.make_backend = lambda: type(BACKENDS[backend])()  # type: ignore[method-assign]
    return contract


OWED = [
    name
    for name, test in vars(BackendContract).items()
    if name.startswith("test_") and "construction" in inspect.signature(test).parameters
]


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("owed", OWED)
def test_it_joins_the_contract_of_every_backend(owed, backend):
    getattr(contract_of(backend), owed)(LINEAR_STACK, CASE)


def test_the_contract_judges_a_construction_without_a_tolerance_by_what_is_proved():
    assert LINEAR_STACK not in STEP_TOLERANCE
    assert 0 < proved_step_error(LINEAR_STACK, CASE) < 1e-12


def test_it_is_compiled_and_verified_by_name():
    task = CASE.task()
    for backend in ("dense", "fused"):
        report = icgd.verify(compiled(), task.x, task.y, initial=task.initial, backend=backend)
        assert report.verdict.holds
        assert report.step_errors.max() <= report.step_bounds.max() < 1e-12


def test_it_is_saved_loaded_counted_and_listed(tmp_path):
    compiled().save(tmp_path / "linear.safetensors")
    loaded = icgd.load(tmp_path / "linear.safetensors")
    assert loaded == compiled()
    summary = loaded.summary()
    assert (summary.construction, summary.layers_per_step, summary.n_layers) == (
        "linear-stack",
        4,
        14,
    )
    assert loaded.listing() == LISTING


def test_what_it_cannot_serve_is_refused_with_a_construction_that_can():
    deep = make_case(MLP((3, 4, 2), "tanh"), "squared").problem
    with pytest.raises(UnsupportedProblemError, match="one linear layer by the squared loss"):
        icgd.compile(deep, construction="linear-stack", n_steps=3)


def test_a_run_is_real_gradient_descent():
    task = CASE.task()
    run = compiled().run_task(task)
    weights = task.initial.view(2, 3)
    step, box = CASE.problem.gradient_step.step_size, CASE.problem.gradient_step.box
    for _ in range(3):
        gap = task.x @ weights.mT - task.y
        weights = (weights - step * gap.mT @ task.x / task.n_examples).clamp(-box, box)
    assert torch.allclose(run.parameters[-1], weights.flatten(), rtol=0, atol=1e-13)


LISTING = """\
program linear-stack, 4 layers used 3 times, 2 to predict, d_model 19

slots
      0  x                    3         input
      3  y                    2         label
      5  weights              2 x 3     parameter
     11  units                2         scratch
     13  gap                  2         scratch
     15  one                  1         constant
     16  is_example           1         constant
     17  is_query             1         constant
     18  tokens_per_example   1         constant

functions
  identity     1 piece, 2 terms on [-20, 20], exact

block, 3 times
    1 attention  units = identity(weights @ x)
    2 mlp        gap = identity(+1 units -1 y) where is_example
    3 attention  weights += -0.5 * mean(gap (x) x)
    4 mlp        clip weights to [-3, 3]
                 wipe units, gap

prediction
    1 attention  units = identity(weights @ x)
    2 mlp        y = identity(units) where is_query
                 wipe units
"""
