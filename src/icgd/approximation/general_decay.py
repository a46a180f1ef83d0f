r"""Which activations can approximate everything: those of general decay.

An activation has general decay if some combination of its shifted copies decays polynomially,

    phi(x) = sum_i weight_i activation(x + shift_i),   |phi(x)|, |phi'(x)| <= C (1 + |x|)^-p,

with p > 1. Three kinds of combination are looked at, and products of them:

- differences, up to order 8. An activation with limits on both sides, such as sigmoid, needs the
  first, one that is nearly a line on either side, such as relu, softplus, gelu, silu and elu, the
  second, and relu^k that of order k + 1;
- sums of copies that are half a period apart, if the activation changes its sign at regular places:
  sinc(x) + sinc(x + 1) falls like |x|^-2, because the waves cancel;
- differences of copies that are a whole period apart.

They are measured out to |x| = 1000, or as far as rounding lets a thousandth of them be seen: the
exponent and the constant are not proved, and if nothing is found, that proves nothing either.

What can be told is where a combination is 0 everywhere. A polynomial times a wave keeps its form in
every combination: on the places x + n it is a polynomial in n, times powers of a number of size 1,
and decays only if it is 0. So polynomials, waves and their products have no general decay. A
periodic activation, such as cos, needs none: its own Fourier series turns an integral of waves,
which is what every function here is, into a sum of units.
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
"""Where the search for an exponent ends: what decays exponentially has every exponent."""

HIGHEST_ORDER = 8
"""Of the differences that are tried; polynomials up to degree 7 vanish by then."""

MOST_SUMS = 4
"""Of the sums half a period apart, and of the differences a whole period apart."""

_EXPONENTS = (LARGEST_EXPONENT, 6.0, 4.0, 3.0, 2.0, 1.5)  # the theorem needs more than 1
_NEAR, _FAR = 16.0, 1e3  # (1 + x)^8 exp(-x / 2) is largest at 15
_SHORTEST = 1.5 * _NEAR  # what is seen no further out says nothing about decay
_SEEN = 1e4  # a difference below so many roundings of its terms is taken for zero
_CLEAR = 1e-3  # rounding hides no more than so much of the largest value
_GROWTH = 1.1  # a power of the distance that is too high by 1/6 shows where it doubles
_BETWEEN = 1.02  # points are at most 0.004 (1 + |x|) apart, which changes (1 + |x|)^8 by so much
_PERIODS = (2 * pi, pi, 1.0, 2.0)
_PERIODIC = 1e-9
_REGULAR = 1e-3  # how evenly zeros are spaced, relative to their distance
_FEWEST = 16  # so many zeros tell a wave


@dataclass(frozen=True)
class GeneralDecay:
    """sum_i weights[i] activation(x + shifts[i]) decays at least like constant (1 + |x|)^-exponent.

    So does its derivative. A periodic activation has no weights, and an exponent of 0.

    Attributes:
        activation: the name of the activation.
        weights: what multiplies each shifted copy.
        shifts: how far each copy is shifted.
        exponent: how fast the sum decays.
        constant: the factor of the decay, measured and not proved.
        period: the period of an activation that does not decay but repeats.
        reach: it was measured for |x| up to this number: far out rounding hides the combinations of
            what grows.

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
        """Which difference it is, or how many copies are added; 0 for a periodic activation."""
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
    """Find what decays of an activation, a function of a tensor that is applied entry by entry.

    Args:
        activation: the function.
        name: what it is called; the default is the name of the function.

    Returns:
        The combination of shifted copies that decays, or the period.

    Raises:
        UnsupportedActivationError: for a polynomial and for its products with waves, which have
            none, where none is found, and for what is no differentiable function of torch with
            finite values.

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
    if not name:  # a function of icgd has a `name` of its own
        own = getattr(activation, "__name__", getattr(activation, "name", kind))
        name = str(own) if callable(activation) else kind
    near = torch.linspace(0.0, _NEAR, 4001, dtype=torch.float64)
    far = torch.logspace(torch.tensor(_NEAR).log10().item(), 3.0, 2000, dtype=torch.float64)
    half = torch.cat([near + 1e-9, far[1:]])  # off the kinks, where a slope has no value
    x = torch.cat([-half.flip(0), half])
    _require_function(name, activation, x)
    for order in range(1, HIGHEST_ORDER + 1):
        difference = (Copies(1.0, -1.0, order),)
        if (found := _decay(name, activation, x, difference)) is not None:
            return found
        if _vanishes(activation, difference):
            raise UnsupportedActivationError(
                f"Activation {quoted(name)} is a polynomial of degree {order - 1}, as far as "
                "float64 shows: so is every combination of its copies, and it decays only if it is "
                "zero. Use an activation that is not a polynomial, such as relu or sigmoid."
            )
    wave = _half_period(activation)
    repeated = torch.linspace(-_NEAR, _NEAR, 4001, dtype=torch.float64)
    value = activation(repeated)
    for period in (*_PERIODS, *(2 * part for part in wave)):
        if float((activation(repeated + period) - value).abs().max()) <= _PERIODIC:
            return GeneralDecay(name, (), (), 0.0, float(value.abs().max()), period)
    for half_period in wave:
        for factors in _with_waves(half_period):
            if (found := _decay(name, activation, x, factors)) is not None:
                return found
            if _vanishes(activation, factors):
                raise UnsupportedActivationError(
                    f"Activation {quoted(name)} is made of polynomials and waves of period "
                    f"{2 * half_period:.6g}, as far as float64 shows: a combination of its copies "
                    "is zero, so that every other one repeats or grows, and decays only if it is "
                    "zero too. Use an activation that is nearly a line on either side, such as "
                    "relu or sigmoid."
                )
    looked_at = f"differences up to order {HIGHEST_ORDER}"
    if wave:
        looked_at += f" and sums of copies {wave[0]:.6g} apart, half a period, up to order "
        looked_at += f"{MOST_SUMS}"
    raise UnsupportedActivationError(
        f"No combination of shifted copies of activation {quoted(name)} was found that decays "
        f"(looked at {looked_at}). That is no proof that there is none. Use relu, sigmoid or "
        "another activation that is nearly a line on either side."
    )


@dataclass(frozen=True)
class Copies:
    """f(x) + sign * f(x + shift), `power` times one after the other."""

    shift: float
    sign: float
    power: int


def _with_waves(half_period: float) -> Iterator[tuple[Copies, ...]]:
    """Combinations in which waves cancel: sums, differences a period apart, and after differences.

    A line or a parabola beside the wave needs a second or a third difference.
    """
    kinds = ((half_period, 1.0), (2 * half_period, -1.0))
    for first in range(4):
        for shift, sign in kinds:
            for power in range(1, MOST_SUMS + 1):
                copies = Copies(shift, sign, power)
                yield (Copies(1.0, -1.0, first), copies) if first else (copies,)


def _combined(name: str, factors: tuple[Copies, ...]) -> GeneralDecay:
    """Return the combination that all factors make together, its shifts centred around 0."""
    weights = {0.0: 1.0}
    for factor in factors:
        longer = dict[float, float]()
        for i in range(factor.power + 1):
            share = factor.sign**i * comb(factor.power, i)
            for shift, weight in weights.items():
                place = shift + factor.shift * (factor.power / 2 - i)
                longer[place] = longer.get(place, 0.0) + share * weight
        weights = longer
    kept = {shift: weight for shift, weight in weights.items() if weight != 0.0}
    return GeneralDecay(name, tuple(kept.values()), tuple(kept), 0.0, 0.0)


def _decay(
    name: str, activation: Evaluate, x: Tensor, factors: tuple[Copies, ...]
) -> GeneralDecay | None:
    """Return the combination with its exponent and constant, or None if it is not seen to decay."""
    combination = _combined(name, factors)
    value, slope, hidden = _seen(combination, activation, x)
    size, distance = torch.maximum(value, slope), x.abs()
    largest = size[distance <= _NEAR].max()
    is_hidden = hidden > _CLEAR * largest
    reach = float(distance[is_hidden].min()) if is_hidden.any() else _FAR
    if reach < _SHORTEST or largest == 0:
        return None
    is_seen = ~is_hidden & (distance <= reach)
    for exponent in _EXPONENTS:  # the largest whose bound no longer grows far out
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
    """Return whether a combination is zero, as far as rounding shows, with near and with far
    copies.

    Near ones show what is small and local, far ones what changes slowly.
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
        value, slope, _ = _seen(_combined("", copies), activation, x)
        if value.any() or slope.any():
            return False
    return True


