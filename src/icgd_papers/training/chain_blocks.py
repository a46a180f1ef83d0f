r"""Blocks of a chain that trains a network, as cot prints them (Definition 4.3, Appendix D).

    F_i     o_i, o_{i-1}, r'(z_i), vec W_i, 1
    B_i     delta_i, W_i^T delta_i, vec(W_i - eta delta_i o_{i-1}^T), 0, 0
    X, Y    x or y, 0, 2

A block has R = d^2 + 3d + 1 rows and d columns, all of them equal; here one column stands for them.
vec stacks the columns of a matrix. The forward operator makes F_i from [F_{i-1}; B_i], the backward
operator makes B_i from [B_{i+1}; F_i], where F_0 is X and B_{N+1} is Y. Every unit is a ReLU, also
of the last layer, and the loss of an example is the squared distance of the output from y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from icgd.problems.settings import count
from icgd.program.chain import ChainMask, Place

Block = Float[Tensor, "task rows"]
Stacked = Float[Tensor, "task two_blocks"]
Matrices = Float[Tensor, "task layer out in"]
Vectors = Float[Tensor, "task round width"]

Operator = Callable[[Stacked], Block]
"""What makes the next block of two that are stacked."""

IS_FORWARD, IS_BACKWARD, IS_DATA = 1.0, 0.0, 2.0
"""The last row of a block."""


@dataclass(frozen=True)
class BlockRows:
    """The rows of a block for layers of width d = `width`."""

    width: int

    def __post_init__(self) -> None:
        count("width", self.width)

    @property
    def n_rows(self) -> int:
        return self.width**2 + 3 * self.width + 1

    @property
    def slopes(self) -> slice:
        """The rows r'(z_i) of a forward block, the only ones that jump."""
        return slice(2 * self.width, 3 * self.width)

    def weights(self, backward: Block) -> Float[Tensor, "task out in"]:
        """Return the matrix in a backward block."""
        start = 2 * self.width
        flat: Tensor = backward[:, start : start + self.width**2]
        columns: Tensor = flat.unflatten(-1, (self.width, self.width))
        return columns.mT

    def data(self, values: Float[Tensor, "task width"]) -> Block:
        """Return the block of an input or of a label."""
        tag = values.new_full((len(values), 1), IS_DATA)
        return torch.cat([functional.pad(values, (0, self.n_rows - 1 - self.width)), tag], -1)

    def first_backward(self, matrix: Float[Tensor, "task out in"]) -> Block:
        """Return the block of the prompt that holds the initial weights of a layer."""
        nothing = matrix.new_zeros(len(matrix), self.width)
        return self._backward(nothing, nothing, matrix)

    def exact_forward(self, stacked: Stacked) -> Block:
        """Apply F_i exactly."""
        above, below = stacked.split(self.n_rows, -1)
        inputs, matrix = above[:, : self.width], self.weights(below)
        z = (matrix @ inputs[..., None])[..., 0]
        tag = z.new_full((len(z), 1), IS_FORWARD)
        slopes = (z > 0).to(z)
        return torch.cat([z.relu(), inputs, slopes, matrix.mT.flatten(1), tag], -1)

    def exact_backward(self, stacked: Stacked, step_size: float) -> Block:
        """Apply B_i exactly; `step_size` is eta."""
        d = self.width
        above, below = stacked.split(self.n_rows, -1)
        outputs, inputs, slopes = below[:, : 3 * d].split(d, -1)
        matrix = below[:, 3 * d : -1].unflatten(-1, (d, d)).mT
        is_label = above[:, -1:] == IS_DATA
        upstream = torch.where(is_label, 2 * (outputs - above[:, :d]), above[:, d : 2 * d])
        delta = upstream * slopes
        moved = matrix - step_size * delta[:, :, None] * inputs[:, None]
        return self._backward(delta, (matrix.mT @ delta[..., None])[..., 0], moved)

    def _backward(self, delta: Tensor, back: Tensor, matrix: Tensor) -> Block:
        rest = delta.new_zeros(len(delta), self.width + 1)  # the last of them is the tag
        return torch.cat([delta, back, matrix.mT.flatten(1), rest + IS_BACKWARD], -1)


@dataclass(frozen=True)
class Operators:
    """The two operators that make a chain."""

    forward: Operator
    backward: Operator

    @classmethod
    def exact(cls, rows: BlockRows, step_size: float) -> Operators:
        """Return those of gradient descent itself."""
        return cls(rows.exact_forward, lambda stacked: rows.exact_backward(stacked, step_size))


@dataclass(frozen=True, eq=False)
class Written:
    """A block that a chain wrote: where it stands, what it was made of, and its rows."""

    place: Place
    stacked: Stacked
    block: Block


def written_chain(
    rows: BlockRows, operators: Operators, start: Matrices, x: Vectors, y: Vectors
) -> Iterator[Written]:
    """Return all 2NL blocks of chains from the weights `start`, one example of `x` and `y` a round.

    The mask of cot-network says which blocks are read. Data stands in the place of the block that
    is not there: F_0 above B_1, and B_{N+1} above F_N.
    """
    mask = ChainMask(start.shape[1])
    blocks = {-layer: rows.first_backward(start[:, layer]) for layer in range(mask.depth)}
    for number in range(x.shape[1]):
        data = rows.data(x[:, number]), rows.data(y[:, number])
        for step in mask.walk_round(number):
            near, far = step.blocks(blocks, *data)
            stacked = torch.cat([far, near] if step.far is None else [near, far], -1)
            make = operators.forward if step.place.is_forward else operators.backward
            blocks[step.number] = make(stacked)
            blocks.pop(step.number - mask.reach, None)
            yield Written(step.place, stacked, blocks[step.number])


def weights_after_rounds(
    rows: BlockRows, operators: Operators, start: Matrices, x: Vectors, y: Vectors
) -> Float[Tensor, "task round_from_0 layer out in"]:
    """Return the weights that chains reach, from those before the first round on."""
    reached = [start.clone()]
    for each in written_chain(rows, operators, start, x, y):
        if each.place.is_forward:
            continue
        if each.place.layer == start.shape[1]:  # the first backward block of a round
            reached.append(torch.empty_like(start))
        reached[-1][:, each.place.layer - 1] = rows.weights(each.block)
    return torch.stack(reached, 1)
