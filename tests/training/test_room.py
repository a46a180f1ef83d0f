import pytest

from icgd.backends.memory import Memory
from icgd.errors import ModelSizeError
from icgd.training import room


def test_what_fits_is_let_through_and_what_does_not_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(room, "usable_memory", lambda: Memory(2**30, "half of the memory"))
    room.require_memory("A table", 2**30, "Give less.")
    with pytest.raises(ModelSizeError) as refusal:
        room.require_memory("A table", 5 * 2**29, "Give less.")
    assert str(refusal.value) == (
        "A table takes about 2.5 GiB; 1.0 GiB may be used, half of the memory. Give less."
    )
