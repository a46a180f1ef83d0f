r"""Bounds for chains carry enclosures through the blocks, as `bounds.py` does through layers.

A row is an enclosure, or a number that is known. Row `flat` carries z itself: the units that stand
in for the slope r' are closed up to 3c/4, because the gate is 4 times what it closes, and open from
c on; only between, on a kink, is the slope anything else.

    step bound         a round from the run's own weights
    trajectory bound   all rounds, with the error that the rounds before left; it grows with what a
                       round expands on the data at hand, at most its Lipschitz constant
    paper's line       the sum of the step bounds, as if a round expanded nothing; false in general
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from math import inf

import torch
from torch import Tensor
from torch.nn import functional

from icgd.backends.chain import input_columns, learnt_matrices, padded, travelling_rows
from icgd.backends.run import OnProgress
from icgd.certificates import bounds, enclosures
from icgd.certificates.abstract_bounds import (
    INTERVALS,
    AbstractBounds,
    DomainBound,
    RunBounds,
    one_by_one,
)
from icgd.certificates.class_bounds import shares_of
from icgd.certificates.domain_bound import STEPS_ONE_BY_ONE, after_steps, least_kept
from icgd.certificates.enclosures import Arithmetic, Enclosure, matrix_product, moved, multiply
from icgd.certificates.intervals import ROOM, Interval
from icgd.constructions.cot_network import LARGEST_REACH
from icgd.errors import ProgramError
from icgd.memory import require_memory
from icgd.problems.functions import KinkedFunction
from icgd.problems.optimisers.rule import WEIGHTS
from icgd.problems.task import Task
from icgd.program import chain_instructions as verbs
from icgd.program.chain import FAR, IS_BACKWARD, IS_DATA, NEAR, OUT, ChainProgram, row_of
from icgd.program.instructions import IDENTITY, ONE, Combination, Instruction
from icgd.shapes import History, Predictions, Queries

Row = Enclosure | float
Rows = Mapping[str, Row]


@dataclass(frozen=True)
class ChainBounds(AbstractBounds):
    """Bounds of a chain's rounds, each of which is a training step."""

    program: ChainProgram

    def __post_init__(self) -> None:
        """Raise `SizeError` if the matrices, which are padded to squares, take too much."""
        n_weights = len(self.program.weight_shapes) * self.program.width**2
        what = f"Bounding {n_weights:,} weights of padded layers"
        require_memory(what, INTERVALS * 8 * n_weights, "Take a narrower network.")

    def domain(self) -> DomainBound:
        """The bounds hold for runs that are not stopped. Clipped weights are at most 2 box apart.

        More than that is known only of linear networks: for others some data fall on a kink. How
        large the state of an optimiser can become is not propagated.
        """
        program, box, domain = self.program, self.problem.gradient_step.box, self.problem.domain
        if len(program.learnt) > 1:
            return DomainBound(inf, inf)
        x = Interval.symmetric(domain.x, program.batch_size, self.problem.network.input_width)
        y = Interval.symmetric(domain.y, program.batch_size, self.problem.network.output_width)
        exact = [Interval.symmetric(box, *shape).mapped(self._padded) for shape in program.shapes]

        def error_after(error: float) -> float:
            off = [torch.full_like(interval.low, error) for interval in exact]
            weights = [Enclosure.around(*pair) for pair in zip(exact, off, strict=True)]
            rounds = (self.round_after(weights, x, y, number) for number in self._unlike_rounds)
            return max(map(_largest_error, rounds))

        if program.n_steps <= STEPS_ONE_BY_ONE:
            return DomainBound(error_after(0.0), self._followed(exact, x, y))
        kept = least_kept(self.problem.gradient_step, program.n_steps)
        error = after_steps(error_after, program.n_steps, box, 2 * box, kept)
        return DomainBound(error_after(0.0), error if error < 2 * box else inf)

    def _followed(self, exact: Sequence[Interval], x: Interval, y: Interval) -> float:
        """The largest error of rounds that are followed one by one."""
        weights, errors = [Enclosure.common(interval) for interval in exact], [0.0]
        for number in range(self.program.n_steps):
            after = self.round_after(weights, x, y, number)
            errors.append(_largest_error(after))
            if errors[-1] >= self.widest:  # nothing is known of those that follow
                return inf
            pairs = zip(exact, after, strict=True)
            weights = [Enclosure.around(interval, layer.error) for interval, layer in pairs]
        return max(errors)

    @property
    def _unlike_rounds(self) -> list[int]:
        """The first round of every rule."""
        rules = self.program.rules
        return [rules.index(rule) for rule in dict.fromkeys(rules)] or [0]

    @property
    def widest(self) -> float:
        return 2 * self.problem.gradient_step.box

    @property
    def condition(self) -> str | None:
        """Grids end somewhere, and what a domain allows may lie beyond."""
        parts = (part for layer in self.program.layers for part in layer.instructions)
        reaches = [part.reach for part in parts if isinstance(part, verbs.Product)]
        if max(reaches, default=0.0) < LARGEST_REACH:
            return None
        return (
            f"of runs in which no product is beyond {LARGEST_REACH:g}, where the grids end; "
            "a run that gets there is stopped with an error"
        )

    def steps(self, task: Task, history: History) -> Tensor:
        return one_by_one(self._rounds(task, history.double(), torch.tensor(False)), history)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        both = torch.stack([history.double(), real])
        carries = torch.tensor([False, True]).reshape(2, *[1] * len(task.batch), 1, 1)
        steps, trajectory = one_by_one(self._rounds(task, both, carries), both, on_progress)
        return RunBounds(steps, trajectory, steps.cumsum(-1))

    def predictions(
        self, task: Task, history: History, real: History, error: Tensor
    ) -> Predictions:
        end = real[..., -1, :].double()
        parts = (self._matrices(part) for part in (end, error.double().expand_as(end)))
        near = [
            Enclosure.around(Interval.point(matrix), off)
            for matrix, off in zip(*parts, strict=True)
        ]
        groups = task.queries.double().split(self.program.batch_size, dim=-2)
        found = [self._forward(near, group) for group in groups if group.numel()]
        return torch.cat([task.y[..., :0, :].double(), *found], dim=-2)

    def _forward(self, weights: list[Enclosure], queries: Queries) -> Predictions:
        """The bounds at up to `batch_size` queries, from the blocks that predict."""
        mask, blocks = self.program.mask, self._first_blocks(weights)
        inputs = _data(Interval.point(input_columns(self.program, queries)))
        for step in mask.walk(1, mask.depth):
            near, far = step.blocks(blocks, inputs, inputs)
            blocks[step.number] = self.next_block(near, far)
        outputs = blocks[mask.depth]["first"]
        error = outputs.mT.error if isinstance(outputs, Enclosure) else torch.zeros(())
        width = self.problem.network.output_width
        return error[..., : queries.shape[-2], :width].nan_to_num(nan=inf, posinf=inf)

    def _rounds(self, task: Task, history: History, carries: Tensor) -> Iterator[Tensor]:
        """A bound for each round; what rounding leaves in padded entries is carried in any case.

        `history` may have one more axis in front, and `carries` says where along it errors of
        weights are carried to the next round: rounds of all are bounded together.
        """
        errors: list[Tensor] = [torch.zeros(())] * len(self.program.weight_shapes)
        for number, start in enumerate(history[..., :-1, :].unbind(-2)):
            pairs = zip(self._matrices(start), errors, strict=True)
            before = [
                Enclosure.around(Interval.point(matrix), error.expand_as(matrix))
                for matrix, error in pairs
            ]
            rows = list(self.program.examples_of(number, task.n_examples))
            data = (part[..., rows, :].double() for part in (task.x, task.y))
            x, y = (
                Interval.point(part.expand(*start.shape[:-1], *part.shape[-2:])) for part in data
            )
            after = [layer.error for layer in self.round_after(before, x, y, number)]
            shapes = self.program.weight_shapes
            own = [error[..., :m, :n] for error, (m, n) in zip(after, shapes, strict=True)]
            yield torch.stack([part.flatten(-2).amax(-1) for part in own]).amax(0)
            errors = [
                torch.where(carries, error, error - self._padded(part))
                for error, part in zip(after, own, strict=True)
            ]

    def _padded(self, matrix: Tensor) -> Tensor:
        return padded(self.program, matrix)

    def _matrices(self, parameters: Tensor) -> list[Tensor]:
        """The weights of all layers, then their state."""
        return [
            part for parts in learnt_matrices(self.program, parameters).values() for part in parts
        ]

    def round_after(
        self, learnt: list[Enclosure], x: Interval, y: Interval, number: int = 0
    ) -> list[Enclosure]:
        """The weights and the state after round `number` on these examples, from those before."""
        program, mask, blocks = self.program, self.program.mask, self._first_blocks(learnt)
        inputs = _data(x.mapped(partial(input_columns, program)))
        labels = _data(y.mapped(lambda part: padded(program, part.mT, program.batch_size)))
        labels |= program.code(number)
        for step in mask.walk_round(0):
            near, far = step.blocks(blocks, inputs, labels)
            blocks[step.number] = self.next_block(near, far)
        last = [blocks[mask.blocks_per_round - layer] for layer in range(mask.depth)]
        rows = [block[name] for name in program.learnt for block in last]
        return [row for row in rows if isinstance(row, Enclosure)]

    def _first_blocks(self, learnt: list[Enclosure]) -> dict[int, Rows]:
        """The blocks that hold weights and state before a round."""
        program, depth = self.program, self.program.mask.depth
        blocks: dict[int, Rows] = {}
        for layer in range(depth):
            travelling = travelling_rows(program, layer).items()
            rows: dict[str, Row] = {name: _known(row) for name, row in travelling}
            rows |= dict(zip(program.learnt, learnt[layer::depth], strict=True))
            blocks[-layer] = {**rows, IS_BACKWARD: 1.0}
        return blocks

    def next_block(self, near: Rows, far: Rows) -> Rows:
        """The enclosures of the block that a step writes."""
        names = self.program.rows.names
        rows: dict[str, Row] = {row_of(OUT, name): 0.0 for name in names}
        rows[ONE] = 1.0
        for prefix, block in ((NEAR, near), (FAR, far)):
            rows |= {row_of(prefix, name): block.get(name, 0.0) for name in names}
        now = Moment(self.program, rows, self.how)
        for part in (part for layer in self.program.layers for part in layer.instructions):
            is_closed = isinstance(part, verbs.Gated) and now.is_closed(part.closed_by)
            value = 0.0 if is_closed else rule(part, now)
            (write,) = part.writes()
            before = rows.get(write, 0.0)
            if isinstance(value, Enclosure) and not isinstance(
                part, verbs.CopyWhere | verbs.SelectWhere
            ):
                value = value.without_nan()
            if isinstance(value, Enclosure) and isinstance(before, Enclosure):
                value = enclosures.add(before, value, self.how)
            if value != 0.0 or write not in rows:
                rows[write] = value
        return {name: rows[row_of(OUT, name)] for name in names}


