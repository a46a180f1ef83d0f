"""Arguments that are checked against the types of a signature."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, SettingError
from icgd.problems.arguments import checked, checked_but
from icgd.problems.domain import Domain


@checked
def echo(
    whole: int = 0,
    number: float | None = None,
    *,
    text: str = "a",
    truth: bool = False,
    row: tuple[int, ...] = (),
    pair: tuple[float, str] = (0.0, "a"),
    names: Sequence[str] = (),
    path: str | os.PathLike[str] | None = None,
    folder: Path = Path(),
    call: Callable[[], None] | None = None,
    table: Mapping[str, Any] | None = None,
    domain: Domain | None = None,
    anything: Any = None,
) -> dict[str, Any]:
    """All that it is given."""
    return dict(locals())


@checked
def product(
    x: Float[Tensor, "*tasks row width"], y: Float[Tensor, "*tasks width column"]
) -> Tensor:
    return x @ y


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("whole", np.int64(7), 7),
        ("whole", torch.tensor(7), 7),
        ("number", np.float32(0.5), 0.5),
        ("number", Fraction(1, 4), 0.25),
        ("number", 3, 3),
        ("number", None, None),
        ("truth", np.bool_(True), True),
        ("row", np.array([1, 2]), (1, 2)),
        ("row", (i for i in (1, 2)), (1, 2)),
        ("pair", [np.float64(2.0), "b"], (2.0, "b")),
        ("names", ["a", "b"], ("a", "b")),
        ("path", "a", "a"),
        ("folder", "a", Path("a")),
        ("table", {"a": 1}, {"a": 1}),
        ("domain", Domain(1.0, 2.0), Domain(1.0, 2.0)),
        ("anything", b"1", b"1"),
    ],
)
def test_right_values_are_handed_on_as_plain_ones(name, given, taken):
    found = echo(**{name: given})[name]
    assert found == taken
    assert type(found) is type(taken)


class Hostile:
    """It raises whatever it is asked."""

    def __fspath__(self) -> str:
        raise RuntimeError

    def __index__(self) -> int:
        raise RuntimeError


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("whole", True, "whole must be a whole number, got True."),
        ("whole", 1.5, "whole must be a whole number, got 1.5."),
        ("whole", 2**63, "whole must be at most 9223372036854775807, got 9223372036854775808."),
        ("whole", Hostile(), "whole must be a whole number, got <"),
        ("number", "1", "number must be a number, got '1'."),
        ("number", 1j, "number must be a number, got 1j."),
        ("number", 10**400, "number must be a number that float64 can hold, got 1000"),
        ("text", "", "text must be a text, got ''."),
        ("text", b"a", "text must be a text, got b'a'."),
        ("truth", 1, "truth must be of type bool, got 1."),
        ("row", 1, "row must be a row, got 1."),
        ("row", {1}, "row must be a row, got {1}."),
        ("row", [1, "a"], "row[1] must be a whole number, got 'a'."),
        ("row", (1 / i for i in (0,)), "row cannot be read as a row (ZeroDivisionError: "),
        ("row", range(2**62), "row has 4,611,686,018,427,387,904 entries; at most 10,000,000"),
        ("pair", [1.0], "pair has 1 entries; expected 2."),
        ("names", "ab", "names must be a row, got 'ab'."),
        ("path", "", "path must be a path, got ''."),
        ("path", "a\0b", "path must be a path, got 'a\\x00b'."),
        ("path", b"a", "path must be a path, got b'a'."),
        ("path", Hostile(), "path must be a path, got <"),
        ("path", "a" * 300, "path must be a path with names of up to 255 bytes, got 'aaa"),
        ("call", 1, "call must be a function, got 1."),
        ("table", {1: 2}, "table must be a mapping of texts, got {1: 2}."),
        ("domain", Domain, "domain must be of type Domain, got <class "),
    ],
)
def test_wrong_values_are_refused_by_name(name, given, words):
    with pytest.raises(SettingError) as caught:
        echo(**{name: given})
    assert str(caught.value).startswith(words)


def test_arguments_by_place_are_checked_too():
    with pytest.raises(SettingError, match="number must be a number, got 'a'"):
        echo(1, "a")
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        echo(other=1)


def test_an_argument_may_be_left_to_the_function():
    lenient = checked_but("whole")(echo.__wrapped__)
    assert lenient(whole="a", number=1.0)["whole"] == "a"
    with pytest.raises(SettingError, match="number must be"):
        lenient(whole="a", number="a")


def test_fields_of_a_dataclass_are_checked():
    @checked
    @dataclass(frozen=True)
    class Size:
        width: int

    assert Size(np.int32(3)).width == 3
    with pytest.raises(SettingError, match=r"width must be a whole number, got '3'\."):
        Size("3")


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([[1.0]], SettingError, "x must be a float tensor of at least 2 axes, got"),
        (torch.ones(2), SettingError, "x must be a float tensor of at least 2 axes, got"),
        (torch.ones(2, 2).long(), SettingError, "x must be a float tensor of at least 2 axes"),
        (torch.ones(2, 2, device="meta"), SettingError, "x must be a float tensor of at least"),
        (torch.eye(2).to_sparse(), SettingError, "x must be a float tensor of at least 2 axes"),
        (torch.ones(2, 5), DataError, r"y has shape \(2, 3\); expected 5 along the axis width"),
        (torch.ones(2, 2).double(), DataError, "y has dtype float32, and the other data float64"),
    ],
)
def test_tensors_have_the_axes_that_are_in_the_signature(x, error, words):
    assert product(torch.ones(4, 1, 2), torch.ones(2, 3)).shape == (4, 1, 3)
    with pytest.raises(error, match=words):
        product(x, torch.ones(2, 3))
