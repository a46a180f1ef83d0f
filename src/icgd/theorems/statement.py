"""A statement of a paper, the check that tries it, and the verdict that follows from the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What a check found of a statement; the value says it in words."""

    HOLDS = "holds"
    CORRECTED = "holds with a correction"
    FAILS = "fails as printed"
    NOT_EXECUTABLE = "cannot be executed"
    UNCONFIRMED = "the check did not confirm it"


@dataclass(frozen=True)
class Comparison:
    """A measured number beside the number that the statement allows it to be at most.

    `case` says in words what was measured, on what, and `unit` what the two numbers count.
    """

    case: str
    measured: float
    allowed: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the measured number is allowed; a NaN is not."""
        return self.measured <= self.allowed


@dataclass(frozen=True)
class Finding:
    """What a check measured: of the form that is right, and of the printed form where it differs.

    Where nothing is misprinted, `printed` is empty and `right` is about the statement itself.
    Where no correction is known, `right` is empty. A comparison in `printed` that does not hold is
    a counterexample.
    """

    right: tuple[Comparison, ...]
    printed: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class Statement:
    """A numbered statement of a paper.

    `claim` is one sentence and `formula` says the same in symbols. `check` measures it for a seed;
    a statement that cannot be executed has none, and a `reason` instead. `correction` says what
    has to be changed before the statement holds.
    """

    paper: str
    label: str
    claim: str
    formula: str
    check: Callable[[int], Finding] | None = None
    correction: str | None = None
    reason: str | None = None

    @property
    def key(self) -> str:
        """The name on the command line, such as "wu-theorem-1"."""
        words = "".join(mark if mark.isalnum() or mark in ".-" else " " for mark in self.label)
        return "-".join([self.paper, *words.lower().split()])

    def verdict(self, finding: Finding | None) -> Verdict:
        """The verdict on what the check found; None if there is no check."""
        if finding is None:
            return Verdict.NOT_EXECUTABLE
        if not all(comparison.holds for comparison in finding.right):
            return Verdict.UNCONFIRMED
        if all(comparison.holds for comparison in finding.printed):
            # A misprint without a counterexample is not shown to be one.
            return Verdict.UNCONFIRMED if self.correction or not finding.right else Verdict.HOLDS
        return Verdict.CORRECTED if finding.right and self.correction else Verdict.FAILS
