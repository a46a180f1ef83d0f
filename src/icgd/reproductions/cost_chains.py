"""What a block of a chain costs as the chain grows longer: what the mask and the memory save.

A block needs two earlier ones. Fused runs find them by number. A transformer reads them by
attention, and without a mask that cuts the chain down to them it attends to all blocks so far:

    two       the two blocks are all there is, as in our chains
    cached    one head for each of the two, over all blocks, every score but one set to -inf; the
              keys and values of earlier blocks are at hand
    again     the same, with the values W_V x of all blocks computed again for every block

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

from icgd.backends.chain import Chain, run_chain
from icgd.backends.chain_dense import DenseGenerator
from icgd.backends.chain_generator import AbstractGenerator
from icgd.backends.run import RunOptions
from icgd.compiled import Compiled
from icgd.errors import ProgramError
from icgd.program.chain import ChainProgram
from icgd.reproductions.cost_cases import AbstractCase, Counts, Network
from icgd.reproductions.cost_steps import ONE_EXAMPLE, built
from icgd.reproductions.timing import Job
from icgd.shapes import Stream

AXIS = "length"

READINGS = {"two": "two blocks", "cached": "all blocks", "again": "all blocks, not cached"}
MEMORIES = {"short": "short memory", "whole": "whole memory"}


@final
@dataclass(frozen=True)
class MemoryCase(AbstractCase):
    """A block of a fused chain of `size` blocks that keeps what the mask reaches, or all of it."""

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
        """Blocks of the chain's second half, so that they are those of a chain of this length."""
        return self.size // 2, self.size

    n_counted = n_steps

    def why_not(self) -> str | None:
        return None

    def counts(self) -> Counts:
        """One product in a forward block, two in a backward one; kept are blocks, and the data."""
        program = _program(built(self.network, ONE_EXAMPLE, 1))
        n_kept = self.size + program.mask.depth if self.memory == "whole" else program.mask.reach
        flops = 3 * program.batch_size * self.network.width**2
        return Counts(flops, 0, (n_kept + 2) * program.rows.width)

    def job(self, n_steps: int) -> Job:
        compiled = built(self.network, ONE_EXAMPLE, n_steps // (2 * self.network.depth))
        task, program = self.network.task(compiled), _program(compiled)
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

    def why_not(self) -> str | None:
        return None

    def counts(self) -> Counts:
        """The three layers, and two heads whose values are as wide as a block."""
        compiled = built(self.network, ONE_EXAMPLE, 1)
        width, layers = _program(compiled).rows.width, compiled.summary().layers
        read = 4 * self.size * width * (self.reading != "two")
        again = 4 * self.size * width**2 * (self.reading == "again")
        return Counts(
            flops=sum(layer.flops(1) for layer in layers) + read + again,
            weights=sum(layer.parameters for layer in layers),
            state=self._kept + _program(compiled).layout.width,
        )

    @property
    def given(self) -> int:
        """The weights, and the blocks that are read."""
        return self.counts().weights + self._kept

    @property
    def _kept(self) -> int:
        program = _program(built(self.network, ONE_EXAMPLE, 1))
        n_kept = program.mask.reach if self.reading == "two" else self.size
        return n_kept * program.rows.width

    def job(self, n_steps: int) -> Job:
        return partial(self.block, written(self.network, self.size)) if n_steps else lambda: None

    def block(self, chain: Written) -> Stream:
        """The next block, from the two that the mask shows."""
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
    """A dense chain, a block a row, whose next block is the last of a round: it reads furthest."""

    generator: AbstractGenerator[Stream]
    blocks: Stream
    reach: int
    value_weights: Float[Tensor, "width value_width"]


def written(network: Network, n_blocks: int) -> Written:
    """A real chain; what stands before its two rounds, which nobody reads, repeats them."""
    chain = _two_rounds(network)
    program, generator = chain.program, chain.generator
    rows = torch.cat([chain.blocks[number] for number in range(1, program.n_blocks)])
    places = torch.arange(-n_blocks, 0) % len(rows)
    values = torch.eye(program.rows.width, dtype=rows.dtype)
    return Written(generator, rows[places], program.mask.reach, values)


@lru_cache(maxsize=1)  # chains of all lengths end with it
def _two_rounds(network: Network) -> Chain:
    compiled = built(network, ONE_EXAMPLE, 2)
    program, task = _program(compiled), network.task(compiled)
    chain = Chain(program, task, DenseGenerator(program, task.x), "whole", ())
    for _ in chain.rounds():
        pass
    return chain


def attended(values: Stream, back: int) -> Float[Tensor, "1 width"]:
    """What a head returns of all blocks when only the one so far back keeps its score.

    Any scores will do; these are the last entries of the blocks, as if they were their keys.
    """
    is_seen = torch.arange(-len(values), 0) == -back
    pattern = torch.softmax(values[:, -1].masked_fill(~is_seen, -inf), dim=-1)
    return pattern.unsqueeze(0) @ values


def _program(compiled: Compiled) -> ChainProgram:
    if not isinstance(compiled.program, ChainProgram):
        raise ProgramError.broken(compiled.program.construction, "is no chain")
    return compiled.program
