r"""Wu's network and its exact training in numpy, sums of ReLUs, and the norms of layers.

    p(0) = x,  p(j) = r(V_j p(j-1)),  r'(j) = r'(V_{j+1} p(j))                  Definitions 1, 2
    s(N) = r'(N-1) * u,  s(j) = r'(j-1) * (V_{j+1}^T s(j+1))                    Definition 3
    gradient of V_j = (1 / 2n) sum_i s_i(j) p_i(j-1)^T                          (3.6), (3.8)

Rows are examples. The training shares no code with icgd, so that it can judge what icgd compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from icgd.compiled import Compiled
from icgd.layers import Headed, MLPLayer

Array = npt.NDArray[np.float64]
Curve = Callable[[Array], Array]

EXACT = 1e-12
"""Room for rounding in numbers of order 1."""

TANH_BEND = 4 / (3 * np.sqrt(3))
"""The largest |tanh''|."""


def sigmoid(z: Array) -> Array:
    """Return the logistic function."""
    return np.asarray(0.5 + 0.5 * np.tanh(z / 2))


def softplus(z: Array) -> Array:
    """Return log(1 + exp(z))."""
    return np.asarray(np.logaddexp(0.0, z))


def tanh_slope(z: Array) -> Array:
    """Return the derivative of tanh."""
    return np.asarray(1 - np.tanh(z) ** 2)


def relu(z: Array) -> Array:
    """Return max(z, 0)."""
    return np.maximum(z, 0.0)


ACTIVATIONS: dict[str, tuple[Curve, Curve]] = {
    "tanh": (np.tanh, tanh_slope),
    "sigmoid": (sigmoid, lambda z: sigmoid(z) * sigmoid(-z)),
    "softplus": (softplus, sigmoid),
    "relu": (relu, lambda z: (z > 0).astype(np.float64)),
    "identity": (lambda z: z, np.ones_like),
}
"""r and r' by the name of r."""

LOSS_SLOPES: dict[str, Callable[[Array, Array], Array]] = {
    "squared": lambda p, y: 2 * (p - y),
    "logistic": lambda p, y: sigmoid(p) - y,
    "huber": lambda p, y: np.clip(p - y, -1.0, 1.0),
}
"""u(p, y) by the name of the loss."""


def matrices_of(widths: Sequence[int], w: Array) -> list[Array]:
    """Return V_1 .. V_N from the vector of all weights (3.2)."""
    shapes = [(rows, columns) for columns, rows in pairwise(widths)]
    ends = np.cumsum([rows * columns for rows, columns in shapes])
    return [block.reshape(s) for block, s in zip(np.split(w, ends[:-1]), shapes, strict=True)]


def outputs(matrices: Sequence[Array], x: Array, r: Curve) -> list[Array]:
    """Return p(0) .. p(N)."""
    values = [x]
    for matrix in matrices:
        values.append(r(values[-1] @ matrix.T))
    return values


def slopes(matrices: Sequence[Array], values: Sequence[Array], slope: Curve) -> list[Array]:
    """Return r'(0) .. r'(N-1) at the outputs `values`."""
    return [slope(p @ matrix.T) for matrix, p in zip(matrices, values[:-1], strict=True)]


def deltas(matrices: Sequence[Array], bends: Sequence[Array], u: Array) -> list[Array]:
    """Return s(1) .. s(N), by the recursion (3.7)."""
    backward = [bends[-1] * u]
    for matrix, bend in zip(reversed(matrices[1:]), reversed(bends[:-1]), strict=True):
        backward.append(bend * (backward[-1] @ matrix))
    return backward[::-1]


def gradient(values: Sequence[Array], backward: Sequence[Array]) -> Array:
    """Return the gradient (3.6) as one vector."""
    blocks = [s.T @ p for s, p in zip(backward, values[:-1], strict=True)]
    return np.concatenate([block.ravel() for block in blocks]) / (2 * len(values[0]))


@dataclass(frozen=True)
class Training:
    """Projected gradient descent on a network and a prompt.

    `output` is the activation of the last layer; the paper's networks have the same in all layers.
    Weights are projected onto a box, or by `project` onto another set.
    """

    widths: tuple[int, ...]
    x: Array
    y: Array
    step: float
    box: float = np.inf
    activation: str = "tanh"
    output: str = ""
    loss: str = "squared"
    project: Callable[[Array], Array] | None = None

    def gradient(self, w: Array) -> Array:
        """Return the gradient of the risk."""
        matrices = matrices_of(self.widths, w)
        last = self.output or self.activation
        names = [self.activation] * (len(matrices) - 1) + [last]
        values, bends = [self.x], []
        for matrix, name in zip(matrices, names, strict=True):
            r, slope = ACTIVATIONS[name]
            argument = values[-1] @ matrix.T
            values.append(r(argument))
            bends.append(slope(argument))
        u = LOSS_SLOPES[self.loss](values[-1], self.y)
        return gradient(values, deltas(matrices, bends, u))

    def after(self, w: Array) -> Array:
        """Return the weights after one exact step."""
        moved = w - self.step * self.gradient(w)
        return np.clip(moved, -self.box, self.box) if self.project is None else self.project(moved)

    def hessian_norm(self, w: Array) -> float:
        """Return largest |eigenvalue| of the Hessian, by central differences of the gradient."""
        h = 1e-5
        columns = [
            (self.gradient(w + h * e) - self.gradient(w - h * e)) / (2 * h) for e in np.eye(len(w))
        ]
        return float(np.linalg.norm(np.array(columns), 2))


