r"""Bounds for chains: enclosures are propagated through blocks, as through layers in a stack.

A row is an enclosure or a known number. Row `flat` carries the argument z itself, from which the
slope follows. The units that approximate the slope r' of a kink of width c are closed up to 3c/4,
because the gate is 4 times as large as what it closes, and open from c on; only between these, on
the kink, does the slope have another value.

    step bound     a round from the run's own weights
    paper's line   the sum of the step bounds, as if no round expanded distances; false in general
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import torch
from torch import Tensor
from torch.nn import functional

from icgd.backends.chain import input_columns, learnt_matrices, padded, travelling_rows
from icgd.backends.run import OnProgress
from icgd.certificates import enclosures
from icgd.certificates.enclosures import (
    INTERVALS,
    ROOM,
    AbstractBounds,
    Arithmetic,
    DomainBound,
    Enclosure,
    Interval,
    RunBounds,
    matrix_product,
    one_by_one,
    shares_of,
)
from icgd.certificates.network import STEPS_ONE_BY_ONE, after_steps, smallest_kept_share
from icgd.constructions.cot_network import LARGEST_REACH
from icgd.environment import require_memory
from icgd.problems.data import Task
from icgd.problems.functions import KinkedFunction
from icgd.problems.optimisers import WEIGHTS
from icgd.program import chain_instructions as verbs
from icgd.program.chain import FAR, IS_BACKWARD, IS_DATA, NEAR, OUT, ChainProgram, row_of
from icgd.program.instructions import IDENTITY, Combination
from icgd.program.layout import ONE
from icgd.program.meaning import BlockDomain
from icgd.shapes import History

Row = Enclosure | float
Rows = Mapping[str, Row]


@dataclass(frozen=True)
class ChainBounds(AbstractBounds):
    """Bounds of a chain's rounds, each of which is a training step."""

    program: ChainProgram

    def __post_init__(self) -> None:
        """Raise `SizeError` if the matrices, padded to squares, take too much memory."""
        n_weights = len(self.program.weight_shapes) * self.program.width**2
        what = f"Bounding {n_weights:,} weights of padded layers"
        require_memory(what, INTERVALS * 8 * n_weights, "Take a narrower network.")

    def domain(self) -> DomainBound:
        """Return bound (a), for runs that are not stopped with an error.

        The distance of clipped weights is at most 2 box. Tighter bounds exist only for networks
        without kinks: with a kink some data of the domain fall on it. The bounds of an optimiser
        with a state are infinite, because the growth of the state is not propagated.
        """
        program, box, domain = self.program, self.problem.gradient_step.reach, self.problem.domain
        if len(program.learnt) > 1:
            return DomainBound(inf, inf)
        x = Interval.symmetric(domain.x, program.batch_size, self.problem.network.input_width)
        y = Interval.symmetric(domain.y, program.batch_size, self.problem.network.output_width)
        pad = partial(padded, program)
        exact = [Interval.symmetric(box, *shape).mapped(pad) for shape in program.shapes]
        rules = program.rules
        rule_rounds = [rules.index(rule) for rule in dict.fromkeys(rules)] or [0]

        def error_after(error: float) -> float:
            errors = [torch.full_like(interval.low, error) for interval in exact]
            weights = [Enclosure.around(*pair) for pair in zip(exact, errors, strict=True)]
            rounds = (self.round_after(weights, x, y, number) for number in rule_rounds)
            return max(map(_largest_error, rounds))

        if program.n_steps <= STEPS_ONE_BY_ONE:
            weights, largest = [Enclosure.common(interval) for interval in exact], 0.0
            for number in range(program.n_steps):
                after = self.round_after(weights, x, y, number)
                error = _largest_error(after)
                if error >= self.widest:  # later rounds have no bound
                    return DomainBound(error_after(0.0), inf)
                largest = max(largest, error)
                pairs = zip(exact, after, strict=True)
                weights = [Enclosure.around(interval, layer.error) for interval, layer in pairs]
            return DomainBound(error_after(0.0), largest)
        kept_share = smallest_kept_share(self.problem.gradient_step, program.n_steps)
        error = after_steps(error_after, program.n_steps, box, 2 * box, kept_share)
        return DomainBound(error_after(0.0), error if error < 2 * box else inf)

    @property
    def widest(self) -> float:
        return 2 * self.problem.gradient_step.reach

    @property
    def condition(self) -> str | None:
        """The condition that no query leaves the grids, if the domain allows such queries."""
        instructions = (
            instruction for layer in self.program.layers for instruction in layer.instructions
        )
        reaches = [
            instruction.reach
            for instruction in instructions
            if isinstance(instruction, verbs.Product)
        ]
        if max(reaches, default=0.0) < LARGEST_REACH:
            return None
        return (
            f"of runs in which no query of a head is beyond {max(reaches):g}, where the grids end; "
            "a run that gets there is stopped with an error"
        )

    def steps(self, task: Task, history: History, on_progress: OnProgress | None = None) -> Tensor:
        return one_by_one(self._rounds(task, history.double()), history, on_progress)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        steps = self.steps(task, history, on_progress)
        return RunBounds(steps, paper=steps.cumsum(-1))

    def _rounds(self, task: Task, history: History) -> Iterator[Tensor]:
        """Yield a bound for each round, carrying along the rounding errors of padded entries."""
        errors: list[Tensor] = [torch.zeros(())] * len(self.program.weight_shapes)
        for number, start in enumerate(history[..., :-1, :].unbind(-2)):
            pairs = zip(self._matrices(start), errors, strict=True)
            before = [
                Enclosure.around(Interval.point(matrix), error.expand_as(matrix))
                for matrix, error in pairs
            ]
            rows = list(self.program.examples_of(number, task.n_examples))
            x, y = (Interval.point(columns[..., rows, :].double()) for columns in (task.x, task.y))
            after = [layer.error for layer in self.round_after(before, x, y, number)]
            shapes = self.program.weight_shapes
            unpadded = [error[..., :m, :n] for error, (m, n) in zip(after, shapes, strict=True)]
            yield torch.stack([error.flatten(-2).amax(-1) for error in unpadded]).amax(0)
            # The next round starts from the run's own weights: keep only errors of padding.
            errors = [
                error - padded(self.program, inner)
                for error, inner in zip(after, unpadded, strict=True)
            ]

    def _matrices(self, parameters: Tensor) -> list[Tensor]:
        """Return the weights of all layers, then their state."""
        rows = learnt_matrices(self.program, parameters).values()
        return [matrix for matrices in rows for matrix in matrices]

    def round_after(
        self, learnt: list[Enclosure], x: Interval, y: Interval, number: int = 0
    ) -> list[Enclosure]:
        """Return the weights and the state after round `number` on these examples."""
        program, mask, blocks = self.program, self.program.mask, self._first_blocks(learnt)
        inputs = _data(x.mapped(partial(input_columns, program)))
        labels = _data(y.mapped(lambda end: padded(program, end.mT, program.batch_size)))
        labels |= program.code(number)
        for step in mask.walk_round(0):
            near, far = step.blocks(blocks, inputs, labels)
            blocks[step.number] = self.next_block(near, far)
        last = [blocks[mask.blocks_per_round - layer] for layer in range(mask.depth)]
        rows = [block[name] for name in program.learnt for block in last]
        return [row for row in rows if isinstance(row, Enclosure)]

    def _first_blocks(self, learnt: list[Enclosure]) -> dict[int, Rows]:
        """Return the blocks that hold weights and state before a round."""
        program, depth = self.program, self.program.mask.depth
        blocks: dict[int, Rows] = {}
        for layer in range(depth):
            travelling = travelling_rows(program, layer).items()
            rows: dict[str, Row] = {
                name: Enclosure.common(Interval.point(row)) if isinstance(row, Tensor) else row
                for name, row in travelling
            }
            rows |= dict(zip(program.learnt, learnt[layer::depth], strict=True))
            blocks[-layer] = {**rows, IS_BACKWARD: 1.0}
        return blocks

    def next_block(self, near: Rows, far: Rows) -> Rows:
        """Return the enclosures of the block that a step writes."""
        names = self.program.rows.names
        rows: dict[str, Row] = dict.fromkeys(self.program.layout.names, 0.0)
        rows[ONE] = 1.0
        for prefix, block in ((NEAR, near), (FAR, far)):
            rows |= {row_of(prefix, name): block.get(name, 0.0) for name in names}
        domain = BlockEnclosures(self.program, self.arithmetic)
        for layer in self.program.layers:
            for instruction in layer.instructions:
                rows |= instruction.meaning(rows, domain)
        return {name: rows[row_of(OUT, name)] for name in names}


