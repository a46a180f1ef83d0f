r"""recursion: transformers with any one activation train an n-layer network.

wang, Theorem 1 and Theorem 2, corrected. The target is z_n with z_1 = V_1 x, z_m = V_m r(z_{m-1}).
Every token holds its example, all weights, and the Jacobian of each z_m with respect to all earlier
weights. By the chain rule the Jacobians are pushed forward along with z_m,

    d z_m / d V_{m-1}[k, l] = V_m[:, k] P(r(z_{m-2})[l], z_{m-1}[k]),      P(s, t) = s r'(t)
    d z_m / d V_j           = sum_k V_m[:, k] P(d z_{m-1}[k] / d V_j, z_{m-1}[k])   for j < m - 1

So there is no backward pass. One gradient step is a block of n + 2 layers (4 for n = 1):

    1 .. n - 1   attention  z_m, r(z_{m-1}) and the Jacobians of z_m, for m = 2 .. n
    n            MLP        loss slope g = u(z_n, y)
    n + 1        attention  V_j -= (step_size / 2n) sum_t g_t d z_n / d V_j
    n + 2        MLP        clip the weights to the box, wipe all scratch

With biases a constant 1 is appended to x and to every r(z_m), and the last column of V_j multiplies
it: d z_m / d b_{m-1}[k] = V_m[:, k] P(1, z_{m-1}[k]). That needs no further layer.

The paper computes the gradients of networks of 2, 3 .. n layers one after the other, in O(n^2)
layers; `literal_layers` counts them. The functions r, u, P, the product Q(a, b) = a b in the
gradient, the clip and the wipe are fitted by sums of units, which are exact if there is an
identity. So every activation serves whose units can approximate all continuous functions. With
units that bend like relu, Q needs no fit: one factor is in the score of gated heads, the other in
their value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil, floor, log2, prod
from typing import Any, ClassVar

import torch

from icgd.approximation import ridge
from icgd.approximation.clipping import fit_clip
from icgd.approximation.ridge import (
    CLOSE_ENOUGH,
    FEWEST_UNITS,
    KINK_WIDTH,
    MOST_UNITS,
    SHARPNESS,
)
from icgd.constructions.base import AbstractConstruction, checked_kink_width, valid_dtype
from icgd.constructions.network import (
    ROUNDING_ROOM,
    Ranges,
    activations_of,
    bias_slot,
    has_kink,
    largest_loss_slope,
    largest_size,
    loss_terms,
    network_layout,
    precision_objection,
    ranges_on_domain,
    units_slot,
)
from icgd.problems.data import Domain, dtype_named
from icgd.problems.functions import (
    IDENTITY_FUNCTION,
    UNIT_ACTIVATIONS,
    unit_activation_named,
)
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.piecewise import Function
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive, set_fields
from icgd.program.functions import RidgeSum, slope_product
from icgd.program.instructions import Argument, Combination, Instruction
from icgd.program.layout import EXAMPLE_SHARE, IS_QUERY, ONE, TOKENS_PER_EXAMPLE, Layout, Role
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import (
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

NARROW_BAND = 2.0**-30
"""The width of bands that compilation to a tolerance tries second. It costs the dense transformer
1e-7 |z| of rounding, and the fused run, which sums units in bands only, nothing."""

DEEPEST = 256
"""The largest depth of a target, with 32,640 Jacobians, whose certificate takes minutes."""


@dataclass(frozen=True)
class Recursion(AbstractConstruction):
    """n + 2 layers per step with any activation; one head for each unit of each function.

    Args:
        units: the largest number of units of a function.
        unit_activation: the activation of the units, a name or an analytic `icgd.Function`; the
            default is the one that suits the target best.
        kink_width: the half-width of the band around a kink in which the slope is inexact, a power
            of two; the default is 2^-13 of the largest preactivation, at most 2^-13.
        dtype: the precision whose rounding errors fits balance against their own.

    Raises:
        SettingError: if a number is out of range.
        UnknownNameError: if there is no activation or dtype of this name.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.Recursion(units=100), n_steps=2).summary().layers_per_step
        4
    """

    units: int = 200
    unit_activation: Any = None  # a name
    kink_width: float | None = None
    dtype: str = "float64"

    name: ClassVar[str] = "recursion"
    refined_by: ClassVar[str] = "units"
    coarsest: ClassVar[int] = 24
    finest: ClassVar[int] = MOST_UNITS
    takes_biases: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(self, units=count("units", self.units, least=FEWEST_UNITS))
        if isinstance(self.unit_activation, Function):
            set_fields(self, unit_activation=self.unit_activation.name)
        if self.unit_activation is not None:
            unit_activation_named(self.unit_activation)
        set_fields(
            self, kink_width=checked_kink_width(self.kink_width), dtype=valid_dtype(self.dtype)
        )

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        # Errors of relu fits fall like units^-1.5; those of smooth units faster than any power, so
        # doubling suffices.
        return min(2 * setting, ceil(1.01 * setting * float(excess ** (2 / 3))))

    def narrower(self, problem: Problem) -> Recursion | None:
        hidden = activations_of(problem.network)[:-1]
        is_open = self.kink_width is None and any(map(has_kink, hidden))
        return replace(self, kink_width=NARROW_BAND) if is_open else None

    def objection(self, problem: Problem) -> str | None:
        values = [activation.value for activation in activations_of(problem.network)]
        parts = [term.function for term in loss_terms(problem)]
        if rough := [f for f in (*values, *parts) if f.kind not in ("kinked", "smooth")]:
            return (
                "its units fit functions that are analytic, or continuous and piecewise linear, "
                f"and {rough[0]} is neither; use relu-stack."
            )
        if not isinstance(problem.network.activation, str):
            return (
                "all its hidden layers have one activation, not "
                f"{', '.join(problem.network.activation)}; use relu-stack or softmax-stack."
            )
        if problem.network.output_activation != IDENTITY_FUNCTION.name:
            return (
                f"its target has a linear output, not {problem.network.output_activation}: the "
                "recursion starts from the derivatives of z_n itself."
            )
        units = unit_activation_named(self.unit_activation or default_activation(problem.network))
        if problem.network.biases and units.name not in UNIT_ACTIVATIONS:
            return (
                "a head that adds biases divides by its unit's value at 1, which is defined for "
                f"{', '.join(UNIT_ACTIVATIONS)}, not for {units.name}."
            )
        if (depth := problem.network.depth) > DEEPEST:
            return (
                "it pushes forward the Jacobian of every layer with respect to every matrix below, "
                f"{depth * (depth - 1) // 2} for {depth} layers; give at most {DEEPEST} layers."
            )
        if problem.loss_function.slope_terms is None:
            return (
                f"its MLP layer evaluates functions of one prediction and one label, and the slope "
                f"of the {problem.loss} loss is not a sum of such functions; use the logistic "
                "loss, with one output per class."
            )
        return precision_objection(problem)

    def may_be_accurate(self, problem: Problem) -> bool:
        units = unit_activation_named(self.unit_activation or default_activation(problem.network))
        loss = (term.function for term in loss_terms(problem))
        has_curves = any(function.kind == "smooth" for function in loss)
        # Only units that bend like relu clip exactly, and kinked ones cannot fit a smooth function.
        return units.bends and not (units.kinked and has_curves)

    def sketch(self, problem: Problem) -> StackProgram:
        """Return the program of a relu network of these widths, which needs no fits.

        No activation has fewer units. The box does not change their number, and in this box no
        layer is larger than its input.

        Args:
            problem: the problem.

        Returns:
            The program of one step.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.Recursion().sketch(problem).n_steps
            1
        """
        target = MLP(problem.network.widths, "relu")
        update = GradientStep(1.0, box=1 / max(target.widths))
        easy = Problem(target, "squared", update, Domain(1.0, 1.0))
        return Recursion(unit_activation="relu").build(easy, n_steps=1)

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        target, depth, bias = problem.network, problem.network.depth, bias_slot(problem.network)
        activation = self.unit_activation or default_activation(target)
        fits = fit_all(problem, activation, self.units, self.kink_width, self.dtype)
        reaches, units, layout = fits.reaches, unit_activation_named(activation), _layout(target)

        def wipe(names: list[str]) -> list[Instruction]:
            # The line covers twice the largest value, so later steps wipe any remainder too.
            lines = ((name, 2 * reaches[name]) for name in names)
            return [WipeByUnits((name,), IDENTITY_FUNCTION.name, reach) for name, reach in lines]

        output = preactivation(depth)
        slope = SlopeOfLoss(output, "y", problem.loss, f"slope of {problem.loss}", "loss_slope")
        # z_n depends on V_n through r(z_{n-1}) alone, and on the others through their Jacobians.
        scale, steepest = -problem.gradient_step.size_of(0) / 2, reaches["loss_slope"]
        gradient: list[Instruction] = []
        inputs, last = units_slot(depth - 1), f"weights_{depth}"
        reach = max(reaches[inputs], 1.0 * target.biases)
        jacobians = [(jacobian(depth, j), f"weights_{j}") for j in range(1, depth)]
        # The gradient is a mean of products with the loss slope: exact by gated heads if units
        # bend like relu, otherwise by the fitted product "a b".
        if units.bends:
            gate = 2.0 ** (1 + ceil(log2(steepest)))
            gating = (gate, SHARPNESS if units.off_relu else 1.0, scale)
            gradient += [
                AddGatedJacobian("loss_slope", slot, reaches[slot], *gating, write)
                for slot, write in jacobians
            ]
            gradient.append(AddGatedProduct("loss_slope", inputs, reach, *gating, last, bias))
        else:
            gradient += [
                AddJacobian("loss_slope", slot, (steepest, reaches[slot]), "a b", scale, write)
                for slot, write in jacobians
            ]
            sizes = (steepest, reach)
            gradient.append(AddOuterProduct("loss_slope", inputs, sizes, "a b", scale, last, bias))
        weights = tuple(slot.name for slot in layout.having(Role.PARAMETER))
        clip = ClipByUnits(weights, problem.gradient_step.reach, "clip")
        scratch = [slot.name for slot in layout.having(Role.SCRATCH)]
        block = [
            *_forward_pass(target, reaches, with_jacobians=True),
            Layer("loss slope", (slope,)),
            Layer("gradient step", tuple(gradient)),
            Layer("clip and wipe", (clip, *wipe(scratch))),
        ]
        # The prediction: a forward pass without Jacobians, and a copy into y at the queries.
        copy = CopyToQueries(output, "z where flagged", "y")
        written = [preactivation(m) for m in range(min(2, depth), depth + 1)]
        prediction = [
            *_forward_pass(target, reaches, with_jacobians=False),
            Layer("copy prediction", (copy, *wipe(written))),
        ]
        return StackProgram(
            construction=self.name,
            layout=layout,
            functions=fits.functions,
            block=tuple(block),
            n_steps=n_steps,
            prediction=tuple(prediction),
            activation=activation,
            paper_layers=literal_layers(depth),
            made_for=None if units.bends else self.dtype,
        )


def literal_layers(depth: int) -> int:
    """Return the number of layers (attention and MLP) of the paper's construction for n layers.

    It is L(n) = (n - 1) + L(n - 1) + 2: the forward pass, the gradients of the n - 1 layers below,
    and 2 more; by Theorem 1, L(2) = 2. The construction here has n (2 for n = 1).
    """
    return max(depth * (depth + 3) // 2 - 3, 2)


def default_activation(target: MLP) -> str:
    """Return the default activation of units: the target's own if possible, or a similar one."""
    value = target.layer_activation(1).value
    if (name := str(target.activation)) in UNIT_ACTIVATIONS:
        return name
    if isinstance(value, Function) and value.kind == "smooth":
        return "softplus"  # smooth, and it bends like relu, so its clip is sharp
    return "relu" if value.kind == "kinked" else "sigmoid"


