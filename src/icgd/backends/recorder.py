"""Record the meaning of a program as a graph of matrix operations.

The graph is hash-consed (equal operations are one node), constants are folded, and operations that
no output depends on are dropped. So functions of one argument share its computation, and clearing a
slot or multiplying by the slope of a linear output costs nothing. `engine.py` executes the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, TypeVar

from icgd.backends.prompt import ONCE
from icgd.problems.functions import ROOT_PREFIX
from icgd.problems.linear_model import LINKS
from icgd.program.chain import FAR, NEAR, OUT, ChainProgram, row_of
from icgd.program.chain_instructions import (
    LookUpProduct,
    MultiplyByEntries,
    MultiplyEntries,
    PassBack,
    Product,
)
from icgd.program.functions import Function, GridMean, RidgeSum
from icgd.program.instructions import Combination, Instruction, LayerKind
from icgd.program.kernel_instructions import KernelTerm
from icgd.program.layout import IS_EXAMPLE, IS_QUERY, ONE, OUT_OF_BATCH, Layout, Role
from icgd.program.meaning import (
    BlockDomain,
    EvaluatedBy,
    FunctionDomain,
    PerStep,
    StackDomain,
    scheduled,
)
from icgd.program.network_instructions import LookUpStep, TakeTurns
from icgd.program.program import Layer
from icgd.program.set_instructions import Faces
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import AddJacobian, AddOuterProduct

AS_SUCH = 1e-8
"""Approximations with at most this error are replaced by the function that they approximate."""

FLAGS = (ONE, IS_EXAMPLE, IS_QUERY)
"""The constants that are 1 at some tokens, and 0 elsewhere."""

CARRIED = (Role.PARAMETER, Role.VELOCITY, Role.TURN)
"""The roles of slots whose values carry over from step to step."""

Cached = TypeVar("Cached")


def is_computed_as_such(fit: RidgeSum | GridMean) -> bool:
    """Return whether fused runs compute the function itself instead of its units or grid."""
    return fit.largest_error <= AS_SUCH


@dataclass(frozen=True, eq=False)
class Op:
    """An operation on the results of others. `shape` excludes the batch axis of tasks."""

    name: str
    args: tuple[Op, ...]
    options: tuple[Any, ...]
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"{self.name}{self.shape}"


@dataclass(frozen=True)
class Tokens:
    """How many tokens of each kind a run has, in order. Only traced runs have registers."""

    registers: int = 0
    examples: int = 0
    queries: int = 0

    @property
    def total(self) -> int:
        return self.registers + self.examples + self.queries

    def where(self, flag: str) -> slice:
        """Return the slice of tokens at which `flag` is 1."""
        first_query = self.registers + self.examples
        token_ranges = {
            ONE: slice(0, self.total),
            IS_EXAMPLE: slice(self.registers, first_query),
            IS_QUERY: slice(first_query, self.total),
        }
        return token_ranges[flag]


@dataclass(frozen=True)
class Recording:
    """Operations in topological order, with inputs and outputs by slot name.

    `trace` has the traced slots after every layer; it is empty unless the run is traced.
    """

    inputs: dict[str, Op]
    ops: tuple[Op, ...]
    outputs: dict[str, Op]
    trace: tuple[dict[str, Op], ...] = ()

    @cached_property
    def checked(self) -> tuple[str, ...]:
        """Slots under a root. Their range is checked in runs whose initial values are not all 0."""
        guards = (op for op in self.ops if op.name == "guard_root")
        return tuple(name for op in guards for name in op.options[1:])


@dataclass
class Recorder(StackDomain[Op], BlockDomain[Op], FunctionDomain[Op]):
    """The domain whose primitives append operations to a graph.

    A step averages over `n_used` examples. A traced run selects the batch by flags, as the
    transformer does; any other run receives the examples of one batch only.
    """

    program: Any
    tokens: Tokens = Tokens()
    n_used: int = 1
    traced: bool = False
    ops: dict[Any, Op] = field(default_factory=dict)
    """The operations so far by name, arguments, options and shape: equal ones are one object."""
    factors: dict[Op, tuple[Op, Op]] = field(default_factory=dict)
    """For each Jacobian: the weights and the slope-scaled matrix whose product it is."""
    products: dict[Op, list[Op]] = field(default_factory=dict)
    """For each weight matrix: all slope-scaled matrices it multiplies, the first layer's last."""
    kink_corrections: dict[Op, Op] = field(default_factory=dict)
    """Gradient corrections for units near kinks, by the weights above the corrected layer."""
    number: int = 0
    """The number of the block that is recorded, within its round."""
    waits: Op | None = None
    """In a traced run, the flag of examples outside the current batch."""

    def __post_init__(self) -> None:
        self.layout: Layout = self.program.layout

    def op(self, name: str, *args: Op, options: tuple[Any, ...] = (), shape: Any) -> Op:
        """Return this operation, or the equal one recorded earlier."""
        # Functions are compared by identity, because their hash reads every knot.
        hashable = tuple(id(o) if isinstance(o, Function) else o for o in options)
        key = (name, args, hashable, shape)
        return self.ops.setdefault(key, Op(name, args, options, tuple(shape)))

    def start(self) -> dict[str, Op]:
        """Return every slot at the start of a step: an input, or a constant where that is known."""
        n_tokens, slots = self.tokens.total, dict[str, Op]()
        for slot in self.layout.slots:
            shape: tuple[int, ...] = (n_tokens, slot.width)
            if slot.role in ONCE:
                shape = slot.shape
            if slot.role in (Role.SCRATCH, Role.SHARED):
                slots[slot.name] = self.fill(0.0, shape)
            elif slot.name in FLAGS and self.tokens.where(slot.name) == slice(0, n_tokens):
                slots[slot.name] = self.fill(1.0, shape)
            elif slot.role is not Role.TURN or self.traced:
                slots[slot.name] = self.op("input", options=(slot.name,), shape=shape)
        self.waits = slots.get(OUT_OF_BATCH)
        return slots

    def fill(self, number: float, shape: Sequence[int]) -> Op:
        return self.op("fill", options=(number,), shape=shape)

    # Linear algebra.

    def combine(self, terms: Sequence[tuple[float, Op]]) -> Op:
        # Fold nested scalings and constants, and merge equal terms: x - x records no operation.
        constant: float = 0.0
        factors: dict[Op, float] = {}
        for factor, value in terms:
            if value.name == "combine" and len(value.args) == 1 and value.options[1] == 0.0:
                factor, value = factor * value.options[0], value.args[0]
            if value.name == "fill":
                constant = constant + factor * value.options[0]
            else:
                factors[value] = factors.get(value, 0.0) + factor
        factors = {value: factor for value, factor in factors.items() if factor != 0.0}
        shape = max((value.shape for _, value in terms), key=prod)
        if not factors and not isinstance(constant, PerStep):
            return self.fill(constant, shape)
        if constant == 0.0 and list(factors.values()) == [1.0]:
            return next(iter(factors))
        return self.op("combine", *factors, options=(*factors.values(), constant), shape=shape)

    def add(self, *values: Op) -> Op:
        return self.combine([(1.0, value) for value in values])

    def multiply(self, left: Op, right: Op) -> Op:
        shape = tuple(map(max, left.shape, right.shape))
        for constant, value in ((left, right), (right, left)):
            if constant.name == "fill" and value.shape == shape:
                return self.combine([(constant.options[0], value)])
        return self.op("multiply", left, right, shape=shape)

    def scale(self, number: Op, value: Op) -> Op:
        return self.multiply(number, value)

    def scale_columns(self, value: Op, factor: float, last: float) -> Op:
        if value.name == "fill" and value.options == (0.0,):
            return value
        return self.op("scale_columns", value, options=(factor, last), shape=value.shape)

    def matmul(self, weights: Op, inputs: Op) -> Op:
        return self.times(inputs, self.transpose(weights, weights.shape[1]))

    def times(self, left: Op, right: Op) -> Op:
        """Return the product of two matrices."""
        return self.op("times", left, right, shape=(left.shape[0], right.shape[1]))

    def transpose(self, weights: Op, n_rows: int) -> Op:
        """Return a view of the first rows of the transposed matrix.

        Transposing twice gives the columns of the original, so that no views pile up.
        """
        if weights.name == "transpose" and n_rows == weights.shape[1]:
            return self.columns(weights.args[0], weights.shape[0])
        return self.op("transpose", weights, shape=(n_rows, weights.shape[0]))

    def columns(self, matrix: Op, n_columns: int) -> Op:
        """Return a view of the first columns of a matrix."""
        if n_columns == matrix.shape[1]:
            return matrix
        return self.op("columns", matrix, shape=(matrix.shape[0], n_columns))

    def above_one(self, inputs: Op) -> Op:
        one = self.fill(1.0, (*inputs.shape[:-1], 1))
        return self.op("beside", inputs, one, shape=(*inputs.shape[:-1], inputs.shape[-1] + 1))

    def take(self, value: Op, places: Sequence[int]) -> Op:
        return self.op("take", value, options=tuple(places), shape=(value.shape[0], len(places)))

    def constant_map(self, rows: Sequence[Sequence[float]], value: Op) -> Op:
        matrix = tuple(map(tuple, rows))
        return self.op("constant_map", value, options=matrix, shape=(value.shape[0], len(matrix)))

    # Functions.

    def apply(self, function: str, argument: Op, by: EvaluatedBy) -> Op:
        if by == "grid":
            if function in LINKS:
                return self.op("link", argument, options=(function,), shape=argument.shape)
            mean = self.program.grid_mean(function)
            if is_computed_as_such(mean):
                return self.evaluate(function, argument)
            return self.op("grid_mean", argument, options=(mean,), shape=argument.shape)
        if by == "lattice":
            options = (self.program.look_up(function),)
            head = self.op("polynomials", argument, options=options, shape=argument.shape)
            return self.without_memory(head)
        # Sums of ReLUs with a standard shape need no table of pieces.
        fit = self.program.relu_sum(function)
        knots, slopes = fit.knots, fit.slopes
        if not knots:
            slope, shift = slopes[0], fit.intercepts()[0]
            return self.combine([(slope, argument), (shift, self.fill(1.0, argument.shape))])
        is_through_origin = fit.anchor == fit.anchor_value == 0.0
        if knots == (0.0,) and is_through_origin and slopes[0] < slopes[1] == 1.0:
            if slopes[0] == 0.0:
                return self.op("kink", argument, shape=argument.shape)
            return self.op("leaky", argument, options=(slopes[0],), shape=argument.shape)
        if len(knots) == 2 and slopes[0] == slopes[2] == 0.0:
            return self.op("ramp", argument, options=(fit,), shape=argument.shape)
        if fit.name.startswith(ROOT_PREFIX):
            # The argument of an optimiser's root must stay in the range of the approximation. It
            # does in runs whose averages start at 0, so only others need a check: record which
            # slots feed the root, and the engine looks at their initial values.
            inputs = [op.options[0] for op in argument.args if op.name == "input"]
            averages = [name for name in inputs if self.layout.slot(name).role is Role.PARAMETER]
            if averages:
                options = (fit, *averages)
                argument = self.op("guard_root", argument, options=options, shape=argument.shape)
        return self.op("pieces", argument, options=(fit,), shape=argument.shape)

    def softmax(self, scores: Op) -> Op:
        return self.without_memory(self.op("softmax", scores, shape=scores.shape))

    def evaluate(self, function: str, argument: Op) -> Op:
        return self.op("evaluate", argument, options=(function,), shape=argument.shape)

    def loss_slope(self, loss: str, prediction: Op, label: Op) -> Op:
        return self.op("loss_slope", prediction, label, options=(loss,), shape=prediction.shape)

    def by_units(
        self, function: str, exact: Op, arguments: Sequence[tuple[Op, float]], n_sums: int = 1
    ) -> Op:
        fit = self.program.ridge_sum(function)
        if is_computed_as_such(fit):
            return exact
        values, reaches = zip(*arguments, strict=True)
        options = (fit, reaches)
        if fit.error > AS_SUCH:
            return self.op("units", *values, options=options, shape=exact.shape)
        return self.op("units_near_kinks", exact, *values, options=options, shape=exact.shape)

    # Sums over examples.

    def examples(self, value: Op) -> Op:
        """Return a view of the rows of the examples."""
        return self.rows(value, self.tokens.where(IS_EXAMPLE))

    def rows(self, value: Op, place: slice) -> Op:
        if place == slice(0, value.shape[0]):
            return value
        shape = (place.stop - place.start, *value.shape[1:])
        if value.name == "fill":
            return self.fill(value.options[0], shape)
        return self.op("rows", value, options=(place.start, place.stop), shape=shape)

    def accumulate(
        self,
        weights: Op,
        left: Op,
        right: Op,
        scale: float,
        by: Instruction,
        *,
        mean: bool = True,
    ) -> Op:
        left, right = self.examples(left), self.examples(right)
        if self.waits is not None:  # examples outside the batch add nothing
            left = self.op("unless", left, self.examples(self.waits), shape=left.shape)
        share = scale / self.n_used if mean else scale
        if isinstance(by, AddOuterProduct):
            fit = self.program.ridge_sum(by.function)
            if not is_computed_as_such(fit):
                args, options = (weights, left, right), (share, fit, by.reaches)
                return self.op("add_by_units", *args, options=options, shape=weights.shape)
        args = (weights, self.transpose(left, left.shape[1]), right)
        return self.op("add_outer", *args, options=(share,), shape=weights.shape)

    def accumulate_rows(
        self, weights: Op, left: Op, matrix: Op, scale: float, by: Instruction
    ) -> Op:
        share, left = scale / self.n_used, self.examples(left)
        if isinstance(by, AddJacobian):
            fit = self.program.ridge_sum(by.function)
            if not is_computed_as_such(fit):
                args, options = (weights, left, self.examples(matrix)), (share, fit, by.reaches)
                return self.op("add_rows_by_units", *args, options=options, shape=weights.shape)
        return self._add_from_left(weights, left, matrix, share)

    def _add_from_left(self, weights: Op, left: Op, matrix: Op, share: float) -> Op:
        """Return `weights + share * sum_t left_t^T matrix_t` without forming the Jacobians.

        A Jacobian is W_n D_{n-1} W_{n-1} ... D_j x^T, with slopes D. Multiplying from the left,
        like backpropagation, needs only vector-matrix products, and all Jacobians share those of
        the upper layers. This relies on the product with a slope being linear in the Jacobian.
        Near a kink it is computed by units, which are not linear; the difference, nonzero at few
        tokens, is recorded separately and added.
        """
        layers: list[tuple[Op, Op, Op, Op]] = []  # from the last one down
        gradient, factor = left, matrix
        # Peel off one factor W_m D_{m-1} at a time, until only the inputs are left.
        while (pair := self.factors.get(_unshaped(factor))) is not None:
            upper_weights, product = pair
            exact = product.args[0] if product.name == "units_near_kinks" else product
            if exact.name != "multiply":
                break
            factor, slope = exact.args
            slope = _unshaped(slope)
            argument, slope = self.examples(slope.args[0]), self.examples(slope)
            received = self.times(gradient, self.columns(upper_weights, slope.shape[1]))
            gradient = self.multiply(received, slope)
            layers.append((received, slope, argument, upper_weights))
        if pair is not None or not layers:  # not a chain of such factors: use the Jacobian itself
            args = (weights, left, self.examples(matrix))
            return self.op("add_rows", *args, options=(share,), shape=weights.shape)
        inputs = self.examples(_unshaped(factor))
        args = (weights, self.transpose(gradient, gradient.shape[1]), inputs)
        total = self.op("add_outer", *args, options=(share,), shape=weights.shape)
        if product.name != "units_near_kinks":
            return total
        if upper_weights not in self.kink_corrections:
            self._record_kink_corrections(layers[::-1], share)
        return self.add(total, self.kink_corrections[upper_weights])

    def _record_kink_corrections(
        self, layers: Sequence[tuple[Op, Op, Op, Op]], share: float
    ) -> None:
        """Record the corrections of the gradients of all `layers` as one operation.

        The layers share most of the work: a correction in one changes the Jacobians above it.
        """
        fit = self.products[layers[0][-1]][0].options[0]
        arguments = [argument for _, _, argument, _ in layers]
        shape = (arguments[0].shape[0], len(layers))
        args = [self.op("near_kinks", *arguments, options=(fit,), shape=shape)]
        shapes, reaches = dict[Op, tuple[int, int]](), []
        for layer in layers:
            # The products at this layer: one for each layer below, then that with its own inputs.
            *lower, first = self.products[layer[-1]][-len(shapes) - 1 :]
            inputs = self.examples(_unshaped(first.args[1]))
            args += [inputs, *layer]
            shapes[layer[-1]] = (layer[1].shape[1], inputs.shape[1])
            reaches.append(tuple(product.options[1][0] for product in (*lower, first)))
        options, end = (share, fit, *reaches), sum(map(prod, shapes.values()))
        corrections, start = self.op("kink_corrections", *args, options=options, shape=(end,)), 0
        for upper_weights, shape in shapes.items():
            entries = self.rows(corrections, slice(start, start + prod(shape)))
            self.kink_corrections[upper_weights] = self.op("reshape", entries, shape=shape)
            start += prod(shape)

    def average_examples(self, score: Op, value: Op) -> Op:
        score, value = self.examples(score), self.examples(value)
        return self.op("average", score, value, shape=(self.tokens.total, value.shape[-1]))

    # What MLP layers do to a slot.

    def clip(self, value: Op, bound: float, by: str | None = None) -> Op:
        fit = None if by is None else self.program.ridge_sum(by)
        if fit is None or is_computed_as_such(fit):
            return self.op("clip", value, options=(bound,), shape=value.shape)
        return self.op("clip_by_units", value, options=(bound, fit), shape=value.shape)

    def project(self, value: Op, faces: Faces) -> Op:
        return self.op("project", value, options=(faces,), shape=value.shape)

    def exchange(self, value: Op, pairs: Sequence[tuple[int, int]]) -> Op:
        return self.op("exchange", value, options=tuple(pairs), shape=value.shape)

    def mean_excess(self, value: Op, total: float) -> Op:
        return self.op("mean_excess", value, options=(total,), shape=value.shape)

    def threshold(self, value: Op, threshold: Op, most: float) -> Op:
        return self.op("threshold", value, threshold, shape=value.shape)

    def zero(self, value: Op) -> Op:
        return self.fill(0.0, value.shape)

    def where(self, flag: str, closed_by: Sequence[str], value: Op, otherwise: Op) -> Op:
        if self.waits is not None and OUT_OF_BATCH in closed_by:
            value = self.op("unless", value, self.waits, shape=value.shape)
        if value.shape != otherwise.shape:  # computed from shared slots, so equal at all tokens
            value = self.op("expand", value, shape=otherwise.shape)
        place = self.tokens.where(flag)
        if flag == ONE or place == slice(0, self.tokens.total):
            return value
        if place.start == place.stop:
            return otherwise
        options = (place.start, place.stop)
        return self.op("where", value, otherwise, options=options, shape=value.shape)

    def replace(self, before: Op, value: Op, bound: float | None) -> Op:
        return value if bound is None else self.clip(value, bound)

    def mix(self, before: Op, after: Op, keeps: float) -> Op:
        return self.combine([(keeps, before), (1.0 + -1.0 * keeps, after)])

    def take_turns(self, turns: TakeTurns, slots: Mapping[str, Op]) -> dict[str, Op]:
        if self.waits is None:
            return {}
        place, options = slots[turns.place], (turns.batch_size, *self._span(IS_EXAMPLE))
        return {
            turns.place: self.op("next_place", place, options=options, shape=place.shape),
            turns.waits: self.op("next_waits", place, options=options, shape=place.shape),
        }

    def _span(self, flag: str) -> tuple[int, int]:
        place = self.tokens.where(flag)
        return place.start, place.stop

    # Heads: their exact values, without scores or softmax.

    def as_read(self, heads: Instruction, value: Op, *inputs: Op) -> Op:
        return self.without_memory(value) if heads.kind is LayerKind.SOFTMAX else value

    def without_memory(self, value: Op) -> Op:
        """Return `value` with 0 at the first register, which attends to itself and holds zeros."""
        if not self.tokens.registers:
            return value
        return self.op("without_first", value, shape=value.shape)

    def written_over(self, before: Op, value: Op) -> Op:
        return value

    def guard(self, score: Op, reach: float, checked: str) -> Op:
        options = (reach, checked, *self._span(checked))
        return self.op("guard_score", score, options=options, shape=score.shape)

    def not_negative(self, value: Op) -> Op:
        return value

    # Jacobians.

    def unflatten(self, value: Op, n_rows: int) -> Op:
        shape = (value.shape[0], n_rows, value.shape[1] // n_rows)
        return self.op("reshape", value, shape=shape)

    def flatten(self, matrix: Op) -> Op:
        n_tokens, n_rows, n_columns = matrix.shape
        return self.op("reshape", matrix, shape=(n_tokens, n_rows * n_columns))

    def matmul_rows(self, weights: Op, matrix: Op) -> Op:
        left, right = self._with_axes(self.columns(weights, matrix.shape[1]), 0), matrix
        if matrix.name == "multiply" and matrix.args[1].shape[2] == 1:
            # W (slope * s) = (W * slope) s, and W has fewer entries than the Jacobian s.
            right, slope = matrix.args
            row = self.op("reshape", slope, shape=(slope.shape[0], 1, slope.shape[1]))
            left = self.multiply(left, row)
        shape = (matrix.shape[0], weights.shape[0], matrix.shape[2])
        product = self.op("matmul", left, right, shape=shape)
        self.factors[product] = (weights, matrix)
        self.products.setdefault(weights, []).insert(-1, matrix)
        return product

    def scale_rows(self, weights: Op, matrix: Op) -> Op:
        left = self._with_axes(self.columns(weights, matrix.shape[1]), 0, 3)
        entries = self.multiply(left, self._with_axes(matrix, 1))
        self.factors[entries] = (weights, matrix)
        self.products.setdefault(weights, []).append(matrix)
        return self.op("reshape", entries, shape=(matrix.shape[0], prod(entries.shape[1:])))

    def _with_axes(self, value: Op, *places: int) -> Op:
        """Return a view with axes of length 1 inserted at `places`."""
        shape = list(value.shape)
        for place in places:
            shape.insert(place, 1)
        return self.op("with_axes", value, options=places, shape=tuple(shape))

    # Tables of whole steps, and kernels.

    def step_from_table(self, step: LookUpStep, key: Op, slots: Mapping[str, Op]) -> Op:
        """Look up the next weight. The key is equal at all tokens, so the first token suffices."""
        weight = self.apply(step.table, self.rows(key, slice(0, 1)), by="mlp")
        return self.op("reshape", weight, shape=self.layout.slot(step.write).shape)

    def kernel(self, terms: Sequence[KernelTerm], points: Op) -> Op:
        return self.kernel_of(terms, points, self.examples(points))

    def kernel_of(self, terms: Sequence[KernelTerm], points: Op, examples: Op) -> Op:
        """Return the kernel matrix of `points` (rows) and `examples` (columns)."""
        shape = (points.shape[0], examples.shape[0])
        return self.op("kernel", points, examples, options=tuple(terms), shape=shape)

    def read_examples(self, kernel: Op, value: Op) -> Op:
        return self.times(kernel, self.examples(value))

    # The blocks of a chain.

    def product(self, left: Op, right: Op) -> Op:
        """Return the product of two matrices. The only constant matrices of a chain are 0."""
        shape = (left.shape[0], right.shape[1])
        if "fill" in (left.name, right.name):
            return self.fill(0.0, shape)
        return self.op("matmul", left, right, shape=shape)

    def transposed(self, matrix: Op) -> Op:
        if matrix.name == "fill":
            return self.fill(matrix.options[0], matrix.shape[::-1])
        return self.transpose(matrix, matrix.shape[1])

    def unless(self, flags: Sequence[Op], value: Op) -> Op:
        for flag in flags:
            if flag.name != "fill":
                value = self.op("unless", value, flag, shape=value.shape)
            elif flag.options != (0.0,):
                return self.zero(value)
        return value

    def copied(
        self,
        sources: Sequence[Combination],
        bits: Sequence[Op],
        bound: float | None,
        slots: Mapping[str, Op],
    ) -> Op:
        if not bits:
            value = sources[0].value(slots, self)
        else:  # the bits of the round stay inputs, so that one recording serves all rounds
            names = dict.fromkeys(name for source in sources for name in source.slots)
            values = {name: slots[name] for name in names if slots[name].name != "fill"}
            terms = [dict(source.terms()) for source in sources]
            rows = tuple(tuple(term.get(name, 0.0) for name in values) for term in terms)
            args, options = (*bits, *values.values()), (len(bits), rows)
            value = self.op("select", *args, options=options, shape=args[len(bits)].shape)
        return value if bound is None else self._clipped(value, bound)

    def _clipped(self, value: Op, bound: float) -> Op:
        if value.name == "fill":
            return self.fill(min(max(value.options[0], -bound), bound), value.shape)
        return self.clip(value, bound)

    def activate(self, argument: Op, kinked: Op, leak: float) -> Op:
        if argument.name == "fill":
            return self.zero(argument)
        if kinked.options == (0.0,):
            return argument
        options = (leak,) if leak else ()
        return self.op("leaky" if leak else "kink", argument, options=options, shape=argument.shape)

    def mark_flat(self, argument: Op, width: float) -> Op:
        if argument.name == "fill":
            return self.zero(argument)
        terms = [(-1.0 / width, argument), (1.0, self.fill(1.0, argument.shape))]
        return self.op("kink", self.combine(terms), shape=argument.shape)

    def pass_back(self, back: PassBack, upstream: Op, flat: Op) -> Op:
        if "fill" in (upstream.name, flat.name):
            return upstream if back.bound is None else self._clipped(upstream, back.bound)
        options = (back.gate, back.leak, back.bound)
        return self.op("pass_back", upstream, flat, options=options, shape=upstream.shape)

    def within_reach(self, heads: Product, value: Op) -> Op:
        if value.name == "fill":
            return value
        options = (heads, self.number)
        return self.op("guard_reach", value, options=options, shape=value.shape)

    def by_entries(
        self, heads: MultiplyByEntries | MultiplyEntries, value: Op, left: Op, right: Op
    ) -> Op:
        return value

    def by_rows(self, heads: LookUpProduct, value: Op, left: Op, right: Op) -> Op:
        return self.within_reach(heads, value)

    def look_up_product(
        self, heads: LookUpProduct, function: str, product: Op, left: Op, right: Op
    ) -> Op:
        if product.name == "fill":
            return product
        options = (self.program.look_up(function),)
        return self.op("polynomials", product, options=options, shape=product.shape)

    def softmax_columns(self, scores: Op, n_rows: int) -> Op:
        """Return softmax weights. Backward blocks have no scores and use no weights."""
        if scores.name == "fill":
            return self.zero(scores)
        return self.op("softmax_columns", scores, options=(n_rows,), shape=scores.shape)


def _unshaped(op: Op) -> Op:
    """Return the operation below any reshapes."""
    while op.name == "reshape":
        op = op.args[0]
    return op


MOST_CACHED = 64
"""The size of a program's cache of recordings and tables; the oldest entries are evicted."""

_CACHE: dict[int, dict[object, Any]] = {}
"""The cache of each live program, by id: as an attribute it would be copied and pickled."""


def cached_with(program: Any, key: object, make: Callable[[], Cached]) -> Cached:
    """Return the cached result of `make`, which lives as long as the program."""
    cache = _CACHE.get(id(program))
    if cache is None:
        cache = _CACHE[id(program)] = {}
        weakref.finalize(program, _CACHE.pop, id(program), None)
    value: Cached | None = cache.get(key)
    if value is None:
        value = make()
        for oldest in list(cache)[: max(0, len(cache) - MOST_CACHED + 1)]:
            cache.pop(oldest, None)  # another thread may have evicted it already
        cache[key] = value
    return value


def recorded_steps(
    program: StackProgram, tokens: Tokens, *, trace: tuple[str, ...] | None = None
) -> tuple[Recording, ...]:
    """Return a recording of each step of the block; with a schedule, one with per-step factors."""

    def record() -> tuple[Recording, ...]:
        steps = program.steps_of_block()
        if program.schedule:
            steps = ((*program.common, *scheduled(program.schedule)),)
        return tuple(_recorded(program, tokens, layers, trace) for layers in steps)

    return cached_with(program, ("steps", tokens, trace), record)


def recorded_prediction(
    program: StackProgram, tokens: Tokens, *, trace: tuple[str, ...] | None = None
) -> Recording:
    """Return a recording of the prediction layers, whose output is slot `y`."""
    make = partial(_recorded, program, tokens, program.prediction, trace, ("y",))
    return cached_with(program, ("prediction", tokens, trace), make)


def _recorded(
    program: StackProgram,
    tokens: Tokens,
    layers: Iterable[Layer],
    trace: tuple[str, ...] | None,
    outputs: tuple[str, ...] = (),
) -> Recording:
    """Record `layers`; by default the outputs are the slots that carry over to the next step."""
    n_used = program.batch_size or tokens.examples
    recorder = Recorder(program, tokens, n_used, traced=trace is not None)
    slots = recorder.start()
    inputs = {name: op for name, op in slots.items() if op.name == "input"}
    after, traced = dict(slots), []
    for layer in layers:
        after |= layer.written(after, recorder)
        traced.append({name: after[name] for name in trace or ()})
        recorder.waits = after.get(OUT_OF_BATCH) if recorder.waits is not None else None
    carried = [slot.name for slot in program.layout.slots if slot.role in CARRIED]
    output_ops = {name: after[name] for name in outputs or carried if name in after}
    needed = [*output_ops.values(), *(op for slots in traced for op in slots.values())]
    return Recording(inputs, tuple(in_order(needed)), output_ops, tuple(traced))


Constants = tuple[float | None, ...]
"""For each row of a block, in order: its constant value, or None if it is a matrix."""


Rows = dict[str, Op]
"""The rows of a block by name."""


def recorded_block(program: ChainProgram, near: Constants, far: Constants) -> Recording:
    """Record the block computed from a near and a far one, whose constant rows are given."""

    def record() -> Recording:
        recorder, inputs = Recorder(program), dict[str, Op]()
        blocks = [
            _given_rows(recorder, constants, partial(row_of, prefix), inputs)
            for prefix, constants in ((NEAR, near), (FAR, far))
        ]
        outputs = _next_block(recorder, *blocks)
        return Recording(inputs, tuple(in_order(outputs.values())), outputs)

    return cached_with(program, ("block", near, far), record)


def _given_rows(
    recorder: Recorder, constants: Constants, named: Callable[[str], str], inputs: dict[str, Op]
) -> Rows:
    """Return the rows of an existing block; rows that are not constant become inputs, which
    `named` names.
    """
    rows = Rows()
    for row, constant in zip(recorder.program.rows.slots, constants, strict=True):
        if constant is None:
            name = named(row.name)
            rows[row.name] = recorder.op("input", options=(name,), shape=row.shape)
            inputs[name] = rows[row.name]
        else:
            rows[row.name] = recorder.fill(constant, row.shape)
    return rows


def _next_block(recorder: Recorder, near: Rows, far: Rows) -> Rows:
    program = recorder.program
    slots = {slot.name: recorder.fill(0.0, slot.shape) for slot in program.layout.slots}
    slots[ONE] = recorder.fill(1.0, program.layout.slot(ONE).shape)
    for prefix, rows in ((NEAR, near), (FAR, far)):
        slots |= {row_of(prefix, name): value for name, value in rows.items()}
    # Instructions of one layer may write the same row under flags that exclude each other, so
    # each must read the slots as the previous one left them.
    for layer in program.layers:
        for instruction in layer.instructions:
            slots |= instruction.meaning(slots, recorder)
    return {name: slots[row_of(OUT, name)] for name in program.rows.names}


def recorded_round(
    program: ChainProgram, layers: tuple[Constants, ...], x: Constants, y: Constants
) -> Recording:
    """Record all blocks of a round, which starts from the blocks of `layers` and the data x and y.

    Row r of the block with the weights of layer n is input and output `row_of_layer(r, n)`. Only
    learnt rows are outputs, because the next round reads no others.
    """

    def record() -> Recording:
        recorder, inputs, depth = Recorder(program), dict[str, Op](), program.mask.depth
        blocks = {
            1 - n: _given_rows(recorder, constants, partial(row_of_layer, layer=n), inputs)
            for n, constants in enumerate(layers, start=1)
        }
        data = [
            _given_rows(recorder, constants, partial(row_of, prefix), inputs)
            for prefix, constants in (("x", x), ("y", y))
        ]
        for step in program.mask.walk_round(0):
            recorder.number = step.number
            blocks[step.number] = _next_block(recorder, *step.blocks(blocks, *data))
        outputs = {
            row_of_layer(name, n): blocks[2 * depth + 1 - n][name]
            for name in program.learnt
            for n in range(1, depth + 1)
        }
        return Recording(inputs, tuple(in_order(outputs.values())), outputs)

    return cached_with(program, ("round", layers, x, y), record)


def row_of_layer(row: str, layer: int) -> str:
    """Return the input and output name of a row of the block with the weights of `layer`."""
    return f"{row} {layer}"


def in_order(wanted: Iterable[Op]) -> list[Op]:
    """Return `wanted` and everything they depend on, in topological order.

    Depth-first with an explicit stack, because the graph may exceed Python's recursion limit.
    """
    ordered: dict[Op, None] = {}
    stack = [(op, False) for op in reversed(list(wanted))]
    while stack:
        op, has_args = stack.pop()
        if has_args:
            ordered.setdefault(op)
        elif op not in ordered:
            stack.append((op, True))
            stack.extend((arg, False) for arg in reversed(op.args))
    return list(ordered)
