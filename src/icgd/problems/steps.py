r"""Updates of kernel machines and linear models, and accelerated step sizes.

A functional step changes the function itself, from f_0 = 0:

    f_{l+1}(x) = f_l(x) + step_size_l * sum_i e_i K(x, x_i),    e_i = y_i - f_l(x_i)

A step multiplies the residual on the examples by I - step_size_l K, so L steps multiply it by the
polynomial prod_l (1 - step_size_l t) at every eigenvalue t of K. With the extreme eigenvalues `low`
and `high` of the kernel on the examples, including the noise, and their condition number
k = high / low, the factor after L steps is at most about

    descent        (1 - 2 / (k + 1))^L
    Nesterov       (1 - 2 / sqrt(3 k + 1))^L          times a factor that grows like L
    heavy ball     (1 - 2 / (sqrt(k) + 1))^L          times a factor that grows like L
    Chebyshev      2 (1 - 2 / (sqrt(k) + 1))^L        optimal among all such polynomials

Newton-Schulz moves the inputs. It squares the residual once that is small, which takes about
log(k) / log(9/4) layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import cos, log, pi, sqrt
from numbers import Real
from typing import Any, ClassVar

from icgd.errors import SettingError, quoted
from icgd.problems.kernel_machine import KernelHead, KernelMachine, Rows, as_rows, unit_rows
from icgd.problems.optimisers import Schedule, Scheduled, span_in_words, step_sizes
from icgd.problems.settings import (
    as_float,
    as_row,
    count,
    entries,
    finite,
    flag,
    instance,
    is_row,
    positive,
    require_between,
    set_fields,
)


class Accelerated(Scheduled):
    """Base of updates with the fields `momentum` and `nesterov`."""

    momentum: Schedule | None
    nesterov: bool

    def _check_momentum(self) -> None:
        """Validate both fields: momenta from 0 to 1, and no Nesterov without momentum."""
        set_fields(self, nesterov=flag("nesterov", self.nesterov))
        if self.momentum is None:
            if self.nesterov:
                raise SettingError("nesterov has no effect without momentum; give both or neither.")
            return
        momenta = tuple(finite("momentum", number) for number in as_row(self.momentum))
        if not momenta:
            raise SettingError("momentum is empty; give one number for each step.")
        for number in momenta:
            require_between("momentum", number, 0.0, 1.0)
        set_fields(self, momentum=momenta if is_row(self.momentum) else momenta[0])

    def _momentum_in_words(self) -> str:
        """Return a description such as ", momentum 0.5", or "" without momentum."""
        if self.momentum is None:
            return ""
        kind = "Nesterov momentum" if self.nesterov else "momentum"
        return f", {kind} {span_in_words(self.momentum)}"

    def momentum_of(self, step: int) -> float:
        """Return the momentum of a step.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The momentum.

        Example:
            >>> import icgd
            >>> icgd.ProximalStep(0.1, momentum=(0.0, 0.5)).momentum_of(1)
            0.5
        """
        number = self.momentum[step] if isinstance(self.momentum, tuple) else self.momentum
        return number or 0.0

    def lookahead_of(self, step: int) -> float:
        """Return the factor of the last change that is added before the gradient is evaluated.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The momentum with Nesterov's method, otherwise 0.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep(0.1, momentum=0.5, nesterov=True).lookahead_of(0)
            0.5
        """
        return self.momentum_of(step) if self.nesterov else 0.0


@dataclass(frozen=True, init=False)
class FunctionalStep(Accelerated):
    """f <- f + step_size * sum_i e_i K(., x_i), with `noise` * I added to K on the examples.

    Args:
        step_size: one number for all steps or one for each step, such as `chebyshev_steps`.
        noise: the number added to the diagonal of the kernel matrix of the examples.
        transforms: matrices A that move the inputs, x <- x + A sum_j K(x, x_j) x_j (GD++): one for
            all steps or one for each step; a number a stands for a * I.
        heads: the heads of each step in place of the machine's, if steps have their own kernels,
            as in learnt layers.
        momentum: one number m, or one for each step: f also moves by m times its last change
            (heavy ball).
        nesterov: whether the residual e is evaluated after that move.

    Raises:
        SettingError: if a number or a matrix is invalid, or if `heads` has other entries.

    Example:
        >>> import icgd
        >>> icgd.FunctionalStep(0.1, noise=0.3)
        FunctionalStep(steps of 0.1, noise 0.3)
    """

    step_size: float | tuple[float, ...]
    noise: float
    transforms: tuple[float | Rows, ...]
    heads: tuple[tuple[KernelHead, ...], ...]
    momentum: float | tuple[float, ...] | None
    nesterov: bool
    box: ClassVar[None] = None  # a function has no weights to clip
    has_root: ClassVar[bool] = False

    def __init__(
        self,
        step_size: float | Iterable[Any],
        noise: float = 0.0,
        transforms: Any = (),
        heads: Any = (),
        momentum: float | Iterable[Any] | None = None,
        nesterov: bool = False,
    ) -> None:
        set_fields(
            self,
            step_size=step_sizes(step_size),
            noise=0.0 if as_float(noise) == 0 else positive("noise", noise),
            transforms=_as_transforms(transforms),
            heads=_as_heads(heads),
            momentum=momentum,
            nesterov=nesterov,
        )
        self._check_momentum()

    def in_words(self) -> str:
        """Return a short description, such as "functional steps of 0.1, noise 0.3".

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep((0.1, 0.5)).in_words()
            'functional steps of 0.1 to 0.5'
        """
        span = span_in_words(self.step_size)
        noise = f", noise {self.noise:g}" if self.noise else ""
        transforms = ", inputs are moved" if self.transforms else ""
        heads = ", each with its own kernel" if self.heads else ""
        return f"functional steps of {span}{self._momentum_in_words()}{noise}{transforms}{heads}"

    def __repr__(self) -> str:
        return f"FunctionalStep({self.in_words().removeprefix('functional ')})"

    @property
    def schedules(self) -> dict[str, tuple[object, ...]]:
        schedules = super().schedules
        if len(self.transforms) > 1:
            schedules["transforms"] = self.transforms
        return schedules | ({"heads": self.heads} if self.heads else {})

    @property
    def changes_kernel(self) -> bool:
        """Whether the kernel matrix of the tokens changes from step to step."""
        return bool(self.transforms or self.heads)

    def require_machine(self, machine: KernelMachine) -> None:
        """Raise unless the matrices and heads fit the inputs of a machine.

        Args:
            machine: the machine.

        Raises:
            SettingError: if a matrix has another width.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep(0.1, transforms=[[1.0]]).require_machine(icgd.KernelMachine(1))
        """
        width = machine.input_width
        for matrix in self.transforms:
            if not isinstance(matrix, float) and {len(matrix), *map(len, matrix)} != {width}:
                raise SettingError(
                    f"transforms must be {width} x {width} matrices, got one of "
                    f"{len(matrix)} x {len(matrix[0])}."
                )
        for step in range(len(self.heads)):
            self.machine_of(step, machine)  # raises if a head does not fit

    def size_of(self, step: int) -> float:
        """Return the step size of a step, counted from 0.

        Args:
            step: the number of the step.

        Returns:
            Its size.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep((0.1, 0.5)).size_of(1)
            0.5
        """
        return self.step_size[step] if isinstance(self.step_size, tuple) else self.step_size

    def machine_of(self, step: int, machine: KernelMachine) -> KernelMachine:
        """Return the machine with the kernel of a step, counted from 0.

        Args:
            step: the number of the step.
            machine: the machine of the problem.

        Returns:
            The machine, or one with the heads of this step.

        Example:
            >>> import icgd
            >>> heads = [icgd.KernelHead("exp"), icgd.KernelHead("rbf")]
            >>> step = icgd.FunctionalStep((0.1, 0.1), heads=heads)
            >>> step.machine_of(0, icgd.KernelMachine(2)).in_words()
            'function of 2 inputs, exp kernel'
        """
        if not self.heads:
            return machine
        return KernelMachine(machine.input_width, self.heads[step], machine.output_width)

    def transform_of(self, step: int, width: int) -> Rows | None:
        """Return the matrix A of a step, counted from 0.

        Args:
            step: the number of the step.
            width: the number of inputs.

        Returns:
            The rows of A, or None if the inputs do not move.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep(0.1, transforms=0.5).transform_of(0, 2)
            ((0.5, 0.0), (0.0, 0.5))
        """
        if not self.transforms:
            return None
        transform = self.transforms[step if len(self.transforms) > 1 else 0]
        return unit_rows(transform, width) if isinstance(transform, float) else transform


def _as_transforms(value: object) -> tuple[float | Rows, ...]:
    """Validate numbers and matrices: one for all steps, or one for each step."""
    if isinstance(value, Real):
        return (finite("transforms", value),)
    items = as_row(value)
    are_rows = (is_row(item) and all(isinstance(x, Real) for x in entries(item)) for item in items)
    if items and all(are_rows):  # the rows of a single matrix
        items = [items]
    return tuple(
        finite("transforms", item) if isinstance(item, Real) else as_rows("transforms", item)
        for item in items
    )


def _as_heads(steps: object) -> tuple[tuple[KernelHead, ...], ...]:
    """Validate the heads of every step; a single head may be given without a sequence."""
    heads = tuple(tuple(as_row(step)) for step in as_row(steps))
    for head in (head for step in heads for head in step):
        instance("head", head, KernelHead)
    return heads


@dataclass(frozen=True)
class ProximalStep(Accelerated):
    """w <- clip(S(w - step_size * (grad L(w) + l2 * w)), -box, box), S the soft threshold.

    The step decreases L(w) + (l2 / 2) |w|_2^2 + l1 |w|_1 over the box, or over all w without a box.
    The threshold of S is step_size * l1. The penalties do not apply to the intercept.

    Args:
        step_size: the step size; the default is 1 / beta, where beta is the largest curvature of
            the data (`icgd.sized_problem`).
        l2: the ridge penalty.
        l1: the lasso penalty.
        box: the largest absolute value of a coefficient.
        momentum: one number m, or one for each step: w + m (w - w_before) replaces the first w.
        nesterov: whether the gradient is evaluated there too; with `fista_momenta` this is FISTA.

    Raises:
        SettingError: if a penalty is negative, or the step size or the box is not positive.

    Example:
        >>> import icgd
        >>> icgd.ProximalStep(0.3, l2=0.1, box=1.0).in_words()
        'proximal steps of 0.3, l2 0.1, box 1'
    """

    step_size: float | None = None
    l2: float = 0.0
    l1: float = 0.0
    box: float | None = None
    momentum: Any = None
    """A number, or a sequence with one for each step; stored as a float or a tuple."""
    nesterov: bool = False
    has_root: ClassVar[bool] = False

    def __post_init__(self) -> None:
        set_fields(self, l2=_checked_penalty("l2", self.l2), l1=_checked_penalty("l1", self.l1))
        if self.step_size is not None:
            set_fields(self, step_size=positive("step_size", self.step_size))
        if self.box is not None:
            set_fields(self, box=positive("box", self.box))
        self._check_momentum()

    def in_words(self) -> str:
        """Return a short description, such as "proximal steps of 0.3, l2 0.1, box 1".

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.ProximalStep(l1=0.2).in_words()
            'proximal steps of 1 / curvature, l1 0.2'
        """
        size = "1 / curvature" if self.step_size is None else f"{self.step_size:g}"
        settings = {"l2": self.l2, "l1": self.l1, "box": self.box}
        others = (f", {name} {value:g}" for name, value in settings.items() if value)
        return f"proximal steps of {size}{self._momentum_in_words()}{''.join(others)}"

    @property
    def overshoot(self) -> float:
        """The largest |w + m (w - w_before)| at which the gradient is evaluated, over the box."""
        momenta = self.momentum if isinstance(self.momentum, tuple) else (self.momentum or 0.0,)
        return 1 + 2 * max(momenta) if self.nesterov else 1.0

    @property
    def penalises(self) -> bool:
        """Whether there is a penalty."""
        return self.l2 > 0 or self.l1 > 0


def _checked_penalty(name: str, value: object) -> float:
    number = finite(name, value)
    if number < 0:
        raise SettingError(
            f"{name} must not be negative, got {quoted(number)}. Give 0 for no penalty."
        )
    return number


LEAST_SHARE = 1e-14
"""The ratio of extreme eigenvalues below which float64 cannot distinguish the smallest from 0."""

MOST_SCHEDULED = 10**6
"""The largest number of steps in a schedule, about a second of work."""

MOST_CHEBYSHEV_STEPS = 10**4
"""The largest number of steps that are sorted, in a time that grows with the square of it."""

MOST_GROWN = 800
"""The largest number of Newton-Schulz steps: sizes grow by 9 / 4, and (9 / 4)^875 overflows."""


def require_regular(low: float, high: float) -> None:
    """Raise `SettingError` unless a kernel with these extreme eigenvalues can be inverted."""
    if finite("low", low) <= LEAST_SHARE * positive("high", high):
        noise = f"{0.01 * high - min(low, 0.0):.3g}"
        is_negative = low < -LEAST_SHARE * high  # beyond rounding
        remedy = "another kernel" if is_negative else f"one constant step size below {2 / high:.3g}"
        raise SettingError(
            f"low, the smallest eigenvalue of the kernel on the examples, is {low:.3g}, but it "
            f"must be above {LEAST_SHARE:g} times the largest one, which is {high:.3g}: no step "
            "reduces the error along its eigenvector. Add noise, such as "
            f"icgd.spectrum(machine, X, noise={noise}) and icgd.FunctionalStep(steps, "
            f"noise={noise}), or use {remedy}."
        )


def best_constant_step(low: float, high: float) -> float:
    """Return the constant step size that reduces the error most: 2 / (low + high)."""
    require_regular(low, high)
    return 2 / (low + high)


def chebyshev_steps(low: float, high: float, n_steps: int) -> tuple[float, ...]:
    """Return the step sizes that reduce the error most for eigenvalues in [low, high].

    They are the reciprocals of the Chebyshev points, in Leja order, in which no partial product
    becomes large, so that rounding errors stay small.

    Args:
        low: the smallest eigenvalue, such as `icgd.spectrum(machine, X).low`.
        high: the largest eigenvalue.
        n_steps: the number of steps.

    Returns:
        A step size for each step.

    Raises:
        SettingError: if `low` is not below `high`, or so small relative to it that float64 cannot
            distinguish it from 0, or if `n_steps` is not a positive integer.

    Example:
        >>> import icgd
        >>> [round(size, 3) for size in icgd.chebyshev_steps(1.0, 3.0, 2)]
        [0.369, 0.773]
    """
    require_regular(low, high)
    if not low < high:
        raise SettingError(f"low must be below high, got low={low} and high={high}.")
    count("n_steps", n_steps, most=MOST_CHEBYSHEV_STEPS)
    middle, radius = (high + low) / 2, (high - low) / 2
    points = [middle + radius * cos((2 * k + 1) * pi / (2 * n_steps)) for k in range(n_steps)]
    return tuple(1 / point for point in _in_leja_order(points))


def _in_leja_order(points: Sequence[float]) -> list[float]:
    """Order points so that each maximises the product of distances to those before it."""
    remaining = sorted(points)
    ordered = [remaining.pop()]
    weights = [0.0] * len(remaining)  # logarithms of the products
    while remaining:
        weights = [w + log(abs(p - ordered[-1])) for w, p in zip(weights, remaining, strict=True)]
        best = max(range(len(remaining)), key=weights.__getitem__)
        ordered.append(remaining.pop(best))
        weights.pop(best)
    return ordered


def heavy_ball(low: float, high: float, noise: float = 0.0) -> FunctionalStep:
    """Return Polyak's heavy ball method with the optimal parameters for a spectrum in [low, high].

    f_{l+1} = f_l + step_size * sum_i e_i K(., x_i) + momentum * (f_l - f_{l-1})

    Args:
        low: the smallest eigenvalue of the kernel on the examples, including the noise.
        high: the largest eigenvalue.
        noise: the number added to the diagonal of the kernel matrix of the examples.

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
    high_root, low_root = sqrt(high), sqrt(low)
    momentum = ((high_root - low_root) / (high_root + low_root)) ** 2
    return FunctionalStep((2 / (high_root + low_root)) ** 2, noise, momentum=momentum)


