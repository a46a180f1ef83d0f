"""Eigenvalues of kernels and of the risk of linear models: which steps converge, and how fast."""

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
"""Number of examples up to which all eigenvalues are computed, in O(n^3)."""

MOST_RESTARTS = 30
"""Restarts of ARPACK, 20 products with the matrix each, for the outermost eigenvalues."""

ARPACK_ROOM = 1e-3
"""By what share an eigenvalue that ARPACK finds is rounded up: much more than it errs by."""


@dataclass(frozen=True)
class Spectrum:
    """The smallest and the largest eigenvalue, over all tasks of a batch, as LAPACK finds them."""

    low: float
    high: float

    @property
    def condition(self) -> float:
        """Largest over smallest."""
        return self.high / self.low if self.low > 0 else inf


def spectrum(machine: KernelMachine, X: Any, noise: float = 0.0) -> Spectrum:
    """Return the spectrum of a symmetric K + noise I on examples, in O(n^3).

    Args:
        machine: the machine whose kernel K is.
        X: the examples, (n, d) or (tasks, n, d).
        noise: what is added to every eigenvalue.

    Returns:
        The smallest and the largest eigenvalue, `low` and `high`, and their `condition`.

    Raises:
        KernelError: if the kernel is not symmetric, or has no finite value somewhere.
        SettingError: if `machine` is no kernel machine, or `noise` no finite number.
        DataError: if X holds no numbers, or has another width than the machine.

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
    """Return numbers that enclose the spectrum of K + noise I, tightly, in O(n^2) for large n.

    Of a positive kernel on many examples the smallest eigenvalue is taken for the noise, and the
    largest one is found by ARPACK and rounded up.
    """
    x = checked_inputs(X, machine.input_width).double()
    if x.ndim > 2 or len(x) <= EXACT_SIZE or not machine.is_positive:
        return spectrum(machine, x, noise)
    machine.require_symmetric("The spectrum")
    gram = machine.gram(x)
    (high,) = _outermost(gram.numpy(), is_symmetric=True, ends=("LA",))
    if high <= 0:  # it did not converge
        high = gram.abs().sum(-1).max()  # which no eigenvalue exceeds
    return Spectrum(finite("noise", noise), (1 + ARPACK_ROOM) * float(high) + noise)


def growth(update: FunctionalStep, eigenvalues: Tensor, n_steps: int) -> Tensor:
    """Return the factor of the error along each eigenvector after the first steps.

    r <- r + v after v <- momentum v - step_size t (r + ahead v), from r = 1 and v = 0. Steps that
    are all alike are a power of one matrix for each eigenvalue, however many there are.
    """
    if update.is_constant:
        power: Tensor = torch.linalg.matrix_power(_matrices(update, eigenvalues), n_steps)
        return power[..., 0, 0].abs().nan_to_num(nan=inf, posinf=inf)
    left, velocity = torch.ones_like(eigenvalues), torch.zeros_like(eigenvalues)
    for step in range(n_steps):
        read = left + update.lookahead_of(step) * velocity
        descent = update.size_of(step) * eigenvalues * read
        velocity = update.momentum_of(step) * velocity - descent
        left = left + velocity
    return left.abs()


def _rate(update: FunctionalStep, eigenvalues: Tensor) -> Tensor:
    """Return the asymptotic growth rate of the error under constant steps.

    It is infinite where a step leaves the range of numbers, which LAPACK would print a line about.
    """
    matrices = _matrices(update, eigenvalues)
    known = matrices.isfinite().flatten(-2).all(-1)
    roots: Tensor = torch.linalg.eigvals(matrices.where(known[..., None, None], 0.0))
    return roots.abs().amax(-1).where(known, inf)


def _matrices(update: FunctionalStep, eigenvalues: Tensor) -> Tensor:
    """Return the matrix of a constant step on (r, v) for each eigenvalue."""
    descent = update.size_of(0) * eigenvalues
    kept = update.momentum_of(0) - update.lookahead_of(0) * descent
    rows = torch.stack([1 - descent, kept, -descent, kept], dim=-1)
    return rows.reshape(*rows.shape[:-1], 2, 2)


@dataclass(frozen=True)
class Divergence:
    """An eigenvalue along which the steps let the error grow, and by what factor."""

    eigenvalue: float
    growth: float


def divergence(
    machine: KernelMachine, update: FunctionalStep, x: Inputs, n_steps: int
) -> Divergence | None:
    """Return the worst eigenvalue along which the error grows over the run, if there is one.

    Steps that change the kernel are not judged. No eigenvalue exceeds the largest row sum of
    absolute values, O(n^2), which settles short steps without momentum; otherwise eigenvalues are
    computed.
    """
    if update.changes_kernel or n_steps == 0:
        return None
    gram = machine.gram(x.double())
    n_sizes = n_steps if isinstance(update.step_size, tuple) else 1
    longest = max(update.size_of(step) for step in range(n_sizes))
    plain, row_sum = update.momentum is None, float(gram.abs().sum(-1).max())
    if plain and machine.is_positive and longest * (row_sum + update.noise) <= 2:
        return None
    values = _eigenvalues(gram, machine) + update.noise
    grown = growth(update, values, n_steps)
    if not plain and update.is_constant:  # what shrinks in the end may grow at first
        grown = torch.where(_rate(update, values) > 1 + 1e-9, grown, 0.0)
    largest, worst = grown.flatten().max(0)
    if largest <= 1 + 1e-9:  # rounding of the eigenvalues
        return None
    return Divergence(float(values.real.flatten()[worst]), float(largest))


def _eigenvalues(gram: Tensor, machine: KernelMachine) -> Tensor:
    """Return all eigenvalues of small matrices, and the outermost ones of large matrices.

    The smallest one of a large positive matrix is taken for 0: where ARPACK would look for it,
    eigenvalues are too many and too close.
    """
    is_symmetric = machine.is_symmetric
    if gram.shape[-1] <= EXACT_SIZE:
        try:
            exact = torch.linalg.eigvalsh if is_symmetric else torch.linalg.eigvals
            values: Tensor = exact(gram)
            return values
        except RuntimeError:  # not found, as for shares of softmax that are almost all 0 or 1
            pass
    matrices = gram.reshape(-1, *gram.shape[-2:]).numpy()
    if machine.is_positive and is_symmetric:
        ends: tuple[str, ...] = ("LA",)
        largest = [_outermost(matrix, is_symmetric=True, ends=ends)[0] for matrix in matrices]
        found = [np.array([0.0, value]) for value in largest]
    else:
        ends = ("LA", "SA") if is_symmetric else ("LM", "SR")
        found = [_outermost(matrix, is_symmetric=is_symmetric, ends=ends) for matrix in matrices]
    return torch.from_numpy(np.stack(found)).reshape(*gram.shape[:-2], -1)


def _outermost(matrix: np.ndarray, *, is_symmetric: bool, ends: tuple[str, ...]) -> np.ndarray:
    """Return the eigenvalues at these ends that ARPACK finds within its iterations.

    One that does not converge, as where many are nearly 0, is replaced by the other end's, or by
    0, along which nothing grows: so nothing is warned of that is not so.
    """
    arpack = scipy.sparse.linalg  # imported by scipy when it is first used
    solver = arpack.eigsh if is_symmetric else arpack.eigs
    start = np.random.default_rng(0).normal(size=len(matrix))
    found: list[complex] = []
    for end in ends:
        options = {"v0": start, "tol": 1e-8, "maxiter": MOST_RESTARTS}
        try:
            values = solver(matrix, 1, which=end, return_eigenvectors=False, **options)
        except scipy.sparse.linalg.ArpackNoConvergence:
            values = found or [0.0]
        found.append(values[0])
    return np.array(found)


Scores = tuple[Labels, Labels]
"""The least and the largest score of each example."""


@dataclass(frozen=True)
class Curvature:
    """Every Hessian has its eigenvalues between `smallest` (alpha) and `largest` (beta).

    With s_i = mu'(<w, x_i>) the Hessian of the smooth part is

        H(w) = scale * sum_i s_i x_i x_i^T + l2 * I    (0 instead of l2 for the intercept)

    It grows with every s_i, so the least and the largest s_i on a range of scores give one matrix
    below and one above all H(w); their extreme eigenvalues are alpha and beta. They cost
    O(n d^2 + d^3).
    """

    smallest: float
    largest: float

    @property
    def condition(self) -> float:
        """kappa = beta / alpha."""
        return self.largest / self.smallest if self.smallest > 0 else inf

    def contraction(self, step_size: float) -> float:
        """Return the Lipschitz constant of an exact step."""
        return max(1 - step_size * self.smallest, step_size * self.largest - 1)


def everywhere(x: Inputs) -> Scores:
    """Return all scores, which suits links whose slope is bounded."""
    ends = torch.full_like(x[..., :1].double(), inf)
    return -ends, ends


def over_box(model: LinearModel, x: Inputs, box: float) -> Scores:
    """Return the scores of coefficients in [-box, box]."""
    reach = box * model.design(x).abs().sum(-1, keepdim=True)
    return -reach, reach


def over_ball(model: LinearModel, x: Inputs, center: Parameters, radius: float) -> Scores:
    """Return the scores of coefficients at most `radius` from `center`, in the 2-norm."""
    design = model.design(x)
    middle = design @ center.double().unsqueeze(-1)
    reach = radius * design.norm(dim=-1, keepdim=True)
    return middle - reach, middle + reach


def common(first: Scores, second: Scores) -> Scores:
    """Return the scores in both ranges, of each example by itself."""
    return torch.maximum(first[0], second[0]), torch.minimum(first[1], second[1])


def spanned(first: Scores, second: Scores) -> Scores:
    """Return the scores in and between two ranges, of each example by itself."""
    return torch.minimum(first[0], second[0]), torch.maximum(first[1], second[1])


def curvature(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> Curvature:
    """Return the curvature of the risk and l2 while the scores stay in `scores`, over all tasks."""
    low, high = scores or everywhere(x)
    least, largest = model.link_function.slopes(low, high)
    if not largest.isfinite().all():
        raise SettingError(
            f"The {model.link} link has no largest slope, so no step size is safe for all "
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
    """Return the eigenvalues of the Hessian where the link has these slopes at the examples.

    They are infinite if an entry of it is beyond the range of numbers.
    """
    curved = hessian(model, update, design, slopes)
    if not curved.isfinite().all():
        return torch.full_like(curved[..., 0], inf)
    values: Tensor = torch.linalg.eigvalsh(curved)
    return values


def hessian(model: LinearModel, update: ProximalStep, design: Design, slopes: Tensor) -> Tensor:
    """Return H where the link has these slopes at the examples."""
    scale = model.loss_scale(design.shape[-2])
    return scale * design.mT @ (slopes * design) + update.l2 * model.penalised(design).diag()


def step_size(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> float:
    """Return the step size of `update`, default 1 / beta; all tasks share one."""
    if update.step_size is not None:
        return update.step_size
    largest = curvature(model, update, x, scores).largest
    return 1 / largest if largest else 1.0  # without curvature nothing moves


def sized(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> ProximalStep:
    """Return `update` with its step size written down."""
    return replace(update, step_size=step_size(model, update, x, scores))
