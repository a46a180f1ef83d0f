"""The residual stream of constructions that train a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import sqrt

import torch

from icgd.constructions.base import require_few_steps
from icgd.problems.activations import IDENTITY_FUNCTION, RELU, Activation
from icgd.problems.functions import (
    KinkedFunction,
    ReciprocalDeviation,
    ScalarFunction,
    SmoothFunction,
    reciprocal_deviation,
    reciprocal_root,
)
from icgd.problems.losses import SlopePart
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import (
    AVERAGE,
    GRADIENT,
    SCALED,
    SQUARE,
    WEIGHTS,
    AbstractGradientStep,
    Root,
    Rule,
    Sum,
)
from icgd.problems.problem import Problem
from icgd.program import instructions as verbs
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import (
    ONE,
    ApplyUnits,
    Combination,
    Instruction,
    MapSlots,
    MultiplySlots,
    PullBack,
    Summand,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.network_instructions import (
    N_EXAMPLES,
    OUT_OF_BATCH,
    PLACE,
    Assignment,
    Covary,
    Recombine,
    ScaleCentred,
    TakeTurns,
)
from icgd.program.program import Layer

# -----------------------------------------------------------------------------
# The target network's forward pass, one attention layer for each of its layers, and its slopes.
#
# Where r has a kink at 0, its slope jumps there, and a ramp of width w stands in for the jump:
#
#     1 - relu(w - z) / w + relu(-z) / w
#
# Below 0 two numbers of size |z| / w cancel, so that rounding costs |z| / w units of it. At
# relu(z) the slope is the same, and there nothing cancels. So a ramp is evaluated at relu(z), by
# an MLP, and may be as narrow as it likes. If r is relu itself, the stream holds relu(z) already.
#
# A layer with a norm takes more layers. Shortcuts are added in an MLP layer, the last of these:
#
#     attention   linear = V_j p_{j-1}
#     product     variance = cov(linear, linear)
#     MLP         scale = 1 / sqrt(variance + eps), a sum of ReLUs
#     product     normed = scale * (linear - mean(linear))
#     MLP         units = r(normed), unless r is the identity; sum = r(normed) + p_i + ...


def units_slot(layer: int) -> str:
    """The slot of p_j; p_0 is the input."""
    return "x" if layer == 0 else f"units_{layer}"


def activated_slot(target: MLP, layer: int) -> str:
    """The slot of r(z_j): that of the norm if there is one, and r is the identity."""
    if layer in target.norms and target.layer_activation(layer).value == IDENTITY_FUNCTION:
        return f"normed_{layer}"
    return units_slot(layer)


def output_slot(target: MLP, layer: int) -> str:
    """The slot of p_j, shortcuts included."""
    return f"sum_{layer}" if target.sources(layer) else activated_slot(target, layer)


def bias_slot(target: MLP) -> str | None:
    """The slot that the last column of every matrix multiplies, if the network has biases."""
    return ONE if target.biases else None


def has_kink(activation: Activation) -> bool:
    """Whether the slope of the activation jumps at 0."""
    return isinstance(activation.value, KinkedFunction) and bool(activation.value.knots)


def positive_slot(target: MLP, layer: int) -> str:
    """The slot of relu(z_j), where r has a kink: that of p_j if r is relu."""
    is_relu = target.layer_activation(layer).value == RELU
    return units_slot(layer) if is_relu else f"positive_{layer}"


def positive_layers(target: MLP) -> list[int]:
    """The layers with a kink that need a slot of their own for relu(z_j)."""
    layers = range(1, target.depth + 1)
    kinked = [layer for layer in layers if has_kink(target.layer_activation(layer))]
    return [layer for layer in kinked if positive_slot(target, layer) != units_slot(layer)]


def forward_pass(target: MLP, weights: str = WEIGHTS) -> list[Layer]:
    """p_j for j = 1 .. N, into the slots that `output_slot` names.

    The matrices V_j stand in slots `weights_1 .. weights_N`, or in those of another kind.
    """
    layers: list[Layer] = []
    for j in range(1, target.depth + 1):
        layers += _normed(target, j, weights) if j in target.norms else [_units(target, j, weights)]
        layers += _activated(target, j)
    return layers


def _units(target: MLP, layer: int, weights: str) -> Layer:
    function = target.layer_activation(layer).value.name
    return Layer(f"forward {layer}", (_apply(target, layer, function, units_slot(layer), weights),))


def _normed(target: MLP, layer: int, weights: str) -> list[Layer]:
    """The preactivation with its norm, into slot `normed_j`."""
    linear, variance, scale = (f"{name}_{layer}" for name in ("linear", "variance", "scale"))
    root = Summand(Combination.of(variance), norm_root(target).name)
    product = _apply(target, layer, IDENTITY_FUNCTION.name, linear, weights)
    reach = largest_norm(target.widths[layer])
    norm = ScaleCentred(linear, scale, f"normed_{layer}", reach=reach)
    return [
        Layer(f"forward {layer}", (product,)),
        Layer(f"variance {layer}", (Covary(linear, linear, variance),)),
        Layer(f"scale {layer}", (_mapped((root,), scale),)),
        Layer(f"norm {layer}", (norm,)),
    ]


def largest_norm(width: int) -> float:
    """A number less the mean of k of them is at most sqrt(k) of their deviation.

    The fitted root is less than twice too large.
    """
    return 2 * sqrt(width)


def norm_root(target: MLP) -> ReciprocalDeviation:
    """The function by which norms divide."""
    return reciprocal_deviation(target.norm_eps)


def _activated(target: MLP, layer: int) -> list[Layer]:
    """What is left to do after the units of a layer: r of a norm, and shortcuts."""
    r, units = target.layer_activation(layer).value.name, activated_slot(target, layer)
    has_norm, written = layer in target.norms, list[MapSlots]()
    value = Summand(Combination.of(f"normed_{layer}"), r)
    if has_norm and units == units_slot(layer):
        written.append(_mapped((value,), units))
    if has_norm and layer in positive_layers(target):
        positive = Summand(Combination.of(f"normed_{layer}"), RELU.name)
        written.append(_mapped((positive,), positive_slot(target, layer)))
    if sources := target.sources(layer):
        own = value if has_norm else _itself(units)
        others = (_itself(output_slot(target, source)) for source in sources)
        written.append(_mapped((own, *others), output_slot(target, layer)))
    return [Layer(f"outputs {layer}", tuple(written))] if written else []


def _itself(slot: str) -> Summand:
    return Summand(Combination.of(slot), IDENTITY_FUNCTION.name)


def _mapped(summands: tuple[Summand, ...], write: str) -> MapSlots:
    return MapSlots(summands, ONE, (), 0.0, write)


def slopes(target: MLP) -> list[Layer]:
    """r'(V_j p_{j-1}) for all layers at once, into slots `slope_1 .. slope_N`.

    Where r has a kink it is relu(V_j p_{j-1}) instead, unless r is relu. `later_slopes` does the
    rest. So no layer is needed if r is relu in all of them.
    """
    instructions = []
    for j in (j for j in range(1, target.depth + 1) if j not in target.norms):
        if not has_kink(target.layer_activation(j)):
            instructions.append(
                _apply(target, j, target.layer_activation(j).derivative.name, f"slope_{j}")
            )
        elif j in positive_layers(target):
            instructions.append(_apply(target, j, RELU.name, positive_slot(target, j)))
    return [Layer("slopes", tuple(instructions))] if instructions else []


def later_slopes(target: MLP) -> tuple[MapSlots, ...]:
    """The slopes that an MLP makes: r'(z_j) from relu(z_j) where r has a kink, and from norms."""
    layers = range(1, target.depth + 1)
    later = [j for j in layers if j in target.norms or has_kink(target.layer_activation(j))]
    return tuple(_slope(target, j) for j in later)


