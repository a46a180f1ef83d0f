r"""Which activations can approximate everything: those of general decay.

An activation has general decay if some combination of its shifted copies decays polynomially,

    phi(x) = sum_i weight_i activation(x + shift_i),   |phi(x)|, |phi'(x)| <= C (1 + |x|)^-p,

with p > 1. Differences are such combinations: an activation with limits on both sides, such as
sigmoid, needs the first difference, one that is nearly a line on either side, such as relu,
softplus, gelu, silu and elu, the second. Here they are looked for up to order 4 and checked on a
range of 1e3, as far as rounding lets them be seen. The constant is measured there, not proved.

A polynomial has none: its differences are polynomials, and decay only when they are zero.
A periodic activation, such as cos, has none either, but needs none: its own Fourier series turns
an integral of waves, which is what every function here is, into a sum of units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, pi
from typing import Any

import torch
from torch import Tensor

from icgd.errors import UnsupportedActivationError, brief
from icgd.problems.functions import Evaluate

LARGEST_EXPONENT = 8.0
"""Where the search for an exponent ends: what decays exponentially has every exponent."""

HIGHEST_ORDER = 4
"""Of the differences that are tried; polynomials up to degree 3 vanish by then."""

_EXPONENTS = (LARGEST_EXPONENT, 6.0, 4.0, 3.0, 2.0, 1.5)  # the theorem needs more than 1
_NEAR, _FAR = 16.0, 1e3  # (1 + x)^8 exp(-x / 2) is largest at 15
_SHIFT = 1.0
_SEEN = 1e4  # a difference below so many roundings of its terms is taken for zero
_BETWEEN = 1.02  # points are at most 0.004 (1 + |x|) apart, which changes (1 + |x|)^8 by so much
_PERIODS = (2 * pi, pi, 1.0, 2.0)
_PERIODIC = 1e-9


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

    @property
    def order(self) -> int:
        """Which difference it is; 0 for a periodic activation."""
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
        UnsupportedActivationError: for a polynomial, for what neither decays nor repeats, and for
            what is no differentiable function of torch with finite values.

    Example:
        >>> import icgd, torch
        >>> icgd.general_decay(torch.sigmoid).order
        1
        >>> icgd.general_decay(torch.cos).period > 6.28
        True
    """
    kind = type(activation).__name__
    name = name or (str(getattr(activation, "__name__", kind)) if callable(activation) else kind)
    near = torch.linspace(0.0, _NEAR, 4001, dtype=torch.float64)
    far = torch.logspace(torch.tensor(_NEAR).log10().item(), 3.0, 2000, dtype=torch.float64)
    half = torch.cat([near + 1e-9, far[1:]])  # off the kinks, where a slope has no value
    x = torch.cat([-half.flip(0), half])
    _require_function(name, activation, x)
    shares = []
    for order in range(1, HIGHEST_ORDER + 1):
        weights = tuple((-1.0) ** i * comb(order, i) for i in range(order + 1))
        shifts = tuple(_SHIFT * (order / 2 - i) for i in range(order + 1))
        difference = GeneralDecay(name, weights, shifts, 0.0, 0.0)
        value, slope = _seen(difference, activation, x)
        if not bool(value.any()):
            raise UnsupportedActivationError(
                f"Activation {brief(name)} is a polynomial of degree {order - 1}: so is every "
                "combination of its copies, and it decays only if it is zero. Use an activation "
                "that is not a polynomial, such as relu or sigmoid."
            )
        size = torch.maximum(value, slope)
        is_near = x.abs() <= _NEAR
        for exponent in _EXPONENTS:  # the largest whose bound no longer grows far out
            scaled = (1 + x.abs()) ** exponent * size
            within, beyond = scaled[is_near].max(), scaled[~is_near].max()
            if beyond <= 2 * within:
                constant = _BETWEEN * float(torch.maximum(within, beyond))
                return replace(difference, exponent=exponent, constant=constant)
        shares.append(float(size[x.abs() > _FAR / 2].max() / size.max()))
    # Nothing decays: the activation has to repeat.
    x = torch.linspace(-_NEAR, _NEAR, 4001, dtype=torch.float64)
    value = activation(x)
    for period in _PERIODS:
        if float((activation(x + period) - value).abs().max()) <= _PERIODIC:
            return GeneralDecay(name, (), (), 0.0, float(value.abs().max()), period)
    raise UnsupportedActivationError(
        f"Activation {brief(name)} has no general decay: far out its differences up to order "
        f"{HIGHEST_ORDER} keep at least {min(shares):.1%} of their size. Use relu, sigmoid or "
        "another activation that is nearly a line on either side."
    )


def _require_function(name: str, activation: Any, x: Tensor) -> None:
    """Refuse what is no function of torch with finite values."""
    expected = (
        f"Activation {brief(name)} must be a function of a tensor, entry by entry, that torch can "
        "differentiate"
    )
    remedy = "Build it from torch functions, such as torch.tanh."
    if not callable(activation):
        raise UnsupportedActivationError(f"{expected}, but it is {brief(activation)}. {remedy}")
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
            f"Activation {brief(name)} has no finite value at x = {float(x[~finite][0]):.3g}, but "
            "general decay is checked for |x| up to 1000. Use an activation that grows no faster "
            "than a line."
        )


def _seen(found: GeneralDecay, activation: Evaluate, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sizes of the combination and its derivative, zero where rounding hides them."""
    x = x.clone().requires_grad_()
    value = found.combination(activation, x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    terms = found.combination(lambda z: activation(z).abs(), x).abs() + activation(x).abs() + 1
    hidden = _SEEN * 2.0**-53 * terms.detach()
    value, slope = value.detach().abs(), slope.abs()
    return torch.where(value > hidden, value, 0.0), torch.where(slope > hidden, slope, 0.0)
