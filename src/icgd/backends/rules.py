"""The operations of all instructions of stacks: here stand the files that register them.

Whoever needs an operation imports it from here, so that no rule is missing.
"""

from __future__ import annotations

from icgd.backends import (
    class_operations,
    grid_operations,
    machine,
    norm_operations,
    operations,
    unit_operations,
    update_operations,
)

RULE_FILES = (
    operations,
    unit_operations,
    update_operations,
    class_operations,
    norm_operations,
    grid_operations,
)

Machine = machine.Machine
operation = machine.operation
