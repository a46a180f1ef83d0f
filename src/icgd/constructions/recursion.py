r"""recursion: transformers with one activation of any kind train an n-layer network.

wang, Theorem 1 and Theorem 2, corrected. The target is z_n with z_1 = V_1 x, z_m = V_m r(z_{m-1}).
Every token holds its example, all weights, and how each z_m depends on all earlier weights: its
Jacobian, pushed forward along with z_m itself,

    d z_m / d V_{m-1}[k, l] = V_m[:, k] P(r(z_{m-2})[l], z_{m-1}[k]),      P(s, t) = s r'(t)
    d z_m / d V_j           = sum_k V_m[:, k] P(d z_{m-1}[k] / d V_j, z_{m-1}[k])   for j < m - 1

One gradient step is a block of n + 2 layers (4 for n = 1):

    1 .. n - 1   attention  z_m, r(z_{m-1}) and the Jacobians of z_m, for m = 2 .. n
    n            MLP        loss slope g = u(z_n, y)
    n + 1        attention  V_j -= (step_size / 2n) sum_t g_t d z_n / d V_j
    n + 2        MLP        clip the weights to the box, wipe all scratch

The paper computes the gradients of networks of 2, 3 .. n layers one after the other, O(n^2) layers;
`literal_layers` counts them. r, u, P, Q, the clip and the wipe are sums of the activation, exact
where an identity gives them, so that any activation serves that can approximate everything. The
products Q(a, b) = a b of the gradient need no fit with activations that bend like relu: one factor
is in the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2
from typing import ClassVar

import torch

from icgd.approximation.bends import SHARPNESS
from icgd.approximation.clipping import fit_clip
from icgd.approximation.gate import fit_gate
from icgd.approximation.ridge_line import CLOSE_ENOUGH
from icgd.approximation.ridge_sum import (
    MOST_UNITS,
    fit_loss_slope,
    fit_product,
    fit_ridge_sum,
    fit_slope_product,
)
from icgd.constructions.base import AbstractConstruction, Precision
from icgd.constructions.parts.forward_pass import units_slot
from icgd.constructions.parts.ranges import (
    ROUNDING_ROOM,
    Ranges,
    largest_loss_slope,
    largest_size,
    ranges_on_domain,
    without_digits,
)
from icgd.errors import SettingError
from icgd.problems.activations import IDENTITY
from icgd.problems.arrays import dtype_named
from icgd.problems.functions import KinkedFunction, ScalarFunction
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.unit_activations import UNIT_ACTIVATIONS
from icgd.program.instructions import (
    IS_QUERY,
    ONE,
    TOKENS_PER_EXAMPLE,
    Argument,
    Combination,
    Instruction,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import (
    EXAMPLE_SHARE,
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddJacobian,
    AddOuterProduct,
    ClipByUnits,
    CopyToQueries,
    PassOn,
    PushJacobian,
    SlopeOfLoss,
    StartJacobian,
    WipeByUnits,
)

LARGEST_FIT_ERROR = 0.25
"""Of r and r' for arguments of size 1, and of the clip as a share of the box: steps with larger
errors are steps in name only."""

FEW = (16, 32, 64)
"""Numbers of units to try first: lines and products by smooth units are as good with these."""

HARDLY = 2.0**-30
"""A margin that costs nothing and covers a fit that is as good as exact."""

COARSE_ROOM = 1 + 2.0**-4
"""In place of `ROUNDING_ROOM` in float32, where sums of hundreds of units lose a few percent."""

ROUNDINGS = 64
"""Of s r'(t), in units of its `size`: near kinks in float32, these are more than the error."""

SMALLEST_REACH = 2.0**-300
"""No range is taken for smaller: inverses and squares of this are still ordinary numbers."""

SLACK = 1.25
"""How much wider than needed a range is taken when a fit overshoots, so that few rounds do."""


