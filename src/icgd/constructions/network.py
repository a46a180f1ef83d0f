"""Slots, ranges, functions and update layers shared by the constructions that train a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from icgd.constructions.base import require_few_steps
from icgd.constructions.composition import Composition, composition_of
from icgd.problems.functions import (
    IDENTITY_FUNCTION,
    RELU,
    Activation,
    Jump,
    reciprocal_root,
    slope_of,
    split_at_jumps,
)
from icgd.problems.losses import Loss, SlopeTerm
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import (
    AVERAGE,
    GRADIENT,
    SCALED,
    SQUARE,
    WEIGHTS,
    AbstractGradientStep,
    Sum,
)
from icgd.problems.piecewise import Function
from icgd.problems.problem import Problem
from icgd.problems.scalar import ScalarFunction
from icgd.problems.sets import LayerSet, sets_of
from icgd.program.instructions import (
    ClipSlots,
    Combination,
    Instruction,
    MapSlots,
    MultiplySlots,
    Summand,
    WipeSlots,
)
from icgd.program.layout import N_EXAMPLES, ONE, OUT_OF_BATCH, PLACE, Layout, Role, Slot
from icgd.program.network_instructions import Assignment, Recombine, TakeTurns
from icgd.program.program import Layer
from icgd.program.set_instructions import (
    CopyColumns,
    Faces,
    MeanExcess,
    ProjectSlot,
    SortRows,
    ThresholdRows,
)

# Slots of the residual stream.


def units_slot(layer: int) -> str:
    """Return the slot of p_j = r(z_j), where p_0 is the input."""
    return "x" if layer == 0 else f"units_{layer}"


def bias_slot(target: MLP) -> str | None:
    """Return the slot of the constant that biases multiply, or None without biases."""
    return ONE if target.biases else None


def activations_of(target: MLP) -> list[Activation]:
    """Return the activation of every layer."""
    return [target.layer_activation(layer) for layer in range(1, target.depth + 1)]


def has_kink(activation: Activation) -> bool:
    """Return whether the activation is piecewise linear but not linear."""
    return activation.value.kind == "kinked" and bool(activation.value.knots)


def slope_slot(target: MLP, layer: int) -> str:
    """Return the slot of the continuous part of r'(z_j), which is all of it without jumps."""
    jumps = slope_of(target.layer_activation(layer).value).jumps
    return f"curve_{layer}" if jumps else f"slope_{layer}"


def positive_slots(target: MLP, layer: int) -> dict[str, Jump]:
    """Return the slot of relu(z_j - k) for each jump k of r'; if r is relu, the slot of p_j."""
    activation = target.layer_activation(layer)
    jumps = slope_of(activation.value).jumps
    if activation.value == RELU:
        return {units_slot(layer): jump for jump in jumps}
    if len(jumps) == 1:
        return {f"positive_{layer}": jump for jump in jumps}
    return {f"positive_{layer}_{number}": jump for number, jump in enumerate(jumps, start=1)}


def separate_positive_slots(target: MLP, layer: int) -> dict[str, ScalarFunction]:
    """Return the functions relu(z - k) by the `positive_slots` that are not slots of units."""
    if target.layer_activation(layer).value == RELU:
        return {}
    return {slot: jump.positive for slot, jump in positive_slots(target, layer).items()}


def later_slopes(target: MLP) -> tuple[MapSlots, ...]:
    """Return instructions of an MLP that complete r'(z_j) if it jumps or follows a norm.

    A ramp of width w approximates a jump of r', at 0 say:

        1 - relu(w - z) / w + relu(-z) / w

    For z < 0 two numbers of size |z| / w cancel, so the ramp loses |z| / w units of rounding.
    Evaluated at relu(z) instead of z the ramp has the same values, and nothing cancels. So an MLP
    evaluates the ramp of a jump at k at relu(z - k), however narrow it is. If r is relu itself, the
    stream holds relu(z) already. The continuous part of r' is added.
    """
    slopes = []
    for layer, activation in enumerate(activations_of(target), start=1):
        curve, positives = slope_of(activation.value).curve, positive_slots(target, layer)
        if not positives and layer not in target.norms:
            continue
        summands = [Summand(Combination.of(slot), j.steps.name) for slot, j in positives.items()]
        if curve is not None and layer in target.norms:
            summands.append(Summand(Combination.of(f"normed_{layer}"), curve.name))
        elif curve is not None:
            continuous = Combination.of(slope_slot(target, layer))
            summands.append(Summand(continuous, IDENTITY_FUNCTION.name))
        slopes.append(MapSlots(tuple(summands), ONE, (), 0.0, f"slope_{layer}"))
    return tuple(slopes)


