"""Arrays that users hand over: checked, and brought to torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from icgd.errors import DataError, DomainError, SettingError
from icgd.problems.settings import named

DTYPES = {"float64": torch.float64, "float32": torch.float32}

LARGEST_WHOLE = 2**53
"""Up to this, float64 holds every whole number."""

NUMBERS = frozenset((bool, int, float))
"""The types of plain numbers."""

FLOAT32_ROUNDING = 2.0**-22
"""Relative change, with room to spare, of a number that is converted to float32."""


def dtype_named(dtype: str | torch.dtype) -> torch.dtype:
    """`dtype` as a torch dtype; only float64 and float32 are offered."""
    is_known = isinstance(dtype, str | torch.dtype | np.dtype | type)
    name = getattr(dtype, "__name__", str(dtype)) if is_known else dtype  # numpy's is a class
    return named("dtype", name.removeprefix("torch.") if isinstance(name, str) else name, DTYPES)


def device_of(device: object) -> torch.device:
    """The device of torch that is called so, if numbers can be there."""
    if not isinstance(device, str | torch.device) or "meta" in str(device):
        raise SettingError.wrong_kind("device", device, "a device of torch")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError):  # torch has no other
        raise SettingError.wrong_kind("device", device, "a device of torch") from None
    return place


def checked_array(name: str, data: Any) -> Tensor:
    """`data` as a finite, non-empty tensor of float64 or float32; whole numbers become float64."""
    columns = column_names(data)
    array = as_numbers(name, data)
    if 0 in array.shape:
        raise DataError.empty(name, array.shape)
    if index := first_set(~torch.isfinite(array)):
        raise DataError.not_finite(name, index, array[tuple(index)].item(), columns)
    return array


def as_numbers(name: str, data: Any) -> Tensor:
    """`data` as a tensor of float64 or float32, of any shape; whole numbers become float64."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        raise DataError.not_an_array(name, "inside FakeTensorMode, tensors hold no numbers")
    data = _plain(name, data) if isinstance(data, Tensor) else _as_array(name, data)
    data = _as_floats(name, data)
    if str(data.dtype).removeprefix("torch.") not in DTYPES:
        raise DataError.wrong_dtype(name, str(data.dtype).removeprefix("torch."))
    return data.detach().clone() if isinstance(data, Tensor) else torch.from_numpy(data.copy())


def _plain(name: str, data: Tensor) -> Tensor:
    """The same numbers as a tensor of no special class."""
    if torch._C._functorch.is_functorch_wrapped_tensor(data):
        raise DataError.transformed(name)
    if is_lazy(data):
        raise DataError.not_an_array(name, "a parameter that has no shape yet")
    if data.is_nested or type(data).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise DataError.not_an_array(name, f"a tensor of another kind, {_kind(data)}")
    with torch._C.DisableTorchFunctionSubclass():
        _require_memory(name, data)
        return data.as_subclass(Tensor)


def _kind(data: Tensor) -> str:
    return "nested" if type(data) is Tensor else type(data).__name__


def _require_memory(name: str, data: Tensor) -> None:
    """Raise `DataError` for a tensor that is not a block of numbers in memory."""
    if data.layout != torch.strided:
        raise DataError.not_an_array(name, "a sparse tensor")
    if data.is_meta:
        raise DataError.not_an_array(name, "a tensor without memory, on the device meta")


def require_unmasked(name: str, data: Any) -> None:
    """Raise `DataError` for an array of numpy some of whose entries are masked, or a row of such.

    What numpy reads of another object is looked at by whoever has it read.
    """
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise DataError.not_an_array(name, "it has masked entries")
    if isinstance(data, list | tuple) and not NUMBERS.issuperset(map(type, data)):
        for part in data:
            require_unmasked(name, part)


