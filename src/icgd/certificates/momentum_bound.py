r"""How errors of functional descent with momentum grow: on given examples, and on any.

What is left, r, and its last change, v, are off by errors that a step takes along: for an
eigenvalue t of the kernel, with a = step_size * t, and what is read a share c of v ahead,

    (r, v)  ->  T (r, v),    T = [[1 - a, m - a c], [-a, m - a c]]

T is not normal: its norm is larger than 1 though its powers shrink. So norms must not be multiplied
step by step. On given examples the products of T are followed from every step at which something
was added, for every eigenvalue. The largest entry over all eigenvalues is a norm, because kernels
of all steps have the same eigenvectors.

For every task in a domain the eigenvalues are not known. If all steps are alike and lie where T has
no eigenvalue z outside the unit circle, then

    r_k = h_k r_0 - q h_{k-1} (r_0 - v_0),    h_k = sum_i z_1^i z_2^(k-i),    |h_k| <= k + 1

with q = z_1 z_2, so that |r_k| <= (2 k + 1) |r_0| + k |v_0| and v_k = r_k - r_{k-1}.
Otherwise norms are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.certificates.intervals import ROOM
from icgd.problems.updates import FunctionalStep

EIGENVALUE_ROUNDING = 1e-12
"""The relative rounding of eigenvalues and of a product of two matrices of size 2."""


class Motion(NamedTuple):
    """The last change of what is left at every token, how far the transformer's own may be off
    from that of its twin, and from the difference of two values of the same run.
    """

    change: Tensor
    carried: Tensor
    apart: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Motion:
        """No change, exactly."""
        zeros = torch.zeros_like(like)
        return cls(zeros, zeros, zeros)


class Pair(NamedTuple):
    """Numbers for what is left, and for its last change."""

    left: Tensor
    change: Tensor


@dataclass
class Responses:
    """What all errors that were added so far have become on the examples, in the 2-norm.

    `eigenvalues` are those of K + noise I, with an axis of tasks or none. `added` has the norm of
    what each step added to r and to v; `grown` has, for each of these steps, the product of the
    matrices T since then: (*tasks, step, eigenvalue, 2, 2).
    """

    eigenvalues: Tensor
    added: list[Tensor] = field(default_factory=list)
    grown: Tensor | None = None

    def after(self, size: float, momentum: float, ahead: float, added: Tensor, now: Pair) -> Pair:
        """The norms after a step that adds errors of norm `added` (*tasks, 1, outputs)."""
        matrices = self._matrices(size, momentum, ahead).unsqueeze(-4)
        grown = None if self.grown is None else matrices @ self.grown
        unit = torch.eye(2).to(matrices).expand_as(matrices)
        self.grown = unit if grown is None else torch.cat([grown, unit], dim=-4)
        rounding = EIGENVALUE_ROUNDING * matrices.abs().amax((-4, -3, -2, -1))[..., None, None]
        self.added.append(ROOM * (added + 8 * rounding * (now.left + now.change)))
        gains = self.grown.abs().amax(-3).sum(-1)  # (*tasks, step, 2): an error in r and one in v
        sums = gains.mT @ torch.cat(self.added, dim=-2)
        left, change = (ROOM * sums).split(1, dim=-2)
        return Pair(left, change)

    def _matrices(self, size: float, momentum: float, ahead: float) -> Tensor:
        descent = size * self.eigenvalues
        kept = momentum - ahead * descent
        rows = torch.stack([1 - descent, kept, -descent, kept], dim=-1)
        matrices: Tensor = rows.unflatten(-1, (2, 2))
        return matrices


def multiplied(contraction: Tensor, reach: Tensor, kept: Tensor, added: Tensor, now: Pair) -> Pair:
    """The norms after a step whose matrices have these norms: I - size K, size K, m - c size K."""
    of_change = kept * now.change + added
    return Pair(ROOM * (contraction * now.left + of_change), ROOM * (reach * now.left + of_change))


def is_stable(update: FunctionalStep, largest: float) -> bool:
    """Whether all steps are alike and T has no eigenvalue outside the unit circle.

    That is for every eigenvalue of the kernel from 0 to `largest`: Jury's conditions.
    """
    if not update.is_constant or update.changes_kernel:
        return False
    momentum, reach = update.momentum_of(0), ROOM * update.size_of(0) * largest
    limit = 1 + 1 / (1 + 2 * momentum) if update.nesterov else 2 * (1 + momentum)
    return ROOM * reach <= limit
