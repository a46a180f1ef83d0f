"""Repeatable tests. Nothing here imports icgd: the type checker hooks in after this file."""

import gc
import os
import random
import sys

import jaxtyping
import pytest
import torch
from hypothesis import settings

from tests.type_checks import jaxtyped

pytest.register_assert_rewrite("tests.contracts.backend")

jaxtyping.jaxtyped = jaxtyped  # what its import hook decorates all functions of icgd with

# The same examples in every run; no deadline, because a shared machine has slow moments.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")

# pytest-xdist runs one process a core; commands that tests start are processes of their own.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


gc.disable()  # while tests are imported and collected: nothing of that is garbage


def pytest_collection_finish():
    """Leave the modules and tests, a million objects, out of every later collection of garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _same_items():
    """The type checker looks at one item of a list, which it draws: in every run the same one."""
    random.seed(0)


@pytest.fixture
def wrong_types(request):
    """Skip a test of what wrong types raise where the type checker raises first."""
    if request.config.getoption("jaxtyping_packages"):
        pytest.skip("the type checker refuses wrong types itself")


@pytest.fixture(autouse=True)
def _default_precision():
    """No test leaves another precision of balls behind."""
    yield
    if "flint" in sys.modules:
        sys.modules["flint"].ctx.default()
