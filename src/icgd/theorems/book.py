"""The theorem book at work: statements are looked up and tried, and findings kept as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite, isnan
from typing import Any

from icgd.errors import UnknownNameError, brief
from icgd.theorems.papers import PAPERS, Paper
from icgd.theorems.registry import STATEMENTS
from icgd.theorems.statement import Comparison, Finding, Statement, Verdict


@dataclass(frozen=True)
class Entry:
    """A statement with what its check found; None if it has no check."""

    statement: Statement
    finding: Finding | None

    @property
    def verdict(self) -> Verdict:
        return self.statement.verdict(self.finding)

    @property
    def telling(self) -> Comparison | None:
        """The comparison of the right form that comes nearest to what is allowed."""
        return max(self.finding.right, key=_share, default=None) if self.finding else None

    @property
    def counterexample(self) -> Comparison | None:
        """The comparison of the printed form that is furthest beyond what is allowed."""
        printed = self.finding.printed if self.finding else ()
        return max((part for part in printed if not part.holds), key=_share, default=None)

    def to_data(self) -> dict[str, Any]:
        """The statement in words, its verdict, and all comparisons."""
        words = asdict(self.statement)
        del words["check"]
        verdict = {"verdict": self.verdict.name, "meaning": self.verdict.value}
        return {"key": self.statement.key, **words, **verdict, **to_data(self.finding)}


def _share(part: Comparison) -> float:
    """The measured number as a share of the allowed one; NaN is beyond everything."""
    if isnan(part.measured):
        return inf
    if part.allowed > 0:
        return part.measured / part.allowed
    return 0.0 if part.holds else inf


def paper_named(key: str) -> Paper:
    """The paper that icgd calls `key`."""
    if key not in PAPERS:
        raise UnknownNameError.of("paper", key, known=list(PAPERS))
    return PAPERS[key]


def statements_of(paper: Paper) -> list[Statement]:
    """The statements of a paper, in its order."""
    return [statement for statement in STATEMENTS.values() if statement.paper == paper.key]


def statement_named(key: str) -> Statement:
    """The statement of this key, such as "wu-theorem-1"."""
    if key in STATEMENTS:
        return STATEMENTS[key]
    paper = key.partition("-")[0]
    if paper not in PAPERS:
        where = f" in the key {brief(key)}"
        raise UnknownNameError.of("paper", paper, known=list(PAPERS), where=where)
    known = [statement.key for statement in statements_of(PAPERS[paper])]
    raise UnknownNameError.of("statement", key, known=known)


def tried(statement: Statement, seed: int) -> Entry:
    """The statement with what its check finds for this seed."""
    return Entry(statement, None if statement.check is None else statement.check(seed))


def to_data(finding: Finding | None) -> dict[str, Any]:
    """A finding as JSON data; without one both lists are empty."""
    if finding is None:
        return {"right": [], "printed": []}
    parts = {"right": finding.right, "printed": finding.printed}
    return {name: [_comparison_data(part) for part in found] for name, found in parts.items()}


def _comparison_data(part: Comparison) -> dict[str, Any]:
    numbers = {"measured": part.measured, "allowed": part.allowed}
    texts = {name: value if isfinite(value) else str(value) for name, value in numbers.items()}
    return {"case": part.case, **texts, "unit": part.unit, "holds": part.holds}


def from_data(data: Mapping[str, Any]) -> Finding | None:
    """The finding that `to_data` wrote; None if there are no comparisons."""
    right, printed = (tuple(map(_comparison, data[name])) for name in ("right", "printed"))
    return Finding(right, printed) if right or printed else None


def _comparison(data: Mapping[str, Any]) -> Comparison:
    measured, allowed = float(data["measured"]), float(data["allowed"])
    return Comparison(data["case"], measured, allowed, data["unit"])
