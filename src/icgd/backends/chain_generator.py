"""A generator makes the next block of a chain from two that it is shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import inf, isfinite
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from icgd.errors import OverflowedRunError
from icgd.program.chain import BACK, ChainProgram, Place
from icgd.program.chain_instructions import Product

Block = TypeVar("Block")
Row = Tensor | float
"""A block's row: a matrix for each task, or a number that all its entries are equal to."""


class AbstractGenerator(ABC, Generic[Block]):
    """The block of layers at work, on blocks in a form of its own. Subclasses are final.

    Blocks are for as many tasks as the examples `like`, in their precision.
    """

    name: ClassVar[str]

    def __init__(self, program: ChainProgram, like: Tensor) -> None:
        self.program = program
        self.like = like

    @abstractmethod
    def encode(self, rows: Mapping[str, Row]) -> Block:
        """A block of the prompt; rows that are not given are 0."""

    @abstractmethod
    def step(self, near: Block, far: Block, number: int, *, at_queries: bool = False) -> Block:
        """Block `number` of the chain, or of the pass at the queries, from the two it is shown."""

    @abstractmethod
    def row(self, block: Block, name: str) -> Tensor:
        """A row of a block in its own shape, with the axis of tasks in front."""

    def require_reach(
        self, product: Product, value: Tensor, number: int, *, at_queries: bool
    ) -> None:
        """Raise `OverflowedRunError` if a product leaves the lattice that its heads read."""
        largest = float(torch.linalg.vector_norm(value, inf))
        if largest <= product.reach:
            return
        place, reach = self.program.mask.place(number), product.reach
        if not _is_unread(product, place, largest):
            title = place.title(at_queries=at_queries)
            raise OverflowedRunError(
                f"Row {product.write} of block {number} ({title}) reaches {largest:.6g}, but the "
                f"grid that its heads read ends at {reach:.6g}. Use a smaller step size, box or "
                "domain."
            )

    def expanded(self, row: Row, name: str) -> Tensor:
        """A row as a tensor."""
        if isinstance(row, Tensor):
            return row
        shape = (*self.like.shape[:-2], *self.program.rows.slot(name).shape)
        return self.like.new_full(shape, row)


def _is_unread(product: Product, place: Place, largest: float) -> bool:
    """Whether no later block reads the product: B_1 has no layer below to pass back to.

    The flags close its row at once where it is a number at all. Dense heads return at most the last
    value of their lattice, whatever they read, and that is below the gate.
    """
    return product.write == BACK and place.layer == 1 and not place.is_forward and isfinite(largest)
