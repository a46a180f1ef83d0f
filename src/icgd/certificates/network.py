r"""Bounds of a stack that trains a network: one propagation, fed with the domain or with a run.

    bound (a)     holds for every task in the domain, before any run: `domain`
    bound (b)     of each step of a run, from the run's own weights, and of its whole trajectory,
                  from those of real training, with the error that the steps before left
    predictions   the weights at the end of a run are off by at most some error. Enclosures of them
                  are carried through the layers that predict, with the queries for inputs

Bound (a) of a trajectory repeats the block with the error that it left in the weights, and is never
worse than the distance between two points of the box. It costs O(|w|) a propagation, and at most
`MOST_ROUNDS` of them however many steps there are.

What an update such as momentum remembers is not clipped to a box. But it starts at 0, and a step
makes of it

    m <- mu m + g,   so that   |m| <= G (1 - mu^t) / (1 - mu)   after t steps,

where G bounds the gradient on the domain. So a run is followed step by step, with a bound on the
size of every weight and of all that is remembered, and a bound on its error. Most runs are short.
Of a long one the first `MOST_STEPS` are followed. For all others a size is guessed, as the sum of
the geometric series that the last two steps begin, and one step is asked whether it stays below.

Copies of the weights in registers are rounded on their own, and drift apart in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf, prod, sqrt

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds, one_by_one
from icgd.certificates.enclosing import Data, Enclosures, State
from icgd.certificates.enclosures import Arithmetic, Enclosure, Interval
from icgd.errors import ProgramError
from icgd.problems.activations import Activation
from icgd.problems.data import FLOAT32_ROUNDING
from icgd.problems.functions import ScalarFunction, StepFunction
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AVERAGE, WEIGHTS, AbstractGradientStep
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.functions import RidgeSum
from icgd.program.instructions import IDENTITY, RATES, Instruction, MapSlots
from icgd.program.layout import Role
from icgd.program.meaning import scheduled
from icgd.program.network_instructions import Recombine
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.shapes import History, Parameters, Predictions

# -----------------------------------------------------------------------------
# Near-kink events are where a ramp stood in for a step and gave neither of its levels.


MOST_EVENTS = 20
"""The most events that are listed one by one; all are counted."""


@dataclass(frozen=True)
class NearKink:
    """Unit `unit` of `layer` had a preactivation inside the ramp, at this step and token."""

    task: int
    step: int
    layer: int
    token: int
    unit: int
    preactivation: float


@dataclass(frozen=True)
class NearKinks:
    """How often a run came that close to a kink, and the first events."""

    count: int
    events: tuple[NearKink, ...]


def near_kinks(
    program: AbstractProgram, problem: Problem, task: Task, history: History
) -> NearKinks:
    """Look at every preactivation of every step for those strictly inside a ramp."""
    count, oracle = 0, problem.oracle
    events: list[NearKink] = []
    if not program.has_kinks:
        return NearKinks(0, ())
    for step in range(history.shape[-2] - 1):
        tokens = oracle.examples_of(step, task.n_examples)
        preactivations = oracle.preactivations(task, history[..., step, :], step)
        for layer, preactivation in enumerate(preactivations, start=1):
            inside = _inside_ramps(program, problem.network, layer, preactivation)
            count += len(inside)
            events += [
                _event(step + 1, layer, place, preactivation, tokens)
                for place in inside[: MOST_EVENTS - len(events)].tolist()
            ]
    return NearKinks(count, tuple(events))


def _inside_ramps(program: AbstractProgram, target: MLP, layer: int, z: Tensor) -> Tensor:
    """The positions of the preactivations inside a ramp, one row each."""
    derivative = target.layer_activation(layer).derivative
    if not isinstance(derivative, StepFunction) or not derivative.knots:
        return z.new_empty(0, z.dim()).long()
    inside = z != z
    for start, end in program.ramps(derivative.name):
        inside = inside | ((start < z) & (z < end))
    return inside.nonzero()


def _event(
    step: int, layer: int, place: list[int], preactivation: Tensor, tokens: Sequence[int]
) -> NearKink:
    task = place[0] if len(place) == 3 else 0
    value = float(preactivation[tuple(place)])
    return NearKink(task, step, layer, tokens[place[-2]], place[-1], value)


# -----------------------------------------------------------------------------
# Bound (c): the closed form of wu's Theorem 1 in its worst-case constants, repaired.
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
# Repairs to the printed chain: B_r^j lacks sqrt(K), because it bounds entries and not the norm;
# r' is evaluated at v . p, not at its own bound; V^T s needs column norms; r' and u enter with
# their approximations' bounds; the last line has sqrt(P) for P. The rounding that bound (a) finds
# is added to this.
#
# Of a table of steps it is wu's Lemma 16, with the Lipschitz constant of the step. A token holds
# d numbers, each in an interval of length B or less, and `levels` levels cover it. Then a step
# that is looked up for n examples is off by at most
#
#     Lip (8 sqrt(d n) + sqrt(n)) B / (2 levels).
#
# Lip is taken over all d n numbers of the prompt, in the Euclidean norm, where a change of the
# weight counts n times, once for every token that holds it. With the step g and its summands
# f = r'(w x) u(r(w x), y) x,
#
#     Lip^2 = max [ n (step_size / 2n)^2 (f_x^2 + f_y^2) + (1 - step_size f_w / 2)^2 / n ],
#
# which intervals bound on a division of the domain into cells.


CELLS = 32
"""The cells of every axis: an even number, so that no cell holds a number and its negative."""

ROUNDING_ROOM = 1 + 2.0**-40
"""The room for the rounding of this computation itself."""


@dataclass(frozen=True)
class _Constants:
    """The largest size, Lipschitz constant and fitting error of a function on an interval."""

    size: float
    lipschitz: float
    error: float


def closed_form(program: StackProgram, problem: Problem) -> float | None:
    """The paper's bound on the error of one step in exact arithmetic; infinite beyond float64.

    No paper gives a bound for a network with biases, shortcuts or layer norms, for examples with
    rates, for a loss that couples outputs, for another update than plain descent, for a program
    with look-ups or units of any activation, or for one that lacks a function of the paper's
    backward pass. A table of steps has a bound of its own.
    """
    if not _is_of_paper(problem) or program.n_registers:
        return None
    if any(isinstance(fit, RidgeSum) for fit in program.functions):
        return None
    if program.step_table is None and not _has_backward_pass(program, problem):
        return None
    step = closed_form_step if program.step_table is None else table_step
    try:
        return step(program, problem)
    except OverflowError:
        return inf


def _is_of_paper(problem: Problem) -> bool:
    """Whether the papers' steps are these: plain ones on a chain of layers, output by output."""
    target, is_plain = problem.network, problem.gradient_step.is_plain
    is_coupled = problem.loss_function.slope_parts is None
    is_chain = target.is_chain and not target.biases
    return is_plain and is_chain and not is_coupled and problem.domain.rate is None


