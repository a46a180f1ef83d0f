"""Encode a task as a residual stream, read weights and predictions from it, and check ranges.

Scores of linear models and arguments of reciprocal roots must stay in the range that the heads were
built for; a run that leaves it ends with an `OverflowedRunError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log

import torch
from torch import Tensor

from icgd.backends.run import require_entry
from icgd.errors import OverflowedRunError
from icgd.problems.data import Task
from icgd.problems.functions import ROOT_PREFIX
from icgd.program.functions import ReluSum
from icgd.program.instructions import Combination, MapSlots
from icgd.program.layout import (
    EXAMPLE_SHARE,
    IS_EXAMPLE,
    IS_FIRST,
    IS_QUERY,
    LOG_EXAMPLES,
    N_EXAMPLES,
    N_TOKENS,
    ONE,
    OUT_OF_BATCH,
    RATES,
    SCALE,
    TOKENS_PER_EXAMPLE,
    Layout,
    Role,
)
from icgd.program.linear_instructions import Scored
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Inputs, Labels, Parameters, Predictions, Stream

ONCE = (Role.PARAMETER, Role.VELOCITY, Role.SHARED)
"""The roles of slots with one value for all tokens, up to the scale of a token."""


def encode(program: StackProgram, task: Task) -> Stream:
    """Return the prompt: a token for each register, example and query; scratch slots are 0.

    Descent in function space starts from 0, so the residual of an example is its label.
    """
    require_entry(program, task)
    layout, slots = program.layout, prompt_slots(program, task)
    stream = task.x.new_empty(*task.batch, program.n_registers + task.n_tokens, layout.width)
    for slot in layout.slots:
        value = slots[slot.name]
        if slot.role in ONCE:
            value = value.reshape(*task.batch, 1, slot.width)
        if slot.role is Role.PARAMETER:
            value = value * weight_scales(slots)
        stream[..., layout.range_of(slot.name)] = value
    return stream


def prompt_slots(program: StackProgram, task: Task) -> dict[str, Tensor]:
    """Return the slots of the prompt: a row for each token, or one value for roles in `ONCE`."""
    layout, first = program.layout, program.n_registers
    examples = slice(first, first + task.n_examples)
    slots: dict[str, Tensor] = {}
    for slot in layout.slots:
        shape = slot.shape if slot.role in ONCE else (first + task.n_tokens, slot.width)
        slots[slot.name] = task.x.new_zeros(*task.batch, *shape)
    slots["x"][..., first:, :] = torch.cat([task.x, task.queries], dim=-2)
    slots["y"][..., examples, :] = task.y
    if task.rates is not None:
        slots[RATES][..., examples, :] = task.rates
    place = torch.arange(task.n_examples).to(task.x)
    for slot in layout.having(Role.TURN):
        waits = (place >= (program.batch_size or task.n_examples)).to(place)
        slots[slot.name][..., examples, 0] = waits if slot.name == OUT_OF_BATCH else place
    for name, column in constants_of(program, task).items():
        slots[name] = column.expand(*task.batch, -1, -1)
    return slots | layout.split(task.initial)


def constants_of(program: StackProgram, task: Task) -> dict[str, Tensor]:
    """Return every constant slot as a column with an entry for each token."""
    first, n_tokens = program.n_registers, program.n_registers + task.n_tokens
    end, all_tokens = first + task.n_examples, slice(None)
    n_used = program.batch_size or task.n_examples
    nonzero: dict[str, tuple[slice, float]] = {
        ONE: (all_tokens, 1.0),
        IS_EXAMPLE: (slice(first, end), 1.0),
        IS_QUERY: (slice(end, None), 1.0),
        IS_FIRST: (slice(first, first + 1), 1.0),
        TOKENS_PER_EXAMPLE: (all_tokens, n_tokens / n_used),
        N_TOKENS: (all_tokens, n_tokens),
        EXAMPLE_SHARE: (slice(first, end), n_tokens / task.n_examples),
        LOG_EXAMPLES: (all_tokens, log(n_used)),
        N_EXAMPLES: (all_tokens, task.n_examples),
    }
    columns = {}
    for slot in program.layout.having(Role.CONSTANT):
        columns[slot.name] = column = task.x.new_zeros(n_tokens, 1)
        tokens, value = nonzero.get(slot.name, (all_tokens, 0.0))
        column[tokens] = value
    for name, values in program.registers().items():
        columns[name][:first, 0] = torch.tensor(values, dtype=torch.float64).to(task.x)
    return columns


def weight_scales(slots: Mapping[str, Tensor]) -> Tensor:
    """Return the factor of every token's copy of the weights: a register's scale, or 1."""
    return slots[SCALE] if SCALE in slots else torch.ones_like(slots["x"][..., :1])


def read_learnt(program: StackProgram, task: Task, stream: Stream) -> Parameters:
    """Return the weights, or a function's values at all tokens: labels minus residuals."""
    if not program.trains_function:
        return read_parameters(program.layout, stream)
    return (known_labels(task) - stream[..., program.layout.range_of("y")]).flatten(-2)


