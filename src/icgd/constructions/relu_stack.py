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

A layer with a norm takes three layers more forward, a fourth for its activation unless that is the
identity, and two more backward (`parts/forward_pass.py`, `parts/backward_pass.py`). Shortcuts to a
layer are added in one layer. Rates of examples multiply the slope of the loss in a product layer of
their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, log, log2, sqrt
from typing import ClassVar

from icgd.approximation.relu_sum import (
    fit_exponential,
    fit_reciprocal,
    fit_reciprocal_root,
    fit_relu_sum,
)
from icgd.constructions.base import AbstractConstruction, given_kink_width
from icgd.constructions.parts import network as sizes
from icgd.constructions.parts.network import (
    LARGEST_ARGUMENT,
    ROUNDING_ROOM,
    UpdateLayers,
    backward_pass,
    bias_slot,
    forward_pass,
    later_slopes,
    loss_argument,
    needed_functions,
    network_layout,
    network_scratch,
    norm_root,
    output_slot,
    slopes,
)
from icgd.errors import ConstructionError
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.functions import RECIPROCAL, SmoothFunction, capped_exponential, reciprocal_root
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive, settle
from icgd.program import instructions as verbs
from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    RATES,
    TOKENS_PER_EXAMPLE,
    Summand,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.network_instructions import MapDifferences, MapRowSums
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

ROOT_ERROR = 0.4
"""The relative error of a reciprocal root times the square of `pieces`: 1e-4 for 64 of them."""

LARGEST_NORM_ERROR = 0.05
"""The root of a norm errs by no more, relatively, so that `largest_norm` is large enough."""

LEAST_ROOT, LARGEST_ROOT = 1e-30, 1e40
"""The ends of the ranges of roots lie between them, so that no power in a proof leaves float64."""

EXPONENTIALS, SHARES = "exponentials", "shares"

MOST_PIECES = 2**17
"""The most pieces of a function; a fit with more takes minutes and gigabytes."""


@dataclass(frozen=True)
class ReluStack(AbstractConstruction):
    """2N + 4 layers a step; exact for piecewise-linear activations and losses.

    Args:
        pieces: the number of pieces that every smooth function is made of.
        kink_width: the width of the ramp that stands in for a step, a power of two; by default the
            ramp is so narrow that hardly any argument lies on it.

    Raises:
        SettingError: if a number is out of its range.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.ReluStack(pieces=128), n_steps=2).summary().layers_per_step
        6
    """

    pieces: int = 64
    kink_width: float | None = None

    name: ClassVar[str] = "relu-stack"
    setting: ClassVar[str] = "pieces"
    coarsest: ClassVar[int] = 4
    finest: ClassVar[int] = 2**14
    takes_biases: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    takes_averages: ClassVar[bool] = True
    takes_roots: ClassVar[bool] = True
    takes_shortcuts: ClassVar[bool] = True
    takes_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        pieces = count("pieces", self.pieces, most=MOST_PIECES)
        settle(self, pieces=pieces, kink_width=given_kink_width(self.kink_width))

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        return ceil(1.01 * setting * sqrt(excess))  # the error falls with the square

    def objection(self, problem: Problem) -> str | None:
        return sizes.without_digits(problem) or _without_root(problem)

    def may_be_accurate(self, problem: Problem) -> bool:
        needed = needed_functions(problem).values()
        is_curved = any(isinstance(function, SmoothFunction) for function in needed)
        return not is_curved and not problem.network.norms

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        functions = _fitted_functions(problem, self.pieces, self.kink_width)
        target, update = problem.network, _update(problem)
        gate, layout = _gate(functions), _layout(problem, update)
        scratch = tuple(slot.name for slot in layout.having(Role.SCRATCH))
        block = [
            *forward_pass(target),
            *slopes(target),
            *_shares(problem, self.pieces),
            _loss_slope(problem, gate, update),
            *_rated(problem),
            *backward_pass(target, _slope_slot(problem)),
            _gradient_step(problem, update),
            *update.end(0, scratch),
        ]
        return StackProgram(
            construction=self.name,
            layout=layout,
            functions=(
                *functions,
                *_roots(problem, functions, self.pieces),
                *_share_functions(problem, functions, self.pieces),
            ),
            block=tuple(block),
            n_steps=n_steps,
            prediction=(*forward_pass(target, update.predicting), _copy_prediction(target, gate)),
            schedule=update.schedule(n_steps, scratch),
        )