def _slope(target: MLP, layer: int) -> MapSlots:
    activation = target.layer_activation(layer)
    read = positive_slot(target, layer) if has_kink(activation) else f"normed_{layer}"
    slope = Summand(Combination.of(read), activation.derivative.name)
    return _mapped((slope,), f"slope_{layer}")


def _apply(
    target: MLP, layer: int, function: str, write: str, weights: str = WEIGHTS
) -> ApplyUnits:
    inputs = output_slot(target, layer - 1)
    return ApplyUnits(f"{weights}_{layer}", inputs, function, write, bias_slot(target))


# -----------------------------------------------------------------------------
# The target network's backward pass: the loss slope, and a product layer for each layer.


def loss_argument(part: SlopePart, prediction: str) -> Combination:
    """The argument of a part of the loss slope, from the slot of predictions and the labels."""
    factors = {prediction: part.prediction, "y": part.label}
    used = {slot: factor for slot, factor in factors.items() if factor != 0.0}
    return Combination(tuple(used), tuple(used.values()))


def backward_pass(target: MLP, loss_slope: str = "loss_slope") -> list[Layer]:
    """Turn the slope of the loss into slots `delta_1 .. delta_N`, last layer first.

    delta_N = slope_N * loss_slope
    delta_j = slope_j * (weights_{j+1}^T delta_{j+1} + what shortcuts pass on)

    A layer with a norm has that in slot `passed_j` first, and takes two layers more.
    """
    layers: list[Layer] = []
    for j in range(target.depth, 0, -1):
        layers.append(Layer(f"backward {j}", _pulled_back(target, j, loss_slope)))
        layers += _through_norm(j) if j in target.norms else []
    return layers


