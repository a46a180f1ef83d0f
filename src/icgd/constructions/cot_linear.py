r"""cot-ridge, cot-lasso, cot-glm: a few layers train a linear model (cot, Theorems 3.1 to 3.3).

Every column holds [x_i; y_i; w; b; 1]. The block copies the data and replaces the coefficients by
one step of (proximal) gradient descent; it is shown the newest block alone, and used again.

    grid        mean_i = mu(<w, x_i> + b) in every column, and w -= step_size * l2 * w
    attention   w -= step_size * share * sum_i (mean_i - y_i) x_i, and b likewise
    MLP         the soft threshold at step_size * l1, and the box

The head of the mean reads tokens that a linear map makes from the first column, one for each label
that the model thinks possible (`approximation/grid_mean.py`): what softmax attention to them
returns is the expected label. The share of an example is 1 / n or 1, and stands in the prompt, so
that one transformer serves prompts of every length. The paper takes a head of its own for each
example, and O(L^4) of them for L steps.

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
from functools import cached_property
from math import ceil, inf, log2
from typing import ClassVar

from icgd.approximation.grid_mean import mean_of_link
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction, require_few_steps
from icgd.constructions.network import ROUNDING_ROOM
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.problems.steps import ProximalStep
from icgd.program import instructions as verbs
from icgd.program.functions import GridMean
from icgd.program.instructions import IS_EXAMPLE, IS_QUERY, N_TOKENS, ONE, TOKENS_PER_EXAMPLE
from icgd.program.layout import Layout, Role, Slot
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
class AbstractCotLinear(AbstractConstruction):
    """One block of three layers a step. Subclasses say which models they train."""

    target: ClassVar[type] = LinearModel

    def objection(self, problem: Problem) -> str | None:
        update = problem.proximal_step
        if update.step_size is None:
            return (
                "its weights hold the step size; give one, or take icgd.sized_problem(problem, X), "
                "which chooses it from the curvature of the data."
            )
        if update.box is None:
            return "its heads read grids that cover what a box allows; give ProximalStep(box=...)."
        if update.step_size < 1 / FARTHEST:
            return (
                f"step_size={update.step_size:g} is so small that float64 rounds it by much when "
                f"it is shared among examples; give at least {1 / FARTHEST:.2g}."
            )
        farthest = max(score_reach(problem), problem.domain.y)
        if not farthest < FARTHEST:
            return (
                f"its heads compare all scores and labels, which reach {farthest:g} here, too far "
                "for float64; give a smaller box or domain, or Domain(score=...)."
            )
        if not score_reach(problem) > 1 / FARTHEST:
            return (
                f"its heads read grids that cover all scores, which reach {score_reach(problem):g} "
                "here, too little for float64; give a larger box or domain."
            )
        return self.other_model(problem.model, update)

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        """Why it does not train such a model, or None.

        Args:
            model: the linear model.
            update: its update.

        Returns:
            The reason or None.

        Example:
            >>> import icgd
            >>> icgd.CotRidge().other_model(icgd.LinearModel(2, "logistic"), icgd.ProximalStep())
            'it fits least squares, not the logistic link.'
        """
        return None

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        builder, update = _Builder(problem), problem.proximal_step
        update.require_steps(n_steps)
        require_few_steps(update, n_steps, MOST_DIFFERENT)
        alike = update.is_constant or n_steps == 0
        steps = range(1) if alike else range(n_steps)
        return StackProgram(
            construction=self.name,
            layout=builder.layout(),
            functions=(builder.mean, fit_relu_sum(IDENTITY_FUNCTION, -builder.gate, builder.gate)),
            block=tuple(layer for step in steps for layer in builder.step(step)),
            n_steps=n_steps,
            steps_per_block=1 if alike else n_steps,
            prediction=(
                Layer("expected label", (builder.predict(IS_QUERY),)),
                Layer("copy prediction", builder.copy_prediction()),
            ),
        )


class CotRidge(AbstractCotLinear):
    """Least squares, with an l2 penalty or none. It has no settings.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.CotRidge(), n_steps=4).summary().layers_per_step
        3
    """

    name: ClassVar[str] = "cot-ridge"

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        if model.link != "identity":
            return f"it fits least squares, not the {model.link} link."
        return "its penalty is l2, and l1 needs a soft threshold." if update.l1 else None


class CotLasso(AbstractCotLinear):
    """Least squares, with an l1 penalty, an l2 penalty, or both. It has no settings.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, l1=0.1, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.CotLasso(), n_steps=4).program.construction
        'cot-lasso'
    """

    name: ClassVar[str] = "cot-lasso"

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        return None if model.link == "identity" else "it fits least squares, not other links."


class CotGlm(AbstractCotLinear):
    """Any link, with any penalty. It has no settings.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2, "logistic"), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.CotGlm(), n_steps=4).program.construction
        'cot-glm'
    """

    name: ClassVar[str] = "cot-glm"


def score_reach(problem: Problem) -> float:
    """Largest score that a program covers: what box and domain allow, or `domain.score`."""
    model, domain = problem.model, problem.domain
    reach = (problem.box or inf) * problem.proximal_step.overshoot
    allowed = reach * (model.input_width * domain.x + model.intercept)
    return ROUNDING_ROOM * min(allowed, domain.score or inf)


@dataclass(frozen=True)
class _Builder:
    """The layers of one problem, whose step size and box are given."""

    problem: Problem

    @property
    def model(self) -> LinearModel:
        return self.problem.model

    @property
    def step_size(self) -> float:
        return self.problem.proximal_step.step_size or 1.0

    @property
    def box(self) -> float:
        return self.problem.box or inf

    @property
    def reach(self) -> float:
        return score_reach(self.problem)

    @property
    def weights(self) -> tuple[str, ...]:
        return (COEFFICIENTS, INTERCEPT)[: 1 + self.model.intercept]

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x", ONE)[: 1 + self.model.intercept]

    @property
    def velocities(self) -> tuple[str, ...]:
        """The slots of the last changes, if there is momentum."""
        has_momentum = self.problem.proximal_step.momentum is not None
        return tuple(f"velocity_{name}" for name in self.weights if has_momentum)

    @cached_property
    def mean(self) -> GridMean:
        """The expected label."""
        return mean_of_link(self.model.link, self.reach)

    @property
    def gate(self) -> float:
        """A power of two, larger than any mean of the head's values and any label together."""
        largest = max(map(abs, self.mean.values)) + ROUNDING_ROOM * self.problem.domain.y
        return 2.0 ** (1 + max(0, ceil(log2(1 + largest))))

    def step(self, step: int) -> tuple[Layer, ...]:
        """The layers of a step, counted from 0."""
        return (
            Layer("expected labels", (self.look(step), *self.move(step))),
            Layer("gradient step", (self.descend(),)),
            Layer("penalty", self.shrink()),
        )

    def layout(self) -> Layout:
        width = self.model.input_width
        shapes = ((1, width), (1, 1))
        constants = (ONE, IS_EXAMPLE, IS_QUERY, TOKENS[self.model.reduction])
        return Layout(
            (
                Slot("x", (width,), Role.INPUT),
                Slot("y", (1,), Role.LABEL),
                Slot(COEFFICIENTS, (1, width), Role.PARAMETER),
                *(Slot(INTERCEPT, (1, 1), Role.PARAMETER) for _ in self.weights[1:]),
                *(
                    Slot(name, shape, Role.VELOCITY)
                    for name, shape in zip(self.velocities, shapes, strict=False)
                ),
                Slot(MEAN, (1,), Role.SCRATCH),
                *(Slot(name, (1,), Role.CONSTANT) for name in constants),
            )
        )

    def descend(self) -> DescendExamples:
        tokens, scale = TOKENS[self.model.reduction], -self.step_size
        moved = (*self.weights, *self.velocities)
        inputs = self.inputs * (1 + bool(self.velocities))
        return DescendExamples(MEAN, "y", inputs, moved, tokens, self.gate, scale)

    def move(self, step: int) -> tuple[verbs.Instruction, ...]:
        """The decay of an l2 penalty, and what momentum keeps of the last change."""
        update = self.problem.proximal_step
        rate = self.step_size * update.l2
        if not self.velocities:
            return (DecaySlot(COEFFICIENTS, -rate),) if rate else ()
        kept = (update.momentum_of(step), update.lookahead_of(step))
        slots = zip(self.weights, self.velocities, (rate, 0.0), strict=False)
        return tuple(MoveByVelocity(slot, kept_in, *kept, decay) for slot, kept_in, decay in slots)

    def shrink(self) -> tuple[verbs.Instruction, ...]:
        """The soft threshold of the coefficients, if there is one, and the box for all others."""
        l1, clipped = self.problem.proximal_step.l1, self.weights[1:]
        steps: list[verbs.Instruction] = []
        if self.velocities:
            slots = zip(self.weights, self.velocities, (self.step_size * l1, 0.0), strict=False)
            steps += [ShrinkMoved(slot, kept, by, self.box) for slot, kept, by in slots]
            return (*steps, verbs.WipeSlots((MEAN,)))
        if l1:
            steps.append(ShrinkSlot(COEFFICIENTS, self.step_size * l1, self.box))
        else:
            clipped = self.weights
        if clipped:
            steps.append(verbs.ClipSlots(clipped, self.box, ONE))
        return (*steps, verbs.WipeSlots((MEAN,)))

    def look(self, step: int) -> PredictMean:
        """The mean of the examples, at the weights or as far ahead of them as Nesterov looks."""
        plain = self.predict(IS_EXAMPLE)
        ahead = self.problem.proximal_step.lookahead_of(step)
        if not ahead:
            return plain
        weights, inputs = (*self.weights, *self.velocities), self.inputs * 2
        factors = (1.0,) * len(self.weights) + (ahead,) * len(self.weights)
        return replace(plain, weights=weights, inputs=inputs, factors=factors)

    def predict(self, checked: str) -> PredictMean:
        return PredictMean(self.model.link, self.weights, self.inputs, self.reach, checked, MEAN)

    def copy_prediction(self) -> tuple[verbs.Instruction, ...]:
        copied = verbs.Summand(verbs.Combination.of(MEAN), IDENTITY_FUNCTION.name)
        copy = verbs.MapSlots((copied,), IS_QUERY, (IS_EXAMPLE,), self.gate, "y")
        return (copy, verbs.WipeSlots((MEAN,)))
