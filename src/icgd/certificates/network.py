r"""Bounds of a stack that trains a network: one propagation, fed with the domain or with a run.

    bound (a)     holds for every task in the domain, before any run: `domain`
    bound (b)     of each step of a run, from the run's own weights; `balls.py` proves whole runs
    bound (c)     the paper's closed form for one step: `closed_form`
    predictions   carry enclosures of the weights at the end of any run through the layers that
                  predict, for any query

Bound (a) of a trajectory repeats the block with the error that it left in the weights, and is never
worse than the distance between two points of the box. A propagation costs O(|w|), and there are at
most `MOST_ROUNDS` of them for any number of steps.

The state of an optimiser, such as momentum, is not clipped to a box. But it starts at 0, and a step
is

    m <- mu m + g,   so that   |m| <= G (1 - mu^t) / (1 - mu)   after t steps,

where G bounds the gradient on the domain. So the bound follows a run step by step, with the sizes
and errors of all weights and of the state. Of a long run it follows the first `MOST_FOLLOWED`
steps. For the others it guesses the sizes, as the sum of the geometric series that the last two
steps begin, and checks the guess by one more step.

Copies of the weights in registers are rounded independently, and drift apart in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf, prod, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates.enclosures import (
    AbstractBounds,
    DomainBound,
    Enclosure,
    Interval,
    one_by_one,
)
from icgd.certificates.propagation import Data, Enclosures, State
from icgd.errors import ProgramError
from icgd.problems.data import FLOAT32_ROUNDING, Task
from icgd.problems.optimisers import AVERAGE, WEIGHTS, AbstractGradientStep
from icgd.problems.problem import Problem
from icgd.problems.scalar import ScalarFunction
from icgd.program.functions import ReluSum
from icgd.program.instructions import IDENTITY, Instruction
from icgd.program.layout import RATES, Role
from icgd.program.meaning import scheduled
from icgd.program.network_instructions import Recombine
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import History, Parameters

NUMBERS_AT_ONCE = 2**15
"""The size of the largest slot of a batch of steps that are bounded together: large enough that the
overhead of calls is small, and small enough for the processor's cache."""


