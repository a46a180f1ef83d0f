r"""Bound (c): the closed form of wu's Theorem 1 in its worst-case constants, repaired.

With K the largest width, P = sqrt(K) and B_v = box P, which bounds rows and columns:

    R_j  = B_v P B_{j-1},  B_0 = |x|,  B_j = max_{|t| <= R_j} |r| + eps_r,  B_r = max_{j<N} B_j
    B_r' = max |r'| + eps_r',   B_u = max |u| + eps_u
    E_r  = P sum_{l<N} (P L_r B_v)^l                         |p error|_2  <= E_r eps_r
    d_r' = eps_r' + L_r' B_v E_r eps_r,   d_u = eps_u + L_u E_r eps_r
    b    = B_r' B_v P,   B_s = max_{m<N} b^m B_r' B_u        |s|          <= B_s
    E_s  = max_{m<N} d_r' P B_v B_s sum_{l<m} b^l + b^m (B_u d_r' + B_r' d_u)
    step = step_size (N / 2) P (E_s P B_r + B_s E_r eps_r)

Repairs to the printed chain: B_r^j lacks sqrt(K), because it bounds entries and not the norm;
r' is evaluated at v . p, not at its own bound; V^T s needs column norms; r' and u enter with
their approximations' bounds; the last line has sqrt(P) for P. The rounding that bound (a) finds is
added to this.

Of a table of steps it is wu's Lemma 16, with the Lipschitz constant of the step. A token holds d
numbers, each in an interval of length B or less, and `levels` levels cover it. Then a step that is
looked up for n examples is off by at most

    Lip (8 sqrt(d n) + sqrt(n)) B / (2 levels).

Lip is taken over all d n numbers of the prompt, in the Euclidean norm, where a change of the
weight counts n times, once for every token that holds it. With the step g and its summands
f = r'(w x) u(r(w x), y) x,

    Lip^2 = max [ n (step_size / 2n)^2 (f_x^2 + f_y^2) + (1 - step_size f_w / 2)^2 / n ],

which intervals bound on a division of the domain into cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import torch

from icgd.certificates.intervals import Interval
from icgd.errors import ProgramError
from icgd.problems.activations import Activation
from icgd.problems.functions import ScalarFunction
from icgd.problems.problem import Problem
from icgd.program.instructions import IDENTITY
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram

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
