"""The size of a transformer, computed from its program without building a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from icgd.errors import ProgramError
from icgd.facts import counted, number, shown
from icgd.program.chain import ChainProgram
from icgd.program.layout import Role
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.weights.sizes import LayerSize, layer_size

WEIGHTS = "weights_"
"""How slots of a network's weights are called; what an optimiser remembers is called otherwise."""


@shown
@dataclass(frozen=True)
class Summary:
    """The sizes of one compiled transformer; a repeated block's weights count once.

    `flops` counts one forward pass of the dense transformer on `n_tokens` tokens and its registers,
    with all steps. `direct_flops` counts the same training done directly: for each example and step
    three products with every weight, two in the first layer. Where the paper takes more layers for
    a step, `paper_layers` says how many, each of attention and an MLP. If nobody named the
    construction, `chosen_because` says why it was chosen.
    """

    construction: str
    n_steps: int
    layers_per_step: int
    n_layers: int
    d_model: int
    d_head: int
    d_mlp: int
    max_heads: int
    n_heads: int
    parameters: int
    nonzeros: int
    n_registers: int
    n_tokens: int
    flops: int
    direct_flops: int
    layers: tuple[LayerSize, ...]
    paper_layers: int | None = None
    chosen_because: str | None = None

    def facts(self) -> dict[str, str]:
        return {
            "construction": self.construction,
            "layers": f"{self.n_layers:,}, {self.layers_per_step:,} a step",
            "d_model": f"{self.d_model:,}",
            "heads": f"{self.max_heads:,} in the widest layer, of width {self.d_head:,}",
            "weights": f"{self.parameters:,}",
            "flops": f"{number(self.flops)} on {counted(self.n_tokens, 'token')}",
        }

    @property
    def layers_of_a_step(self) -> tuple[LayerSize, ...]:
        return self.layers[: self.layers_per_step]


@singledispatch
def summarise(program: AbstractProgram, n_tokens: int) -> Summary:
    """Count everything without building a weight, so that any size is counted quickly."""
    raise ProgramError(f"{type(program).__name__} has no rule in weights/summary.py")


@summarise.register
def _summarise_stack(program: StackProgram, n_tokens: int) -> Summary:
    layers = tuple(layer_size(layer, program) for layer in program.layers)
    flops = [layer.flops(program.n_registers + n_tokens) for layer in layers]
    n_block = len(program.block)
    others = [layer_size(layer, program) for end in program.schedule[1:] for layer in end]
    return _summary(
        program,
        layers,
        others,
        layers_per_step=program.layers_per_step,
        n_layers=program.n_layers,
        n_registers=program.n_registers or max(layer.n_grid for layer in layers),
        n_tokens=n_tokens,
        flops=sum(flops[:n_block]) * program.n_repeats + sum(flops[n_block:]),
        direct_flops=_direct_flops(program, n_tokens) * program.n_steps,
        paper_layers=program.paper_layers,
    )


@summarise.register
def _summarise_chain(program: ChainProgram, n_tokens: int) -> Summary:
    """The same layers write all blocks, each from one column and its grid."""
    layers = tuple(layer_size(layer, program) for layer in program.layers)
    n_blocks = program.n_blocks + len(program.shapes)
    weights = [rows * columns for rows, columns in program.shapes]
    direct = 2 * program.batch_size * (3 * sum(weights) - weights[0])
    return _summary(
        program,
        layers,
        layers_per_step=len(layers) * program.mask.blocks_per_round,
        n_layers=len(layers) * n_blocks,
        n_registers=sum(layer.n_grid for layer in layers),
        n_tokens=n_tokens,
        flops=n_blocks * sum(layer.flops(1) for layer in layers),
        direct_flops=direct * program.n_steps,
    )


def _summary(
    program: AbstractProgram,
    layers: tuple[LayerSize, ...],
    others: Sequence[LayerSize] = (),
    **counts: Any,
) -> Summary:
    """The summary of a program: the given counts, and those that all programs share.

    `others` are layers of later steps that have weights of their own.
    """
    stored = (*layers, *others)
    return Summary(
        construction=program.construction,
        n_steps=program.n_steps,
        d_model=program.layout.width,
        d_head=max(layer.width for layer in layers if layer.n_heads),
        d_mlp=max((layer.units for layer in layers if not layer.n_heads), default=0),
        max_heads=max(layer.n_heads for layer in layers),
        n_heads=sum(layer.n_heads for layer in stored),
        parameters=sum(layer.parameters for layer in stored),
        nonzeros=sum(layer.nonzeros for layer in stored),
        layers=layers,
        **counts,
    )


def _direct_flops(program: StackProgram, n_tokens: int) -> int:
    """The flops of a step done directly: forward, backward and gradient take 2 a weight and token.

    A functional step multiplies the kernel of every token with every example by what is left to
    learn. A step on a linear model takes two products with its coefficients.
    """
    if program.trains_function:
        (residual,) = program.layout.having(Role.RESIDUAL)
        return 2 * n_tokens**2 * residual.width
    trained = program.layout.having(Role.PARAMETER)
    weights = [slot.width for slot in trained if slot.name.startswith(WEIGHTS)]
    weights = weights or [slot.width for slot in trained]
    if program.descent is not None:
        return 2 * n_tokens * 2 * sum(weights)
    return 2 * n_tokens * (3 * sum(weights) - weights[0])


def dense_bytes(summary: Summary, bytes_per_number: int) -> int:
    """The memory that the dense weights take."""
    return bytes_per_number * summary.parameters
