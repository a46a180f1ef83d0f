"""The operations of classes: a rule for each instruction of `class_instructions.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.backends.look_up import Evaluation, Operation
from icgd.backends.machine import Machine, operation
from icgd.program.class_instructions import MapDifferences, MapRowSums, ShareClasses


@operation.register
def _to_share_classes(instruction: ShareClasses, machine: Machine) -> Operation:
    scores, write = machine.at(instruction.scores, instruction.write)
    if not machine.traced:
        return lambda: torch.softmax(scores, dim=-1, out=write)

    def share() -> None:
        torch.softmax(scores, dim=-1, out=write)
        write[..., :1, :] = 0.0  # the memory reads itself, and holds no values

    return share


@operation.register
def _to_map_differences(instruction: MapDifferences, machine: Machine) -> Operation:
    source, write = machine.at(instruction.source, instruction.write)
    n_classes = source.shape[-1]
    argument = torch.empty_like(write)
    pairs = argument.view(*write.shape[:-1], n_classes, n_classes)

    def subtract() -> None:
        torch.sub(source.unsqueeze(-2), source.unsqueeze(-1), out=pairs)

    return _mapped(subtract, argument, instruction.function, write, machine)


@operation.register
def _to_map_row_sums(instruction: MapRowSums, machine: Machine) -> Operation:
    source, write = machine.at(instruction.source, instruction.write)
    argument, rows = torch.empty_like(write), source.view(*write.shape, -1)

    def add() -> None:
        torch.sum(rows, dim=-1, out=argument)

    return _mapped(add, argument, instruction.function, write, machine)


def _mapped(
    fill: Operation, argument: Tensor, function: str, write: Tensor, machine: Machine
) -> Operation:
    """The operation write = function(argument), after the argument is filled."""
    fit = machine.program.relu_sum(function)
    evaluation = Evaluation([fit], argument)
    apply = evaluation.operation(fit, write)

    def run() -> None:
        fill()
        evaluation.prepare()
        apply()

    return run