@dataclass(frozen=True)
class StackBounds(AbstractBounds):
    """Bounds by enclosures of every slot, carried through the layers."""

    program: StackProgram

    def domain(self) -> DomainBound:
        """Return bound (a) from one token: a mean over examples is at most the largest of them."""
        update, n_steps = self.problem.gradient_step, self.program.n_steps
        if update.has_root:  # the divisor has no useful lower bound
            return DomainBound(inf, inf)
        if update.state:
            everywhere = self._everywhere(update.reach * (1 + FLOAT32_ROUNDING))
            return self._state_bound.domain(everywhere.size)
        data = self._any_token

        @cache
        def after_block(reach: float, error: float, drift: float) -> Weights:
            everywhere = self._everywhere(reach)
            errors, drifts = (torch.full_like(everywhere.low, size) for size in (error, drift))
            weights = Enclosure.around(everywhere, errors, everywhere)
            slots_after = self._slots_after(data, weights, drifts, self._ends.numbers)
            outcomes = [self._weights(slots, drifts) for slots in slots_after]
            return Weights(
                error=torch.stack([after.error for after in outcomes]).amax(0),
                drift=torch.stack([after.drift for after in outcomes]).amax(0),
                reach=max(after.reach for after in outcomes),
            )

        kept_share = smallest_kept_share(update, n_steps)
        reach, drift = _reach_and_drift(after_block, update.reach, n_steps, kept_share)
        if reach == inf:
            return DomainBound(inf, inf)

        def error_after(error: float) -> float:
            return float(after_block(reach, error, drift).error.max())

        widest = update.reach + reach
        trajectory = after_steps(error_after, n_steps, update.reach, widest, kept_share)
        last_drift = float(after_block(reach, 0.0, drift).drift.max())
        return DomainBound(min(error_after(0.0), widest), trajectory, reach, max(last_drift, drift))

    @property
    def _state_bound(self) -> StateBound:
        """The bounds of an update with a state, to be carried from step to step."""
        data, update, n_steps = self._any_token, self.problem.gradient_step, self.program.n_steps
        names = (WEIGHTS, *update.remembered)
        n_weights = self.problem.network.n_parameters

        def after_step(before: Trained, step: int) -> Trained:
            everywhere = Interval(-before.sizes, before.sizes)
            weights = Enclosure.around(everywhere, before.error, everywhere)
            [slots] = self._slots_after(data, weights, before.drift, [step])
            parameters = self.program.layout.having(Role.PARAMETER)
            sizes = [slots[slot.name].value.size.flatten(-2) for slot in parameters]
            after = self._weights(slots, before.drift)
            return Trained(torch.cat(sizes, dim=-1), after.error, after.drift)

        is_state = torch.tensor([name in update.state for name in names])
        shares = [smallest_kept_share(update, n_steps, name) for name in names]
        kept_share = torch.tensor(shares, dtype=torch.float64)
        is_state, kept_share = (
            entries.repeat_interleave(n_weights) for entries in (is_state, kept_share)
        )
        return StateBound(after_step, is_state, kept_share, self._ends.numbers, n_steps)

    @cached_property
    def _ends(self) -> Ends:
        """The last layers of all steps of a schedule."""
        return Ends.of(self.program.schedule)

    @property
    def _any_token(self) -> Data:
        """The intervals of inputs, labels and rates in the domain."""
        domain, layout = self.problem.domain, self.program.layout
        bounds = {"x": domain.x, "y": domain.y} | ({RATES: domain.rate} if domain.rate else {})
        return {
            name: Interval.symmetric(bound * (1 + FLOAT32_ROUNDING), 1, layout.slot(name).width)
            for name, bound in bounds.items()
        }

    def _everywhere(self, reach: float) -> Interval:
        """Return the intervals of weights and their average for weights of at most `reach`.

        Each weight may leave its interval in the sets by the excess of `reach` over the largest
        weight of the sets.
        """
        low, high = self._ends_of_weights
        slack = reach - self.problem.gradient_step.reach
        return Interval(low - slack, high + slack)

    @cached_property
    def _ends_of_weights(self) -> tuple[Tensor, Tensor]:
        """The ends of each weight's interval in the sets, repeated for its average and state.

        Those of the state are not used.
        """
        low, high = self.problem.network_oracle.sets.ends()
        width = sum(slot.width for slot in self.program.layout.having(Role.PARAMETER))
        n_repeats = width // len(low)
        return low.repeat(n_repeats), high.repeat(n_repeats)

    def domain_predictions(self, proved: DomainBound) -> float:
        """Propagate any weights of the sets, with the error that bound (a) proves for a run."""
        if self.program.step_table is not None or not proved.trajectory < self.widest:
            return inf
        box = self._everywhere(self.problem.gradient_step.reach * (1 + FLOAT32_ROUNDING))
        actual = self._everywhere(proved.reach)
        error, drift = (
            torch.full_like(box.low, size) for size in (proved.trajectory, proved.drift)
        )
        data = self._any_token
        data["y"] = Interval.point(torch.zeros_like(data["y"].low))
        domain = Enclosures(self.program, self.arithmetic)
        start = domain.start(data, Enclosure.around(box, error, actual), drift)
        errors = domain.after(self.program.prediction, start)["y"].value.error
        return float(errors.nan_to_num(nan=inf, posinf=inf).max())

    def steps(self, task: Task, history: History, on_progress: OnProgress | None = None) -> Tensor:
        """Bound the steps of a run, many at a time where they are independent of each other.

        If registers hold copies of the weights, which drift apart, a step depends on earlier ones;
        with a schedule or with batches, steps differ.
        """
        program, before = self.program, history[..., :-1, :].double()
        have_copies = Enclosures(program, self.arithmetic).have_copies
        if have_copies or program.schedule or program.batch_size is not None:
            return one_by_one(self._one_after_another(task, history), history, on_progress)
        if not before.numel():
            return before[..., :0, 0]
        # Weights are stored once a step, other slots for every token.
        widest = max(slot.width for slot in program.layout.slots if slot.role is not Role.PARAMETER)
        n_numbers = max(task.n_examples * widest, task.initial.shape[-1]) * prod(task.batch)
        data = {
            name: column.mapped(lambda end: end.unsqueeze(-3))
            for name, column in self._data(task, 0).items()
        }
        errors, n_done, n_steps = list[Tensor](), 0, before.shape[-2]
        for start in before.split(max(1, NUMBERS_AT_ONCE // n_numbers), dim=-2):
            weights = Enclosure.common(Interval.point(start))
            after = self.after_block(data, weights, torch.zeros_like(start))
            errors.append(after.error.amax(-1))
            n_done += start.shape[-2]
            if on_progress:
                on_progress(n_done, n_steps)
        return torch.cat(errors, dim=-1)

    def _data(self, task: Task, step: int) -> Data:
        """Return the inputs, labels and rates of a step."""
        used = self.problem.network_oracle.examples(task, step)
        data = {"x": used.x, "y": used.y}
        if used.rates is not None:
            data[RATES] = used.rates.expand_as(used.y)
        return {name: Interval.point(column.double()) for name, column in data.items()}

    def _one_after_another(self, task: Task, history: History) -> Iterator[Tensor]:
        """Bound each step, from the run's own weights and the drift of their copies."""
        drift = torch.zeros_like(task.initial).double()
        for step, parameters in enumerate(history[..., :-1, :].double().unbind(-2)):
            start = Enclosure.common(Interval.point(parameters))
            weights = self.after_block(self._data(task, step), start, drift, step)
            yield weights.error.amax(-1)
            drift = weights.drift

    @property
    def widest(self) -> float:
        update = self.problem.gradient_step
        return inf if update.has_root else 2 * update.reach

    @property
    def condition(self) -> str | None:
        update = self.problem.gradient_step
        if update.has_root or not update.state:
            return None
        return f"of runs whose {' and '.join(update.state)} is 0 at the start"

    def paper_step(self) -> float | None:
        """Return the closed form, which holds in exact arithmetic, plus the rounding of a step.

        The rounding is bound (a) of the same program with exact functions.
        """
        in_exact_arithmetic = closed_form(self.program, self.problem)
        if in_exact_arithmetic is None:
            return None
        exact = tuple(function.without_error() for function in self.program.functions)
        rounded = replace(self, program=replace(self.program, functions=exact, n_steps=0))
        return in_exact_arithmetic + rounded.domain().step

    def after_block(
        self, data: Data, weights: Enclosure, drift: Parameters, step: int = 0
    ) -> Weights:
        """Return the weights after a step that starts from the vector of all `weights`.

        Their copies in the registers, if there are any, differ by at most `drift`.
        """
        [slots] = self._slots_after(data, weights, drift, [step])
        return self._weights(slots, drift)

    def _slots_after(
        self, data: Data, weights: Enclosure, drift: Parameters, numbers: Sequence[int]
    ) -> list[State]:
        """Return all slots after each of some steps, given by their `numbers` in `Ends`.

        The layers that all steps share are propagated once.
        """
        domain = Enclosures(self.program, self.arithmetic)
        shared = domain.after(self.program.common, domain.start(data, weights, drift))
        if not self.program.schedule:
            return [shared]
        return [domain.after(self._ends.layers[number], shared) for number in numbers]

    def _weights(self, after: State, drift: Parameters) -> Weights:
        """Return the bounds on the weights in the slots; without copies the drift is `drift`."""
        slots = [after[slot.name] for slot in self.program.layout.having(Role.PARAMETER)]
        drifts = [slot.drift.flatten(-2) for slot in slots if slot.drift is not None]
        low, high = self._ends_of_weights
        after_low, after_high = (
            torch.cat([getattr(slot.value.actual, end).flatten(-2) for slot in slots], dim=-1)
            for end in ("low", "high")
        )
        excess = torch.maximum(low - after_low, after_high - high).max()
        return Weights(
            error=torch.cat([slot.value.error.flatten(-2) for slot in slots], dim=-1),
            drift=torch.cat(drifts or [drift], dim=-1),
            reach=self.problem.gradient_step.reach + float(excess),
        )


@dataclass(frozen=True)
class Weights:
    """Bounds after a block: the error of every weight, the drift of its copies in the registers,
    and the `reach` of the transformer's weights, in the sense of `_everywhere`.
    """

    error: Parameters
    drift: Parameters
    reach: float


End = tuple[Layer, ...]

FEW = 8
"""The largest number of different ends of steps that are bounded one by one."""


@dataclass(frozen=True)
class Ends:
    """The last layers of all steps of a schedule, and merged ends that cover many of them.

    A few different ends are bounded one by one. Many are merged into one, in which every
    coefficient may be anything between its smallest and its largest value. Its enclosure holds for
    all of them, and is little wider than the widest of theirs. The ends with these `numbers` cover
    all steps.
    """

    layers: tuple[End, ...] = ()
    numbers: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, schedule: Sequence[End]) -> Ends:
        if not schedule:
            return cls()
        groups: dict[End, dict[End, int]] = {}
        for step, end in enumerate(schedule):
            groups.setdefault(_outline(end), {})[end] = step
        layers, numbers = list(schedule), list[int]()
        for group in groups.values():
            if len(group) <= FEW:
                numbers.extend(group.values())
            else:
                numbers.append(len(layers))
                layers.append(scheduled(list(group)))
        return cls(tuple(layers), tuple(numbers))


def _outline(end: End) -> End:
    """Set the coefficients of an end's sums to 0: ends that then agree can be merged."""

    def outline(instruction: Instruction) -> Instruction:
        if not isinstance(instruction, Recombine):
            return instruction
        assignments = []
        for assignment in instruction.assignments:
            zeros = (0.0,) * len(assignment.value.slots)
            of_bias = assignment.value.of_bias and zeros
            value = replace(assignment.value, coefficients=zeros, of_bias=of_bias)
            assignments.append(replace(assignment, value=value))
        return replace(instruction, assignments=tuple(assignments))

    return tuple(
        replace(layer, instructions=tuple(map(outline, layer.instructions))) for layer in end
    )


# How weights, their copies and their errors grow over many steps.


def smallest_kept_share(update: AbstractGradientStep, n_steps: int, name: str = WEIGHTS) -> float:
    """Return the smallest share that a step keeps of a weight, average or state; at most 1.

    A step keeps the same share of errors and drifts, and what it adds to them grows with them.
    Weight decay keeps a share below 1.
    """
    steps = range(1 if update.is_constant else n_steps)
    if name == AVERAGE:
        shares = [update.kept_of_average(step) for step in steps]
    else:
        shares = [
            abs(variant.rule(step).linear[name][name])
            for variant in update.variants
            for step in steps
        ]
    least = min(shares, default=1.0)
    return least * (1 - 2.0**-40) if least < 1.0 else 1.0  # the program's share is rounded


AfterBlock = Callable[[float, float, float], Weights]
"""From reach, error and drift before a block to the weights after it."""

GUESSES = 16
"""The number of guesses of the growth of a drift per step, each from the growth at the last one."""


def _reach_and_drift(
    after_block: AfterBlock, box: float, n_steps: int, kept_share: float
) -> tuple[float, float]:
    """Return bounds on the transformer's weights and on the drift of their copies.

    Weights stay in their sets up to the rounding of a projection, which grows with the weights. So
    search for a reach that a step does not exceed.
    """
    reach = box * (1 + FLOAT32_ROUNDING)
    for _ in range(8):
        drift = _largest_drift(after_block, reach, n_steps, kept_share)
        needed = after_block(reach, 0.0, drift).reach
        if needed <= reach:
            return reach, drift
        # Overshoot a little, or the iteration converges too slowly.
        reach = needed * (1 + 2.0**-40) + (needed - reach) / 16
    return inf, inf


def _largest_drift(after_block: AfterBlock, reach: float, n_steps: int, kept_share: float) -> float:
    """Bound the drift of the copies of the weights before the last step; all lie in the box.

    A step keeps a share of the drift and adds to it, slightly more if the drift is larger. So
    assume that every step adds as much as the last one, and check that. This treats every step as
    one that keeps the smallest share; short runs with weight decay are followed step by step
    instead. So are short runs whose growth increases with every guess, as with projections that
    rotate weights.
    """

    def drift_after(drift: float) -> float:
        return float(after_block(reach, 0.0, drift).drift.max())

    added, most, n_before = drift_after(0.0), 2 * reach, max(n_steps - 1, 0)  # added by each step
    if kept_share < 1.0 and n_steps <= STEPS_ONE_BY_ONE:
        return min(after_steps(drift_after, n_steps - 1, reach, most), most)
    # At least the geometric sum of the first n_before powers of kept_share.
    n_added = min(float(n_before), 1 / (1 - kept_share) if kept_share < 1.0 else inf)
    for _ in range(GUESSES):
        drift = min(added * n_added, most)
        growth = drift_after(drift) - kept_share * drift
        if growth <= added:
            return drift
        if drift == most:
            break
        added = growth * (1 + 2.0**-10)
    if n_steps <= STEPS_ONE_BY_ONE:
        return min(after_steps(drift_after, n_steps - 1, reach, most), most)
    return most


STEPS_ONE_BY_ONE = 100
"""The number of steps that are followed one by one, at the end of a trajectory: it is tighter."""


MOST_ROUNDS = 1000
"""The limit on propagations for one trajectory; beyond it only the box bounds the error."""


def after_steps(
    error_after: Callable[[float], float],
    n_steps: int,
    box: float,
    widest: float,
    kept_share: float = 1.0,
) -> float:
    """Bound the error after `n_steps` steps from 0; the bound never falls from step to step.

    `error_after` increases with the error before a step. If it maps a level 5% above the error to
    at most that level, no later error exceeds the level. Otherwise follow slow growth many steps at
    a time: a step keeps at least `kept_share` of the error, and what it adds increases with the
    error. So no step up to the level adds more than a step from the level does, plus the share of
    the difference that this step does not keep. This argument fails where the box cuts off the
    error: two weights in the box differ by at most 2 box, and a step keeps at least `kept_share`.
    """
    error, left = 0.0, n_steps
    for _ in range(MOST_ROUNDS):
        if left <= 0 or error >= widest:
            return min(error, widest)
        level = 1.05 * error
        after = error_after(level) if left > STEPS_ONE_BY_ONE else inf
        is_cut = after >= 2 * box * kept_share
        gain = inf if is_cut else max(after - level, 0.0) + (1 - kept_share) * (level - error)
        if after <= level and gain > 0.0:
            return min(level, widest)
        jump = min(left, int((level - error) / gain)) if gain > 0.0 else left
        error = error + jump * gain if jump > 1 else max(error, error_after(error))
        left -= max(jump, 1)
    return widest


MOST_FOLLOWED = 100
"""The number of first steps that are followed one by one; of later ones only sizes are known."""

SLACK = 1 + 2.0**-10
"""Safety factor on guesses, so that rounding does not invalidate them."""


@dataclass(frozen=True)
class Trained:
    """Bounds on every weight and on the state of the optimiser: sizes, errors, drifts of copies."""

    sizes: Parameters
    error: Parameters
    drift: Parameters

    @classmethod
    def exactly(cls, sizes: Parameters, drift: Parameters) -> Trained:
        """Return bounds of numbers of these sizes without error, whose copies differ by `drift`."""
        return cls(sizes, torch.zeros_like(sizes), drift)


@dataclass(frozen=True)
class StateBound:
    """The bounds of a run of an optimiser with a state.

    `after_step` maps the bounds before a step, given by its number, to those after it; `ends` are
    the numbers of steps that cover all. `is_state` marks the numbers of the state; all others are
    clipped to a box. `kept_share` is the smallest share of every number that a step keeps.
    """

    after_step: Callable[[Trained, int], Trained]
    is_state: Tensor
    kept_share: Tensor
    ends: Sequence[int]
    n_steps: int

    def domain(self, sizes: Tensor | float) -> DomainBound:
        """Return bound (a) for weights of these sizes at the start and a state of 0."""
        sizes = torch.as_tensor(sizes, dtype=torch.float64).expand(self.is_state.shape)
        sizes = sizes.masked_fill(self.is_state, 0.0)
        before = Trained.exactly(sizes, torch.zeros_like(sizes))
        last, trajectory = before, 0.0
        for step in range(min(self.n_steps, MOST_FOLLOWED)):
            last, before = before, self._after(before, step)
            error = float(before.error.nan_to_num(nan=inf, posinf=inf).max())
            trajectory = max(trajectory, error)
        if self.n_steps > MOST_FOLLOWED:
            last = self._later(last, before)
            trajectory = 2 * float(last.sizes.max())  # the distance of any two such numbers
        # The last step starts from the largest numbers, so its bound holds for any step.
        exact = Trained.exactly(last.sizes, last.drift)
        steps = [self.after_step(exact, end) for end in self.ends]
        bounds = (bound for after in steps for bound in vars(after).values())
        if not all(bool(bound.isfinite().all()) for bound in bounds):
            return DomainBound(inf, inf)
        drift = max(float(after.drift.max()) for after in steps)
        return DomainBound(
            step=max(float(after.error.max()) for after in steps),
            trajectory=trajectory,
            reach=max(float(after.sizes[..., ~self.is_state].max()) for after in steps),
            drift=max(drift, float(last.drift.max())),
        )

    def _after(self, before: Trained, step: int) -> Trained:
        """Return the bounds after a step; sizes and drifts never fall."""
        after = self.after_step(before, step)
        sizes = torch.maximum(before.sizes, after.sizes)
        return Trained(sizes, after.error, torch.maximum(before.drift, after.drift))

    def _later(self, before: Trained, after: Trained) -> Trained:
        """Return sizes that no later step exceeds, and the drift before the last step.

        The bounds are infinite if no guess is confirmed. A guess assumes that every step adds as
        much to the share of the drift that it keeps as the last one does; if the check finds that a
        step adds more, the next guess uses that. Growth is counted from the drift `after`, of which
        a step loses a part.
        """
        # The state: the sum of the geometric series that the last growth and the next one begin.
        # Weights are clipped, and grow by rounding alone.
        next_sizes = self._after(after, self.ends[-1]).sizes
        first, second = after.sizes - before.sizes, next_sizes - after.sizes
        ratio = torch.where(first > 0, second / first, 0.0)
        series = SLACK * (after.sizes + second / (1 - ratio).clamp(min=0.0))
        sizes = torch.where(self.is_state, series, (1 + 2.0**-40) * next_sizes)
        added = after.drift - before.drift
        ends = [end for end in self.ends if end >= MOST_FOLLOWED] or self.ends
        n_added = (1 / (1 - self.kept_share)).clamp(max=self.n_steps - MOST_FOLLOWED)
        for _ in range(GUESSES):
            drift = after.drift + n_added * SLACK * added
            exact = Trained.exactly(sizes, drift)
            checks = [self.after_step(exact, end) for end in ends]
            if not all(bool((check.sizes <= sizes).all()) for check in checks):
                break
            lost = (1 - self.kept_share) * after.drift
            largest = torch.stack(
                [check.drift - self.kept_share * drift - lost for check in checks]
            ).amax(0)
            if bool((largest <= SLACK * added).all()):
                return exact
            added = torch.maximum(added, SLACK * largest)
        return Trained.exactly(torch.full_like(sizes, inf), after.drift)


# Bound (c): the closed form of wu's Theorem 1 in its worst-case constants, corrected.
#
# With K the largest width, P = sqrt(K) and B_v = box P, which bounds rows and columns:
#
#     R_j  = B_v P B_{j-1},  B_0 = |x|,  B_j = max_{|t| <= R_j} |r| + eps_r,  B_r = max_{j<N} B_j
#     B_r' = max |r'| + eps_r',   B_u = max |u| + eps_u
#     E_r  = P sum_{l<N} (P L_r B_v)^l                         |p error|_2  <= E_r eps_r
#     d_r' = eps_r' + L_r' B_v E_r eps_r,   d_u = eps_u + L_u E_r eps_r
#     b    = B_r' B_v P,   B_s = max_{m<N} b^m B_r' B_u        |s|          <= B_s
#     E_s  = max_{m<N} d_r' P B_v B_s sum_{l<m} b^l + b^m (B_u d_r' + B_r' d_u)
#     step = step_size (N / 2) P (E_s P B_r + B_s E_r eps_r)
#
# Corrections to the printed chain: B_r^j lacks sqrt(K), because it bounds entries and not the norm;
# r' is evaluated at v . p, not at its own bound; V^T s needs column norms; r' and u enter with
# their approximations' bounds; the last line has sqrt(P) for P. The rounding from bound (a) is
# added to this.
#
# For a table of steps it is wu's Lemma 16, with the Lipschitz constant of the step. A token holds
# d numbers, each in an interval of length B or less, which is covered by `levels` levels. Then the
# error of a step that is looked up for n examples is at most
#
#     Lip (8 sqrt(d n) + sqrt(n)) B / (2 levels).
#
# Lip is taken over all d n numbers of the prompt, in the Euclidean norm, where a change of the
# weight counts n times, once for every token that holds the weight. With the step g and its terms
# f = r'(w x) u(r(w x), y) x,
#
#     Lip^2 = max [ n (step_size / 2n)^2 (f_x^2 + f_y^2) + (1 - step_size f_w / 2)^2 / n ],
#
# which intervals bound on a division of the domain into cells.


class _Constants(NamedTuple):
    """The largest size, Lipschitz constant and fitting error of a function on an interval."""

    size: float
    lipschitz: float
    error: float


def closed_form(program: StackProgram, problem: Problem) -> float | None:
    """Return the paper's bound on the error of one step in exact arithmetic, if it has one.

    The bound is infinite if it overflows float64. No paper gives a bound for a network with biases,
    shortcuts or layer norms, for examples with rates, for a loss that couples outputs, for an
    update other than plain descent, for a program with look-ups or units of any activation, or for
    one that lacks a function of the paper's backward pass. A table of steps has a bound of its own.
    """
    target, slope_terms = problem.network, problem.loss_function.slope_terms
    if not problem.gradient_step.is_plain or not target.is_chain or target.biases:
        return None
    if slope_terms is None or problem.domain.rate is not None:
        return None
    if program.n_registers or not all(isinstance(fit, ReluSum) for fit in program.functions):
        return None
    step = table_step
    if program.step_table is None:
        activations = [target.layer_activation(layer) for layer in range(1, target.depth + 1)]
        needed = {term.function.name for term in slope_terms}
        needed |= {f.name for a in activations for f in (a.value, a.derivative)}
        if not needed <= {function.name for function in program.functions}:
            return None
        step = closed_form_step
    try:
        return step(program, problem)
    except OverflowError:
        return inf


def closed_form_step(program: StackProgram, problem: Problem) -> float:
    """Return the paper's bound on the error of one step, in exact arithmetic."""
    target, box = problem.network, problem.gradient_step.reach
    depth, widest = target.depth, max(target.widths)
    norm = sqrt(widest)  # P
    vector = box * norm  # B_v
    activations = [target.layer_activation(layer) for layer in range(1, depth + 1)]
    outputs, reach = [problem.domain.x], 0.0  # B_0 .. B_N, and the largest R_j
    for activation in activations:
        argument = box * widest * outputs[-1]
        value = _constants(program, activation.value, argument)
        outputs.append(value.size + value.error)
        reach = max(reach, argument)
    values = [_constants(program, a.value, reach) for a in activations]
    slopes = [_constants(program, a.derivative, reach) for a in activations]
    value_error = max(value.error for value in values)
    slope = max(s.size + s.error for s in slopes)  # B_r'
    growth = norm * vector * max(value.lipschitz for value in values)
    forward = norm * sum(growth**power for power in range(depth))  # E_r
    slope_lipschitz = max(s.lipschitz for s in slopes)
    carried = _times(slope_lipschitz, vector * forward * value_error)
    slope_error = max(s.error for s in slopes) + carried
    loss, loss_lipschitz, loss_fit = 0.0, 0.0, 0.0  # B_u, L_u, eps_u
    for term in problem.loss_function.slope_terms or ():
        argument = abs(term.prediction) * outputs[-1] + abs(term.label) * problem.domain.y
        constants = _constants(program, term.function, argument)
        loss += constants.size + constants.error
        loss_lipschitz += abs(term.prediction) * constants.lipschitz
        loss_fit += constants.error
    loss_error = loss_fit + loss_lipschitz * forward * value_error
    ratio = slope * vector * norm  # b
    delta = max(ratio**power for power in range(depth)) * slope * loss  # B_s
    delta_error = max(
        _times(slope_error, norm * vector * delta * sum(ratio**power for power in range(m)))
        + ratio**m * (_times(slope_error, loss) + slope * loss_error)
        for m in range(depth)
    )
    largest_input = max(outputs[:-1])  # B_r
    total = delta_error * norm * largest_input + delta * forward * value_error
    return problem.gradient_step.size_of(0) * depth / 2 * norm * total


def _times(left: float, right: float) -> float:
    """Return the product, with 0 * inf = 0: an infinite constant times an error of exactly 0."""
    return 0.0 if left == 0.0 or right == 0.0 else left * right


def _constants(program: StackProgram, function: ScalarFunction, reach: float) -> _Constants:
    end = torch.tensor(reach, dtype=torch.float64)
    low, high = function.bounds(-end, end)
    size, lipschitz = torch.maximum(-low, high), function.lipschitz(-end, end)
    return _Constants(float(size), float(lipschitz), program.relu_sum(function.name).error)


CELLS = 32
"""The number of cells of every axis; even, so that no cell has 0 in its interior."""

OWN_ROUNDING = 1 + 2.0**-40
"""The safety factor for the rounding of this computation itself."""


def table_step(program: StackProgram, problem: Problem) -> float:
    """Return the paper's bound on the error of one step, in exact arithmetic."""
    if program.step_table is None:
        raise ProgramError(
            f"The {program.construction} program has no table of steps, so this bound does not "
            "apply to it."
        )
    n, levels = program.step_table.n_examples, len(program.relu_sum(IDENTITY).knots) // 2 + 1
    longest = 2 * max(problem.domain.x, problem.domain.y, problem.gradient_step.reach)
    numbers = 3  # x, y and w
    lipschitz = step_lipschitz(problem, n)
    return lipschitz * (8 * sqrt(numbers * n) + sqrt(n)) * longest / (2 * levels)


def step_lipschitz(problem: Problem, n_examples: int) -> float:
    """Return the Lipschitz constant of a step of one weight, as a function of the whole prompt."""
    x = _cells(problem.domain.x, -1, 1, 1)
    y = _cells(problem.domain.y, -1, 1)
    w = _cells(problem.gradient_step.reach, -1)
    activation = problem.network.layer_activation(1)
    argument = w * x
    prediction = _on(activation.value, argument)
    first = _on(activation.derivative, argument)
    second = _on(activation.derivative.derivative(), argument)
    u = u_p = u_y = _constant(0.0)  # the slope of the loss, and its derivatives
    for term in problem.loss_function.slope_terms or ():
        argument_of_loss = prediction.times(term.prediction) + y.times(term.label)
        steepness = _on(term.function.derivative(), argument_of_loss)
        u = u + _on(term.function, argument_of_loss)
        u_p = u_p + steepness.times(term.prediction)
        u_y = u_y + steepness.times(term.label)
    curvature = second * u + first * first * u_p  # of the loss, as a function of w x
    f_x = curvature * argument + first * u
    f_y = first * u_y * x
    f_w = curvature * (x * x)
    share = problem.gradient_step.size_of(0) / (2 * n_examples)
    data_part = n_examples * share**2 * (f_x.size**2 + f_y.size**2)
    weight_part = (f_w.times(-n_examples * share) + _constant(1.0)).size ** 2 / n_examples
    return OWN_ROUNDING * sqrt(float(data_part.max()) + float(weight_part.max()))


def _cells(bound: float, *shape: int) -> Interval:
    """Return the intervals between neighbouring sample points of [-bound, bound]."""
    edges = torch.linspace(-bound, bound, CELLS + 1, dtype=torch.float64)
    return Interval(edges[:-1].view(shape), edges[1:].view(shape))


def _constant(value: float) -> Interval:
    return Interval.point(torch.tensor(value, dtype=torch.float64))


def _on(function: ScalarFunction, argument: Interval) -> Interval:
    return Interval(*function.bounds(argument.low, argument.high))
