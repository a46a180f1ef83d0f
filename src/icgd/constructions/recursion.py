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

With biases a constant 1 stands beside x and beside every r(z_m), and the last column of V_j
multiplies it: d z_m / d b_{m-1}[k] = V_m[:, k] P(1, z_{m-1}[k]). That takes no layer more.

The paper computes the gradients of networks of 2, 3 .. n layers one after the other, O(n^2) layers;
`literal_layers` counts them. r, u, P, Q, the clip and the wipe are sums of the activation, exact
where an identity gives them, so that any activation serves that can approximate everything. The
products Q(a, b) = a b of the gradient need no fit with activations that bend like relu: one factor
is in the value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2, prod
from typing import ClassVar

from icgd.approximation.ridge import FEWEST_UNITS, MOST_UNITS, SHARPNESS
from icgd.constructions.base import AbstractConstruction, given_kink_width, name_dtype
from icgd.constructions.parts.network import (
    bias_slot,
    coupled_outputs,
    has_kink,
    loss_parts,
    network_layout,
    units_slot,
    without_digits,
)
from icgd.constructions.parts.unit_fits import Fits, fit_all, jacobian, preactivation
from icgd.problems.activations import IDENTITY_FUNCTION, UNIT_ACTIVATIONS, unit_activation_named
from icgd.problems.data import Domain
from icgd.problems.functions import KinkedFunction, SmoothFunction
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive, settle
from icgd.program import unit_instructions as verbs
from icgd.program.instructions import (
    IS_QUERY,
    ONE,
    TOKENS_PER_EXAMPLE,
    Argument,
    Combination,
    Instruction,
)
from icgd.program.layout import Layout, Role
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import EXAMPLE_SHARE

NARROW_BAND = 2.0**-30
"""The width of bands that a tolerance tries second. The dense transformer loses 1e-7 |z| to it, the
fused one, which sums units in bands only, nothing."""


DEEPEST = 256
"""The layers of the deepest target. It has 32,640 Jacobians, whose certificate takes minutes."""


@dataclass(frozen=True)
class Recursion(AbstractConstruction):
    """n + 2 layers a step with any activation; a head for each unit of each function.

    Args:
        units: the most units that a function is made of.
        unit_activation: what units apply; the default is the activation that suits the target best.
        kink_width: how far a step is off to either side, a power of two; the default is 2^-13 of
            the largest preactivation, at most 2^-13.
        dtype: the precision whose rounding fits weigh their error against.

    Raises:
        SettingError: if a number is out of its range.
        UnknownNameError: if no activation or dtype has this name.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.Recursion(units=100), n_steps=2).summary().layers_per_step
        4
    """

    units: int = 200
    unit_activation: str | None = None
    kink_width: float | None = None
    dtype: str = "float64"

    name: ClassVar[str] = "recursion"
    setting: ClassVar[str] = "units"
    coarsest: ClassVar[int] = 24
    finest: ClassVar[int] = MOST_UNITS
    takes_biases: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, units=count("units", self.units, least=FEWEST_UNITS))
        if self.unit_activation is not None:
            unit_activation_named(self.unit_activation)
        settle(self, kink_width=given_kink_width(self.kink_width))
        name_dtype(self)

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        # relu fits fall like units^-1.5; smooth ones so fast that twice as many are always enough.
        return min(2 * setting, ceil(1.01 * setting * float(excess ** (2 / 3))))

    def narrower(self, problem: Problem) -> Recursion | None:
        layers = range(1, problem.network.depth)
        kinked = any(has_kink(problem.network.layer_activation(layer)) for layer in layers)
        is_open = self.kink_width is None and kinked
        return replace(self, kink_width=NARROW_BAND) if is_open else None

    def objection(self, problem: Problem) -> str | None:
        if problem.network.output_activation != IDENTITY_FUNCTION.name:
            return (
                f"its target has a linear output, not {problem.network.output_activation}: the "
                "recursion starts from the derivatives of z_n itself."
            )
        if (depth := problem.network.depth) > DEEPEST:
            return (
                f"it pushes the derivatives of every layer by all matrices below it forward, which "
                f"are {depth * (depth - 1) // 2} for {depth} layers; give at most {DEEPEST} layers."
            )
        expected = "a function of one prediction and one label, which its MLP layer evaluates"
        return coupled_outputs(problem, expected) or without_digits(problem)

    def may_be_accurate(self, problem: Problem) -> bool:
        units = UNIT_ACTIVATIONS[self.unit_activation or default_activation(problem.network)]
        loss = (part.function for part in loss_parts(problem))
        has_curves = any(isinstance(function, SmoothFunction) for function in loss)
        return units.bends and not (units.kinked and has_curves)  # the others have no sharp clip

    def sketch(self, problem: Problem) -> StackProgram:
        """A relu network of these widths: no activation takes fewer units, and none are fitted.

        Units are counted alike in every box; in this one no layer outgrows its input.

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
        activation = self.unit_activation or default_activation(problem.network)
        fits = fit_all(problem, activation, self.units, self.kink_width, self.dtype)
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
            made_for=None if unit_activation_named(activation).bends else self.dtype,
        )


def literal_layers(depth: int) -> int:
    """Layers of attention and MLP in the paper's own construction, for a network of n layers.

    There are n - 1 for the forward pass, those of n - 1 layers for the gradients below, and 2 more;
    Theorem 1 needs 2 for n = 2. The construction here has n of them (2 for n = 1).
    """
    return max(depth * (depth + 3) // 2 - 3, 2)


def default_activation(target: MLP) -> str:
    """The default activation of units: the target's own, or relu for kinks, or sigmoid."""
    value = target.layer_activation(1).value
    if target.activation in UNIT_ACTIVATIONS:
        return target.activation
    return "relu" if isinstance(value, KinkedFunction) else "sigmoid"


