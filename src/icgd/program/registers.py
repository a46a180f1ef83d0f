r"""Registers: tokens of constants in front of the examples, which softmax heads read.

The first register is the memory: it holds the trained weights themselves, and has the value 0 in
every look-up. Each other register stands for a lattice point g = -half .. half. It holds the
weights times its scale g / half, the offset of its scores, and its value of every function that is
looked up.

All constants follow from the program's functions. Slots of registers are 0 at other tokens.
"""

from __future__ import annotations

from math import log

from icgd.program.functions import LatticeFunction

IS_REGISTER, IS_MEMORY = "is_register", "is_memory"
"""The flag of all registers, and that of the first one."""

SCALE, SCALE_SIZE, SIGN = "scale", "scale_size", "scale_sign"
"""The factor of a register's copy of the weights, the size of that factor and its sign."""

OFFSET = "offset"
"""The part -g^2 / 2 of a register's score that does not depend on the argument. The memory, whose
scale is that of the last register, has an offset that is lower by MASKED than that of any other."""

SINK = "sink"
"""The memory's score that leaves examples of total weight 1 a share of SHARE |scale|."""

SHARE = 2.0**-40
"""The share of the softmax that examples get in a register of scale 1: see `AddGradient`."""

LOG_EXAMPLES = "log_examples"
"""The slot that holds log n_examples in every token."""

MASKED = 4096.0
"""A score this much lower than another gets a softmax weight of exactly 0."""

REGISTER_SLOTS = (IS_REGISTER, IS_MEMORY, SCALE, SCALE_SIZE, SIGN, OFFSET, SINK)
"""The constant slots of registers, besides the values of functions."""


def value_slot(name: str) -> str:
    """The slot in which registers hold their values of function `name`."""
    return f"value of {name}"


def register_constants(
    functions: tuple[LatticeFunction, ...], half: int
) -> dict[str, tuple[float, ...]]:
    """What every register holds, slot by slot."""
    points = range(-half, half + 1)
    scales = (1.0, *(g / half for g in points))
    constants: dict[str, tuple[float, ...]] = {
        IS_REGISTER: (1.0,) * len(scales),
        IS_MEMORY: (1.0,) + (0.0,) * len(points),
        SCALE: scales,
        SCALE_SIZE: tuple(map(abs, scales)),
        SIGN: tuple(float((scale > 0) - (scale < 0)) for scale in scales),
        OFFSET: (-MASKED - half * half / 2, *(-g * g / 2 for g in points)),
        SINK: tuple(-log(SHARE * abs(scale)) if scale else MASKED for scale in scales),
    }
    return constants | {value_slot(f.name): (0.0, *f.values) for f in functions}
