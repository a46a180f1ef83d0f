r"""Registers: tokens of constants in front of the examples, which softmax heads read.

The first register is the memory: it holds the trained weights themselves, and the value 0 that
other heads rest on. The others are the grid: register g = -half .. half holds the weights times
its scale g / half, the offset of its scores, and its value of every function that is looked up.

All of it follows from the program's functions. Slots of registers are 0 at other tokens.
"""

from __future__ import annotations

from math import log

from icgd.program.functions import LatticeFunction

IS_REGISTER, IS_MEMORY = "is_register", "is_memory"
"""Flags of all registers, and of the first."""

SCALE, SCALE_SIZE, SIGN = "scale", "scale_size", "scale_sign"
"""What a register's copy of the weights is multiplied by, its size and its sign."""

OFFSET = "offset"
"""-g^2 / 2: the part of a grid token's score that does not depend on the argument. The memory,
whose scale is that of the last token, lies below even that one by MASKED."""

SINK = "sink"
"""The memory's score beside examples of total 1 that leaves them a share of SHARE |scale|."""

SHARE = 2.0**-40
"""What the examples get of the softmax in a register of scale 1: see `AddGradient`."""

LOG_EXAMPLES = "log_examples"
"""log n_examples, in every token."""

MASKED = 4096.0
"""A score this much lower than another gets a softmax weight of exactly 0."""

REGISTER_SLOTS = (IS_REGISTER, IS_MEMORY, SCALE, SCALE_SIZE, SIGN, OFFSET, SINK)
"""Constant slots of registers, besides the values of functions."""


def value_slot(name: str) -> str:
    """The slot of the registers' values of function `name`."""
    return f"value of {name}"


def register_constants(
    functions: tuple[LatticeFunction, ...], half: int
) -> dict[str, tuple[float, ...]]:
    """What every register holds, slot by slot."""
    grid = range(-half, half + 1)
    scales = (1.0, *(g / half for g in grid))
    constants: dict[str, tuple[float, ...]] = {
        IS_REGISTER: (1.0,) * len(scales),
        IS_MEMORY: (1.0,) + (0.0,) * len(grid),
        SCALE: scales,
        SCALE_SIZE: tuple(map(abs, scales)),
        SIGN: tuple(float((scale > 0) - (scale < 0)) for scale in scales),
        OFFSET: (-MASKED - half * half / 2, *(-g * g / 2 for g in grid)),
        SINK: tuple(-log(SHARE * abs(scale)) if scale else MASKED for scale in scales),
    }
    return constants | {value_slot(f.name): (0.0, *f.values) for f in functions}
