"""Eigenvalues of kernels and of Hessians of linear models, and the convergence of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from icgd.errors import SettingError
from icgd.problems.data import checked_inputs
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.linear_model import Design, LinearModel
from icgd.problems.settings import finite
from icgd.problems.steps import FunctionalStep, ProximalStep
from icgd.shapes import Inputs, Labels, Parameters

EXACT_SIZE = 512
"""The largest number of examples for which all eigenvalues are computed, in O(n^3)."""

MOST_RESTARTS = 30
"""The largest number of restarts of ARPACK, with 20 matrix products each."""

ARPACK_ROOM = 1e-3
"""Relative amount by which an eigenvalue of ARPACK is rounded up, well above its error."""


@dataclass(frozen=True)
class Spectrum:
    """The smallest and the largest eigenvalue over all tasks of a batch, computed by LAPACK."""

    low: float
    high: float

    @property
    def condition(self) -> float:
        """The condition number, the largest eigenvalue over the smallest."""
        return self.high / self.low if self.low > 0 else inf


def spectrum(machine: KernelMachine, X: Any, noise: float = 0.0) -> Spectrum:
    """Return the extreme eigenvalues of a symmetric K + noise I on examples, in O(n^3).

    Args:
        machine: the machine with the kernel K.
        X: the examples, (n, d) or (tasks, n, d).
        noise: the number added to every eigenvalue.

    Returns:
        The smallest and the largest eigenvalue, `low` and `high`, and their `condition`.

    Raises:
        KernelError: if the kernel is not symmetric, or not finite.
        SettingError: if `machine` is not a kernel machine, or `noise` not a finite number.
        DataError: if X does not hold numbers, or has another width than the machine.

    Example:
        >>> import icgd
        >>> icgd.spectrum(icgd.KernelMachine(2, "linear"), [[1.0, 0.0], [0.0, 2.0]]).high
        4.0
    """
    machine.require_symmetric("The spectrum")
    x = checked_inputs(X, machine.input_width).double()
    values = torch.linalg.eigvalsh(machine.gram(x)) + finite("noise", noise)
    return Spectrum(float(values.min()), float(values.max()))


def outermost(machine: KernelMachine, X: Any, noise: float = 0.0) -> Spectrum:
    """Return a tight enclosure of the spectrum of K + noise I, in O(n^2) for large n.

    For a positive kernel on many examples, the lower end is the noise, and the upper end is the
    largest eigenvalue found by ARPACK, rounded up.
    """
    x = checked_inputs(X, machine.input_width).double()
    if x.ndim > 2 or len(x) <= EXACT_SIZE or not machine.is_positive:
        return spectrum(machine, x, noise)
    machine.require_symmetric("The spectrum")
    gram = machine.gram(x)
    (high,) = _outermost(gram.numpy(), is_symmetric=True, ends=("LA",))
    if high <= 0:  # ARPACK did not converge
        high = gram.abs().sum(-1).max()  # Gershgorin's bound on all eigenvalues
    return Spectrum(finite("noise", noise), (1 + ARPACK_ROOM) * float(high) + noise)


def growth(update: FunctionalStep, eigenvalues: Tensor, n_steps: int) -> Tensor:
    """Return the factor of the error along each eigenvector after `n_steps` steps.

    A step is v <- momentum v - step_size t (r + lookahead v), then r <- r + v, from r = 1 and v =
    0. Constant steps are a power of one 2 x 2 matrix per eigenvalue t, whatever their number.
    """
    if update.is_constant:
        power: Tensor = torch.linalg.matrix_power(_matrices(update, eigenvalues), n_steps)
        return power[..., 0, 0].abs().nan_to_num(nan=inf, posinf=inf)
    residual, velocity = torch.ones_like(eigenvalues), torch.zeros_like(eigenvalues)
    for step in range(n_steps):
        point = residual + update.lookahead_of(step) * velocity
        descent = update.size_of(step) * eigenvalues * point
        velocity = update.momentum_of(step) * velocity - descent
        residual = residual + velocity
    return residual.abs()


def _rate(update: FunctionalStep, eigenvalues: Tensor) -> Tensor:
    """Return the asymptotic growth rate of the error under constant steps.

    It is infinite where a step overflows; there LAPACK, which would print a message, is not called.
    """
    matrices = _matrices(update, eigenvalues)
    is_finite = matrices.isfinite().flatten(-2).all(-1)
    roots: Tensor = torch.linalg.eigvals(matrices.where(is_finite[..., None, None], 0.0))
    return roots.abs().amax(-1).where(is_finite, inf)


def _matrices(update: FunctionalStep, eigenvalues: Tensor) -> Tensor:
    """Return the matrix of a constant step on (r, v) for each eigenvalue."""
    descent = update.size_of(0) * eigenvalues
    of_velocity = update.momentum_of(0) - update.lookahead_of(0) * descent
    rows = torch.stack([1 - descent, of_velocity, -descent, of_velocity], dim=-1)
    return rows.reshape(*rows.shape[:-1], 2, 2)


@dataclass(frozen=True)
class Divergence:
    """An eigenvalue along which the error grows over the steps, and the factor."""

    eigenvalue: float
    growth: float


def divergence(
    machine: KernelMachine, update: FunctionalStep, x: Inputs, n_steps: int
) -> Divergence | None:
    """Return the eigenvalue along which the error grows most over the run, or None if none does.

    Steps that change the kernel are not checked. No eigenvalue exceeds the largest row sum of
    absolute values; if steps without momentum are short for this bound, which costs O(n^2), no
    eigenvalues are computed.
    """
    if update.changes_kernel or n_steps == 0:
        return None
    gram = machine.gram(x.double())
    n_sizes = n_steps if isinstance(update.step_size, tuple) else 1
    longest = max(update.size_of(step) for step in range(n_sizes))
    is_plain, row_sum = update.momentum is None, float(gram.abs().sum(-1).max())
    if is_plain and machine.is_positive and longest * (row_sum + update.noise) <= 2:
        return None
    values = _eigenvalues(gram, machine) + update.noise
    factors = growth(update, values, n_steps)
    if not is_plain and update.is_constant:  # momentum may let a shrinking error grow at first
        factors = torch.where(_rate(update, values) > 1 + 1e-9, factors, 0.0)
    largest, worst = factors.flatten().max(0)
    if largest <= 1 + 1e-9:  # rounding of the eigenvalues
        return None
    return Divergence(float(values.real.flatten()[worst]), float(largest))


def _eigenvalues(gram: Tensor, machine: KernelMachine) -> Tensor:
    """Return all eigenvalues of small matrices, and the outermost ones of large matrices.

    The smallest eigenvalue of a large positive matrix is replaced by 0: eigenvalues there are too
    many and too close for ARPACK.
    """
    is_symmetric = machine.is_symmetric
    if gram.shape[-1] <= EXACT_SIZE:
        try:
            exact = torch.linalg.eigvalsh if is_symmetric else torch.linalg.eigvals
            values: Tensor = exact(gram)
            return values
        except RuntimeError:  # no convergence, as for softmax kernels with entries near 0 or 1
            pass
    matrices = gram.reshape(-1, *gram.shape[-2:]).numpy()
    if machine.is_positive and is_symmetric:
        ends: tuple[str, ...] = ("LA",)
        largest = [_outermost(matrix, is_symmetric=True, ends=ends)[0] for matrix in matrices]
        extremes = [np.array([0.0, value]) for value in largest]
    else:
        ends = ("LA", "SA") if is_symmetric else ("LM", "SR")
        extremes = [_outermost(matrix, is_symmetric=is_symmetric, ends=ends) for matrix in matrices]
    return torch.from_numpy(np.stack(extremes)).reshape(*gram.shape[:-2], -1)


def _outermost(matrix: np.ndarray, *, is_symmetric: bool, ends: tuple[str, ...]) -> np.ndarray:
    """Return the eigenvalues at these ends that ARPACK finds within its iterations.

    An eigenvalue that does not converge, as when many are nearly 0, is replaced by that of the
    other end, or by 0, along which no error grows. So there are no false warnings.
    """
    arpack = scipy.sparse.linalg  # scipy imports it on first use
    solver = arpack.eigsh if is_symmetric else arpack.eigs
    start = np.random.default_rng(0).normal(size=len(matrix))
    eigenvalues: list[complex] = []
    for end in ends:
        options = {"v0": start, "tol": 1e-8, "maxiter": MOST_RESTARTS}
        try:
            values = solver(matrix, 1, which=end, return_eigenvectors=False, **options)
        except scipy.sparse.linalg.ArpackNoConvergence:
            values = eigenvalues or [0.0]
        eigenvalues.append(values[0])
    return np.array(eigenvalues)


Scores = tuple[Labels, Labels]
"""The least and the largest score of each example."""


@dataclass(frozen=True)
class Curvature:
    """Bounds `smallest` (alpha) and `largest` (beta) on the eigenvalues of every Hessian.

    With s_i = mu'(<w, x_i>) the Hessian of the smooth part is

        H(w) = scale * sum_i s_i x_i x_i^T + l2 * I    (0 instead of l2 for the intercept)

    H(w) increases with every s_i, so the least and the largest s_i on a range of scores give
    matrices below and above all H(w); their extreme eigenvalues are alpha and beta. The cost is
    O(n d^2 + d^3).
    """

    smallest: float
    largest: float

    @property
    def condition(self) -> float:
        """The condition number kappa = beta / alpha."""
        return self.largest / self.smallest if self.smallest > 0 else inf

    def contraction(self, step_size: float) -> float:
        """Return the Lipschitz constant of an exact step."""
        return max(1 - step_size * self.smallest, step_size * self.largest - 1)


def everywhere(x: Inputs) -> Scores:
    """Return the range of all scores, sufficient for links with a bounded slope."""
    ends = torch.full_like(x[..., :1].double(), inf)
    return -ends, ends


def over_box(model: LinearModel, x: Inputs, box: float) -> Scores:
    """Return the range of scores for coefficients in [-box, box]."""
    reach = box * model.design(x).abs().sum(-1, keepdim=True)
    return -reach, reach


def over_ball(model: LinearModel, x: Inputs, center: Parameters, radius: float) -> Scores:
    """Return the range of scores for coefficients within `radius` of `center`, in the 2-norm."""
    design = model.design(x)
    middle = design @ center.double().unsqueeze(-1)
    reach = radius * design.norm(dim=-1, keepdim=True)
    return middle - reach, middle + reach


def common(first: Scores, second: Scores) -> Scores:
    """Return the intersection of two ranges, for each example."""
    return torch.maximum(first[0], second[0]), torch.minimum(first[1], second[1])


def spanned(first: Scores, second: Scores) -> Scores:
    """Return the hull of two ranges, for each example."""
    return torch.minimum(first[0], second[0]), torch.maximum(first[1], second[1])


def curvature(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> Curvature:
    """Return the curvature of the risk and the l2 penalty for these scores, over all tasks."""
    low, high = scores or everywhere(x)
    least, largest = model.link_function.slopes(low, high)
    if not largest.isfinite().all():
        raise SettingError(
            f"The slope of the {model.link} link is unbounded, so no step size is safe for all "
            "coefficients. Give a step_size, or bound the scores by a box or by "
            "Domain(score=...)."
        )
    design = model.design(x)
    smallest = eigenvalues(model, update, design, least).amin()
    return Curvature(
        smallest=max(0.0, float(smallest)) if smallest.isfinite() else 0.0,
        largest=float(eigenvalues(model, update, design, largest).amax()),
    )


def eigenvalues(model: LinearModel, update: ProximalStep, design: Design, slopes: Tensor) -> Tensor:
    """Return the eigenvalues of the Hessian for these slopes of the link; infinite on overflow."""
    matrix = hessian(model, update, design, slopes)
    if not matrix.isfinite().all():
        return torch.full_like(matrix[..., 0], inf)
    values: Tensor = torch.linalg.eigvalsh(matrix)
    return values


def hessian(model: LinearModel, update: ProximalStep, design: Design, slopes: Tensor) -> Tensor:
    """Return the Hessian for these slopes of the link at the examples."""
    scale = model.loss_scale(design.shape[-2])
    return scale * design.mT @ (slopes * design) + update.l2 * model.penalised(design).diag()


def step_size(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> float:
    """Return the step size of `update`, by default 1 / beta over all tasks."""
    if update.step_size is not None:
        return update.step_size
    largest = curvature(model, update, x, scores).largest
    return 1 / largest if largest else 1.0  # without curvature the gradient is 0


def sized(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> ProximalStep:
    """Return `update` with an explicit step size."""
    return replace(update, step_size=step_size(model, update, x, scores))
