r"""Bounds for chains: enclosures carried through the blocks, as `bounds.py` does through layers.

A row is an enclosure, or a number that is known. Row `flat` carries z itself: the units that stand
in for the slope r' are closed up to 3c/4, because the gate is 4 times what it closes, and open from
c on; only between, on a kink, is the slope anything else.

    step bound         a round from the run's own weights
    trajectory bound   all rounds, with the error that the rounds before left; it grows with what a
                       round expands on the data at hand, at most its Lipschitz constant
    paper's line       the sum of the step bounds, as if a round expanded nothing; false in general
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, singledispatch

import torch
from torch import Tensor
from torch.nn import functional

from icgd.backends.chain import input_columns, padded, travelling_rows
from icgd.backends.run import OnProgress
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds
from icgd.certificates.bounds import combination_at
from icgd.certificates.enclosures import (
    Arithmetic,
    Enclosure,
    add,
    fitted_at,
    function_at,
    grid_error,
    matrix_product,
    moved,
    multiply,
)
from icgd.certificates.intervals import Interval
from icgd.errors import ProgramError
from icgd.problems.functions import KinkedFunction
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.chain import FAR, IS_BACKWARD, IS_DATA, NEAR, OUT, ChainProgram, row_of
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    Gated,
    LookUpProduct,
    MarkFlat,
    MultiplyEntries,
    MultiplyMatrices,
    PassBack,
    Product,
)
from icgd.program.instructions import IDENTITY, ONE, Combination, Instruction
from icgd.shapes import History

Row = Enclosure | float
Rows = Mapping[str, Row]


@dataclass(frozen=True)
class ChainBounds(AbstractBounds):
    """Bounds of a chain's rounds, each of which is a training step."""

    program: ChainProgram

    def domain(self) -> DomainBound:
        return _domain_bound(self.program, self.problem, self.how)

    def steps(self, task: Task, history: History) -> Tensor:
        return _rounds(self.program, task, history.double(), self.how, torch.tensor(False))

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        both = torch.stack([history.double(), real])
        carries = torch.tensor([False, True]).reshape(2, *[1] * len(task.batch), 1, 1)
        steps, trajectory = _rounds(self.program, task, both, self.how, carries, on_progress)
        return RunBounds(steps, trajectory, steps.cumsum(-1))


