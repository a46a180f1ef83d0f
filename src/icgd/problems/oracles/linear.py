r"""(Proximal) gradient descent on a linear model, exactly and in float64.

    g  = scale * sum_i (mu(<w, x_i>) - y_i) x_i
    w <- S(w - step_size * (g + l2 * w)),    S(v) = relu(v - c) - relu(-v - c),  c = step_size * l1

and clipped, if there is a box: that is the proximal step of the penalty within it. With momentum m,
w + m (w - w_before) takes the place of the first w; with Nesterov's g is taken there too. The
intercept is the coefficient of a constant input 1; l2 and c are 0 for it. A step costs O(n d) a
task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import BoxWarning, SettingError, brief
from icgd.problems.data import Task
from icgd.problems.linear_model import LinearModel, require_labels
from icgd.problems.oracles.oracle import (
    AbstractOracle,
    ExactStep,
    ResumedStep,
    Shapes,
    overflowed,
    stepped,
    trained,
)
from icgd.problems.separable import require_minimiser
from icgd.problems.settings import count, positive
from icgd.problems.spectrum import step_size
from icgd.problems.steps import ProximalStep
from icgd.shapes import History, Inputs, Labels, Parameters, Predictions

MATCHING = "matching"
"""The loss of a linear model: the one that its link matches."""

INTERCEPT = "(intercept)"
"""What the coefficient of no input is called; no input is likely to have that name."""


def soft_threshold(values: Tensor, threshold: Tensor) -> Tensor:
    """Move every value towards 0 by its threshold, and no further."""
    return torch.relu(values - threshold) - torch.relu(-values - threshold)


@dataclass(frozen=True)
class Descent:
    """Where a run stopped, after how many steps, and the largest change of its last step."""

    weights: Parameters
    n_steps: int
    last_change: float
    converged: bool


@dataclass(frozen=True)
class LinearOracle(AbstractOracle):
    """w <- clip(S(w - step_size * (grad L(w) + l2 * w)), -box, box), S the soft threshold."""

    target: LinearModel
    update: ProximalStep

    def __post_init__(self) -> None:
        if self.loss != MATCHING:
            raise SettingError(
                f"loss of a linear model must be {MATCHING!r}, got {brief(self.loss)}."
            )
        if self.domain.rate is not None:
            raise SettingError("domain.rate has no effect without a network; leave it out.")

    @property
    def weight_shapes(self) -> Shapes:
        return ((1, self.target.input_width), *(((1, 1),) if self.target.intercept else ()))

    def require_labels(self, y: Labels) -> None:
        require_labels(self.target.link_function, y)

    def own_start(self, batch: tuple[int, ...], seed: int | None) -> Parameters:
        return self.target.initial_parameters(batch)

    def scores(self, weights: Parameters, x: Inputs) -> Labels:
        """<w, x>, with the intercept."""
        return self.target.design(x) @ weights.double().unsqueeze(-1)

    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Return the expected labels mu(<w, x>)."""
        return self.target.link_function.mean(self.scores(weights, task.queries))

    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """L(w): the sum or mean of a(z_i) - y_i z_i."""
        scores = self.scores(weights, task.x)
        losses = self.target.link_function.loss(scores, task.y.double())
        return self.target.loss_scale(task.n_examples) * losses.sum((-2, -1))

    @property
    def loss_in_words(self) -> str:
        link = f"the loss that matches the {self.target.link} link"
        formula = f", {self.unusual_loss}" if self.unusual_loss else ""
        return f"{self.target.reduction} over all examples of {link}{formula}"

    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return the coefficients, and the intercept if there is one."""
        width = self.target.input_width
        found = {"coefficients": weights[..., :width]}
        return found | ({"intercept": weights[..., width]} if self.target.intercept else {})

    def objective(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """L(w) + (l2 / 2) |w|_2^2 + l1 |w|_1."""
        penalised = weights.double() * self.target.penalised(weights.double())
        ridge, lasso = penalised.square().sum(-1) / 2, penalised.abs().sum(-1)
        return self.risk(task, weights) + self.update.l2 * ridge + self.update.l1 * lasso

    @property
    def unusual_loss(self) -> str | None:
        """Losses of least squares may be negative, which nobody expects of them."""
        return "(z - y)^2 / 2 less y^2 / 2" if self.target.link == "identity" else None

    def gradient(self, task: Task, weights: Parameters) -> Parameters:
        """Return the gradient of L(w) + (l2 / 2) |w|_2^2, the smooth part of the objective."""
        weights, design = weights.double(), self.target.design(task.x)
        left = self.target.link_function.mean(self.scores(weights, task.x)) - task.y.double()
        slope = (design.mT @ left).squeeze(-1) * self.target.loss_scale(task.n_examples)
        return slope + self.update.l2 * self.target.penalised(slope) * weights

    def exact_step(self, task: Task) -> ExactStep:
        """Return a step that starts from rest: momentum has nothing to keep."""
        resumed = self._resumed_step(task)
        return lambda weights, number: resumed(weights, weights, number)

    def stepped(self, task: Task, history: History) -> Tensor:
        return stepped(self._resumed_step(task), history)

    def train(self, task: Task, n_steps: int) -> History:
        return trained(self._resumed_step(task), task.initial.double(), n_steps)

    def _resumed_step(self, task: Task) -> ResumedStep:
        """Without a step size it costs O(n d^2) once to find one."""
        update, size = self.update, step_size(self.target, self.update, task.x)
        penalised = self.target.penalised(task.x.double())

        def step(weights: Parameters, before: Parameters, number: int) -> Parameters:
            start = point = weights.double()
            if update.momentum is not None:
                change = start - before.double()
                point = start + update.lookahead_of(number) * change
                start = start + update.momentum_of(number) * change
            moved = start - size * self.gradient(task, point)
            if update.l1:
                moved = soft_threshold(moved, size * update.l1 * penalised)
            return moved if update.box is None else moved.clamp(-update.box, update.box)

        return step

    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        update, box = self.update, self.update.box
        if update.momentum is not None:
            raise SettingError(
                "A rigorous proof takes steps without momentum, and here they have some. Leave it "
                "out, or use icgd.verify without rigorous=True, which bounds every step."
            )
        return {
            "kind": "linear",
            "link": self.target.link,
            "intercept": self.target.intercept,
            "reduction": self.target.reduction,
            "step_size": step_size(self.target, update, task.x).hex(),
            "l2": update.l2.hex(),
            "l1": update.l1.hex(),
            "box": None if box is None else box.hex(),
        }

    def descend(self, task: Task, *, tolerance: float, most_steps: int) -> Descent:
        """Exact updates until none changes a coefficient of any task by more than `tolerance`.

        Raises `SeparableDataError` where no minimiser exists, for steps shorten there all the same.
        """
        self.require_end(task)
        positive("tolerance", tolerance)
        count("most_steps", most_steps)
        weights, step, change = task.initial.double(), self._resumed_step(task), float("inf")
        before = weights
        for n_steps in range(1, most_steps + 1):
            before, weights = weights, step(weights, before, n_steps - 1)
            change = float((weights - before).abs().max())
            if change <= tolerance:
                return Descent(weights, n_steps, change, converged=True)
            if not change < float("inf"):
                raise overflowed("float64", step_size(self.target, self.update, task.x))
        return Descent(weights, most_steps, change, converged=False)

    def require_end(self, task: Task) -> None:
        """Without a minimiser steps shorten, but the coefficients grow for ever."""
        require_minimiser(self.target, self.update, task.x.double(), task.y.double())

    def named(self, weights: Parameters, inputs: Sequence[str]) -> dict[str, float]:
        names = (*inputs, *(INTERCEPT,) * self.target.intercept)
        return dict(zip(names, weights.tolist(), strict=True))

    def afterthoughts(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """A warning if the descent ends at the box, because its minimiser lies beyond."""
        box = self.update.box
        if box is None or not weights.numel():
            return
        largest, place = weights.abs().flatten().max(0)
        if largest >= box:
            number = int(place) % weights.shape[-1]
            which = f"Coefficient {number} (counted from 0)"
            if task.input_names:
                which = f"The coefficient of {(*task.input_names, INTERCEPT)[number]!r}"
            yield BoxWarning(
                f"{which} ends at the box, {box:g}: without it, it would be larger. Give a larger "
                "box, or a smaller step size if steps diverge."
            )