def read_parameters(layout: Layout, stream: Stream) -> Parameters:
    """Return the weights from the first token of the stream, whose scale is always 1."""
    weights = [stream[..., 0, layout.range_of(slot.name)] for slot in layout.having(Role.PARAMETER)]
    return torch.cat([stream[..., 0, :0], *weights], dim=-1)  # `weights` may be empty


def read_predictions(program: StackProgram, stream: Stream, n_examples: int) -> Predictions:
    """Return the labels at the queries.

    In function space the stream holds residuals, which at queries are the negative predictions.
    """
    first = program.n_registers + n_examples
    labels = stream[..., first:, program.layout.range_of("y")]
    return -labels if program.trains_function else labels.clone()


def known_labels(task: Task) -> Labels:
    """Return the labels of all tokens in the prompt, 0 at queries."""
    unknown = task.y.new_zeros(*task.batch, task.n_queries, task.y.shape[-1])
    return torch.cat([task.y, unknown], dim=-2)


def linear_scores(parameters: Parameters, x: Inputs) -> Labels:
    """Return the scores <w, x>, plus the intercept if there is one more coefficient than inputs."""
    width = x.shape[-1]
    intercept = parameters[..., width:].sum(-1)[..., None, None]
    return x @ parameters[..., :width].unsqueeze(-1) + intercept


def read_point(instruction: Scored, layout: Layout, stream: Stream) -> Parameters:
    """Return the weights whose scores an instruction reads, including any velocity it adds."""
    sums: dict[str, Tensor] = {}
    for name, read, factor in instruction.products():
        term = factor * stream[..., 0, layout.range_of(name)]
        sums[read] = sums[read] + term if read in sums else term
    return torch.cat(list(sums.values()), dim=-1)


def require_scores(scores: Labels, reach: float, where: str) -> None:
    """Raise `OverflowedRunError` if a score leaves the range; `where` names the rows."""
    if not scores.numel() or float(torch.linalg.vector_norm(scores, inf)) <= reach:
        return
    outside = ~(scores.abs() <= reach)
    row = int(outside.nonzero()[0, -2])
    raise OverflowedRunError(
        f"The score <w, x> at {where} {row} (counted from 0) is {float(scores[outside][0]):.6g}, "
        f"but the heads are made for scores up to {reach:.6g}. Compile with a larger "
        "Domain(score=...), or use a smaller step size or box."
    )


def require_root(argument: Tensor, function: ReluSum, step: int) -> None:
    """Raise `OverflowedRunError` if the argument of an optimiser's root leaves its range.

    Only runs that start from a given mean of squares can leave it, in their first step: later
    arguments are averages of the previous one and a square in range. Beyond its last knot the sum
    of ReLUs keeps falling and turns negative, so that steps would ascend. Steps count from 0.
    """
    largest = float(argument.max())
    if not largest <= function.high:
        raise OverflowedRunError(
            f"Step {step + 1} divides by the root of {largest:.6g}, but the transformer was made "
            f"for roots of up to {function.high:.6g}, which no run that starts from 0 leaves. Give "
            "initial with a smaller second moment, or without one."
        )


def roots_of(program: StackProgram, layer: Layer) -> list[tuple[ReluSum, Combination]]:
    """Return the optimiser's roots in a layer with their arguments.

    Roots of norms are left out, because their arguments are always in range.
    """
    maps = (entry for entry in layer.instructions if isinstance(entry, MapSlots))
    summands = (summand for slot_map in maps for summand in slot_map.summands)
    roots = [(program.relu_sum(summand.function), summand.argument) for summand in summands]
    return [(function, read) for function, read in roots if function.name.startswith(ROOT_PREFIX)]


def require_roots(program: StackProgram, layer: Layer, stream: Stream, step: int) -> None:
    """Check the roots of a layer before it reads the stream."""
    for function, read in roots_of(program, layer):
        # These slots are equal in all tokens, so check the first one.
        first, *others = (
            factor * stream[..., 0, program.layout.range_of(name)] for name, factor in read.terms()
        )
        require_root(sum(others, first), function, step)


def may_leave_roots(program: StackProgram, stream: Stream) -> bool:
    """Return whether the program has roots of slots that do not start from 0."""
    roots = (read for layer in program.block for _, read in roots_of(program, layer))
    slots = [program.layout.slot(name) for read in roots for name in read.slots]
    averages = [slot.name for slot in slots if slot.role is Role.PARAMETER]
    return any(bool(stream[..., 0, program.layout.range_of(name)].any()) for name in averages)
