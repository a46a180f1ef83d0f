"""The whole transformer: a block of layers, repeated, and layers after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from icgd.facts import counted, shown
from icgd.shapes import Stream


@shown
class Transformer(nn.Module):
    """`block` repeated `n_repeats` times, with the same weights each time, then `final`.

    If repetitions differ, `ends` has the last layers of each, in place of those of the block.
    """

    def __init__(
        self,
        block: Sequence[nn.Module],
        n_repeats: int,
        final: Sequence[nn.Module],
        ends: Sequence[Sequence[nn.Module]] = (),
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(block)
        self.n_repeats = n_repeats
        self.final = nn.ModuleList(final)
        self.ends = nn.ModuleList(nn.Sequential(*end) for end in ends)

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
        for number in range(self.n_repeats):
            yield from self.repetition(number)
        yield from self.final

    def repetition(self, number: int) -> list[nn.Module]:
        """The layers of a repetition of the block, counted from 0."""
        if not self.ends:
            return list(self.block)
        end = list(self.ends[number].children())
        return [*list(self.block)[: len(self.block) - len(end)], *end]

    def layers_of(self, step: int, n_layers: int) -> list[nn.Module]:
        """The `n_layers` layers of a step, counted from 0; a block may have several steps."""
        per_block = len(self.block) // n_layers
        first = step % per_block * n_layers
        return self.repetition(step // per_block)[first : first + n_layers]

    def forward(self, x: Stream) -> Stream:
        for layer in self.unrolled():
            x = layer(x)
        return x
