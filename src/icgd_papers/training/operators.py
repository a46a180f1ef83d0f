r"""Learnt operators of a chain: models that make the next block of two that are stacked.

`PlainOperator` is what cot trains (Appendix D): one softmax attention over the d columns of the
stacked blocks, and one MLP. All columns are equal, so that attention without positions returns the
value of one column: a linear map. With positions p_j added to the columns, scores differ among them
by terms that are linear in the column, and attention still multiplies no two of its rows. If
positions scale the columns too, as the linear map along the sequence does in the construction, a
score has products in it.

`ProductOperator` is nearer to the constructed block: MLP - heads - MLP on one column, where each
head returns its score <Q t, K t> itself. That is what the constructed heads do by softmax over a
grid of tokens. Rows that jump, the slopes of forward blocks, may be read through steep units: a
sigmoid of all other rows, with a gain of its own. Their gradient goes no further. It is a few huge
numbers from units near their kink, and its noise would keep the products from being learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from icgd.errors import SettingError, brief
from icgd.problems.settings import count, described
from icgd_papers.training.chain_blocks import Block, BlockRows, Operator, Stacked

Blocks = Float[Tensor, "task column rows"]
Stream = Float[Tensor, "*task stream"]

POSITIONS = ("none", "added", "scaled")
"""What tells the columns of a block apart in `PlainOperator`."""

FIRST_GAIN = 10.0
"""The gain of a steep unit before training."""

GAIN_SPEED = 30.0
"""A gain is exp of so many times its parameter, so that it grows by a share of itself."""


class _Residual(nn.Module):
    """t + W_out relu(W_in t + b) + c."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, hidden_width), nn.Linear(hidden_width, width)

    def forward(self, stream: Stream) -> Stream:
        added: Tensor = self.outer(self.inner(stream).relu())
        return stream + added


