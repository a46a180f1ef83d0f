"""Programs: named slots and instructions on them. No tensors."""

from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    Combination,
    Instruction,
    MapSlots,
    MultiplySlots,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import (
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    TOKENS_PER_EXAMPLE,
    Layout,
    Role,
    Slot,
)
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

__all__ = [
    "IS_EXAMPLE",
    "IS_QUERY",
    "ONE",
    "TOKENS_PER_EXAMPLE",
    "AccumulateOuterProduct",
    "ApplyUnits",
    "ClipSlots",
    "Combination",
    "Instruction",
    "Layer",
    "Layout",
    "MapSlots",
    "MultiplySlots",
    "PullBack",
    "Role",
    "Slot",
    "StackProgram",
    "Summand",
    "WipeSlots",
]