def map_everywhere(argument: Combination, function: str, write: str) -> MapSlots:
    """Evaluate a function at every token."""
    return MapSlots((Summand(argument, function),), ONE, (), 0.0, write)


def network_layout(
    target: MLP,
    scratch: Iterable[tuple[str, tuple[int, ...]]],
    constants: Iterable[str],
    update: Iterable[Slot] = (),
    rates: Iterable[Slot] = (),
) -> Layout:
    """Lay out a token: example, rates, weights, slots of the update, scratch, constants.

    `scratch` has the names and shapes of the scratch slots.
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


# The functions that a construction evaluates.


def loss_terms(problem: Problem) -> tuple[SlopeTerm, ...]:
    """Return the terms of the loss slope; none if it is not a sum of one-variable functions."""
    return problem.loss_function.slope_terms or ()


def factor_of(function: ScalarFunction) -> float | None:
    """Return a if the function is x -> a x, or None."""
    zero, one = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    is_line = function.kind == "kinked" and not function.knots and float(function(zero)) == 0.0
    return float(function(one)) if is_line else None


def loss_argument(term: SlopeTerm, prediction: str) -> Combination:
    """Return the argument of a term of the loss slope, from predictions and labels."""
    factors = {prediction: term.prediction, "y": term.label}
    used = {slot: factor for slot, factor in factors.items() if factor != 0.0}
    return Combination(tuple(used), tuple(used.values()))


@dataclass(frozen=True)
class LossJump:
    """A jump of a term of the loss slope; `slot` holds relu(argument - place of the jump)."""

    slot: str
    argument: Combination
    jump: Jump


def loss_jumps(problem: Problem, prediction: str) -> list[LossJump]:
    """Return the jumps of the loss slope, each with the slot that its ramp reads.

    The ramp reads a relu for the reason given at `later_slopes`.
    """
    jumps = [
        (loss_argument(term, prediction), jump)
        for term in loss_terms(problem)
        for jump in split_at_jumps(term.function).jumps
    ]
    return [LossJump(f"side_{number}", *pair) for number, pair in enumerate(jumps, start=1)]


def needed_functions(problem: Problem) -> dict[str, ScalarFunction]:
    """Return all functions that layers evaluate, by name.

    They are the activations, their slopes, the terms of the loss slope, and the identity, which
    copies the prediction.
    """
    activations = activations_of(problem.network)
    functions = [activation.value for activation in activations]
    for activation in activations:
        slope = slope_of(activation.value)
        functions += [slope.curve] if slope.curve is not None else []
        functions += [jump.steps for jump in slope.jumps]
    for term in loss_terms(problem):
        slope = split_at_jumps(term.function)
        functions += [slope.curve] if slope.curve is not None else []
        functions += [f for jump in slope.jumps for f in (jump.steps, jump.positive)]
    for layer in range(1, problem.network.depth + 1):
        functions += separate_positive_slots(problem.network, layer).values()
    return {function.name: function for function in (*functions, IDENTITY_FUNCTION)}


def jump_offsets(problem: Problem) -> dict[str, float]:
    """Return |k| for every step function, whose argument relu(z - k) exceeds |z| by up to |k|."""
    slopes = [slope_of(r.value) for r in activations_of(problem.network)]
    slopes += [split_at_jumps(term.function) for term in loss_terms(problem)]
    return {jump.steps.name: abs(jump.place) for slope in slopes for jump in slope.jumps}


def look_up_groups(problem: Problem) -> list[tuple[ScalarFunction, ...]]:
    """Return the smooth functions of each activation, then of the loss, without repetitions.

    All are bounded: an activation that grows linearly is split into z gate(z) + rest(z).
    """
    groups: list[tuple[ScalarFunction | None, ...]] = [
        (activation.gate or activation.value, activation.rest, activation.derivative)
        for activation in activations_of(problem.network)
    ]
    groups += [(term.function,) for term in loss_terms(problem)]
    new_groups: list[tuple[ScalarFunction, ...]] = []
    seen: set[str] = set()
    for group in groups:
        smooth = [f for f in group if f and f.kind == "smooth" and f.name not in seen]
        seen.update(function.name for function in smooth)
        if smooth:
            new_groups.append(tuple(smooth))
    return new_groups


def look_up_functions(problem: Problem) -> tuple[ScalarFunction, ...]:
    """Return the functions of all `look_up_groups`."""
    return tuple(function for group in look_up_groups(problem) for function in group)


# The ranges of all computed values, over the whole domain.


ROUNDING_ROOM = 1 + 2.0**-10
"""The factor by which ranges are enlarged to cover rounding errors."""

LEAST_REACH = 2.0**-200
"""Bounds on inputs are at least this large, so that underflow, which proofs add, is negligible."""

LARGEST_ARGUMENT = 1e12
"""Beyond this, a preactivation's rounding error is as large as the features of an activation."""


