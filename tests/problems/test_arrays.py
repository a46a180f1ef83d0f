"""What users may hand over as arrays, and what is said of the rest."""

from datetime import date

import numpy as np
import polars as pl
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor

from icgd.errors import DataError, DomainError, UnknownNameError
from icgd.problems.data import (
    FLOAT32_ROUNDING,
    as_numbers,
    checked_array,
    checked_inputs,
    column_names,
    converted,
    dtype_named,
    first_set,
    require_within,
)


class Reading:
    """An object that numpy reads as an array."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


X = np.linspace(-2.0, 2.0, 15).reshape(5, 3)
CPU = torch.device("cpu")


def refusal(data) -> str:
    with pytest.raises(DataError) as caught:
        checked_array("X", data)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_arrays_keep_their_precision_and_their_numbers(convert, dtype):
    array = checked_array("X", convert(X.astype(dtype)))
    assert array.dtype is getattr(torch, dtype)
    assert np.array_equal(array.numpy(), X.astype(dtype))


def test_lists_become_float64():
    assert checked_array("X", [[1.5, 2.0]]).tolist() == [[1.5, 2.0]]
    assert checked_array("X", [[1.5, 2.0]]).dtype is torch.float64


def test_later_changes_to_the_users_array_are_not_seen():
    x = X.copy()
    array = checked_array("X", x)
    x[:] = 0.0
    assert np.array_equal(array.numpy(), X)


def test_gradients_are_cut_off():
    assert not checked_array("X", torch.tensor(X, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([["1", "2", "3"]], "dtype <U1"),
        ([[None, 1.0, 2.0]], "dtype object"),
        ([[1.0, 2.0], [3.0]], "rows of different lengths"),
        (np.ma.masked_array(X, X > 1), "it has masked entries"),
        (list(np.ma.masked_array(X, X > 1)), "it has masked entries"),
        ([[np.ma.masked_array(1.0, True), 2.0]], "it has masked entries"),
        ([[1.0], (1.0, [np.ma.masked_array(X, X > 1)])], "it has masked entries"),
        (Reading(np.ma.masked_array(X, X > 1)), "it has masked entries"),
        (torch.from_numpy(X).to_sparse(), "a sparse tensor"),
    ],
    ids=["text", "objects", "ragged", "masked", "rows", "cells", "deep", "object", "sparse"],
)
def test_what_is_no_plain_array_of_numbers_is_refused(bad, reason):
    assert refusal(bad) == (
        f"X is not a rectangular array of numbers ({reason}). Every row must have the same length."
    )


def test_a_row_that_holds_itself_is_refused():
    row: list[object] = []
    row.append(row)
    assert refusal(row).startswith("X is not a rectangular array of numbers")


def test_a_masked_array_without_a_masked_entry_is_an_array():
    assert np.array_equal(checked_array("X", np.ma.masked_array(X, X > 9)).numpy(), X)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("dtype", ["float16", "complex128"])
def test_other_types_of_number_are_refused_by_name(convert, dtype):
    assert refusal(convert(X.astype(dtype))) == (
        f"X has dtype {dtype}; float64, float32, integers or bool are expected. "
        "Convert it explicitly to one of them."
    )


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        (
            "NestedTensor",
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        ),
        ("MaskedTensor", masked_tensor(torch.ones(2), torch.tensor([True, False]))),
        ("FakeTensor", FakeTensorMode().from_tensor(torch.ones(2))),
    ],
)
def test_tensors_of_other_kinds_are_refused_by_name(kind, data):
    assert f"(a tensor of another kind, {kind})" in refusal(data)


def test_a_parameter_without_a_shape_is_refused():
    assert "a parameter that has no shape yet" in refusal(torch.nn.UninitializedParameter())


def test_plain_tensors_come_of_subclasses():
    class Named(torch.Tensor):
        pass

    for data in (torch.from_numpy(X).as_subclass(Named), torch.nn.Parameter(torch.from_numpy(X))):
        array = checked_array("X", data)
        assert type(array) is torch.Tensor
        assert np.array_equal(array.numpy(), X)


@pytest.mark.parametrize(
    "transform",
    [torch.func.grad, torch.func.vmap, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))],
    ids=["grad", "vmap", "jvp"],
)
def test_transforms_of_torch_are_refused(transform):
    def total(x):
        return checked_array("X", x).sum()

    with pytest.raises(DataError, match=r"X is inside a transform of torch.func"):
        transform(total)(torch.ones(2))


@pytest.mark.parametrize("data", [X, torch.from_numpy(X)], ids=["array", "tensor"])
def test_a_mode_without_numbers_is_refused(data):
    with FakeTensorMode(), pytest.raises(DataError, match=r"X is not .*FakeTensorMode"):
        checked_array("X", data)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_all_whole_numbers_of_torch_become_float64(dtype):
    assert checked_array("X", torch.tensor([1, 65535], dtype=dtype)).tolist() == [1.0, 65535.0]


def test_a_whole_number_of_torch_beyond_all_signed_ones_is_refused():
    data = torch.from_numpy(np.array([2**64 - 1], np.uint64))
    assert refusal(data).startswith("X holds the whole number 18446744073709551615, beyond")


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_whole_numbers_and_truth_values_become_float64(convert, dtype):
    whole = np.array([[0, 1], [1, 1]], dtype)
    array = checked_array("X", convert(whole))
    assert array.dtype is torch.float64
    assert array.tolist() == [[0.0, 1.0], [1.0, 1.0]]


def test_a_whole_number_that_would_be_rounded_is_refused():
    assert checked_array("X", np.array([2**53])).tolist() == [2.0**53]
    assert refusal(np.array([-(2**53) - 1])).startswith(
        "X holds the whole number 9007199254740993, beyond 9007199254740992"
    )


def test_data_frames_are_arrays():
    frame = pl.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    assert checked_array("X", frame).tolist() == [[1.0, 0.5], [2.0, 1.5]]


class Frame:
    """A data frame as other libraries make them: columns by any names, and an array."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows

    def __getitem__(self, name):
        return [row[list(self.columns).index(name)] for row in self.rows]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.rows, dtype)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (pl.DataFrame({"age": [1], "size": [2]}), ("age", "size")),
        (Frame(np.array(["age", "size"]), [[1, 2]]), ("age", "size")),
        (Frame([0, 1], [[1, 2]]), ()),
        (Frame(["age", "age"], [[1, 2]]), ()),
        (Frame(lambda: ["age", "size"], [[1, 2]]), ()),
        (np.ones((1, 2)), ()),
        (torch.ones(1, 2), ()),
        (None, ()),
    ],
)
def test_columns_have_names_if_all_are_texts_and_no_two_are_alike(data, names):
    assert column_names(data) == names


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.DataFrame({"a": ["x"]}), "X[0, 0] (column 'a') is 'x', which is not a number. Remove"),
        (
            pl.DataFrame({"a": [1, 2], "day": [date(2020, 1, 2), None]}),
            "X[0, 1] (column 'day') is datetime.date(2020, 1, 2), which is not a number.",
        ),
        (Frame(["a", "b"], [[1, 2], [3, None]]), "X[1, 1] (column 'b') is None, which is not a"),
        (pl.DataFrame({"a": [1, 2], "b": [3, None]}), "X[1, 1] (column 'b') is nan; every entry"),
    ],
)
def test_what_a_frame_cannot_hold_is_named_by_its_column(frame, message):
    assert refusal(frame).startswith(message)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_arrays_are_refused(shape):
    assert refusal(np.zeros(shape)) == (f"X is empty: its shape is {shape}. Give at least one row.")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_named_by_its_entry(bad):
    x = X.copy()
    x[3, 1] = bad
    assert refusal(x).startswith(f"X[3, 1] is {bad}; every entry must be finite.")


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)])
def test_inputs_are_of_one_task_or_of_a_batch(shape):
    x = np.broadcast_to(X, shape)
    assert np.array_equal(checked_inputs(x, 3).numpy(), x)


