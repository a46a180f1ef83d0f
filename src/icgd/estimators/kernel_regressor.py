"""Kernel regression by functional gradient descent in the forward pass of a transformer."""

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
    atomic,
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
"""The number of n x n matrices in memory at once while a kernel is computed."""

SECONDS_PER_ENTRY, SECONDS_PER_STEP = 1.6e-7, 8e-10
"""Estimated time on one core for an entry of the kernel, once and in addition for each step."""

LONG = 20.0
"""`fit` warns before it starts if it is estimated to take more seconds."""


def round_down(number: int) -> int:
    """Return a positive integer rounded down to one significant digit."""
    unit = int(10 ** (len(str(number)) - 1))
    return number // unit * unit


def _require_size(n: int, n_steps: int) -> None:
    """Raise `SizeError` if the kernel does not fit into memory; warn if `fit` takes long."""
    n_bytes = MATRICES * 8 * n**2
    most = round_down(int(sqrt(usable_memory().n_bytes / (MATRICES * 8))))
    other = "or train InContextRegressor, whose time and memory grow with n instead of n^2"
    remedy = f"Up to about {most:,} rows fit: take a sample of the rows, {other}."
    require_memory(f"The kernel of {n:,} examples with each other", n_bytes, remedy)
    per_entry = SECONDS_PER_ENTRY + n_steps * SECONDS_PER_STEP
    seconds = n**2 * per_entry
    if seconds > LONG:
        quick = round_down(int(sqrt(LONG / per_entry)))
        warn(
            LongRunWarning(
                f"The kernel of {n:,} examples has {n**2:,} entries: this fit takes about "
                f"{seconds:,.0f} seconds and {n_bytes / 2**30:.1f} GiB of memory. Up to "
                f"{quick:,} rows take less than {LONG:g} seconds: take a sample of the rows, "
                f"{other}."
            )
        )


@dataclass(eq=False, repr=False)
class InContextKernelRegressor(AbstractRegressor, AbstractInContext):
    """Kernel regression by gradient descent in a frozen transformer, one layer of attention a step.

    Inputs and labels are standardised internally. The step sizes are Chebyshev's for the spectrum
    of the kernel matrix; descent converges to `KernelRidge(alpha=alpha)` on standardised data. The
    kernel matrix of n examples has n^2 entries: `fit` warns before it starts if that takes long.

    Args:
        kernel: a symmetric kernel of icgd: "rbf", "laplace", "matern", "linear", "exp",
            "polynomial", or one of your own (`icgd.register_kernel`).
        alpha: the noise, which is added to the diagonal of the kernel matrix.
        length_scale: the divisor of scaled inputs; the default sqrt(d / 2) for d inputs makes rbf
            the kernel exp(-|u - w|^2 / d), the default of `KernelRidge`.
        max_iter: the number of steps, and of layers.

    Attributes:
        dual_coef_: the coefficients a_i of the trained function sum_i a_i K(., x_i) + mean label.
        loss_curve_: half the mean squared residual of scaled labels, before and after every step.

    Raises:
        UnknownNameError: by `fit`, if no kernel has this name.
        KernelError: by `fit`, if the kernel is not symmetric.
        SizeError: by `fit`, if the kernel matrix does not fit into memory.

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
        return self._scaling.transform(X)

    @atomic
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
        n_steps = count("max_iter", self.max_iter)
        _require_size(len(X), n_steps)
        raw = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        self._scaling, self._label_scaling = Scaling.of(X), Scaling.of(raw)
        rows, labels = self._rows(X), self._label_scaling.transform(raw)
        problem = self._problem(rows, labels, n_steps)
        self._train(FitRequest(problem, rows, labels, n_steps, may_shorten=False))
        return self

    def _problem(self, rows: Array, labels: Array, n_steps: int) -> Problem:
        width = rows.shape[1]
        length = sqrt(width / 2) if self.length_scale is None else self.length_scale
        transform = unit_rows(1 / positive("length_scale", length), width)
        machine = KernelMachine(width, KernelHead(self.kernel, transform))
        noise = positive("alpha", self.alpha)
        spectrum = outermost(machine, rows, noise)
        # Eigenvalues of a positive semidefinite kernel plus noise are at least the noise; rounding
        # may put the computed ones below.
        low = max(spectrum.low, noise) if machine.is_positive else spectrum.low
        high = max(spectrum.high, 1.01 * low)
        sizes = chebyshev_steps(low, high, n_steps)
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels))
        return Problem(machine, "squared", FunctionalStep(sizes, noise), domain)

    def _run_with_queries(self, task: Task) -> Tensor:
        return self.compiled_.run(task.x, task.y, queries=task.queries).predictions

    def _predict_after(self, run: Run, task: Task) -> Tensor:
        return recalled(self.compiled_.stack, task, run.trace)

    @property
    def dual_coef_(self) -> Array:
        """The coefficient of every example, on the scale of raw labels.

        A step adds step size times residual, which the run has recorded in the slot "y".
        """
        check_is_fitted(self)
        update = self.compiled_.problem.functional_step
        residuals = islice(self._run.trace["y"], self.n_iter_)
        moves = [update.size_of(step) * residual for step, residual in enumerate(residuals)]
        total: Array = np.sum([move.cpu().numpy() for move in moves], axis=0)
        return total.ravel() * self._label_scaling.scale