def _half_period(activation: Evaluate) -> tuple[float, ...]:
    """Half the distance of every other zero far out, if they are evenly spaced, or of a difference.

    A number close to a simple fraction of 1 or pi is taken for it, and tried first: where it is
    off, waves do not cancel.
    """
    x = torch.linspace(_FAR / 2, _FAR, 2**16 + 1, dtype=torch.float64)
    for order in range(4):
        difference = _combined("", (Copies(1.0, -1.0, order),))
        value, _, _ = _seen(difference, activation, x)
        if not value.any():
            return ()

        def changes(at: Tensor, found: GeneralDecay = difference) -> Tensor:
            return found.combination(activation, at)

        signs = changes(x) > 0
        places = (signs[1:] != signs[:-1]).nonzero().flatten()
        if len(places) < _FEWEST:
            continue
        low, high, rises = x[places], x[places + 1], signs[places + 1]
        for _ in range(40):  # bisection
            middle = (low + high) / 2
            is_beyond = (changes(middle) > 0) == rises
            low, high = torch.where(is_beyond, low, middle), torch.where(is_beyond, middle, high)
        steps = low[2:] - low[:-2]  # rising zeros, then falling ones: whole periods
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
    """Refuse what is no function of torch with finite values."""
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
            f"Activation {quoted(name)} has no finite value at x = {float(x[~finite][0]):.3g}, but "
            "general decay is checked for |x| up to 1000. Use an activation that grows no faster "
            "than a line."
        )


def _seen(found: GeneralDecay, activation: Evaluate, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sizes of a combination and its derivative, and what rounding hides of either.

    They are zero where they are hidden.
    """
    x = x.clone().requires_grad_()
    value = found.combination(activation, x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    with torch.no_grad():
        sizes = replace(found, weights=tuple(map(abs, found.weights)))
        terms = sizes.combination(lambda z: activation(z).abs(), x) + 1
        hidden = _SEEN * 2.0**-53 * terms
        value, slope = value.abs(), slope.abs()
        value, slope = (torch.where(part > hidden, part, 0.0) for part in (value, slope))
        return value, slope, hidden