def _has_backward_pass(program: StackProgram, problem: Problem) -> bool:
    """Whether it evaluates every activation, its derivative, and the slope of the loss."""
    target = problem.network
    activations = [target.layer_activation(layer) for layer in range(1, target.depth + 1)]
    needed = {part.function.name for part in problem.loss_function.slope_parts or ()}
    needed |= {f.name for a in activations for f in (a.value, a.derivative)}
    return needed <= {function.name for function in program.functions}


def closed_form_step(program: StackProgram, problem: Problem) -> float:
    """The paper's bound on the error of one step, in exact arithmetic."""
    target, box = problem.network, problem.gradient_step.box
    depth, widest = target.depth, max(target.widths)
    norm = sqrt(widest)  # P
    vector = box * norm  # B_v
    activations = [target.layer_activation(layer) for layer in range(1, depth + 1)]
    reach, output_bounds = _forward_reach(program, problem, activations)
    values = [_constants(program, a.value, reach) for a in activations]
    slopes = [_constants(program, a.derivative, reach) for a in activations]
    value_error = max(value.error for value in values)
    slope = max(s.size + s.error for s in slopes)  # B_r'
    growth = norm * vector * max(value.lipschitz for value in values)
    forward = norm * sum(growth**power for power in range(depth))  # E_r
    slope_lipschitz = max(s.lipschitz for s in slopes)
    carried = _times(slope_lipschitz, vector * forward * value_error)
    slope_error = max(s.error for s in slopes) + carried
    loss, loss_lipschitz, loss_fit = _loss_constants(program, problem, output_bounds[-1])
    loss_error = loss_fit + loss_lipschitz * forward * value_error
    ratio = slope * vector * norm  # b
    delta = max(ratio**power for power in range(depth)) * slope * loss  # B_s
    delta_error = max(
        _times(slope_error, norm * vector * delta * sum(ratio**power for power in range(m)))
        + ratio**m * (_times(slope_error, loss) + slope * loss_error)
        for m in range(depth)
    )
    largest_input = max(output_bounds[:-1])  # B_r
    total = delta_error * norm * largest_input + delta * forward * value_error
    return problem.gradient_step.size_of(0) * depth / 2 * norm * total


