"""Bounds of a stack that trains a network: one propagation, fed with the domain or with a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates import prediction_bounds
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds, one_by_one
from icgd.certificates.bounds import Moment, State, drift_of
from icgd.certificates.closed_form import closed_form
from icgd.certificates.domain_bound import Weights, domain_bound, least_kept, worst
from icgd.certificates.enclosures import Enclosure
from icgd.certificates.ends import Ends
from icgd.certificates.intervals import Interval
from icgd.certificates.prediction_bounds import near_weights
from icgd.certificates.rules import propagate
from icgd.certificates.state_bound import StateBound, Trained
from icgd.certificates.streams import Data, Streams
from icgd.problems.data import FLOAT32_ROUNDING
from icgd.problems.optimisers.rule import WEIGHTS
from icgd.problems.task import Task
from icgd.program.instructions import RATES
from icgd.program.layout import Role
from icgd.program.stack import StackProgram
from icgd.shapes import History, Parameters, Predictions

NUMBERS_AT_ONCE = 2**15
"""The numbers in the largest slot over the steps that are bounded together: enough that the time
goes into numbers, not into calls, and so few that the memory stays in the cache, and flat."""


@dataclass(frozen=True)
class StackBounds(AbstractBounds):
    """Bounds by enclosures of every slot, carried through the layers."""

    program: StackProgram

    def domain(self) -> DomainBound:
        """One token stands for all, since a mean over examples is no larger than the largest."""
        update = self.problem.gradient_step
        if update.has_root:  # what it divides by has no bound that says anything
            return DomainBound(inf, inf)
        if update.state:
            reach = update.box * (1 + FLOAT32_ROUNDING)
            return self._state_bound.domain(reach)
        data, n_weights = self._any_token, self._n_weights

        def after_block(reach: float, error: float, drift: float) -> Weights:
            everywhere = Interval.symmetric(reach, n_weights)
            off, apart = (torch.full_like(everywhere.low, size) for size in (error, drift))
            weights = Enclosure.around(everywhere, off, everywhere)
            found = self._slots_after(data, weights, apart, self._ends.numbers)
            return worst([self._weights(slots, apart) for slots in found])

        n_steps = self.program.n_steps
        return domain_bound(after_block, update.box, n_steps, least_kept(update, n_steps))

    @property
    def _state_bound(self) -> StateBound:
        """Bounds of an update that remembers, which are carried from step to step."""
        data, update = self._any_token, self.problem.gradient_step
        names = (WEIGHTS, *update.remembered)
        n_weights = self._n_weights // len(names)
        is_state = torch.tensor([name in update.state for name in names])

        def after_step(before: Trained, step: int) -> Trained:
            everywhere = Interval(-before.sizes, before.sizes)
            weights = Enclosure.around(everywhere, before.error, everywhere)
            [slots] = self._slots_after(data, weights, before.drift, [step])
            parameters = self.program.layout.having(Role.PARAMETER)
            sizes = torch.cat([slots[slot.name].size.flatten(-2) for slot in parameters], dim=-1)
            after = self._weights(slots, before.drift)
            return Trained(sizes, after.error, after.drift)

        n_steps = self.program.n_steps
        shares = [least_kept(update, n_steps, name) for name in names]
        kept = torch.tensor(shares, dtype=torch.float64)
        is_state, kept = (part.repeat_interleave(n_weights) for part in (is_state, kept))
        return StateBound(after_step, is_state, kept, self._ends.numbers, n_steps)

    @cached_property
    def _ends(self) -> Ends:
        """The ends that a step can have."""
        return Ends.of(self.program.schedule)

    @property
    def _any_token(self) -> Data:
        """Where inputs, labels and rates lie."""
        domain, layout = self.problem.domain, self.program.layout
        bounds = {"x": domain.x, "y": domain.y} | ({RATES: domain.rate} if domain.rate else {})
        return {
            name: Interval.symmetric(bound * (1 + FLOAT32_ROUNDING), 1, layout.slot(name).width)
            for name, bound in bounds.items()
        }

    @property
    def _n_weights(self) -> int:
        return sum(slot.width for slot in self.program.layout.having(Role.PARAMETER))

    def domain_predictions(self, proved: DomainBound) -> float:
        """The weights lie anywhere in the box, and are off by what bound (a) leaves of a run."""
        if self.program.step_table is not None or not proved.trajectory < self.widest:
            return inf
        bound = self.problem.gradient_step.box * (1 + FLOAT32_ROUNDING)
        box = Interval.symmetric(bound, self._n_weights)
        own = Interval.symmetric(proved.reach, self._n_weights)
        off, apart = (torch.full_like(box.low, size) for size in (proved.trajectory, proved.drift))
        weights = Enclosure.around(box, off, own)
        data = self._any_token
        data["y"] = Interval.point(torch.zeros_like(data["y"].low))
        after = self._streams.after(self.program.prediction, data, weights, apart)
        return float(after["y"].error.nan_to_num(nan=inf, posinf=inf).max())

    def steps(self, task: Task, history: History) -> Tensor:
        """The steps are independent of each other, so they are bounded many at a time.

        Only where the weights have copies, which drift apart, does a step depend on earlier ones.
        """
        before = history[..., :-1, :].double()
        if self._streams.have_copies or self._differ:
            return one_by_one(self._with_drift(task, history), history)
        parts = before.split(self._steps_at_once(task), dim=-2) if before.numel() else ()
        errors = [self._of_all_steps(task, part) for part in parts]
        return torch.cat([before[..., :0, 0], *errors], dim=-1)

    @property
    def _differ(self) -> bool:
        """Whether steps differ from each other, in their layers or in their examples."""
        return bool(self.program.schedule) or self.program.batch_size is not None

    def _data(self, task: Task, step: int) -> Data:
        """The inputs, labels and rates of a step."""
        used = self.problem.network_oracle.examples(task, step)
        data = {"x": used.x, "y": used.y}
        if used.rates is not None:
            data[RATES] = used.rates.expand_as(used.y)
        return {name: Interval.point(column.double()) for name, column in data.items()}

    def _steps_at_once(self, task: Task) -> int:
        """How many steps are bounded together; weights are kept once, other slots a token."""
        slots = [slot for slot in self.program.layout.slots if slot.role is not Role.PARAMETER]
        numbers = max(task.n_examples * max(slot.width for slot in slots), task.initial.shape[-1])
        return max(1, NUMBERS_AT_ONCE // (numbers * prod(task.batch)))

    def _of_all_steps(self, task: Task, before: History) -> Tensor:
        """What one step adds to the error of any weight, from each of these weights."""
        data = {
            name: column.mapped(lambda part: part.unsqueeze(-3))
            for name, column in self._data(task, 0).items()
        }
        return self._after_step(data, before, torch.zeros_like(before)).error.amax(-1)

    def _with_drift(self, task: Task, history: History) -> Iterator[Tensor]:
        """What each step adds, if the steps before it moved the weights' copies apart."""
        for weights in self._after_steps(task, history):
            yield weights.error.amax(-1)

    def _after_steps(self, task: Task, history: History) -> Iterator[Weights]:
        """What each step leaves, from the run's own weights and the drift of their copies."""
        drift = torch.zeros_like(task.initial).double()
        for step, parameters in enumerate(history[..., :-1, :].double().unbind(-2)):
            weights = self._after_step(self._data(task, step), parameters, drift, step)
            yield weights
            drift = weights.drift

    def _drift(self, task: Task, history: History) -> Parameters:
        """How far the copies of each weight may lie apart after the last step."""
        drift = torch.zeros_like(history[..., 0, :]).double()
        if self._streams.have_copies:
            for weights in self._after_steps(task, history):
                drift = weights.drift
        return drift

    def _after_step(
        self, data: Data, start: Parameters, drift: Parameters, step: int = 0
    ) -> Weights:
        """The weights after a block, if those before it are known exactly."""
        weights = Enclosure.common(Interval.point(start))
        return self.after_block(data, weights, drift, step)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        trajectory = one_by_one(self._trajectory(task, real), real, on_progress)
        return RunBounds(self.steps(task, history), trajectory)

    def _trajectory(self, task: Task, real: History) -> Iterator[Tensor]:
        """For each step, a bound on the distance of any weight from real gradient descent.

        `real` is the exact run. The weights' error is carried from step to step, so the bound grows
        with the step's own expansion, as the theory's (1 + step_size L)^l does.
        """
        error = drift = torch.zeros_like(real[..., 0, :])
        reach = max(self.problem.gradient_step.box, float(real[..., 0, :].abs().max()))
        for step, before in enumerate(real[..., :-1, :].unbind(-2)):
            known = Interval.symmetric(reach, 1)
            near = Enclosure.around(Interval.point(before), error, known)
            weights = self.after_block(self._data(task, step), near, drift, step)
            error, drift, reach = weights.error, weights.drift, max(reach, weights.size)
            yield error.amax(-1)

    def predictions(
        self, task: Task, history: History, real: History, error: Tensor
    ) -> Predictions:
        near = near_weights(real[..., -1, :], error)
        if self.program.step_table is not None:
            exact = self.problem.oracle.predict(task, near.exact.low)
            return prediction_bounds.of_table(self.program, self.how, exact)
        drift = self._drift(task, history)
        return prediction_bounds.of_stack(self._streams, task, near, drift)

    @property
    def widest(self) -> float:
        update = self.problem.gradient_step
        return inf if update.has_root else 2 * update.box

    @property
    def condition(self) -> str | None:
        update = self.problem.gradient_step
        if update.has_root or not update.state:
            return None
        return f"of runs whose {' and '.join(update.state)} is 0 at the start"

    def paper_step(self) -> float | None:
        """The closed form, which holds in exact arithmetic, with the rounding of a step added.

        That rounding is bound (a) of the same program with functions that do not err.
        """
        in_exact_arithmetic = closed_form(self.program, self.problem)
        if in_exact_arithmetic is None:
            return None
        exact = tuple(function.without_error() for function in self.program.functions)
        rounded = replace(self, program=replace(self.program, functions=exact, n_steps=0))
        return in_exact_arithmetic + rounded.domain().step

    @property
    def _streams(self) -> Streams:
        return Streams(self.program, self.how)

    def after_block(
        self, data: Data, weights: Enclosure, drift: Parameters, step: int = 0
    ) -> Weights:
        """The weights after a step that starts from `weights`, all of them in one vector.

        Their copies in the registers, if it has any, may lie `drift` apart.
        """
        [slots] = self._slots_after(data, weights, drift, [step])
        return self._weights(slots, drift)

    def _slots_after(
        self, data: Data, weights: Enclosure, drift: Parameters, numbers: Sequence[int]
    ) -> list[State]:
        """All slots after each of some steps, or after those that a number of `Ends` stands for.

        The layers that all steps share are gone through once.
        """
        start = self._streams.start(data, weights, drift)
        shared = replace(start, slots=propagate(start, self.program.common))
        return [self._slots_at_end(shared, number) for number in numbers]

    def _slots_at_end(self, shared: Moment, number: int) -> State:
        schedule = self.program.schedule
        if not schedule:
            return shared.slots
        if number < len(schedule):
            return propagate(shared, schedule[number])
        return propagate(replace(shared, highest=self._ends.highest), self._ends.span(number))

    def _weights(self, after: State, drift: Parameters) -> Weights:
        """What the slots say of the weights; without copies, `drift` is theirs."""
        names = [slot.name for slot in self.program.layout.having(Role.PARAMETER)]
        drifts = [after[drift_of(name)] for name in names] if self._streams.have_copies else []
        return Weights(
            error=torch.cat([after[name].error.flatten(-2) for name in names], dim=-1),
            drift=torch.cat([slot.error.flatten(-2) for slot in drifts] or [drift], dim=-1),
            size=max(float(after[name].actual.size.max()) for name in names),
        )