def _largest_error(learnt: list[Enclosure]) -> float:
    return max(float(layer.error.max()) for layer in learnt)


def _known(row: Tensor | float) -> Row:
    return Enclosure.common(Interval.point(row)) if isinstance(row, Tensor) else row


def _data(columns: Interval) -> dict[str, Row]:
    return {"first": Enclosure.common(columns), IS_DATA: 1.0}


@dataclass(frozen=True)
class Moment:
    """What an instruction finds: the program, the rows of the stream, and the arithmetic."""

    program: ChainProgram
    rows: Rows
    how: Arithmetic

    def is_closed(self, closed_by: tuple[str, ...]) -> bool:
        """Whether a flag closes all entries."""
        flags = (self.rows[flag] for flag in closed_by)
        return any(flag != 0.0 for flag in flags if isinstance(flag, float))

    def where_open(self, value: Row, closed_by: tuple[str, ...]) -> Row:
        """The value, which is exactly 0 at the units that a flag closes."""
        for flag in (self.rows[name] for name in closed_by):
            if isinstance(flag, Enclosure) and isinstance(value, Enclosure):
                closed = flag.exact.low != 0
                value = value.mapped(partial(torch.masked_fill, mask=closed, value=0.0))
        return value

    def combined(self, combination: Combination, bound: float | None) -> Row:
        """A combination, clipped if there is a bound; rows that are 0 add nothing."""
        total = self._combined(combination)
        if bound is None or isinstance(total, float):
            return total
        total = self._decayed(total, combination)
        return enclosures.clipped(total, bound, self.how.sum_of(4, total.actual.size))  # four ReLUs

    def _decayed(self, moved: Enclosure, combination: Combination) -> Enclosure:
        """New weights; where they decay, the oracle may cancel what it rounded before.

        It takes the decay d w from w, and the sizes of both add up to |1 - d| |w| + 2 |w| at most.
        """
        weights, kept = self.rows.get(WEIGHTS), dict(combination.terms()).get(WEIGHTS, 1.0)
        if kept == 1.0 or not isinstance(weights, Enclosure):
            return moved
        n_terms, sizes = len(combination.slots) + 4, (abs(kept) + 2) * weights.size
        off, of_oracle = (how.sum_of(n_terms, sizes) for how in (self.how, self.how.oracle))
        exact, actual = moved.exact.widened(of_oracle), moved.actual.widened(off)
        return Enclosure.around(exact, moved.error + off, actual)

    def _combined(self, combination: Combination) -> Row:
        if combination.coefficients == (1.0,):
            return self.rows[combination.slots[0]]
        enclosed: dict[str, Enclosure] = {}
        factors, number = [], 0.0
        for slot, factor in combination.terms():
            row = self.rows[slot]
            if isinstance(row, float):
                number += factor * row
            else:
                enclosed[slot] = row
                factors.append(factor)
        if not enclosed:
            return number
        parts = Combination(tuple(enclosed), tuple(factors))
        return bounds.combination_at(parts, enclosed, self.how).value.without_nan()


