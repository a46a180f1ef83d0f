import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from icgd.errors import FileError
from icgd.weights.tensors import NAMES, write_tensors

TENSORS = {
    "wide": torch.tensor([[1.5, -2.0], [float("nan"), 3.0]], dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "one number": torch.tensor(7),
    "flags": torch.tensor([True, False, True]),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "größe": torch.arange(3, dtype=torch.int16),
}


def test_a_file_has_the_bytes_that_the_package_would_write(tmp_path):
    """The package takes one entry of metadata, because it would shuffle several."""
    path, metadata = tmp_path / "out", {"text": '{"a": "ä\\n"}'}
    contiguous = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    write_tensors(path, TENSORS, metadata)
    assert path.read_bytes() == save(contiguous, metadata=metadata)


@pytest.mark.parametrize("dtype", NAMES)
def test_every_type_comes_back_bit_for_bit(tmp_path, dtype):
    tensor = torch.arange(5).to(dtype)
    write_tensors(tmp_path / "out", {"a": tensor}, {"b": "c"})
    again = load_file(tmp_path / "out")["a"]
    assert again.dtype == dtype
    assert torch.equal(again, tensor)


def test_a_type_that_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"out: safetensors cannot hold torch\.complex128\.$"):
        write_tensors(tmp_path / "out", {"a": torch.zeros(1, dtype=torch.complex128)}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_order_of_metadata_is_kept(tmp_path):
    metadata = {f"key {i}": str(i) for i in range(20)}
    write_tensors(tmp_path / "out", TENSORS, metadata)
    with safe_open(tmp_path / "out", framework="pt") as file:
        assert file.metadata() == metadata
    places = [(tmp_path / "out").read_bytes().index(name.encode()) for name in metadata]
    assert places == sorted(places)