@dataclass(frozen=True)
class Ranges:
    """Bounds over the whole domain: on |preactivations| and on |layer outputs| p_0 .. p_N.

    `preactivations` are taken after a norm, `linear` before it: V_j p_{j-1}.
    """

    preactivations: tuple[float, ...]
    outputs: tuple[float, ...]
    linear: tuple[float, ...]


@dataclass(frozen=True)
class BackwardRanges:
    """Bounds on |slopes r'|, |V_{j+1}^T delta_{j+1}| and |delta_j|.

    Entry j - 1 belongs to layer j; the last entry of `pulled_back` bounds the loss slope.
    """

    slopes: tuple[float, ...]
    pulled_back: tuple[float, ...]
    deltas: tuple[float, ...]


def largest_size(function: ScalarFunction, reach: float) -> float:
    """Return max |f| on [-reach, reach]."""
    end = torch.tensor(reach, dtype=torch.float64)
    least, largest = function.bounds(-end, end)
    return float(torch.maximum(-least, largest))


def largest_norm(width: int) -> float:
    """Bound the outputs of a layer norm of this width, computed with a fitted root.

    One of k numbers differs from their mean by at most sqrt(k) standard deviations, and the fitted
    reciprocal root is less than twice too large.
    """
    return 2 * sqrt(width)


def largest_forward(problem: Problem, layer: int, largest: float) -> float:
    """Bound |V_j p + bias| over all weights of layer j and |entries of p| <= `largest`."""
    target, weights = problem.network, problem.network_oracle.sets.layers[layer - 1]
    if weights.bound is not None:
        return weights.bound * (target.widths[layer - 1] * largest + target.biases)
    sizes = largest_weights(weights)
    inputs = torch.full((sizes.shape[1],), largest, dtype=torch.float64)
    inputs[target.widths[layer - 1] :] = 1.0  # the input of the biases
    return float((sizes @ inputs).max())


def largest_backward(problem: Problem, layer: int, largest: float) -> float:
    """Bound |V_j^T delta| over all weights of layer j and |entries of delta| <= `largest`."""
    target, weights = problem.network, problem.network_oracle.sets.layers[layer - 1]
    if weights.bound is not None:
        return target.widths[layer] * weights.bound * largest
    columns = largest_weights(weights)[:, : target.widths[layer - 1]].sum(0)
    return float(columns.max()) * largest