def _times(left: float, right: float) -> float:
    """The product, with 0 * inf = 0: an infinite constant does no harm to an exact quantity."""
    return 0.0 if left == 0.0 or right == 0.0 else left * right


def _forward_reach(
    program: StackProgram, problem: Problem, activations: list[Activation]
) -> tuple[float, list[float]]:
    """The largest argument of any activation, and bounds B_0 .. B_N, with the widest layer's K."""
    outputs, reach = [problem.domain.x], 0.0
    for activation in activations:
        argument = problem.gradient_step.box * max(problem.network.widths) * outputs[-1]
        constants = _constants(program, activation.value, argument)
        outputs.append(constants.size + constants.error)
        reach = max(reach, argument)
    return reach, outputs


def _constants(program: StackProgram, function: ScalarFunction, reach: float) -> _Constants:
    end = torch.tensor(reach, dtype=torch.float64)
    low, high = function.bounds(-end, end)
    size, lipschitz = torch.maximum(-low, high), function.lipschitz(-end, end)
    return _Constants(float(size), float(lipschitz), program.relu_sum(function.name).error)


def _loss_constants(
    program: StackProgram, problem: Problem, prediction: float
) -> tuple[float, float, float]:
    """The bound, Lipschitz constant in the prediction and fitting error of the loss's slope."""
    size, lipschitz, error = 0.0, 0.0, 0.0
    for part in problem.loss_function.slope_parts or ():
        reach = abs(part.prediction) * prediction + abs(part.label) * problem.domain.y
        constants = _constants(program, part.function, reach)
        size += constants.size + constants.error
        lipschitz += abs(part.prediction) * constants.lipschitz
        error += constants.error
    return size, lipschitz, error


def table_step(program: StackProgram, problem: Problem) -> float:
    """The paper's bound on the error of one step, in exact arithmetic."""
    if program.step_table is None:
        raise ProgramError("The program has no table of steps.")
    n, levels = program.step_table.n_examples, len(program.relu_sum(IDENTITY).knots) // 2 + 1
    longest = 2 * max(problem.domain.x, problem.domain.y, problem.gradient_step.box)
    numbers = 3  # x, y and w
    lipschitz = step_lipschitz(problem, n)
    return lipschitz * (8 * sqrt(numbers * n) + sqrt(n)) * longest / (2 * levels)


def step_lipschitz(problem: Problem, n_examples: int) -> float:
    """The Lipschitz constant of a step of one weight, as a function of the whole prompt."""
    x = _cells(problem.domain.x, -1, 1, 1)
    y = _cells(problem.domain.y, -1, 1)
    w = _cells(problem.gradient_step.box, -1)
    activation = problem.network.layer_activation(1)
    argument = w * x
    prediction = _on(activation.value, argument)
    first = _on(activation.derivative, argument)
    second = _on(activation.derivative.derivative(), argument)
    u, u_p, u_y = _loss_slope(problem, prediction, y)
    curvature = second * u + first * first * u_p  # of the loss, as a function of w x
    f_x = curvature * argument + first * u
    f_y = first * u_y * x
    f_w = curvature * (x * x)
    share = problem.gradient_step.size_of(0) / (2 * n_examples)
    data = n_examples * share**2 * (f_x.size**2 + f_y.size**2)
    weight = (f_w.times(-n_examples * share) + _constant(1.0)).size ** 2 / n_examples
    return ROUNDING_ROOM * sqrt(float(data.max()) + float(weight.max()))


