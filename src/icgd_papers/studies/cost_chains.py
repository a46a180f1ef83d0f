"""What a block of a chain costs as the chain grows longer: what the mask and the memory save.

A block needs two earlier ones. Fused runs find them by number. A transformer reads them by
attention. Unless a mask cuts the chain down to them, it attends to all blocks so far:

    two       the head sees the two blocks only, as in our chains
    cached    one head for each of the two sees all blocks, with every score but one set to -inf;
              the keys and values of earlier blocks are cached
    again     the heads are those of `cached`, but the values W_V x are computed for every block

A masked score leaves a weight of exactly 0, so that all three write the same block, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.backends.chain import AbstractGenerator, Chain, DenseGenerator, run_chain
from icgd.backends.run import RunOptions
from icgd.program.chain import ChainProgram
from icgd.shapes import Stream
from icgd.timing import Job
from icgd_papers.studies.cost_cases import AbstractCase, Counts, Network
from icgd_papers.studies.cost_steps import ONE_EXAMPLE, built, chain_of

AXIS = "length"

READINGS = {"two": "two blocks", "cached": "all blocks", "again": "all blocks, not cached"}
MEMORIES = {"short": "short memory", "whole": "whole memory"}


@final
@dataclass(frozen=True)
class MemoryCase(AbstractCase):
    """A block of a fused chain of `size` blocks that keeps what the mask reaches, or everything."""

    size: int
    memory: str
    network: Network
    axis: str = AXIS
    backend: str = "fused"

    @property
    def name(self) -> str:  # type: ignore[override]
        return MEMORIES[self.memory]

    @property
    def n_steps(self) -> tuple[int, int]:  # type: ignore[override]
        """The blocks of the second half are timed, so that they belong to a chain this long."""
        return self.size // 2, self.size

    n_counted = n_steps

    def counts(self) -> Counts:
        """A forward block has one product, a backward one two; blocks and data are kept.

        With a short memory rounds are performed as a whole, and the last block of each does not
        compute the product that nobody reads.
        """
        program, product = _program(self.network), self.network.width**2
        is_whole = self.memory == "whole"
        n_kept = self.size + program.mask.depth if is_whole else program.mask.reach
        spared = 0 if is_whole else product // self.network.depth
        flops = program.batch_size * (3 * product - spared)
        return Counts(flops, 0, (n_kept + 2) * program.rows.width)

    def job(self, n_steps: int) -> Job:
        compiled = built(self.network, ONE_EXAMPLE, n_steps // (2 * self.network.depth))
        task, program = self.network.task(compiled), chain_of(compiled)
        return partial(run_chain, program, task, RunOptions(history=False), memory=self.memory)


@final
@dataclass(frozen=True)
class ReadingCase(AbstractCase):
    """The last block of a dense chain of `size` blocks, read in one of three ways."""

    size: int
    reading: str
    network: Network
    axis: str = AXIS
    backend: str = "dense"
    n_steps: tuple[int, int] = (0, 1)
    n_counted: tuple[int, int] = (0, 1)

    @property
    def name(self) -> str:  # type: ignore[override]
        return READINGS[self.reading]

    def counts(self) -> Counts:
        """The block's layers, and two heads whose values are as wide as a block."""
        program, layers = (
            _program(self.network),
            built(self.network, ONE_EXAMPLE, 1).summary().layers,
        )
        width = program.rows.width
        read = 4 * self.size * width * (self.reading != "two")
        again = 4 * self.size * width**2 * (self.reading == "again")
        return Counts(
            flops=sum(layer.flops(1) for layer in layers) + read + again,
            weights=sum(layer.parameters for layer in layers),
            state=self._kept + program.layout.width,
        )

    @property
    def given(self) -> int:
        """The numbers in the weights and in the blocks that are read."""
        return self.counts().weights + self._kept

    @property
    def _kept(self) -> int:
        program = _program(self.network)
        n_kept = program.mask.reach if self.reading == "two" else self.size
        return n_kept * program.rows.width

    def job(self, n_steps: int) -> Job:
        return partial(self.block, written(self.network, self.size)) if n_steps else lambda: None

    def block(self, chain: Written) -> Stream:
        """The next block, computed from the two that the mask shows."""
        near, far = (self._read(chain, back) for back in (1, chain.reach))
        return chain.generator.step(near, far, self.size + 1)

    def _read(self, chain: Written, back: int) -> Stream:
        if self.reading == "two":
            return chain.blocks[-back].unsqueeze(0)
        if self.reading == "cached":
            return attended(chain.blocks, back)
        return attended(chain.blocks @ chain.value_weights, back)


@dataclass(frozen=True)
class Written:
    """A dense chain with a row for each block; the next block ends a round and reads furthest."""

    generator: AbstractGenerator[Stream]
    blocks: Stream
    reach: int
    value_weights: Float[Tensor, "width value_width"]


def written(network: Network, n_blocks: int) -> Written:
    """A chain of two real rounds; the blocks before them, which nobody reads, repeat them."""
    chain = _two_rounds(network)
    program, generator = chain.program, chain.generator
    rows = torch.cat([chain.blocks[number] for number in range(1, program.n_blocks)])
    places = torch.arange(-n_blocks, 0) % len(rows)
    values = torch.eye(program.rows.width, dtype=rows.dtype)
    return Written(generator, rows[places], program.mask.reach, values)


@lru_cache(maxsize=1)  # chains of all lengths end with it
def _two_rounds(network: Network) -> Chain:
    compiled = built(network, ONE_EXAMPLE, 2)
    program, task = chain_of(compiled), network.task(compiled)
    chain = Chain(program, task, DenseGenerator(program, task.x), "whole", ())
    for _ in chain.rounds():
        pass
    return chain


def attended(values: Stream, back: int) -> Float[Tensor, "1 width"]:
    """What a head returns if it sees all blocks and only the block so far back keeps its score.

    Any scores would do; the last entries of the blocks serve as scores.
    """
    is_seen = torch.arange(-len(values), 0) == -back
    pattern = torch.softmax(values[:, -1].masked_fill(~is_seen, -inf), dim=-1)
    return pattern.unsqueeze(0) @ values


def _program(network: Network) -> ChainProgram:
    """The chain of one step."""
    return chain_of(built(network, ONE_EXAMPLE, 1))