def largest_weights(weights: LayerSet) -> Tensor:
    """Return the largest absolute value of each weight of a layer, as a matrix."""
    low, high = weights.ends
    return torch.maximum(low.abs(), high.abs()).view(weights.shape)


def ranges_on_domain(problem: Problem, margin: float, *, gated: bool = False) -> Ranges:
    """Propagate the bounds of the domain and the box through the target network.

        |z_j| <= k_{j-1} box max|p_{j-1}|,   |p_j| <= max |r| on [-|z_j|, |z_j|]

    A construction fits its functions on these ranges. `margin`, the error of fitted activations, is
    added to the outputs. Biases add the box to |z_j|, and shortcuts add the outputs of their
    sources. If `gated`, activations may be computed as z gate(z) + rest(z).
    """
    target = problem.network
    preactivations: list[float] = []
    linear: list[float] = []
    outputs = [max(problem.domain.x, LEAST_REACH)]
    for layer in range(1, target.depth + 1):
        linear.append(largest_forward(problem, layer, outputs[-1]))
        reach = largest_norm(target.widths[layer]) if layer in target.norms else linear[-1]
        preactivations.append(reach)
        activation = target.layer_activation(layer)
        largest = largest_size(activation.value, reach)
        if gated and activation.gate is not None:
            rest = largest_size(activation.rest, reach) if activation.rest else 0.0
            largest = max(largest, reach * largest_size(activation.gate, reach) + rest)
        outputs.append(largest + margin + sum(outputs[source] for source in target.sources(layer)))
    return Ranges(tuple(preactivations), tuple(outputs), tuple(linear))


def backward_ranges(problem: Problem, ranges: Ranges, margin: float) -> BackwardRanges:
    """Propagate the bounds of the forward pass through the backward pass.

        |delta_N| <= max |r'| max |u|,   |delta_j| <= max |r'| k_{j+1} box max|delta_{j+1}|

    The backward pass of a norm of k numbers multiplies sizes by at most (2 + sqrt(k)) / sqrt(eps),
    and by twice that with a fitted root. Shortcuts add.
    """
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
            pulled = largest_backward(problem, layer + 1, deltas[layer + 1])
            pulled_back[layer] = pulled + sum(pulled_back[end] for end in target.ends(layer))
        through_norm = 1.0
        if layer in target.norms:
            through_norm = 2 * (2 + largest_norm(target.widths[layer])) / sqrt(target.norm_eps)
        deltas[layer] = slopes[layer - 1] * pulled_back[layer] * through_norm
    rows = [[sizes[layer] for layer in sorted(sizes)] for sizes in (pulled_back, deltas)]
    return BackwardRanges(tuple(slopes), *map(tuple, rows))


def largest_loss_argument(problem: Problem, term: SlopeTerm, prediction: float) -> float:
    """Return the largest argument of a term of the loss slope."""
    return abs(term.prediction) * prediction + abs(term.label) * problem.domain.y


def composed_slope(problem: Problem, largest: float, slot: str = "prediction") -> Composition:
    """Return the composition for a loss slope that is not a sum of one-variable functions.

    The prediction, at most `largest` in absolute value, stands in `slot`.
    """
    sizes = ROUNDING_ROOM * largest, ROUNDING_ROOM * problem.domain.y
    return composition_of(problem.loss, slot, sizes)


def is_composed(problem: Problem) -> bool:
    """Return whether the slope of the loss needs a `Composition`."""
    return problem.loss_function.slope_terms is None and not problem.loss_function.is_softmax


def largest_loss_slope(problem: Problem, prediction: float) -> float:
    """Bound |u| for predictions of at most this size."""
    if problem.loss_function.is_softmax:
        return 1.0 + problem.domain.y  # a probability is at most 1
    if is_composed(problem):
        return composed_slope(problem, prediction).term.size
    return sum(
        largest_size(term.function, largest_loss_argument(problem, term, prediction))
        for term in loss_terms(problem)
    )


