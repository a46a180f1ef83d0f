from dataclasses import dataclass
from typing import ClassVar

from icgd.program.instructions import (
    Accumulated,
    Added,
    Changed,
    Evaluated,
    Read,
    Use,
    Written,
    names_used,
)


@dataclass(frozen=True)
class Inner:
    slots: tuple[Read, ...]
    function: Evaluated
    scale: float = 1.0


@dataclass(frozen=True)
class Verb:
    title: str
    inner: Inner
    others: tuple[Inner, ...]
    source: Read | None
    write: Written
    add: Added
    sum: Accumulated
    change: Changed
    one: ClassVar[Read] = "one"


VERB = Verb("t", Inner(("a", "b"), "f"), (Inner(("c",), "g"),), None, "w", "p", "s", "h")


def test_names_are_found_by_their_use_in_the_order_of_the_fields():
    assert names_used(VERB, Use.READ) == ("a", "b", "c", "one")
    assert names_used(VERB, Use.READ, Use.CHANGE) == ("a", "b", "c", "h", "one")
    assert names_used(VERB, Use.WRITE, Use.ADD, Use.ACCUMULATE) == ("w", "p", "s")
    assert names_used(VERB, Use.EVALUATE) == ("f", "g")


def test_a_field_that_may_be_none_names_something_only_if_it_is_not():
    named = Verb("t", Inner((), "f"), (), "a", "w", "p", "s", "h")
    assert names_used(named, Use.READ) == ("a", "one")


def test_a_field_without_a_use_names_nothing():
    everything = names_used(VERB, *Use)
    assert "t" not in everything
    assert set(everything) == {"a", "b", "c", "f", "g", "h", "one", "p", "s", "w"}
