"""What estimators of linear models share: scales, step size, box, and coefficients as a user reads.

Coefficients are trained on scaled columns. A column divided by s multiplies its coefficient by s,
so that a penalty counts for standardised columns, or, if all have the same scale, for raw ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
from torch import Tensor

from icgd.errors import SettingError, brief
from icgd.estimators.base import ROOM, AbstractInContext
from icgd.estimators.scaling import Array, Scaling, bound_above
from icgd.problems.convergence import sized_problem
from icgd.problems.data import Domain, as_task
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.problems.settings import MOST_STEPS, count, finite, positive
from icgd.problems.steps import ProximalStep


class AbstractLinear(AbstractInContext):
    """A linear model on scaled columns."""

    fit_intercept: bool
    standardize: bool
    tol: float

    def _rows(self, X: Array) -> Array:
        return self._scaling.applied(X)

    def _scale(self, X: Array, weights: Array | None = None) -> Array:
        """Find the scales of raw columns; return the scaled rows."""
        self._n_steps = count("max_iter", self.max_iter, most=MOST_STEPS)
        positive("tol", self.tol)
        own = Scaling.of(X, weights, centered=self.fit_intercept)
        self._scaling = own if self.standardize else own.alike()
        return self._rows(X)

    def _penalty_named(self, name: str) -> float:
        """The setting called `name`, if it is a number that is not negative."""
        number = finite(name, getattr(self, name))
        if number < 0:
            raise SettingError(
                f"{name} must not be negative, got {brief(number)}: a penalty draws coefficients "
                "towards 0. Give 0 for none."
            )
        return number

    @property
    def _common_scale(self) -> float:
        """What all raw columns are divided by, where penalties count for raw coefficients."""
        return 1.0 if self.standardize else float(self._scaling.scale[0])

    def _problem(
        self, model: LinearModel, update: ProximalStep, rows: Array, labels: Array
    ) -> Problem:
        """The problem with a step size, if `update` has none, and a box that no run reaches.

        Descent lowers the objective by at least |step|^2 / (2 step_size) a step, so that L steps
        move coefficients by at most sqrt(2 step_size L (F(0) - F*)).
        """
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels))
        problem = Problem(model, "matching", update, domain)
        if update.step_size is None:
            problem = sized_problem(problem, rows)
        gain = self._gain(problem, rows, labels)
        reach = sqrt(2 * (problem.proximal_step.step_size or 1.0) * self._n_steps * gain)
        boxed = replace(problem.proximal_step, box=bound_above(reach, room=2.0))
        return replace(problem, update=boxed)

    def _gain(self, problem: Problem, rows: Array, labels: Array) -> float:
        """At most how far the objective can fall from where it starts."""
        task = as_task(problem, rows, labels)
        least = problem.model.link_function.least_loss(task.y).sum()
        start = problem.oracle.risk(task, task.initial)
        scale = problem.model.loss_scale(task.n_examples)
        return max(0.0, float(start - scale * least))

    def _coefficients(self) -> tuple[Array, Array]:
        """The coefficients of raw columns and the intercept, before labels are unscaled."""
        weights = self._run.parameters[..., -1, :].cpu().numpy()
        width = self.n_features_in_
        coef = weights[..., :width] / self._scaling.scale
        intercept = weights[..., width:].sum(-1) - coef @ self._scaling.center
        return coef, np.asarray(intercept)

    def _scores(self, rows: Tensor) -> Tensor:
        """<w, x> + b of scaled rows, with the coefficients that `fit` reached."""
        weights = self._run.parameters[..., -1, :]
        return self.compiled_.problem.linear_oracle.scores(weights, rows)
