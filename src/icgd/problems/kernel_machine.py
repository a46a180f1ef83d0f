"""Kernels, and the target of functional descent: a sum of kernels around the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from icgd.environment import require_memory
from icgd.errors import DataError, KernelError, SettingError, at, quoted
from icgd.problems.data import as_numbers, dtype_name, first_set
from icgd.problems.settings import (
    as_float,
    as_row,
    by_name,
    count,
    flag,
    instance,
    named,
    not_negative,
    positive,
    set_fields,
)
from icgd.reprs import counted
from icgd.shapes import KernelMatrix, OtherPoints, Points

MatrixOf = Callable[[Tensor, Tensor], Tensor]
"""Maps points (..., i, d) and (..., j, d) to the matrix (..., i, j)."""

Constant = float | Callable[[float], float]
"""A constant for all points, or a function of a radius that bounds their norms."""

ROUNDING = 32.0
"""The assumed rounding error of a user's own kernel, in units of roundoff, plus one per input."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, with the matrix K[i, j] = K(left_i, right_j); learning sums over the right points.

        linear      <u, w>                     rbf         exp(-|u - w|^2 / 2)
        relu        max(0, <u, w>)             laplace     exp(-|u - w|_1)
        exp         exp(<u, w>)                matern      of smoothness nu = 1/2, 3/2 or 5/2
        polynomial  (1 + <u, w>)^degree        softmax     exp(<u, w>) / sum over w of exp(<u, w>)

    Kernels have no length scale: heads transform their inputs by a matrix instead. relu is not
    positive, softmax not even symmetric; both are included because attention uses them.
    """

    name: str
    function: MatrixOf
    is_symmetric: bool = True
    is_positive: bool = True
    """Whether its matrices have no negative eigenvalue; those of relu and softmax may."""
    is_own: bool = False
    """Whether a user registered the kernel; its values are then checked on every call."""
    lipschitz: Constant | None = None
    bound: Constant | None = None
    rounding: float = ROUNDING
    """The constants that a user gives for a kernel: see `register_kernel`."""

    def matrix(self, left: Points, right: OtherPoints) -> KernelMatrix:
        """Return the kernel of every pair."""
        values = self.function(left, right)
        if not self.is_own:
            return values
        returned = f"Kernel {quoted(self.name)} returned"
        shape = (*left.shape[:-1], right.shape[-2])
        if not isinstance(values, Tensor) or tuple(values.shape) != shape:
            is_tensor = isinstance(values, Tensor)
            actual = tuple(values.shape) if is_tensor else f"a {type(values).__name__}"
            raise KernelError(
                f"{returned} {actual}; expected a tensor of shape {shape}: a row for each left "
                "point, a column for each right point."
            )
        if values.dtype is not left.dtype:
            raise KernelError(
                f"{returned} {dtype_name(values.dtype)} for points of "
                f"{dtype_name(left.dtype)}. Return the dtype of the points."
            )
        if index := first_set(~values.isfinite()):
            raise KernelError(
                f"{returned} {values[tuple(index)].item()} at {at(index)}; every entry must be "
                "finite. Rescale the inputs, or use a kernel that stays bounded."
            )
        return values

    def stated(self, what: str, radius: float) -> float:
        """Return the constant `what` for points of at most this norm; infinity if not given."""
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
        if not number >= 0:  # true for NaN as well
            raise KernelError(
                f"{what} of kernel {quoted(self.name)} is {quoted(value)} for points of norm up to "
                f"{radius:.6g}; expected a nonnegative number. Correct the function given as "
                f"{what}."
            )
        return number


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.mT


def _distance(left: Tensor, right: Tensor) -> Tensor:
    """Return the Euclidean distance, computed from differences: exactly 0 for equal points."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


_MATERN: dict[float, Callable[[Tensor], Tensor | float]] = {
    0.5: lambda scaled: 1.0,
    1.5: lambda scaled: 1 + scaled,
    2.5: lambda scaled: 1 + scaled + scaled.square() / 3,
}
"""The factor of exp(-scaled) for each smoothness nu, where scaled = sqrt(2 nu) |u - w|."""

SHAPES: dict[str, float] = {"matern": 1.5, "polynomial": 2.0}
"""The kernels with a shape parameter (a smoothness or a degree), each with its default."""


def _matern(shape: float) -> MatrixOf:
    if shape not in _MATERN:
        values = ", ".join(map(str, _MATERN))
        raise SettingError(
            f"shape of the matern kernel must be one of {values}, got {quoted(shape)}."
        )

    def matrix(left: Tensor, right: Tensor) -> Tensor:
        scaled = sqrt(2 * shape) * _distance(left, right)
        return _MATERN[shape](scaled) * torch.exp(-scaled)

    return matrix


