"""Machines with little memory, for tests of what is refused there."""

import pytest

from icgd.environment import Memory


def of_memory(monkeypatch: pytest.MonkeyPatch, n_bytes: int, limit: str = "a limit") -> None:
    """From now on so much memory may be used, and the smallest things ask for it."""
    monkeypatch.setattr("icgd.environment.SURELY_FREE", 0)
    monkeypatch.setattr("icgd.environment.usable_memory", lambda: Memory(n_bytes, limit))