class Recursion(AbstractConstruction):
    """n + 2 layers a step with any activation; a head for each unit of each function."""

    name: ClassVar[str] = "recursion"
    setting: ClassVar[str] = "units"
    coarsest: ClassVar[int] = 24
    finest: ClassVar[int] = MOST_UNITS
    takes_activation: ClassVar[bool] = True

    def finer(self, setting: int, excess: float) -> int:
        # relu fits fall like units^-1.5; smooth ones so fast that twice as many are always enough.
        return min(2 * setting, ceil(1.01 * setting * float(excess ** (2 / 3))))

    def objection(self, problem: Problem) -> str | None:
        if problem.network.output_activation != IDENTITY.name:
            return (
                f"its target has a linear output, not {problem.network.output_activation}: the "
                "recursion starts from the derivatives of z_n itself."
            )
        if problem.loss_function.slope_parts is None:
            return (
                f"the slope of the {problem.loss} loss couples all outputs, and is not a function "
                "of one prediction and one label, which is what its MLP layer evaluates; the "
                "logistic loss (one output a class) is."
            )
        return without_digits(problem)

    def build(self, problem: Problem, *, n_steps: int, precision: Precision) -> StackProgram:
        fits = _fits(problem, replace(precision, pieces=1))  # which it does not have
        target, reaches = problem.network, fits.reaches
        block = [
            *forward_and_jacobians(target, reaches),
            _loss_slope(problem),
            _gradient_step(problem, fits),
            _clip_and_wipe(problem, reaches),
        ]
        return StackProgram(
            construction=self.name,
            layout=_layout(target),
            functions=fits.functions,
            block=tuple(block),
            n_steps=n_steps,
            prediction=(*forward_pass(target, reaches), _copy_prediction(target, reaches)),
            activation=fits.activation,
            paper_layers=literal_layers(target.depth),
        )