@singledispatch
def rule(instruction: Instruction, now: Moment) -> Row:
    """What an instruction that is not closed adds; if a number, no other writes to its slot."""
    raise ProgramError(f"{type(instruction).__name__} has no rule in certificates/chain_bound.py")


@rule.register
def _bound_of_copy_where(instruction: verbs.CopyWhere, now: Moment) -> Row:
    source = now.combined(instruction.source, instruction.bound)
    return now.where_open(source, instruction.closed_by)


@rule.register
def _bound_of_select_where(instruction: verbs.SelectWhere, now: Moment) -> Row:
    bits = enumerate(now.rows[flag] for flag in instruction.ones)
    number = sum(2**place for place, bit in bits if bit != 0.0)
    return _bound_of_copy_where(instruction.sum_of(number), now)


@rule.register
def _bound_of_pass_back(instruction: verbs.PassBack, now: Moment) -> Row:
    upstream = now.combined(instruction.upstream, instruction.bound)
    upstream, z = now.where_open(upstream, instruction.closed_by), now.rows[instruction.flat]
    if isinstance(upstream, float) or isinstance(z, float):
        return upstream
    return multiply(upstream, _slope(instruction.leak, now.program.kink_width, z), now.how)


def _slope(leak: float, width: float, z: Enclosure) -> Enclosure:
    """The slope r'(z), closed up to 3/4 of the kink's width and open from the whole of it on."""
    step, open_up = _kinked(leak).derivative(), 0.75 * width
    exact = Interval(*step.bounds(z.exact.low, z.exact.high))
    low, high = (z.actual + Interval.point(z.error.new_tensor(-part)) for part in (width, open_up))
    actual = Interval(*step.bounds(low.low, high.high))
    return Enclosure(exact, actual, ROOM * exact.distance_to(actual))


