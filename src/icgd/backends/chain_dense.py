"""The dense generator runs the block of layers itself, every head and every hidden unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from icgd.backends.chain_generator import AbstractGenerator, Row
from icgd.program.chain import FAR, NEAR, OUT, ChainProgram, row_of
from icgd.program.chain_instructions import Product
from icgd.program.instructions import ONE
from icgd.program.layout import Layout
from icgd.shapes import Stream
from icgd.weights.lowering import lower_chain


class DenseGenerator(AbstractGenerator[Stream]):
    """A block is a column of numbers, in the order of the program's rows."""

    name: ClassVar[str] = "dense"

    def __init__(self, program: ChainProgram, like: Tensor) -> None:
        super().__init__(program, like)
        self.layers = lower_chain(program, like.dtype).to(like.device)
        self._places = {
            block: _place_of_block(program.layout, program.rows, block)
            for block in (NEAR, FAR, OUT)
        }

    def encode(self, rows: Mapping[str, Row]) -> Stream:
        block = self._zeros(self.program.rows.width)
        for name, row in rows.items():
            if isinstance(row, Tensor):
                row = row.flatten(-2).unsqueeze(-2)
            block[..., self.program.rows.range_of(name)] = row
        return block

    def step(self, near: Stream, far: Stream, number: int, *, at_queries: bool = False) -> Stream:
        stream: Stream = self._zeros(self.program.layout.width)
        stream[..., self._places[NEAR]], stream[..., self._places[FAR]] = near, far
        stream[..., self.program.layout.range_of(ONE)] = 1.0
        with torch.no_grad():
            for layer, module in zip(self.program.layers, self.layers, strict=True):
                stream = module(stream)
                for part in layer.instructions:
                    if isinstance(part, Product):
                        product = stream[..., self.program.layout.range_of(part.write)]
                        self.require_reach(part, product, number, at_queries=at_queries)
        return stream[..., self._places[OUT]].clone()

    def row(self, block: Stream, name: str) -> Tensor:
        rows = self.program.rows
        row: Tensor = block[..., 0, rows.range_of(name)].unflatten(-1, rows.slot(name).shape)
        return row

    def _zeros(self, width: int) -> Stream:
        return self.like.new_zeros(*self.like.shape[:-2], 1, width)


def _place_of_block(layout: Layout, rows: Layout, block: str) -> slice:
    """Where all rows of a block stand in the stream, one after the other."""
    first = layout.range_of(row_of(block, rows.names[0])).start
    return slice(first, first + rows.width)
