r"""linear-stack: a few layers train a linear model, on any number of examples.

Every column holds [x_i; y_i; w; b; 1]. The block copies the data and replaces the coefficients by
one step of (proximal) gradient descent; it is shown the newest block alone, and used again.

    grid        mean_i = mu(<w, x_i> + b) in every column, and w -= step_size * l2 * w
    attention   w -= step_size * share * sum_i (mean_i - y_i) x_i, and b likewise
    MLP         the soft threshold at step_size * l1, and the box

The head of the mean reads tokens that a linear map makes from the first column, one for each label
that the model thinks possible (`approximation/lattice.py`): what softmax attention to them
returns is the expected label. The share of an example is 1 / n or 1, and stands in the prompt, so
that one transformer serves prompts of every length. cot's Theorems 3.1 to 3.3 descend the same
risks by one layer, with a head of its own for each example.

A prediction mu(<w, x>) is the head of the mean once more, at the queries.

Momentum m takes slots v of what w and b changed by in the last step, and no layer more:

    grid        mean_i = mu(<w, x_i> + b), for Nesterov's at w + m v; by one head more
                v = m v - step_size * l2 * w, for Nesterov's at w + m v, and w += v
    attention   adds to w and v alike
    MLP         the soft threshold and the box, for w and v alike

so that v is again what the step changed. Momenta that differ, as FISTA's do, give every step
weights of its own in the first layer; equal ones keep one block for all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log2
from typing import ClassVar

from icgd.approximation.lattice import mean_of_link
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction, require_few_steps
from icgd.constructions.network import ROUNDING_ROOM
from icgd.problems.functions import IDENTITY_FUNCTION
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.program.instructions import (
    ClipSlots,
    Combination,
    Instruction,
    MapSlots,
    Summand,
    WipeSlots,
)
from icgd.program.layout import (
    IS_EXAMPLE,
    IS_QUERY,
    N_TOKENS,
    ONE,
    TOKENS_PER_EXAMPLE,
    Layout,
    Role,
    Slot,
)
from icgd.program.linear_instructions import (
    DecaySlot,
    DescendExamples,
    MoveByVelocity,
    PredictMean,
    ShrinkMoved,
    ShrinkSlot,
)
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

FARTHEST = 2.0**1000
"""Scores beyond this leave no room for the numbers that heads compare them with; those below its
reciprocal, and such step sizes, have few digits."""

MOST_DIFFERENT = 3 * 10**4
"""The most steps that differ from each other; the layers of more take minutes and gigabytes."""

COEFFICIENTS, INTERCEPT, MEAN = "w", "b", "mean"
"""Slots of the coefficients, of the intercept, and of the expected label."""

TOKENS = {"mean": TOKENS_PER_EXAMPLE, "sum": N_TOKENS}
"""For each reduction of the loss, the slot that holds n_tokens times the share of an example."""


@dataclass(frozen=True)
class LinearStack(AbstractConstruction):
    """One block of three layers a step, for every link and any penalty. It has no settings.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2, "logistic"), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.LinearStack(), n_steps=4).summary().layers_per_step
        3
    """

    name: ClassVar[str] = "linear-stack"
    target: ClassVar[type] = LinearModel

    def objection(self, problem: Problem) -> str | None:
        if problem.proximal_step.step_size is not None and problem.box is None:
            return "its heads read grids that cover what a box allows; give ProximalStep(box=...)."
        return numbers_objection(problem)

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        model, update, box = problem.model, problem.proximal_step, problem.box or inf
        update.require_steps(n_steps)
        require_few_steps(update, n_steps, MOST_DIFFERENT)
        step_size, reach = update.step_size or 1.0, score_reach(problem)
        width, tokens = model.input_width, TOKENS[model.reduction]
        n_weights = 1 + model.intercept
        weights, inputs = (COEFFICIENTS, INTERCEPT)[:n_weights], ("x", ONE)[:n_weights]
        shapes = ((1, width), (1, 1))[:n_weights]
        has_momentum = update.momentum is not None
        velocities = tuple(f"velocity_{name}" for name in weights if has_momentum)
        # A power of two, larger than any mean of the head's values and any label together.
        mean = mean_of_link(model.link, reach)
        largest = max(map(abs, mean.values)) + ROUNDING_ROOM * problem.domain.y
        gate = 2.0 ** (1 + max(0, ceil(log2(1 + largest))))

        # The soft threshold of the coefficients, if there is one, and the box for all others.
        shrinks: list[Instruction] = []
        threshold, decay = step_size * update.l1, step_size * update.l2
        if has_momentum:
            pairs = zip(weights, velocities, (threshold, 0.0), strict=False)
            shrinks += [ShrinkMoved(slot, velocity, by, box) for slot, velocity, by in pairs]
        else:
            if update.l1:
                shrinks.append(ShrinkSlot(COEFFICIENTS, threshold, box))
            if clipped := weights[1:] if update.l1 else weights:
                shrinks.append(ClipSlots(clipped, box, ONE))
        moved = (*weights, *velocities)
        read = inputs * (1 + has_momentum)
        descend = DescendExamples(MEAN, "y", read, moved, tokens, gate, -step_size)
        wipe = WipeSlots((MEAN,))

        def step_layers(step: int) -> list[Layer]:
            """Return the layers of a step, counted from 0."""
            look = PredictMean(model.link, weights, inputs, reach, IS_EXAMPLE, MEAN)
            momentum, ahead = update.momentum_of(step), update.lookahead_of(step)
            if ahead:  # Nesterov's mean, ahead of the weights
                factors = (1.0,) * n_weights + (ahead,) * n_weights
                look = replace(look, weights=moved, inputs=read, factors=factors)
            # The decay of an l2 penalty, and what momentum keeps of the last change.
            moves: list[Instruction] = []
            if has_momentum:
                pairs = zip(weights, velocities, (decay, 0.0), strict=False)
                moves += [
                    MoveByVelocity(slot, velocity, momentum, ahead, by)
                    for slot, velocity, by in pairs
                ]
            elif decay:
                moves.append(DecaySlot(COEFFICIENTS, -decay))
            return [
                Layer("expected labels", (look, *moves)),
                Layer("gradient step", (descend,)),
                Layer("penalty", (*shrinks, wipe)),
            ]

        predict = PredictMean(model.link, weights, inputs, reach, IS_QUERY, MEAN)
        copied = Summand(Combination.of(MEAN), IDENTITY_FUNCTION.name)
        copy = MapSlots((copied,), IS_QUERY, (IS_EXAMPLE,), gate, "y")
        constants = (ONE, IS_EXAMPLE, IS_QUERY, tokens)
        layout = Layout(
            (
                Slot("x", (width,), Role.INPUT),
                Slot("y", (1,), Role.LABEL),
                *(Slot(*slot, Role.PARAMETER) for slot in zip(weights, shapes, strict=True)),
                *(Slot(*slot, Role.VELOCITY) for slot in zip(velocities, shapes, strict=False)),
                Slot(MEAN, (1,), Role.SCRATCH),
                *(Slot(name, (1,), Role.CONSTANT) for name in constants),
            )
        )
        alike = update.is_constant or n_steps == 0
        steps = range(1) if alike else range(n_steps)
        return StackProgram(
            construction=self.name,
            layout=layout,
            functions=(mean, fit_relu_sum(IDENTITY_FUNCTION, -gate, gate)),
            block=tuple(layer for step in steps for layer in step_layers(step)),
            n_steps=n_steps,
            steps_per_block=1 if alike else n_steps,
            prediction=(
                Layer("expected label", (predict,)),
                Layer("copy prediction", (copy, wipe)),
            ),
        )


def numbers_objection(problem: Problem) -> str | None:
    """Return what is wrong with the numbers that heads would hold, or None."""
    update, reach = problem.proximal_step, score_reach(problem)
    if update.step_size is None:
        return (
            "its weights hold the step size; give one, or take icgd.sized_problem(problem, X), "
            "which chooses it from the curvature of the data."
        )
    if update.step_size < 1 / FARTHEST:
        return (
            f"step_size={update.step_size:g} is so small that float64 rounds it by much when "
            f"it is shared among examples; give at least {1 / FARTHEST:.2g}."
        )
    if not (farthest := max(reach, problem.domain.y)) < FARTHEST:
        return (
            f"its heads compare all scores and labels, which reach {farthest:g} here, too far "
            "for float64; give a smaller box or domain, or Domain(score=...)."
        )
    if not reach > 1 / FARTHEST:
        return (
            f"its heads read grids that cover all scores, which reach {reach:g} "
            "here, too little for float64; give a larger box or domain."
        )
    return None


def score_reach(problem: Problem) -> float:
    """Return the largest score that a program covers: what box and domain allow it to be."""
    model, domain = problem.model, problem.domain
    reach = (problem.box or inf) * problem.proximal_step.overshoot
    allowed = reach * (model.input_width * domain.x + model.intercept)
    return ROUNDING_ROOM * min(allowed, domain.score or inf)
