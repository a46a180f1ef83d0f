"""How the error of a whole training run falls with the size of what approximates its functions.

Five steps of a 3-4-4-2 tanh network on six examples: softmax-stack with more and more registers,
the same transformer with the published nearest-token look-up in place of the lattice, and
relu-stack with more and more pieces; beside them the rates that the papers give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from icgd.approximation.lattice import nearest_point
from icgd.compiled import Compiled
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, RED, Axes, Figure
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.functions import SmoothFunction, function_named
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.functions import Function, LatticeFunction

PROBLEM = Problem(
    MLP((3, 4, 4, 2), "tanh"), "squared", GradientStep(0.3, box=1.0), Domain(x=2.0, y=2.0)
)
N_STEPS, N_EXAMPLES = 5, 6


@dataclass(frozen=True)
class Sizes:
    """Numbers of registers or pieces that are tried."""

    lattice: tuple[int, ...] = tuple(range(32, 112, 4))
    nearest: tuple[int, ...] = (32, 64, 128, 256, 512)
    pieces: tuple[int, ...] = tuple(2**power for power in range(3, 13))


@dataclass(frozen=True)
class Curve:
    """Largest error of a weight after the last step, for every size.

    The lattices of the first `n_flat` sizes end where tanh is flat; the others cover the domain.
    """

    name: str
    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    n_flat: int = 0

    def parts(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Sizes and errors of those that end early, then of the others; a curve joins neither."""
        cuts = (slice(0, self.n_flat), slice(self.n_flat, None))
        return [(self.sizes[cut], self.errors[cut]) for cut in cuts if self.sizes[cut]]


@dataclass(frozen=True)
class Result:
    """The three measured curves, and how far training moved a weight."""

    lattice: Curve
    nearest: Curve
    pieces: Curve
    moved: float


def measure(sizes: Sizes = Sizes()) -> Result:  # noqa: B008 - a constant
    """Run everything; softmax-stack on the dense backend, where every head is computed."""
    task = _task()
    real = PROBLEM.oracle.train(task, N_STEPS)

    def curve(
        name: str, tried: Sequence[int], build: Callable[[int], Compiled], backend: str
    ) -> Curve:
        runs = [build(size) for size in tried]
        finals = [run.run_task(task, backend=backend).parameters[-1] for run in runs]
        errors = tuple(float((final - real[-1]).abs().max()) for final in finals)
        return Curve(name, tuple(tried), errors, sum(map(_ends_early, runs)))

    return Result(
        lattice=curve("softmax-stack, registers", sizes.lattice, _softmax_stack, "dense"),
        nearest=curve("nearest token, registers", sizes.nearest, _with_nearest_token, "dense"),
        pieces=curve("relu-stack, pieces", sizes.pieces, _relu_stack, "fused"),
        moved=float((real[-1] - real[0]).abs().max()),
    )


def _ends_early(compiled: Compiled) -> bool:
    """Whether the look-ups of activations end where these are flat, short of the domain."""
    return any(function.saturates for function in compiled.stack.lattice_functions)


def _task() -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N_EXAMPLES, 3, generator=generator, dtype=torch.float64).clamp(-2.0, 2.0)
    y = torch.rand(N_EXAMPLES, 2, generator=generator, dtype=torch.float64)
    return as_task(PROBLEM, x, y, seed=1)


def _softmax_stack(registers: int) -> Compiled:
    return compile(PROBLEM, n_steps=N_STEPS, construction="softmax-stack", registers=registers)


def _relu_stack(pieces: int) -> Compiled:
    return compile(PROBLEM, "relu-stack", n_steps=N_STEPS, pieces=pieces)


def _with_nearest_token(registers: int) -> Compiled:
    """softmax-stack whose activations are looked up in the published way; products stay."""
    compiled = _softmax_stack(registers)

    def published(function: Function) -> Function:
        real = function_named(function.name) if function.name != "square" else None
        if isinstance(function, LatticeFunction) and isinstance(real, SmoothFunction):
            return nearest_point(real, function.reach, len(function.values))
        return function

    functions = tuple(published(function) for function in compiled.stack.functions)
    return Compiled(PROBLEM, replace(compiled.stack, functions=functions))


def draw(result: Result) -> Figure:
    """Errors over sizes, both on logarithmic axes."""
    figure, (panel,) = plotting.new_figure(8.0, 5.2, 1)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    curves = ((result.lattice, BLUE), (result.nearest, RED), (result.pieces, ORANGE))
    for curve, colour in curves:
        for sizes, errors in curve.parts():
            panel.plot(sizes, errors, "o-", color=colour, markersize=4, linewidth=1.6)
    _rate(panel, result.pieces, -2.0, "pieces$^{-2}$")
    _rate(panel, result.pieces, -0.5, "pieces$^{-1/2}$ (wu)")
    _rate(panel, result.nearest, -1.0, "1 / registers (cot)")
    nearest, pieces, lattice = result.nearest, result.pieces, result.lattice
    plotting.note(panel, nearest.name, (1.1 * nearest.sizes[0], 2.5 * nearest.errors[0]), RED)
    left_of_end = (0.5 * pieces.sizes[-1], pieces.errors[-1])
    plotting.note(panel, pieces.name, left_of_end, ORANGE, ha="right")
    plotting.note(panel, lattice.name, (1.12 * lattice.sizes[-1], lattice.errors[-1]), BLUE)
    _explain_jump(panel, lattice)
    panel.set_ylim(top=8 * nearest.errors[0])
    panel.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    panel.set_xlim(left=0.6 * pieces.sizes[0], right=6 * pieces.sizes[-1])
    plotting.describe(
        panel,
        "With a softmax lattice the error falls exponentially",
        "registers or pieces",
        "largest error of a weight after 5 steps",
    )
    return figure


def _explain_jump(panel: Axes, lattice: Curve) -> None:
    """Say beside the two parts of the curve how they differ, if there are two."""
    if len(lattice.parts()) < 2:
        return
    (early, first), (late, second) = lattice.parts()
    at = (0.9 * early[len(early) // 2], first[len(early) // 2] / 2)
    plotting.tag(panel, "the lattice ends\nwhere tanh is flat", at, ha="right")
    plotting.tag(panel, "it covers\nthe domain", (1.12 * late[1], 2 * second[1]))


def _rate(panel: Axes, curve: Curve, power: float, name: str) -> None:
    """A line of the given slope through the curve's first point."""
    first, last = curve.sizes[0], curve.sizes[-1]
    ends = (curve.errors[0], curve.errors[0] * (last / first) ** power)
    panel.plot((first, last), ends, "--", color=FAINT, linewidth=1.0)
    plotting.tag(panel, name, (1.08 * last, ends[1]))
