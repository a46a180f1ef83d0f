r"""Appendix C.8: the gates that let through what is meant for one type of input.

Two stacked blocks have the tags u and v: 1 for F, 0 for B, 2 for data. A gate adds M g(u, v) to all
rows, where g is 0 on its own type and at most -1 on the others, and then closes what is far below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from icgd_papers.theorems.cot.descent import drawn
from icgd_papers.theorems.statement import Comparison, Finding, Statement

TAGS = {"forward": (1.0, 0.0), "backward": (0.0, 1.0), "x": (0.0, 2.0), "y": (1.0, 2.0)}
"""The tags (u, v) of each type."""

Gates = Mapping[str, Callable[[float, float], float]]

PRINTED: Gates = {
    "forward": lambda u, v: u - v - 1,
    "backward": lambda u, v: -u - v + 1,
    "x": lambda u, v: -u + v - 1,
    "y": lambda u, v: u + v - 3,
}

RIGHT: Gates = {
    "forward": lambda u, v: u - v - 1,
    "backward": lambda u, v: -2 * u - v + 1,
    "x": lambda u, v: -u + v - 2,
    "y": lambda u, v: u + v - 3,
}

LARGEST = 8.0
"""M: twice the largest entry."""


def shifted_gate(z: Tensor, g: float) -> Tensor:
    """sigma_0(Z + M g) as printed: relu(Z + M g + M/2) - M/2."""
    return torch.relu(z + LARGEST * g + LARGEST / 2) - LARGEST / 2


def gated_copy(z: Tensor, g: float) -> Tensor:
    """relu(Z + M g) - relu(-Z + M g)."""
    return torch.relu(z + LARGEST * g) - torch.relu(-z + LARGEST * g)


def _entries(seed: int) -> Tensor:
    return drawn(seed, 20).clamp(-LARGEST / 2, LARGEST / 2)


def _gap(gate: Callable[[Tensor, float], Tensor], gates: Gates, seed: int) -> float:
    """The largest distance of a gate's answer from Z on its own type and from 0 on others."""
    z = _entries(seed)
    return max(
        float((gate(z, g(*tags)) - (z if own == kind else 0 * z)).abs().max())
        for own, g in gates.items()
        for kind, tags in TAGS.items()
    )


def printed_router(seed: int) -> Comparison:
    """The router of Appendix C.8 with its own gates and tags."""
    case = "the router of Appendix C.8, M = 8, on the four types: distance from Z or 0"
    return Comparison(case, _gap(shifted_gate, PRINTED, seed), 0.0, "largest entry")


def _closes(seed: int) -> Finding:
    """Both gates at g = 0 and g = -1, where they have to return Z and 0."""
    z = _entries(seed)
    found = [
        Comparison(
            f"{name}, M = 8, g = {g:g}: distance from {'0' if g else 'Z'}",
            float((gate(z, g) - (0 * z if g else z)).abs().max()),
            0.0 if gate is gated_copy else 1e-12,
            "largest entry",
        )
        for name, gate in (("gated copy", gated_copy), ("sigma_0", shifted_gate))
        for g in (0.0, -1.0)
    ]
    return Finding(tuple(found[:2]), printed=tuple(found[2:]))


GATE = Statement(
    paper="cot",
    label="Appendix C.8, gate",
    claim="The gate sigma_0 returns Z where its shift is 0 and 0 where its shift is -M or less.",
    formula="sigma_0(W) = relu(W + M/2) - M/2; sigma_0(Z - M) = 0",
    check=_closes,
    correction="relu(Z + M g) - relu(-Z + M g). The printed gate returns -M/2 where it is closed.",
)


def _wrong_shifts(gates: Gates) -> int:
    """How many of 16 shifts are not 0 on their own type, or above -1 on another."""
    return sum(
        g(*tags) != 0 if own == kind else g(*tags) > -1
        for own, g in gates.items()
        for kind, tags in TAGS.items()
    )


def _separates(seed: int) -> Finding:
    del seed  # all pairs are tried
    right, printed = (
        Comparison(f"{name}: wrong among 4 x 4 shifts", float(_wrong_shifts(gates)), 0.0, "shifts")
        for name, gates in (("corrected gates", RIGHT), ("printed gates", PRINTED))
    )
    return Finding((right,), printed=(printed,))


TYPES = Statement(
    paper="cot",
    label="Appendix C.8, tags",
    claim=(
        "Each of the four tag identities is met by its own type of input alone, and their shifts "
        "are at most -1 on the other types."
    ),
    formula="u - v = 1; -u - v + 1 = 0; -u + v = 1; u + v = 3",
    check=_separates,
    correction=(
        "Backward: -2u - v + 1, because the printed shift is 0 on the forward type too. x: "
        "-u + v - 2, because x-type inputs have (u, v) = (0, 2) and the printed identity is that "
        "of the backward type."
    ),
)
