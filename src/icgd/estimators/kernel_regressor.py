"""Kernel regression by functional gradient descent in a transformer's forward pass."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from itertools import islice
from math import sqrt
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from icgd.backends.functional import recalled
from icgd.backends.run import Run
from icgd.environment import require_memory, usable_memory, warn
from icgd.errors import LongRunWarning
from icgd.estimators.base import (
    ROOM,
    AbstractInContext,
    AbstractRegressor,
    Array,
    FitRequest,
    Scaling,
    at_once,
    bound_above,
    read_examples,
)
from icgd.problems.data import Domain, Task
from icgd.problems.kernel_machine import KernelHead, KernelMachine, unit_rows
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive
from icgd.problems.spectrum import outermost
from icgd.problems.steps import FunctionalStep, chebyshev_steps

MATRICES = 4
"""How many matrices of n x n numbers are in memory at once while a kernel is computed."""

SECONDS_OF_ENTRY, SECONDS_OF_STEP = 1.6e-7, 8e-10
"""About how long an entry of the kernel takes on one core, and how long it takes in each step."""

LONG = 20.0
"""A fit of more seconds is announced before it starts."""


def round_down(number: int) -> int:
    """Return a number to one digit, rounded down."""
    unit = int(10 ** (len(str(number)) - 1))
    return number // unit * unit


@dataclass(eq=False, repr=False)
class InContextKernelRegressor(AbstractRegressor, AbstractInContext):
    """Kernel regression that a frozen transformer descends, one layer of kernel attention a step.

    Inputs and labels are standardised inside. Step sizes are those of Chebyshev for the spectrum of
    the kernel on the examples; descent tends to `KernelRidge(alpha=alpha)` on standardised data.
    A kernel of n examples has n^2 entries: `fit` says before it starts if that takes long.

    Args:
        kernel: a symmetric kernel of icgd: "rbf", "laplace", "matern", "linear", "exp",
            "polynomial", or one of your own (`icgd.register_kernel`).
        alpha: the noise, which is added to the kernel of an example with itself.
        length_scale: what scaled inputs are divided by; the default sqrt(d / 2) for d inputs makes
            rbf the kernel exp(-|u - w|^2 / d), as `KernelRidge` has it.
        max_iter: the number of steps, and of layers.

    Attributes:
        dual_coef_: the weight of every example in the function sum_i a_i K(., x_i) + the mean.
        loss_curve_: half the mean square of what is left of scaled labels, before and after steps.

    Raises:
        UnknownNameError: by `fit`, if no kernel has this name.
        KernelError: by `fit`, if the kernel is not symmetric.
        SizeError: by `fit`, if the kernel of so many examples does not fit into memory.

    Example:
        >>> from icgd.estimators import InContextKernelRegressor
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 0.0, -1.0]
        >>> model = InContextKernelRegressor(alpha=0.1).fit(X, y)
        >>> model.predict([[1.0]]).round(1).tolist()
        [0.9]
    """

    kernel: Any = "rbf"
    _: KW_ONLY
    alpha: Any = 1.0
    length_scale: Any = None

    traced: ClassVar[tuple[str, ...]] = ("y",)

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
        self._require_size(len(X))
        raw = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        self._scaling, self._label_scaling = Scaling.of(X), Scaling.of(raw)
        rows, labels = self._rows(X), self._label_scaling.applied(raw)
        problem = self._problem(rows, labels)
        n_steps = count("max_iter", self.max_iter)
        self._learn(FitRequest(problem, rows, labels, n_steps, may_shorten=False))
        return self

    def _require_size(self, n: int) -> None:
        """Refuse more examples than fit into memory, and warn of a fit that takes long."""
        n_bytes = MATRICES * 8 * n**2
        fitting = int(sqrt(usable_memory().n_bytes / (MATRICES * 8)))
        other = "or train InContextRegressor, whose time and memory grow with n instead of n^2"
        remedy = (
            f"Up to about {round_down(fitting):,} rows fit: take a sample of the rows, {other}."
        )
        require_memory(f"The kernel of {n:,} examples with each other", n_bytes, remedy)
        of_entry = SECONDS_OF_ENTRY + count("max_iter", self.max_iter) * SECONDS_OF_STEP
        seconds = n**2 * of_entry
        if seconds > LONG:
            quick = round_down(int(sqrt(LONG / of_entry)))
            warn(
                LongRunWarning(
                    f"The kernel of {n:,} examples has {n**2:,} entries: this fit takes about "
                    f"{seconds:,.0f} seconds and {n_bytes / 2**30:.1f} GiB of memory. Up to "
                    f"{quick:,} rows take less than {LONG:g} seconds: take a sample of the rows, "
                    f"{other}."
                )
            )

    def _problem(self, rows: Array, labels: Array) -> Problem:
        width = rows.shape[1]
        length = sqrt(width / 2) if self.length_scale is None else self.length_scale
        transform = unit_rows(1 / positive("length_scale", length), width)
        machine = KernelMachine(width, KernelHead(self.kernel, transform))
        noise = positive("alpha", self.alpha)
        found = outermost(machine, rows, noise)
        low = max(found.low, noise) if machine.is_positive else found.low
        sizes = chebyshev_steps(low, max(found.high, 1.01 * low), count("max_iter", self.max_iter))
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels))
        return Problem(machine, "squared", FunctionalStep(sizes, noise), domain)

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
