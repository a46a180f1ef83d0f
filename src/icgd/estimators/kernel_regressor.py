"""Kernel regression by functional gradient descent in a transformer's forward pass."""

from __future__ import annotations

from itertools import islice
from math import sqrt
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from icgd.backends.functional import recalled
from icgd.backends.run import Run
from icgd.estimators.base import (
    ROOM,
    AbstractInContext,
    Array,
    Lesson,
    Scaling,
    at_once,
    bound_above,
    read_examples,
)
from icgd.problems.data import Domain, Task
from icgd.problems.kernel_machine import KernelHead, KernelMachine, unit_rows
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive
from icgd.problems.spectrum import spectrum
from icgd.problems.steps import FunctionalStep, chebyshev_steps


class InContextKernelRegressor(RegressorMixin, AbstractInContext):  # type: ignore[misc]
    """Kernel regression that a frozen transformer descends, one layer of kernel attention a step.

    Inputs and labels are standardised inside. Step sizes are those of Chebyshev for the spectrum of
    the kernel on the examples; descent tends to `KernelRidge(alpha=alpha)` on standardised data.

    Args:
        kernel: a symmetric kernel of icgd: "rbf", "laplace", "matern", "linear", "exp",
            "polynomial", or one of your own (`icgd.register_kernel`).
        alpha: the noise, which is added to the kernel of an example with itself.
        length_scale: what scaled inputs are divided by; the default sqrt(d / 2) for d inputs makes
            rbf the kernel exp(-|u - w|^2 / d), as `KernelRidge` has it.
        max_iter: the number of steps, and of layers.
        device: the torch device that runs it.
        cache_context: whether `predict` uses what `fit` left to learn at the examples in every
            layer; if not, it runs the whole transformer on context and rows, with the same
            answers, bit for bit.

    Attributes:
        dual_coef_: the weight of every example in the function sum_i a_i K(., x_i) + the mean.
        compiled_: the compiled run, with `transformer()`, `summary()` and `listing()`.
        n_iter_: the number of steps taken.
        loss_curve_: half the mean square of what is left of scaled labels, before and after steps.
        convergence_: how far from its end descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        UnknownNameError: by `fit`, if no kernel has this name.
        KernelError: by `fit`, if the kernel is not symmetric.
        SettingError: by `fit`, if a setting is out of its range.

    Example:
        >>> from icgd.estimators import InContextKernelRegressor
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 0.0, -1.0]
        >>> model = InContextKernelRegressor(alpha=0.1).fit(X, y)
        >>> model.predict([[1.0]]).round(1).tolist()
        [0.9]
    """

    traced: ClassVar[tuple[str, ...]] = ("y",)

    def __init__(
        self,
        kernel: Any = "rbf",
        *,
        alpha: Any = 1.0,
        length_scale: Any = None,
        max_iter: Any = 100,
        device: Any = "cpu",
        cache_context: Any = True,
    ) -> None:
        self.kernel = kernel
        self.alpha = alpha
        self.length_scale = length_scale
        self.max_iter = max_iter
        self.device = device
        self.cache_context = cache_context

    def _rows(self, X: Array) -> Array:
        return self._scaling.applied(X)

    @at_once
    def fit(self, X: Any, y: Any) -> InContextKernelRegressor:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a number for each row.

        Returns:
            The estimator itself.

        Example:
            >>> from icgd.estimators import InContextKernelRegressor
            >>> X, y = [[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0]
            >>> InContextKernelRegressor().fit(X, y).n_features_in_
            1
        """
        X, y = read_examples(self, X, y)
        raw = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        self._scaling, self._label_scaling = Scaling.of(X), Scaling.of(raw)
        rows, labels = self._rows(X), self._label_scaling.applied(raw)
        problem = self._problem(rows, labels)
        self._learn(Lesson(problem, rows, labels, may_shorten=False))
        return self

    def _problem(self, rows: Array, labels: Array) -> Problem:
        width = rows.shape[1]
        length = sqrt(width / 2) if self.length_scale is None else self.length_scale
        transform = unit_rows(1 / positive("length_scale", length), width)
        machine = KernelMachine(width, KernelHead(self.kernel, transform))
        noise = positive("alpha", self.alpha)
        found = spectrum(machine, rows, noise)
        low = max(found.low, noise) if machine.is_positive else found.low
        sizes = chebyshev_steps(low, max(found.high, 1.01 * low), count("max_iter", self.max_iter))
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels))
        return Problem(machine, "squared", FunctionalStep(sizes, noise), domain)

    def predict(self, X: Any) -> Array:
        """The expected label of every row.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows,).

        Example:
            >>> from icgd.estimators import InContextKernelRegressor
            >>> model = InContextKernelRegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
            >>> model.predict([[0.5], [1.5]]).shape
            (2,)
        """
        answers = self._answers(X)
        return self._label_scaling.undone(answers).ravel()

    def _together(self, task: Task) -> Tensor:
        return self.compiled_.run(task.x, task.y, queries=task.queries).predictions

    def _recalled(self, task: Task, run: Run) -> Tensor:
        return recalled(self.compiled_.stack, task, run.trace)

    @property
    def dual_coef_(self) -> Array:
        """The weight of every example in the function."""
        check_is_fitted(self)
        update = self.compiled_.problem.functional_step
        left = islice(self._run.trace["y"], self.n_iter_)
        parts = [update.size_of(step) * residual for step, residual in enumerate(left)]
        total: Array = np.sum([part.cpu().numpy() for part in parts], axis=0)
        return total.ravel() * self._label_scaling.scale