def _largest_error(learnt: list[Enclosure]) -> float:
    return max(float(layer.error.max()) for layer in learnt)


def _data(columns: Interval) -> dict[str, Row]:
    return {"first": Enclosure.common(columns), IS_DATA: 1.0}


@dataclass(frozen=True)
class BlockEnclosures(BlockDomain[Row]):
    """The primitives of chains on enclosures and known numbers."""

    program: ChainProgram
    arithmetic: Arithmetic

    def combine(self, terms: Sequence[tuple[float, Row]]) -> Row:
        """Return the sum of the enclosures, if there are any: numbers beside them are 0."""
        if terms[0][0] == 1.0 and len(terms) == 1:
            return terms[0][1]
        enclosed = [(factor, row) for factor, row in terms if isinstance(row, Enclosure)]
        if not enclosed:
            return sum(factor * row for factor, row in terms if isinstance(row, float))
        return enclosures.combination(enclosed, self.arithmetic)[0].without_nan()

    def add(self, *values: Row) -> Row:
        total, *others = values
        for value in others:
            if isinstance(total, Enclosure) and isinstance(value, Enclosure):
                total = enclosures.add(total, value, self.arithmetic)
            elif value != 0.0:
                total = value
        return total

    def multiply(self, left: Row, right: Row) -> Row:
        if isinstance(left, float):
            return 0.0
        if isinstance(right, float):  # the slope of a linear layer
            right = Enclosure.common(Interval.point(torch.full_like(left.error, right)))
        return enclosures.multiply(left, right, self.arithmetic)

    def product(self, left: Row, right: Row) -> Row:
        if isinstance(left, float) or isinstance(right, float):
            return 0.0
        return matrix_product(left, right.mT, self.arithmetic).mT

    def transposed(self, matrix: Row) -> Row:
        return matrix if isinstance(matrix, float) else matrix.mT

    def unless(self, flags: Sequence[Row], value: Row) -> Row:
        """Return the value, with exact zeros at the units that a flag closes."""
        if any(flag != 0.0 for flag in flags if isinstance(flag, float)):
            return 0.0
        for flag in flags:
            if isinstance(flag, Enclosure) and isinstance(value, Enclosure):
                closed = flag.exact.low != 0
                value = value.mapped(partial(torch.masked_fill, mask=closed, value=0.0))
        return value

    def copied(
        self,
        sources: Sequence[Combination],
        bits: Sequence[Row],
        bound: float | None,
        slots: Mapping[str, Row],
    ) -> Row:
        """Return a copy, or new weights, which four ReLUs clip.

        With weight decay the oracle may round before a cancellation: it subtracts the decay d w
        from w, and the sizes of both add up to at most |1 - d| |w| + 2 |w|.
        """
        source = sources[sum(2**place for place, bit in enumerate(bits) if bit != 0.0)]
        value: Row = source.value(slots, self)
        if isinstance(value, float) or bound is None:
            return value
        weights, kept_share = slots.get(WEIGHTS), dict(source.terms()).get(WEIGHTS, 1.0)
        if kept_share != 1.0 and isinstance(weights, Enclosure):
            n_terms, sizes = len(source.slots) + 4, (abs(kept_share) + 2) * weights.size
            rounding, oracle_rounding = (
                arithmetic.sum_of(n_terms, sizes)
                for arithmetic in (self.arithmetic, self.arithmetic.oracle)
            )
            exact, actual = value.exact.widened(oracle_rounding), value.actual.widened(rounding)
            value = Enclosure.around(exact, value.error + rounding, actual)
        return enclosures.clipped(value, bound, self.arithmetic.sum_of(4, value.actual.size))

    def activate(self, argument: Row, kinked: Row, leak: float) -> Row:
        if isinstance(argument, float):
            return 0.0
        value = enclosures.function_at(_kinked(leak), argument) if kinked else argument
        return value.perturbed(
            self.arithmetic.sum_of(3, argument.actual.size)
        ).without_nan()  # three ReLUs

    def mark_flat(self, argument: Row, width: float) -> Row:
        """Return the argument itself, from which `pass_back` knows the slope."""
        return argument

    def pass_back(self, back: verbs.PassBack, upstream: Row, flat: Row) -> Row:
        """Return `upstream` times the slope, which is between its two values only on the kink.

        The slope is closed up to 3/4 of the kink's width, and open from the full width on.
        """
        if back.bound is not None and isinstance(upstream, Enclosure):
            rounding = self.arithmetic.sum_of(4, upstream.actual.size)
            upstream = enclosures.clipped(upstream, back.bound, rounding)
        if isinstance(upstream, float) or isinstance(flat, float):
            return upstream
        step, width = _kinked(back.leak).derivative(), self.program.kink_width
        exact = Interval(*step.bounds(flat.exact.low, flat.exact.high))
        ends = (Interval.point(flat.error.new_tensor(-place)) for place in (width, 0.75 * width))
        low, high = (flat.actual + end for end in ends)
        actual = Interval(*step.bounds(low.low, high.high))
        slope = Enclosure(exact, actual, ROOM * exact.distance_to(actual))
        return enclosures.multiply(upstream, slope, self.arithmetic).without_nan()

    def within_reach(self, heads: verbs.Product, value: Row) -> Row:
        """Return the value, cut off at the reach: a run that exceeds it is stopped.

        Only the queries of B_1 may be larger, and no later block reads their results.
        """
        if isinstance(value, float):
            return value
        within = value.actual.intersected(Interval.symmetric(heads.reach, 1, 1))
        return Enclosure.around(value.exact, value.error, within).without_nan()

    def by_entries(
        self,
        heads: verbs.MultiplyByEntries | verbs.MultiplyEntries,
        value: Row,
        left: Row,
        right: Row,
    ) -> Row:
        """Add the error of the heads: that of looking up an entry, times the values it scales."""
        if isinstance(value, float) or isinstance(left, float):
            return value
        if isinstance(right, float):  # the slope of a linear layer
            entries = torch.full_like(left.error, abs(right))
            return value.perturbed(left.actual.size * self._lattice_error(1, entries, heads.reach))
        error = self._lattice_error(1, right.actual.size, heads.reach)
        sizes = left.actual.size
        is_entrywise = isinstance(heads, verbs.MultiplyEntries)
        return value.perturbed(sizes * error if is_entrywise else sizes @ error).without_nan()

    def by_rows(self, heads: verbs.LookUpProduct, value: Row, left: Row, right: Row) -> Row:
        if isinstance(value, float) or isinstance(left, float):
            return value
        n_terms, sizes = self._terms(left, right)
        value = value.perturbed(self._lattice_error(n_terms, sizes, heads.reach))
        return self.within_reach(heads, value)

    def _terms(self, left: Enclosure, right: Row) -> tuple[int, Tensor]:
        """Return the number of terms of an entry of the product, and their total size."""
        if isinstance(right, float):
            return left.error.shape[-1], torch.zeros_like(left.error)
        return left.error.shape[-1], left.actual.size @ right.actual.size

    def _lattice_error(self, n_terms: int, sizes: Tensor, reach: float) -> Tensor:
        fit, no_drift = self.program.look_up(IDENTITY), torch.zeros_like(sizes)
        scaled = sizes / reach
        return reach * enclosures.lattice_error(fit, n_terms, scaled, no_drift, self.arithmetic)

    def look_up_product(
        self, heads: verbs.LookUpProduct, function: str, product: Row, left: Row, right: Row
    ) -> Row:
        if isinstance(product, float) or isinstance(left, float):
            return 0.0
        n_terms, sizes = self._terms(left, right)
        # A run is stopped unless the product that heads return is within the reach.
        error = self._lattice_error(n_terms, sizes, heads.reach)
        within = product.actual.intersected(Interval.symmetric(heads.reach, 1, 1).widened(error))
        argument = Enclosure.around(product.exact, product.error, within)
        fit = self.program.look_up(function)
        rounding = self.arithmetic.head(fit, n_terms, sizes, torch.zeros_like(sizes))
        return enclosures.fitted_at(fit, argument, rounding).without_nan()

    def softmax_columns(self, scores: Row, n_rows: int) -> Row:
        if isinstance(scores, float):
            return 0.0
        n_others = scores.error.shape[-2] - n_rows
        n_tokens = n_rows + len(self.program.functions[0].values)
        shares = shares_of(
            scores.mapped(lambda rows: rows[..., :n_rows, :].mT), n_tokens, self.arithmetic
        )
        padded_shares = shares.mapped(lambda rows: functional.pad(rows.mT, (0, 0, 0, n_others)))
        return padded_shares.without_nan()


def _kinked(leak: float) -> KinkedFunction:
    """Return the activation with the slope `leak` below 0."""

    def evaluate(z: Tensor) -> Tensor:
        return functional.leaky_relu(z, leak)

    return KinkedFunction("kinked", evaluate, (0.0,), (leak, 1.0))
