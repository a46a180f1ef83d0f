"""cot-network: what it refuses, how it routes, and the accuracy that the theorem asks for."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from icgd.backends.chain import run_chain
from icgd.constructions.base import Precision
from icgd.constructions.cot_network import BACKWARD, FORWARD, FROM_X, FROM_Y
from icgd.problems import reference
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.mlp import MLP
from icgd.problems.problem import Domain, Problem
from icgd.problems.task import as_task
from icgd.problems.updates import FunctionalStep, GradientStep
from icgd.program.chain_instructions import MarkFlat
from tests.backends.chain_cases import COT_NETWORK, problem_of, program_of

PROBLEM = problem_of(MLP((3, 4, 4, 2), "relu"))
KERNEL = Problem(KernelMachine(3), "squared", FunctionalStep(0.1), Domain(1.0, 1.0))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (PROBLEM, None),
        (KERNEL, "it trains the weights of a network, not the function of a kernel."),
        (
            replace(PROBLEM, update=GradientStep(0.1, 3.0)),
            "its blocks have a column for each example of a round; give batch_size=1 for one "
            "example a round, or the number of all examples for all of them.",
        ),
        (
            replace(PROBLEM, loss="logistic"),
            "the slope of its loss is 2 (o - y), not that of the logistic loss.",
        ),
        (
            replace(PROBLEM, target=MLP((2, 3, 1), "relu", "tanh")),
            "its MLP layers evaluate relu, leaky_relu, identity exactly, and tanh is none of them.",
        ),
        (
            replace(PROBLEM, target=MLP((2, 3, 1), "relu", "leaky_relu")),
            "all layers share a block with one kinked activation, not relu and leaky_relu.",
        ),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(problem, reason):
    assert COT_NETWORK.why_not(problem) == reason


def test_every_gate_is_open_on_its_own_kind_of_step_alone():
    pairs = [("forward", "backward"), ("backward", "forward"), ("backward", "data")]
    pairs.append(("forward", "data"))
    gates = (FORWARD, BACKWARD, FROM_X, FROM_Y)
    for (number, (near, far)), (own, gate) in product(enumerate(pairs), enumerate(gates)):
        flags = {f"near.is_{near}", f"far.is_{far}"}
        assert bool(flags & set(gate)) == (own != number)


def test_the_block_has_three_layers_whatever_the_depth():
    deep = program_of(problem_of(MLP((4,) * 10, "relu")))
    shallow = program_of(problem_of(MLP((4, 4, 4), "relu")))
    assert [layer.kind.value for layer in deep.layers] == ["mlp", "softmax", "mlp"]
    assert deep.layout == shallow.layout
    assert deep.rows.width == 4 * 4 + 3 * 4 + 5
    assert (deep.n_blocks, shallow.n_blocks) == (72, 16)


def test_the_kink_is_as_narrow_as_asked_or_narrower():
    def width(kink_width: float) -> float:
        precision = Precision(kink_width=kink_width)
        program = COT_NETWORK.build(PROBLEM, n_steps=1, precision=precision)
        (mark,) = (p for p in program.layers[2].instructions if isinstance(p, MarkFlat))
        return mark.width

    assert width(2.0**-13) == 2.0**-30
    assert width(2.0**-50) == 2.0**-50


def run_of(depth: int, width: int, n_rounds: int, backend: str) -> tuple[float, float]:
    """Largest difference from exact descent, and how far descent itself goes."""
    target = MLP((width,) * (depth + 1), "relu")
    problem = Problem(target, "squared", GradientStep(0.05, 10.0, 1), Domain(4.0, 4.0))
    generator = torch.Generator().manual_seed(depth)
    x, y = (
        torch.randn(n_rounds, width, generator=generator).double().clamp(-4, 4) for _ in range(2)
    )
    task = as_task(problem, x, y, seed=0)
    ours = run_chain(program_of(problem, n_rounds), task, backend=backend).parameters
    real = reference.train(problem, task.initial, x, y, n_rounds)
    return float((ours - real).abs().max()), float((real[-1] - real[0]).abs().max())


SIZES = [(3, 5, 20), (6, 5, 20), (9, 10, 20), (4, 8, 200)]


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_fused_chains_are_exact_to_rounding(size):
    error, moved = run_of(*size, "fused")
    assert error <= 1e-13
    assert moved > 1e-2


@pytest.mark.parametrize(
    "size",
    [SIZES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[1:])],
    ids=str,
)
def test_dense_chains_are_exact_to_1e8(size):
    assert run_of(*size, "dense")[0] <= 1e-8