def _polynomial(shape: float) -> MatrixOf:
    if shape != int(shape) or not 1 <= shape <= 32:
        raise SettingError(
            f"shape of the polynomial kernel must be an integer from 1 to 32, got {quoted(shape)}."
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
    """Return the kernel called `name`; `shape` is the smoothness of matern or the degree."""
    kernel = named("kernel", name, KERNELS)
    if shape is None:
        return kernel
    if name not in SHAPES:
        raise KernelError(
            f"Kernel {quoted(name)} has no shape, got shape={quoted(shape)}; only "
            f"{' and '.join(SHAPES)} have one. For a length scale use the head's transform."
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
    """Register your own function as the kernel `name`.

    Files store the name only: register the kernel again, with the same constants, before loading a
    saved run in another process. Bounds assume the constants given here. `lipschitz` and `bound`
    are each a number, or a function of a radius that returns the number for points whose Euclidean
    norm is at most that radius.

    Args:
        name: the name of the kernel.
        function: a function of points (..., i, d) and (..., j, d), as torch tensors, that returns
            the matrix (..., i, j).
        symmetric: whether K(u, w) = K(w, u).
        lipschitz: a Lipschitz constant of K(u, w) in u and in w, for the Euclidean distance.
            Without it `icgd.verify` estimates one from the data, warns, and proves nothing.
        bound: an upper bound on |K(u, w)| and, up to `rounding`, on the computed values. The
            default follows from `lipschitz` and K(0, 0).
        rounding: the rounding error of a computed value is at most `rounding` + d units of roundoff
            of the value, plus its change when each point moves by as many units of its norm. The
            default suffices for sums, products, differences and torch's functions of them.

    Returns:
        The kernel.

    Raises:
        KernelError: if the name is empty or belongs to a kernel of icgd, or if `function` is not
            callable.
        SettingError: if a constant is negative or not a number, or if `bound` is given without
            `lipschitz`.

    Example:
        >>> import icgd, torch
        >>> wave = icgd.register_kernel("wave", lambda u, w: torch.cos(u @ w.mT), lipschitz=abs)
        >>> icgd.KernelMachine(2, "wave").matrix(torch.zeros(1, 2), torch.ones(1, 2))
        tensor([[1.]])
    """
    if not isinstance(name, str) or not name.strip():
        raise KernelError(
            f"The name of a kernel must be a non-empty string, got {quoted(name)}. Call "
            "icgd.register_kernel('mine', function)."
        )
    if name in KERNELS and not KERNELS[name].is_own:
        raise KernelError(
            f"{quoted(name)} is a built-in kernel. Register yours under another name."
        )
    if not callable(function):
        raise KernelError(
            f"Kernel {quoted(name)} must be a function of two tensors of points that returns a "
            f"tensor, got {quoted(function)}."
        )
    if bound is not None and lipschitz is None:
        raise SettingError("bound has no effect without lipschitz; give both or neither.")
    KERNELS[name] = Kernel(
        name,
        function,
        is_symmetric=flag("symmetric", symmetric),
        is_positive=False,
        is_own=True,
        lipschitz=_constant("lipschitz", lipschitz),
        bound=_constant("bound", bound),
        rounding=not_negative("rounding", rounding),
    )
    return KERNELS[name]


def _constant(what: str, value: Any) -> Constant | None:
    """Validate a constant: a nonnegative number, or a function of the radius."""
    return value if value is None or callable(value) else not_negative(what, value)


Rows = tuple[tuple[float, ...], ...]
"""A matrix as nested tuples."""

ASYMMETRY = 1e-9
"""Tolerance for asymmetry of a kernel matrix, relative to its largest entry, to allow rounding."""


def as_rows(name: str, matrix: object) -> Rows:
    """Return `matrix` as nested tuples; raise unless it is a matrix of finite numbers."""
    try:
        tensor = as_numbers(name, matrix).double()
    except DataError:
        raise SettingError(f"{name} must be a matrix of numbers, got {quoted(matrix)}.") from None
    if tensor.ndim != 2 or not tensor.isfinite().all():
        raise SettingError(f"{name} must be a matrix of finite numbers, got {quoted(matrix)}.")
    return tuple(tuple(row) for row in tensor.tolist())


def unit_rows(factor: float, width: int) -> Rows:
    """Return the matrix factor * I as nested tuples."""
    return tuple(tuple(factor * (i == j) for j in range(width)) for i in range(width))


def as_matrix(rows: Rows, like: Tensor) -> Tensor:
    """Return nested tuples as a tensor, rounded once to the precision of `like`."""
    return torch.tensor(rows, dtype=torch.float64).to(like)


@dataclass(frozen=True)
class KernelHead:
    """The kernel `weight * K(G u, G w)`, where G = `transform`; the default is no transform.

    A length scale s is the transform I / s. With a `key_transform` H, as in learnt heads, the
    kernel is `weight * K(G u, H w)`, where w is an example, and counts as not symmetric.

    Args:
        kernel: the name of the kernel, such as "rbf", or of your own.
        transform: the matrix G, in any form that torch reads as a matrix.
        weight: a positive factor.
        shape: the smoothness of the matern kernel, or the degree of the polynomial kernel.
        key_transform: the matrix H.

    Raises:
        UnknownNameError: if no kernel has this name.
        SettingError: if a number or a matrix is invalid, or if the matrices do not fit together.
        KernelError: if `shape` is given for a kernel without a shape.

    Example:
        >>> import icgd
        >>> icgd.KernelHead("matern", transform=[[2.0, 0.0], [0.0, 2.0]], shape=2.5)
        KernelHead(1 matern[2.5], G 2 x 2)
    """

    kernel: str = "rbf"
    transform: Any = None
    """Converted to `Rows`."""
    weight: float = 1.0
    shape: float | None = None
    key_transform: Any = None

    def __post_init__(self) -> None:
        kernel_named(self.kernel, self.shape)
        set_fields(self, weight=positive("weight", self.weight))
        for name in ("transform", "key_transform"):
            if getattr(self, name) is not None:
                set_fields(self, **{name: as_rows(name, getattr(self, name))})
        if self.key_transform is not None:
            if self.transform is None:
                raise SettingError(
                    "key_transform has no effect without transform; give both or neither."
                )
            if len(self.key_transform) != len(self.transform):
                raise SettingError(
                    f"key_transform has {len(self.key_transform)} rows; expected "
                    f"{len(self.transform)}, as in transform."
                )

    def __repr__(self) -> str:
        """Return the head without the numbers of its matrices."""
        shape = "" if self.shape is None else f"[{self.shape:g}]"
        maps = {"G": self.transform, "H": self.key_transform}
        sizes = [f", {name} {len(m)} x {len(m[0])}" for name, m in maps.items() if m is not None]
        return f"KernelHead({self.weight:g} {self.kernel}{shape}{''.join(sizes)})"

    @property
    def function(self) -> Kernel:
        """The kernel itself."""
        return kernel_named(self.kernel, self.shape)

    @property
    def is_symmetric(self) -> bool:
        """Whether the matrices of the head are symmetric."""
        return self.function.is_symmetric and self.key_transform is None

    @property
    def is_positive(self) -> bool:
        """Whether the matrices of the head are known to have no negative eigenvalue."""
        return self.function.is_positive and self.key_transform is None

    @cached_property
    def keys(self) -> KernelHead:
        """The head with the transform of the examples, the keys."""
        if self.key_transform is None:
            return self
        return replace(self, transform=self.key_transform, key_transform=None)

    def matrix(self, left: Points, right: OtherPoints) -> KernelMatrix:
        """Return the kernel matrix of this head.

        Args:
            left: points (..., i, d).
            right: points (..., j, d), such as the examples.

        Returns:
            The matrix (..., i, j).

        Raises:
            KernelError: if your own kernel does not return such a matrix of finite numbers.
            SizeError: if the matrix does not fit into memory.

        Example:
            >>> import icgd, torch
            >>> icgd.KernelHead("linear", weight=2.0).matrix(torch.eye(2), torch.ones(1, 2))
            tensor([[2.],
                    [2.]])
        """
        n_bytes = 2 * left[..., 0].numel() * right.shape[-2] * left.itemsize
        what = f"The kernel of {left.shape[-2]:,} by {right.shape[-2]:,} points"
        require_memory(what, n_bytes, "Take fewer examples or queries, or train a network on them.")
        return self.weight * self.function.matrix(self.moved(left), self.keys.moved(right))

    def moved(self, points: Points) -> Tensor:
        """Return G u for every point u.

        Args:
            points: points (..., n, d).

        Returns:
            The transformed points.

        Example:
            >>> import icgd, torch
            >>> icgd.KernelHead("rbf", transform=[[2.0]]).moved(torch.ones(1, 1))
            tensor([[2.]])
        """
        if self.transform is None:
            return points
        return points @ as_matrix(self.transform, points).mT


@dataclass(frozen=True, init=False)
class KernelMachine:
    """f(x) = sum_i a_i K(x, x_i), where K is the sum of the heads' kernels.

    Training changes the function itself: its parameters are its values at all tokens.

    Args:
        input_width: the number of inputs.
        heads: the name of a kernel, one head, or several.
        output_width: the number of labels.

    Raises:
        UnknownNameError: if no kernel has this name.
        SettingError: if a width is not a positive integer, or if a head does not fit the inputs.

    Example:
        >>> import icgd
        >>> icgd.KernelMachine(3, "laplace").in_words()
        'function of 3 inputs, laplace kernel'
    """

    input_width: int
    heads: tuple[KernelHead, ...]
    output_width: int

    def __init__(
        self,
        input_width: int,
        heads: str | KernelHead | Iterable[KernelHead] = "rbf",
        output_width: int = 1,
    ) -> None:
        if isinstance(heads, str):
            heads = KernelHead(heads)
        widths = {"input_width": input_width, "output_width": output_width}
        set_fields(
            self,
            heads=tuple(as_row(heads)),
            **{name: count(name, width) for name, width in widths.items()},
        )
        if not self.heads:
            raise SettingError("heads is empty; give at least one head.")
        for head in self.heads:
            instance("head", head, KernelHead)
            for name in ("transform", "key_transform"):
                for row in getattr(head, name) or ():
                    if len(row) != self.input_width:
                        raise SettingError(
                            f"A row of {name} has {len(row)} entries; expected {self.input_width}, "
                            "one for each input."
                        )

    def in_words(self) -> str:
        """Return a short description, such as "function of 3 inputs, rbf kernel".

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.KernelMachine(1).in_words()
            'function of 1 input, rbf kernel'
        """
        kernels = " + ".join(dict.fromkeys(head.kernel for head in self.heads))
        return f"function of {counted(self.input_width, 'input')}, {kernels} kernel"

    @property
    def is_symmetric(self) -> bool:
        """Whether the kernel matrices are symmetric."""
        return all(head.is_symmetric for head in self.heads)

    @property
    def is_positive(self) -> bool:
        """Whether the kernel matrices are known to have no negative eigenvalue."""
        return all(head.is_positive for head in self.heads)

    def matrix(self, left: Points, right: OtherPoints) -> KernelMatrix:
        """Return the kernel matrix, summed over the heads.

        Args:
            left: points (..., i, d).
            right: points (..., j, d), such as the examples.

        Returns:
            The matrix (..., i, j).

        Raises:
            KernelError: if your own kernel does not return such a matrix of finite numbers.

        Example:
            >>> import icgd, torch
            >>> icgd.KernelMachine(2, "linear").matrix(torch.eye(2), torch.eye(2))
            tensor([[1., 0.],
                    [0., 1.]])
        """
        return sum_of_heads(self.heads, left, right)

    def require_symmetric(self, purpose: str) -> None:
        """Raise unless the kernels of all heads are symmetric.

        Args:
            purpose: what needs a symmetric kernel, for the message.

        Raises:
            KernelError: if the kernel of a head is not symmetric.

        Example:
            >>> import icgd
            >>> icgd.KernelMachine(2, "softmax").require_symmetric("The spectrum")
            Traceback (most recent call last):
                ...
            icgd.errors.KernelError: The spectrum needs a symmetric kernel...
        """
        for head in self.heads:
            if not head.is_symmetric:
                raise KernelError(
                    f"{purpose} needs a symmetric kernel, and {quoted(head.kernel)} is not. Use "
                    "another kernel, such as 'rbf', without a key_transform."
                )

    def gram(self, points: Points) -> KernelMatrix:
        """Return the kernel matrix of `points`, checked to be finite and symmetric.

        Args:
            points: points (..., n, d).

        Returns:
            The matrix (..., n, n).

        Raises:
            KernelError: if an entry is not finite, or if a symmetric kernel's matrix is not
                symmetric.

        Example:
            >>> import icgd, torch
            >>> icgd.KernelMachine(1).gram(torch.zeros(2, 1))
            tensor([[1., 1.],
                    [1., 1.]])
        """
        matrices = [head.matrix(points, points) for head in self.heads]
        for head, matrix in zip(self.heads, matrices, strict=True):
            if index := first_set(~matrix.isfinite()):
                raise KernelError(
                    f"Kernel {quoted(head.kernel)} returned {matrix[tuple(index)].item()} at "
                    f"{at(index)}; every entry must be finite. Rescale the inputs, or use a kernel "
                    "that stays bounded."
                )
            if not head.is_symmetric or not matrix.numel():
                continue
            excess = (matrix - matrix.mT).abs() - ASYMMETRY * matrix.abs().amax()
            if index := first_set(excess > 0):
                mirrored = [*index[:-2], index[-1], index[-2]]
                raise KernelError(
                    f"Kernel {quoted(head.kernel)} is not symmetric: it is "
                    f"{matrix[tuple(index)].item():.6g} at {at(index)} and "
                    f"{matrix[tuple(mirrored)].item():.6g} with the two points exchanged. Correct "
                    "the function, or register it with symmetric=False."
                )
        return reduce(torch.add, matrices)


def sum_of_heads(heads: tuple[KernelHead, ...], left: Points, right: OtherPoints) -> KernelMatrix:
    """Return the kernel matrix, summed over the heads."""
    return reduce(torch.add, (head.matrix(left, right) for head in heads))
