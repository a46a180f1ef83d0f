r"""Bound the error of a user's own kernel by what was stated of it at its registration.

Let L be its Lipschitz constant, and let points u, w be off by at most a, b in the Euclidean norm.
Then K(u, w) is off by at most L (a + b). What the function returns is off besides by the stated
units of roundoff of |K|, and by what K changes if points move by as many units of their norms:

    |error| <= L (a + b) + units (|K| + L (|u| + |w| + 2 a + 2 b))

The units are counted twice, because the oracle rounds too. Neither of the two values is larger than
`bound`, if one was stated, but for the units of itself that it rounds by.

With stated constants the bound is proved from them. Every use compares them with the kernel at the
run's own points, at neighbours in the order of the data and at points whose last digits moved, and
raises an error if they are contradicted. Without a stated L, the slope and the rounding seen in
these comparisons, times `SAFETY_FACTOR`, give an estimate, which reports call so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.intervals import ROOM, UNIT_ROUNDOFF
from icgd.certificates.rounded_points import Rounded, moved_error
from icgd.errors import KernelError, at, brief
from icgd.problems.data import first_set
from icgd.problems.kernel_machine import KernelHead
from icgd.problems.kernels import Kernel

NUDGE = 4
"""Units of roundoff by which points are moved to see how a kernel rounds."""

SAFETY_FACTOR = 4.0
"""Safety factor on the slope and the rounding error estimated from samples."""


@dataclass(frozen=True)
class _Constants:
    """Slope, largest value and relative rounding of a kernel at points of at most one norm.

    `noise` is added to every error.
    """

    slope: float
    largest: float
    units: float
    noise: float = 0.0

    @classmethod
    def stated(cls, kernel: Kernel, radius: float, width: int, how: Arithmetic) -> _Constants:
        slope, bound = kernel.stated("lipschitz", radius), kernel.stated("bound", radius)
        return cls(slope, bound, _units(kernel, width) * how.roundoff)

    def error(self, values: Tensor, off: Tensor, size: Tensor) -> Tensor:
        """Bound the error of `values`; for every pair, norms sum to `size` and errors to `off`."""
        rounding = self.units * (1 + self.units) * (values.abs() + self.slope * (size + 2 * off))
        error = ROOM * (self.slope * off + 2 * rounding + self.noise)
        return error.nan_to_num(nan=inf, posinf=inf).clamp(max=2 * self.returned)

    @property
    def returned(self) -> float:
        """The largest value that the function returns."""
        return ROOM * (1 + self.units) * self.largest


def own_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    """Bound the error of a user's own kernel, entry by entry, without the head's weight.

    The bound is an estimate if no Lipschitz constant was stated. Raises `KernelError` if the kernel
    contradicts what was stated of it.
    """
    kernel, u, w = head.function, head.moved(left.points), head.keys.moved(right.points)
    sides = (head, left), (head.keys, right)
    off = [_norm(moved_error(moves, points, how)) for moves, points in sides]
    values, size = kernel.matrix(u, w), _of_pairs(_norm(u), _norm(w))
    nudged = _nudged(kernel, u, w, values, how)
    slopes = [_changes(u, values), _changes(w, values.mT)]
    if kernel.lipschitz is None:
        steepest = max(float((change / gap).nan_to_num(0, 0, 0).max()) for gap, change in slopes)
        units, noise = _units(kernel, u.shape[-1]) * how.roundoff, float(nudged.max())
        known = _Constants(SAFETY_FACTOR * steepest, inf, units, SAFETY_FACTOR * noise)
        return known.error(values, _of_pairs(*off), size)
    radius = ROOM * float(torch.cat([_norm(u) + off[0], _norm(w) + off[1]], dim=-1).max())
    known = _Constants.stated(kernel, radius, u.shape[-1], how)
    if index := first_set(values.abs() > known.returned):
        raise KernelError(
            f"Kernel {brief(kernel.name)} contradicts its statement: it is "
            f"{values[tuple(index)].item():.6g} at {at(index)}, and bound is {known.largest:.6g}. "
            "Register it with a larger bound."
        )
    rounding = known.error(values, torch.zeros_like(values), size)
    for gap, change in slopes:
        allowed = ROOM * known.slope * gap + 2 * rounding.max()
        if index := first_set(change > allowed.nan_to_num(nan=inf, posinf=inf)):
            raise KernelError(
                f"Kernel {brief(kernel.name)} contradicts its statement: it changes by "
                f"{change[tuple(index)].item():.6g} between two points of these data that are "
                f"{gap[tuple(index[:-1])].item():.6g} apart, and lipschitz is {known.slope:.6g}. "
                "Register it with a larger lipschitz; if it jumps, it has none: leave "
                "lipschitz out."
            )
    # The kernel of a pair must not depend on the other examples.
    alone = kernel.matrix(u, w[..., :1, :])
    if index := first_set((alone - values[..., :1]).abs() > rounding[..., :1]):
        raise KernelError(
            f"Kernel {brief(kernel.name)} is not a function of two points: at {at(index)} it is "
            f"{alone[tuple(index)].item():.6g} for the pair alone and "
            f"{values[tuple(index)].item():.6g} among the others. Constants cannot be stated of "
            "it: leave lipschitz out."
        )
    allowed = known.error(values, 2 * NUDGE * how.roundoff * size, size)
    if index := first_set(nudged > allowed):
        raise KernelError(
            f"Kernel {brief(kernel.name)} contradicts its statement: it changes by "
            f"{nudged[tuple(index)].item():.3g} at {at(index)} if a point moves by its last "
            f"digits, and lipschitz and rounding allow {allowed[tuple(index)].item():.3g}. Compute "
            "it without cancellation, such as distances by torch.cdist with "
            "compute_mode='donot_use_mm_for_euclid_dist', or register it with a larger rounding."
        )
    return known.error(values, _of_pairs(*off), size)


def _changes(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of each point from the one before, and the change of its kernel."""
    gap = _norm(points - points.roll(1, -2))[..., None]
    return gap, (values - values.roll(1, -2)).abs()


