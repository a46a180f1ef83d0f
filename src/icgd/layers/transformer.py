"""The whole transformer: a block of layers, repeated, and layers after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from icgd.facts import counted, shown
from icgd.shapes import Stream


@shown
class Transformer(nn.Module):
    """`block` repeated `n_repeats` times, with the same weights each time, then `final`."""

    def __init__(
        self, block: Sequence[nn.Module], n_repeats: int, final: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(block)
        self.n_repeats = n_repeats
        self.final = nn.ModuleList(final)

    def facts(self) -> dict[str, str]:
        n_weights = sum(weights.numel() for weights in self.parameters())
        n_layers = len(self.block) * self.n_repeats + len(self.final)
        repeated = f"{counted(len(self.block), 'layer')} repeated {self.n_repeats:,} times"
        return {
            "layers": f"{n_layers:,}: {repeated}, then {len(self.final)}",
            "weights": f"{n_weights:,}",
        }

    def unrolled(self) -> Iterator[nn.Module]:
        """All layers in the order in which they run."""
        for _ in range(self.n_repeats):
            yield from self.block
        yield from self.final

    def forward(self, x: Stream) -> Stream:
        for layer in self.unrolled():
            x = layer(x)
        return x