def _kinked(leak: float) -> KinkedFunction:
    """The activation with the slope `leak` below 0."""

    def evaluate(z: Tensor) -> Tensor:
        return functional.leaky_relu(z, leak)

    return KinkedFunction("kinked", evaluate, (0.0,), (leak, 1.0))


@rule.register
def _bound_of_activate_where(instruction: verbs.ActivateWhere, now: Moment) -> Row:
    z = now.rows[instruction.argument]
    if isinstance(z, float):
        return 0.0
    is_kinked = bool(now.rows[instruction.kinked])
    value = enclosures.function_at(_kinked(instruction.leak), z) if is_kinked else z
    value = moved(value, now.how.sum_of(3, z.actual.size))  # three ReLUs
    return now.where_open(value, instruction.closed_by)


@rule.register
def _bound_of_mark_flat(instruction: verbs.MarkFlat, now: Moment) -> Row:
    return 0.0 if now.rows[instruction.linear] else now.rows[instruction.argument]


@rule.register
def _bound_of_multiply_matrices(instruction: verbs.MultiplyMatrices, now: Moment) -> Row:
    left, right = now.rows[instruction.left], now.rows[instruction.right]
    if isinstance(left, float) or isinstance(right, float):
        return 0.0
    left = left.mT if instruction.left_transposed else left
    right = right.mT if instruction.right_transposed else right
    value = matrix_product(left, right.mT, now.how).mT
    sizes = left.actual.size @ right.actual.size
    return _read(instruction, value, left.error.shape[-1], sizes, now)


