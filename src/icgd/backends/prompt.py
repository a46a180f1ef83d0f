"""The prompt holds a task in the residual stream; weights and predictions are read from there."""

from __future__ import annotations

from functools import singledispatch
from math import log

import torch
from torch import Tensor

from icgd.errors import DataError, at
from icgd.problems.task import Task
from icgd.program import instructions, registers, unit_instructions, update_instructions
from icgd.program.layout import Layout, Role
from icgd.program.stack import StackProgram
from icgd.shapes import Labels, Parameters, Predictions, Stream


def split_parameters(layout: Layout, parameters: Parameters) -> dict[str, Tensor]:
    """Views of the parameter vector as the layout's matrix slots, if it has any."""
    slots = layout.having(Role.PARAMETER)
    parts = parameters.split([slot.width for slot in slots], dim=-1) if slots else ()
    pairs = zip(slots, parts, strict=True)
    return {slot.name: part.unflatten(-1, slot.shape) for slot, part in pairs}


@singledispatch
def require_entry(program: object, task: Task) -> None:
    """Raise `DataError` if the program is made for another number of examples, or other levels.

    Programs other than stacks are made for all.
    """


@require_entry.register
def require_entry_of_stack(program: StackProgram, task: Task) -> None:
    """Some stacks are made for a number of examples, or for inputs and labels on levels."""
    if program.n_examples is not None and task.n_examples != program.n_examples:
        raise DataError(
            f"X has {task.n_examples} examples, but the transformer was made for prompts of "
            f"{program.n_examples}. Give {program.n_examples}, or compile with "
            f"n_examples={task.n_examples}."
        )
    table = program.step_table
    if table is None:
        return
    knots = program.relu_sum(instructions.IDENTITY).knots
    for name, data, size in zip(("X", "y"), (task.x, task.y), table.ranges, strict=False):
        slack = 8 * torch.finfo(data.dtype).eps
        for low, high in zip(knots[::2], knots[1::2], strict=True):
            inside = (data * (1 / size) > low + slack) & (data * (1 / size) < high - slack)
            if inside.any():
                index = inside.nonzero()[0].tolist()
                value = data[tuple(index)].item()
                raise DataError(
                    f"{name}{at(index)} is {value:.12g}, on the ramp between two levels: the table "
                    f"has no entry for examples strictly between {size * low:.12g} and "
                    f"{size * high:.12g}. Move it out, or compile with a smaller kink_width."
                )


def encode(program: StackProgram, task: Task) -> Stream:
    """The prompt: registers, examples, then queries, a token each; all scratch is zero.

    A function starts from 0: at every example its whole label is left to learn.
    """
    require_entry(program, task)
    layout, first = program.layout, program.n_registers
    examples = slice(first, first + task.n_examples)
    stream = task.x.new_zeros(*task.batch, first + task.n_tokens, layout.width)
    stream[..., first:, layout.range_of("x")] = torch.cat([task.x, task.queries], dim=-2)
    stream[..., examples, layout.range_of("y")] = task.y
    if task.rates is not None:
        stream[..., examples, layout.range_of(instructions.RATES)] = task.rates
    for name, column in constants_of(program, task).items():
        stream[..., layout.range_of(name)] = column
    for slot in layout.having(Role.TURN):
        column = turns(program, slot.name, examples).to(stream)
        stream[..., examples, layout.range_of(slot.name)] = column.unsqueeze(-1)
    scales = weight_scales(program, task)
    for name, matrix in split_parameters(layout, task.initial).items():
        stream[..., layout.range_of(name)] = matrix.flatten(-2).unsqueeze(-2) * scales
    return stream


def turns(program: StackProgram, name: str, examples: slice) -> Tensor:
    """What the prompt says of an example's turn: its place, or whether it has to wait."""
    place = torch.arange(examples.stop - examples.start, dtype=torch.float64)
    waits = (place >= (program.batch_size or len(place))).double()
    return waits if name == update_instructions.OUT_OF_BATCH else place


def constants_of(program: StackProgram, task: Task) -> dict[str, Tensor]:
    """Every constant slot as a column with an entry for each token."""
    first, n_tokens = program.n_registers, program.n_registers + task.n_tokens
    end, all_tokens = first + task.n_examples, slice(None)
    n_used = program.batch_size or task.n_examples
    known: dict[str, tuple[slice, float]] = {
        instructions.ONE: (all_tokens, 1.0),
        instructions.IS_EXAMPLE: (slice(first, end), 1.0),
        instructions.IS_QUERY: (slice(end, None), 1.0),
        instructions.TOKENS_PER_EXAMPLE: (all_tokens, n_tokens / n_used),
        instructions.N_TOKENS: (all_tokens, n_tokens),
        unit_instructions.EXAMPLE_SHARE: (slice(first, end), n_tokens / task.n_examples),
        registers.LOG_EXAMPLES: (all_tokens, log(n_used)),
        update_instructions.N_EXAMPLES: (all_tokens, task.n_examples),
    }
    columns = {}
    for slot in program.layout.having(Role.CONSTANT):
        columns[slot.name] = column = task.x.new_zeros(n_tokens, 1)
        tokens, value = known.get(slot.name, (all_tokens, 0.0))
        column[tokens] = value
    for name, values in program.registers().items():
        columns[name][:first, 0] = torch.tensor(values, dtype=torch.float64).to(task.x)
    return columns


def weight_scales(program: StackProgram, task: Task) -> Tensor:
    """The factor of every token's copy of the weights: 1, or a register's scale."""
    if program.n_registers:
        return constants_of(program, task)[registers.SCALE]
    return task.x.new_ones(task.n_tokens, 1)


def read_learnt(program: StackProgram, task: Task, stream: Stream) -> Parameters:
    """The weights, or a function's values at all tokens: labels less what is left to learn."""
    if not program.trains_function:
        return read_parameters(program.layout, stream)
    return (known_labels(task) - stream[..., program.layout.range_of("y")]).flatten(-2)


def read_parameters(layout: Layout, stream: Stream) -> Parameters:
    """The weights that the stream carries in its first token, whose scale is always 1."""
    parts = [stream[..., 0, layout.range_of(slot.name)] for slot in layout.having(Role.PARAMETER)]
    return torch.cat(parts, dim=-1)


def read_predictions(program: StackProgram, stream: Stream, n_examples: int) -> Predictions:
    """The labels at the queries; where a function is trained, the stream holds their negative."""
    first = program.n_registers + n_examples
    labels = stream[..., first:, program.layout.range_of("y")]
    return -labels if program.trains_function else labels.clone()


def known_labels(task: Task) -> Labels:
    """The labels of all tokens as the prompt has them: 0 at queries."""
    unknown = task.y.new_zeros(*task.batch, task.n_queries, task.y.shape[-1])
    return torch.cat([task.y, unknown], dim=-2)
