r"""cot-ridge, cot-lasso, cot-glm: one block trains a linear model (cot, Theorems 3.1 to 3.3).

Every column holds [x_i; y_i; w; b; 1]. The block copies the data and replaces the coefficients by
one step of (proximal) gradient descent; it is shown the newest block alone, and used again.

    attention   w -= step_size * (scale * sum_i (mu(<w, x_i> + b) - y_i) x_i + l2 * w)
    MLP         the soft threshold at step_size * l1, and the box

The heads of example i read tokens that a linear map along the sequence makes from its column, one
for each label that the model thinks possible (`approximation/grid_mean.py`): mu(<w, x_i>) x_i is
what softmax attention to them returns. Least squares takes one head an example, other links two,
the second for y_i x_i, and l2 one more. The paper takes O(L^4) heads for L steps.

A prediction mu(<w, x>) is one more head, in which the query holds x and the tokens hold w.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log2
from typing import ClassVar

from icgd.approximation.grid_mean import line, mean_of_link
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.parts.ranges import ROUNDING_ROOM
from icgd.errors import SettingError
from icgd.problems.activations import IDENTITY
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.settings import count
from icgd.program.functions import GridMean
from icgd.program.grid_instructions import LABEL, DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import (
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    ClipSlots,
    Combination,
    Instruction,
    MapSlots,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer, StackProgram

COEFFICIENTS, INTERCEPT, MEAN = "w", "b", "mean"
"""Slots of the coefficients, of the intercept, and of the expected label."""


@dataclass(frozen=True)
class AbstractCotLinear(AbstractConstruction):
    """One block of attention and an MLP a step. Subclasses say which models they train."""

    n_examples: int | None = None

    target: ClassVar[type] = LinearModel

    def __post_init__(self) -> None:
        if self.n_examples is not None:
            count("n_examples", self.n_examples)

    def objection(self, problem: Problem) -> str | None:
        update = problem.proximal_step
        if update.step_size is None:
            return (
                "its weights hold the step size; give one, or take icgd.sized_problem(problem, X), "
                "which chooses it from the curvature of the data."
            )
        if update.box is None:
            return "its heads read grids that cover what a box allows; give ProximalStep(box=...)."
        return self.other_model(problem.model, update)

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        """Why it does not train such a model, or None."""
        return None

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        if self.n_examples is None:
            raise SettingError.needs_examples(self.name)
        builder = _Builder.of(problem, self.n_examples)
        return StackProgram(
            construction=self.name,
            layout=builder.layout(),
            functions=(*builder.means(), fit_relu_sum(IDENTITY, -builder.gate, builder.gate)),
            block=(
                Layer("gradient step", (builder.descend(),)),
                Layer("penalty", builder.shrink()),
            ),
            n_steps=n_steps,
            prediction=(
                Layer("expected label", (builder.predict(),)),
                Layer("copy prediction", builder.copy_prediction()),
            ),
        )


class CotRidge(AbstractCotLinear):
    """Least squares, with an l2 penalty or none."""

    name: ClassVar[str] = "cot-ridge"

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        if model.link != "identity":
            return f"it fits least squares, not the {model.link} link."
        return "its penalty is l2, and l1 needs a soft threshold." if update.l1 else None


class CotLasso(AbstractCotLinear):
    """Least squares, with an l1 penalty, an l2 penalty, or both."""

    name: ClassVar[str] = "cot-lasso"

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        return None if model.link == "identity" else "it fits least squares, not other links."


class CotGlm(AbstractCotLinear):
    """Any link, with any penalty."""

    name: ClassVar[str] = "cot-glm"


def score_reach(problem: Problem) -> float:
    """Largest score that a program covers: what box and domain allow, or `domain.score`."""
    model, domain = problem.model, problem.domain
    allowed = (problem.box or inf) * (model.input_width * domain.x + model.intercept)
    return ROUNDING_ROOM * min(allowed, domain.score or inf)


@dataclass(frozen=True)
class _Builder:
    """The numbers that the layers are made from."""

    model: LinearModel
    step_size: float
    l2: float
    l1: float
    box: float
    reach: float
    label_reach: float
    n_examples: int

    @classmethod
    def of(cls, problem: Problem, n_examples: int) -> _Builder:
        update = problem.proximal_step
        return cls(
            model=problem.model,
            step_size=update.step_size or 1.0,
            l2=update.l2,
            l1=update.l1,
            box=update.box or inf,
            reach=score_reach(problem),
            label_reach=ROUNDING_ROOM * problem.domain.y,
            n_examples=n_examples,
        )

    @property
    def joins_label(self) -> bool:
        return self.model.link == "identity"

    @property
    def weights(self) -> tuple[str, ...]:
        return (COEFFICIENTS, INTERCEPT)[: 1 + self.model.intercept]

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x", ONE)[: 1 + self.model.intercept]

    def means(self) -> tuple[GridMean, ...]:
        """What heads return: the expected label, and a label itself."""
        if self.joins_label:
            return (mean_of_link(self.model.link, self.reach + self.label_reach),)
        return (mean_of_link(self.model.link, self.reach), line(LABEL, self.label_reach))

    @property
    def gate(self) -> float:
        """A power of two, larger than any expected label."""
        return 2.0 ** (1 + max(0, ceil(log2(1 + self.means()[0].size))))

    def layout(self) -> Layout:
        width = self.model.input_width
        constants = (ONE, IS_EXAMPLE, IS_QUERY)
        return Layout(
            (
                Slot("x", (width,), Role.INPUT),
                Slot("y", (1,), Role.LABEL),
                Slot(COEFFICIENTS, (1, width), Role.PARAMETER),
                *(Slot(INTERCEPT, (1, 1), Role.PARAMETER) for _ in self.weights[1:]),
                Slot(MEAN, (1,), Role.SCRATCH),
                *(Slot(name, (1,), Role.CONSTANT) for name in constants),
            )
        )

    def descend(self) -> DescendExamples:
        return DescendExamples(
            mean=self.model.link,
            weights=self.weights,
            inputs=self.inputs,
            label="y",
            scale=-self.step_size * self.model.loss_scale(self.n_examples),
            decay=-self.step_size * self.l2,
            reach=self.reach,
            n_examples=self.n_examples,
            joins_label=self.joins_label,
        )

    def shrink(self) -> tuple[Instruction, ...]:
        if not self.l1:
            return (ClipSlots(self.weights, self.box, ONE),)
        shrink = ShrinkSlot(COEFFICIENTS, self.step_size * self.l1, self.box)
        others = self.weights[1:]
        return (shrink, ClipSlots(others, self.box, ONE)) if others else (shrink,)

    def predict(self) -> PredictMean:
        return PredictMean(self.model.link, self.weights, self.inputs, self.reach, MEAN)

    def copy_prediction(self) -> tuple[Instruction, ...]:
        copied = Summand(Combination.of(MEAN), IDENTITY.name)
        copy = MapSlots((copied,), IS_QUERY, (IS_EXAMPLE,), self.gate, "y")
        return (copy, WipeSlots((MEAN,)))
