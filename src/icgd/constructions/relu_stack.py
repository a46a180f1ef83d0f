r"""relu-stack: ReLU attention, MLPs and product layers train an N-layer network.

wu, Theorem 1 and Theorem 5, corrected. Every token holds its example, all weights and scratch
space. By backpropagation the gradient of the risk (1 / 2n) sum_t loss(p_N(x_t), y_t) with respect
to V_j is (1 / 2n) sum_t s_{t,j} p_{t,j-1}^T, where s_N = r'(z_N) * u and s_j = r'(z_j) *
(V_{j+1}^T s_{j+1}). A gradient step of a plain network is a block of 2N + 3 layers that computes
it in this order:

    1 .. N        attention  p_j = r(V_j p_{j-1}), one head for each unit and ReLU of r; for smooth
                             activations the same heads write r'(V_j p_{j-1})
    N + 1         MLP        loss slope u(p_N, y) on examples, 0 on queries; kinked slopes
    N + 2 .. 2N+1 product    s_N = slope_N * u, then s_j = slope_j * (V_{j+1}^T s_{j+1})
    2N + 2        attention  V_j -= (step_size / 2n) sum_t s_{t,j} p_{t,j-1}^T
    2N + 3        MLP        clip the weights to the box, wipe all scratch

The paper has a separate layer for the slopes, 2N + 4 in all. If the output is linear, s_N is u, and
its product layer is omitted too. The block is repeated once per step; N + 1 further layers predict
the labels of the queries. Only r, r' and u are approximated, by sums of ReLUs, and only if they are
not piecewise linear. The weights of the transformer depend neither on the data nor on the length of
the prompt.

A layer norm takes three more layers forward, a fourth for the activation unless that is the
identity, and two more backward. Shortcuts into a layer are added by one layer. Rates of examples
multiply the slope of the loss in one product layer. Classes take two more layers, and the
reciprocal roots of Adam and RMSprop three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log, log2, sqrt
from typing import ClassVar

from icgd.approximation.relu_sum import (
    fit_exponential,
    fit_reciprocal,
    fit_reciprocal_root,
    fit_relu_sum,
    fit_with_common_knots,
)
from icgd.constructions.base import AbstractConstruction, checked_kink_width
from icgd.constructions.network import (
    LARGEST_ARGUMENT,
    ROUNDING_ROOM,
    Ranges,
    UpdateLayers,
    activations_of,
    backward_ranges,
    bias_slot,
    composed_slope,
    domain_objection,
    is_composed,
    jump_offsets,
    largest_argument,
    largest_norm,
    later_slopes,
    loss_argument,
    loss_jumps,
    loss_terms,
    map_everywhere,
    needed_functions,
    network_layout,
    precision_objection,
    ranges_on_domain,
    separate_positive_slots,
    slope_slot,
    units_slot,
)
from icgd.errors import ConstructionError
from icgd.problems.functions import (
    IDENTITY_FUNCTION,
    RECIPROCAL,
    capped_exponential,
    reciprocal_deviation,
    reciprocal_root,
    slope_of,
    split_at_jumps,
)
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import WEIGHTS
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive, set_fields
from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    Combination,
    Evaluation,
    MapSlots,
    MultiplySlots,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import (
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    RATES,
    TOKENS_PER_EXAMPLE,
    Layout,
    Role,
    Slot,
)
from icgd.program.network_instructions import Covary, MapDifferences, MapRowSums, ScaleCentred
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

ROOT_ERROR = 0.4
"""The relative error of a reciprocal root times the square of `pieces`: 1e-4 for 64 pieces."""

LARGEST_NORM_ERROR = 0.05
"""The largest relative error of the root of a norm, for which `largest_norm` is a bound."""

LEAST_ROOT, LARGEST_ROOT = 1e-30, 1e40
"""Limits on the largest gradient or deviation, so that no power of it in a proof overflows."""

EXPONENTIALS, SHARES = "exponentials", "shares"

MOST_PIECES = 2**17
"""The largest number of pieces; a fit with more takes minutes and gigabytes."""


@dataclass(frozen=True)
class ReluStack(AbstractConstruction):
    """2N + 2 layers per step; exact for piecewise-linear activations and losses.

    Args:
        pieces: the number of linear pieces of each smooth function. An activation and its slope
            share somewhat more pieces, with no loss of accuracy.
        kink_width: the width of the ramp that approximates a step, a power of two; the default is
            so narrow that hardly any argument lies on the ramp.

    Raises:
        SettingError: if a number is out of range.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.ReluStack(pieces=128), n_steps=2).summary().layers_per_step
        4
    """

    pieces: int = 64
    kink_width: float | None = None

    name: ClassVar[str] = "relu-stack"
    refined_by: ClassVar[str] = "pieces"
    coarsest: ClassVar[int] = 4
    finest: ClassVar[int] = 2**14
    takes_biases: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    takes_averages: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = True
    takes_sets: ClassVar[bool] = True
    takes_simplices: ClassVar[bool] = True
    takes_roots: ClassVar[bool] = True
    takes_shortcuts: ClassVar[bool] = True
    takes_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        pieces = count("pieces", self.pieces, most=MOST_PIECES)
        set_fields(self, pieces=pieces, kink_width=checked_kink_width(self.kink_width))

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        return ceil(1.01 * setting * sqrt(excess))  # the error is proportional to 1 / pieces^2

    def objection(self, problem: Problem) -> str | None:
        if reason := precision_objection(problem):
            return reason
        if not problem.gradient_step.has_root:
            return None
        largest = _largest_gradient(problem, ranges_on_domain(problem, margin=0.0), margin=0.0)
        if largest <= LARGEST_ROOT:
            return None
        return (
            f"its gradients can reach {largest:.3g} on the domain, and reciprocal roots of squares "
            f"are proved up to {LARGEST_ROOT:g} only; use a smaller box, domain, gradient scale or "
            "weight decay."
        )

    def may_be_accurate(self, problem: Problem) -> bool:
        needed = needed_functions(problem).values()
        is_curved = any(function.kind in ("smooth", "pieces") for function in needed)
        return not is_curved and not problem.network.norms

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        target = problem.network
        update = UpdateLayers(target, problem.gradient_step)
        functions = _fitted_functions(problem, self.pieces, self.kink_width)
        prediction, bias = output_slot(target, target.depth), bias_slot(target)
        # A slope of the loss that is not a sum of one-variable functions takes several layers,
        # fitted for all predictions that can occur.
        composed = None
        if is_composed(problem):
            margin = max(function.error for function in functions)
            largest = ranges_on_domain(problem, margin).outputs[-1]
            composed = composed_slope(problem, largest, prediction)
            functions += composed.fitted(self.pieces, self.kink_width)
        loss_slope = "loss_slope" if problem.domain.rate is None else "rated_slope"
        jumps = loss_jumps(problem, prediction)
        of_loss = [jump.slot for jump in jumps]
        of_loss += [operation.slot for operation in (composed.operations if composed else ())]
        layout = _layout(problem, update, loss_slope, of_loss)
        scratch = tuple(slot.name for slot in layout.having(Role.SCRATCH))
        # The gate, a power of two, exceeds the argument of every ReLU on the domain.
        largest = max(
            abs(term.scale) * function.high + abs(term.shift)
            for function in functions
            for term in function.terms()
        )
        largest = max(largest, composed.term.size if composed else 0.0)
        gate = 2.0 ** (1 + ceil(log2(largest)))

        block, of_shares = forward_pass(target, with_slopes=True), tuple[ReluSum, ...]()
        # The slope of the loss: a sum of functions of one variable, or softmax minus labels.
        summands = tuple(
            Summand(loss_argument(term, prediction), curve.name)
            for term in loss_terms(problem)
            if (curve := split_at_jumps(term.function).curve) is not None
        )
        if jumps:
            block.append(
                Layer(
                    "sides of jumps",
                    tuple(map_everywhere(j.argument, j.jump.positive.name, j.slot) for j in jumps),
                )
            )
            summands += tuple(Summand(Combination.of(j.slot), j.jump.steps.name) for j in jumps)
        if composed is not None:
            block += composed.layers()
            summands = (Summand(composed.term.combination, _IDENTITY),)
        if problem.loss_function.is_softmax:
            # Two MLP layers compute the softmax as 1 / sum_i exp(z_i - z_j). Differences are
            # capped: a class whose score is lower by the cap has a negligible probability.
            n_classes, error = target.output_width, ROOT_ERROR / self.pieces**2
            cap = float(ceil(log(n_classes * self.pieces**2 / ROOT_ERROR)))
            exponential = capped_exponential(cap)
            apart = MapDifferences(prediction, exponential.name, EXPONENTIALS)
            shares = MapRowSums(EXPONENTIALS, RECIPROCAL.name, SHARES, exp(-cap))
            block += [Layer("exponentials", (apart,)), Layer("shares", (shares,))]
            summands = (_copy_of(SHARES), Summand(Combination(("y",), (-1.0,)), _IDENTITY))
            margin = max(function.error for function in functions)
            reach = 2 * ROUNDING_ROOM * ranges_on_domain(problem, margin).outputs[-1]
            of_shares = (
                fit_exponential(exponential, max(reach, 2 * cap), error),
                fit_reciprocal(2 * n_classes * exp(cap), error),
            )
        # The slope is 0 at queries and outside the batch, so that these have no gradient.
        closed_by = (IS_QUERY, *update.closed_by)
        slope = MapSlots(summands, IS_EXAMPLE, closed_by, gate, "loss_slope")
        block.append(Layer("loss slope", (slope, *later_slopes(target), *update.decayed)))
        if problem.domain.rate is not None:
            rated = MultiplySlots("loss_slope", RATES, loss_slope)
            block.append(Layer("rates", (rated,)))
        block += backward_pass(target, loss_slope)
        # The gradient, then the update and the projection.
        gradient = (
            AccumulateOuterProduct(
                _delta_slot(target, j, loss_slope),
                output_slot(target, j - 1),
                update.gradient_scale,
                f"{update.gradient}_{j}",
                bias,
            )
            for j in range(1, target.depth + 1)
        )
        block += [Layer("gradient step", tuple(gradient)), *update.end(0, scratch)]

        # The prediction: a forward pass, and a copy into y at the queries only.
        forward = forward_pass(target, update.predicting)
        copy = MapSlots((_copy_of(prediction),), IS_QUERY, (IS_EXAMPLE,), gate, "y")
        written = (
            name
            for layer in forward
            for instruction in layer.instructions
            for name in instruction.writes()
        )
        copied = Layer("copy prediction", (copy, WipeSlots(tuple(written))))
        return StackProgram(
            construction=self.name,
            layout=layout,
            functions=(*functions, *_roots(problem, functions, self.pieces), *of_shares),
            block=tuple(block),
            n_steps=n_steps,
            prediction=(*forward, copied),
            schedule=update.schedule(n_steps, scratch),
        )


_IDENTITY = IDENTITY_FUNCTION.name


def _copy_of(slot: str) -> Summand:
    return Summand(Combination.of(slot), _IDENTITY)


def output_slot(target: MLP, layer: int) -> str:
    """Return the slot of p_j, after shortcuts."""
    if target.sources(layer):
        return f"sum_{layer}"
    return f"normed_{layer}" if _is_norm_alone(target, layer) else units_slot(layer)


def _is_norm_alone(target: MLP, layer: int) -> bool:
    """Return whether a layer has a norm but no activation, so that its norm is its output."""
    has_norm = layer in target.norms
    return has_norm and target.layer_activation(layer).value == IDENTITY_FUNCTION


def _is_linear_output(target: MLP, layer: int) -> bool:
    """Return whether a layer is the last one and linear, so that its delta is the loss slope."""
    has_norm = layer in target.norms
    is_linear = target.layer_activation(layer).value == IDENTITY_FUNCTION
    return layer == target.depth and is_linear and not has_norm


def _delta_slot(target: MLP, layer: int, loss_slope: str) -> str:
    """Return the slot of s_j."""
    return loss_slope if _is_linear_output(target, layer) else f"delta_{layer}"


def _layout(
    problem: Problem, update: UpdateLayers, loss_slope: str, of_loss: Sequence[str]
) -> Layout:
    """Lay out the slots of both passes, with those of the loss between them."""
    target, width = problem.network, problem.network.output_width
    layers, norms, wide = range(1, target.depth + 1), target.norms, target.widths
    forward = {units_slot(j): j for j in layers if not _is_norm_alone(target, j)}
    forward |= {slot: j for j in layers for slot in separate_positive_slots(target, j)}
    by_heads = {slope.write: j for j in layers for slope in _slopes_by_heads(target, j)}
    forward |= {name: j for name, j in by_heads.items() if name.startswith("curve_")}
    forward |= {f"sum_{j}": j for j in layers if target.sources(j)}
    forward |= {f"{kind}_{j}": j for kind in ("linear", "normed") for j in norms}
    loss = {EXPONENTIALS: width**2, SHARES: width} if problem.loss_function.is_softmax else {}
    loss |= dict.fromkeys(of_loss, width)
    loss |= {"loss_slope": width, loss_slope: width}
    backward = {f"passed_{j}": j for j in norms}
    backward |= {f"upstream_{j}": j for j in _upstream_layers(target)}
    own_delta = [j for j in layers if not _is_linear_output(target, j)]
    backward |= {f"delta_{j}": j for j in reversed(own_delta)}
    sizes = {name: wide[j] for name, j in forward.items()}
    sizes |= {f"{kind}_{j}": 1 for kind in ("variance", "scale", "shared") for j in norms}
    sizes |= {f"slope_{j}": wide[j] for j in own_delta} | loss
    sizes |= {name: wide[j] for name, j in backward.items()}
    scratch = [(name, (size,)) for name, size in sizes.items()]
    constants = (ONE, IS_EXAMPLE, IS_QUERY, TOKENS_PER_EXAMPLE, *update.constants)
    rates = () if problem.domain.rate is None else (Slot(RATES, (width,), Role.INPUT),)
    return network_layout(target, scratch, constants, update.slots, rates)


def forward_pass(target: MLP, weights: str = WEIGHTS, *, with_slopes: bool = False) -> list[Layer]:
    """Write p_j for j = 1 .. N into the slots that `output_slot` names.

    With slopes, the same heads write r'(V_j p_{j-1}) into slots `slope_j`. If r' jumps, at k say,
    they write its continuous part and relu(V_j p_{j-1} - k), and `later_slopes` adds the jump.

    The matrices V_j stand in slots `weights_1 .. weights_N`, or of another kind than `weights`. A
    layer norm takes more layers; the last of these, an MLP, also adds shortcuts:

        attention   linear = V_j p_{j-1}
        product     variance = cov(linear, linear)
        MLP         scale = 1 / sqrt(variance + eps), a sum of ReLUs
        product     normed = scale * (linear - mean(linear))
        MLP         units = r(normed), unless r is the identity; sum = r(normed) + p_i + ...
    """
    layers: list[Layer] = []
    for j in range(1, target.depth + 1):
        r, has_norm = target.layer_activation(j).value.name, j in target.norms
        normed, units, written = Combination.of(f"normed_{j}"), units_slot(j), list[MapSlots]()
        function, write = (_IDENTITY, f"linear_{j}") if has_norm else (r, units)
        inputs, bias = output_slot(target, j - 1), bias_slot(target)
        others = _slopes_by_heads(target, j) if with_slopes else ()
        apply = ApplyUnits(f"{weights}_{j}", inputs, function, write, bias, others or None)
        layers.append(Layer(f"forward {j}", (apply,)))
        if has_norm:
            linear, variance, scale = (f"{name}_{j}" for name in ("linear", "variance", "scale"))
            root = reciprocal_deviation(target.norm_eps).name
            reach = largest_norm(target.widths[j])
            norm = ScaleCentred(linear, scale, f"normed_{j}", reach=reach)
            layers += [
                Layer(f"variance {j}", (Covary(linear, linear, variance),)),
                Layer(f"scale {j}", (map_everywhere(Combination.of(variance), root, scale),)),
                Layer(f"norm {j}", (norm,)),
            ]
            if not _is_norm_alone(target, j):
                written.append(map_everywhere(normed, r, units))
            for slot, positive in separate_positive_slots(target, j).items():
                written.append(map_everywhere(normed, positive.name, slot))
        if sources := target.sources(j):
            value = Summand(normed, r) if has_norm else _copy_of(units)
            added = (_copy_of(output_slot(target, source)) for source in sources)
            written.append(MapSlots((value, *added), ONE, (), 0.0, output_slot(target, j)))
        if written:
            layers.append(Layer(f"outputs {j}", tuple(written)))
    return layers


def _slopes_by_heads(target: MLP, layer: int) -> tuple[Evaluation, ...]:
    """Return the functions of V_j p_{j-1} that the backward pass needs and heads evaluate."""
    if layer in target.norms or _is_linear_output(target, layer):
        return ()
    slope, evaluations = slope_of(target.layer_activation(layer).value), list[Evaluation]()
    if slope.curve is not None:
        evaluations.append(Evaluation(slope.curve.name, slope_slot(target, layer)))
    positives = separate_positive_slots(target, layer).items()
    return (*evaluations, *(Evaluation(positive.name, slot) for slot, positive in positives))


def backward_pass(target: MLP, loss_slope: str) -> list[Layer]:
    """Write the slots `delta_N .. delta_1` from the slope of the loss.

        delta_N = slope_N * loss_slope, or loss_slope itself if the output is linear
        delta_j = slope_j * (weights_{j+1}^T delta_{j+1} + the gradients from shortcuts)

    In a layer with a norm the slot `passed_j` holds this value, and two more layers pass it back
    through the norm.
    """
    layers: list[Layer] = []
    for j in range(target.depth, 0, -1):
        slope, delta, passed = f"slope_{j}", f"delta_{j}", f"passed_{j}"
        write = passed if j in target.norms else delta
        if _is_linear_output(target, j):
            continue
        if j == target.depth:
            product = MultiplySlots(slope, loss_slope, write=write)
            layers.append(Layer(f"backward {j}", (product,)))
        else:
            ends = target.ends(j)
            plus = [loss_slope if end == target.depth else f"upstream_{end}" for end in ends]
            above = (f"weights_{j + 1}", _delta_slot(target, j + 1, loss_slope))
            pulled = [PullBack(*above, slope, write, tuple(plus) or None)]
            if j in _upstream_layers(target):
                pulled.append(replace(pulled[0], slope=ONE, write=f"upstream_{j}"))
            layers.append(Layer(f"backward {j}", tuple(pulled)))
        if j in target.norms:
            normed, shared = f"normed_{j}", f"shared_{j}"
            through = ScaleCentred(passed, f"scale_{j}", delta, normed, shared)
            layers += [
                Layer(f"covariance {j}", (Covary(passed, normed, shared),)),
                Layer(f"back through norm {j}", (through,)),
            ]
    return layers


def _upstream_layers(target: MLP) -> list[int]:
    """Return the layers, except the last, in which shortcuts from units end.

    The gradient with respect to their outputs is also passed along the shortcut, so it is stored.
    """
    return sorted({end for start, end in target.shortcuts if start > 0 and end < target.depth})


def _fitted_functions(
    problem: Problem, pieces: int, kink_width: float | None
) -> tuple[ReluSum, ...]:
    """Fit every function on an interval that contains all arguments, including fitting errors.

    A fitted activation may exceed the range of the exact one by its error, which is known only
    after fitting. So widen the interval by this error and fit again until the error is covered.
    With free knots a wider interval hardly changes the error.
    """
    target, needed = problem.network, needed_functions(problem)
    # The same heads evaluate a smooth activation and its slope, so both have the same knots.
    by_heads = [r for j, r in enumerate(activations_of(target), start=1) if j not in target.norms]
    curved = ("smooth", "pieces")
    pairs = [
        (r.value, slope)
        for r in dict.fromkeys(by_heads)
        if (slope := slope_of(r.value).curve) is not None
        and r.value.kind in curved
        and slope.kind in curved
    ]
    shared = {function.name for pair in pairs for function in pair}
    outputs = [activation.value.name for activation in activations_of(target)]
    margin, worst, beyond = 0.0, "", jump_offsets(problem)
    while True:
        reach = ROUNDING_ROOM * largest_argument(problem, ranges_on_domain(problem, margin))
        if margin and not reach <= 2 * LARGEST_ARGUMENT:  # the iteration diverges
            raise ConstructionError(
                f"pieces={pieces} is too few for {worst}: the error of the fit grows with "
                "the interval, so no interval covers the layers' outputs. Give at least 2."
            )
        if margin and (reason := domain_objection(problem, margin)):
            raise ConstructionError(f"pieces={pieces} is too few: {reason}")
        wide = {name: reach + beyond.get(name, 0.0) for name in needed}
        fits = {
            name: fit_relu_sum(function, -wide[name], wide[name], pieces, kink_width)
            for name, function in needed.items()
            if name not in shared
        }
        for pair in pairs:
            shared_knots = fit_with_common_knots(pair, -reach, reach, pieces)
            fits |= {fit.name: fit for fit in shared_knots}
        functions = tuple(fits[name] for name in needed)
        overshoot, worst = max((f.error, f.name) for f in functions if f.name in outputs)
        if overshoot <= margin:
            return functions
        margin = 1.25 * overshoot


def _roots(problem: Problem, functions: tuple[ReluSum, ...], pieces: int) -> list[ReluSum]:
    """Fit the reciprocal roots of norms and of the update, if there are any, for the whole domain.

    A mean of squares is at most the largest square. For a variance, |z - mean| <= 2 max |z|; the
    range may be wider than needed.
    """
    target, root = problem.network, problem.gradient_step.rule(0).root
    margin = max(function.error for function in functions)
    ranges, error = ranges_on_domain(problem, margin), ROOT_ERROR / pieces**2
    roots: list[ReluSum] = []
    if target.norms:
        largest = 2 * ROUNDING_ROOM * max(ranges.linear[layer - 1] for layer in target.norms)
        function, least = reciprocal_deviation(target.norm_eps), min(error, LARGEST_NORM_ERROR)
        roots.append(fit_reciprocal_root(function, max(largest, LEAST_ROOT) ** 2, least))
    if root is not None:
        largest = ROUNDING_ROOM * _largest_gradient(problem, ranges, margin)
        end = max(largest, LEAST_ROOT) ** 2
        roots.append(fit_reciprocal_root(reciprocal_root(root.eps), end, error))
    return roots


def _largest_gradient(problem: Problem, ranges: Ranges, margin: float) -> float:
    """Bound the entries of the gradient as the update scales it, including the weight decay."""
    update, deltas = problem.gradient_step, backward_ranges(problem, ranges, margin).deltas
    sizes = [max(p, 1.0 * problem.network.biases) for p in ranges.outputs[:-1]]
    largest = max(delta * p for delta, p in zip(deltas, sizes, strict=True))
    decay = max(variant.rule(0).decay for variant in update.variants)
    return update.gradient_factor / 2 * largest + decay * update.reach
