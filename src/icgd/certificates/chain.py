r"""Bounds for chains: enclosures are carried through blocks, as `propagation.py` does with layers.

A row is an enclosure, or a number that is known. Row `flat` carries z itself: the units that stand
in for the slope r' are closed up to 3c/4, because the gate is 4 times what it closes, and open from
c on; only between, on a kink, is the slope anything else.

    step bound     a round from the run's own weights
    paper's line   the sum of the step bounds, as if a round expanded nothing; false in general
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
from icgd.certificates.network import STEPS_ONE_BY_ONE, after_steps, least_kept
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
        """Raise `SizeError` if the matrices, which are padded to squares, take too much."""
        n_weights = len(self.program.weight_shapes) * self.program.width**2
        what = f"Bounding {n_weights:,} weights of padded layers"
        require_memory(what, INTERVALS * 8 * n_weights, "Take a narrower network.")

    def domain(self) -> DomainBound:
        """Bound runs that are not stopped: clipped weights are at most 2 box apart.

        More is known only of linear networks: for others some data fall on a kink. How
        large the state of an optimiser can become is not propagated.
        """
        program, box, domain = self.program, self.problem.gradient_step.reach, self.problem.domain
        if len(program.learnt) > 1:
            return DomainBound(inf, inf)
        x = Interval.symmetric(domain.x, program.batch_size, self.problem.network.input_width)
        y = Interval.symmetric(domain.y, program.batch_size, self.problem.network.output_width)
        pad = partial(padded, program)
        exact = [Interval.symmetric(box, *shape).mapped(pad) for shape in program.shapes]
        rules = program.rules
        different = [rules.index(rule) for rule in dict.fromkeys(rules)] or [0]

        def error_after(error: float) -> float:
            off = [torch.full_like(interval.low, error) for interval in exact]
            weights = [Enclosure.around(*pair) for pair in zip(exact, off, strict=True)]
            rounds = (self.round_after(weights, x, y, number) for number in different)
            return max(map(_largest_error, rounds))

        if program.n_steps <= STEPS_ONE_BY_ONE:
            weights, largest = [Enclosure.common(interval) for interval in exact], 0.0
            for number in range(program.n_steps):
                after = self.round_after(weights, x, y, number)
                error = _largest_error(after)
                if error >= self.widest:  # nothing is known of those that follow
                    return DomainBound(error_after(0.0), inf)
                largest = max(largest, error)
                pairs = zip(exact, after, strict=True)
                weights = [Enclosure.around(interval, layer.error) for interval, layer in pairs]
            return DomainBound(error_after(0.0), largest)
        kept = least_kept(self.problem.gradient_step, program.n_steps)
        error = after_steps(error_after, program.n_steps, box, 2 * box, kept)
        return DomainBound(error_after(0.0), error if error < 2 * box else inf)

    @property
    def widest(self) -> float:
        return 2 * self.problem.gradient_step.reach

    @property
    def condition(self) -> str | None:
        """Grids end somewhere, and what a domain allows may lie beyond."""
        parts = (part for layer in self.program.layers for part in layer.instructions)
        reaches = [part.reach for part in parts if isinstance(part, verbs.Product)]
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
        """Yield a bound for each round; what rounding leaves in padded entries is carried along."""
        errors: list[Tensor] = [torch.zeros(())] * len(self.program.weight_shapes)
        for number, start in enumerate(history[..., :-1, :].unbind(-2)):
            pairs = zip(self._matrices(start), errors, strict=True)
            before = [
                Enclosure.around(Interval.point(matrix), error.expand_as(matrix))
                for matrix, error in pairs
            ]
            rows = list(self.program.examples_of(number, task.n_examples))
            x, y = (Interval.point(part[..., rows, :].double()) for part in (task.x, task.y))
            after = [layer.error for layer in self.round_after(before, x, y, number)]
            shapes = self.program.weight_shapes
            own = [error[..., :m, :n] for error, (m, n) in zip(after, shapes, strict=True)]
            yield torch.stack([part.flatten(-2).amax(-1) for part in own]).amax(0)
            errors = [
                error - padded(self.program, part) for error, part in zip(after, own, strict=True)
            ]

    def _matrices(self, parameters: Tensor) -> list[Tensor]:
        """Return the weights of all layers, then their state."""
        return [
            part for parts in learnt_matrices(self.program, parameters).values() for part in parts
        ]

    def round_after(
        self, learnt: list[Enclosure], x: Interval, y: Interval, number: int = 0
    ) -> list[Enclosure]:
        """Return the weights and the state after round `number` on these examples, from those
        before.
        """
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
        for part in (part for layer in self.program.layers for part in layer.instructions):
            rows |= part.meaning(rows, domain)
        return {name: rows[row_of(OUT, name)] for name in names}


def _largest_error(learnt: list[Enclosure]) -> float:
    return max(float(layer.error.max()) for layer in learnt)


def _data(columns: Interval) -> dict[str, Row]:
    return {"first": Enclosure.common(columns), IS_DATA: 1.0}


@dataclass(frozen=True)
class BlockEnclosures(BlockDomain[Row]):
    """The primitives of chains on enclosures and on numbers that are known."""

    program: ChainProgram
    arithmetic: Arithmetic

    def combine(self, terms: Sequence[tuple[float, Row]]) -> Row:
        """Numbers beside enclosures are 0, and add nothing."""
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
        """Return the value, which is exactly 0 at the units that a flag closes."""
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

        Where weights decay, the oracle may cancel what it rounded before: it takes the decay d w
        from w, and the sizes of both add up to |1 - d| |w| + 2 |w| at most.
        """
        source = sources[sum(2**place for place, bit in enumerate(bits) if bit != 0.0)]
        value: Row = source.value(slots, self)
        if isinstance(value, float) or bound is None:
            return value
        weights, kept = slots.get(WEIGHTS), dict(source.terms()).get(WEIGHTS, 1.0)
        if kept != 1.0 and isinstance(weights, Enclosure):
            n_terms, sizes = len(source.slots) + 4, (abs(kept) + 2) * weights.size
            off, of_oracle = (
                arithmetic.sum_of(n_terms, sizes)
                for arithmetic in (self.arithmetic, self.arithmetic.oracle)
            )
            exact, actual = value.exact.widened(of_oracle), value.actual.widened(off)
            value = Enclosure.around(exact, value.error + off, actual)
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
        """The slope is closed up to 3/4 of the kink's width and open from the whole of it on."""
        if back.bound is not None and isinstance(upstream, Enclosure):
            rounding = self.arithmetic.sum_of(4, upstream.actual.size)
            upstream = enclosures.clipped(upstream, back.bound, rounding)
        if isinstance(upstream, float) or isinstance(flat, float):
            return upstream
        step, width = _kinked(back.leak).derivative(), self.program.kink_width
        exact = Interval(*step.bounds(flat.exact.low, flat.exact.high))
        ends = (Interval.point(flat.error.new_tensor(-part)) for part in (width, 0.75 * width))
        low, high = (flat.actual + end for end in ends)
        actual = Interval(*step.bounds(low.low, high.high))
        slope = Enclosure(exact, actual, ROOM * exact.distance_to(actual))
        return enclosures.multiply(upstream, slope, self.arithmetic).without_nan()

    def within_reach(self, heads: verbs.Product, value: Row) -> Row:
        """Or the run is stopped; only what B_1 asks for may be larger, and nobody reads that."""
        if isinstance(value, float):
            return value
        known = Interval.symmetric(heads.reach, 1, 1)
        return Enclosure.around(
            value.exact, value.error, value.actual.intersected(known)
        ).without_nan()

    def by_entries(
        self,
        heads: verbs.MultiplyByEntries | verbs.MultiplyEntries,
        value: Row,
        left: Row,
        right: Row,
    ) -> Row:
        """Return what a head returns of an entry is off alike, relative to whatever its tokens
        carry.
        """
        if isinstance(value, float) or isinstance(left, float):
            return value
        if isinstance(right, float):  # the slope of a linear layer
            asked = torch.full_like(left.error, abs(right))
            return value.perturbed(left.actual.size * self._lattice_error(1, asked, heads.reach))
        off = self._lattice_error(1, right.actual.size, heads.reach)
        sizes = left.actual.size
        is_entrywise = isinstance(heads, verbs.MultiplyEntries)
        return value.perturbed(sizes * off if is_entrywise else sizes @ off).without_nan()

    def by_rows(self, heads: verbs.LookUpProduct, value: Row, left: Row, right: Row) -> Row:
        if isinstance(value, float) or isinstance(left, float):
            return value
        n_terms, sizes = self._terms(left, right)
        value = value.perturbed(self._lattice_error(n_terms, sizes, heads.reach))
        return self.within_reach(heads, value)

    def _terms(self, left: Enclosure, right: Row) -> tuple[int, Tensor]:
        """Return how many terms an entry of the product has, and their total size."""
        if isinstance(right, float):
            return left.error.shape[-1], torch.zeros_like(left.error)
        return left.error.shape[-1], left.actual.size @ right.actual.size

    def _lattice_error(self, n_terms: int, sizes: Tensor, reach: float) -> Tensor:
        fit, apart = self.program.look_up(IDENTITY), torch.zeros_like(sizes)
        return reach * enclosures.lattice_error(fit, n_terms, sizes / reach, apart, self.arithmetic)

    def look_up_product(
        self, heads: verbs.LookUpProduct, function: str, product: Row, left: Row, right: Row
    ) -> Row:
        if isinstance(product, float) or isinstance(left, float):
            return 0.0
        n_terms, sizes = self._terms(left, right)
        off = self._lattice_error(n_terms, sizes, heads.reach)
        # That is how far the product may lie, or the run is stopped.
        known = Interval.symmetric(heads.reach, 1, 1).widened(off)
        argument = Enclosure.around(product.exact, product.error, product.actual.intersected(known))
        fit = self.program.look_up(function)
        rounding = self.arithmetic.head(fit, n_terms, sizes, torch.zeros_like(sizes))
        return enclosures.fitted_at(fit, argument, rounding).without_nan()

    def softmax_columns(self, scores: Row, n_rows: int) -> Row:
        if isinstance(scores, float):
            return 0.0
        n_others = scores.error.shape[-2] - n_rows
        n_tokens = n_rows + len(self.program.functions[0].values)
        shares = shares_of(
            scores.mapped(lambda part: part[..., :n_rows, :].mT), n_tokens, self.arithmetic
        )
        padded_shares = shares.mapped(lambda part: functional.pad(part.mT, (0, 0, 0, n_others)))
        return padded_shares.without_nan()


def _kinked(leak: float) -> KinkedFunction:
    """Return the activation with the slope `leak` below 0."""

    def evaluate(z: Tensor) -> Tensor:
        return functional.leaky_relu(z, leak)

    return KinkedFunction("kinked", evaluate, (0.0,), (leak, 1.0))
