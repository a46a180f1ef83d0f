r"""Where the step size stands in a program: in one layer of the block, as a factor.

The layer that moves the trained weights is made of instructions `weights += scale * mean(...)` with
scale = -step_size / 2. The rules of `weights/` write the scale into W_O of that layer, as a factor
of every entry, and nowhere else. So a transformer of another step size differs in that one tensor:

    W_O(step_size) = step_size * W_O(1)
"""

from __future__ import annotations

from dataclasses import replace

from icgd.errors import ConstructionError
from icgd.program.instructions import AccumulateOuterProduct, AddGradient
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram

SCALED = (AccumulateOuterProduct, AddGradient)
"""The instructions that move weights by a multiple of their scale: of relu-stack, softmax-stack."""


def step_layer(program: AbstractProgram) -> int:
    """The place, in the block, of the layer whose W_O is proportional to the step size.

    Raises `SettingError` for a program that has no such layer.
    """
    places = [place for place, layer in enumerate(program.layers) if _is_scaled(layer)]
    if len(places) != 1:
        raise ConstructionError(
            f"In {program.construction} the step size is not a factor of one layer and of nothing "
            "else, so it cannot be learnt. Compile with relu-stack, which is exact for "
            "piecewise-linear networks, or with softmax-stack."
        )
    return places[0]


def of_unit_step(program: StackProgram, step_size: float) -> StackProgram:
    """The program that was built for `step_size`, with a step size of 1."""
    place = step_layer(program)
    layer = program.block[place]
    unit = tuple(
        replace(part, scale=part.scale / step_size)
        for part in layer.instructions
        if isinstance(part, SCALED)
    )
    block = (*program.block[:place], Layer(layer.title, unit), *program.block[place + 1 :])
    return replace(program, block=block)


def _is_scaled(layer: Layer) -> bool:
    return all(isinstance(part, SCALED) for part in layer.instructions)
