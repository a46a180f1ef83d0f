"""Points that may be off: as they are in exact arithmetic, and moved by a head's transform."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from icgd.certificates.enclosures import Arithmetic
from icgd.problems.kernel_machine import KernelHead, as_matrix


class Rounded(NamedTuple):
    """Points as they are in exact arithmetic, and how far each coordinate may be off."""

    points: Tensor
    error: Tensor


def sizes_of(head: KernelHead, points: Tensor) -> Tensor:
    """What the sizes of the terms of G u add up to, |G| |u|."""
    if head.transform is None:
        return points.abs()
    return points.abs() @ as_matrix(head.transform, points).abs().mT


def moved_error(head: KernelHead, rounded: Rounded, how: Arithmetic) -> Tensor:
    """How far G u may be off."""
    width = rounded.points.shape[-1]
    carried = sizes_of(head, rounded.error)
    return carried + how.sum_of(width, sizes_of(head, rounded.points) + carried)
