"""The sizes and the numbers of all instructions of stacks, and the files that register them.

A module that needs a size or a head imports it from here, so that no rule is missing.
"""

from __future__ import annotations

from icgd.weights import class_heads, grid_heads, heads, norm_heads, sizes, unit_heads, update_heads

RULE_FILES = (sizes, heads, unit_heads, update_heads, class_heads, norm_heads, grid_heads)

fill, instruction_size = heads.fill, sizes.instruction_size
