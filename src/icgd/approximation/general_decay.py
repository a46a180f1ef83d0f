r"""Find which activations can approximate every function: those with general decay.

An activation has general decay if some linear combination of its shifted copies decays,

    phi(x) = sum_i weight_i activation(x + shift_i),   |phi(x)|, |phi'(x)| <= C (1 + |x|)^-p,

with p > 1. The search covers three kinds of combination, and products of them:

- differences, up to order 8. An activation with limits on both sides, such as sigmoid, needs the
  first; one that is asymptotically linear, such as relu, softplus, gelu, silu and elu, the second;
  and relu^k that of order k + 1;
- sums of copies shifted by half a period, if the activation has evenly spaced zeros:
  sinc(x) + sinc(x + 1) decays like |x|^-2, because the oscillations cancel;
- differences of copies shifted by a whole period.

They are evaluated up to |x| = 1000, or until rounding hides a thousandth of the largest value. The
exponent and the constant are not proved, and a search without result is not a proof either.

Some activations have none: a polynomial times a sinusoid keeps its form in every combination. At
the points x + n it is a polynomial in n times powers of a number of modulus 1, and decays only if
it is 0. So if a combination vanishes everywhere, the activation has no general decay. A periodic
activation, such as cos, does not need it: its Fourier series turns an integral of sinusoids, which
represents every function here, into a sum of units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb, pi
from typing import Any

import torch
from torch import Tensor

from icgd.errors import UnsupportedActivationError, quoted
from icgd.problems.scalar import Evaluate

LARGEST_EXPONENT = 8.0
"""The largest exponent of the search; exponential decay has every exponent."""

HIGHEST_ORDER = 8
"""The highest order of differences in the search; they annihilate polynomials of degree 7."""

MOST_SUMS = 4
"""The highest order of sums at half a period, and of differences at a whole period."""

_EXPONENTS = (LARGEST_EXPONENT, 6.0, 4.0, 3.0, 2.0, 1.5)  # the theorem needs more than 1
_NEAR, _FAR = 16.0, 1e3  # (1 + x)^8 exp(-x / 2) is largest at 15
_SHORTEST = 1.5 * _NEAR  # a shorter visible range says nothing about decay
_SEEN = 1e4  # a difference below so many rounding errors of its terms counts as zero
_CLEAR = 1e-3  # the visible range ends where rounding exceeds this share of the largest value
_GROWTH = 1.1  # an exponent too large by 1/6 makes the scaled value grow more when x doubles
_BETWEEN = 1.02  # sample distances are at most 0.004 (1 + |x|), which changes (1 + |x|)^8 by 2%
_PERIODS = (2 * pi, pi, 1.0, 2.0)
_PERIODIC = 1e-9
_REGULAR = 1e-3  # largest deviation of evenly spaced zeros, relative to their distance
_FEWEST = 16  # the fewest zeros that identify an oscillation


@dataclass(frozen=True)
class GeneralDecay:
    """A combination sum_i weights[i] activation(x + shifts[i]) <= constant (1 + |x|)^-exponent.

    The bound holds for the absolute values of the combination and of its derivative. A periodic
    activation has no weights, and the exponent 0.

    Attributes:
        activation: the name of the activation.
        weights: the factor of each shifted copy.
        shifts: the shift of each copy.
        exponent: the exponent of the decay.
        constant: the constant of the decay, measured and not proved.
        period: the period of a periodic activation, otherwise None.
        reach: the largest |x| of the measurement; farther out rounding hides the combination.

    Example:
        >>> import icgd, torch
        >>> found = icgd.general_decay(torch.relu)
        >>> found.weights, found.order
        ((1.0, -2.0, 1.0), 2)
    """

    activation: str
    weights: tuple[float, ...]
    shifts: tuple[float, ...]
    exponent: float
    constant: float
    period: float | None = None
    reach: float = _FAR

    @property
    def order(self) -> int:
        """The order of the difference or sum; 0 for a periodic activation."""
        return max(len(self.weights) - 1, 0)

    def combination(self, activation: Evaluate, x: Tensor) -> Tensor:
        """Return the combination at every entry of `x`.

        Args:
            activation: the activation itself, a function of a tensor.
            x: any tensor.

        Returns:
            A tensor of the same shape.

        Example:
            >>> import icgd, torch
            >>> hat = icgd.general_decay(torch.relu)
            >>> hat.combination(torch.relu, torch.tensor([-2.0, 0.0, 2.0]))
            tensor([0., 1., 0.])
        """
        terms = [w * activation(x + b) for w, b in zip(self.weights, self.shifts, strict=True)]
        return torch.stack(terms).sum(0)


def general_decay(activation: Any, name: str | None = None) -> GeneralDecay:
    """Find a combination of shifted copies of an activation that decays, or its period.

    Args:
        activation: a function of a tensor, applied entry by entry.
        name: the name of the activation; the default is that of the function.

    Returns:
        The combination of shifted copies that decays, or the period.

    Raises:
        UnsupportedActivationError: if the activation is a polynomial or a product of one with
            sinusoids, which have no general decay; if no combination is found; or if the activation
            is not a differentiable function of torch with finite values.

    Example:
        >>> import icgd, torch
        >>> icgd.general_decay(torch.sigmoid).order
        1
        >>> icgd.general_decay(torch.cos).period > 6.28
        True
        >>> found = icgd.general_decay(torch.sinc)
        >>> found.weights, found.shifts, found.exponent
        ((1.0, 1.0), (0.5, -0.5), 2.0)
    """
    kind = type(activation).__name__
    if not name:  # functions of icgd have the attribute `name`
        default = getattr(activation, "__name__", getattr(activation, "name", kind))
        name = str(default) if callable(activation) else kind
    near = torch.linspace(0.0, _NEAR, 4001, dtype=torch.float64)
    far = torch.logspace(torch.tensor(_NEAR).log10().item(), 3.0, 2000, dtype=torch.float64)
    half = torch.cat([near + 1e-9, far[1:]])  # off the kinks, where a slope has no value
    x = torch.cat([-half.flip(0), half])
    _require_function(name, activation, x)
    for order in range(1, HIGHEST_ORDER + 1):
        difference = (Copies(1.0, -1.0, order),)
        if (decay := _decay(name, activation, x, difference)) is not None:
            return decay
        if _vanishes(activation, difference):
            raise UnsupportedActivationError(
                f"Activation {quoted(name)} is a polynomial of degree {order - 1} up to rounding. "
                "Every combination of its shifted copies is a polynomial too, so it does not "
                "decay. Use an activation that is not a polynomial, such as relu or sigmoid."
            )
    half_periods = _half_periods(activation)
    points = torch.linspace(-_NEAR, _NEAR, 4001, dtype=torch.float64)
    value = activation(points)
    for period in (*_PERIODS, *(2 * half for half in half_periods)):
        if float((activation(points + period) - value).abs().max()) <= _PERIODIC:
            return GeneralDecay(name, (), (), 0.0, float(value.abs().max()), period)
    for half_period in half_periods:
        for factors in _cancelling_factors(half_period):
            if (decay := _decay(name, activation, x, factors)) is not None:
                return decay
            if _vanishes(activation, factors):
                raise UnsupportedActivationError(
                    f"Activation {quoted(name)} consists of polynomials and waves of period "
                    f"{2 * half_period:.6g} up to rounding, because a combination of its shifted "
                    "copies is zero. So every other combination repeats or grows. Use an "
                    "activation that is nearly a line on either side, such as relu or sigmoid."
                )
    searched = f"differences up to order {HIGHEST_ORDER}"
    if half_periods:
        searched += f" and sums of copies {half_periods[0]:.6g} apart, half a period, up to order "
        searched += f"{MOST_SUMS}"
    raise UnsupportedActivationError(
        f"No combination of shifted copies of activation {quoted(name)} was found that decays "
        f"(searched: {searched}). That does not prove that there is none. Use relu, sigmoid or "
        "another activation that is nearly a line on either side."
    )


@dataclass(frozen=True)
class Copies:
    """The operator f(x) -> f(x) + sign * f(x + shift), applied `power` times."""

    shift: float
    sign: float
    power: int


def _cancelling_factors(half_period: float) -> Iterator[tuple[Copies, ...]]:
    """Yield combinations in which waves cancel: sums at half a period, differences at a period.

    Each kind is also tried after differences of orders 1 to 3, which remove a constant, a line or a
    parabola beside the wave.
    """
    kinds = ((half_period, 1.0), (2 * half_period, -1.0))
    for first in range(4):
        for shift, sign in kinds:
            for power in range(1, MOST_SUMS + 1):
                copies = Copies(shift, sign, power)
                yield (Copies(1.0, -1.0, first), copies) if first else (copies,)


def _combined(name: str, factors: tuple[Copies, ...]) -> GeneralDecay:
    """Return the product of all factors as a combination of copies, with shifts centred at 0."""
    weights = {0.0: 1.0}
    for factor in factors:
        product = dict[float, float]()
        for i in range(factor.power + 1):
            coefficient = factor.sign**i * comb(factor.power, i)
            for shift, weight in weights.items():
                place = shift + factor.shift * (factor.power / 2 - i)
                product[place] = product.get(place, 0.0) + coefficient * weight
        weights = product
    nonzero = {shift: weight for shift, weight in weights.items() if weight != 0.0}
    return GeneralDecay(name, tuple(nonzero.values()), tuple(nonzero), 0.0, 0.0)


def _decay(
    name: str, activation: Evaluate, x: Tensor, factors: tuple[Copies, ...]
) -> GeneralDecay | None:
    """Return the combination with its exponent and constant, or None if no decay is visible."""
    combination = _combined(name, factors)
    value, slope, hidden = _visible(combination, activation, x)
    size, distance = torch.maximum(value, slope), x.abs()
    largest = size[distance <= _NEAR].max()
    is_hidden = hidden > _CLEAR * largest
    reach = float(distance[is_hidden].min()) if is_hidden.any() else _FAR
    if reach < _SHORTEST or largest == 0:
        return None
    is_seen = ~is_hidden & (distance <= reach)
    # Take the largest exponent for which (1 + |x|)^exponent |phi| does not grow at large |x|.
    for exponent in _EXPONENTS:
        scaled = ((1 + distance) ** exponent * size).where(is_seen, 0.0)
        ends = ((0.0, _NEAR), (_NEAR, reach), (reach / 4, reach / 2), (reach / 2, reach))
        near, far, inner, outer = (
            scaled[(low <= distance) & (distance <= high)].max() for low, high in ends
        )
        if far <= 2 * near and outer <= _GROWTH * inner:
            constant = _BETWEEN * float(torch.maximum(near, far))
            return replace(combination, exponent=exponent, constant=constant, reach=reach)
    return None


def _vanishes(activation: Evaluate, factors: tuple[Copies, ...]) -> bool:
    """Return whether a combination is zero up to rounding, for small and for large shifts.

    Small shifts reveal local features, large shifts slow changes.
    """
    n_copies = sum(factor.power for factor in factors)
    longest = 1.5 * _FAR / n_copies
    wide = []
    for factor in factors:  # an odd multiple of half a period, or any number of periods
        n = max(1, int(longest / factor.shift))
        n -= factor.sign > 0 and n % 2 == 0
        wide.append(replace(factor, shift=n * factor.shift))
    for copies, reach in ((factors, _FAR), (tuple(wide), _FAR / 4)):
        x = torch.linspace(-reach, reach, 20_001, dtype=torch.float64) + 1e-9
        value, slope, _ = _visible(_combined("", copies), activation, x)
        if value.any() or slope.any():
            return False
    return True


def _half_periods(activation: Evaluate) -> tuple[float, ...]:
    """Return candidates for half the period of the activation, or of one of its differences.

    It is measured from zeros at large |x|, if these are evenly spaced. A simple fraction of 1 or pi
    close to the measurement is the first candidate, because an inexact period does not cancel
    waves.
    """
    x = torch.linspace(_FAR / 2, _FAR, 2**16 + 1, dtype=torch.float64)
    for order in range(4):
        difference = _combined("", (Copies(1.0, -1.0, order),))
        value, _, _ = _visible(difference, activation, x)
        if not value.any():
            return ()

        def changes(at: Tensor, difference: GeneralDecay = difference) -> Tensor:
            return difference.combination(activation, at)

        signs = changes(x) > 0
        places = (signs[1:] != signs[:-1]).nonzero().flatten()
        if len(places) < _FEWEST:
            continue
        low, high, rises = x[places], x[places + 1], signs[places + 1]
        for _ in range(40):  # bisect each zero
            middle = (low + high) / 2
            is_beyond = (changes(middle) > 0) == rises
            low, high = torch.where(is_beyond, low, middle), torch.where(is_beyond, middle, high)
        steps = low[2:] - low[:-2]  # from one zero to the next but one: whole periods
        if float(steps.max() - steps.min()) > _REGULAR * float(steps.mean()):
            continue
        last = (len(low) - 1) // 2 * 2
        measured = float(low[last] - low[0]) / last
        simple = [a * unit / b for unit in (1.0, pi) for b in range(1, 9) for a in range(1, 9)]
        closest = min(simple, key=lambda number: abs(number - measured))
        is_simple = abs(closest - measured) <= 1e-4 * measured
        return (closest, measured) if is_simple and closest != measured else (measured,)
    return ()


def _require_function(name: str, activation: Any, x: Tensor) -> None:
    """Raise `UnsupportedActivationError` unless this is a torch function with finite values."""
    expected = (
        f"Activation {quoted(name)} must be a function of a tensor, entry by entry, that torch can "
        "differentiate"
    )
    remedy = "Build it from torch functions, such as torch.tanh."
    if not callable(activation):
        raise UnsupportedActivationError(f"{expected}, but it is {quoted(activation)}. {remedy}")
    try:
        value = activation(x.clone().requires_grad_())
    except (TypeError, ValueError, RuntimeError) as problem:
        raise UnsupportedActivationError(
            f"{expected}, but {str(problem).rstrip('.')}. {remedy}"
        ) from None
    if not isinstance(value, Tensor) or value.shape != x.shape or not value.requires_grad:
        raise UnsupportedActivationError(
            f"{expected}, but it does not return a tensor of the same shape with a derivative. "
            f"{remedy}"
        )
    if not bool((finite := value.isfinite()).all()):
        raise UnsupportedActivationError(
            f"Activation {quoted(name)} is not finite at x = {float(x[~finite][0]):.3g}, but "
            "general decay is checked for |x| up to 1000. Use an activation that grows no faster "
            "than a line."
        )


def _visible(
    combination: GeneralDecay, activation: Evaluate, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return |combination|, |its derivative|, and the level below which rounding hides either.

    Hidden values are set to zero.
    """
    x = x.clone().requires_grad_()
    value = combination.combination(activation, x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    with torch.no_grad():
        sizes = replace(combination, weights=tuple(map(abs, combination.weights)))
        terms = sizes.combination(lambda z: activation(z).abs(), x) + 1
        hidden = _SEEN * 2.0**-53 * terms
        value, slope = value.abs(), slope.abs()
        value, slope = (torch.where(size > hidden, size, 0.0) for size in (value, slope))
        return value, slope, hidden
