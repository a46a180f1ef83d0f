"""Repeatable tests. Nothing here imports icgd: the type checker hooks in after this file."""

import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("tests.contracts.backend")

# The same examples in every run; no deadline, because a shared machine has slow moments.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")

# pytest-xdist runs one process a core.
torch.set_num_threads(1)
