r"""cot-network: one reused softmax block trains an N-layer network by chain of thought.

The transformer is softmax attention - MLP - softmax attention - MLP, with the same weights for all
layers of the network and for both passes, so its size does not grow with N. It writes a chain of
blocks (`program/chain.py`), each from two earlier ones: the newest, and one that its first layer
finds. Each block is one of these:

              first      second         flat               weights                   flags
    F_i       o_i        o_{i-1}        relu(c - z_i) / c  W_i                       is_forward
    B_i       delta_i    W_i^T delta_i  0                  W_i - eta/2b delta o^T    is_backward
    X, Y      x or y     0              0                  0                         is_data

`first`, `second` and `flat` have a column for each of the b examples of the round. Further flags
travel with the weights: whether the layer is linear, kinked, or which smooth activation it has.

    attention   copy the second block, by one head over all blocks so far (`FindBlock`)
    MLP         route by the flags: the inputs o_{i-1} or x, the weights, and
                delta_i = r'(z_i) * W_{i+1}^T delta_{i+1}, or r'(z_N) * 2 (o_N - y)
    attention   multiply, over a grid of tokens that a linear map along the sequence makes: heads
                with o_j in their scores and the values [W[:, j]; delta] give z = W o and
                delta o^T, and heads with delta_r and W[r, :] give W^T delta; 2 d heads per example
    MLP         write o = r(z), the mask of flat units, the clipped weights, and the new flags

By induction over the chain, F_i holds the outputs of layer i and B_i its delta and new weights, as
in backpropagation. MLPs are exact. The only errors are those of the grid, which are rounding in
products and 1e-11 in look-ups, and of units on a kink, whose z lies in (0, c).

The paper treats ReLU. Beyond it:

- smooth activations: heads with z in their scores look up r and r' on the grid. F carries the
  slope, and delta = slope * up is a product of two rows, which takes an attention layer between the
  other one and the last MLP. softplus, gelu and silu are z gate(z) + rest(z), multiplied in that
  layer; so every looked-up function is bounded, and no table limits z.
- the logistic loss: F carries sigmoid(z), so the slope of the loss is a difference too. The slope
  of the huber loss is a clip, which an MLP computes exactly.
- classes: F carries softmax(z), and the slope is a difference again. A head with one token per
  class and the scores z returns the softmax itself. It reads z, so it belongs to the second
  attention layer, which a kinked network then has too.
- momentum and weight decay: the state of the optimiser travels beside the weights, and the last MLP
  combines both. If rounds differ, as in a schedule, that MLP holds the combination of every rule;
  the prompt has the number of the round's rule beside its labels, in bits that gate the others off.
- biases: a padded unit is the constant 1, and the last column of the weights multiplies it.

All widths are padded with zeros to the largest one. If padded units would not stay 0, a row that
travels with the weights marks them, and gates set them to exactly 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log2
from typing import ClassVar

from icgd.approximation import lattice
from icgd.constructions.base import AbstractConstruction, checked_kink_width, valid_dtype
from icgd.constructions.network import (
    LARGEST_ARGUMENT,
    ROUNDING_ROOM,
    activations_of,
    backward_ranges,
    factor_of,
    largest_size,
    look_up_groups,
    loss_terms,
    ranges_on_domain,
    require_few_updates,
    text_objection,
)
from icgd.errors import ConstructionError
from icgd.problems.functions import (
    CLIP,
    IDENTITY_FUNCTION,
    Activation,
    KinkedFunction,
    is_kinked,
)
from icgd.problems.losses import SlopeTerm
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GRADIENT, WEIGHTS, AbstractGradientStep, Rule
from icgd.problems.problem import Problem
from icgd.problems.settings import set_fields
from icgd.program import chain
from icgd.program.chain import (
    ANSWERS,
    ASKS,
    FAR,
    KINKED,
    LARGEST_STATE,
    LINEAR,
    NEAR,
    OUT,
    ChainMask,
    ChainProgram,
    bit_slots,
    row_of,
)
from icgd.program.chain_instructions import (
    NO_CLASS,
    ActivateWhere,
    CopyWhere,
    FindBlock,
    LookUpProduct,
    MarkFlat,
    Multiplied,
    MultiplyByEntries,
    MultiplyEntries,
    PassBack,
    SelectWhere,
    ShareColumns,
)
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import IDENTITY, Combination, Evaluation, Instruction
from icgd.program.layout import OFFSET, ONE, Layout, Role, Slot, value_slot
from icgd.program.network_instructions import class_slot
from icgd.program.program import Layer

LARGEST_REACH = 2.0**12
"""The largest query entry that a grid covers, unless inputs are larger; a run that exceeds it is
stopped. A head's rounding error is about 1e-15 of the reach, and the bound over the whole domain,
which would be safe, grows exponentially with the depth."""

SMALLEST_REACH = 2.0**-60
"""The smallest reach of a grid or look-up. A head's rounding error is about 1e-15 of it, and the
largest argument divided by it does not overflow float32."""

LARGEST_MOVE = 2.0**900
"""The largest unclipped weight or state: gates are larger powers of two, and sums of these must
not overflow float64."""

KINK_SHARE = 2.0**-40
"""Width of a kink relative to the largest preactivation that a grid covers. Narrow kinks cost no
digits here. The width is 1000 times a head's rounding error, so a unit whose exact z is 0, because
all its inputs are flat units, counts as flat too."""

GRID_HALF = 15
"""Half of the 31 grid tokens that give lines full accuracy; look-ups may need more."""


@dataclass(frozen=True)
class CotNetwork(AbstractConstruction):
    """2N blocks per round, all written by the same four layers.

    Smooth activations and classes need a fifth layer.

    Args:
        kink_width: the width of kinks, a power of two; the default is 2^-40 of the largest
            preactivation.
        dtype: the precision for which look-ups have full accuracy.

    Raises:
        SettingError: if `kink_width` is not a power of two from 2^-60 to 1.
        UnknownNameError: if there is no dtype of this name.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 2, 1), "relu"), icgd.GradientStep(0.1, 1.0, batch_size=1)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, icgd.CotNetwork(), n_steps=2)
        >>> compiled.run([[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5]).parameters.shape
        torch.Size([3, 6])
    """

    kink_width: float | None = None
    dtype: str = "float64"

    name: ClassVar[str] = "cot-network"
    takes_batches: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = True
    takes_biases: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self, kink_width=checked_kink_width(self.kink_width), dtype=valid_dtype(self.dtype)
        )

    def objection(self, problem: Problem) -> str | None:
        update, output = problem.gradient_step, activations_of(problem.network)[-1]
        if reason := text_objection(problem, "smooth"):
            return reason
        if update.batch_size is None:
            return (
                "its blocks have a column for each example of a round; give batch_size=1 for one "
                "example per round, or the number of examples for all of them."
            )
        if not problem.loss_function.is_softmax and not all(
            _fits_in_a_row(term) for term in problem.loss_function.slope_terms or (None,)
        ):
            return (
                f"its blocks can hold u(t, y) only if that is a line or a clipped line in t - y, "
                f"or a smooth function of the prediction t minus the label y, and the loss "
                f"{problem.loss} is neither; use relu-stack."
            )
        if _loss_slope(problem).part and _kind(output) != LINEAR:
            return (
                f"the slope of the {problem.loss} loss is computed from z_N, which is the "
                f"prediction only if the output is linear, not {output.name}; use "
                "output_activation='identity'."
            )
        if len(kinked := _kinked(problem.network)) > 1:
            names = " and ".join(kinked)
            return f"all layers share a block, which has one kinked activation, not {names}."
        reach = _reaches(problem).forward
        values = [activation.value for activation in activations_of(problem.network)]
        for function in (*values, *(term.function for term in loss_terms(problem))):
            if not ROUNDING_ROOM * reach <= min(-function.low, function.high):
                return (
                    f"its preactivations can reach {reach:.4g} on the domain, and {function} is "
                    f"defined on [{function.low:g}, {function.high:g}] only. Define it there, by "
                    "low= and high=, or use a smaller box or domain."
                )
        largest = max(problem.domain.x, problem.domain.y, update.reach)
        if largest > LARGEST_ARGUMENT:
            return (
                f"its inputs, labels or weights can reach {largest:.3g}, where float64 has too "
                "few digits for an activation; use a smaller box or domain."
            )
        n_steps = len(update.step_size) if isinstance(update.step_size, tuple) else 2
        moved = _largest_move(problem, _rules(update, n_steps), _reaches(problem).gradient)
        if not moved <= LARGEST_MOVE:
            return (
                f"a step can make weights or the optimiser's state as large as {moved:.3g} before "
                "clipping, and no gate of float64 can exceed that; use a smaller step size, "
                "momentum or weight decay."
            )
        return None

    def build(self, problem: Problem, n_steps: int) -> ChainProgram:
        problem.gradient_step.require_steps(n_steps)
        steps = _rules(problem.gradient_step, n_steps)
        rules = {repr(rule): rule for rule in steps}  # without repetitions
        numbers = {name: number for number, name in enumerate(rules)}
        block = _Block(problem, self, tuple(rules.values()))
        return ChainProgram(
            construction=self.name,
            rows=Layout(block.rows("")),
            layout=block.layout(),
            functions=(lattice.identity(block.line), *block.look_ups),
            layers=block.layers(),
            shapes=problem.network.matrix_shapes,
            kinds=tuple(_kind(activation) for activation in activations_of(problem.network)),
            batch_size=block.batch_size,
            n_steps=n_steps,
            rules=tuple(numbers[repr(rule)] for rule in steps) if len(rules) > 1 else (),
        )


def for_depth(problem: Problem, program: ChainProgram, depth: int) -> tuple[Problem, ChainProgram]:
    """Return the problem with a target of `depth` layers, and the program that trains it.

    Input, output and hidden layers keep their widths; if there was no hidden layer, new ones have
    the width of the input. Only the mask, the shapes and the kinds of layers depend on the depth:
    the transformer with its grids and gates stays the same. A run that leaves a grid is stopped.
    """
    target, widths = problem.network, problem.network.widths
    if depth != target.depth:
        hidden = widths[1:-1] or widths[:1]
        if len(set(hidden)) > 1:
            raise ConstructionError(
                f"depth={depth} does not determine the widths of the hidden layers, because those "
                f"of widths={tuple(widths)} differ. Compile a target whose hidden layers all have "
                "one width."
            )
        widths = (widths[0], *hidden[:1] * (depth - 1), widths[-1])
    deeper = replace(target, widths=widths)
    compiled_for = {activation.name for activation in activations_of(target)}
    if missing := [a.name for a in activations_of(deeper) if a.name not in compiled_for]:
        raise ConstructionError(
            f"A network of depth={depth} has layers with the activation {missing[0]}, which the "
            "block was not compiled for. Compile a target that has a hidden layer."
        )
    kinds = tuple(_kind(activation) for activation in activations_of(deeper))
    program = replace(program, shapes=deeper.matrix_shapes, kinds=kinds)
    return replace(problem, target=deeper), program


def _kind(activation: Activation) -> str:
    """Return the name of the flag of layers with this activation."""
    if activation.value == IDENTITY_FUNCTION:
        return LINEAR
    return KINKED if activation.value.kind == "kinked" else activation.name


def _kinked(target: MLP) -> dict[str, KinkedFunction]:
    """Return the activations with a kink, by name."""
    values = (activation.value for activation in activations_of(target))
    return {v.name: v for v in values if isinstance(v, KinkedFunction) and v.knots}


def _of_z(function: str) -> str:
    """Return the slot that holds this function of z."""
    return f"{function} of z"


@dataclass(frozen=True)
class LossSlope:
    """The slope u = clip(prediction * row - label * y) of a loss, with factors for row and y.

    The row is o_N, or the slot `part`: a function of z_N, or the softmax of classes.
    """

    prediction: float
    label: float
    part: str | None = None
    bound: float | None = None


def _fits_in_a_row(term: SlopeTerm | None) -> bool:
    """Return whether a row of a block can hold this term of a loss slope."""
    if term is None:  # the slope is not a sum of terms
        return False
    if term.function.kind == "kinked":
        return factor_of(term.function) is not None or term.function == CLIP
    return term.function.kind == "smooth" and (term.prediction, term.label) == (1.0, 0.0)


def _loss_slope(problem: Problem) -> LossSlope:
    """Return u(p, y), whose terms are lines, a clipped line, or a function of p alone.

    For classes it is softmax(p) - y.
    """
    if problem.loss_function.is_softmax:
        return LossSlope(1.0, 1.0, SHARES)
    prediction = label = 0.0
    row = bound = None
    for term in loss_terms(problem):
        if is_kinked(term.function):
            steepest = max(term.function.slopes, key=abs)
            prediction += steepest * term.prediction
            label -= steepest * term.label
            bound = max(term.function.knots, default=None)
        else:
            prediction, row = 1.0, _of_z(term.function.name)
    return LossSlope(prediction, label, row, bound)


def _rules(update: AbstractGradientStep, n_steps: int) -> list[Rule]:
    """Return the rule of every step, or a single one if all steps have the same."""
    require_few_updates(update, n_steps, n_sums=1)
    return [update.rule(step) for step in range(1 if update.is_constant else max(n_steps, 1))]


def _largest_move(problem: Problem, rules: Iterable[Rule], gradient: float) -> float:
    """Bound the new weights before clipping, and the new state of the optimiser."""
    update = problem.gradient_step
    largest = {WEIGHTS: update.reach, GRADIENT: update.gradient_factor * gradient}
    largest |= dict.fromkeys(update.state, LARGEST_STATE)
    sums = (terms for rule in rules for terms in rule.linear.values())
    return max(sum(abs(factor) * largest[name] for name, factor in terms.items()) for terms in sums)


@dataclass(frozen=True)
class Reaches:
    """Largest absolute values of query entries, which grids cover, and of quantities they bound.

    Queries hold the `inputs` of a layer, its `delta`, slopes and gates, and for look-ups z, bounded
    by `forward`. Since weights are bounded, so are `up`, the value before multiplication by the
    slope, and the `gradient` delta o^T.
    """

    inputs: float
    delta: float
    forward: float
    slope: float
    gate: float
    up: float
    gradient: float


def _reaches(problem: Problem) -> Reaches:
    """Return the ranges that grids cover: those on the domain, capped at the largest reach."""
    update, target = problem.gradient_step, problem.network
    ranges = ranges_on_domain(problem, 0.0, gated=True)
    backward = backward_ranges(problem, ranges, 0.0)

    def reach(size: float, most: float = LARGEST_REACH) -> float:
        """Add room for rounding, up to the largest reach; nan becomes the largest reach."""
        roomy = max(ROUNDING_ROOM * size, SMALLEST_REACH)
        return roomy if roomy < most else most

    inputs = reach(
        max(*ranges.outputs[:-1], float(target.biases)),
        max(LARGEST_REACH, ROUNDING_ROOM * problem.domain.x),
    )
    delta = reach(max(backward.deltas))
    forward = reach(max(ranges.preactivations), max(LARGEST_REACH, inputs))
    smooth = [a for a in activations_of(target) if a.value.kind == "smooth"]
    slopes = [largest_size(activation.derivative, forward) for activation in smooth]
    gates = [largest_size(activation.gate, forward) for activation in smooth if activation.gate]
    row = max(max(shape) for shape in target.matrix_shapes) * update.reach
    # The slope of the loss depends on z_N. Without look-ups no grid limits z_N, so bound it by the
    # weights. A function on a bounded domain is bounded by its values there.
    of_z = [term.function for term in loss_terms(problem) if term.function.kind == "smooth"]
    z, loss = forward if smooth or of_z else row * inputs, _loss_slope(problem)
    read = (activations_of(target)[-1].value, *of_z)
    outputs = [largest_size(f, min(z, -f.low, f.high)) for f in read]
    largest_row = max(1.0, *outputs)  # a share of a class is at most 1
    in_loss = abs(loss.prediction) * largest_row + abs(loss.label) * problem.domain.y
    up = max(in_loss, row * delta)
    return Reaches(
        inputs=inputs,
        delta=delta,
        forward=forward,
        slope=reach(max([1.0, *slopes])),
        gate=reach(max(gates, default=1.0)),
        up=up,
        gradient=(update.batch_size or 1) * up * inputs,
    )


def _tables(problem: Problem, reach: float, dtype: str) -> tuple[LatticeFunction, ...]:
    """Fit all look-ups with the same number of tokens, and a spacing for each activation.

    The functions of one activation share their spacing, so the same heads return value and slope.
    Looked-up functions are bounded, so a moderate number of tokens serves any reach.
    """
    groups, accuracy = look_up_groups(problem), lattice.ACCURACY[dtype]
    roomy = ROUNDING_ROOM * reach  # covers the error of the heads that compute z
    halves = [GRID_HALF]
    while True:
        # Repeat with the largest number of tokens until no fit needs more.
        attempts = [
            lattice.fit_to_accuracy(group, roomy, accuracy, max(halves)) for group in groups
        ]
        fits = [fit for group_fits in attempts for fit in group_fits]
        halves = [fit.half for fit in fits]
        if len(set(halves)) <= 1:
            return tuple(fits)


NEAR_FORWARD, NEAR_BACKWARD = row_of(NEAR, chain.IS_FORWARD), row_of(NEAR, chain.IS_BACKWARD)
FAR_FORWARD, FAR_BACKWARD = row_of(FAR, chain.IS_FORWARD), row_of(FAR, chain.IS_BACKWARD)
FAR_DATA = row_of(FAR, chain.IS_DATA)

FORWARD = (NEAR_BACKWARD, FAR_DATA)
BACKWARD = (NEAR_FORWARD, FAR_DATA)
FROM_X = (NEAR_FORWARD, FAR_FORWARD, FAR_BACKWARD)
FROM_Y = (NEAR_BACKWARD, FAR_FORWARD, FAR_BACKWARD)
"""The flags that gate off instructions for one kind of step, a pair [newest block; found block].
All flags of `FORWARD` are 0 on [F; B], and at least one is 1 on the other three pairs; likewise
`BACKWARD` and [B; F], `FROM_X` and [B; X], `FROM_Y` and [F; Y]."""

SHARES = "shares"
"""The slot of softmax(z), the probabilities of classes."""


class _Block:
    """The layers of the transformer, and the numbers that they depend on.

    Slots and layers that a network does not need are left out: without smooth activations there is
    no slope to look up and no layer that multiplies by it; without look-ups and biases all padded
    units stay 0 by themselves.
    """

    def __init__(self, problem: Problem, settings: CotNetwork, rules: tuple[Rule, ...]) -> None:
        update, target = problem.gradient_step, problem.network
        reaches = self.reaches = _reaches(problem)
        look_ups = self.look_ups = _tables(problem, reaches.forward, settings.dtype)
        # The grid of products has as many tokens as the grids of the look-ups.
        self.line = lattice.line_lattice(1.0, look_ups[0].half if look_ups else GRID_HALF)
        # No later block reads the deltas that B_1 passes back, so a run does not require them to
        # be within the grid (`backends/chain.py`). A head never returns more than its last token.
        up = max(1.0, self.line.half * self.line.spacing) * reaches.up
        moved = _largest_move(problem, rules, reaches.gradient)
        largest = max(problem.domain.x, up, moved, 1.0)
        self.gate = 2.0 ** (2 + ceil(log2(largest)))
        self.width = max(size for shape in target.matrix_shapes for size in shape)
        self.batch_size = update.batch_size or 1
        self.data, self.square = (self.width, self.batch_size), (self.width, self.width)
        self.rules, self.update, self.state = rules, update, tuple(rules[0].state)
        self.leak = next((value.slopes[0] for value in _kinked(target).values()), 0.0)
        kink_width = KINK_SHARE * 2.0 ** floor(log2(reaches.forward))
        self.kink_width = settings.kink_width or kink_width
        activations = (a for a in activations_of(target) if a.value.kind == "smooth")
        self.smooth = tuple({a.name: a for a in activations}.values())
        self.loss = _loss_slope(problem)
        n_classes = target.output_width if problem.loss_function.is_softmax else 0
        self.classes = tuple(class_slot(number) for number in range(1, n_classes + 1))
        self.has_biases = target.biases
        # The flags of the kinds of layers.
        self.kinds = (LINEAR, KINKED, *(activation.name for activation in self.smooth))
        # The rows that mark padded units, if these would not stay 0.
        self.padding: tuple[str, ...] = ()
        if look_ups or target.biases:
            self.padding = (chain.PADDING, *(chain.CONSTANT,) * target.biases)
        # The flags of the bits of a rule's number; none if there is a single rule.
        self.bits = bit_slots((len(rules) - 1).bit_length())
        self.code = (*self.bits[0], *self.bits[1])

    def rows(self, prefix: str) -> tuple[Slot, ...]:
        """Return the rows of a block of the chain."""
        flags = (*self.kinds, chain.IS_FORWARD, chain.IS_BACKWARD, chain.IS_DATA, *self.code)
        data = ["first", "second", "flat"]
        data += ["slope"] * bool(self.smooth) + ["part"] * bool(self.loss.part)
        return (
            *(Slot(prefix + name, self.data, Role.SCRATCH) for name in data),
            *(Slot(prefix + name, self.square, Role.PARAMETER) for name in (WEIGHTS, *self.state)),
            *(Slot(prefix + name, (self.width, 1), Role.SCRATCH) for name in self.padding),
            *(Slot(prefix + name, (1,), Role.SCRATCH) for name in flags),
        )

    def layout(self) -> Layout:
        """Lay out the two blocks that a step reads, its own slots, and the block that it writes."""
        gated = [_of_z(activation.name) for activation in self.smooth if activation.gate]
        of_z = dict.fromkeys([*(_of_z(fit.name) for fit in self.look_ups), *gated])
        matrices = [
            ("inputs", self.data),
            *((name, self.square) for name in (WEIGHTS, *self.state)),
            *((name, self.data) for name in ("up", "slope") if self.smooth),
            *((name, self.data) for name in ("delta", "z", chain.BACK)),
            ("outer", self.square),
            *((name, self.data) for name in of_z),
            *[(SHARES, self.data)] * bool(self.classes),
            *((name, (self.width, 1)) for name in self.padding),
        ]
        flags = (*self.kinds, "forward", "backward", *self.code)
        looked_up = (IDENTITY, *(fit.name for fit in self.look_ups)) if self.look_ups else ()
        values = (value_slot(name) for name in looked_up)
        classes = (*self.classes, NO_CLASS) if self.classes else ()
        return Layout(
            (
                *self.rows(f"{NEAR}."),
                *self.rows(f"{FAR}."),
                *(Slot(name, shape, Role.SCRATCH) for name, shape in matrices),
                *(Slot(name, (1,), Role.SCRATCH) for name in flags),
                *self.rows(f"{OUT}."),
                *(Slot(name, (1,), Role.CONSTANT) for name in (ONE, OFFSET, *values, *classes)),
                *(Slot(name, (ChainMask.N_FEATURES,), Role.CONSTANT) for name in (ASKS, ANSWERS)),
            )
        )

    def layers(self) -> tuple[Layer, ...]:
        """Return the four layers, or five if slopes are looked up or there are classes."""
        reaches, smooth = self.reaches, self.smooth
        outer = Multiplied("delta", "outer", outer=True)
        units: list[Instruction] = []
        by_inputs: tuple[Multiplied, ...] = (Multiplied("weights", "z"), outer)
        if self.look_ups:  # heads with z in their scores return z and its functions
            others = tuple(Evaluation(fit.name, _of_z(fit.name)) for fit in self.look_ups)
            units.append(LookUpProduct("weights", "inputs", reaches.forward, "z", others))
            by_inputs = (outer,)
        back = Multiplied("weights", chain.BACK, transposed=True)
        products: list[Instruction] = [
            MultiplyByEntries("inputs", reaches.inputs, by_inputs),
            MultiplyByEntries("delta", reaches.delta, (back,)),
        ]
        later: list[Instruction] = []
        # With smooth activations delta = r' * up is a product too. It is computed beside the
        # look-ups, and all products with delta follow in the next layer, as does z gate(z).
        if smooth:
            units.append(MultiplyEntries("up", "slope", reaches.slope, "delta"))
            products += [
                MultiplyEntries("z", _of_z(r.gate.name), reaches.gate, _of_z(r.name))
                for r in smooth
                if r.gate
            ]
            later += products
        else:
            units += products
        if self.classes:
            later.append(ShareColumns("z", self.classes, SHARES))
        find = FindBlock(
            ASKS,
            ANSWERS,
            tuple(slot.name for slot in self.rows(f"{NEAR}.")),
            tuple(slot.name for slot in self.rows(f"{FAR}.")),
        )
        middle = [("units", units), ("products", later)] if later else [("products", units)]
        return tuple(
            Layer(title, tuple(instructions))
            for title, instructions in (
                ("mask", (find,)),
                ("router", self.router()),
                *middle,
                ("next block", self.next_block()),
            )
        )

    def router(self) -> tuple[Instruction, ...]:
        """Copy the operands of the next layer from the two blocks, as their flags select.

        If the found block is data, weights and flags come from the newest block, otherwise from
        the found one.
        """
        opposite, ends = (FAR_DATA,), (FAR_FORWARD, FAR_BACKWARD)
        loss, row = self.loss, row_of(NEAR, "part" if self.loss.part else "first")
        slope = Combination((row, row_of(FAR, "first")), (loss.prediction, -loss.label))
        # `PassBack` multiplies by the slope of kinked units. The slope of smooth ones is copied,
        # and the next layer multiplies by it.
        passed = [
            (Combination.of(row_of(NEAR, "second")), FAR, BACKWARD, None),
            (slope, NEAR, FROM_Y, loss.bound),
        ]
        return (
            self.copy(row_of(NEAR, "first"), FORWARD, "inputs"),
            self.copy(row_of(FAR, "first"), FROM_X, "inputs"),
            self.copy(row_of(FAR, "second"), BACKWARD, "inputs"),
            self.copy(row_of(NEAR, "second"), FROM_Y, "inputs"),
            *(
                self.copy(row_of(block, name), closed_by, name)
                for name in (WEIGHTS, *self.state, *self.padding, *self.kinds)
                for block, closed_by in ((FAR, opposite), (NEAR, ends))
            ),
            *(
                self.copy(row_of(block, name), closed_by, name)
                for name in self.code
                for block, closed_by in ((NEAR, BACKWARD), (FAR, FROM_Y))
            ),
            *(
                PassBack(
                    upstream,
                    row_of(block, "flat"),
                    (*closed_by, *(row_of(block, name) for name in self.padding[:1])),
                    self.leak,
                    self.gate,
                    "up" if self.smooth else "delta",
                    bound,
                )
                for upstream, block, closed_by, bound in passed
            ),
            *(
                self.copy(row_of(block, "slope"), closed_by, "slope")
                for block, closed_by in ((FAR, BACKWARD), (NEAR, FROM_Y))
                if self.smooth
            ),
            self.copy(ONE, FORWARD, "forward"),
            self.copy(ONE, FROM_X, "forward"),
            self.copy(ONE, BACKWARD, "backward"),
            self.copy(ONE, FROM_Y, "backward"),
        )

    def next_block(self) -> tuple[Instruction, ...]:
        """Return the instructions that write the rows of the new block."""
        out = {slot.name: row_of(OUT, slot.name) for slot in self.rows("")}
        closed, padding, gate = ("backward",), self.padding[:1], self.gate
        smooth = self.others(LINEAR, KINKED)
        # o = r(z), selected by the kind of the layer, and the constant 1 that biases multiply.
        steps: list[Instruction] = [
            ActivateWhere("z", KINKED, (*closed, *smooth, *padding), self.leak, gate, out["first"])
        ]
        for r in self.smooth:
            terms = [_of_z(function.name) for function in (r.value, r.rest) if function]
            source = Combination(tuple(terms), (1.0,) * len(terms))
            flags = (*closed, *self.others(r.name), *padding)
            steps.append(CopyWhere(source, flags, gate, out["first"]))
        if self.has_biases:
            steps.append(self.copy(chain.CONSTANT, closed, out["first"]))
        flat = MarkFlat("z", LINEAR, (*closed, *smooth), self.kink_width, gate, out["flat"])
        steps += [
            self.copy("delta", ("forward",), out["first"]),
            self.copy("inputs", closed, out["second"]),
            self.copy(chain.BACK, ("forward",), out["second"]),
            flat,
        ]
        # The slopes of smooth layers, 1 for others, and the part of the loss slope that depends
        # on z_N.
        for r in self.smooth:
            flags = (*closed, *self.others(r.name))
            steps.append(self.copy(_of_z(r.derivative.name), flags, out["slope"]))
        if self.smooth:
            steps.append(self.copy(ONE, (*closed, *smooth), out["slope"]))
        if self.loss.part:
            flags = (*closed, *self.others(LINEAR), *padding)
            steps.append(self.copy(self.loss.part, flags, out["part"]))
        steps += [self.copy(name, closed, out[name]) for name in (WEIGHTS, *self.state)]
        steps += [self.updated(name, out[name]) for name in (WEIGHTS, *self.state)]
        steps += [self.copy(name, (), out[name]) for name in (*self.padding, *self.kinds)]
        steps += [
            self.copy("forward", (), out[chain.IS_FORWARD]),
            self.copy("backward", (), out[chain.IS_BACKWARD]),
        ]
        steps += [self.copy(name, (), out[name]) for name in self.code]
        return tuple(steps)

    def updated(self, name: str, write: str) -> Instruction:
        """Set the weights, clipped, or a state to the rule's sum of slots and gradient."""
        sums = []
        for rule in self.rules:
            factors = dict(rule.linear[name])
            # `outer` is the sum of delta o^T over the b examples; the objective is half their mean.
            gradient = factors.pop(GRADIENT) * self.update.gradient_factor
            factors["outer"] = gradient / (2 * self.batch_size)
            sums.append(Combination(tuple(factors), tuple(factors.values())))
        bound, closed_by = self.update.reach if name == WEIGHTS else None, ("forward",)
        if len(set(sums)) == 1:  # one rule, or the same sum in all of them
            return CopyWhere(sums[0], closed_by, self.gate, write, bound)
        return SelectWhere(tuple(sums), *self.bits, closed_by, self.gate, write, bound)

    def others(self, *kinds: str) -> tuple[str, ...]:
        """Return the flags of all other kinds of layers, which gate off a step for these kinds."""
        return tuple(kind for kind in self.kinds if kind not in kinds)

    def copy(self, source: str, closed_by: Sequence[str], write: str) -> CopyWhere:
        return CopyWhere(Combination.of(source), tuple(closed_by), self.gate, write)