@final
class PlainOperator(nn.Module):
    """One softmax attention layer and one MLP over the columns of the stacked blocks.

    The first weights follow from `seed`. Without positions all columns stay equal, and one is
    computed for all.
    """

    kind = "plain operator"

    def __init__(
        self,
        block_width: int,
        *,
        stream_width: int = 128,
        n_heads: int = 8,
        hidden_width: int = 512,
        positions: str = "added",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if positions not in POSITIONS:
            raise SettingError(
                f"positions must be one of {', '.join(POSITIONS)}, got {brief(positions)}."
            )
        rows, width = BlockRows(block_width), count("stream_width", stream_width)
        self.sizes = (block_width, width, count("n_heads", n_heads), hidden_width)
        self.positions, self.seed = positions, seed
        if width % n_heads:
            divisors = ", ".join(map(str, _divisors(width)))
            raise SettingError(f"n_heads must be one of {divisors}, got {n_heads}.")
        n_columns = 1 if positions == "none" else block_width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed, self.read = _ends(rows, width)
            self.queries, self.keys = nn.Linear(width, width), nn.Linear(width, width)
            self.values, self.join = nn.Linear(width, width), nn.Linear(width, width)
            self.mlp = _Residual(width, count("hidden_width", hidden_width))
            added = torch.randn(n_columns, width) * (positions != "none")
            self.places = nn.Parameter(added, requires_grad=positions != "none")
            scales = 1 + torch.randn(n_columns, width) * (positions == "scaled")
            self.scales = nn.Parameter(scales, requires_grad=positions == "scaled")

    def forward(self, stacked: Stacked) -> Blocks:
        columns = self.embed(stacked)[:, None] * self.scales + self.places
        blocks: Tensor = self.read(self.mlp(columns + self.attended(columns)))
        return blocks

    def attended(self, columns: Float[Tensor, "task column stream"]) -> Tensor:
        """What softmax attention adds to each column."""
        parts = (self.queries(columns), self.keys(columns), self.values(columns))
        heads = (part.unflatten(-1, (self.sizes[2], -1)).transpose(1, 2) for part in parts)
        gathered = functional.scaled_dot_product_attention(*heads)
        joined: Tensor = self.join(gathered.transpose(1, 2).flatten(-2))
        return joined

    def description(self) -> dict[str, Any]:
        """Plain data from which the model is built again; a checkpoint holds it."""
        names = ("block_width", "stream_width", "n_heads", "hidden_width")
        sizes = dict(zip(names, self.sizes, strict=True))
        return {"kind": self.kind, **sizes, "positions": self.positions, "seed": self.seed}

    @classmethod
    def of_description(cls, data: Mapping[str, Any]) -> PlainOperator:
        """The model that `description` told of, with its first numbers."""
        with described(cls.kind):
            return cls(**{name: value for name, value in data.items() if name != "kind"})


@final
class ProductOperator(nn.Module):
    """MLP - heads that return their scores - MLP, on the one column that stands for all.

    With `steep_slopes` the rows r'(z) are read through steep units. The first weights follow from
    `seed`.
    """

    kind = "product operator"

    def __init__(
        self,
        block_width: int,
        *,
        stream_width: int = 96,
        n_heads: int = 40,
        key_width: int = 6,
        router_width: int = 64,
        hidden_width: int = 128,
        steep_slopes: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.rows, width = BlockRows(block_width), count("stream_width", stream_width)
        self.n_heads, self.key_width = count("n_heads", n_heads), count("key_width", key_width)
        self.router_width = count("router_width", router_width)
        self.hidden_width = count("hidden_width", hidden_width)
        self.steep_slopes, self.seed = steep_slopes, seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed, self.read = _ends(self.rows, width)
            self.router = _Residual(width, router_width)
            self.queries = nn.Linear(width, n_heads * key_width)
            self.keys = nn.Linear(width, n_heads * key_width)
            self.join = nn.Linear(n_heads, width)
            self.mlp = _Residual(width, hidden_width)
            self.steep = nn.Linear(self.rows.n_rows, block_width) if steep_slopes else None
            first = torch.tensor(FIRST_GAIN).log() / GAIN_SPEED
            self.gains = nn.Parameter(first.repeat(block_width)) if steep_slopes else None

    def forward(self, stacked: Stacked) -> Blocks:
        stream = self.router(self.embed(stacked))
        scores = (self.queries(stream) * self.keys(stream)).unflatten(-1, (self.n_heads, -1))
        block: Tensor = self.read(self.mlp(stream + self.join(scores.sum(-1))))
        return self._with_slopes(block)[:, None]

    def _with_slopes(self, block: Block) -> Block:
        """The block, whose slopes are those of the steep units if there are any."""
        if self.steep is None or self.gains is None:
            return block
        start, stop = self.rows.slopes.start, self.rows.slopes.stop
        nothing = torch.zeros_like(block[:, start:stop])
        others = torch.cat([block[:, :start], nothing, block[:, stop:]], -1).detach()
        slopes = torch.sigmoid((GAIN_SPEED * self.gains).exp() * self.steep(others))
        return torch.cat([block[:, :start], slopes, block[:, stop:]], -1)

    def description(self) -> dict[str, Any]:
        """Plain data from which the model is built again; a checkpoint holds it."""
        return {
            "kind": self.kind,
            "block_width": self.rows.width,
            "stream_width": self.embed.out_features,
            "n_heads": self.n_heads,
            "key_width": self.key_width,
            "router_width": self.router_width,
            "hidden_width": self.hidden_width,
            "steep_slopes": self.steep_slopes,
            "seed": self.seed,
        }

    @classmethod
    def of_description(cls, data: Mapping[str, Any]) -> ProductOperator:
        """The model that `description` told of, with its first numbers."""
        with described(cls.kind):
            return cls(**{name: value for name, value in data.items() if name != "kind"})


LearntOperator = PlainOperator | ProductOperator


def as_operator(model: LearntOperator) -> Operator:
    """The model as a chain uses it: the mean of the columns it writes stands for all."""

    def make(stacked: Stacked) -> Block:
        with torch.no_grad():
            block: Tensor = model(stacked).mean(1)
        return block

    return make


def _ends(rows: BlockRows, width: int) -> tuple[nn.Linear, nn.Linear]:
    """The maps from two blocks to the stream, and from the stream to a block."""
    return nn.Linear(2 * rows.n_rows, width), nn.Linear(width, rows.n_rows)


def _divisors(width: int) -> list[int]:
    return [number for number in range(1, width + 1) if width % number == 0]
