r"""Descent with errors: Lemma 14.

With w' = Proj(w - eta grad f(w) + e), |e| <= eta eps, and eta <= 1 / L_f,

    f(w') - f(w) <= -|w' - w|^2 / (4 eta) + eta eps^2,   |G(w)| <= |w' - w| / eta + eps,

which summed over l = 0 .. L-1 gives the mean of |G|^2 that the lemma prints; and the distance e_l
to exact descent obeys e_l <= (1 + eta L_f) e_{l-1} + eta eps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.curves import convergence
from icgd_papers.theorems.wu.network import draw, normal

Gradient = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Descent:
    """Projected descent on a box, with an error of norm eta eps in every step."""

    gradient: Gradient
    box: float
    step: float
    eps: float = 0.0

    def exact(self, w: Tensor) -> Tensor:
        return (w - self.step * self.gradient(w)).clamp(-self.box, self.box)

    def mapping(self, w: Tensor) -> float:
        """The squared norm of the gradient mapping."""
        return float(((w - self.exact(w)) / self.step).square().sum())

    def path(self, start: Tensor, n_steps: int, seed: int = 0) -> list[Tensor]:
        """w^0 .. w^L, with errors in random directions."""
        source, found = draw(seed), [start]
        for _ in range(n_steps):
            error = normal(source, *start.shape)
            error *= self.step * self.eps / error.norm()
            moved = found[-1] - self.step * self.gradient(found[-1]) + error
            found.append(moved.clamp(-self.box, self.box))
        return found


def lemma_14(seed: int) -> Finding:
    """Each inequality of the lemma, with and without what is misprinted."""
    growth, grown = _growth()
    return Finding(
        right=(
            _mean_of_mappings(seed),
            _compiled(seed),
            _steep(1 / 10.0, "eta = 1/L_f"),
            _first_inequality(first=0),
            Comparison(grown, growth, 10 * 1e-3 * 2.0**10, "with (1 + eta L_f)^l"),
        ),
        printed=(
            _steep(10.0, "eta = L_f"),
            _first_inequality(first=1),
            Comparison(grown, growth, 10 * 1e-3 * 1.1**10, "with (1 + n L_f)^l"),
        ),
    )


def _mean_of_mappings(seed: int) -> Comparison:
    """f(w) = sum_k cos(w_k + k), which is not convex in any coordinate; L_f = 1."""
    shift = torch.arange(5, dtype=torch.float64)
    descent = Descent(lambda w: -torch.sin(w + shift), box=4.0, step=1.0, eps=0.1)
    start = torch.zeros(5, dtype=torch.float64)
    length, drop = 50, float(torch.cos(shift).sum()) + 5
    mean = sum(map(descent.mapping, descent.path(start, length, seed)[:-1])) / length
    allowed = 8 * drop / (descent.step * length) + 10 * descent.eps**2
    return Comparison("f = sum cos(w_k + k), eta = 1/L_f, L = 50", mean, allowed, "mean of |G|^2")


def _compiled(seed: int) -> Comparison:
    """The same mean for a compiled relu-stack, with f(w^0) for f(0)."""
    last = convergence(seed, (100,))[-1]
    return Comparison("a compiled 2-4-1 tanh relu-stack, L = 100", last.mean, last.bound, "|G|^2")


def _steep(step: float, words: str) -> Comparison:
    """f(w) = 5 (w - 1)^2 on [-10, 10], L_f = 10, without any error."""
    descent = Descent(lambda w: 10 * (w - 1), box=10.0, step=step)
    length, start = 20, torch.zeros(1, dtype=torch.float64)
    mean = sum(map(descent.mapping, descent.path(start, length)[:-1])) / length
    return Comparison(f"f = 5 (w - 1)^2, {words}, L = 20", mean, 40 / (step * length), "|G|^2")


def _first_inequality(first: int) -> Comparison:
    """f(w) = w, whose gradient mapping is 1 everywhere inside a large box; L = 2."""
    descent = Descent(torch.ones_like, box=100.0, step=1.0)
    sizes = [descent.mapping(w) for w in descent.path(torch.zeros(1, dtype=torch.float64), 1)]
    words = f"f = w, L = 2, sum from l = {first}"
    return Comparison(words, min(sizes[first:]), sum(sizes[first:]) / 2, "smallest |G|^2")


def _growth() -> tuple[float, str]:
    """f(w) = -w^2 / 20, L_f = 0.1, eta = 10, n = 1: errors in one direction double every step."""
    descent = Descent(lambda w: -0.1 * w, box=1e9, step=10.0)
    exact = off = torch.zeros(1, dtype=torch.float64)
    for _ in range(10):
        exact, off = descent.exact(exact), descent.exact(off) + 10.0 * 1e-3
    words = "f = -w^2 / 20, L_f = 0.1, eta = 1/L_f = 10, n = 1, eps = 0.001, l = 10"
    return float((off - exact).abs()), words


LEMMA_14 = Statement(
    paper="wu",
    label="Lemma 14",
    claim=(
        "If eta <= L_f, projected descent with errors of norm eta eps has gradient mappings whose"
        " squares are on average at most 8 (f(0) - inf f) / (eta L) + 10 eps^2, and it is never"
        " further from exact descent than L_f^-1 (1 + n L_f)^l eps."
    ),
    formula=(
        "min_{l in [L-1]} |G(w^l)|^2 <= (1/L) sum_{l=1}^{L-1} |G(w^l)|^2"
        " <= 8 (f(0) - inf f) / (eta L) + 10 eps^2, |w^l - w_GD^l| <= L_f^-1 (1 + n L_f)^l eps"
    ),
    check=lemma_14,
    correction=(
        "eta <= 1 / L_f; the sum starts at l = 0, for a mean of L - 1 squares is no mean of L;"
        " and (1 + eta L_f)^l, for there is no n in the lemma."
    ),
)