def preactivation(layer: int) -> str:
    """Return the slot of z_m."""
    return f"preactivation_{layer}"


def jacobian(layer: int, of: int) -> str:
    """Return the slot of d z_m / d V_j: rows for entries of z_m, columns for those of V_j."""
    return f"jacobian_{layer}_{of}"


def _layout(target: MLP) -> Layout:
    layers, widths, shapes = range(1, target.depth + 1), target.widths, target.matrix_shapes
    stored = layers[1:] or layers
    scratch = [
        *((units_slot(m), (widths[m],)) for m in layers[:-1]),
        *((preactivation(m), (widths[m],)) for m in stored),
        *((jacobian(m, j), (widths[m], prod(shapes[j - 1]))) for m in layers for j in range(1, m)),
        ("loss_slope", (target.output_width,)),
    ]
    return network_layout(target, scratch, (ONE, IS_QUERY, TOKENS_PER_EXAMPLE, EXAMPLE_SHARE))


def _forward_pass(target: MLP, reaches: dict[str, float], *, with_jacobians: bool) -> list[Layer]:
    """Return a layer for each of z_2 .. z_n, or for z_1 if n is 1.

    With Jacobians, the layer of z_m also writes r(z_{m-1}) and the Jacobians of z_m.
    """
    r, bias = target.activation, bias_slot(target)
    product = slope_product(f"{r}'")
    # Heads compute z_1 = V_1 x in their scores, so it needs no slot; all other z_m have one.
    z = Argument(Combination.of("x"), "weights_1", bias=bias)
    if target.depth == 1:
        output = preactivation(1)
        line = ActivateUnits(z, IDENTITY_FUNCTION.name, reaches[output], output)
        return [Layer("forward 1", (line,))]
    layers = []
    for m in range(2, target.depth + 1):
        weights = f"weights_{m}"
        instructions: list[Instruction] = [PassOn(weights, z, r, preactivation(m), bias)]
        if with_jacobians:
            inputs, write = units_slot(m - 2), jacobian(m, m - 1)
            reach = max(reaches[inputs], 1.0 * target.biases)
            earlier = [(jacobian(m - 1, j), jacobian(m, j)) for j in range(1, m - 1)]
            instructions += [
                ActivateUnits(z, r, 1.0, units_slot(m - 1)),
                StartJacobian(weights, inputs, z, r, product, reach, write, bias),
                *(
                    PushJacobian(weights, below, z, r, product, reaches[below], pushed)
                    for below, pushed in earlier
                ),
            ]
        layers.append(Layer(f"forward {m}", tuple(instructions)))
        z = Argument(Combination.of(preactivation(m)))
    return layers


