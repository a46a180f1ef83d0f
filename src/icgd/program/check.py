"""Check that a program is well-formed when it is built.

Shapes are checked by the meaning of instructions on shapes: in this domain, a primitive checks the
shapes of its arguments and returns that of its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isfinite, prod
from typing import Any

from icgd.errors import ProgramError
from icgd.program.chain import IS_DATA, NEAR, OUT, ChainProgram, row_of
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum, RidgeSum
from icgd.program.instructions import (
    Combination,
    Instruction,
    LayerKind,
    MapSlots,
    Use,
    WipeSlots,
    names_used,
)
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import (
    IS_EXAMPLE,
    IS_QUERY,
    IS_REGISTER,
    ONE,
    OUT_OF_BATCH,
    SCALE,
    SCALE_SIZE,
    Layout,
    Role,
)
from icgd.program.linear_instructions import DescendExamples
from icgd.program.meaning import BlockDomain, FunctionDomain, StackDomain
from icgd.program.network_instructions import LookUpStep, ShareClasses, TakeTurns
from icgd.program.program import AbstractProgram, Layer
from icgd.program.render import read_program
from icgd.program.set_instructions import ProjectSlot
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import ByUnits, WipeByUnits

SCRATCH = (Role.SCRATCH, Role.SHARED)
"""Roles of slots that are empty between steps."""

FIXED = (Role.INPUT, Role.CONSTANT)
"""Roles of slots that the prompt sets and no instruction may change."""

Shape = tuple[int, ...]
"""The shape of a matrix that all tokens share, or TOKENS followed by the shape at every token."""

TOKENS = -1
"""The length that stands for the axis of tokens."""

A_NUMBER = (TOKENS, 1)
NO_MATRIX = "{} is no matrix that all tokens share"


class ShapeError(Exception):
    """Raised by primitives for shapes that do not fit, with a message that says why."""


def shown(shape: Shape) -> str:
    """Return a shape as text, without the axis of tokens."""
    return f"({', '.join(str(n) for n in shape if n != TOKENS)})"


def require(fits: bool, problem: str, *shapes: Shape) -> None:
    """Raise `ShapeError` unless the shapes fit; `problem` has a `{}` for each of them."""
    if not fits:
        raise ShapeError(problem.format(*map(shown, shapes)))


def require_equal(first: Shape, *others: Shape) -> Shape:
    """Return the common shape, or raise `ShapeError` if shapes differ."""
    for other in others:
        require(other == first, "{} meets {}, expected equal shapes", first, other)
    return first


@lru_cache
def broadcast(*shapes: Shape) -> Shape:
    """Return the broadcast shape of an elementwise operation, where axes of length 1 repeat."""
    n_axes = max(map(len, shapes))
    padded = [(1,) * (n_axes - len(shape)) + shape for shape in shapes]
    axes = [{*axis} - {1} for axis in zip(*padded, strict=True)]
    fits = all(len(axis) <= 1 for axis in axes)
    require(fits, " meets ".join(["{}"] * len(shapes)) + ", expected a common shape", *shapes)
    return tuple(max(axis, default=1) for axis in axes)


def shape_of_argument(place: int) -> Any:
    """Return a primitive whose result has the shape of the argument at this place."""
    return lambda domain, *arguments, **options: arguments[place]


class Shapes(StackDomain[Shape], BlockDomain[Shape], FunctionDomain[Shape]):
    """The primitives on the shapes of a program's slots."""

    def __init__(self, layout: Layout, *, is_chain: bool) -> None:
        self.layout, self._summed = layout, broadcast if is_chain else require_equal
        shared = (Role.PARAMETER, Role.VELOCITY, Role.SHARED)
        self.slots = {
            slot.name: slot.shape
            if is_chain or (slot.role in shared and len(slot.shape) == 2)
            else (TOKENS, slot.width)
            for slot in layout.slots
        }

    def problem_with(self, instruction: Instruction) -> str | None:
        """Return the error in the shapes of an instruction's slots, or None."""
        try:
            for name, shape in instruction.meaning(self.slots, self).items():
                if shape != self.slots[name]:
                    raise ShapeError(f"writes {shown(shape)} to {name}")
        except ShapeError as error:
            used = dict.fromkeys((*instruction.writes(), *instruction.reads()))
            slots = ", ".join(f"{name} {shown(self.slots[name])}" for name in used)
            return f"{error}, in {instruction.formula()} with {slots}"
        return None

    softmax = clip = project = exchange = mean_excess = threshold = shape_of_argument(0)
    zero = not_negative = mark_flat = shape_of_argument(0)
    apply = evaluate = as_read = by_units = read_examples = shape_of_argument(1)
    within_reach = by_entries = by_rows = shape_of_argument(1)
    look_up_product = shape_of_argument(2)
    replace = mix = written_over = shape_of_argument(1)  # compared with the slot's shape afterwards

    def combine(self, terms: Sequence[tuple[float, Shape]]) -> Shape:
        return self._summed(*(shape for _, shape in terms))

    def add(self, *values: Shape) -> Shape:
        return self._summed(*values)

    def multiply(self, left: Shape, right: Shape) -> Shape:
        """Return the shape of a product; matrices of a token broadcast rows and columns."""
        return (
            broadcast(left, right) if len(left) == len(right) == 3 else require_equal(left, right)
        )

    def scale(self, number: Shape, value: Shape) -> Shape:
        require(number == A_NUMBER, "{} coordinates, expected one number a token", number)
        return value

    def scale_columns(self, value: Shape, factor: float, last: float) -> Shape:
        require(TOKENS not in value, NO_MATRIX, value)
        return value

    def matmul(self, weights: Shape, inputs: Shape) -> Shape:
        require(TOKENS not in weights, NO_MATRIX, weights)
        fits = inputs == (TOKENS, weights[1])
        require(fits, "a matrix {} meets {} coordinates", weights, inputs)
        return (TOKENS, weights[0])

    def transpose(self, weights: Shape, n_rows: int) -> Shape:
        require(TOKENS not in weights, NO_MATRIX, weights)
        fits = weights[1] - n_rows in (0, 1)
        require(fits, f"a matrix {{}} has no {n_rows} columns, or one more for a bias", weights)
        return (n_rows, weights[0])

    def above_one(self, inputs: Shape) -> Shape:
        return (*inputs[:-1], inputs[-1] + 1)

    def take(self, value: Shape, places: Sequence[int]) -> Shape:
        require(max(places) < value[-1], f"reads coordinate {max(places) + 1} of {{}}", value)
        return (*value[:-1], len(places))

    def constant_map(self, rows: Sequence[Sequence[float]], value: Shape) -> Shape:
        fits = {len(row) for row in rows} == {value[-1]}
        require(fits, "a constant matrix without {} columns, or without rows", value)
        return (TOKENS, len(rows))

    def loss_slope(self, loss: str, prediction: Shape, label: Shape) -> Shape:
        return require_equal(prediction, label)

    def accumulate(
        self, weights: Shape, left: Shape, right: Shape, scale: float, by: Any, **_: Any
    ) -> Shape:
        fits = weights == (left[-1], right[-1])
        require(fits, "products of {} and {} are added to {}", left, right, weights)
        return weights

    def accumulate_rows(
        self, weights: Shape, left: Shape, matrix: Shape, scale: float, by: Any
    ) -> Shape:
        fits = matrix[1:] == (left[-1], prod(weights))
        require(fits, "products of {} and {} are added to {}", left, matrix, weights)
        return weights

    def average_examples(self, score: Shape, value: Shape) -> Shape:
        return self.scale(score, value)

    def where(self, flag: str, closed_by: Sequence[str], value: Shape, otherwise: Shape) -> Shape:
        if TOKENS in otherwise and value[0] == 1:  # a row of shared weights is equal at all tokens
            value = (TOKENS, *value[1:])
        return require_equal(value, otherwise)

    def take_turns(self, turns: TakeTurns, slots: Mapping[str, Shape]) -> dict[str, Shape]:
        require_equal(A_NUMBER, *(slots[name] for name in turns.reads()))
        return {name: slots[name] for name in turns.writes()}

    def guard(self, score: Shape, reach: float, checked: str) -> Shape:
        fits = checked in (IS_EXAMPLE, IS_QUERY)
        require(fits, f"checks scores where {checked!r}, expected {IS_EXAMPLE} or {IS_QUERY}")
        return score

    def unflatten(self, value: Shape, n_rows: int) -> Shape:
        return (TOKENS, n_rows, value[-1] // n_rows)

    def flatten(self, matrix: Shape) -> Shape:
        return (TOKENS, prod(matrix[1:]))

    def matmul_rows(self, weights: Shape, matrix: Shape) -> Shape:
        self.transpose(weights, matrix[1])
        return (TOKENS, weights[0], matrix[2])

    def scale_rows(self, weights: Shape, matrix: Shape) -> Shape:
        self.transpose(weights, matrix[1])
        return (TOKENS, weights[0] * prod(matrix[1:]))

    def step_from_table(self, step: LookUpStep, key: Shape, slots: Mapping[str, Shape]) -> Shape:
        require_equal(A_NUMBER, key, *(slots.get(name, ()) for name in step.levels))
        return (1, 1)

    def kernel(self, terms: Sequence[KernelTerm], points: Shape) -> Shape:
        for matrix in (matrix for term in terms for matrix in term.matrices if matrix is not None):
            self.constant_map(matrix, points)
        return (TOKENS, TOKENS)

    # The blocks of a chain.

    def product(self, left: Shape, right: Shape) -> Shape:
        require(left[1:] == right[:1], "a matrix {} is multiplied by {}", left, right)
        return (*left[:1], *right[1:])

    def transposed(self, matrix: Shape) -> Shape:
        return matrix[::-1]

    def unless(self, flags: Sequence[Shape], value: Shape) -> Shape:
        for flag in flags:
            require(flag[-1] == 1, "{} is no flag: one number, or one for each unit", flag)
        return broadcast(value, *flags)

    def copied(
        self,
        sources: Sequence[Combination],
        bits: Sequence[Shape],
        bound: float | None,
        slots: Mapping[str, Shape],
    ) -> Shape:
        fits = 0 < len(sources) <= 2 ** len(bits)
        require(fits, f"selects one of {len(sources)} sums by {len(bits)} bits")
        return self.unless(bits, broadcast(*(source.value(slots, self) for source in sources)))

    def activate(self, argument: Shape, kinked: Shape, leak: float) -> Shape:
        return self.unless([kinked], argument)

    def pass_back(self, back: Any, upstream: Shape, flat: Shape) -> Shape:
        return broadcast(upstream, flat)

    def softmax_columns(self, scores: Shape, n_rows: int) -> Shape:
        require(0 < n_rows <= scores[0], f"shares {n_rows} classes among {{}} scores", scores)
        return scores


def check_program(program: AbstractProgram) -> None:
    """Raise a `ProgramError` that names the first ill-formed instruction, if there is one.

    The rules: the slots and functions of an instruction exist, and their shapes fit. All
    instructions of a layer are of its kind. A slot is read only after it was written, and not
    written while it holds a value. A step leaves no scratch slot filled, and a chain leaves no row
    of the next block empty. All numbers are finite.
    """
    name, number = program.largest_number
    if not isfinite(number):
        raise ProgramError(f"{name} is {number}; every number of a program must be finite.")
    shapes = Shapes(program.layout, is_chain=isinstance(program, ChainProgram))
    if isinstance(program, StackProgram):
        given = {slot.name for slot in program.layout.slots if slot.role not in SCRATCH}
        for stage, layers in (("block", program.block_of(0)), ("prediction", program.prediction)):
            if left := _check_layers(program, shapes, stage, layers, given) - given:
                raise ProgramError(
                    f"The {stage} leaves {', '.join(sorted(left))} filled at its end; wipe it."
                )
    if isinstance(program, ChainProgram):
        given = {row_of(NEAR, row) for row in program.rows.names}
        given |= {slot.name for slot in program.layout.having(Role.CONSTANT)}
        filled = _check_layers(program, shapes, "chain", program.layers, given)
        # A block that the chain writes never holds data, so nothing writes that flag.
        next_block = {row_of(OUT, row) for row in program.rows.names if row != IS_DATA}
        if missing := next_block - filled:
            raise ProgramError(
                f"The chain writes no {', '.join(sorted(missing))}; it must write every row of the "
                "next block."
            )


def _check_layers(
    program: AbstractProgram,
    shapes: Shapes,
    stage: str,
    layers: tuple[Layer, ...],
    given: set[str],
) -> set[str]:
    """Check layers one after the other, and return the slots that are filled after the last one.

    Instructions of one layer of a chain may add to the same slot: their flags exclude each other.
    """
    layout, is_chain = program.layout, isinstance(program, ChainProgram)
    available = {(type(function), function.name) for function in program.functions}
    filled = set(given)
    for number, layer in enumerate(layers, start=1):
        if not layer.instructions:
            raise ProgramError(f"{stage} layer {number} ({layer.title}) has no instructions.")
        written: set[str] = set()
        wiped: set[str] = set()
        for instruction in layer.instructions:
            reads, writes = set(instruction.reads()), instruction.writes()
            kind: type[Function] = ReluSum
            if is_chain or instruction.kind is LayerKind.SOFTMAX:
                kind = LatticeFunction
            elif isinstance(instruction, ByUnits):
                kind = RidgeSum
            elif instruction.kind is LayerKind.GRID:
                kind = GridMean
            # The slot of the labels is empty at queries.
            at_queries = getattr(instruction, "only_where", None) == IS_QUERY
            problem: str | None
            if instruction.kind is not layer.kind:
                problem = (
                    f"is for {instruction.kind.value} layers, and the layer is {layer.kind.value}"
                )
            elif unknown := {*reads, *writes} - set(layout.names):
                problem = f"uses {min(unknown)!r}, and the layout has no such slot"
            elif lacking := [
                name for name in instruction.functions() if (kind, name) not in available
            ]:
                problem = f"needs a {kind.__name__} called {lacking[0]!r}, and there is none"
            elif empty := reads - filled:
                problem = f"reads {min(empty)!r} before it is written"
            elif changed := (reads - set(writes)) & written:
                problem = f"reads {min(changed)!r}, which the same layer writes"
            elif not is_chain and (twice := [name for name in writes if name in written]):
                problem = f"writes {twice[0]!r} a second time in one layer"
            elif not at_queries and (
                held := filled.intersection(names_used(instruction, Use.WRITE))
                | given.intersection(names_used(instruction, Use.ADD))
            ):
                problem = f"writes over {min(held)!r}, which still holds a value"
            elif not isinstance(instruction, DescendFunction) and (
                fixed := [name for name in writes if layout.slot(name).role in FIXED]
            ):
                problem = f"writes to {fixed[0]!r}, which must stay as the prompt sets it"
            else:
                problem = _error_in_fields(instruction, layout) or shapes.problem_with(instruction)
            if problem:
                verb = type(instruction).__name__
                raise ProgramError(f"{stage} layer {number} ({layer.title}), {verb}: {problem}.")
            written.update(writes)
            if isinstance(instruction, WipeSlots | WipeByUnits):
                wiped.update(instruction.slots)
        filled = (filled | written) - wiped
    return filled


def _error_in_fields(instruction: Instruction, layout: Layout) -> str | None:
    """Return the error in an instruction's flags, unit, faces or classes, or None."""
    if isinstance(instruction, MapSlots):
        kinds = {IS_EXAMPLE, IS_QUERY, IS_REGISTER}
        if instruction.only_where == IS_EXAMPLE:
            kinds.add(OUT_OF_BATCH)
        flags = [instruction.only_where, *instruction.never_where]
        expected = sorted(kinds & {*layout.names})
        if flags != [ONE] and sorted(flags) != expected:
            return f"its flags are {', '.join(flags)}, expected {', '.join(expected)} or {ONE}"
    unit = getattr(instruction, "unit", ONE)
    if unit not in (ONE, SCALE_SIZE):
        return f"its unit is {unit!r}, expected {ONE} or {SCALE_SIZE}"
    if isinstance(instruction, ProjectSlot):
        expected_scale = ONE if unit == ONE else SCALE
        if instruction.scale != expected_scale:
            return f"its scale is {instruction.scale!r}, expected {expected_scale}"
        shape = layout.slot(instruction.slot).shape
        if not all(faces.fit(shape) for faces in instruction.faces):
            return f"its faces do not fit the weights in {instruction.slot!r}"
    if isinstance(instruction, ShareClasses):
        n_classes, n_scores = len(instruction.classes), layout.width_of(instruction.scores)
        if n_classes != n_scores:
            return f"shares {n_scores} scores {instruction.scores!r} among {n_classes} classes"
    return None


PROGRAMS: dict[str, type[AbstractProgram]] = {"block": StackProgram, "rows": ChainProgram}
"""The kinds of program, by a key that only their own data have."""


FORMER_LINEAR_STACKS = ("cot-ridge", "cot-lasso", "cot-glm")
"""Former names of linear-stack, which now belong to constructions by one layer of softmax."""


def from_data(data: Mapping[str, Any]) -> AbstractProgram:
    """Return the program from its `to_data`."""
    for key, kind in PROGRAMS.items():
        if key in data:
            program = read_program(kind, data)
            if program.construction in FORMER_LINEAR_STACKS and program.first(DescendExamples):
                program = replace(program, construction="linear-stack")  # type: ignore[type-var]
            return program
    raise ProgramError(
        f"The data of a program have the keys {', '.join(data)}; expected one of "
        f"{', '.join(PROGRAMS)} among them."
    )
