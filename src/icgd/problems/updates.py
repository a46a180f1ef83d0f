r"""Updates: what one training step does, and step sizes that make many of them fast.

A functional step moves the function itself, from f_0 = 0:

    f_{l+1}(x) = f_l(x) + step_size_l * sum_i e_i K(x, x_i),    e_i = y_i - f_l(x_i)

The error left on the examples is multiplied by I - step_size_l K, so after L steps by the
polynomial prod_l (1 - step_size_l t) at every eigenvalue t of K. Of all such polynomials the
Chebyshev polynomial is smallest on an interval: it needs about sqrt(high / low) steps where a
constant step needs high / low. So does momentum, which keeps a share of the step before
(`accelerated.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import cos, log, pi
from numbers import Real
from typing import Any, ClassVar

from icgd.errors import SettingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine, Rows, as_rows, unit_rows
from icgd.problems.momentum import Accelerated, as_momentum, momentum_in_words, span_in_words
from icgd.problems.optimisers.gradient_step import step_sizes
from icgd.problems.settings import (
    as_float,
    count,
    entries,
    finite,
    instance,
    is_row,
    positive,
    settle,
)

LEAST_SHARE = 1e-14
"""Smallest over largest eigenvalue below which float64 cannot tell the smallest from 0."""


MOST_CHEBYSHEV_STEPS = 10**4
"""The most steps that are put in order; the time grows with the square of their number."""


@dataclass(frozen=True, init=False)
class FunctionalStep(Accelerated):
    """f <- f + step_size * sum_i e_i K(., x_i), with `noise` * I added to K on the examples.

    Args:
        step_size: one number for all steps or one for each step, such as `chebyshev_steps`.
        noise: what is added to the kernel where an example meets itself.
        transforms: what moves the inputs along, x <- x + A sum_j K(x, x_j) x_j (GD++): one matrix A
            for all steps or one for each step; a number a stands for a * I.
        heads: if steps have a kernel each, as learnt layers have, those of every step, in place of
            the machine's.
        momentum: one number m, or one for each step: f also moves by m times its last change
            (heavy ball).
        nesterov: whether what is left, e, is taken after that move.

    Raises:
        SettingError: if a number or a matrix is none, or `heads` holds something else.

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
        settle(self, step_size=step_sizes(step_size), transforms=_as_transforms(transforms))
        settle(self, noise=0.0 if as_float(noise) == 0 else positive("noise", noise))
        settle(self, heads=_as_heads(heads), momentum=as_momentum(momentum))
        settle(self, nesterov=bool(nesterov))
        if nesterov and momentum is None:
            raise SettingError("nesterov has no effect without momentum; give both or neither.")

    def in_words(self) -> str:
        """The step in a few words, such as "functional steps of 0.1, noise 0.3".

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep((0.1, 0.5)).in_words()
            'functional steps of 0.1 to 0.5'
        """
        span = span_in_words(self.step_size)
        noise = f", noise {self.noise:g}" if self.noise else ""
        moved = ", inputs are moved" if self.transforms else ""
        own = ", each with its own kernel" if self.heads else ""
        kept = momentum_in_words(self.momentum, self.nesterov)
        return f"functional steps of {span}{kept}{noise}{moved}{own}"

    def __repr__(self) -> str:
        return f"FunctionalStep({self.in_words().removeprefix('functional ')})"

    @property
    def is_constant(self) -> bool:
        """Whether all steps are alike."""
        schedules = isinstance(self.step_size, tuple) or isinstance(self.momentum, tuple)
        return not schedules and len(self.transforms) <= 1 and not self.heads

    @property
    def changes_kernel(self) -> bool:
        """Whether steps differ in the kernel of the tokens."""
        return bool(self.transforms or self.heads)

    def require_steps(self, n_steps: int) -> None:
        """Refuse a number of steps for which a schedule has no entry each.

        Args:
            n_steps: the number of steps.

        Raises:
            SettingError: if step sizes, transforms or heads are not one for each step.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep((0.1, 0.5)).require_steps(2)
        """
        schedules = {
            "step_size": self.step_size,
            "transforms": self.transforms if len(self.transforms) > 1 else None,
            "heads": self.heads or None,
            "momentum": self.momentum,
        }
        for name, schedule in schedules.items():
            if isinstance(schedule, tuple) and len(schedule) != n_steps:
                raise SettingError(
                    f"{name} has {len(schedule)} entries; expected {n_steps}, one for each step."
                )

    def require_machine(self, machine: KernelMachine) -> None:
        """Refuse a machine whose inputs have another width than the matrices.

        Args:
            machine: the machine.

        Raises:
            SettingError: if a matrix has another width.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep(0.1, transforms=[[1.0]]).require_machine(icgd.KernelMachine(1))
        """
        self._require_width(machine.input_width)
        for step in range(len(self.heads)):
            self.machine_of(step, machine)  # it checks its heads

    def _require_width(self, width: int) -> None:
        for part in self.transforms:
            if not isinstance(part, float) and {len(part), *map(len, part)} != {width}:
                raise SettingError(
                    f"transforms must be {width} x {width} matrices, got one of "
                    f"{len(part)} x {len(part[0])}."
                )

    def size_of(self, step: int) -> float:
        """The step size of a step, counted from 0.

        Args:
            step: the number of the step.

        Returns:
            Its size.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep((0.1, 0.5)).size_of(1)
            0.5
        """
        sizes = self.step_size
        return sizes[step] if isinstance(sizes, tuple) else sizes

    def machine_of(self, step: int, machine: KernelMachine) -> KernelMachine:
        """The machine with the kernel of a step, counted from 0.

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
        """The matrix A of a step, counted from 0.

        Args:
            step: the number of the step.
            width: the number of inputs.

        Returns:
            The rows of A, or None if inputs stay where they are.

        Example:
            >>> import icgd
            >>> icgd.FunctionalStep(0.1, transforms=0.5).transform_of(0, 2)
            ((0.5, 0.0), (0.0, 0.5))
        """
        if not self.transforms:
            return None
        part = self.transforms[step if len(self.transforms) > 1 else 0]
        if not isinstance(part, float):
            return part
        return unit_rows(part, width)


def _as_transforms(value: object) -> tuple[float | Rows, ...]:
    """Numbers and matrices: one for all steps, or one for each step."""
    if isinstance(value, Real):
        return (finite("transforms", value),)
    parts = entries(value) if is_row(value) else [value]
    if parts and all(_is_row(part) for part in parts):  # one matrix
        parts = [parts]
    return tuple(
        finite("transforms", part) if isinstance(part, Real) else as_rows("transforms", part)
        for part in parts
    )


def _as_heads(steps: object) -> tuple[tuple[KernelHead, ...], ...]:
    """The heads of every step; a step with one head may give it alone."""
    found = tuple(
        tuple(entries(step)) if is_row(step) else (step,)
        for step in (entries(steps) if is_row(steps) else [steps])
    )
    for head in (head for step in found for head in step):
        instance("head", head, KernelHead)
    return found


def _is_row(part: object) -> bool:
    """Whether it is a sequence of numbers."""
    return is_row(part) and all(isinstance(entry, Real) for entry in entries(part))


def chebyshev_steps(low: float, high: float, n_steps: int) -> tuple[float, ...]:
    """The step sizes that shrink the error most for a kernel with eigenvalues in [low, high].

    They are the inverses of the Chebyshev points, in an order in which no partial product grows
    large (Leja's), so that rounding stays small.

    Args:
        low: the smallest eigenvalue, such as `icgd.spectrum(machine, X).low`.
        high: the largest one.
        n_steps: the number of steps.

    Returns:
        A step size for each step.

    Raises:
        SettingError: if `low` is not below `high`, or so small beside it that float64 cannot tell
            it from 0, or if `n_steps` is no positive whole number.

    Example:
        >>> import icgd
        >>> [round(size, 3) for size in icgd.chebyshev_steps(1.0, 3.0, 2)]
        [0.369, 0.773]
    """
    require_regular(low, high)
    if not low < high:
        raise SettingError(f"An interval needs finite ends low < high, got [{low}, {high}].")
    count("n_steps", n_steps, most=MOST_CHEBYSHEV_STEPS)
    middle, radius = (high + low) / 2, (high - low) / 2
    points = [middle + radius * cos((2 * k + 1) * pi / (2 * n_steps)) for k in range(n_steps)]
    return tuple(1 / point for point in _in_leja_order(points))


def _in_leja_order(points: Sequence[float]) -> list[float]:
    """Each next point is the one whose product of distances to those before is largest."""
    left = sorted(points)
    chosen = [left.pop()]
    weights = [0.0] * len(left)
    while left:
        weights = [w + log(abs(p - chosen[-1])) for w, p in zip(weights, left, strict=True)]
        best = max(range(len(left)), key=weights.__getitem__)
        chosen.append(left.pop(best))
        weights.pop(best)
    return chosen


def best_constant_step(low: float, high: float) -> float:
    """The constant step size that shrinks the error most: 2 / (low + high)."""
    require_regular(low, high)
    return 2 / (low + high)


def require_regular(low: float, high: float) -> None:
    """Raise `SettingError` unless a kernel with these outermost eigenvalues can be inverted."""
    if finite("low", low) <= LEAST_SHARE * positive("high", high):
        noise = f"{0.01 * high - min(low, 0.0):.3g}"
        is_negative = low < -LEAST_SHARE * high  # not by rounding
        remedy = "another kernel" if is_negative else f"one constant step size below {2 / high:.3g}"
        raise SettingError(
            f"low, the smallest eigenvalue of the kernel on the examples, is {low:.3g}, but it "
            f"must be above {LEAST_SHARE:g} times the largest one, which is {high:.3g}: no step "
            "makes the error smaller along its eigenvector. Add noise, such as "
            f"icgd.spectrum(machine, X, noise={noise}) and icgd.FunctionalStep(steps, "
            f"noise={noise}). Or use {remedy}."
        )