# The fitted functions of a program, and bounds on all slots.


LARGEST_FIT_ERROR = 0.25
"""The largest allowed error of r and r' for arguments of size 1, and of the clip relative to the
box. With larger errors a step no longer resembles gradient descent."""

FEW = (16, 32, 64)
"""Numbers of units to try first, which often suffice for lines and products by smooth units."""

HARDLY = 2.0**-30
"""An initial margin that has no effect on accuracy and covers fits that are almost exact."""

COARSE_ROOM = 1 + 2.0**-4
"""`ROUNDING_ROOM` in float32, where the relative error of sums of hundreds of units is a few
percent."""

ROUNDINGS = 64
"""Rounding error of s r'(t) in units of its `size`; near kinks in float32 it exceeds the error."""

SMALLEST_REACH = 2.0**-300
"""The smallest range, whose inverse and square are still normal numbers."""

SLACK = 1.25
"""The factor by which margins grow beyond the measured excess, so that few rounds suffice."""


@dataclass(frozen=True)
class Fits:
    """The functions of a program, and a bound on the absolute values of each slot."""

    functions: tuple[RidgeSum, ...]
    reaches: dict[str, float]


@lru_cache(maxsize=64)
def fit_all(
    problem: Problem, activation: str, units: int, kink_width: float | None, dtype: str
) -> Fits:
    """Fit every function on a box that contains all arguments, including fitting errors.

    A fit may exceed the range of the exact function by its error, which is known only after
    fitting: widen the ranges by the error and fit again until it is covered. The bounds hold for
    any number of steps, because every step ends with a clip.
    """
    target, box = problem.network, problem.gradient_step.reach
    r = target.layer_activation(1).value
    roundoff = torch.finfo(dtype_named(dtype)).eps / 2
    room = COARSE_ROOM if dtype == "float32" else ROUNDING_ROOM

    def fit_with(fit: Callable[..., RidgeSum], *args: object) -> Callable[[int], RidgeSum]:
        """Return the function that calls `fit` with a given number of units."""
        return lambda n: fit(*args, activation, n, roundoff=roundoff)

    def thrifty(fit: Callable[..., RidgeSum], *args: object) -> RidgeSum:
        """Fit with the fewest units whose error is at the level of rounding, or else with all."""
        fit_by = fit_with(fit, *args)
        for few in (number for number in FEW if number < units):
            if (fitted := fit_by(few)).largest_error <= CLOSE_ENOUGH:
                return fitted
        return fit_by(units)

    def roomy(size: float) -> float:
        """Return `size` with room for rounding, at least the smallest reach."""
        return max(room * size, SMALLEST_REACH)

    # The excess of clipped weights over the box. The error of a clip on twice the box is a good
    # first guess, to which wider ranges seldom add.
    overshoot = HARDLY + SLACK * fit_with(fit_clip, box, 2 * box)(units).largest_error
    margin = HARDLY
    while True:
        wide = replace(problem, update=replace(problem.gradient_step, box=box + overshoot))
        ranges = ranges_on_domain(wide, margin)
        # r and s r'(t), on all preactivations except those of the output.
        reach = roomy(max(ranges.preactivations[:-1], default=1.0))
        width = kink_width or KINK_WIDTH * min(1.0, 2.0 ** floor(log2(reach)))
        fit_slope = partial(ridge.fit_slope_product, kink_width=width)
        slope = ridge.accurate(fit_with(fit_slope, r, (1.0, reach)), units, LARGEST_FIT_ERROR)
        # If r is the identity, its fit also wipes slots, scaled to numbers up to 1.
        until = max(reach, 1.0) if r == IDENTITY_FUNCTION else reach
        value = thrifty(ridge.fit_ridge_sum, r, until)
        sides = (roomy(ranges.outputs[-1]), roomy(problem.domain.y))
        loss = thrifty(ridge.fit_loss_slope, problem.loss_function, sides)
        steepest = (
            largest_size(target.layer_activation(1).derivative, slope.half_widths[-1])
            + slope.error
            + ROUNDINGS * roundoff * slope.size
        )
        sizes = _reaches(wide, ranges, steepest, loss.error)
        reaches = {name: roomy(size) for name, size in sizes.items()}
        clip = ridge.accurate(
            fit_with(fit_clip, box, reaches["weights"]),
            units,
            LARGEST_FIT_ERROR * box,
            lambda clip: clip.largest_error,
        )
        if value.largest_error <= margin and clip.largest_error <= overshoot:
            break
        margin = max(margin, SLACK * value.largest_error)
        overshoot = max(overshoot, SLACK * clip.largest_error)
    functions = [value, slope, loss, clip] if target.depth > 1 else [loss, clip]
    if IDENTITY_FUNCTION.name not in (function.name for function in functions):
        functions.append(thrifty(ridge.fit_ridge_sum, IDENTITY_FUNCTION, 1.0))
    functions.append(thrifty(ridge.fit_gate, reaches[preactivation(target.depth)]))
    if not unit_activation_named(activation).bends:
        functions.append(thrifty(ridge.fit_product, (1.0, 1.0)))
    return Fits(tuple(functions), reaches)


