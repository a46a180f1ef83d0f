"""The error bounds of all instructions of stacks: here stand the files that register them.

Whoever propagates bounds imports it from here, so that no rule is missing.
"""

from __future__ import annotations

from icgd.certificates import (
    bounds,
    class_bounds,
    norm_bounds,
    step_table_bounds,
    unit_bounds,
    update_bounds,
)

RULE_FILES = (bounds, step_table_bounds, unit_bounds, update_bounds, class_bounds, norm_bounds)

propagate, rule = bounds.propagate, bounds.rule
