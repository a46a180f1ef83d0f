r"""Kernels: how alike two points are, and so how much one learns from the other.

    linear      <u, w>                     rbf         exp(-|u - w|^2 / 2)
    relu        max(0, <u, w>)             laplace     exp(-|u - w|_1)
    exp         exp(<u, w>)                matern      by smoothness nu = 1/2, 3/2 or 5/2
    polynomial  (1 + <u, w>)^degree        softmax     exp(<u, w>), divided by its sum over all w

Scales are no parameters of a kernel: a head rescales its inputs by a matrix. relu is symmetric but
not positive, softmax not even symmetric; both are widely used in attention, so both are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from icgd.errors import KernelError, SettingError, at, brief
from icgd.problems.data import first_set
from icgd.problems.settings import as_float, by_name, finite, named
from icgd.shapes import KernelMatrix, OtherPoints, Points

MatrixOf = Callable[[Tensor, Tensor], Tensor]
"""From points (..., i, d) and (..., j, d) to the matrix (..., i, j)."""

Constant = float | Callable[[float], float]
"""A number for all points, or one for each radius: for points whose norm is at most that."""

ROUNDING = 32.0
"""The units of roundoff, besides one an input, that a kernel of a user's own may be off by."""


@dataclass(frozen=True)
class Kernel:
    """K[i, j] = K(left_i, right_j); learning sums over the points on the right."""

    name: str
    function: MatrixOf
    is_symmetric: bool = True
    is_positive: bool = True
    """Whether its matrices have no negative eigenvalue: relu and softmax may have some."""
    is_own: bool = False
    """Whether a user registered it; then what it returns is checked each time."""
    lipschitz: Constant | None = None
    bound: Constant | None = None
    rounding: float = ROUNDING
    """What a user states of a kernel of their own; see `register_kernel`."""

    def matrix(self, left: Points, right: OtherPoints) -> KernelMatrix:
        """The kernel of every pair."""
        values = self.function(left, right)
        if self.is_own:
            _require_matrix(self.name, values, left, right)
        return values

    def stated(self, what: str, radius: float) -> float:
        """The constant called `what` for points of at most this norm; infinite if none is known."""
        constant: Constant | None = getattr(self, what)
        if constant is None:
            return inf
        if not callable(constant):
            return constant
        try:
            value = constant(radius)
        except OverflowError:
            return inf
        number = as_float(value)
        if not number >= 0:  # also if it is not a number
            raise KernelError(
                f"{what} of kernel {brief(self.name)} is {brief(value)} for points of norm up to "
                f"{radius:.6g}; expected a number that is not negative. Correct the function that "
                f"was given as {what}."
            )
        return number


def _require_matrix(name: str, values: Any, left: Tensor, right: Tensor) -> None:
    shape = (*left.shape[:-1], right.shape[-2])
    if not isinstance(values, Tensor):
        raise KernelError(
            f"Kernel {brief(name)} returned a {type(values).__name__}; expected a tensor of shape "
            f"{shape}: a row for each point on the left, a column for each on the right."
        )
    if tuple(values.shape) != shape:
        raise KernelError(
            f"Kernel {brief(name)} returned {tuple(values.shape)}; expected a tensor of shape "
            f"{shape}: a row for each point on the left, a column for each on the right."
        )
    if values.dtype is not left.dtype:
        raise KernelError(
            f"Kernel {brief(name)} returned {str(values.dtype).removeprefix('torch.')} for points "
            f"of {str(left.dtype).removeprefix('torch.')}. Keep the type of the points."
        )
    if index := first_set(~values.isfinite()):
        raise KernelError(
            f"Kernel {brief(name)} returned {values[tuple(index)].item()} at {at(index)}; every "
            "entry must be finite. Rescale the inputs, or use a kernel that stays bounded."
        )


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.mT