def largest_argument(problem: Problem, ranges: Ranges) -> float:
    """Return the largest argument of any function: activations, loss slope, copied prediction."""
    prediction = ranges.outputs[-1]
    in_loss = (largest_loss_argument(problem, term, prediction) for term in loss_terms(problem))
    return max(*ranges.preactivations, prediction, *in_loss)


def domain_objection(problem: Problem, margin: float = 0.0, *, gated: bool = False) -> str | None:
    """Return the objection that arguments leave the domain of a function, or None."""
    target, ranges = problem.network, ranges_on_domain(problem, margin, gated=gated)
    sizes: list[tuple[ScalarFunction | Loss, float, str]] = [
        (target.layer_activation(layer).value, size, f"the preactivations of layer {layer}")
        for layer, size in enumerate(ranges.preactivations, start=1)
    ]
    if is_composed(problem):
        largest = max(ranges.outputs[-1], problem.domain.y)
        sizes.append((problem.loss_function, largest, "predictions and labels"))
    sizes += [
        (term.function, largest_loss_argument(problem, term, ranges.outputs[-1]), "errors")
        for term in loss_terms(problem)
    ]
    for function, size, argument in sizes:
        if not ROUNDING_ROOM * size <= min(-function.low, function.high):
            return (
                f"{argument} can reach {size:.4g} on the domain, and {function} is defined on "
                f"[{function.low:g}, {function.high:g}] only. Define it there, by low= and high=, "
                "or use a smaller box or domain."
            )
    return None


def text_objection(problem: Problem, *served: str) -> str | None:
    """Return the objection to an activation defined by a text, of a kind not `served`, or None."""
    for activation in activations_of(problem.network):
        if isinstance(activation.value, Function) and activation.value.kind not in served:
            return (
                f"it has no heads for {activation.value}, which is defined by a text; use "
                "relu-stack."
            )
    return None


def precision_objection(problem: Problem) -> str | None:
    """Return the objection that preactivations get too large for float64, or None."""
    if reason := domain_objection(problem):
        return reason
    ranges = ranges_on_domain(problem, margin=0.0)
    largest = max(largest_argument(problem, ranges), *ranges.linear)
    if largest <= LARGEST_ARGUMENT:
        return None
    return (
        f"its preactivations can reach {largest:.3g} on the domain, where float64 leaves "
        "no digits to evaluate an activation; use a smaller box or domain."
    )


# The layers of an update.


ROOT, PRODUCT = "root", "product"
SORTED, EXCESS = "sorted", "excess"

SLOT_OF = {SQUARE: PRODUCT, SCALED: PRODUCT}
"""The slots of a rule's quantities that are named differently."""

MOST_SUMS = 10**5
"""The largest number of sums in the update layers of all steps; more take minutes and gigabytes."""


