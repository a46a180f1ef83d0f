import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from icgd.errors import FileError
from icgd.weights.tensors import NAMES, stored_tensors, write_tensors

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


def test_what_was_written_is_read_bit_for_bit(tmp_path):
    write_tensors(tmp_path / "out", TENSORS, {"b": "c"})
    with stored_tensors(tmp_path / "out") as stored:
        assert stored.metadata == {"b": "c"}
        found = {name: stored.read(name) for name in stored.entries}
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_a_file_of_the_package_is_read(tmp_path):
    (tmp_path / "out").write_bytes(save({"a": torch.arange(6.0).reshape(2, 3)}))
    with stored_tensors(tmp_path / "out") as stored:
        assert stored.metadata == {}
        assert stored.read("a").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_a_file_that_is_replaced_is_read_to_its_end(tmp_path):
    path = tmp_path / "out"
    write_tensors(path, {"a": torch.zeros(1000)}, {})
    with stored_tensors(path) as stored:
        write_tensors(path, {"b": torch.ones(2)}, {})
        assert torch.equal(stored.read("a"), torch.zeros(1000))


def test_a_file_that_is_shortened_in_place_is_noticed(tmp_path):
    write_tensors(tmp_path / "out", {"a": torch.zeros(100_000)}, {})
    with stored_tensors(tmp_path / "out") as stored:
        os.truncate(tmp_path / "out", 1000)
        with pytest.raises(ValueError, match="it was shortened while it was read"):
            stored.read("a")


def file_of(header, n_bytes=8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(n_bytes)


WHOLE = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it has no header"),
        (b"\xff" * 100, "it has no header"),
        (bytes(20), "it has no header"),
        (file_of([]), "its header is no table"),
        (file_of(b"{"), "Expecting property name"),
        (file_of(b"\xff"), "invalid start byte"),
        (file_of({"__metadata__": {"a": 1}}, 0), "its metadata are no texts"),
        (file_of({"a": 1}), "it does not describe 'a'"),
        (file_of({"a": {**WHOLE, "dtype": 1}}), "it does not describe 'a'"),
        (file_of({"a": {**WHOLE, "shape": [-1]}}), "it does not say where 'a' is"),
        (file_of({"a": {**WHOLE, "shape": [True]}}), "it does not say where 'a' is"),
        (file_of({"a": {**WHOLE, "data_offsets": [0]}}), "it does not say where 'a' is"),
        (file_of({"a": {**WHOLE, "dtype": "F99"}}), "'a' of the unknown type 'F99'"),
        (file_of({"a": {**WHOLE, "shape": [2]}}), "the size of 'a' is not that of its shape"),
        (file_of({"a": {**WHOLE, "data_offsets": [8, 16]}}), "its tensors overlap, or leave gaps"),
        (file_of({"a": WHOLE, "b": WHOLE}), "its tensors overlap, or leave gaps"),
        (file_of({"a": WHOLE}, 9), "it has 9 bytes of tensors, expected 8"),
        (file_of({"a": WHOLE}, 7), "it has 7 bytes of tensors, expected 8"),
    ],
)
def test_what_is_no_such_file_is_said(tmp_path, content, problem):
    (tmp_path / "out").write_bytes(content)
    with pytest.raises(ValueError, match=problem), stored_tensors(tmp_path / "out"):
        pass