def upstream_layers(target: MLP) -> list[int]:
    """The layers that shortcuts from units lead to, but for the last one.

    What is pulled back to their outputs is needed once more.
    """
    ends = {last for first, last in target.shortcuts if first > 0 and last < target.depth}
    return sorted(ends)


def _pulled_back(target: MLP, layer: int, loss_slope: str) -> tuple[Instruction, ...]:
    write = f"passed_{layer}" if layer in target.norms else f"delta_{layer}"
    slope, above = f"slope_{layer}", layer + 1
    if layer == target.depth:
        return (MultiplySlots(slope, loss_slope, write=write),)
    ends = target.ends(layer)
    plus = tuple(loss_slope if end == target.depth else f"upstream_{end}" for end in ends) or None
    pulled = PullBack(f"weights_{above}", f"delta_{above}", slope, write, plus)
    if layer not in upstream_layers(target):
        return (pulled,)
    return pulled, replace(pulled, slope=ONE, write=f"upstream_{layer}")


def _through_norm(layer: int) -> list[Layer]:
    passed, normed, shared, scale = (
        f"{name}_{layer}" for name in ("passed", "normed", "shared", "scale")
    )
    through = ScaleCentred(passed, scale, f"delta_{layer}", normed, shared)
    return [
        Layer(f"covariance {layer}", (Covary(passed, normed, shared),)),
        Layer(f"back through norm {layer}", (through,)),
    ]


def network_layout(
    target: MLP,
    scratch: Iterable[tuple[str, tuple[int, ...]]],
    constants: Iterable[str],
    update: Iterable[Slot] = (),
    rates: Iterable[Slot] = (),
) -> Layout:
    """Every token holds its example, all weights, scratch slots of these shapes and constants.

    After the labels stand rates, if there are any, and after the weights the slots that an update
    needs.
    """
    return Layout(
        (
            Slot("x", (target.input_width,), Role.INPUT),
            Slot("y", (target.output_width,), Role.LABEL),
            *rates,
            *(
                Slot(f"weights_{layer}", shape, Role.PARAMETER)
                for layer, shape in enumerate(target.matrix_shapes, start=1)
            ),
            *update,
            *(Slot(name, shape, Role.SCRATCH) for name, shape in scratch),
            *(Slot(name, (1,), Role.CONSTANT) for name in constants),
        )
    )