class UpdateLayers:
    """The layers after the backward pass, which update and project the weights.

    Plain descent adds the gradient directly to the weights, and projects them. All other rules
    (`problems/optimisers.py`) collect the gradient in separate slots, and one MLP layer sets
    weights and state to linear combinations:

        MLP   weights = clip(sum of coefficient * slot), state = sum of coefficient * slot, wipe

    A rule with a root takes three more layers:

        product   square = gradient * gradient
        MLP       root = 1 / (sqrt(sum) + eps), a sum of ReLUs; state = sum of coefficient * slot
        product   scaled = factor * root

    `square` and `scaled` share the slot `product`, which the MLP between them wipes.

    The last layer also updates the average of the weights, if there is one.

    It clips if every layer of the network has a box [-b, b]. For all other sets
    (`problems/sets.py`) plain descent projects instead of clipping; other rules need one layer
    more for the projection, and one for the average. A simplex of more than two weights needs
    layers that sort.

    Only these layers may differ from step to step. In a step on a batch the last layer also
    selects the next batch.
    """

    def __init__(
        self, target: MLP, update: AbstractGradientStep, unit: str = ONE, scale: str = ONE
    ) -> None:
        self.update, self.layers = update, range(1, target.depth + 1)
        self.sets = dict(zip(self.layers, sets_of(target, update.box).layers, strict=True))
        # For each layer whose rows lie on a simplex: the length and the sum of a row.
        self.simplices = {j: s.simplex for j, s in self.sets.items() if s.simplex is not None}
        # The updates of a layer's weights, and of its biases where their options differ.
        self.groups: dict[int, tuple[AbstractGradientStep, AbstractGradientStep | None]] = {}
        for j in self.layers:
            weights, bias = (update.of_weights(f"{kind}_{j}") for kind in (WEIGHTS, "bias"))
            differs = target.biases and bias is not weights
            self.groups[j] = (weights, bias if differs else None)
        self._shared: dict[str, Layer] = {}
        # If slots hold s w instead of the weights w, `unit` is the slot of |s| and `scale` that of
        # s: bounds on weights are multiplied by them.
        self.unit, self.scale = unit, scale
        # The kind of slot to which the gradient is added, and the factor of delta times input.
        self.gradient = WEIGHTS if update.is_plain else GRADIENT
        factor = -update.size_of(0) if update.is_plain else update.gradient_factor
        self.gradient_scale = factor / 2
        # The weights that predict: their average, if there is one.
        self.predicting = WEIGHTS if update.average is None else AVERAGE
        # In steps on batches a flag gates off the examples outside the batch.
        has_batches = update.batch_size is not None
        self.constants = (N_EXAMPLES,) if has_batches else ()
        self.closed_by = (OUT_OF_BATCH,) if has_batches else ()
        shared = [] if update.is_plain else [GRADIENT]
        shared += [PRODUCT, ROOT] if update.has_root else []
        kinds = [(kind, Role.PARAMETER) for kind in update.remembered]
        kinds += [(kind, Role.SHARED) for kind in shared]
        self.slots = (
            *(
                Slot(f"{kind}_{layer}", shape, role)
                for kind, role in kinds
                for layer, shape in enumerate(target.matrix_shapes, start=1)
            ),
            *(
                Slot(f"{kind}_{j}", (target.widths[j], width), Role.SHARED)
                for kind in (SORTED, EXCESS)
                for j, (width, _) in self.simplices.items()
            ),
            *(Slot(name, (1,), Role.TURN) for name in (PLACE, OUT_OF_BATCH) if has_batches),
        )
        # These initialise the gradient with the weight decay, before the examples add to it. A rule
        # without a root has the decay among its coefficients instead.
        decays = self._sums(lambda group: {GRADIENT: {WEIGHTS: group.rule(0).decay}})
        self.decayed: tuple[Instruction, ...] = tuple(
            map_everywhere(sums[GRADIENT], IDENTITY_FUNCTION.name, f"{GRADIENT}_{layer}")
            for layer, sums in decays.items()
            if update.has_root
            and any((*sums[GRADIENT].coefficients, *(sums[GRADIENT].of_bias or ())))
        )

    def end(self, step: int, scratch: tuple[str, ...]) -> tuple[Layer, ...]:
        """Return the layers of a step after the gradient; these also wipe `scratch`."""
        update, layers, rule = self.update, self.layers, self.update.rule(step)
        # The layers of a root: squares of the gradient, moments and root, and their product.
        before: list[Layer] = []

        def last_sums(update: AbstractGradientStep) -> dict[str, Sum]:
            rule = update.rule(step)
            return rule.linear if rule.root is None else {WEIGHTS: rule.weights}

        sums = self._sums(last_sums)
        if rule.root is not None:
            function = reciprocal_root(rule.root.eps).name
            roots = (
                map_everywhere(
                    _of_layer({ROOT: rule.root.argument}, j)[ROOT], function, f"{ROOT}_{j}"
                )
                for j in layers
            )
            state = self._recombine({j: _of_layer(rule.state, j) for j in layers})
            wiped = WipeSlots(tuple(f"{PRODUCT}_{j}" for j in layers))
            squares = self._products("squares", GRADIENT, GRADIENT)
            moments = Layer("moments", (*roots, state, wiped))
            before += [squares, moments, self._products("direction", rule.root.factor, ROOT)]
        is_plain, size = update.is_plain, update.batch_size
        # Slots to wipe. Those of sorting are wiped by the layers of `_simplices`, after this one.
        shared = (slot.name for slot in self.slots if slot.role is Role.SHARED)
        wiped_slots = (*scratch, *(s for s in shared if not s.startswith((SORTED, EXCESS))))
        turns = () if size is None else (TakeTurns(size, PLACE, OUT_OF_BATCH, N_EXAMPLES),)
        kept_share = None if update.average is None else update.kept_of_average(step)
        # Plain descent has moved the weights already. Other rules move them here; a clip to boxes
        # is part of the move, while other projections and the average of their result need layers.
        changes: tuple[Instruction, ...] = self._projections()
        after = self._simplices()
        if not is_plain and self._boxes_only:
            changes = (self._recombine(sums, kept_share),)
        elif not is_plain:
            after = (Layer("project", changes), *after)
            changes = (self._recombine(sums),)
            if kept_share is not None:
                mean = {AVERAGE: {AVERAGE: kept_share, WEIGHTS: 1.0 - kept_share}}
                means = self._recombine({j: _of_layer(mean, j) for j in layers})
                after = (*after, Layer("average", (means,)))
        title = "clip and wipe" if is_plain else "update"
        update_layer = Layer(title, (*changes, WipeSlots(wiped_slots), *turns))
        return (*before, update_layer, *after)

    def _products(self, title: str, left: str, right: str) -> Layer:
        """Return the layer that multiplies two kinds of slots; a schedule's steps share it."""
        if title not in self._shared:
            products = (
                MultiplySlots(f"{left}_{j}", f"{right}_{j}", f"{PRODUCT}_{j}") for j in self.layers
            )
            self._shared[title] = Layer(title, tuple(products))
        return self._shared[title]

    @property
    def _boxes_only(self) -> bool:
        """Whether every layer has a box [-b, b]."""
        return all(of_layer.bound is not None for of_layer in self.sets.values())

    def _projections(self) -> tuple[Instruction, ...]:
        """Return the projections of all weights, one clip for all layers with the same bound.

        Rows on a simplex are copied for the layers of `_simplices`.
        """
        by_bound: dict[float, list[str]] = {}
        others: list[Instruction] = []
        copies = [CopyColumns(f"{WEIGHTS}_{j}", f"{SORTED}_{j}") for j in self.simplices]
        for layer, of_layer in self.sets.items():
            slot = f"{WEIGHTS}_{layer}"
            if of_layer.bound is not None:
                by_bound.setdefault(of_layer.bound, []).append(slot)
            elif of_layer.faces:
                faces = tuple(Faces(*face) for face in of_layer.faces)
                others.append(ProjectSlot(slot, faces, self.unit, self.scale))
        clips = (ClipSlots(tuple(slots), b, self.unit) for b, slots in by_bound.items())
        return (*copies, *clips, *others)

    def _simplices(self) -> tuple[Layer, ...]:
        """Return the layers that project rows onto a simplex.

        The projection of w onto {sum = total} is relu(w - t), where the threshold t is the largest
        of (sum of the k largest entries - total) / k over k. So sort a copy of the row, compute
        these mean excesses, take their maximum by a tournament, and subtract it.
        """
        if not self.simplices:
            return ()
        # Stage by stage, the rows of all layers are sorted in parallel.
        stages: dict[str, list[list[SortRows]]] = {SORTED: [], EXCESS: []}
        for j, (width, _) in self.simplices.items():
            networks = {SORTED: sorting_network(width), EXCESS: tournament(width)}
            for kind, network in networks.items():
                for number, pairs in enumerate(network):
                    stages[kind] += [[]] if number == len(stages[kind]) else []
                    stages[kind][number].append(SortRows(f"{kind}_{j}", pairs))
        means = (
            MeanExcess(f"{SORTED}_{j}", total, f"{EXCESS}_{j}")
            for j, (_, total) in self.simplices.items()
        )
        ends = (
            ThresholdRows(f"{WEIGHTS}_{j}", f"{EXCESS}_{j}", total)
            for j, (_, total) in self.simplices.items()
        )
        used, excesses = (
            WipeSlots(tuple(f"{kind}_{j}" for j in self.simplices)) for kind in (SORTED, EXCESS)
        )
        return (
            *(Layer("sort", tuple(stage)) for stage in stages[SORTED]),
            Layer("mean excess", (*means, used)),
            *(Layer("largest excess", tuple(stage)) for stage in stages[EXCESS]),
            Layer("simplex", (*ends, excesses)),
        )

    def _sums(
        self, sums_of: Callable[[AbstractGradientStep], dict[str, Sum]]
    ) -> dict[int, dict[str, Combination]]:
        """Return sums that depend on the group of the weights, for every layer."""
        by_update = {id(update): sums_of(update) for update in self.update.variants}
        return {
            layer: _of_layer(
                by_update[id(weights)], layer, None if bias is None else by_update[id(bias)]
            )
            for layer, (weights, bias) in self.groups.items()
        }

    def _recombine(
        self, sums: dict[int, dict[str, Combination]], kept_share: float | None = None
    ) -> Recombine:
        """Set slots of all layers to sums of slots; clip weights to boxes, and average them."""
        assignments = []
        for layer, values in sums.items():
            bound = self.sets[layer].bound if self._boxes_only else None
            for kind, value in values.items():
                write = f"{kind}_{layer}"
                if kind != WEIGHTS:
                    assignments.append(Assignment(value, write))
                elif kept_share is None:
                    assignments.append(Assignment(value, write, bound))
                else:
                    average = Assignment(value, write, bound, f"{AVERAGE}_{layer}", kept_share)
                    assignments.append(average)
        return Recombine(tuple(assignments), self.unit)

    def schedule(self, n_steps: int, scratch: tuple[str, ...]) -> tuple[tuple[Layer, ...], ...]:
        """Return the update layers of every step, or nothing if all steps have the same."""
        if self.update.is_constant:
            return ()
        self.update.require_steps(n_steps)
        require_few_updates(self.update, n_steps, len(self.layers))
        return tuple(self.end(step, scratch) for step in range(n_steps))


