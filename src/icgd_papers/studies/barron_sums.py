r"""Sums of n units for one function of bounded Barron norm: drawn by lot, or chosen greedily.

The lottery is that of the proof of Lemma 5 of wang. With f(x) = integral e^(i w.x) F(w) dw,
sigma(t) = e^(-t^2/2), a = 1, p = 2,

    f(x) = E [ J cos(b) sigma(w.x + b) ],   (w, b) of density h(b, w) F(w) / I,
    h(b, w) = (1 + max(0, |b| - R |w|))^(-2),   J = I / (2 pi S h),   S = e^(-1/2) / sqrt(2 pi),

and the mean of n drawn units is off by at most C / sqrt(n) in L^2, in root mean square, with
C = |Omega|^(1/2) I C_p / (2 pi S). For f = e^(-|x|^2/2) on the unit ball all of it is explicit. The
greedy sum takes units from the same law, each time the one that points most along what is left,
and chooses all coefficients by least squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, gamma, pi, sqrt

import torch
from torch import Tensor

REACH = 1.0
"""R, the radius of Omega."""

UNIT = exp(-0.5) / sqrt(2 * pi)
"""The Fourier transform of the activation at 1."""

DECAY = 4 * exp(-0.5)
"""C_p for p = 2: the largest (1 + t)^2 e^(-t^2/2), at t = 1."""

N_POINTS = 4000
"""The number of random points in a ball; an interval has a grid of 201."""

AT_ONCE = 2000
POINT_SEED = 1


@dataclass(frozen=True)
class Lottery:
    """f = e^(-|x|^2/2) on the unit ball of one dimension, and the law of the proof's units."""

    dimension: int

    @property
    def mean_frequency(self) -> float:
        """The mean of |w| under F, a normal density."""
        return sqrt(2) * gamma((self.dimension + 1) / 2) / gamma(self.dimension / 2)

    @property
    def barron_norm(self) -> float:
        """The integral of (1 + |w|) F(w)."""
        return 1 + self.mean_frequency

    @property
    def total(self) -> float:
        """I: the integral of h F is that of (2 R |w| + 2) F."""
        return 2 * self.barron_norm

    @property
    def volume(self) -> float:
        """|Omega|."""
        return float(pi ** (self.dimension / 2) / gamma(self.dimension / 2 + 1))

    @property
    def constant(self) -> float:
        """C, so that n units are off by at most C / sqrt(n)."""
        return sqrt(self.volume) * self.total * DECAY / (2 * pi * UNIT)

    @cached_property
    def points(self) -> Tensor:
        """Where functions are compared, a row for each point."""
        if self.dimension == 1:
            return torch.linspace(-1, 1, 201, dtype=torch.float64)[:, None]
        source = torch.Generator().manual_seed(POINT_SEED)
        normal = torch.randn(N_POINTS, self.dimension, generator=source, dtype=torch.float64)
        radii = torch.rand(N_POINTS, 1, generator=source, dtype=torch.float64)
        inside: Tensor = radii ** (1 / self.dimension) * normal / normal.norm(dim=1, keepdim=True)
        return inside

    @property
    def wanted(self) -> Tensor:
        """f at the points."""
        return torch.exp(-self.points.square().sum(1) / 2)

    def draw_units(self, n: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw n pairs (w, b) of the density h F / I; in one dimension b takes both signs."""
        uniform = torch.rand(3, n, generator=source, dtype=torch.float64)
        normal = torch.randn(n, generator=source, dtype=torch.float64)
        # |w| F is the law of a chi with one more degree of freedom, of weight E |w| beside F's.
        more = torch.sqrt(-2 * torch.log1p(-uniform[0]))
        is_longer = uniform[1] * self.barron_norm < self.mean_frequency
        first = torch.where(is_longer, more, normal.abs())
        size, direction = self._lengthened(first, source)
        position = (2 * uniform[2] - 1) * (REACH * size + 1)  # flat to R |w|, then 1 / (1 + t)^2
        beyond = (position.abs() - REACH * size).clamp_min(0.0)
        far = position.sign() * (REACH * size + beyond / (1 - beyond))
        return size[:, None] * direction, torch.where(beyond > 0, far, position)

    def _lengthened(self, first: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return |w| with the other dimensions added to the first, and a uniform direction."""
        if self.dimension == 1:
            return first, torch.ones(len(first), 1, dtype=torch.float64)
        others, normal = (
            torch.randn(len(first), width, generator=source, dtype=torch.float64)
            for width in (self.dimension - 1, self.dimension)
        )
        size = (first.square() + others.square().sum(1)).sqrt()
        return size, normal / normal.norm(dim=1, keepdim=True)

    def drawn_sum(self, n: int, source: torch.Generator) -> Tensor:
        """Return the mean of n drawn units, at the points."""
        w, b = self.draw_units(n, source)
        h = (1 + (b.abs() - REACH * w.norm(dim=1)).clamp_min(0.0)) ** -2
        size = self.total / (2 * pi * UNIT) / h * torch.cos(b)
        total = torch.zeros(len(self.points), dtype=torch.float64)
        for chunk in torch.arange(n).split(AT_ONCE):
            total += self._units(w[chunk], b[chunk]) @ size[chunk]
        return total / n

    def drawn_distance(self, n: int, repeats: int, seed: int) -> float:
        """Return the root mean square of |f - f_n| in L^2 over lotteries."""
        source = torch.Generator().manual_seed(seed)
        gaps = [self.drawn_sum(n, source) - self.wanted for _ in range(repeats)]
        return self._norm(torch.stack(gaps))

    def greedy_distances(self, sizes: tuple[int, ...], n_drawn: int, seed: int) -> list[float]:
        """Return |f - f_n| in L^2 for greedy sums of these sizes, chosen from `n_drawn` units."""
        source = torch.Generator().manual_seed(seed)
        units = self._units(*self.draw_units(n_drawn, source))
        residual, distances = self.wanted.clone(), []
        for n in range(1, max(sizes) + 1):
            norms = units.norm(dim=0).clamp_min(1e-9)  # a chosen unit is 0 from then on
            best = int(((residual @ units).abs() / norms).argmax())
            axis = units[:, best] / norms[best]
            residual = residual - axis * (axis @ residual)
            units = units - torch.outer(axis, axis @ units)
            distances += [self._norm(residual[None])] if n in sizes else []
        return distances

    def _units(self, w: Tensor, b: Tensor) -> Tensor:
        """Return sigma(w.x + b), a row for each point and a column for each unit."""
        return torch.exp(-((self.points @ w.mT + b) ** 2) / 2)

    def _norm(self, gaps: Tensor) -> float:
        """Return the root mean square of some functions' norms in L^2."""
        return sqrt(float(gaps.square().mean()) * self.volume)
