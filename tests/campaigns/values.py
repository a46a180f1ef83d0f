"""Values that an argument can be by mistake: about 170 kinds, each made afresh for every call."""

import decimal
import enum
import fractions
import functools
import pathlib
import types
import uuid
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import torch

try:
    import pandas as pd
    import polars as pl
except ImportError:
    pd = pl = None


class Colour(enum.Enum):
    """An enum of texts."""

    RED = "red"


class Number(enum.IntEnum):
    """An enum of numbers."""

    TWO = 2


class Text(str):
    """A text of another class."""


class Whole(int):
    """A whole number of another class."""


class Real(float):
    """A number of another class."""


class Rows(list):
    """A list of another class."""


def _raising(name: str) -> Any:
    """An object that raises when it is asked for `name`, such as __bool__."""

    def method(self: object, *args: object, **kwargs: object) -> Any:
        raise RuntimeError(f"{name} of a hostile object")

    body: dict[str, Any] = {name: method}
    if name == "__eq__":
        body["__hash__"] = method
    return type(f"Raises{name.strip('_').title()}", (), body)()


class Endless:
    """A sequence that never ends."""

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, place: int) -> float:
        return 0.5


class NotAnArray:
    """What says of itself that it is an array of texts."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(["a", "b"])


class Indexed:
    """What says of itself that it is the whole number 2."""

    def __index__(self) -> int:
        return 2


class Floating:
    """What can be made a float, and is no number."""

    def __float__(self) -> float:
        return 0.5


class WrongPath:
    """A path that is none."""

    def __fspath__(self) -> Any:
        return 7


Point = namedtuple("Point", "x y")


def _cycle() -> list[Any]:
    inner: list[Any] = [1.0]
    inner.append(inner)
    return inner


def _deep() -> list[Any]:
    nested: list[Any] = [1.0]
    for _ in range(2000):
        nested = [nested]
    return nested


def _nan_at(*shape: int) -> Any:
    array = np.ones(shape)
    array[(0,) * len(shape)] = np.nan
    return array


def _masked() -> Any:
    return np.ma.masked_array(np.ones((2, 2)), mask=[[True, False], [False, False]])


PLAIN: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "object": object,
    "0": lambda: 0,
    "1": lambda: 1,
    "2": lambda: 2,
    "-1": lambda: -1,
    "-3": lambda: -3,
    "2**31": lambda: 2**31,
    "2**32": lambda: 2**32,
    "2**53+1": lambda: 2**53 + 1,
    "2**63-1": lambda: 2**63 - 1,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "-2**63-1": lambda: -(2**63) - 1,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "0.0": lambda: 0.0,
    "-0.0": lambda: -0.0,
    "0.5": lambda: 0.5,
    "1.5": lambda: 1.5,
    "2.0": lambda: 2.0,
    "-0.5": lambda: -0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1e308": lambda: 1e308,
    "-1e308": lambda: -1e308,
    "denormal": lambda: 5e-324,
    "1e-300": lambda: 1e-300,
    "1j": lambda: 1j,
    "1+0j": lambda: 1 + 0j,
    "Decimal": lambda: decimal.Decimal("0.5"),
    "Decimal nan": lambda: decimal.Decimal("sNaN"),
    "Fraction": lambda: fractions.Fraction(1, 2),
    "large Fraction": lambda: fractions.Fraction(10**400),
    "Whole": lambda: Whole(2),
    "Real": lambda: Real(0.5),
    "IntEnum": lambda: Number.TWO,
    "Indexed": Indexed,
    "Floating": Floating,
}

TEXTS: dict[str, Callable[[], Any]] = {
    "''": lambda: "",
    "' '": lambda: " ",
    "'x'": lambda: "x",
    "'1'": lambda: "1",
    "'nan'": lambda: "nan",
    "'None'": lambda: "None",
    "long text": lambda: "a" * 100_000,
    "long name": lambda: "b" * 300,
    "text with NUL": lambda: "a\0b",
    "lone surrogate": lambda: "\udc80",
    "emoji": lambda: "\U0001f9ea",
    "lines": lambda: "a\nb\r\n",
    "control": lambda: "\x1b[31m",
    "right to left": lambda: "\u202etxt",
    "Text": lambda: Text("x"),
    "np.str_": lambda: np.str_("x"),
    "braces": lambda: "{0}%s%(a)d",
    "b''": lambda: b"",
    "b'1'": lambda: b"1",
    "bytearray": lambda: bytearray(b"1"),
    "memoryview": lambda: memoryview(b"12"),
    "np.bytes_": lambda: np.bytes_(b"x"),
    "Path": lambda: pathlib.Path("nowhere"),
    "Path of /dev/null": lambda: pathlib.Path("/dev/null"),
    "Path .": lambda: pathlib.Path(),
    "Path with NUL": lambda: pathlib.Path("a\0b"),
    "PurePath": lambda: pathlib.PureWindowsPath("c:/a"),
    "WrongPath": WrongPath,
}

CONTAINERS: dict[str, Callable[[], Any]] = {
    "[]": list,
    "()": tuple,
    "{}": dict,
    "set()": set,
    "[None]": lambda: [None],
    "[1]": lambda: [1],
    "[0.5, 0.5]": lambda: [0.5, 0.5],
    "[[1.0, 0.5]]": lambda: [[1.0, 0.5]],
    "(1, 1)": lambda: (1, 1),
    "('a', 'b')": lambda: ("a", "b"),
    "['']": lambda: [""],
    "[True, False]": lambda: [True, False],
    "[nan]": lambda: [float("nan")],
    "[1j]": lambda: [1j],
    "[10**400]": lambda: [10**400],
    "[b'1']": lambda: [b"1"],
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "nested": lambda: [[[[[[1.0]]]]]],
    "deep": _deep,
    "cycle": _cycle,
    "mixed": lambda: [1.0, "a", None],
    "Rows": lambda: Rows([0.5]),
    "deque": lambda: deque([0.5, 0.5]),
    "range": lambda: range(2),
    "huge range": lambda: range(2**62),
    "{1: 2}": lambda: {1: 2},
    "{'a': 1}": lambda: {"a": 1},
    "OrderedDict": lambda: OrderedDict(a=1),
    "Counter": lambda: Counter("ab"),
    "mappingproxy": lambda: types.MappingProxyType({"a": 1}),
    "{0.5}": lambda: {0.5},
    "frozenset": lambda: frozenset([1]),
    "namedtuple": lambda: Point(0.5, 0.5),
    "generator": lambda: (float(i) for i in range(2)),
    "raising generator": lambda: (1 / i for i in (1, 0)),
    "iterator": lambda: iter([0.5, 0.5]),
    "map": lambda: map(float, "12"),
    "zip": lambda: zip([1], [2], strict=True),
    "slice": lambda: slice(2),
    "Endless": Endless,
}

THINGS: dict[str, Callable[[], Any]] = {
    "lambda": lambda: lambda *args, **kwargs: None,
    "raising lambda": lambda: lambda *args, **kwargs: 1 / 0,
    "class int": lambda: int,
    "class object": lambda: object,
    "class of torch": lambda: torch.nn.Linear,
    "module": lambda: types,
    "method": lambda: "a".join,
    "partial": lambda: functools.partial(print, end=""),
    "Enum": lambda: Colour.RED,
    "class Enum": lambda: Colour,
    "exception": lambda: ValueError("x"),
    "datetime": lambda: datetime(2020, 1, 1, tzinfo=UTC),
    "date": lambda: date(2020, 1, 1),
    "timedelta": lambda: timedelta(1),
    "uuid": lambda: uuid.UUID(int=0),
    "raises __bool__": lambda: _raising("__bool__"),
    "raises __eq__": lambda: _raising("__eq__"),
    "raises __len__": lambda: _raising("__len__"),
    "raises __array__": lambda: _raising("__array__"),
    "raises __iter__": lambda: _raising("__iter__"),
    "raises __index__": lambda: _raising("__index__"),
    "raises __float__": lambda: _raising("__float__"),
    "raises __repr__": lambda: _raising("__repr__"),
    "raises __str__": lambda: _raising("__str__"),
    "raises __fspath__": lambda: _raising("__fspath__"),
    "raises __getattr__": lambda: _raising("__getattr__"),
    "raises __call__": lambda: _raising("__call__"),
    "NotAnArray": NotAnArray,
    "Linear": lambda: torch.nn.Linear(2, 1),
    "optimizer": lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1),
    "torch.float16": lambda: torch.float16,
    "torch.float32": lambda: torch.float32,
    "np.float32": lambda: np.float32,
    "np.dtype": lambda: np.dtype("float64"),
    "device": lambda: torch.device("cpu"),
    "device meta": lambda: torch.device("meta"),
    "np generator": lambda: np.random.default_rng(0),
    "torch generator": torch.Generator,
}

ARRAYS: dict[str, Callable[[], Any]] = {
    **{
        f"np.{name}": lambda name=name: np.dtype(name).type(1)
        for name in (
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint64",
            "float16",
            "float32",
            "float64",
            "longdouble",
            "complex64",
            "complex128",
        )
    },
    "np.datetime64": lambda: np.datetime64("2020-01-01"),
    "np.nan": lambda: np.float64("nan"),
    "0-d array": lambda: np.array(0.5),
    "0-d whole array": lambda: np.array(2),
    "empty array": lambda: np.zeros((0, 2)),
    "row": lambda: np.ones(2),
    "matrix": lambda: np.eye(2),
    "3-d array": lambda: np.ones((2, 2, 2)),
    "5-d array": lambda: np.ones((1, 2, 1, 2, 1)),
    "wide array": lambda: np.ones((2, 50)),
    "array of nan": lambda: _nan_at(2, 2),
    "array of inf": lambda: np.full((2, 2), np.inf),
    "array of 1e308": lambda: np.full((2, 2), 1e308),
    "array of ints": lambda: np.ones((2, 2), dtype=np.int32),
    "array of bools": lambda: np.ones((2, 2), dtype=bool),
    "array of texts": lambda: np.array([["a", "b"]]),
    "array of objects": lambda: np.array([[1.0, None]], dtype=object),
    "array of numbers as objects": lambda: np.array([[1.0, 1.0], [1.0, 1.0]], dtype=object),
    "array of float16": lambda: np.ones((2, 2), dtype=np.float16),
    "array of longdoubles": lambda: np.ones((2, 2), dtype=np.longdouble),
    "complex array": lambda: np.full((2, 2), 1 + 1j),
    "structured array": lambda: np.zeros(2, dtype=[("a", "f8"), ("b", "i4")]),
    "array of dates": lambda: np.zeros((2, 2), dtype="datetime64[D]"),
    "array of durations": lambda: np.zeros((2, 2), dtype="timedelta64[s]"),
    "masked array": _masked,
    "masked array without mask": lambda: np.ma.masked_array(np.ones((2, 2))),
    "np.matrix": lambda: np.asmatrix(np.ones((2, 2))),
    "big-endian array": lambda: np.ones((2, 2), dtype=">f8"),
    "read-only array": lambda: np.broadcast_to(np.float64(1.0), (2, 2)),
    "negative strides": lambda: np.ones((2, 2))[::-1],
}

TENSORS: dict[str, Callable[[], Any]] = {
    "0-d tensor": lambda: torch.tensor(0.5),
    "0-d whole tensor": lambda: torch.tensor(2),
    "row tensor": lambda: torch.ones(2),
    "tensor": lambda: torch.ones(2, 2, dtype=torch.float64),
    "float32 tensor": lambda: torch.ones(2, 2),
    "float16 tensor": lambda: torch.ones(2, 2, dtype=torch.float16),
    "bfloat16 tensor": lambda: torch.ones(2, 2, dtype=torch.bfloat16),
    "whole tensor": lambda: torch.ones(2, 2, dtype=torch.int64),
    "bool tensor": lambda: torch.ones(2, 2, dtype=torch.bool),
    "complex tensor": lambda: torch.ones(2, 2, dtype=torch.complex128),
    "nan tensor": lambda: torch.full((2, 2), torch.nan),
    "empty tensor": lambda: torch.ones(0, 2),
    "5-d tensor": lambda: torch.ones(1, 2, 1, 2, 1),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "csr tensor": lambda: torch.eye(2).to_sparse_csr(),
    "meta tensor": lambda: torch.ones(2, 2, device="meta"),
    "quantised tensor": lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8),
    "requires grad": lambda: torch.ones(2, 2, dtype=torch.float64, requires_grad=True),
    "expanded tensor": lambda: torch.ones(1, 1).expand(2, 2),
    "inference tensor": lambda: _in_inference_mode(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
}


def _in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 2)


def _frames() -> dict[str, Callable[[], Any]]:
    if pd is None:
        return {}
    return {
        "pandas frame": lambda: pd.DataFrame({"a": [0.5, 0.5], "b": [0.5, 0.5]}),
        "pandas frame of texts": lambda: pd.DataFrame({"a": ["u", "v"]}),
        "pandas frame with gaps": lambda: pd.DataFrame({"a": [1.0, None]}),
        "pandas series": lambda: pd.Series([0.5, 0.5]),
        "pandas NA": lambda: pd.NA,
        "pandas NaT": lambda: pd.NaT,
        "polars frame": lambda: pl.DataFrame({"a": [0.5, 0.5], "b": [0.5, 0.5]}),
        "polars frame with gaps": lambda: pl.DataFrame({"a": [1.0, None]}),
        "polars lazy frame": lambda: pl.LazyFrame({"a": [0.5]}),
        "polars series": lambda: pl.Series([0.5, 0.5]),
    }


KINDS: dict[str, Callable[[], Any]] = {
    **PLAIN,
    **TEXTS,
    **CONTAINERS,
    **THINGS,
    **ARRAYS,
    **TENSORS,
    **_frames(),
}
"""Every kind of value, by its name."""

NEVER = frozenset(
    {
        *("nan", "inf", "-inf", "1j", "1+0j", "Decimal nan", "[nan]", "[1j]", "[b'1']", "np.nan"),
        *("b''", "b'1'", "bytearray", "np.bytes_", "''", "['']", "WrongPath"),
        *("np.complex64", "np.complex128", "complex array", "complex tensor", "masked array"),
        *("array of nan", "array of inf", "nan tensor", "structured array", "array of dates"),
        *(
            "array of durations",
            "np.datetime64",
            "meta tensor",
            "quantised tensor",
            "nested tensor",
        ),
        *("pandas frame with gaps", "polars frame with gaps", "pandas NA", "pandas NaT"),
        *("raising generator", "raises __array__", "raises __iter__", "cycle", "deep", "ragged"),
    }
)
"""Values that are right nowhere but where anything goes."""
