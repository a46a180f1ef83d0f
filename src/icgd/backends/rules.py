"""The kernels of all instructions of stacks: here stand the files that register them.

Whoever needs a kernel imports it from here, so that no rule is missing.
"""

from __future__ import annotations

from icgd.backends import grid_kernels, kernels, unit_kernels

RULE_FILES = (kernels, unit_kernels, grid_kernels)

Machine = kernels.Machine
kernel = kernels.kernel