def _update(problem: Problem) -> UpdateLayers:
    return UpdateLayers(problem.network, problem.gradient_step)


def _layout(problem: Problem, update: UpdateLayers) -> Layout:
    target, width = problem.network, problem.network.output_width
    shares = [(EXPONENTIALS, (width**2,)), (SHARES, (width,))]
    shares = shares if problem.loss_function.is_softmax else []
    of_loss = [("loss_slope", (width,)), (_slope_slot(problem), (width,))]
    scratch = network_scratch(target, [*shares, *dict.fromkeys(of_loss)])
    constants = (ONE, IS_EXAMPLE, IS_QUERY, TOKENS_PER_EXAMPLE, *update.constants)
    rates = () if problem.domain.rate is None else (Slot(RATES, (width,), Role.INPUT),)
    return network_layout(target, scratch, constants, update.slots(), rates)


def _roots(problem: Problem, functions: tuple[ReluSum, ...], pieces: int) -> tuple[ReluSum, ...]:
    """The reciprocal roots of norms and of the update, if there are any, for the whole domain.

    A mean of squares is at most the largest square. Of a variance, proofs know that numbers are at
    most twice the largest away from their mean.
    """
    target, root = problem.network, problem.gradient_step.rule(0).root
    margin = max(function.error for function in functions)
    ranges, error = sizes.ranges_on_domain(problem, margin), ROOT_ERROR / pieces**2
    found: list[ReluSum] = []
    if target.norms:
        largest = 2 * ROUNDING_ROOM * max(ranges.linear[layer - 1] for layer in target.norms)
        of_norm = min(error, LARGEST_NORM_ERROR)
        found.append(fit_reciprocal_root(norm_root(target), _square(largest), of_norm))
    if root is not None:
        largest = ROUNDING_ROOM * sizes.largest_gradient(problem, ranges, margin)
        found.append(fit_reciprocal_root(reciprocal_root(root.eps), _square(largest), error))
    return tuple(found)


def _square(largest: float) -> float:
    """Where the range of a root ends; a wider one than needed does no harm."""
    return max(largest, LEAST_ROOT) ** 2


def _without_root(problem: Problem) -> str | None:
    """Why roots of these gradients' squares cannot be had, if they are too large."""
    if not problem.gradient_step.has_root:
        return None
    ranges = sizes.ranges_on_domain(problem, margin=0.0)
    largest = sizes.largest_gradient(problem, ranges, margin=0.0)
    if largest <= LARGEST_ROOT:
        return None
    return (
        f"its gradients can reach {largest:.3g} on the domain, and reciprocal roots of squares are "
        f"proved up to {LARGEST_ROOT:g} only; use a smaller box, domain, gradient scale or weight "
        "decay."
    )


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
            raise ConstructionError(
                f"pieces={pieces} is too few for {target.activation}: the error of the fit grows "
                "with the interval, so no interval covers the layers' outputs. Give at least 2."
            )
        functions = tuple(
            fit_relu_sum(function, -reach, reach, pieces, kink_width)
            for function in needed.values()
        )
        outputs = (target.activation, target.output_activation)
        overshoot = max(f.error for f in functions if f.name in outputs)
        if overshoot <= margin:
            return functions
        margin = 1.25 * overshoot


def _cap(problem: Problem, pieces: int) -> float:
    """Scores that are so much lower than another have no share that counts."""
    return float(ceil(log(problem.network.output_width * pieces**2 / ROOT_ERROR)))