def _cells(bound: float, *shape: int) -> Interval:
    """The intervals between neighbouring sample points of [-bound, bound]."""
    edges = torch.linspace(-bound, bound, CELLS + 1, dtype=torch.float64)
    return Interval(edges[:-1].view(shape), edges[1:].view(shape))


def _constant(value: float) -> Interval:
    return Interval.point(torch.tensor(value, dtype=torch.float64))


def _on(function: ScalarFunction, argument: Interval) -> Interval:
    return Interval(*function.bounds(argument.low, argument.high))


def _loss_slope(
    problem: Problem, prediction: Interval, label: Interval
) -> tuple[Interval, Interval, Interval]:
    """The slope of the loss, and its derivatives with respect to prediction and label."""
    slope = by_prediction = by_label = _constant(0.0)
    for part in problem.loss_function.slope_parts or ():
        argument = prediction.times(part.prediction) + label.times(part.label)
        steepness = _on(part.function.derivative(), argument)
        slope = slope + _on(part.function, argument)
        by_prediction = by_prediction + steepness.times(part.prediction)
        by_label = by_label + steepness.times(part.label)
    return slope, by_prediction, by_label


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
            return _worst([self._weights(slots, apart) for slots in found])

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
            sizes = [slots[slot.name].value.size.flatten(-2) for slot in parameters]
            after = self._weights(slots, before.drift)
            return Trained(torch.cat(sizes, dim=-1), after.error, after.drift)

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
        return float(self._predicted(data, weights, apart).max())

    def _predicted(self, data: Data, weights: Enclosure, drift: Parameters) -> Tensor:
        """The error of predictions by these weights, whose copies may lie `drift` apart."""
        domain = Enclosures(self.program, self.how)
        after = domain.after(self.program.prediction, domain.start(data, weights, drift))
        return after["y"].value.error.nan_to_num(nan=inf, posinf=inf)

    def steps(self, task: Task, history: History) -> Tensor:
        """The steps are independent of each other, so they are bounded many at a time.

        Only where the weights have copies, which drift apart, does a step depend on earlier ones.
        """
        before = history[..., :-1, :].double()
        if self._have_copies or self._differ:
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
        if self._have_copies:
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
            return of_table(self.program, self.how, exact)
        queries = task.queries.double()
        labels = torch.zeros_like(queries[..., :1].expand(*queries.shape[:-1], task.y.shape[-1]))
        data = {"x": Interval.point(queries), "y": Interval.point(labels)}
        return self._predicted(data, near, self._drift(task, history)).expand_as(labels)

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
    def _have_copies(self) -> bool:
        return Enclosures(self.program, self.how).have_copies

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
        domain = Enclosures(self.program, self.how)
        shared = domain.after(self.program.common, domain.start(data, weights, drift))
        if not self.program.schedule:
            return [shared]
        return [domain.after(self._ends.layers[number], shared) for number in numbers]

    def _weights(self, after: State, drift: Parameters) -> Weights:
        """What the slots say of the weights; without copies, `drift` is theirs."""
        slots = [after[slot.name] for slot in self.program.layout.having(Role.PARAMETER)]
        drifts = [slot.apart.flatten(-2) for slot in slots if slot.apart is not None]
        return Weights(
            error=torch.cat([slot.value.error.flatten(-2) for slot in slots], dim=-1),
            drift=torch.cat(drifts or [drift], dim=-1),
            size=max(float(slot.value.actual.size.max()) for slot in slots),
        )


End = tuple[Layer, ...]

FEW = 8
"""So many different ends of steps are looked at one by one."""


