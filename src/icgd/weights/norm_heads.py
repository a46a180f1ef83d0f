"""The heads of layer norms: a rule for each instruction of `norm_instructions.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.program.instructions import ONE
from icgd.program.norm_instructions import Covary, ScaleCentred
from icgd.program.stack import StackProgram
from icgd.weights.heads import Heads, coordinate_of, fill, joined


@fill.register
def _fill_covary(instruction: Covary, program: StackProgram, weights: Heads) -> None:
    """Query left - mean(left), key right - mean(right), value 1, output 1 / width."""
    layout = program.layout
    left, right = joined(layout, instruction.left), joined(layout, instruction.right)
    feature = torch.arange(len(left))
    weights.query[0, left[:, None], feature] = centring(len(left)).to(weights.query)
    weights.key[0, right[:, None], feature] = centring(len(right)).to(weights.key)
    weights.value[0, coordinate_of(layout, ONE), 0] = 1.0
    weights.output[0, 0, coordinate_of(layout, instruction.write)] = 1.0 / len(left)


@fill.register
def _fill_scale_centred(instruction: ScaleCentred, program: StackProgram, weights: Heads) -> None:
    """Query [source[k] - mean(source); -along[k]], key [1; share], value scale, for each k."""
    layout = program.layout
    source = joined(layout, instruction.source)
    head = torch.arange(len(source))
    weights.query[head[:, None], source, 0] = centring(len(source)).to(weights.query)
    weights.key[:, coordinate_of(layout, ONE), 0] = 1.0
    if instruction.along is not None and instruction.share is not None:
        weights.query[head, joined(layout, instruction.along), 1] = -1.0
        weights.key[:, coordinate_of(layout, instruction.share), 1] = 1.0
    weights.value[:, coordinate_of(layout, instruction.scale), 0] = 1.0
    weights.output[head, 0, joined(layout, instruction.write)] = 1.0


def centring(width: int) -> Tensor:
    """The matrix that takes the mean of its coordinates away from a vector."""
    return torch.eye(width, dtype=torch.float64) - 1.0 / width
