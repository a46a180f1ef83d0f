r"""How far a kernel of a user's own may be off, from what was stated of it at its registration.

Let L be its Lipschitz constant, and let points u, w be off by at most a, b in the Euclidean norm.
Then K(u, w) is off by at most L (a + b). What the function returns is off besides by as many units
of roundoff of |K| as were stated, and by what K changes if points move by as many of their norms:

    |error| <= L (a + b) + units (|K| + L (|u| + |w| + 2 a + 2 b))

The units are counted twice, because the oracle rounds too. Neither of the two values is larger than
`bound`, if one was stated, but for the units of itself that it rounds by.

A statement cannot be proved here, but it can be contradicted: every time the bound is used, it is
held against the kernel at the run's own points. Each point is compared with the one nearest to it,
with the next one, and with itself moved by its last digits.

If nothing was stated, L and the rounding are estimated from such comparisons, with room. What
follows from an estimate is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.intervals import ROOM, UNIT_ROUNDOFF
from icgd.certificates.rounded_points import Rounded, moved_error
from icgd.errors import KernelError, at, brief
from icgd.problems.data import first_set
from icgd.problems.kernel_machine import KernelHead
from icgd.problems.kernels import Kernel

COMPARED_POINTS = 1000
"""The most points whose nearest ones are looked for, which takes the square of this in time."""

NUDGE = 4
"""By how many units of roundoff points are moved to see how a kernel rounds."""

ESTIMATE_ROOM = 4.0
"""How many times as steep, and as inexact, as it is at the points seen a kernel is taken to be."""


@dataclass(frozen=True)
class _Facts:
    """What is taken to be true of a kernel, of a slope and a size at points of one radius.

    `units` is what it rounds by. `noise` is added to every error.
    """

    slope: float
    largest: float
    units: float
    noise: float = 0.0

    @classmethod
    def stated(cls, kernel: Kernel, radius: float, width: int, how: Arithmetic) -> _Facts:
        slope, bound = kernel.stated("lipschitz", radius), kernel.stated("bound", radius)
        return cls(slope, bound, _units(kernel, width) * how.roundoff)

    def error(self, values: Tensor, off: Tensor, size: Tensor) -> Tensor:
        """The error of `values` at points whose norms add up to `size`, and whose errors to `off`.

        Both are for every pair of points.
        """
        rounding = self.units * (1 + self.units) * (values.abs() + self.slope * (size + 2 * off))
        error = ROOM * (self.slope * off + 2 * rounding + self.noise)
        return _known(error).clamp(max=2 * self.returned)

    @property
    def returned(self) -> float:
        """The largest value that the function returns."""
        return ROOM * (1 + self.units) * self.largest


class _Values(NamedTuple):
    """A kernel of points that are exact, beside those points."""

    left: Tensor
    right: Tensor
    kernel: Tensor

    @property
    def size(self) -> Tensor:
        return _of_pairs(_norm(self.left), _norm(self.right))

    @property
    def mirrored(self) -> _Values:
        """The same with left and right exchanged."""
        return _Values(self.right, self.left, self.kernel.mT)


class _Comparison(NamedTuple):
    """How far points are from others, and how far apart the kernels of both are."""

    distance: Tensor
    change: Tensor


def own_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    """A bound on the error of a user's own kernel, entry by entry, without the head's weight.

    It is an estimate if no Lipschitz constant was stated. Raises `KernelError` if the kernel
    contradicts what was stated of it.
    """
    u, w = head.moved(left.points), head.keys.moved(right.points)
    sides = (head, left), (head.keys, right)
    off = [_norm(moved_error(moves, points, how)) for moves, points in sides]
    values = _Values(u, w, head.function.matrix(u, w))
    sizes = torch.cat([_norm(u) + off[0], _norm(w) + off[1]], dim=-1)
    facts = _facts(head.function, values, ROOM * float(sizes.max()), how)
    return facts.error(values.kernel, _of_pairs(*off), values.size)


def largest_own(kernel: Kernel, radius: float, width: int) -> float:
    """The largest |K| of points of at most this norm: as stated, or by the Lipschitz constant."""
    if kernel.bound is not None or kernel.lipschitz is None:
        return kernel.stated("bound", radius)
    origin = torch.zeros(1, width, dtype=torch.float64)
    try:
        at_origin = abs(float(kernel.matrix(origin, origin)))
    except KernelError:  # it is not defined there
        return inf
    exact = (1 + _units(kernel, width) * UNIT_ROUNDOFF) * at_origin
    return ROOM * (exact + 2 * kernel.stated("lipschitz", radius) * radius)


def _units(kernel: Kernel, width: int) -> float:
    """The units of roundoff that a kernel is off by; two more are for the head's weight."""
    return kernel.rounding + width + 2


def worst_own_error(
    kernel: Kernel, radius: float, off: float, width: int, how: Arithmetic
) -> float:
    """The largest error at points of at most this norm that are off by at most `off`."""
    reached = ROOM * (radius + off)
    facts = _Facts.stated(kernel, reached, width, how)
    largest, twice = largest_own(kernel, reached, width), torch.tensor(2.0, dtype=torch.float64)
    return float(facts.error(largest * twice / 2, off * twice, radius * twice))


def _facts(kernel: Kernel, values: _Values, radius: float, how: Arithmetic) -> _Facts:
    """What was stated of the kernel, if it does not contradict it, or else an estimate."""
    if kernel.lipschitz is None:
        return _estimated(kernel, values, how)
    facts = _Facts.stated(kernel, radius, values.left.shape[-1], how)
    _require_as_stated(kernel, values, facts, how)
    return facts


