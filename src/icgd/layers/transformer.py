"""The whole transformer: a block of layers, repeated, and layers after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from icgd.shapes import Stream


class Transformer(nn.Module):
    """`block` repeated `n_repeats` times, with the same weights each time, then `final`."""

    def __init__(
        self, block: Sequence[nn.Module], n_repeats: int, final: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(block)
        self.n_repeats = n_repeats
        self.final = nn.ModuleList(final)

    def unrolled(self) -> Iterator[nn.Module]:
        """All layers in the order in which they run."""
        for _ in range(self.n_repeats):
            yield from self.block
        yield from self.final

    def forward(self, x: Stream) -> Stream:
        for layer in self.unrolled():
            x = layer(x)
        return x