def literal_path(compiled: Compiled, training: Training, initial: Array) -> Array:
    """Return weights before and after every step of the transformer, with every head computed."""
    task = compiled.task(training.x, training.y, initial=initial)
    path: Array = compiled.run_task(task, backend="literal").parameters.numpy()
    return path


@dataclass(frozen=True)
class SumOfRelus:
    """The interpolation of `function` on [-reach, reach] with equal pieces, as in Definition 4.

    It is sum_h c_h relu(<a_h, [z; 1]>) with |a_h|_1 <= 1, and goes on straight beyond the interval.
    """

    function: Curve
    reach: float
    pieces: int

    @cached_property
    def terms(self) -> tuple[Array, Array, Array]:
        """The first and last entry of every a_h, and c_h: a constant, a line, and the bends."""
        nodes = np.linspace(-self.reach, self.reach, self.pieces + 1)
        values = self.function(nodes)
        slope = np.diff(values) / np.diff(nodes)
        bends, size = nodes[1:-1], 1 + np.abs(nodes[1:-1])
        scales = np.concatenate([[0.0, 1.0, -1.0], 1 / size])
        shifts = np.concatenate([[1.0, 0.0, 0.0], -bends / size])
        start = values[0] - slope[0] * nodes[0]
        coefficients = np.concatenate([[start, slope[0], -slope[0]], np.diff(slope) * size])
        return scales, shifts, coefficients

    def __call__(self, z: Array) -> Array:
        scales, shifts, coefficients = self.terms
        return np.asarray(relu(np.asarray(z)[..., None] * scales + shifts) @ coefficients)

    @property
    def total(self) -> float:
        """C of Definition 4: the sum of all |c_h|."""
        return float(np.abs(self.terms[2]).sum())

    @cached_property
    def error(self) -> float:
        """The largest distance to the function on the interval, at many sample points."""
        z = np.linspace(-self.reach, self.reach, 5_001)
        return float(np.abs(self(z) - self.function(z)).max())


def largest(function: Curve, reach: float) -> float:
    """Return max |function| on [-reach, reach], at many sample points and both ends."""
    return float(np.abs(function(np.linspace(-reach, reach, 5_001))).max())


def unit_rows(rng: np.random.Generator, *shape: int) -> Array:
    """Random rows of norm 1."""
    rows = rng.normal(size=shape)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def random_matrices(rng: np.random.Generator, widths: Sequence[int]) -> list[Array]:
    """Draw V_1 .. V_N with rows of norm 1, so that B_v = 1."""
    return [unit_rows(rng, rows, columns) for columns, rows in pairwise(widths)]


def name_of(widths: Sequence[int]) -> str:
    """Return the widths of a network as 2-3-1."""
    return "-".join(map(str, widths))


def column_sum(matrices: torch.Tensor) -> torch.Tensor:
    """Return |.|_1 of every matrix: the largest sum of a column of absolute values."""
    return matrices.detach().abs().sum(-2).amax(-1)


def layer_norm(layer: Headed | MLPLayer) -> float:
    """Return (C.1): max(|Q|_1, |K|_1) over heads plus the sum of all |V|_1, or |W_1|_1 + |W_2|_1.

    The bias of an MLP is the column of the constant 1.
    """
    if isinstance(layer, MLPLayer):
        reads = torch.cat([layer.W_in.mT, layer.b_in[:, None]], dim=1)
        return float(column_sum(reads) + column_sum(layer.W_out.mT))
    largest_read = max(column_sum(weights.mT).max() for weights in (layer.W_Q, layer.W_K))
    return float(largest_read + column_sum((layer.W_V @ layer.W_O).mT).sum())


def product_norm(layer: Headed) -> float:
    """Return (3.18) of a product layer: the largest |Q|_1, |K|_1 or |V|_1 of any head."""
    reads = [column_sum(weights.mT) for weights in (layer.W_Q, layer.W_K)]
    return float(torch.stack([*reads, column_sum((layer.W_V @ layer.W_O).mT)]).max())