def layer_slots(target: MLP, kind: str) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the slots `kind_1 .. kind_N`, which are as wide as the layers."""
    return [(f"{kind}_{layer}", (width,)) for layer, width in enumerate(target.widths[1:], start=1)]


Scratch = tuple[str, tuple[int, ...]]
"""The name and the shape of a scratch slot."""


def network_scratch(target: MLP, of_loss: Iterable[Scratch]) -> list[Scratch]:
    """What a forward and a backward pass write, with the slots of the loss between them."""
    layers, norms = range(1, target.depth + 1), target.norms
    forward = {units_slot(j): j for j in layers if activated_slot(target, j) == units_slot(j)}
    forward |= {positive_slot(target, j): j for j in positive_layers(target)}
    forward |= {f"sum_{j}": j for j in layers if target.sources(j)}
    forward |= {f"{kind}_{j}": j for kind in ("linear", "normed") for j in norms}
    backward = {f"passed_{j}": j for j in norms}
    backward |= {f"upstream_{j}": j for j in upstream_layers(target)}
    backward |= {f"delta_{j}": j for j in reversed(layers)}
    return [
        *((name, (target.widths[j],)) for name, j in forward.items()),
        *((f"{kind}_{j}", (1,)) for kind in ("variance", "scale", "shared") for j in norms),
        *layer_slots(target, "slope"),
        *of_loss,
        *((name, (target.widths[j],)) for name, j in backward.items()),
    ]


# -----------------------------------------------------------------------------
# How large the quantities of a training run can become on the domain.
#
#     |z_j| <= k_{j-1} box max|p_{j-1}|,   |p_j| <= max |r| on [-|z_j|, |z_j|]
#
#     |delta_N| <= max |r'| max |u|,   |delta_j| <= max |r'| k_{j+1} box max|delta_{j+1}|
#
# A construction fits its functions on these ranges. Outputs get a `margin` on top, for the error
# of the fitted activation itself. With biases, |z_j| is larger by the box.
#
# A norm of k numbers is at most sqrt(k), and passes on at most (2 + sqrt(k)) / sqrt(eps) of what
# is pulled back to it; fitted roots may make both twice as large. Shortcuts add.


ROUNDING_ROOM = 1 + 2.0**-10
"""Ranges are taken this much larger, so that no rounding leaves them."""

LEAST_REACH = 2.0**-200
"""Inputs are taken to be at least this large: proofs allow for underflow, which is far smaller."""

LARGEST_ARGUMENT = 1e12
"""Beyond this the rounding of a preactivation is as large as the features of an activation."""


@dataclass(frozen=True)
class Ranges:
    """Largest sizes over the whole domain: of preactivations and of layer outputs p_0 .. p_N.

    Preactivations are those after a norm; `linear` has V_j p_{j-1} itself.
    """

    preactivations: tuple[float, ...]
    outputs: tuple[float, ...]
    linear: tuple[float, ...]


def _largest_value(activation: Activation, reach: float) -> float:
    return largest_size(activation.value, reach)


def ranges_on_domain(
    problem: Problem,
    margin: float,
    largest_output: Callable[[Activation, float], float] = _largest_value,
) -> Ranges:
    """Propagate the bounds of the domain and the box through the target network."""
    target = problem.network
    preactivations: list[float] = []
    linear: list[float] = []
    outputs = [max(problem.domain.x, LEAST_REACH)]
    for layer, fan_in in enumerate(target.widths[:-1], start=1):
        linear.append(problem.gradient_step.box * (fan_in * outputs[-1] + target.biases))
        norm = largest_norm(target.widths[layer])
        preactivations.append(norm if layer in target.norms else linear[-1])
        own = largest_output(target.layer_activation(layer), preactivations[-1]) + margin
        outputs.append(own + sum(outputs[source] for source in target.sources(layer)))
    return Ranges(tuple(preactivations), tuple(outputs), tuple(linear))


@dataclass(frozen=True)
class BackwardRanges:
    """Largest sizes of the loss slope, of slopes r', of V_{j+1}^T delta_{j+1} and of delta_j.

    Entry j - 1 belongs to layer j; the last of `pulled_back` is the loss slope itself.
    """

    slopes: tuple[float, ...]
    pulled_back: tuple[float, ...]
    deltas: tuple[float, ...]


def backward_ranges(problem: Problem, ranges: Ranges, margin: float) -> BackwardRanges:
    """Propagate the bounds of the forward pass through the backward pass."""
    target = problem.network
    slopes = [
        largest_size(target.layer_activation(layer).derivative, reach) + margin
        for layer, reach in enumerate(ranges.preactivations, start=1)
    ]
    slope = largest_loss_slope(problem, ranges.outputs[-1]) + margin
    pulled_back = {target.depth: slope * (problem.domain.rate or 1.0)}
    deltas: dict[int, float] = {}
    for layer in range(target.depth, 0, -1):
        if layer < target.depth:
            pulled = target.widths[layer + 1] * problem.gradient_step.box * deltas[layer + 1]
            pulled_back[layer] = pulled + sum(pulled_back[end] for end in target.ends(layer))
        deltas[layer] = slopes[layer - 1] * pulled_back[layer] * _norm_gain(target, layer)
    rows = [[part[layer] for layer in sorted(part)] for part in (pulled_back, deltas)]
    return BackwardRanges(tuple(slopes), *map(tuple, rows))


def _norm_gain(target: MLP, layer: int) -> float:
    """How many times larger a norm can make what is pulled back through it."""
    if layer not in target.norms:
        return 1.0
    return 2 * (2 + largest_norm(target.widths[layer])) / sqrt(target.norm_eps)


def largest_gradient(problem: Problem, ranges: Ranges, margin: float) -> float:
    """The largest entry of the gradient, as the update scales it, with its weight decay."""
    update, deltas = problem.gradient_step, backward_ranges(problem, ranges, margin).deltas
    sizes = [max(p, 1.0 * problem.network.biases) for p in ranges.outputs[:-1]]
    largest = max(delta * p for delta, p in zip(deltas, sizes, strict=True))
    return update.gradient_factor / 2 * largest + update.rule(0).decay * update.box


def loss_parts(problem: Problem) -> tuple[SlopePart, ...]:
    """The summands of the loss slope; none if it is no sum of functions of one variable."""
    return problem.loss_function.slope_parts or ()


def coupled_outputs(problem: Problem, expected: str) -> str | None:
    """Why a construction cannot serve a loss whose slope is not what it expects, or None."""
    if problem.loss_function.slope_parts is not None:
        return None
    return (
        f"the slope of the {problem.loss} loss couples all outputs, and is not {expected}; the "
        "logistic loss (one output a class) is."
    )


def largest_loss_slope(problem: Problem, prediction: float) -> float:
    """max |u| for predictions up to this size; a share of a class is at most 1."""
    if problem.loss_function.is_softmax:
        return 1.0 + problem.domain.y
    return sum(
        largest_size(part.function, largest_loss_argument(problem, part, prediction))
        for part in loss_parts(problem)
    )


def largest_loss_argument(problem: Problem, part: SlopePart, prediction: float) -> float:
    """Largest argument of a part of the loss slope."""
    return abs(part.prediction) * prediction + abs(part.label) * problem.domain.y


def largest_argument(problem: Problem, ranges: Ranges) -> float:
    """Largest argument of any function: of an activation, of the loss slope, or a prediction."""
    prediction = ranges.outputs[-1]
    in_loss = (largest_loss_argument(problem, part, prediction) for part in loss_parts(problem))
    return max(*ranges.preactivations, prediction, *in_loss)


def largest_size(function: ScalarFunction, reach: float) -> float:
    """max |f| on [-reach, reach]."""
    end = torch.tensor(reach, dtype=torch.float64)
    least, largest = function.bounds(-end, end)
    return float(torch.maximum(-least, largest))


def without_digits(problem: Problem) -> str | None:
    """Why no construction can serve the problem whose preactivations get too large, if they do."""
    ranges = ranges_on_domain(problem, margin=0.0)
    largest = max(largest_argument(problem, ranges), *ranges.linear)
    if largest <= LARGEST_ARGUMENT:
        return None
    return (
        f"its preactivations can reach {largest:.3g} on the domain, where float64 leaves "
        "no digits to evaluate an activation; use a smaller box or domain."
    )


# -----------------------------------------------------------------------------
# The functions that a construction evaluates or looks up.


def activations_of(target: MLP) -> list[Activation]:
    """The activation of every layer."""
    return [target.layer_activation(layer) for layer in range(1, target.depth + 1)]


def needed_functions(problem: Problem) -> dict[str, ScalarFunction]:
    """Activations, their slopes, the parts of the loss slope, and what copies the prediction."""
    activations = activations_of(problem.network)
    functions = [activation.value for activation in activations]
    functions += [activation.derivative for activation in activations]
    functions += [part.function for part in loss_parts(problem)]
    functions += [RELU] if positive_layers(problem.network) else []
    return {function.name: function for function in (*functions, IDENTITY_FUNCTION)}


def looked_up(problem: Problem) -> tuple[SmoothFunction, ...]:
    """The smooth functions of activations and loss, all of them bounded, each once.

    An activation that grows like a line is z gate(z) + rest(z) instead.
    """
    functions: dict[str, ScalarFunction] = {}
    for activation in activations_of(problem.network):
        value = activation.gate or activation.value
        for function in (value, activation.rest, activation.derivative):
            if function is not None:
                functions[function.name] = function
    for part in loss_parts(problem):
        functions[part.function.name] = part.function
    return tuple(f for f in functions.values() if isinstance(f, SmoothFunction))


def largest_output(activation: Activation, reach: float) -> float:
    """Bound on |r|, also if it is put together from its gate and rest."""
    bound = largest_size(activation.value, reach)
    if activation.gate is None:
        return bound
    rest = largest_size(activation.rest, reach) if activation.rest else 0.0
    return max(bound, reach * largest_size(activation.gate, reach) + rest)


def overshoot(problem: Problem, forward: Ranges, look_ups: tuple[LatticeFunction, ...]) -> float:
    """How far an activation or a slope can be off, by the errors of its look-ups."""
    errors = {function.name: function.error for function in look_ups}
    largest = 0.0
    layers = zip(activations_of(problem.network), forward.preactivations, strict=True)
    for activation, reach in layers:
        if isinstance(activation.value, SmoothFunction):
            gate, rest = activation.gate, activation.rest
            value = errors[gate.name] * reach if gate else errors[activation.value.name]
            value += errors[rest.name] if rest else 0.0
            largest = max(largest, value, errors[activation.derivative.name])
    in_loss = (errors.get(part.function.name, 0.0) for part in loss_parts(problem))
    return max(largest, sum(in_loss))


# -----------------------------------------------------------------------------
# The end of a step: what an optimiser makes of the gradient, in every stack.
#
# Plain descent adds the gradient to the weights at once, and clips them. All other rules
# (`problems/optimisers.py`) keep it in slots of its own, and one MLP layer sets weights and
# state to their combinations:
#
#     MLP   weights = clip(sum of coefficient * slot), state = sum of coefficient * slot, wipe
#
# A rule with a root takes three layers more:
#
#     product   square = gradient * gradient
#     MLP       root = 1 / (sqrt(sum) + eps), a sum of ReLUs; state = sum of coefficient * slot
#     product   scaled = factor * root
#
# The average of the weights, if there is one, moves in the last layer too, and costs no layer.
#
# Only these layers may differ from step to step. In a step on a batch the last layer also counts
# on to the next batch.


ROOT = "root"

MOST_SUMS = 10**5
"""The most sums that the ends of all steps are made of; more take minutes and gigabytes."""


@dataclass(frozen=True)
class UpdateLayers:
    """The layers after the backward pass; bounds of weights are multiplied by slot `unit`."""

    target: MLP
    update: AbstractGradientStep
    unit: str = ONE

    @property
    def is_plain(self) -> bool:
        """Whether the gradient may be added to the weights at once."""
        return self.update.is_plain

    @property
    def predicting(self) -> str:
        """Which weights predict: their average, if there is one."""
        return WEIGHTS if self.update.average is None else AVERAGE

    @property
    def has_root(self) -> bool:
        return self.update.has_root

    def gradient_slot(self, layer: int) -> str:
        """Where the gradient of a layer's weights goes."""
        return f"{WEIGHTS if self.is_plain else GRADIENT}_{layer}"

    @property
    def gradient_scale(self) -> float:
        """What the mean of slope times input is multiplied by."""
        return (-self.update.size_of(0) if self.is_plain else self.update.gradient_factor) / 2

    def slots(self) -> tuple[Slot, ...]:
        """The state, what is computed on the way, and whose turn it is."""
        shared = [] if self.is_plain else [GRADIENT]
        shared += [SQUARE, ROOT, SCALED] if self.has_root else []
        turns = () if self.update.batch_size is None else (PLACE, OUT_OF_BATCH)
        return (
            *self._matrices(self.update.remembered, Role.PARAMETER),
            *self._matrices(shared, Role.SHARED),
            *(Slot(name, (1,), Role.TURN) for name in turns),
        )

    def _matrices(self, kinds: Iterable[str], role: Role) -> list[Slot]:
        shapes = list(enumerate(self.target.matrix_shapes, start=1))
        return [Slot(f"{kind}_{layer}", shape, role) for kind in kinds for layer, shape in shapes]

    @property
    def constants(self) -> tuple[str, ...]:
        """The constant slots that it reads besides those of all constructions."""
        return () if self.update.batch_size is None else (N_EXAMPLES,)

    @property
    def closed_by(self) -> tuple[str, ...]:
        """The flags of examples that do not take part in a step."""
        return () if self.update.batch_size is None else (OUT_OF_BATCH,)

    def decayed(self) -> tuple[verbs.Instruction, ...]:
        """What fills the gradient with weight decay before the examples add to it.

        A linear rule has the decay among its coefficients instead.
        """
        decay = self.update.rule(0).decay
        if not self.has_root or not decay:
            return ()
        return tuple(
            _mapped_slot(
                Combination((f"{WEIGHTS}_{layer}",), (decay,)),
                IDENTITY_FUNCTION.name,
                f"{GRADIENT}_{layer}",
            )
            for layer in self._layers
        )

    @property
    def _layers(self) -> range:
        return range(1, self.target.depth + 1)

    def schedule(self, n_steps: int, scratch: tuple[str, ...]) -> tuple[tuple[Layer, ...], ...]:
        """The ends of all steps, if they differ."""
        if self.update.is_constant:
            return ()
        self.update.require_steps(n_steps)
        require_few_ends(self.update, n_steps, self.target.depth)
        return tuple(self.end(step, scratch) for step in range(n_steps))

    def end(self, step: int, scratch: tuple[str, ...]) -> tuple[Layer, ...]:
        """The layers of a step after the gradient; the last of them wipes `scratch`."""
        wiped = (*scratch, *(slot.name for slot in self.slots() if slot.role is Role.SHARED))
        rule = self.update.rule(step)
        before: tuple[Layer, ...] = ()
        if rule.root is not None:
            before = self._root_layers(rule, rule.root, step)
        last = (*self._moved(rule, step), verbs.WipeSlots(wiped), *self._turns())
        return (*before, Layer("clip and wipe" if self.is_plain else "update", last))

    def _moved(self, rule: Rule, step: int) -> tuple[verbs.Instruction, ...]:
        if self.is_plain:
            weights = tuple(f"{WEIGHTS}_{layer}" for layer in self._layers)
            return (verbs.ClipSlots(weights, self.update.box, self.unit),)
        sums = {WEIGHTS: rule.weights} if rule.root is not None else rule.linear
        return (self._recombined(sums, step),)

    def _recombined(self, sums: dict[str, Sum], step: int) -> Recombine:
        return Recombine(
            tuple(
                self._assigned(kind, terms, layer, step)
                for layer in self._layers
                for kind, terms in sums.items()
            ),
            self.unit,
        )

    def _assigned(self, kind: str, terms: Sum, layer: int, step: int) -> Assignment:
        """A slot as a sum of others; weights are clipped, and may be averaged."""
        value, write, update = _of_layer(terms, layer), f"{kind}_{layer}", self.update
        if kind != WEIGHTS:
            return Assignment(value, write)
        if update.average is None:
            return Assignment(value, write, update.box)
        average, keeps = f"{AVERAGE}_{layer}", update.kept_of_average(step)
        return Assignment(value, write, update.box, average, keeps)

    def _root_layers(self, rule: Rule, root: Root, step: int) -> tuple[Layer, ...]:
        function = reciprocal_root(root.eps).name
        squares = [
            verbs.MultiplySlots(f"{GRADIENT}_{j}", f"{GRADIENT}_{j}", f"{SQUARE}_{j}")
            for j in self._layers
        ]
        roots = [
            _mapped_slot(_of_layer(root.argument, j), function, f"{ROOT}_{j}") for j in self._layers
        ]
        products = [
            verbs.MultiplySlots(f"{root.factor}_{j}", f"{ROOT}_{j}", f"{SCALED}_{j}")
            for j in self._layers
        ]
        return (
            Layer("squares", tuple(squares)),
            Layer("moments", (*roots, self._recombined(dict(rule.state), step))),
            Layer("direction", tuple(products)),
        )

    def _turns(self) -> tuple[verbs.Instruction, ...]:
        size = self.update.batch_size
        return () if size is None else (TakeTurns(size, PLACE, OUT_OF_BATCH, N_EXAMPLES),)


def require_few_ends(update: AbstractGradientStep, n_steps: int, n_sums: int) -> None:
    """Raise `SettingError` if steps differ that are too many to be written down.

    There are `n_sums` sums of weights in each of them, and as many of all that is remembered.
    """
    require_few_steps(update, n_steps, MOST_SUMS // (n_sums * (1 + len(update.remembered))))


def _of_layer(terms: Sum, layer: int) -> Combination:
    """A sum of quantities as a combination of a layer's slots."""
    return Combination(tuple(f"{name}_{layer}" for name in terms), tuple(terms.values()))


def _mapped_slot(argument: Combination, function: str, write: str) -> verbs.MapSlots:
    return verbs.MapSlots((Summand(argument, function),), ONE, (), 0.0, write)