def _distance(left: Tensor, right: Tensor) -> Tensor:
    """The Euclidean distance, from differences: it is exactly 0 between equal points."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


_MATERN: dict[float, Callable[[Tensor], Tensor | float]] = {
    0.5: lambda scaled: 1.0,
    1.5: lambda scaled: 1 + scaled,
    2.5: lambda scaled: 1 + scaled + scaled.square() / 3,
}
"""The factor of exp(-scaled) for each smoothness nu, where scaled = sqrt(2 nu) |u - w|."""

SHAPES: dict[str, float] = {"matern": 1.5, "polynomial": 2.0}
"""The kernels that have a shape (a smoothness or a degree), each with its default."""


def _matern(shape: float) -> MatrixOf:
    if shape not in _MATERN:
        known = ", ".join(map(str, _MATERN))
        raise SettingError(
            f"shape of the matern kernel must be one of {known}, got {brief(shape)}."
        )

    def matrix(left: Tensor, right: Tensor) -> Tensor:
        scaled = sqrt(2 * shape) * _distance(left, right)
        return _MATERN[shape](scaled) * torch.exp(-scaled)

    return matrix


def _polynomial(shape: float) -> MatrixOf:
    if shape != int(shape) or not 1 <= shape <= 32:
        raise SettingError(
            "degree of the polynomial kernel must be a whole number from 1 to 32, got "
            f"{brief(shape)}."
        )
    return lambda left, right: (1 + _product(left, right)) ** int(shape)


KERNELS = by_name(
    Kernel("linear", _product),
    Kernel("relu", lambda u, w: torch.relu(_product(u, w)), is_positive=False),
    Kernel("exp", lambda u, w: torch.exp(_product(u, w))),
    Kernel("rbf", lambda u, w: torch.exp(-0.5 * _distance(u, w).square())),
    Kernel("laplace", lambda u, w: torch.exp(-torch.cdist(u, w, p=1.0))),
    Kernel("matern", _matern(SHAPES["matern"])),
    Kernel("polynomial", _polynomial(SHAPES["polynomial"])),
    Kernel(
        "softmax",
        lambda u, w: torch.softmax(_product(u, w), dim=-1),
        is_symmetric=False,
        is_positive=False,
    ),
)


def kernel_named(name: str, shape: float | None = None) -> Kernel:
    """The kernel called `name`; `shape` is the smoothness of matern, the degree of polynomial."""
    kernel = named("kernel", name, KERNELS)
    if shape is None:
        return kernel
    if name not in SHAPES:
        raise KernelError(
            f"Kernel {brief(name)} has no shape, got shape={brief(shape)}; only "
            f"{' and '.join(SHAPES)} have one. Rescale inputs with the head's transform."
        )
    of_shape = _matern if name == "matern" else _polynomial
    return Kernel(name, of_shape(shape))


def register_kernel(
    name: str,
    function: MatrixOf,
    *,
    symmetric: bool = True,
    lipschitz: Constant | None = None,
    bound: Constant | None = None,
    rounding: float = ROUNDING,
) -> Kernel:
    """Make a function of your own known as the kernel `name`.

    Files hold the name only: register it again, with all that you state of it, before a saved run
    is loaded elsewhere. Bounds rest on what you state of the kernel. `lipschitz` and `bound` are
    each a number, or a function of a radius that gives the number for points whose Euclidean norm
    is at most that radius.

    Args:
        name: what it is called from now on.
        function: it gets points (..., i, d) and (..., j, d) and returns the matrix (..., i, j), in
            torch.
        symmetric: whether K(u, w) = K(w, u).
        lipschitz: K(u, w) changes by at most `lipschitz` times the Euclidean distance that u or w
            moves. Without it `icgd.verify` estimates it from the data, warns, and proves nothing.
        bound: |K(u, w)| is at most this, and so is what the function returns, but for `rounding`.
            The default follows from `lipschitz` and K(0, 0).
        rounding: what the function returns may be off by `rounding` + d units of roundoff of
            itself, and by what it changes if each point moves by as many units of its norm. Sums,
            products, differences and torch's functions of them keep to the default.

    Returns:
        The kernel.

    Raises:
        KernelError: if the name is empty or that of a kernel of icgd, or if `function` is none.
        SettingError: if a constant is negative or no number, or `bound` comes without `lipschitz`.

    Example:
        >>> import icgd, torch
        >>> wave = icgd.register_kernel("wave", lambda u, w: torch.cos(u @ w.mT), lipschitz=abs)
        >>> icgd.KernelMachine(2, "wave").matrix(torch.zeros(1, 2), torch.ones(1, 2))
        tensor([[1.]])
    """
    if not isinstance(name, str) or not name.strip():
        raise KernelError(
            f"The name of a kernel must be a non-empty string, got {brief(name)}. Call "
            "icgd.register_kernel('mine', function)."
        )
    if name in KERNELS and not KERNELS[name].is_own:
        raise KernelError(
            f"{brief(name)} is a kernel of icgd already; register yours under another name."
        )
    if not callable(function):
        raise KernelError(
            f"Kernel {brief(name)} must be a function of two tensors of points that returns a "
            f"tensor, got {brief(function)}."
        )
    if bound is not None and lipschitz is None:
        raise SettingError("bound has no effect without lipschitz; give both or neither.")
    KERNELS[name] = Kernel(
        name,
        function,
        is_symmetric=symmetric,
        is_positive=False,
        is_own=True,
        lipschitz=_constant("lipschitz", lipschitz),
        bound=_constant("bound", bound),
        rounding=_not_negative("rounding", rounding),
    )
    return KERNELS[name]


def _constant(what: str, value: Any) -> Constant | None:
    """What is stated, if it is a number that is not negative, or a function."""
    return value if value is None or callable(value) else _not_negative(what, value)


def _not_negative(what: str, value: Any) -> float:
    number = finite(what, value)
    if number < 0:
        raise SettingError(f"{what} must be a number that is not negative, got {brief(value)}.")
    return number