@pytest.mark.parametrize("shape", [(), (3,), (5, 2), (1, 1, 5, 3)])
def test_inputs_of_another_shape_are_refused(shape):
    with pytest.raises(DataError) as caught:
        checked_inputs(np.ones(shape), 3)
    assert str(caught.value) == f"X has shape {shape}; expected (n, 3) or (tasks, n, 3)."


def test_the_first_flag_is_found():
    flags = torch.tensor([[False, False], [True, False], [True, True]])
    assert first_set(flags) == [1, 0]
    assert first_set(flags[:1]) is None


def test_numbers_are_converted_if_they_fit():
    x = torch.tensor([[1.0, 1e200]], dtype=torch.float64)
    assert torch.equal(converted("X", x, CPU, torch.float64), x)
    assert converted("X", x[:, :1], CPU, torch.float32).dtype is torch.float32
    with pytest.raises(DataError) as caught:
        converted("X", x, CPU, torch.float32)
    assert str(caught.value) == (
        "X[0, 1] is 1e+200, too large for float32. Rescale the data, or run in float64."
    )


def test_a_bound_is_inside_and_float32_may_have_rounded_it_up():
    bound = 0.1
    require_within("X", torch.tensor([-bound, bound], dtype=torch.float64), bound, "domain.x")
    rounded = torch.tensor([bound], dtype=torch.float32)
    assert rounded.double() > bound
    require_within("X", rounded, bound, "domain.x")
    beyond = torch.tensor([bound * (1 + 4 * FLOAT32_ROUNDING)], dtype=torch.float32)
    for outside in (rounded.double(), beyond):
        with pytest.raises(DomainError, match=r"^X\[0\] is 0\.1.*, outside \[-0\.1, 0\.1\]\."):
            require_within("X", outside, bound, "domain.x")


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_types_are_found_by_name_in_torch_and_in_numpy(name):
    expected = getattr(torch, name)
    for given in (name, expected):
        assert dtype_named(given) is expected


def test_an_unknown_type_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"^Unknown dtype 'float16'; known are float64, "):
        dtype_named(torch.float16)


@pytest.mark.filterwarnings("ignore:Determining the column names of a LazyFrame")
def test_a_frame_that_was_not_collected_is_refused():
    frame = pl.LazyFrame({"a": [0.5, 1.0]})
    with pytest.raises(DataError, match=r"^X is not .* \(column 'a' cannot be read\)"):
        as_numbers("X", frame)