def sorting_network(width: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return stages of disjoint pairs that sort `width` entries, by Batcher's merge exchange."""
    top = 2 ** max((width - 1).bit_length() - 1, 0)
    stages, p = [], top
    while p:
        q, r, d = top, 0, p
        while True:
            stages.append(tuple((i, i + d) for i in range(width - d) if i & p == r))
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return tuple(stages)


def tournament(width: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return stages of disjoint pairs that move the largest entry to the front."""
    stages = []
    while width > 1:
        half = (width + 1) // 2
        stages.append(tuple((i, i + half) for i in range(width - half)))
        width = half
    return tuple(stages)


def _of_layer(
    sums: Mapping[str, Sum], layer: int, of_bias: Mapping[str, Sum] | None = None
) -> dict[str, Combination]:
    """Return sums of quantities as combinations of a layer's slots; its bias may have others."""
    combinations = {}
    for kind, terms in sums.items():
        others = None if of_bias is None else of_bias[kind]
        names = dict.fromkeys((*terms, *(others or ())))  # without decay a sum has fewer terms
        combinations[kind] = Combination(
            tuple(f"{SLOT_OF.get(name, name)}_{layer}" for name in names),
            tuple(terms.get(name, 0.0) for name in names),
            None if others is None else tuple(others.get(name, 0.0) for name in names),
        )
    return combinations


def require_few_updates(update: AbstractGradientStep, n_steps: int, n_sums: int) -> None:
    """Raise `SettingError` if the update layers of `n_steps` different steps are too large.

    Each step has `n_sums` sums for the weights, and as many for every quantity of the state.
    """
    require_few_steps(update, n_steps, MOST_SUMS // (n_sums * (1 + len(update.remembered))))