def _require_as_stated(kernel: Kernel, values: _Values, facts: _Facts, how: Arithmetic) -> None:
    rounding = facts.error(values.kernel, torch.zeros_like(values.kernel), values.size)
    if index := first_set(values.kernel.abs() > facts.returned):
        value = values.kernel[tuple(index)].item()
        raise KernelError(
            f"Kernel {brief(kernel.name)} contradicts its statement: it is {value:.6g} at "
            f"{at(index)}, and bound is {facts.largest:.6g}. Register it with a larger bound."
        )
    for side in (values, values.mirrored):
        _require_slope(kernel, side, facts, 2 * float(rounding.max()))
    _require_pairs(kernel, values, rounding)
    _require_rounding(kernel, values, facts, how)


def _require_pairs(kernel: Kernel, values: _Values, rounding: Tensor) -> None:
    """The kernel of a pair is the same if the other examples are not there."""
    alone = kernel.matrix(values.left, values.right[..., :1, :])
    if index := first_set((alone - values.kernel[..., :1]).abs() > rounding[..., :1]):
        raise KernelError(
            f"Kernel {brief(kernel.name)} is not a function of two points: at {at(index)} it is "
            f"{alone[tuple(index)].item():.6g} for the pair alone and "
            f"{values.kernel[tuple(index)].item():.6g} among the others. Constants cannot be "
            "stated of it: leave lipschitz out."
        )


def _require_rounding(kernel: Kernel, values: _Values, facts: _Facts, how: Arithmetic) -> None:
    off = 2 * NUDGE * how.roundoff * values.size
    allowed, change = facts.error(values.kernel, off, values.size), _nudged(kernel, values, how)
    if index := first_set(change > allowed):
        raise KernelError(
            f"Kernel {brief(kernel.name)} contradicts its statement: it changes by "
            f"{change[tuple(index)].item():.3g} at {at(index)} if a point moves by its last "
            f"digits, and lipschitz and rounding allow {allowed[tuple(index)].item():.3g}. Compute "
            "it without cancellation, such as distances by torch.cdist with "
            "compute_mode='donot_use_mm_for_euclid_dist', or register it with a larger rounding."
        )


def _require_slope(kernel: Kernel, values: _Values, facts: _Facts, rounding: float) -> None:
    for distance, change in _comparisons(values):
        allowed = ROOM * facts.slope * distance + rounding
        if index := first_set(change > _known(allowed)):
            raise KernelError(
                f"Kernel {brief(kernel.name)} contradicts its statement: it changes by "
                f"{change[tuple(index)].item():.6g} between two points of these data that are "
                f"{distance[tuple(index[:-1])].item():.6g} apart, and lipschitz is "
                f"{facts.slope:.6g}. Register it with a larger lipschitz; if it jumps, it has "
                "none: leave lipschitz out."
            )


def _comparisons(values: _Values) -> Iterator[_Comparison]:
    """Every point on the left with the next one and with the one nearest to it."""
    if values.left.shape[-2] < 2:
        return
    yield _compared(values, values.left.roll(1, -2), values.kernel.roll(1, -2))
    few = _Values(values.left[..., :COMPARED_POINTS, :], *values[1:])
    few = few._replace(kernel=values.kernel[..., :COMPARED_POINTS, :])
    nearest = _nearest(few.left)[..., None]
    yield _compared(few, *(part.take_along_dim(nearest, -2) for part in (few.left, few.kernel)))


def _compared(values: _Values, points: Tensor, kernel: Tensor) -> _Comparison:
    distance = _norm(values.left - points)[..., None]
    return _Comparison(distance, (values.kernel - kernel).abs())


def _nearest(points: Tensor) -> Tensor:
    """The number of the point nearest to each, of those that differ from it."""
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.where(distances > 0, inf).argmin(-1)


def _nudged(kernel: Kernel, values: _Values, how: Arithmetic) -> Tensor:
    """How far the kernel is off, as a run has it, of points as they are and with other last digits.

    The larger of the two is what counts.
    """
    dtype = torch.float32 if how.roundoff > UNIT_ROUNDOFF else torch.float64
    right = values.right.to(dtype)
    moved = (((1 + units * how.roundoff) * values.left).to(dtype) for units in (0, NUDGE))
    changes = [(kernel.matrix(left, right) - values.kernel).abs() for left in moved]
    return torch.maximum(*changes)


def _estimated(kernel: Kernel, values: _Values, how: Arithmetic) -> _Facts:
    """Slopes between points, and near each point, and how the kernel rounds there."""
    nearer = (1 - 2.0**-10) * values.left
    shrunk = _compared(values, nearer, kernel.matrix(nearer, values.right))
    found = (*_comparisons(values), *_comparisons(values.mirrored), shrunk)
    steepest = max(float((each.change / each.distance).nan_to_num(0, 0, 0).max()) for each in found)
    noise = ESTIMATE_ROOM * float(_nudged(kernel, values, how).max())
    units = _units(kernel, values.left.shape[-1]) * how.roundoff
    return _Facts(ESTIMATE_ROOM * steepest, inf, units, noise)


def _norm(points: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(points, dim=-1)
    return ROOM * norm


def _of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """The sum of a number of every point on the left and one of every point on the right."""
    return left[..., :, None] + right[..., None, :]


def _known(bound: Tensor) -> Tensor:
    """The bound, infinite where infinities met."""
    return bound.nan_to_num(nan=inf, posinf=inf)
