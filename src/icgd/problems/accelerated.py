r"""Functional steps that need fewer layers: momentum, Nesterov, Chebyshev, Newton-Schulz.

All but the last know the outermost eigenvalues `low` and `high` of the kernel on the examples, with
the noise, and their condition number k = high / low. What is left after L steps is at most about

    descent        (1 - 2 / (k + 1))^L
    Nesterov       (1 - 2 / sqrt(3 k + 1))^L          times a number that grows like L
    heavy ball     (1 - 2 / (sqrt(k) + 1))^L          times a number that grows like L
    Chebyshev      2 (1 - 2 / (sqrt(k) + 1))^L

Newton-Schulz moves the inputs. It squares what is left once that is small, and needs about
log(k) / log(9/4) layers before.
"""

from __future__ import annotations

from math import sqrt

from icgd.problems.momentum import MOST_SCHEDULED
from icgd.problems.settings import count, positive
from icgd.problems.updates import FunctionalStep, require_regular

MOST_GROWN = 800
"""The most Newton-Schulz steps: sizes grow by 9 / 4 a step, and float64 ends at (9 / 4)^875."""


def heavy_ball(low: float, high: float, noise: float = 0.0) -> FunctionalStep:
    """Polyak's method with the numbers that are best for a spectrum in [low, high].

    f_{l+1} = f_l + step_size * sum_i e_i K(., x_i) + momentum * (f_l - f_{l-1})

    Args:
        low: the smallest eigenvalue of the kernel on the examples, with the noise.
        high: the largest one.
        noise: what is added to the kernel where an example meets itself.

    Returns:
        The update.

    Raises:
        SettingError: if the kernel with these eigenvalues is singular.

    Example:
        >>> import icgd
        >>> icgd.heavy_ball(1.0, 4.0)
        FunctionalStep(steps of 0.444444, momentum 0.111111)
    """
    require_regular(low, high)
    root, other = sqrt(high), sqrt(low)
    momentum = ((root - other) / (root + other)) ** 2
    return FunctionalStep((2 / (root + other)) ** 2, noise, momentum=momentum)


def nesterov(low: float, high: float, noise: float = 0.0) -> FunctionalStep:
    """Nesterov's method with the numbers that are best for a spectrum in [low, high].

    Both were found for quadratic problems (Lessard, Recht and Packard 2016, Proposition 1).

    Args:
        low: the smallest eigenvalue of the kernel on the examples, with the noise.
        high: the largest one.
        noise: what is added to the kernel where an example meets itself.

    Returns:
        The update.

    Raises:
        SettingError: if the kernel with these eigenvalues is singular.

    Example:
        >>> import icgd
        >>> icgd.nesterov(1.0, 4.0)
        FunctionalStep(steps of 0.307692, Nesterov momentum 0.286422)
    """
    require_regular(low, high)
    root = sqrt(3 * high / low + 1)
    momentum = (root - 2) / (root + 2)
    return FunctionalStep(4 / (3 * high + low), noise, momentum=momentum, nesterov=True)


def chebyshev_momentum(low: float, high: float, n_steps: int, noise: float = 0.0) -> FunctionalStep:
    """The Chebyshev polynomials by their recurrence, which is heavy ball with numbers that vary.

    It leaves after every step what `chebyshev_steps` leave after their last, because all Chebyshev
    polynomials are met on the way; and nothing grows in between.

    Args:
        low: the smallest eigenvalue of the kernel on the examples, with the noise.
        high: the largest one.
        n_steps: the number of steps.
        noise: what is added to the kernel where an example meets itself.

    Returns:
        The update.

    Raises:
        SettingError: if the kernel with these eigenvalues is singular.

    Example:
        >>> import icgd
        >>> icgd.chebyshev_momentum(1.0, 4.0, n_steps=2)
        FunctionalStep(steps of 0.4 to 0.487805, momentum 0 to 0.219512)
    """
    require_regular(low, high)
    middle, radius = (high + low) / 2, (high - low) / 2
    sizes, momenta, weight = [1 / middle], [0.0], 2.0
    for _ in range(count("n_steps", n_steps, most=MOST_SCHEDULED) - 1):
        weight = 1 / (1 - weight * (radius / middle) ** 2 / 4)
        sizes.append(weight / middle)
        momenta.append(weight - 1)
    return FunctionalStep(sizes, noise, momentum=momenta)


def newton_schulz(high: float, n_steps: int) -> FunctionalStep:
    r"""Steps that make the linear kernel of the moved inputs a projection (GD++).

    With the matrix X of all examples, the Newton-Schulz iteration X <- X (3 I - X^T X) / 2 takes
    every singular value that is not 0 to 1, and squares the distance at every step. Written for
    Z_l = X_l / sqrt(size_l), it needs no factor 3 / 2, which no head can apply to a query:

        Z <- Z - (size_l / 3) Z Z^T Z,    size_{l+1} = (9 / 4) size_l,    size_0 = 1 / high

    which is a step that moves the inputs by A = -(size_l / 3) I. What is left is multiplied by
    1 - t_l, where t_0 = t / high for an eigenvalue t and t_{l+1} = t_l (3 - t_l)^2 / 4.

    Args:
        high: the largest eigenvalue of the linear kernel on the examples.
        n_steps: the number of steps.

    Returns:
        The update.

    Raises:
        SettingError: if a number is not positive.

    Example:
        >>> import icgd
        >>> icgd.newton_schulz(4.0, n_steps=2)
        FunctionalStep(steps of 0.25 to 0.5625, inputs are moved)
    """
    positive("high", high)
    sizes = [2.25**step / high for step in range(count("n_steps", n_steps, most=MOST_GROWN))]
    return FunctionalStep(sizes, transforms=[-size / 3 for size in sizes])