def _nudged(kernel: Kernel, u: Tensor, w: Tensor, values: Tensor, how: Arithmetic) -> Tensor:
    """Return how far the kernel is off in the run's precision, also with other last digits of u."""
    dtype = torch.float32 if how.roundoff > UNIT_ROUNDOFF else torch.float64
    moved = (((1 + units * how.roundoff) * u).to(dtype) for units in (0, NUDGE))
    return torch.maximum(*((kernel.matrix(left, w.to(dtype)) - values).abs() for left in moved))


def largest_own(kernel: Kernel, radius: float, width: int) -> float:
    """Bound |K| at points of at most this norm: as stated, or by the Lipschitz constant."""
    if kernel.bound is not None or kernel.lipschitz is None:
        return kernel.stated("bound", radius)
    origin = torch.zeros(1, width, dtype=torch.float64)
    try:
        at_origin = abs(float(kernel.matrix(origin, origin)))
    except KernelError:  # it is not defined there
        return inf
    exact = (1 + _units(kernel, width) * UNIT_ROUNDOFF) * at_origin
    return ROOM * (exact + 2 * kernel.stated("lipschitz", radius) * radius)


def worst_own_error(
    kernel: Kernel, radius: float, off: float, width: int, how: Arithmetic
) -> float:
    """Bound the error at all points of at most this norm that are off by at most `off`."""
    reached = ROOM * (radius + off)
    known = _Constants.stated(kernel, reached, width, how)
    largest, twice = largest_own(kernel, reached, width), torch.tensor(2.0, dtype=torch.float64)
    return float(known.error(largest * twice / 2, off * twice, radius * twice))


def _units(kernel: Kernel, width: int) -> float:
    """Units of roundoff that a kernel is off by; two more are for the head's weight."""
    return kernel.rounding + width + 2


def _norm(points: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(points, dim=-1)
    return ROOM * norm


def _of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Add a number of every point on the left to one of every point on the right."""
    return left[..., :, None] + right[..., None, :]
