r"""What no network of 2 layers reaches: a lower bound for the indicator of a ball, Lemma 1 of wang.

The law is that of Eldan and Shamir. Let B be the ball of volume 1 around 0 in R^d, R its radius,
and phi the Fourier transform of its indicator. The law has the density phi^2, and the indicator is
that of |x| <= r. Every unit of a network g of 2 layers is a function of <v, x> for one v, so that
the transform of g phi vanishes beyond tubes: of each v, what is within R of the line through v.
With psi, the transform of f phi, and k units

    integral (f - g)^2 phi^2 >= integral psi^2 beyond the tubes >= integral psi^2 (1 - k c)+,

c(xi) being the share of the sphere through xi that lies in a tube. This holds for every activation
that grows like a polynomial, and for sums of k different ones. In the units a = 2 pi R |x| and
s = |xi| / R, everything is an integral of Bessel functions in one variable:

    density of a                   d J_{d/2}(a)^2 / a
    psi^2 at s                     d s K(s)^2,   K(s) = integral_0^b J_{d/2}(a) J_{d/2-1}(s a) da
    c                              P(Beta((d - 1) / 2, 1/2) <= 1 / s^2)

with b = 2 pi R r. Here b is where J_{d/2}^2 has its first maximum: there the density of the law,
and so the jump of f phi, is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray
from scipy.special import betainc, jv

Floats = NDArray[np.float64]

FARTHEST = 8.0
"""Frequencies beyond this multiple of R are left out, which lowers the bound."""

N_NODES = 600
"""The nodes of each quadrature; twice as many change the bounds by less than 1e-5."""

N_RADII = 20_001
"""The points at which the distribution of radii is tabulated, in [0, 2]."""


@dataclass(frozen=True)
class HardBall:
    """The law in one dimension, scaled such that the ball has the radius 1."""

    dimension: int

    @cached_property
    def scale(self) -> float:
        """b: the argument of the Bessel function at the sphere."""
        order = self.dimension / 2
        arguments = np.linspace(order, order + 3 * order ** (1 / 3) + 2, 100_001)
        return float(arguments[np.argmax(jv(order, arguments) ** 2)])

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        """The mass of psi^2 at nodes of s in [1, FARTHEST], and the share of a tube there."""
        nodes, weights = leggauss(N_NODES)
        nodes, weights = (nodes + 1) / 2, weights / 2
        a = self.scale * nodes
        s = 1 + (FARTHEST - 1) * nodes**2
        d = self.dimension
        transform = (self.scale * weights * jv(d / 2, a)) @ jv(d / 2 - 1, np.outer(a, s))
        mass = d * s * transform**2 * 2 * (FARTHEST - 1) * nodes * weights
        return mass, betainc((d - 1) / 2, 0.5, s**-2)

    def least_error(self, n_units: float) -> float:
        """Return a lower bound on the mean squared error of 2 layers with this many units."""
        mass, share = self._spectrum
        return float(mass @ np.clip(1 - n_units * share, 0, None))

    @cached_property
    def _distribution(self) -> tuple[Floats, Floats]:
        """Radii and the probability of each smaller one."""
        radii = np.linspace(0, 2, N_RADII)
        density = np.zeros_like(radii)
        density[1:] = self.dimension * jv(self.dimension / 2, self.scale * radii[1:]) ** 2
        density[1:] /= radii[1:]
        steps = (density[1:] + density[:-1]) / 2 * np.diff(radii)
        return radii, np.concatenate(([0.0], np.cumsum(steps)))

    def probability(self, low: float, high: float) -> float:
        """Return the probability of |x|^2 between two numbers, of at most 4."""
        below_low, below_high = np.interp(np.sqrt([low, high]), *self._distribution)
        return float(below_high - below_low)

    def radii(self, low: float, high: float, shares: Floats) -> Floats:
        """Return the radii of these shares of the law between two values of |x|^2."""
        radii, below = self._distribution
        first, last = np.interp(np.sqrt([low, high]), radii, below)
        quantiles: Floats = np.interp(first + shares * (last - first), below, radii)
        return quantiles