def literal_layers(depth: int) -> int:
    """Layers of attention and MLP in the paper's own construction, for a network of n layers.

    n - 1 for the forward pass, those of n - 1 layers for the gradients below, and 2 more; Theorem 1
    needs 2 for n = 2. The construction here has n of them (2 for n = 1).
    """
    return max(depth * (depth + 3) // 2 - 3, 2)


def default_activation(target: MLP) -> str:
    """The units to use unless told: the target's own, or relu for kinks, or sigmoid."""
    value = target.layer_activation(1).value
    if target.activation in UNIT_ACTIVATIONS:
        return target.activation
    return "relu" if isinstance(value, KinkedFunction) else "sigmoid"


def preactivation(layer: int) -> str:
    """The slot of z_m."""
    return f"preactivation_{layer}"


def jacobian(layer: int, of: int) -> str:
    """The slot of d z_m / d V_j: a row for each entry of z_m, a column for each of V_j."""
    return f"jacobian_{layer}_{of}"


def _argument(layer: int) -> Argument:
    """z_m as a head takes it: z_1 = V_1 x is a score by itself, the others have their slots."""
    if layer == 1:
        return Argument(Combination.of("x"), "weights_1")
    return Argument(Combination.of(preactivation(layer)))


@dataclass(frozen=True)
class _Fits:
    """The functions of a program, the activation of their units, and how large slots can get."""

    functions: tuple[RidgeSum, ...]
    activation: str
    reaches: dict[str, float]


@lru_cache(maxsize=64)
def _fits(problem: Problem, precision: Precision) -> _Fits:
    """Everything fitted; the number of steps makes no difference to it."""
    return _Fitting(problem, precision).fits()


class _Fitting:
    """Fits every function on a box that no argument leaves, fitting errors included.

    A fit may overshoot by its error, which is known only after fitting: widen the ranges by it and
    fit again, until it is covered.
    """

    def __init__(self, problem: Problem, precision: Precision) -> None:
        self.problem, self.precision = problem, precision
        self.target = problem.network
        self.activation = precision.unit_activation or default_activation(self.target)
        self.roundoff = torch.finfo(dtype_named(precision.dtype)).eps / 2
        self.room = COARSE_ROOM if precision.dtype == "float32" else ROUNDING_ROOM

    def fits(self) -> _Fits:
        margin, overshoot = HARDLY, self._usual_overshoot()
        while True:
            wide = _in_wider_box(self.problem, overshoot)
            ranges = ranges_on_domain(wide, margin)
            value, slope = self._activation(ranges)
            loss = self._loss(ranges)
            reaches = self._reaches(wide, ranges, slope, loss)
            clip = self._clip(reaches)
            if value.largest_error <= margin and clip.largest_error <= overshoot:
                return self._all(value, slope, loss, clip, reaches)
            margin = max(margin, SLACK * value.largest_error)
            overshoot = max(overshoot, SLACK * clip.largest_error)

    def _usual_overshoot(self) -> float:
        """What a clip misses that has little to clip; one that has more seldom misses more."""
        box, units = self.problem.gradient_step.box, self.precision.units
        clip = fit_clip(box, 2 * box, self.activation, units, roundoff=self.roundoff)
        return HARDLY + SLACK * clip.largest_error

    def _all(
        self,
        value: RidgeSum,
        slope: RidgeSum,
        loss: RidgeSum,
        clip: RidgeSum,
        reaches: dict[str, float],
    ) -> _Fits:
        activation, roundoff = self.activation, self.roundoff
        last = reaches[preactivation(self.target.depth)]
        functions = [value, slope] if self.target.depth > 1 else []
        functions += [loss, clip]
        if IDENTITY.name not in (function.name for function in functions):
            functions.append(self._value(IDENTITY, 1.0))
        functions.append(self._thrifty(lambda n: fit_gate(last, activation, n, roundoff=roundoff)))
        if not UNIT_ACTIVATIONS[activation].bends:
            functions.append(
                self._thrifty(lambda n: fit_product((1.0, 1.0), activation, n, roundoff=roundoff))
            )
        return _Fits(tuple(functions), activation, reaches)

    def _activation(self, ranges: Ranges) -> tuple[RidgeSum, RidgeSum]:
        """r and s r'(t) on all preactivations but those of the output."""
        function = self.target.layer_activation(1).value
        reach = self._roomy(max(ranges.preactivations[:-1], default=1.0))
        slope = fit_slope_product(
            function,
            (1.0, reach),
            self.activation,
            self.precision.units,
            roundoff=self.roundoff,
            accuracy=LARGEST_FIT_ERROR,
            kink_width=self.precision.kink_width,
        )
        # Lines wipe numbers up to 1, so that r has to reach as far if it is one.
        value = self._value(function, max(reach, 1.0) if function == IDENTITY else reach)
        return value, slope

    def _value(self, function: ScalarFunction, reach: float) -> RidgeSum:
        return self._thrifty(
            lambda n: fit_ridge_sum(function, reach, self.activation, n, roundoff=self.roundoff)
        )

    def _thrifty(self, fit_with: Callable[[int], RidgeSum]) -> RidgeSum:
        """As few units as leave no more than rounding does, or all."""
        for few in (number for number in FEW if number < self.precision.units):
            if (fit := fit_with(few)).largest_error <= CLOSE_ENOUGH:
                return fit
        return fit_with(self.precision.units)

    def _loss(self, ranges: Ranges) -> RidgeSum:
        box = (self._roomy(ranges.outputs[-1]), self._roomy(self.problem.domain.y))
        loss = self.problem.loss_function
        return self._thrifty(
            lambda n: fit_loss_slope(loss, box, self.activation, n, roundoff=self.roundoff)
        )

    def _clip(self, reaches: dict[str, float]) -> RidgeSum:
        box, reach, units = self.problem.gradient_step.box, reaches["weights"], self.precision.units
        clip = fit_clip(box, reach, self.activation, units, roundoff=self.roundoff)
        limit = LARGEST_FIT_ERROR * box
        if clip.largest_error <= limit:
            return clip
        more = sorted({min(2**n * units, MOST_UNITS) for n in range(1, 10)})
        errors = ((n, fit_clip(box, reach, self.activation, n).largest_error) for n in more)
        raise SettingError.box_too_large(
            "the clip",
            (reach,),
            f"{units} {self.activation} units",
            clip.largest_error,
            limit,
            next((n for n, error in errors if error <= limit), None),
            most=MOST_UNITS,
        )

    def _reaches(
        self, problem: Problem, ranges: Ranges, slope: RidgeSum, loss: RidgeSum
    ) -> dict[str, float]:
        """Largest sizes of all slots, and of the weights before they are clipped."""
        widths, depth, box = self.target.widths, self.target.depth, problem.gradient_step.box
        steepest = (
            largest_size(self.target.layer_activation(1).derivative, slope.half_widths[-1])
            + slope.error
            + ROUNDINGS * self.roundoff * slope.size
        )
        reach = {"x": problem.domain.x}
        for m in range(1, depth):
            reach[units_slot(m)] = ranges.outputs[m]
        for m in range(1, depth + 1):
            reach[preactivation(m)] = ranges.preactivations[m - 1]
            if m > 1:
                reach[jacobian(m, m - 1)] = box * steepest * reach[units_slot(m - 2)]
            for j in range(1, m - 1):
                passed_on = widths[m - 1] * box * steepest
                reach[jacobian(m, j)] = passed_on * reach[jacobian(m - 1, j)]
        reach["loss_slope"] = largest_loss_slope(problem, ranges.outputs[-1]) + loss.error
        dependence = [widths[-1] * reach[jacobian(depth, j)] for j in range(1, depth)]
        dependence.append(reach[units_slot(depth - 1)])
        step = problem.gradient_step.step_size / 2 * reach["loss_slope"] * max(dependence)
        reach["weights"] = box + step * (1 + LARGEST_FIT_ERROR)
        return {name: self._roomy(size) for name, size in reach.items()}

    def _roomy(self, size: float) -> float:
        """A size with room for rounding, and for tiny ones more."""
        return max(self.room * size, SMALLEST_REACH)


def _in_wider_box(problem: Problem, overshoot: float) -> Problem:
    """The problem with weights as large as a clip may leave them."""
    step = problem.gradient_step
    return replace(problem, update=replace(step, box=step.box + overshoot))


def _layout(target: MLP) -> Layout:
    layers, widths = range(1, target.depth + 1), target.widths
    shapes = {j: (widths[j], widths[j - 1]) for j in layers}
    jacobians = [(m, j) for m in layers for j in range(1, m)]
    stored = layers[1:] or layers
    return Layout(
        (
            Slot("x", (target.input_width,), Role.INPUT),
            Slot("y", (target.output_width,), Role.LABEL),
            *(Slot(f"weights_{j}", shapes[j], Role.PARAMETER) for j in layers),
            *(Slot(units_slot(m), (widths[m],), Role.SCRATCH) for m in layers[:-1]),
            *(Slot(preactivation(m), (widths[m],), Role.SCRATCH) for m in stored),
            *(
                Slot(jacobian(m, j), (widths[m], widths[j] * widths[j - 1]), Role.SCRATCH)
                for m, j in jacobians
            ),
            Slot("loss_slope", (target.output_width,), Role.SCRATCH),
            Slot(ONE, (1,), Role.CONSTANT),
            Slot(IS_QUERY, (1,), Role.CONSTANT),
            Slot(TOKENS_PER_EXAMPLE, (1,), Role.CONSTANT),
            Slot(EXAMPLE_SHARE, (1,), Role.CONSTANT),
        )
    )


def forward_pass(target: MLP, reaches: dict[str, float]) -> list[Layer]:
    """z_2 .. z_n, a layer each; z_1 if it is the output itself."""
    if target.depth == 1:
        return [Layer("forward 1", (_linear_output(reaches),))]
    return [Layer(f"forward {m}", (_forward(target, m),)) for m in range(2, target.depth + 1)]


def forward_and_jacobians(target: MLP, reaches: dict[str, float]) -> list[Layer]:
    """The forward pass, with r(z_{m-1}) and the Jacobians of z_m beside z_m."""
    if target.depth == 1:
        return forward_pass(target, reaches)
    return [
        Layer(f"forward {m}", (_forward(target, m), *_derivatives(target, m, reaches)))
        for m in range(2, target.depth + 1)
    ]


def _linear_output(reaches: dict[str, float]) -> Instruction:
    reach = reaches[preactivation(1)]
    return ActivateUnits(_argument(1), IDENTITY.name, reach, preactivation(1))


def _forward(target: MLP, m: int) -> Instruction:
    return PassOn(f"weights_{m}", _argument(m - 1), target.activation, preactivation(m))


def _derivatives(target: MLP, m: int, reaches: dict[str, float]) -> list[Instruction]:
    """r(z_{m-1}), and how z_m depends on the weights below it."""
    weights, argument, r = f"weights_{m}", _argument(m - 1), target.activation
    product, inputs = f"s {r}'(t)", units_slot(m - 2)
    start = StartJacobian(
        weights, inputs, argument, r, product, reaches[inputs], jacobian(m, m - 1)
    )
    earlier = [jacobian(m - 1, j) for j in range(1, m - 1)]
    pushed = [
        PushJacobian(weights, below, argument, r, product, reaches[below], jacobian(m, j))
        for j, below in enumerate(earlier, start=1)
    ]
    return [ActivateUnits(argument, r, 1.0, units_slot(m - 1)), start, *pushed]


def _loss_slope(problem: Problem) -> Layer:
    slope = SlopeOfLoss(
        prediction=preactivation(problem.network.depth),
        label="y",
        loss=problem.loss,
        function=f"slope of {problem.loss}",
        write="loss_slope",
    )
    return Layer("loss slope", (slope,))


def _gradient_step(problem: Problem, fits: _Fits) -> Layer:
    """The last layer's weights depend on r(z_{n-1}) alone, the others on their Jacobians."""
    depth = problem.network.depth
    jacobians = {f"weights_{j}": jacobian(depth, j) for j in range(1, depth)}
    last = (f"weights_{depth}", units_slot(depth - 1))
    scale = -problem.gradient_step.step_size / 2
    if UNIT_ACTIVATIONS[fits.activation].bends:
        return Layer("gradient step", _gated_step(jacobians, last, scale, fits))
    left = fits.reaches["loss_slope"]
    others = [
        AddJacobian("loss_slope", slot, (left, fits.reaches[slot]), "a b", scale, write)
        for write, slot in jacobians.items()
    ]
    write, slot = last
    outer = AddOuterProduct("loss_slope", slot, (left, fits.reaches[slot]), "a b", scale, write)
    return Layer("gradient step", (*others, outer))


def _gated_step(
    jacobians: dict[str, str], last: tuple[str, str], scale: float, fits: _Fits
) -> tuple[Instruction, ...]:
    """Activations that bend like relu multiply by what they are: nothing is fitted."""
    gate = 2.0 ** (1 + ceil(log2(fits.reaches["loss_slope"])))
    sharpness = SHARPNESS if UNIT_ACTIVATIONS[fits.activation].off_relu else 1.0

    def add(verb: type[AddGatedProduct | AddGatedJacobian], write: str, slot: str) -> Instruction:
        return verb("loss_slope", slot, fits.reaches[slot], gate, sharpness, scale, write)

    others = [add(AddGatedJacobian, write, slot) for write, slot in jacobians.items()]
    return (*others, add(AddGatedProduct, *last))


def _clip_and_wipe(problem: Problem, reaches: dict[str, float]) -> Layer:
    layout = _layout(problem.network)
    weights = tuple(slot.name for slot in layout.having(Role.PARAMETER))
    scratch = [slot.name for slot in layout.having(Role.SCRATCH)]
    clip = ClipByUnits(weights, problem.gradient_step.box, "clip")
    return Layer("clip and wipe", (clip, *_wipe(scratch, reaches)))


def _wipe(slots: list[str], reaches: dict[str, float]) -> list[Instruction]:
    """Each slot by a line as long as it can get, and twice that, for what is left in it."""
    return [WipeByUnits((name,), IDENTITY.name, 2 * reaches[name]) for name in slots]


def _copy_prediction(target: MLP, reaches: dict[str, float]) -> Layer:
    slots = [preactivation(m) for m in range(min(2, target.depth), target.depth + 1)]
    copy = CopyToQueries(slots[-1], "z where flagged", "y")
    return Layer("copy prediction", (copy, *_wipe(slots, reaches)))
