"""The theorem book: all statements of all papers, and what their checks find."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from math import isfinite
from typing import Any

from icgd.errors import UnknownNameError, quoted
from icgd_papers.theorems.statement import CHECKS, About, Comparison, Entry, Statement

MODULES = ("wu", "wang", "cheng", "cot")
"""The packages of the checks, in the order of the book."""


@dataclass(frozen=True)
class Paper:
    """A paper; what is not known of it is empty.

    Attributes:
        key: what icgd calls it.
        title: its title.
        authors: their names.
        venue: where it appeared.
        arxiv: its number there.
        earlier_title: the title of an earlier version.
        numbering: the version whose numbers of statements and equations the book follows.
    """

    key: str
    title: str
    authors: str = ""
    venue: str = ""
    arxiv: str = ""
    earlier_title: str = ""
    numbering: str = ""


@cache
def _book() -> tuple[dict[str, Paper], dict[str, Statement]]:
    """Read the papers and the statements from statements.toml, in the order of the file."""
    for name in MODULES:  # importing the checks registers them
        import_module(f"icgd_papers.theorems.{name}")
    text = files("icgd_papers.theorems").joinpath("statements.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    papers = {key: Paper(key, **words) for key, words in data["papers"].items()}
    statements = [
        Statement(**{name: text.strip() for name, text in words.items()})
        for words in data["statement"]
    ]
    return papers, {statement.key: statement for statement in statements}


def papers() -> dict[str, Paper]:
    """Return the papers by the names that icgd gives them."""
    return _book()[0]


def statements() -> dict[str, Statement]:
    """Every statement by its key, in the order of the book."""
    return _book()[1]


def paper_named(key: str) -> Paper:
    """Return the paper that icgd calls `key`."""
    if key not in papers():
        raise UnknownNameError.of("paper", key, known=list(papers()))
    return papers()[key]


def statements_of(paper: Paper) -> list[Statement]:
    """Return the statements of a paper, in its order."""
    return [statement for statement in statements().values() if statement.paper == paper.key]


def statement_named(key: str) -> Statement:
    """Return the statement of this key, such as "wu-theorem-1"."""
    if key in statements():
        return statements()[key]
    paper = key.partition("-")[0]
    if paper not in papers():
        where = f" in the key {quoted(key)}"
        raise UnknownNameError.of("paper", paper, known=list(papers()), where=where)
    known = [statement.key for statement in statements_of(papers()[paper])]
    raise UnknownNameError.of("statement", key, known=known)


def check_statement(statement: Statement, seed: int) -> Entry:
    """Run the check of a statement with this seed."""
    if statement.reason:
        return Entry(statement, ())
    check = CHECKS[statement.paper, statement.label]
    return Entry(statement, tuple(check(seed)))


def to_data(entry: Entry) -> dict[str, Any]:
    """Turn an entry into JSON data: its verdict and all comparisons."""
    comparisons = [
        {
            "about": part.about.name,
            "case": part.case,
            "measured": _number(part.measured),
            "allowed": _number(part.allowed),
            "unit": part.unit,
            "holds": part.holds,
        }
        for part in entry.comparisons
    ]
    return {"verdict": entry.verdict.name, "comparisons": comparisons}


def with_words(entry: Entry) -> dict[str, Any]:
    """Turn an entry into JSON data, with the statement in words."""
    words = {name: text for name, text in asdict(entry.statement).items() if text}
    return {"key": entry.statement.key, **words, **to_data(entry)}


def from_data(statement: Statement, data: Mapping[str, Any]) -> Entry:
    """Read what `to_data` wrote."""
    comparisons = tuple(
        Comparison(
            part["case"],
            float(part["measured"]),
            float(part["allowed"]),
            part["unit"],
            About[part["about"]],
        )
        for part in data["comparisons"]
    )
    return Entry(statement, comparisons)


def _number(value: float) -> float | str:
    return value if isfinite(value) else str(value)
