"""A statement of a paper, the check that tries it, and the verdict that follows.

The words of a statement stand in `statements.toml`: its claim, its formula, what has to be
corrected. Its check is a function that yields comparisons:

    @statement("wu", "Theorem 1")
    def gradient_descent_in_2n_plus_4_layers(seed):
        for depth in range(1, 7):
            ...
            yield at_most(error, bound, f"N = {depth}, 8-unit layers", "error of a weight")
            yield printed(norm, printed_norm, f"N = {depth}", "norm (C.1)")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import inf, isnan
from typing import SupportsFloat


class Verdict(Enum):
    """What a check found of a statement; the value says it in words."""

    HOLDS = "holds"
    CORRECTED = "holds with a correction"
    FAILS = "fails as printed"
    PROOF_FAILS = "a step of its proof fails"
    UNDECIDED = "not decided here"
    NOT_EXECUTABLE = "not executable"
    UNCONFIRMED = "the check did not confirm it"
    """A check contradicts what the book says: the code or the book is wrong."""


class About(Enum):
    """What a comparison is about; the value heads its table."""

    STATEMENT = "The statement"
    """As it is right: as printed, or corrected where a correction is given."""
    PRINTED = "As printed"
    """The printed form where it differs; one that fails is a counterexample to the statement."""
    PROOF = "A step of the proof, as printed"
    """One that fails refutes the step, and not the statement."""


@dataclass(frozen=True)
class Comparison:
    """A measured number beside the largest number that is allowed.

    `case` says in words what was measured and on what, `unit` what the numbers count.
    """

    case: str
    measured: float
    allowed: float
    unit: str
    about: About = About.STATEMENT

    @property
    def holds(self) -> bool:
        """Whether the measured number is allowed; NaN is not."""
        return self.measured <= self.allowed

    @property
    def ratio(self) -> float:
        """The measured number over the allowed one; NaN is beyond everything."""
        if isnan(self.measured):
            return inf
        if self.allowed > 0:
            return self.measured / self.allowed
        return 0.0 if self.holds else inf


def at_most(measured: SupportsFloat, allowed: SupportsFloat, case: str, unit: str) -> Comparison:
    """Compare a number with what the statement allows, corrected where it has a correction."""
    return Comparison(case, float(measured), float(allowed), unit)


def printed(measured: SupportsFloat, allowed: SupportsFloat, case: str, unit: str) -> Comparison:
    """Compare a number with what the printed form allows, where the right form differs."""
    return Comparison(case, float(measured), float(allowed), unit, About.PRINTED)


def in_proof(measured: SupportsFloat, allowed: SupportsFloat, case: str, unit: str) -> Comparison:
    """Compare a number with what a printed step of the proof claims."""
    return Comparison(case, float(measured), float(allowed), unit, About.PROOF)


@dataclass(frozen=True)
class Statement:
    """A statement of a paper, in our own words.

    Attributes:
        paper: the key of the paper.
        label: its name in the paper.
        claim: what it says, in a sentence or two.
        formula: the same in symbols.
        correction: what has to be changed before it holds, or which step of its proof fails.
        undecided: why no check here decides it, although it can be tried.
        reason: why nothing of it can be executed.
        gist: the claim in a few words, for the table of the book.
        note: the correction, or why nothing is decided, in a line for that table; needed where
            the whole text is too long for it.
    """

    paper: str
    label: str
    claim: str
    formula: str = ""
    correction: str = ""
    undecided: str = ""
    reason: str = ""
    gist: str = ""
    note: str = ""

    @property
    def key(self) -> str:
        """The name on the command line, such as "wu-theorem-1"."""
        words = "".join(mark if mark.isalnum() or mark in ".-" else " " for mark in self.label)
        return "-".join([self.paper, *words.lower().split()])

    @property
    def in_a_line(self) -> str:
        """What has to be said of the statement beside its numbers, in a line; often nothing."""
        return self.note or self.correction or self.undecided or self.reason


Check = Callable[[int], Iterable[Comparison]]

CHECKS: dict[tuple[str, str], Check] = {}
"""The checks by paper and label; `statement` adds to them."""


def statement(paper: str, label: str) -> Callable[[Check], Check]:
    """Register a function of a seed as the check of a statement."""

    def register(check: Check) -> Check:
        CHECKS[paper, label] = check
        return check

    return register


@dataclass(frozen=True)
class Entry:
    """A statement with the comparisons that its check made."""

    statement: Statement
    comparisons: tuple[Comparison, ...]

    @property
    def verdict(self) -> Verdict:
        """What the comparisons say of the statement."""
        words = self.statement
        if words.reason:
            return Verdict.NOT_EXECUTABLE
        failed = {part.about for part in self.comparisons if not part.holds}
        if About.STATEMENT in failed:
            return Verdict.UNCONFIRMED
        if words.undecided:
            return Verdict.UNDECIDED
        is_tried = bool(self.about(About.STATEMENT))
        if About.PRINTED in failed:
            return Verdict.CORRECTED if is_tried and words.correction else Verdict.FAILS
        if not is_tried:
            return Verdict.UNCONFIRMED
        if About.PROOF in failed:
            return Verdict.PROOF_FAILS
        # A correction without a counterexample is not shown to be one.
        return Verdict.UNCONFIRMED if words.correction else Verdict.HOLDS

    def about(self, about: About) -> list[Comparison]:
        """Return the comparisons about the statement, its printed form, or its proof."""
        return [part for part in self.comparisons if part.about is about]

    @property
    def closest(self) -> Comparison | None:
        """The comparison about the statement that comes nearest to what is allowed."""
        return max(self.about(About.STATEMENT), key=lambda part: part.ratio, default=None)

    @property
    def counterexample(self) -> Comparison | None:
        """The failed comparison that is furthest beyond what the paper allows."""
        failed: Iterator[Comparison] = (
            part
            for part in self.comparisons
            if part.about is not About.STATEMENT and not part.holds
        )
        return max(failed, key=lambda part: part.ratio, default=None)
