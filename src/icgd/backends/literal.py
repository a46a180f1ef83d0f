"""The literal backend runs the transformer itself from the entries of its weights that are not 0.

Layers are those of the dense backend: every head computes its score for every pair of tokens, every
hidden unit its value at every token. Only products with weights that are 0 are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import ClassVar, SupportsIndex, cast, final

import torch
from torch import Tensor, nn

from icgd.backends.chain import Chain, DenseGenerator, make_chain
from icgd.backends.dense import DenseStack, warn_of_precision
from icgd.backends.run import PLAIN, AbstractBackend, MakeExecutor, RunOptions
from icgd.environment import require_memory, warn
from icgd.errors import LongRunWarning, UnknownNameError, did_you_mean
from icgd.facts import MINUTE, duration, in_short
from icgd.layers import AbstractAttention, Headed
from icgd.problems.data import Task
from icgd.problems.settings import count
from icgd.program.chain import ChainProgram
from icgd.program.instructions import LayerKind
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_program
from icgd.weights.sizes import summarise

MOST_FLOPS = 2 * 10**11
"""The longest run that claims wait for: some 20 seconds on two cores."""

FLOPS_PER_SECOND = 10**10
"""How fast a run is said to be: measured from 2 to 26 times 10^9 on two cores."""

FLOPS_PER_LAYER = 10**6
"""What it takes to begin a layer, as a number of flops."""

PLACE_BYTES = 8
"""The memory of the row and the column of an entry."""

INSTEAD = "Run with backend='fused', which needs neither weights nor scores."


def literal_flops(program: AbstractProgram, task: Task) -> int:
    """How many multiplications and additions a literal run takes, counted from its wires."""
    summary = summarise(program, task.n_tokens)
    return prod(task.batch) * summary.sparse_flops + summary.n_layers * FLOPS_PER_LAYER


def in_words(flops: int) -> str:
    """Say what a run of so many flops takes."""
    return f"{flops:.1e} operations, about {duration(flops / FLOPS_PER_SECOND)}"


def literal_bytes(program: AbstractProgram, task: Task) -> int:
    """The memory of a literal run: entries, three copies of the stream, and a head's scores."""
    size, n_tokens, n_pairs = task.x.itemsize, 1, 0
    if isinstance(program, StackProgram):
        n_tokens = task.n_tokens + program.n_registers
        n_pairs = n_tokens**2
    nonzeros = summarise(program, n_tokens=1).nonzeros
    numbers = 3 * n_tokens * program.layout.width + 2 * n_pairs
    return nonzeros * (PLACE_BYTES + size) + prod(task.batch) * numbers * size


def _prepare(program: AbstractProgram, task: Task) -> None:
    """Refuse a run that does not fit in memory, and warn of one that takes minutes."""
    what = f"A literal run of {task.n_tokens:,} tokens by this {program.construction}"
    require_memory(what, literal_bytes(program, task), INSTEAD)
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
) -> dict[str, Tensor]:
    """The patterns of heads of a layer, by their labels, in a step of the literal run.

    A stack's predictions are the step after its last. A chain has blocks in place of steps. Heads
    are those whose labels begin with a text, or a single one by its number, counted from 0.
    """
    if isinstance(program, ChainProgram):
        step = count("step", step, most=program.n_blocks)
        layers = program.layers
    else:
        step = count("step", step, most=program.n_steps + 1)
        first = (step - 1) * program.layers_per_step
        is_step = step <= program.n_steps
        length = program.layers_per_step if is_step else len(program.prediction)
        layers = tuple(islice(program.unrolled(), first, first + length))
    attending = [layer for layer in layers if layer.kind is not LayerKind.MLP]
    titles = list(dict.fromkeys(layer.title for layer in attending))
    if title not in titles:
        raise UnknownNameError.of("layer with heads", title, known=titles)
    # A step may have several layers of one title: their heads are counted on.
    places = [place for place, layer in enumerate(layers) if layer in attending]
    places = [place for place in places if layers[place].title == title]
    labels = [
        (place, number, label)
        for place in places
        for number, label in enumerate(_labels(layers[place], program))
    ]
    if isinstance(head, str):
        wanted = [entry for entry in labels if entry[2].startswith(head)]
        if not wanted:
            names = [label for _, _, label in labels]
            raise UnknownNameError(
                f"No head of layer {title!r} has a label that begins with {head!r}; they are "
                f"{in_short(names)}.{did_you_mean(head, names)}"
            )
    elif head is None:
        wanted = labels
    else:
        wanted = [labels[count("head", head, least=0, most=len(labels) - 1)]]

    patterns = {}
    with torch.no_grad():
        for place in dict.fromkeys(place for place, _, _ in wanted):
            if isinstance(program, ChainProgram):
                module, stream = _at_block(_chain(program, task, PLAIN), place, step)
            else:
                executor = _stack(program, task, PLAIN)
                stream, modules = executor.start, executor.transformer.unrolled()
                for earlier in islice(modules, first + place):
                    stream = earlier(stream)
                module = next(modules)
            attend = cast("Headed", module).attention
            for own, number, label in wanted:
                if own == place:
                    patterns[label] = attend(stream, slice(number, number + 1)).squeeze(-3)
    return patterns


def _labels(layer: Layer, program: AbstractProgram) -> list[str]:
    families = layer.wires(program)
    return [family.label_of(place) for family in families for place in range(family.size)]


def _at_block(chain: Chain, place: int, number: int) -> tuple[nn.Module, Tensor]:
    """A layer of a chain, and what it reads when it writes a block."""
    streams: list[Tensor] = []
    module = cast("DenseGenerator", chain.generator).layers[place]
    module.register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    while len(streams) < number:
        chain.step()
    return module, streams[number - 1]