def _as_array(name: str, data: Any) -> Any:
    """`data` as an array of numpy."""
    if isinstance(data, bytes | bytearray):
        raise DataError.not_an_array(name, "bytes")
    _require_numbers(name, data, column_names(data))
    array = _read(name, data)
    if array.dtype.kind in "OUS":
        raise DataError.not_an_array(name, f"dtype {array.dtype}")
    return array


def _read(name: str, data: Any) -> Any:
    """What numpy reads of an object, if no entry of it is masked."""
    try:
        require_unmasked(name, data)
        array = np.asanyarray(data)  # it keeps a mask
        require_unmasked(name, array)
    except DataError:
        raise
    except (Exception, MemoryError):  # data of any class may be wrong in any way
        raise DataError.not_an_array(name, "rows of different lengths") from None
    return np.asarray(array)


def column_names(data: Any) -> tuple[str, ...]:
    """The names of a data frame's columns; none unless all are texts and no two are alike."""
    try:
        given = getattr(data, "columns", ())
        names = () if callable(given) else tuple(given)
        is_named = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    except Exception:  # data of any class may be wrong in any way
        return ()
    return names if is_named else ()


def _cells(name: str, frame: Any, column: str) -> Any:
    """The cells of a column, which a frame that was not collected yet cannot tell."""
    try:
        return np.asarray(frame[column])
    except (Exception, MemoryError):  # data of any class may be wrong in any way
        raise DataError.not_an_array(name, f"column {column!r} cannot be read") from None


def _require_numbers(name: str, frame: Any, columns: tuple[str, ...]) -> None:
    """Raise `DataError` for the first entry of a frame that is not a number."""
    for place, column in enumerate(columns):
        cells = _cells(name, frame, column)
        if cells.dtype.kind in "biuf":
            continue
        for row, cell in enumerate(cells.tolist()):
            if not isinstance(cell, int | float):
                raise DataError.no_number(name, (row, place), cell, columns)


def _as_floats(name: str, data: Any) -> Any:
    """Integers and truth values as float64, which holds each of them; other numbers as they are."""
    kind = str(data.dtype).removeprefix("torch.")
    if not kind.startswith(("int", "uint", "bool")):
        return data
    if 0 not in data.shape and kind != "bool":
        array = data.cpu().numpy() if isinstance(data, Tensor) else data  # it knows all kinds
        largest = max(abs(int(array.max())), abs(int(array.min())))
        if largest > LARGEST_WHOLE:
            raise DataError.too_large_whole(name, largest, LARGEST_WHOLE)
    return data.double() if isinstance(data, Tensor) else data.astype(np.float64)


def checked_inputs(data: Any, width: int) -> Tensor:
    """`data` as the inputs X of one task or of a batch of tasks, a row of `width` for each."""
    x = checked_array("X", data)
    if x.ndim not in (2, 3) or x.shape[-1] != width:
        raise DataError.wrong_shape("X", x.shape, f"(n, {width}) or (tasks, n, {width})")
    return x


def first_set(flags: Tensor) -> list[int] | None:
    """Where the first flag is set, if any is."""
    return flags.nonzero()[0].tolist() if flags.any() else None


def converted(
    name: str,
    array: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    columns: Sequence[str] = (),
) -> Tensor:
    """`array` in `dtype`, if it fits: float32 has a smaller range. An error names the column."""
    result = array.to(device=device, dtype=dtype)
    if index := first_set(~torch.isfinite(result)):
        dtype_name = str(dtype).removeprefix("torch.")
        raise DataError.overflows(name, index, array[tuple(index)].item(), dtype_name, columns)
    return result


def require_within(
    name: str, array: Tensor, bound: float, setting: str, columns: Sequence[str] = ()
) -> None:
    """Raise `DomainError` if an entry is larger than `bound`, the value of `setting`."""
    # A bound itself may round up when it is converted to float32.
    slack = FLOAT32_ROUNDING * bound if array.dtype == torch.float32 else 0.0
    if index := first_set(array.double().abs() > bound + slack):
        value = array[tuple(index)].item()
        raise DomainError.outside(name, index, value, bound, setting, columns)