def _rounds(
    program: ChainProgram,
    task: Task,
    history: History,
    how: Arithmetic,
    carries: Tensor,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """Round by round; what rounding leaves in padded entries is carried in any case.

    `history` may have one more axis in front, and `carries` says where along it errors of weights
    are carried to the next round: rounds of all are bounded together.
    """
    batch, n_rounds = history.shape[:-2], history.shape[-2] - 1
    errors: list[Tensor] = [torch.zeros(())] * len(program.shapes)
    bounds = []
    for number in range(n_rounds):
        before = [
            Enclosure.around(Interval.point(matrix), error.expand_as(matrix))
            for matrix, error in zip(
                _matrices(program, history[..., number, :]), errors, strict=True
            )
        ]
        rows = list(program.examples_of(number, task.n_examples))
        data = (part[..., rows, :].double() for part in (task.x, task.y))
        x, y = (Interval.point(part.expand(*batch, *part.shape[-2:])) for part in data)
        after = round_after(program, before, x, y, how)
        own = [_own(layer.error, shape) for layer, shape in zip(after, program.shapes, strict=True)]
        bounds.append(torch.stack([part.flatten(-2).amax(-1) for part in own]).amax(0))
        errors = [
            torch.where(carries, layer.error, layer.error - padded(program, part))
            for layer, part in zip(after, own, strict=True)
        ]
        if on_progress:
            on_progress(number + 1, n_rounds)
    return torch.stack(bounds, dim=-1) if bounds else history.new_zeros(*batch, 0)


def _own(matrix: Tensor, shape: tuple[int, int]) -> Tensor:
    """Without the padding."""
    return matrix[..., : shape[0], : shape[1]]


def _matrices(program: ChainProgram, parameters: Tensor) -> list[Tensor]:
    parts = parameters.split([rows * columns for rows, columns in program.shapes], dim=-1)
    return [
        padded(program, part.unflatten(-1, shape))
        for part, shape in zip(parts, program.shapes, strict=True)
    ]


def _domain_bound(program: ChainProgram, problem: Problem, how: Arithmetic) -> DomainBound:
    """By intervals, for runs that are not stopped. Weights are clipped, so that 2 box is the most.

    Some data fall on a kink: only of linear networks is more known than that.
    """
    box, size = problem.gradient_step.box, program.batch_size
    x = Interval.symmetric(problem.domain.x, size, problem.network.input_width)
    y = Interval.symmetric(problem.domain.y, size, problem.network.output_width)
    exact = [
        Interval.symmetric(box, *shape).mapped(partial(padded, program)) for shape in program.shapes
    ]
    weights, errors = [Enclosure.common(interval) for interval in exact], []
    for _ in range(max(program.n_steps, 1)):
        after = round_after(program, weights, x, y, how)
        errors.append(max(float(layer.error.max()) for layer in after))
        if errors[-1] >= 2 * box:  # and so are all that follow
            break
        weights = [
            Enclosure.around(interval, layer.error)
            for interval, layer in zip(exact, after, strict=True)
        ]
    return DomainBound(errors[0], max(errors) if program.n_steps else 0.0)


def round_after(
    program: ChainProgram, weights: list[Enclosure], x: Interval, y: Interval, how: Arithmetic
) -> list[Enclosure]:
    """The weights of every layer after a round on these examples, from those before."""
    mask = program.mask
    blocks: dict[int, Rows] = {}
    for layer, matrix in enumerate(weights):
        blocks[-layer] = {**_travelling(program, layer), IS_BACKWARD: 1.0, "weights": matrix}
    inputs, labels = _data(x.mapped(partial(input_columns, program))), _data(_labels(program, y))
    for step in mask.walk_round(0):
        near, far = step.blocks(blocks, inputs, labels)
        blocks[step.number] = next_block(program, near, far, how)
    last = [blocks[mask.blocks_per_round - layer]["weights"] for layer in range(len(weights))]
    return [layer for layer in last if isinstance(layer, Enclosure)]


def _travelling(program: ChainProgram, layer: int) -> dict[str, Row]:
    rows = travelling_rows(program, layer)
    return {
        name: Enclosure.common(Interval.point(row)) if isinstance(row, Tensor) else row
        for name, row in rows.items()
    }


def _labels(program: ChainProgram, values: Interval) -> Interval:
    return values.mT.mapped(lambda part: padded(program, part, program.batch_size))


def _data(columns: Interval) -> Rows:
    return {"first": Enclosure.common(columns), IS_DATA: 1.0}


def next_block(program: ChainProgram, near: Rows, far: Rows, how: Arithmetic) -> Rows:
    """The enclosures of the block that a step writes."""
    names = program.rows.names
    stream: dict[str, Row] = {row_of(OUT, name): 0.0 for name in names}
    stream[ONE] = 1.0
    for prefix, block in ((NEAR, near), (FAR, far)):
        stream |= {row_of(prefix, name): block.get(name, 0.0) for name in names}
    for instruction in (part for layer in program.layers for part in layer.instructions):
        is_closed = isinstance(instruction, Gated) and _is_closed(instruction.closed_by, stream)
        value = 0.0 if is_closed else rule(instruction, program, stream, how)
        (write,) = instruction.writes()
        before = stream.get(write, 0.0)
        if isinstance(value, Enclosure) and not isinstance(instruction, CopyWhere):
            value = value.without_nan()
        if isinstance(value, Enclosure) and isinstance(before, Enclosure):
            value = add(before, value, how)
        if value != 0.0 or write not in stream:
            stream[write] = value
    return {name: stream[row_of(OUT, name)] for name in names}


@singledispatch
def rule(instruction: Instruction, program: ChainProgram, stream: Rows, how: Arithmetic) -> Row:
    """What an instruction that is not closed adds; it is the only one of its slot if a number."""
    missing = "has no rule in certificates/chain_bound.py"
    raise ProgramError.broken(type(instruction).__name__, missing)


def _is_closed(closed_by: tuple[str, ...], stream: Rows) -> bool:
    """Whether a flag closes all entries."""
    flags = (stream[flag] for flag in closed_by)
    return any(flag != 0.0 for flag in flags if isinstance(flag, float))


def _where_open(value: Row, closed_by: tuple[str, ...], stream: Rows) -> Row:
    """The value, exactly 0 at the units that a flag closes."""
    for flag in (stream[name] for name in closed_by):
        if isinstance(flag, Enclosure) and isinstance(value, Enclosure):
            value = value.mapped(partial(_cleared, flag.exact.low != 0))
    return value


def _cleared(closed: Tensor, part: Tensor) -> Tensor:
    return part.masked_fill(closed, 0.0)


def _clipped(source: Row, bound: float | None, how: Arithmetic) -> Row:
    if bound is None or isinstance(source, float):
        return source
    rounding = how.sum_of(4, source.actual.size)  # four ReLUs
    actual = source.actual.clipped(bound).widened(rounding)
    return Enclosure.around(source.exact.clipped(bound), source.error + rounding, actual)


def _combined(combination: Combination, stream: Rows, how: Arithmetic) -> Row:
    """A combination of enclosures, or of numbers; rows that are 0 add nothing."""
    if combination.coefficients == (1.0,):
        return stream[combination.slots[0]]
    enclosed: dict[str, Enclosure] = {}
    factors, number = [], 0.0
    for slot, factor in combination.terms():
        row = stream[slot]
        if isinstance(row, float):
            number += factor * row
        else:
            enclosed[slot] = row
            factors.append(factor)
    if not enclosed:
        return number
    total = combination_at(Combination(tuple(enclosed), tuple(factors)), enclosed, how).value
    return total.without_nan()


@rule.register
def _bound_of_copy_where(
    instruction: CopyWhere, program: ChainProgram, stream: Rows, how: Arithmetic
) -> Row:
    source = _clipped(_combined(instruction.source, stream, how), instruction.bound, how)
    return _where_open(source, instruction.closed_by, stream)


@rule.register
def _bound_of_pass_back(
    instruction: PassBack, program: ChainProgram, stream: Rows, how: Arithmetic
) -> Row:
    upstream = _clipped(_combined(instruction.upstream, stream, how), instruction.bound, how)
    upstream, z = _where_open(upstream, instruction.closed_by, stream), stream[instruction.flat]
    if isinstance(upstream, float) or isinstance(z, float):
        return upstream
    return multiply(upstream, _slope(instruction.leak, program.kink_width, z), how)


def _slope(leak: float, width: float, z: Enclosure) -> Enclosure:
    """r'(z): closed up to 3/4 of the kink's width, open from the whole of it on."""
    step = _kinked(leak).derivative()
    exact = Interval(*step.bounds(z.exact.low, z.exact.high))
    actual = Interval(*step.bounds(z.actual.low - width, z.actual.high - 0.75 * width))
    return Enclosure(exact, actual, exact.distance_to(actual))


def _kinked(leak: float) -> KinkedFunction:
    """The activation with the slope `leak` below 0."""

    def evaluate(z: Tensor) -> Tensor:
        return functional.leaky_relu(z, leak)

    return KinkedFunction("kinked", evaluate, (0.0,), (leak, 1.0))


@rule.register
def _bound_of_activate_where(
    instruction: ActivateWhere, program: ChainProgram, stream: Rows, how: Arithmetic
) -> Row:
    z = stream[instruction.argument]
    if isinstance(z, float):
        return 0.0
    value = function_at(_kinked(instruction.leak), z) if stream[instruction.kinked] else z
    value = moved(value, how.sum_of(3, z.actual.size))  # three ReLUs
    return _where_open(value, instruction.closed_by, stream)


@rule.register
def _bound_of_mark_flat(
    instruction: MarkFlat, program: ChainProgram, stream: Rows, how: Arithmetic
) -> Row:
    return 0.0 if stream[instruction.linear] else stream[instruction.argument]


@rule.register
def _bound_of_multiply_matrices(
    instruction: MultiplyMatrices, program: ChainProgram, stream: Rows, how: Arithmetic
) -> Row:
    left, right = stream[instruction.left], stream[instruction.right]
    if isinstance(left, float) or isinstance(right, float):
        return 0.0
    left = left.mT if instruction.left_transposed else left
    right = right.mT if instruction.right_transposed else right
    value = matrix_product(left, right.mT, how).mT
    sizes = left.actual.size @ right.actual.size
    return _read(instruction, value, left.error.shape[-1], sizes, program, how)


@rule.register
def _bound_of_multiply_entries(
    instruction: MultiplyEntries, program: ChainProgram, stream: Rows, how: Arithmetic
) -> Row:
    left, right = stream[instruction.left], stream[instruction.right]
    if isinstance(left, float):
        return 0.0
    if isinstance(right, float):  # the slope of a linear layer
        right = Enclosure.common(Interval.point(torch.full_like(left.error, right)))
    sizes = left.actual.size * right.actual.size
    return _read(instruction, multiply(left, right, how), 1, sizes, program, how)


def _read(
    instruction: Product,
    value: Enclosure,
    n_terms: int,
    sizes: Tensor,
    program: ChainProgram,
    how: Arithmetic,
) -> Enclosure:
    """A product of `n_terms` terms, of these sizes in all, as heads read it from the grid."""
    grid, reach = program.look_up(IDENTITY), instruction.reach
    off = grid_error(grid, n_terms, sizes / reach, torch.zeros_like(sizes), how)
    value = moved(value, reach * off)
    # Or the run is stopped; only what B_1 passes back may be larger, and nobody reads that.
    known = Interval.symmetric(reach, 1, 1)
    return Enclosure.around(value.exact, value.error, value.actual.within(known))


@rule.register
def _bound_of_look_up_product(
    instruction: LookUpProduct, program: ChainProgram, stream: Rows, how: Arithmetic
) -> Row:
    left, right = stream[instruction.left], stream[instruction.right]
    if isinstance(left, float) or isinstance(right, float):
        return 0.0
    value, sizes = matrix_product(left, right.mT, how).mT, left.actual.size @ right.actual.size
    n_terms, apart, reach = left.error.shape[-1], torch.zeros_like(sizes), instruction.reach
    off = grid_error(program.look_up(IDENTITY), n_terms, sizes / reach, apart, how)
    known = Interval.symmetric(reach, 1, 1).widened(reach * off)  # of the product, or it is stopped
    argument = Enclosure.around(value.exact, value.error, value.actual.within(known))
    fit = program.look_up(instruction.function)
    return fitted_at(fit, argument, how.head(fit, n_terms, sizes, apart))
