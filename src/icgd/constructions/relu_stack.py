r"""relu-stack: ReLU attention, MLPs and product layers train an N-layer network.

wu, Theorem 1 and Theorem 5, corrected. Every token holds its example, all weights and scratch
space. One gradient step is a block of exactly 2N + 4 layers:

    1 .. N        attention  p_j = r(V_j p_{j-1}), one head for each unit and ReLU of r
    N + 1         attention  all slopes r'(V_j p_{j-1}) of smooth activations
    N + 2         MLP        loss slope u(p_N, y) on examples, 0 on queries; slopes of kinked ones
    N + 3 .. 2N+2 product    s_N = slope_N * u, then s_j = slope_j * (V_{j+1}^T s_{j+1})
    2N + 3        attention  V_j -= (step_size / 2n) sum_t s_{t,j} p_{t,j-1}^T
    2N + 4        MLP        clip the weights to the box, wipe all scratch

The block is repeated once a step; N + 1 further layers predict the queries' labels. Only r, r'
and u are approximated, by sums of ReLUs, and only where they are not piecewise linear. The
weights of this transformer depend neither on the data nor on the length of the prompt. If all
activations are relu, the output's too, layer N + 1 has nothing to do and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import ClassVar

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction, given_kink_width
from icgd.constructions.parts import ranges as sizes
from icgd.constructions.parts.backward_pass import backward_pass, loss_argument
from icgd.constructions.parts.forward_pass import (
    forward_pass,
    kinked_slopes,
    positive_layers,
    positive_slot,
    slopes,
    units_slot,
)
from icgd.constructions.parts.layouts import layer_slots, network_layout
from icgd.constructions.parts.look_ups import needed_functions
from icgd.constructions.parts.ranges import LARGEST_ARGUMENT, ROUNDING_ROOM
from icgd.errors import SettingError
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.functions import SmoothFunction
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.settings import count, settle
from icgd.program import instructions as verbs
from icgd.program.functions import ReluSum
from icgd.program.instructions import IS_EXAMPLE, IS_QUERY, ONE, TOKENS_PER_EXAMPLE, Summand
from icgd.program.layout import Layout, Role
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

MOST_PIECES = 2**17
"""The most pieces of a function; a fit with more takes minutes and gigabytes."""


@dataclass(frozen=True)
class ReluStack(AbstractConstruction):
    """2N + 4 layers a step; exact for piecewise-linear activations and losses.

    Every smooth function is made of `pieces` pieces. A ramp of `kink_width` stands in for a step;
    if it is None, the ramp is so narrow that hardly any argument lies on it.
    """

    pieces: int = 64
    kink_width: float | None = None

    name: ClassVar[str] = "relu-stack"
    setting: ClassVar[str] = "pieces"
    coarsest: ClassVar[int] = 4
    finest: ClassVar[int] = 2**14

    def __post_init__(self) -> None:
        pieces = count("pieces", self.pieces, most=MOST_PIECES)
        settle(self, pieces=pieces, kink_width=given_kink_width(self.kink_width))

    def finer(self, setting: int, excess: float) -> int:
        return ceil(1.01 * setting * sqrt(excess))  # the error falls with the square

    def objection(self, problem: Problem) -> str | None:
        expected = "a sum of functions of one variable, which is what its MLP layer evaluates"
        return sizes.coupled_outputs(problem, expected) or sizes.without_digits(problem)

    def may_be_accurate(self, problem: Problem) -> bool:
        needed = needed_functions(problem).values()
        return not any(isinstance(function, SmoothFunction) for function in needed)

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        functions = _fitted_functions(problem, self.pieces, self.kink_width)
        target = problem.network
        gate = _gate(functions)
        block = [
            *forward_pass(target),
            *slopes(target),
            _loss_slope(problem, gate),
            *backward_pass(target),
            _gradient_step(problem),
            _clip_and_wipe(problem),
        ]
        return StackProgram(
            construction=self.name,
            layout=_layout(target),
            functions=functions,
            block=tuple(block),
            n_steps=n_steps,
            prediction=(*forward_pass(target), _copy_prediction(target, gate)),
        )


def _layout(target: MLP) -> Layout:
    loss_slope = ("loss_slope", (target.output_width,))
    units, slopes, deltas = (layer_slots(target, kind) for kind in ("units", "slope", "delta"))
    positives = [(positive_slot(target, j), (target.widths[j],)) for j in positive_layers(target)]
    scratch = [*units, *positives, *slopes, loss_slope, *reversed(deltas)]
    return network_layout(target, scratch, (ONE, IS_EXAMPLE, IS_QUERY, TOKENS_PER_EXAMPLE))


def _fitted_functions(
    problem: Problem, pieces: int, kink_width: float | None
) -> tuple[ReluSum, ...]:
    """Fit every function on an interval that no argument leaves, fitting errors included.

    The outputs may overshoot by the error of the fit, which is known only after fitting: widen
    the interval by it and fit again until it is covered. Free knots make this harmless, since
    a wider interval hardly changes the error.
    """
    target, needed = problem.network, needed_functions(problem)
    margin = 0.0
    while True:
        reach = ROUNDING_ROOM * sizes.largest_argument(
            problem, sizes.ranges_on_domain(problem, margin)
        )
        if margin and not reach <= 2 * LARGEST_ARGUMENT:  # so few pieces err more and more
            raise SettingError.too_few_pieces(pieces, target.activation)
        functions = tuple(
            fit_relu_sum(function, -reach, reach, pieces, kink_width)
            for function in needed.values()
        )
        outputs = (target.activation, target.output_activation)
        overshoot = max(f.error for f in functions if f.name in outputs)
        if overshoot <= margin:
            return functions
        margin = 1.25 * overshoot


def _gate(functions: tuple[ReluSum, ...]) -> float:
    """A power of two beyond the argument of every ReLU on the domain."""
    largest = max(
        abs(term.scale) * function.high + abs(term.shift)
        for function in functions
        for term in function.terms()
    )
    return 2.0 ** (1 + ceil(log2(largest)))


def _loss_slope(problem: Problem, gate: float) -> Layer:
    prediction = units_slot(problem.network.depth)
    summands = tuple(
        Summand(loss_argument(part, prediction), part.function.name)
        for part in sizes.loss_parts(problem)
    )
    slope = verbs.MapSlots(summands, IS_EXAMPLE, (IS_QUERY,), gate, "loss_slope")
    return Layer("loss slope", (slope, *kinked_slopes(problem.network)))


def _gradient_step(problem: Problem) -> Layer:
    scale = -problem.gradient_step.step_size / 2
    instructions = [
        verbs.AccumulateOuterProduct(f"delta_{j}", units_slot(j - 1), scale, f"weights_{j}")
        for j in range(1, problem.network.depth + 1)
    ]
    return Layer("gradient step", tuple(instructions))


def _clip_and_wipe(problem: Problem) -> Layer:
    layout = _layout(problem.network)
    weights = tuple(slot.name for slot in layout.having(Role.PARAMETER))
    scratch = tuple(slot.name for slot in layout.having(Role.SCRATCH))
    clip = verbs.ClipSlots(weights, problem.gradient_step.box, ONE)
    return Layer("clip and wipe", (clip, verbs.WipeSlots(scratch)))


def _copy_prediction(target: MLP, gate: float) -> Layer:
    copied = Summand(verbs.Combination.of(units_slot(target.depth)), IDENTITY_FUNCTION.name)
    copy = verbs.MapSlots((copied,), IS_QUERY, (IS_EXAMPLE,), gate, "y")
    wipe = verbs.WipeSlots(tuple(name for name, _ in layer_slots(target, "units")))
    return Layer("copy prediction", (copy, wipe))