def _shares(problem: Problem, pieces: int) -> list[Layer]:
    """Two MLP layers that turn the outputs into shares of classes, if the loss needs them."""
    if not problem.loss_function.is_softmax:
        return []
    cap = _cap(problem, pieces)
    target = problem.network
    scores, function = output_slot(target, target.depth), capped_exponential(cap).name
    missed = exp(-cap)
    return [
        Layer("exponentials", (MapDifferences(scores, function, EXPONENTIALS),)),
        Layer("shares", (MapRowSums(EXPONENTIALS, RECIPROCAL.name, SHARES, missed),)),
    ]


def _share_functions(
    problem: Problem, functions: tuple[ReluSum, ...], pieces: int
) -> tuple[ReluSum, ...]:
    """The exponential and the reciprocal of the shares, if there are any."""
    if not problem.loss_function.is_softmax:
        return ()
    margin = max(function.error for function in functions)
    outputs = sizes.ranges_on_domain(problem, margin).outputs[-1]
    cap, error = _cap(problem, pieces), ROOT_ERROR / pieces**2
    reach = max(2 * ROUNDING_ROOM * outputs, 2 * cap)
    exponential = fit_exponential(capped_exponential(cap), reach, error)
    return exponential, fit_reciprocal(2 * problem.network.output_width * exp(cap), error)


def _gate(functions: tuple[ReluSum, ...]) -> float:
    """A power of two beyond the argument of every ReLU on the domain."""
    largest = max(
        abs(term.scale) * function.high + abs(term.shift)
        for function in functions
        for term in function.terms()
    )
    return 2.0 ** (1 + ceil(log2(largest)))


def _loss_slope(problem: Problem, gate: float, update: UpdateLayers) -> Layer:
    prediction = output_slot(problem.network, problem.network.depth)
    summands = tuple(
        Summand(loss_argument(part, prediction), part.function.name)
        for part in sizes.loss_parts(problem)
    )
    if problem.loss_function.is_softmax:
        shares = Summand(verbs.Combination.of(SHARES), IDENTITY_FUNCTION.name)
        label = verbs.Combination(("y",), (-1.0,))
        summands = (shares, Summand(label, IDENTITY_FUNCTION.name))
    closed_by = (IS_QUERY, *update.closed_by)
    slope = verbs.MapSlots(summands, IS_EXAMPLE, closed_by, gate, "loss_slope")
    return Layer("loss slope", (slope, *later_slopes(problem.network), *update.decayed()))


def _slope_slot(problem: Problem) -> str:
    """The slot of the slope of the loss, times rates if there are any."""
    return "loss_slope" if problem.domain.rate is None else "rated_slope"


def _rated(problem: Problem) -> list[Layer]:
    """The layer that multiplies the slope of the loss by rates, if there are any."""
    if problem.domain.rate is None:
        return []
    rated = verbs.MultiplySlots("loss_slope", RATES, _slope_slot(problem))
    return [Layer("rates", (rated,))]


def _gradient_step(problem: Problem, update: UpdateLayers) -> Layer:
    target, scale, bias = problem.network, update.gradient_scale, bias_slot(problem.network)
    instructions = [
        verbs.AccumulateOuterProduct(
            f"delta_{j}", output_slot(target, j - 1), scale, update.gradient_slot(j), bias
        )
        for j in range(1, target.depth + 1)
    ]
    return Layer("gradient step", tuple(instructions))


def _copy_prediction(target: MLP, gate: float) -> Layer:
    prediction = verbs.Combination.of(output_slot(target, target.depth))
    copied = Summand(prediction, IDENTITY_FUNCTION.name)
    copy = verbs.MapSlots((copied,), IS_QUERY, (IS_EXAMPLE,), gate, "y")
    parts = (part for layer in forward_pass(target) for part in layer.instructions)
    wipe = verbs.WipeSlots(tuple(name for part in parts for name in part.writes()))
    return Layer("copy prediction", (copy, wipe))