def _argument(target: MLP, layer: int) -> Argument:
    """z_m as a head takes it: z_1 = V_1 x is a score by itself, the others have their slots."""
    if layer == 1:
        return Argument(Combination.of("x"), "weights_1", bias=bias_slot(target))
    return Argument(Combination.of(preactivation(layer)))


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


def forward_pass(target: MLP, reaches: dict[str, float]) -> list[Layer]:
    """A layer for each of z_2 .. z_n, or for z_1 if it is the output itself."""
    if target.depth == 1:
        output = preactivation(1)
        z, reach = _argument(target, 1), reaches[output]
        line = verbs.ActivateUnits(z, IDENTITY_FUNCTION.name, reach, output)
        return [Layer("forward 1", (line,))]
    return [Layer(f"forward {m}", (_forward(target, m),)) for m in range(2, target.depth + 1)]


def forward_and_jacobians(target: MLP, reaches: dict[str, float]) -> list[Layer]:
    """The forward pass, with r(z_{m-1}) and the Jacobians of z_m beside z_m."""
    if target.depth == 1:
        return forward_pass(target, reaches)
    return [
        Layer(f"forward {m}", (_forward(target, m), *_derivatives(target, m, reaches)))
        for m in range(2, target.depth + 1)
    ]


def _forward(target: MLP, m: int) -> Instruction:
    z, bias = _argument(target, m - 1), bias_slot(target)
    return verbs.PassOn(f"weights_{m}", z, target.activation, preactivation(m), bias)


def _derivatives(target: MLP, m: int, reaches: dict[str, float]) -> list[Instruction]:
    """r(z_{m-1}), and how z_m depends on the weights below it."""
    weights, argument, r = f"weights_{m}", _argument(target, m - 1), target.activation
    product, inputs, bias = f"s {r}'(t)", units_slot(m - 2), bias_slot(target)
    reach = max(reaches[inputs], 1.0 * target.biases)
    start = verbs.StartJacobian(
        weights, inputs, argument, r, product, reach, jacobian(m, m - 1), bias
    )
    earlier = [jacobian(m - 1, j) for j in range(1, m - 1)]
    pushed = [
        verbs.PushJacobian(weights, below, argument, r, product, reaches[below], jacobian(m, j))
        for j, below in enumerate(earlier, start=1)
    ]
    return [verbs.ActivateUnits(argument, r, 1.0, units_slot(m - 1)), start, *pushed]


def _loss_slope(problem: Problem) -> Layer:
    prediction, function = preactivation(problem.network.depth), f"slope of {problem.loss}"
    slope = verbs.SlopeOfLoss(prediction, "y", problem.loss, function, write="loss_slope")
    return Layer("loss slope", (slope,))


def _gradient_step(problem: Problem, fits: Fits) -> Layer:
    """The last layer's weights depend on r(z_{n-1}) alone, the others on their Jacobians."""
    target, scale = problem.network, -problem.gradient_step.size_of(0) / 2
    others = [
        _add(fits, jacobian(target.depth, j), scale, f"weights_{j}") for j in range(1, target.depth)
    ]
    return Layer("gradient step", (*others, _add_last(fits, target, scale)))


def _add(fits: Fits, slot: str, scale: float, write: str) -> Instruction:
    reach = fits.reaches[slot]
    if not UNIT_ACTIVATIONS[fits.activation].bends:
        reaches = (fits.reaches["loss_slope"], reach)
        return verbs.AddJacobian("loss_slope", slot, reaches, "a b", scale, write)
    return verbs.AddGatedJacobian("loss_slope", slot, reach, *_gate(fits), scale, write)


def _add_last(fits: Fits, target: MLP, scale: float) -> Instruction:
    slot, write, bias = units_slot(target.depth - 1), f"weights_{target.depth}", bias_slot(target)
    reach = max(fits.reaches[slot], 1.0 * target.biases)
    if not UNIT_ACTIVATIONS[fits.activation].bends:
        reaches = (fits.reaches["loss_slope"], reach)
        return verbs.AddOuterProduct("loss_slope", slot, reaches, "a b", scale, write, bias)
    return verbs.AddGatedProduct("loss_slope", slot, reach, *_gate(fits), scale, write, bias)


def _gate(fits: Fits) -> tuple[float, float]:
    """The gate and the sharpness of sums of products by heads that are gates.

    Units that bend like relu need no fit for them.
    """
    gate = 2.0 ** (1 + ceil(log2(fits.reaches["loss_slope"])))
    return gate, SHARPNESS if UNIT_ACTIVATIONS[fits.activation].off_relu else 1.0


def _clip_and_wipe(problem: Problem, reaches: dict[str, float]) -> Layer:
    layout = _layout(problem.network)
    weights = tuple(slot.name for slot in layout.having(Role.PARAMETER))
    scratch = [slot.name for slot in layout.having(Role.SCRATCH)]
    clip = verbs.ClipByUnits(weights, problem.gradient_step.box, "clip")
    return Layer("clip and wipe", (clip, *_wipe(scratch, reaches)))


def _wipe(slots: list[str], reaches: dict[str, float]) -> list[Instruction]:
    """Each slot is wiped by a line twice as long as its numbers get, for what is left in it."""
    return [verbs.WipeByUnits((name,), IDENTITY_FUNCTION.name, 2 * reaches[name]) for name in slots]


def _copy_prediction(target: MLP, reaches: dict[str, float]) -> Layer:
    slots = [preactivation(m) for m in range(min(2, target.depth), target.depth + 1)]
    copy = verbs.CopyToQueries(slots[-1], "z where flagged", "y")
    return Layer("copy prediction", (copy, *_wipe(slots, reaches)))