def nesterov(low: float, high: float, noise: float = 0.0) -> FunctionalStep:
    """Return Nesterov's method with the optimal parameters for a spectrum in [low, high].

    The parameters are those for quadratic problems (Lessard, Recht and Packard 2016, Proposition
    1).

    Args:
        low: the smallest eigenvalue of the kernel on the examples, including the noise.
        high: the largest eigenvalue.
        noise: the number added to the diagonal of the kernel matrix of the examples.

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
    """Return heavy ball steps that follow the recurrence of the Chebyshev polynomials.

    After every step the error is optimal, as that of `chebyshev_steps` is after the last step only,
    because the recurrence passes through all Chebyshev polynomials.

    Args:
        low: the smallest eigenvalue of the kernel on the examples, including the noise.
        high: the largest eigenvalue.
        n_steps: the number of steps.
        noise: the number added to the diagonal of the kernel matrix of the examples.

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
    r"""Return steps that turn the linear kernel of the moved inputs into a projection (GD++).

    With the matrix X of all examples, the Newton-Schulz iteration X <- X (3 I - X^T X) / 2 drives
    every nonzero singular value to 1, with quadratic convergence. In terms of
    Z_l = X_l / sqrt(size_l) it needs no factor 3 / 2, which no head can apply to a query:

        Z <- Z - (size_l / 3) Z Z^T Z,    size_{l+1} = (9 / 4) size_l,    size_0 = 1 / high

    This step moves the inputs by A = -(size_l / 3) I. It multiplies the residual by 1 - t_l, where
    t_0 = t / high for an eigenvalue t and t_{l+1} = t_l (3 - t_l)^2 / 4.

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


def nesterov_momentum(low: float, high: float) -> float:
    """Return (1 - sqrt(q)) / (1 + sqrt(q)), q = low / high, the momentum for steps of 1 / high.

    For curvatures in [low, high], a Nesterov step then multiplies the error by about 1 - sqrt(q), a
    step without momentum by 1 - q.

    Args:
        low: the smallest curvature.
        high: the largest curvature.

    Returns:
        The momentum.

    Raises:
        SettingError: if `low` is negative or above `high`.

    Example:
        >>> import icgd
        >>> icgd.nesterov_momentum(1.0, 4.0)
        0.3333333333333333
    """
    require_between("low", finite("low", low), 0.0, positive("high", high))
    root = sqrt(low / high)
    return (1 - root) / (1 + root)


def fista_momenta(n_steps: int) -> tuple[float, ...]:
    """Return Nesterov's momenta (t_l - 1) / t_{l+1}, t_{l+1} = (1 + sqrt(1 + 4 t_l^2)) / 2.

    They start at 0 and tend to 1. No knowledge of the curvature is needed.

    Args:
        n_steps: the number of steps.

    Returns:
        A momentum for each step.

    Raises:
        SettingError: if `n_steps` is not a positive integer.

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
