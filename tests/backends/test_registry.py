import pytest

from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.registry import BACKENDS, backend_named
from icgd.errors import UnknownNameError


def test_backends_are_found_by_name():
    assert {name: type(backend) for name, backend in BACKENDS.items()} == {
        "fused": FusedBackend,
        "dense": DenseBackend,
    }
    assert backend_named("dense") is BACKENDS["dense"]


def test_an_unknown_backend_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        backend_named("fuse")
    assert str(caught.value) == (
        "Unknown backend 'fuse'; known are fused, dense. Did you mean 'fused'?"
    )