@rule.register
def _bound_of_multiply_entries(instruction: verbs.MultiplyEntries, now: Moment) -> Row:
    left, right = now.rows[instruction.left], now.rows[instruction.right]
    if isinstance(left, float):
        return 0.0
    if isinstance(right, float):  # the slope of a linear layer
        right = Enclosure.common(Interval.point(torch.full_like(left.error, right)))
    sizes = left.actual.size * right.actual.size
    return _read(instruction, multiply(left, right, now.how), 1, sizes, now)


def _read(
    instruction: verbs.Product, value: Enclosure, n_terms: int, sizes: Tensor, now: Moment
) -> Enclosure:
    """A product of `n_terms` terms, of these sizes in all, as heads read it from the lattice."""
    value = moved(value, _lattice_error(n_terms, sizes, instruction.reach, now))
    # Or the run is stopped; only what B_1 passes back may be larger, and nobody reads that.
    known = Interval.symmetric(instruction.reach, 1, 1)
    return Enclosure.around(value.exact, value.error, value.actual.within(known))


def _lattice_error(n_terms: int, sizes: Tensor, reach: float, now: Moment) -> Tensor:
    fit, apart = now.program.look_up(IDENTITY), torch.zeros_like(sizes)
    return reach * enclosures.lattice_error(fit, n_terms, sizes / reach, apart, now.how)


@rule.register
def _bound_of_look_up_product(instruction: verbs.LookUpProduct, now: Moment) -> Row:
    left, right = now.rows[instruction.left], now.rows[instruction.right]
    if isinstance(left, float) or isinstance(right, float):
        return 0.0
    value, n_terms = matrix_product(left, right.mT, now.how).mT, left.error.shape[-1]
    sizes, reach = left.actual.size @ right.actual.size, instruction.reach
    off = _lattice_error(n_terms, sizes, reach, now)
    known = Interval.symmetric(reach, 1, 1).widened(off)  # of the product, or the run is stopped
    argument = Enclosure.around(value.exact, value.error, value.actual.within(known))
    fit = now.program.look_up(instruction.function)
    rounding = now.how.head(fit, n_terms, sizes, torch.zeros_like(sizes))
    return enclosures.fitted_at(fit, argument, rounding)


@rule.register
def _bound_of_share_columns(instruction: verbs.ShareColumns, now: Moment) -> Row:
    scores, n_classes = now.rows[instruction.scores], len(instruction.classes)
    if isinstance(scores, float):
        return 0.0
    n_others = scores.error.shape[-2] - n_classes
    n_tokens = n_classes + len(now.program.functions[0].values)
    own = scores.mapped(lambda part: part[..., :n_classes, :].mT)
    shares = shares_of(own, n_tokens, now.how)
    return shares.mapped(lambda part: functional.pad(part.mT, (0, 0, 0, n_others)))
