"""The literal backend runs the transformer itself, with sparse weights.

Its layers are those of the dense backend: every head computes a score for every pair of tokens, and
every hidden unit a value at every token. Only products with zero weights are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from math import prod
from typing import ClassVar, SupportsIndex, cast, final

import torch
from torch import Tensor, nn

from icgd.backends.chain import Chain, DenseGenerator, make_chain
from icgd.backends.dense import INSTEAD, DenseStack, warn_of_precision
from icgd.backends.run import PLAIN, AbstractBackend, MakeExecutor, RunOptions
from icgd.environment import require_memory, warn
from icgd.errors import LongRunWarning, UnknownNameError, did_you_mean
from icgd.layers import AbstractAttention, Headed
from icgd.problems.data import Task
from icgd.problems.settings import count
from icgd.program.chain import ChainProgram
from icgd.program.instructions import LayerKind
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.reprs import MINUTE, duration, in_short
from icgd.weights.lowering import lower_program
from icgd.weights.sizes import summarise

MOST_FLOPS = 2 * 10**11
"""The most operations of a literal run that backend="auto" takes: about 20 s on two cores."""

FLOPS_PER_SECOND = 10**10
"""The speed that estimates assume; measured speeds on two cores range from 2e9 to 2.6e10."""

FLOPS_PER_LAYER = 10**6
"""The overhead of calling a layer, in flops."""

PLACE_BYTES = 8
"""The memory of the row and column index of an entry."""


def literal_flops(program: AbstractProgram, task: Task) -> int:
    """Return the multiplications and additions of a literal run, counted from its wires.

    A chain's first layer, which finds the two blocks to read, is not counted: the executor passes
    them in.
    """
    summary = summarise(program, task.n_tokens)
    flops, n_layers = summary.sparse_flops, summary.n_layers
    if isinstance(program, ChainProgram):
        n_layers -= program.n_uses
        flops = program.n_uses * sum(layer.sparse_flops(1) for layer in summary.layers[1:])
    return prod(task.batch) * flops + n_layers * FLOPS_PER_LAYER


def in_words(flops: int) -> str:
    """Return the flops and estimated duration of a run as text."""
    return f"{flops:.1e} operations, about {duration(flops / FLOPS_PER_SECOND)}"


def literal_bytes(program: AbstractProgram, task: Task) -> int:
    """Return the bytes of a literal run: weights, three copies of the stream, a head's scores.

    Scores count twice, for softmax needs a second matrix; layers with mirror images hold five: the
    scores and softmax weights of both, and their difference. Sequence maps are dense.
    """
    size, n_tokens, n_pairs = task.x.itemsize, 1, 0
    if isinstance(program, StackProgram):
        n_tokens = task.n_tokens + program.n_registers
        has_images = any(layer.kind is LayerKind.MIRROR for layer in program.layers)
        n_pairs = (5 if has_images else 2) * n_tokens**2
    summary = summarise(program, n_tokens=1)
    maps = sum(2 * layer.units * layer.n_grid * layer.n_columns for layer in summary.layers)
    numbers = 3 * n_tokens * program.layout.width + n_pairs
    entries = summary.nonzeros * (PLACE_BYTES + size) + maps * size
    return entries + prod(task.batch) * numbers * size


def _prepare(program: AbstractProgram, task: Task) -> None:
    """Raise `SizeError` if a run does not fit in memory; warn if it takes over a minute."""
    run_name = f"A literal run of {task.n_tokens:,} tokens by this {program.construction}"
    require_memory(run_name, literal_bytes(program, task), INSTEAD)
    flops = literal_flops(program, task)
    if flops > MINUTE * FLOPS_PER_SECOND:
        warn(
            LongRunWarning(
                f"This literal run takes {in_words(flops)} (counted from its heads, at "
                f"{FLOPS_PER_SECOND:.0e} a second). backend='fused' computes the same steps "
                "without heads."
            )
        )


def _stack(program: StackProgram, task: Task, options: RunOptions) -> DenseStack:
    _prepare(program, task)
    warn_of_precision(program, task.x.dtype)
    transformer = lower_program(program, task.x.dtype, is_sparse=True).to(task.x.device)
    for layer in transformer.modules():
        if isinstance(layer, AbstractAttention):
            layer.skip_zeros = options.skip_zeros
    return DenseStack(program, task, transformer, options.trace)


def _chain(program: ChainProgram, task: Task, options: RunOptions) -> Chain:
    _prepare(program, task)
    return make_chain(program, task, options, backend=LiteralBackend.name)


@final
class LiteralBackend(AbstractBackend):
    """The backend that runs every head and hidden unit from sparse weights."""

    name: ClassVar[str] = "literal"
    sums_terms: ClassVar[bool] = True
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]] = {
        StackProgram: _stack,
        ChainProgram: _chain,
    }

    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        return len(task.x)


def attention(
    program: StackProgram | ChainProgram,
    task: Task,
    title: str,
    head: SupportsIndex | str | None,
    step: int,
    n_steps: int,
) -> dict[str, Tensor]:
    """Return the attention patterns of heads of a layer by label, in a step of a run of `n_steps`.

    Step `n_steps + 1` of a stack selects the prediction layers; for a chain, `step` is the number
    of a block. `head` is a prefix of labels, or the number of a single head, counted from 0.
    """
    if isinstance(program, ChainProgram):
        step = count("step", step, most=n_steps * program.mask.blocks_per_round)
        layers = program.block
    else:
        step = count("step", step, most=n_steps + 1)
        layers = program.prediction
        if step <= n_steps:
            first = (step - 1) * program.layers_per_step
            layers = tuple(islice(program.unrolled(), first, first + program.layers_per_step))
    # A step may have several layers of one title: number their heads consecutively.
    attending = [layer for layer in layers if layer.kind is not LayerKind.MLP]
    titles = list(dict.fromkeys(layer.title for layer in attending))
    if title not in titles:
        raise UnknownNameError.of("layer with heads", title, known=titles)
    labels = [
        (place, number, label)
        for place, layer in enumerate(layers)
        if layer.title == title and layer.kind is not LayerKind.MLP
        for number, label in enumerate(_labels(layer, program))
    ]
    if isinstance(head, str):
        selected = [entry for entry in labels if entry[2].startswith(head)]
        if not selected:
            names = [label for _, _, label in labels]
            raise UnknownNameError(
                f"No head of layer {title!r} has a label that begins with {head!r}; they are "
                f"{in_short(names)}.{did_you_mean(head, names)}"
            )
    elif head is None:
        selected = labels
    else:
        selected = [labels[count("head", head, least=0, most=len(labels) - 1)]]

    with torch.no_grad():
        if isinstance(program, ChainProgram):
            modules, stream = _before_block(_chain(program, task, PLAIN), step)
        else:
            executor = _stack(program, task, PLAIN)
            stream = executor.start
            for _ in range(step - 1):
                stream = executor.step()
            modules = executor.transformer.final
            if step <= n_steps:
                modules = executor.transformer.layers_of(step - 1, program.layers_per_step)
        patterns = {}
        for place, module in enumerate(modules):
            for layer_place, number, label in selected:
                if layer_place == place:
                    pattern = cast("Headed", module).attention(stream, slice(number, number + 1))
                    patterns[label] = pattern.squeeze(-3)
            stream = module(stream)
    return patterns


def _labels(layer: Layer, program: AbstractProgram) -> list[str]:
    families = layer.wires(program)
    return [family.label_of(place) for family in families for place in range(family.size)]


def _before_block(chain: Chain, number: int) -> tuple[Iterable[nn.Module], Tensor]:
    """Return the layers of a chain, and the input of the first one at block `number`."""
    modules = cast("DenseGenerator", chain.generator).layers
    streams: list[Tensor] = []
    hook = modules[0].register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    while len(streams) < number:
        chain.step()
    hook.remove()
    return modules, streams[number - 1]
