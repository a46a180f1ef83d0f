"""Momentum: the share of the last change that a step keeps, for all steps or for each of them."""

from __future__ import annotations

from math import sqrt

from icgd.errors import SettingError
from icgd.problems.settings import count, entries, finite, is_row, positive, within

Schedule = float | tuple[float, ...]
"""One number for all steps, or one for each step."""

MOST_SCHEDULED = 10**6
"""The most steps that have numbers of their own: a second of work."""


def as_momentum(value: object) -> Schedule | None:
    """Momentum for all steps, or one for each of them; None if there is none."""
    if value is None:
        return None
    if not is_row(value):
        return _share(value)
    shares = tuple(_share(share) for share in entries(value))
    if not shares:
        raise SettingError("momentum is empty; give one number for each step.")
    return shares


def _share(value: object) -> float:
    share = finite("momentum", value)
    within("momentum", share, 0.0, 1.0)
    return share


class Accelerated:
    """What updates with momentum say of a step; `momentum` and `nesterov` are their fields."""

    momentum: Schedule | None
    nesterov: bool

    def momentum_of(self, step: int) -> float:
        """The momentum of a step.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The momentum.

        Example:
            >>> import icgd
            >>> icgd.ProximalStep(0.1, momentum=(0.0, 0.5)).momentum_of(1)
            0.5
        """
        return entry_of(self.momentum, step)

    def lookahead_of(self, step: int) -> float:
        """How much of the last change is added before the gradient is taken.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The momentum, or 0 if the gradient is taken where the step begins.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep(0.1, momentum=0.5, nesterov=True).lookahead_of(0)
            0.5
        """
        momentum = self.momentum_of(step)
        return momentum if self.nesterov else 0.0


def entry_of(momentum: Schedule | None, step: int) -> float:
    """The momentum of a step, counted from 0; without momentum it is 0."""
    share = momentum[step] if isinstance(momentum, tuple) else momentum
    return share or 0.0


def span_in_words(schedule: Schedule) -> str:
    """One number, or the least and the largest of a schedule."""
    numbers = schedule if isinstance(schedule, tuple) else (schedule,)
    least, largest = min(numbers), max(numbers)
    return f"{least:g} to {largest:g}" if least < largest else f"{least:g}"


def momentum_in_words(momentum: Schedule | None, nesterov: bool) -> str:
    """Such as ", momentum 0.5"; nothing if there is none."""
    if momentum is None:
        return ""
    return f", {'Nesterov momentum' if nesterov else 'momentum'} {span_in_words(momentum)}"


def nesterov_momentum(low: float, high: float) -> float:
    """(1 - sqrt(q)) / (1 + sqrt(q)), q = low / high: for curvatures in [low, high], steps 1 / high.

    Nesterov's steps then leave about 1 - sqrt(q) a step of what 1 - q is left of by descent.

    Args:
        low: the smallest curvature.
        high: the largest one.

    Returns:
        The momentum.

    Raises:
        SettingError: if `low` is negative or above `high`.

    Example:
        >>> import icgd
        >>> icgd.nesterov_momentum(1.0, 4.0)
        0.3333333333333333
    """
    within("low", finite("low", low), 0.0, positive("high", high))
    root = sqrt(low / high)
    return (1 - root) / (1 + root)


def fista_momenta(n_steps: int) -> tuple[float, ...]:
    """Nesterov's momenta, (t_l - 1) / t_{l+1} with t_{l+1} = (1 + sqrt(1 + 4 t_l^2)) / 2.

    They begin with 0 and tend to 1. They need to know nothing of the curvature.

    Args:
        n_steps: the number of steps.

    Returns:
        A momentum for each step.

    Raises:
        SettingError: if there is not one step at least.

    Example:
        >>> import icgd
        >>> [round(momentum, 3) for momentum in icgd.fista_momenta(3)]
        [0.0, 0.282, 0.434]
    """
    count("n_steps", n_steps, most=MOST_SCHEDULED)
    momenta, t = [], 1.0
    for _ in range(n_steps):
        after = (1 + sqrt(1 + 4 * t * t)) / 2
        momenta.append((t - 1) / after)
        t = after
    return tuple(momenta)
