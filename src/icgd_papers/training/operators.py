r"""Learnt operators of a chain: models that make the next block from two stacked blocks.

`PlainOperator` is what cot trains (Appendix D): one softmax attention over the d columns of the
stacked blocks, and one MLP. All columns are equal, so attention without positions returns the value
of one column: a linear map. With positions p_j added to the columns, scores differ among them by
terms that are linear in the column, and attention still multiplies no two of its rows. If positions
also scale the columns, as the linear map along the sequence does in the construction, a score
contains products.

`ProductOperator` is nearer to the constructed block: MLP, heads, MLP on one column, where head h
computes the score s_h = <Q_h t, K_h t>. Without a grid the head returns s_h itself. With a grid it
attends over constant tokens g, as the constructed heads do:

    sum_g v_g softmax_g(a_g s_h + b_g)

This is s_h, up to the error of the lattice, for a_g = L_g / sigma^2, b_g = -L_g^2 / (2 sigma^2) and
v_g = L_g on an even grid L_g. Every head learns its own a, b and v, which start from such a grid or
from normal numbers.

The slopes of forward blocks jump. They may be read through steep units: a sigmoid of all other
rows, with a learnt gain. Their gradient goes no further: it is a few huge numbers from units near
their kink, and its noise would keep the products from being learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from icgd.errors import SettingError, quoted
from icgd.problems.settings import count, described
from icgd_papers.training.chain_blocks import Block, BlockRows, Operator, Stacked

Blocks = Float[Tensor, "task column rows"]
Stream = Float[Tensor, "*task stream"]

POSITIONS = ("none", "added", "scaled")
"""What tells the columns of a block apart in `PlainOperator`."""

FIRST_GAIN = 10.0
"""The gain of a steep unit before training."""

GAIN_SPEED = 30.0
"""A gain is exp(GAIN_SPEED * parameter), so a step changes it by a share of itself."""

GRID_REACH, GRID_RATIO = 4.0, 1.0
"""The first grid covers [-4, 4]; sigma is this many grid spacings (the lattice's rho)."""


class LearntOperator(nn.Module):
    """A model from two stacked blocks to the columns of the next block.

    `arguments` are those of the constructor; with the kind they describe the model in checkpoints.
    """

    kind: ClassVar[str]

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.arguments = dict(arguments)

    def description(self) -> dict[str, Any]:
        """Return plain data from which `of_description` builds the untrained model."""
        return {"kind": self.kind, **self.arguments}

    @classmethod
    def of_description(cls, data: Mapping[str, Any]) -> LearntOperator:
        """Build the model that `description` described, with its initial weights."""
        with described(cls.kind):
            return cls(**{name: value for name, value in data.items() if name != "kind"})


class _ResidualMLP(nn.Module):
    """t + W_out relu(W_in t + b) + c."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, hidden_width), nn.Linear(hidden_width, width)

    def forward(self, stream: Stream) -> Stream:
        added: Tensor = self.outer(self.inner(stream).relu())
        return stream + added


@final
class PlainOperator(LearntOperator):
    """One softmax attention layer and one MLP over the columns of the stacked blocks.

    The initial weights follow from `seed`. Without positions all columns stay equal, and one is
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
        super().__init__(
            {
                "block_width": block_width,
                "stream_width": count("stream_width", stream_width),
                "n_heads": count("n_heads", n_heads),
                "hidden_width": count("hidden_width", hidden_width),
                "positions": positions,
                "seed": seed,
            }
        )
        if positions not in POSITIONS:
            raise SettingError(
                f"positions must be one of {', '.join(POSITIONS)}, got {quoted(positions)}."
            )
        if stream_width % n_heads:
            divisors = [n for n in range(1, stream_width + 1) if stream_width % n == 0]
            raise SettingError(
                f"n_heads must be one of {', '.join(map(str, divisors))}, got {n_heads}."
            )
        rows, width, self.n_heads = BlockRows(block_width), stream_width, n_heads
        n_columns = 1 if positions == "none" else block_width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed, self.read = _ends(rows, width)
            self.queries, self.keys = nn.Linear(width, width), nn.Linear(width, width)
            self.values, self.join = nn.Linear(width, width), nn.Linear(width, width)
            self.mlp = _ResidualMLP(width, hidden_width)
            added = torch.randn(n_columns, width) * (positions != "none")
            self.places = nn.Parameter(added, requires_grad=positions != "none")
            scales = 1 + torch.randn(n_columns, width) * (positions == "scaled")
            self.scales = nn.Parameter(scales, requires_grad=positions == "scaled")

    def forward(self, stacked: Stacked) -> Blocks:
        columns = self.embed(stacked)[:, None] * self.scales + self.places
        blocks: Tensor = self.read(self.mlp(columns + self.attended(columns)))
        return blocks

    def attended(self, columns: Float[Tensor, "task column stream"]) -> Tensor:
        """Return what softmax attention adds to each column."""
        projected = (self.queries(columns), self.keys(columns), self.values(columns))
        heads = (x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for x in projected)
        gathered = functional.scaled_dot_product_attention(*heads)
        joined: Tensor = self.join(gathered.transpose(1, 2).flatten(-2))
        return joined


@final
class ProductOperator(LearntOperator):
    """MLP, heads that return their scores or look them up on a grid, MLP, on one column.

    With `steep_slopes` the rows r'(z) are read through steep units. The heads attend over
    `n_grid` tokens each, which start as a lattice or at random; with 0 tokens they return their
    scores. The initial weights follow from `seed`.
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
        n_grid: int = 0,
        random_grid: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            {
                "block_width": block_width,
                "stream_width": count("stream_width", stream_width),
                "n_heads": count("n_heads", n_heads),
                "key_width": count("key_width", key_width),
                "router_width": count("router_width", router_width),
                "hidden_width": count("hidden_width", hidden_width),
                "steep_slopes": steep_slopes,
                "n_grid": count("n_grid", n_grid, least=0),
                "random_grid": random_grid,
                "seed": seed,
            }
        )
        self.rows, self.n_heads, width = BlockRows(block_width), n_heads, stream_width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed, self.read = _ends(self.rows, width)
            self.router = _ResidualMLP(width, router_width)
            self.queries = nn.Linear(width, n_heads * key_width)
            self.keys = nn.Linear(width, n_heads * key_width)
            self.join = nn.Linear(n_heads, width)
            self.mlp = _ResidualMLP(width, hidden_width)
            self.steep = nn.Linear(self.rows.n_rows, block_width) if steep_slopes else None
            first = torch.tensor(FIRST_GAIN).log() / GAIN_SPEED
            self.gains = nn.Parameter(first.repeat(block_width)) if steep_slopes else None
            grid = torch.randn(3, n_heads, n_grid) if random_grid else _lattice(n_heads, n_grid)
            self.grid = nn.Parameter(grid) if n_grid else None

    def forward(self, stacked: Stacked) -> Blocks:
        stream = self.router(self.embed(stacked))
        products = (self.queries(stream) * self.keys(stream)).unflatten(-1, (self.n_heads, -1))
        heads = self.looked_up(products.sum(-1))
        block: Tensor = self.read(self.mlp(stream + self.join(heads)))
        return self._with_slopes(block)[:, None]

    def looked_up(self, scores: Float[Tensor, "task head"]) -> Float[Tensor, "task head"]:
        """Return what each head reads from its grid at its score, or the score without a grid."""
        if self.grid is None:
            return scores
        slopes, offsets, values = self.grid
        attention = torch.softmax(scores[..., None] * slopes + offsets, -1)
        read: Tensor = (attention * values).sum(-1)
        return read

    def _with_slopes(self, block: Block) -> Block:
        """Replace the slopes of the block by those of the steep units, if there are any."""
        if self.steep is None or self.gains is None:
            return block
        start, stop = self.rows.slopes.start, self.rows.slopes.stop
        nothing = torch.zeros_like(block[:, start:stop])
        others = torch.cat([block[:, :start], nothing, block[:, stop:]], -1).detach()
        slopes = torch.sigmoid((GAIN_SPEED * self.gains).exp() * self.steep(others))
        return torch.cat([block[:, :start], slopes, block[:, stop:]], -1)


def as_operator(model: LearntOperator) -> Operator:
    """Return the model as a chain uses it: the mean of the columns it writes stands for all."""

    def make(stacked: Stacked) -> Block:
        with torch.no_grad():
            block: Tensor = model(stacked).mean(1)
        return block

    return make


def _ends(rows: BlockRows, width: int) -> tuple[nn.Linear, nn.Linear]:
    """Make the maps from two blocks to the stream, and from the stream to a block."""
    return nn.Linear(2 * rows.n_rows, width), nn.Linear(width, rows.n_rows)


def _lattice(n_heads: int, n_grid: int) -> Float[Tensor, "3 head grid"]:
    """Return slopes a, offsets b and values v of the lattice on which a head returns its score."""
    points = torch.linspace(-GRID_REACH, GRID_REACH, n_grid)
    variance = (GRID_RATIO * 2 * GRID_REACH / max(n_grid - 1, 1)) ** 2
    lattice = torch.stack([points / variance, -points.square() / (2 * variance), points])
    return lattice[:, None].repeat(1, n_heads, 1)