@dataclass(frozen=True)
class Ends:
    """The ends of all steps of a schedule, and more that stand for many of them.

    Of a few different ends each is looked at. Of many, every coefficient is taken to lie anywhere
    between its smallest and its largest value, so that one enclosure holds for all of them. It is a
    little wider than the widest of theirs. Those with these `numbers` stand for all steps.
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
    """An end without the coefficients of its sums, in which alone steps differ."""

    def outline(part: Instruction) -> Instruction:
        if not isinstance(part, Recombine):
            return part
        values = [
            replace(each.value, coefficients=(0.0,) * len(each.value.slots))
            for each in part.assignments
        ]
        pairs = zip(part.assignments, values, strict=True)
        return replace(part, assignments=tuple(replace(each, value=value) for each, value in pairs))

    return tuple(
        replace(layer, instructions=tuple(map(outline, layer.instructions))) for layer in end
    )


@dataclass(frozen=True)
class Weights:
    """After a block: bounds on every weight's error and on how far its copies in the registers lie
    from it, and the size of the transformer's largest weight.
    """

    error: Parameters
    drift: Parameters
    size: float


def _worst(found: Sequence[Weights]) -> Weights:
    """What holds for all of several blocks."""
    first, *others = found
    for other in others:
        first = Weights(
            error=torch.maximum(first.error, other.error),
            drift=torch.maximum(first.drift, other.drift),
            size=max(first.size, other.size),
        )
    return first


AfterBlock = Callable[[float, float, float], Weights]
"""The weights after a block, from their reach, error and drift before it."""


def least_kept(update: AbstractGradientStep, n_steps: int, name: str = WEIGHTS) -> float:
    """The least share that a step keeps of a weight, or of what is remembered; at most 1.

    Errors and drifts are kept by the same share, and what else a step adds to them is the more the
    larger they are. Weight decay keeps less than all.
    """
    steps = range(1 if update.is_constant else n_steps)
    if name == AVERAGE:
        shares = [update.kept_of_average(step) for step in steps]
    else:
        shares = [abs(update.rule(step).linear[name][name]) for step in steps]
    least = min(shares, default=1.0)
    return least * (1 - 2.0**-40) if least < 1.0 else 1.0  # the program's share is rounded


def domain_bound(after_block: AfterBlock, box: float, n_steps: int, kept: float) -> DomainBound:
    """The bounds of one block and of `n_steps` blocks, from the weights after any block.

    A step keeps at least a share of `kept` of every weight.
    """
    after_block = cache(after_block)
    reach, drift = _reach_and_drift(after_block, box, n_steps, kept)
    if reach == inf:
        return DomainBound(inf, inf)

    def error_after(error: float) -> float:
        return float(after_block(reach, error, drift).error.max())

    widest = box + reach
    trajectory = after_steps(error_after, n_steps, box, widest, kept)
    after = float(after_block(reach, 0.0, drift).drift.max())
    return DomainBound(min(error_after(0.0), widest), trajectory, reach, max(after, drift))


def _reach_and_drift(
    after_block: AfterBlock, box: float, n_steps: int, kept: float
) -> tuple[float, float]:
    """How large the transformer's weights can be, and how far their copies may lie from them.

    Weights stay in the box, but for what rounding adds to a clip. A clip of w is off by the
    rounding of w, which is the larger the farther w has moved.
    """
    reach = box * (1 + FLOAT32_ROUNDING)
    for _ in range(8):
        drift = _largest_drift(after_block, reach, n_steps, kept)
        size = after_block(reach, 0.0, drift).size
        if size <= reach:
            return reach, drift
        # A little farther than needed, or else it takes many rounds to arrive.
        reach = size * (1 + 2.0**-40) + (size - reach) / 16
    return inf, inf


def _largest_drift(after_block: AfterBlock, reach: float, n_steps: int, kept: float) -> float:
    """How far copies of the weights drift apart before the last step; they all lie in the box.

    To what it keeps, a step adds a little more where copies are farther apart. So it is assumed
    that every step adds what the last one does, and this is then checked. That takes steps that
    keep less than others for the least of them; a few such steps are followed one by one.
    """

    def drift_after(drift: float) -> float:
        return float(after_block(reach, 0.0, drift).drift.max())

    added, most = drift_after(0.0), 2 * reach
    if kept < 1.0 and n_steps <= STEPS_ONE_BY_ONE:
        return min(after_steps(drift_after, n_steps - 1, reach, most), most)
    for _ in range(GUESSES):
        drift = min(added * n_added(max(n_steps - 1, 0), kept), most)
        found = drift_after(drift) - kept * drift
        if found <= added or drift == most:
            return drift
        added = found * (1 + 2.0**-10)
    return most


GUESSES = 16
"""How often it is guessed what a step adds to a drift, each time from what it adds after that."""


def n_added(n_steps: int, kept: float) -> float:
    """How often what a step adds is in the sum after `n_steps`, of which each keeps a share.

    That is 1 + kept + kept^2 + ... + kept^(n_steps - 1), which this is not below.
    """
    return min(float(n_steps), 1 / (1 - kept) if kept < 1.0 else inf)


STEPS_ONE_BY_ONE = 100
"""The last steps of a trajectory, or all of a short one, are followed singly: it is tighter."""


MOST_ROUNDS = 1000
"""The most propagations for one trajectory; one that needs more is bounded by the box alone."""


def after_steps(
    error_after: Callable[[float], float],
    n_steps: int,
    box: float,
    widest: float,
    kept: float = 1.0,
) -> float:
    """The error after `n_steps` steps from 0, which never falls from step to step.

    A step leaves more of a larger error. If it leaves no more of a level 5% higher than that level,
    no later error is beyond it. Otherwise slow growth is followed many steps at a time: a step
    keeps at least a share of `kept`, and adds more to a larger error. So all steps up to the level
    add at most what a step from the level adds, and what it does not keep of the rest. This is not
    so where it cuts: no two weights in the box are farther than 2 box apart, and of what is kept
    of them no more than that share. At and beyond it, nothing is known of smaller errors.
    """
    error, left = 0.0, n_steps
    for _ in range(MOST_ROUNDS):
        if left <= 0 or error >= widest:
            return min(error, widest)
        level = 1.05 * error
        after = error_after(level) if left > STEPS_ONE_BY_ONE else inf
        is_cut = after >= 2 * box * kept
        gain = inf if is_cut else max(after - level, 0.0) + (1 - kept) * (level - error)
        if after <= level and gain > 0.0:
            return min(level, widest)
        jump = min(left, int((level - error) / gain)) if gain > 0.0 else left
        error = error + jump * gain if jump > 1 else max(error, error_after(error))
        left -= max(jump, 1)
    return widest


MOST_STEPS = 100
"""The steps that are followed one by one; of later ones no more is known than their sizes."""

SLACK = 1 + 2.0**-10
"""How much more than the guess is allowed, so that rounding does not spoil it."""


@dataclass(frozen=True)
class Trained:
    """Bounds on every weight and on all that is remembered: sizes, errors, drifts of copies."""

    sizes: Parameters
    error: Parameters
    drift: Parameters

    @classmethod
    def exactly(cls, sizes: Parameters, drift: Parameters) -> Trained:
        """Numbers of these sizes without an error, whose copies may lie `drift` apart."""
        return cls(sizes, torch.zeros_like(sizes), drift)


AfterStep = Callable[[Trained, int], Trained]
"""What is trained after a step of this number, from what is trained before it."""


@dataclass(frozen=True)
class StateBound:
    """The bounds of a run whose `ends` are steps that differ: the last of each kind.

    `is_state` tells which numbers are remembered. All others are clipped to a box. `kept` is the
    least share of every number that a step keeps.
    """

    after_step: AfterStep
    is_state: Tensor
    kept: Tensor
    ends: Sequence[int]
    n_steps: int

    def domain(self, reach: float) -> DomainBound:
        """The bounds, if weights are at most `reach` at the start and nothing is remembered."""
        weights = torch.full(self.is_state.shape, reach, dtype=torch.float64)
        sizes = weights.masked_fill(self.is_state, 0.0)
        before = Trained.exactly(sizes, torch.zeros_like(sizes))
        last, worst = before, 0.0
        for step in range(min(self.n_steps, MOST_STEPS)):
            last, before = before, self._after(before, step)
            worst = max(worst, float(before.error.nan_to_num(nan=inf, posinf=inf).max()))
        if self.n_steps > MOST_STEPS:
            last = self._later(last, before)
            worst = 2 * float(last.sizes.max())  # nothing else is known
        return self._bound(last, worst)

    def _after(self, before: Trained, step: int) -> Trained:
        """What is trained after a step; sizes and drifts never fall."""
        after = self.after_step(before, step)
        sizes, drift = before.sizes, before.drift
        return Trained(
            torch.maximum(sizes, after.sizes), after.error, torch.maximum(drift, after.drift)
        )

    def _bound(self, before: Trained, trajectory: float) -> DomainBound:
        """The bound of any step, of which the last one starts from the largest numbers."""
        exact = Trained.exactly(before.sizes, before.drift)
        steps = [self.after_step(exact, end) for end in self.ends]
        if not all(bool(part.isfinite().all()) for after in steps for part in vars(after).values()):
            return DomainBound(inf, inf)
        weights = ~self.is_state
        drift = max(float(after.drift.max()) for after in steps)
        return DomainBound(
            step=max(float(after.error.max()) for after in steps),
            trajectory=trajectory,
            reach=max(float(after.sizes[..., weights].max()) for after in steps),
            drift=max(drift, float(before.drift.max())),
        )

    def _later(self, before: Trained, after: Trained) -> Trained:
        """Sizes that no later step leaves, and the drift before the last one; or infinity.

        It is assumed that every step adds to what it keeps of the drift what the last one does,
        which is then checked, and once more with what a step was found to add. What a step adds
        is counted from the drift that is known, of which a part is lost again in every step.
        """
        sizes, added = self._limit(before, after), after.drift - before.drift
        ends = [end for end in self.ends if end >= MOST_STEPS] or self.ends
        times = (1 / (1 - self.kept)).clamp(max=self.n_steps - MOST_STEPS)
        for _ in range(GUESSES):
            drift = after.drift + times * SLACK * added
            exact = Trained.exactly(sizes, drift)
            found = [self.after_step(exact, end) for end in ends]
            if not all(bool((part.sizes <= sizes).all()) for part in found):
                break
            lost = (1 - self.kept) * after.drift
            most = torch.stack([part.drift - self.kept * drift - lost for part in found]).amax(0)
            if bool((most <= SLACK * added).all()):
                return exact
            added = torch.maximum(added, SLACK * most)
        return Trained.exactly(torch.full_like(sizes, inf), after.drift)

    def _limit(self, before: Trained, after: Trained) -> Parameters:
        """The sum of the geometric series that the last growth and the next one begin.

        Weights are clipped, and grow by rounding alone.
        """
        following = self._after(after, self.ends[-1]).sizes
        first, second = after.sizes - before.sizes, following - after.sizes
        ratio = torch.where(first > 0, second / first, 0.0)
        sum_of_all = SLACK * (after.sizes + second / (1 - ratio).clamp(min=0.0))
        return torch.where(self.is_state, sum_of_all, (1 + 2.0**-40) * following)


def of_table(program: StackProgram, how: Arithmetic, real: Predictions) -> Predictions:
    """A prediction that is looked up is between the least and the largest in the table.

    A weight between two levels may be looked up anywhere, so that no more is known.
    """
    parts = (part for part in program.prediction[-1].instructions if isinstance(part, MapSlots))
    tables = [program.relu_sum(term.function) for part in parts for term in part.summands]
    if len(tables) != 1:
        raise ProgramError(f"The prediction looks up {len(tables)} tables, expected one.")
    table = tables[0]
    answers, reach = table.intercepts()[::2], max(abs(table.low), abs(table.high))
    rounding = how.function(table, 1, torch.full_like(real, reach), n_copies=1)
    return torch.maximum(real - min(answers), max(answers) - real) + rounding


def near_weights(weights: Parameters, error: Tensor) -> Enclosure:
    """The weights of real training, and those of a run that are off by at most `error`."""
    exact = weights.double()
    return Enclosure.around(Interval.point(exact), error.double().expand_as(exact).contiguous())


def at_end(bounds: Tensor) -> Tensor:
    """The bound after the last step, 0 if there is none, for every weight of a task."""
    return bounds[..., -1:] if bounds.shape[-1] else torch.zeros_like(bounds.sum(-1, keepdim=True))


def prediction_errors(
    problem: Problem, task: Task, predictions: Predictions, real: History
) -> Predictions:
    """How far a run's predictions are from those of real training."""
    return (predictions.double() - problem.oracle.predict(task, real[..., -1, :])).abs()