def _reaches(
    problem: Problem, ranges: Ranges, steepest: float, loss_error: float
) -> dict[str, float]:
    """Bound the absolute values of all slots, and of the weights before clipping."""
    target, box = problem.network, problem.gradient_step.reach
    widths, depth = target.widths, target.depth
    reach = {"x": ranges.outputs[0]}
    for m in range(1, depth):
        reach[units_slot(m)] = ranges.outputs[m]
    for m in range(1, depth + 1):
        reach[preactivation(m)] = ranges.preactivations[m - 1]
        if m > 1:
            inputs = max(reach[units_slot(m - 2)], 1.0 * target.biases)
            reach[jacobian(m, m - 1)] = box * steepest * inputs
        for j in range(1, m - 1):
            passed_on = widths[m - 1] * box * steepest
            reach[jacobian(m, j)] = passed_on * reach[jacobian(m - 1, j)]
    reach["loss_slope"] = largest_loss_slope(problem, ranges.outputs[-1]) + loss_error
    # The largest |d z_n / d weight|, summed over the outputs.
    steepness = [widths[-1] * reach[jacobian(depth, j)] for j in range(1, depth)]
    steepness.append(max(reach[units_slot(depth - 1)], 1.0 * target.biases))
    step = problem.gradient_step.size_of(0) / 2 * reach["loss_slope"] * max(steepness)
    reach["weights"] = box + step * (1 + LARGEST_FIT_ERROR)
    return reach
