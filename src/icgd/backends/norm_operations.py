"""The operations of layer norms: a rule for each instruction of `norm_instructions.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.backends.look_up import Operation
from icgd.backends.machine import Machine, operation
from icgd.program.norm_instructions import Covary, ScaleCentred


@operation.register
def _to_covary(instruction: Covary, machine: Machine) -> Operation:
    left, right, write = machine.at(instruction.left, instruction.right, instruction.write)
    is_square = instruction.left == instruction.right

    def covary() -> None:
        own = _centred(left)
        torch.mean(own * (own if is_square else _centred(right)), dim=-1, keepdim=True, out=write)

    return covary


@operation.register
def _to_scale_centred(instruction: ScaleCentred, machine: Machine) -> Operation:
    source, scale, write = machine.at(instruction.source, instruction.scale, instruction.write)
    if instruction.along is None or instruction.share is None:
        return lambda: torch.mul(_centred(source), scale, out=write)
    along, share = machine.at(instruction.along, instruction.share)
    return lambda: torch.mul(_centred(source).addcmul_(along, share, value=-1), scale, out=write)


def _centred(values: Tensor) -> Tensor:
    """The coordinates less their mean, in memory of its own."""
    return values - values.mean(-1, keepdim=True)
