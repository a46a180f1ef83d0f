"""`icgd theorems`: what the papers state, beside what is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.progress import progress
from icgd.errors import SettingError
from icgd.problems.settings import count
from icgd_papers.theorems.book import Entry, paper_named, statement_named, statements_of, tried
from icgd_papers.theorems.papers import PAPERS
from icgd_papers.theorems.registry import STATEMENTS
from icgd_papers.theorems.statement import Comparison, Statement, Verdict
from icgd_papers.training.tasks import LARGEST_SEED


def theorems(
    paper: Annotated[
        str | None, typer.Argument(help=f"{', '.join(PAPERS)}. Default: all of them.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Try one statement, such as cheng-theorem-4.5, in full.")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the statements.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of the data.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Try the statements of the papers, and print what was measured beside what is allowed.

    The whole book takes some minutes. The exit code is 1 if a check does not confirm a statement
    or its correction, else 0.

    Example: icgd theorems --run cheng-proposition-3.1
    """
    chosen = _chosen(paper, run, list_all=list_all)
    count("seed", seed, least=0, most=LARGEST_SEED)
    if list_all:
        _print_list(chosen, as_json=as_json)
        return
    entries = _tried(chosen, seed)
    if as_json:
        show.print_json([entry.to_data() for entry in entries])
    elif run is not None:
        _print_whole(entries[0])
    else:
        _print_book(entries)
    raise typer.Exit(int(any(entry.verdict is Verdict.UNCONFIRMED for entry in entries)))


def _chosen(paper: str | None, run: str | None, *, list_all: bool) -> list[Statement]:
    """The one statement to run, or those of a paper, or all."""
    if run is not None and paper is not None:
        raise SettingError("Give either a paper or --run, not both.")
    if run is not None and list_all:
        raise SettingError("Give either --list or --run, not both.")
    if run is not None:
        return [statement_named(run)]
    return list(STATEMENTS.values()) if paper is None else statements_of(paper_named(paper))


def _tried(statements: Sequence[Statement], seed: int) -> list[Entry]:
    entries = []
    with progress("trying") as on_progress:
        for statement in statements:
            entries.append(tried(statement, seed))
            on_progress(len(entries), len(statements))
    return entries


def _print_list(statements: Sequence[Statement], *, as_json: bool) -> None:
    if as_json:
        show.print_json(
            [{"key": each.key, "label": each.label, "claim": each.claim} for each in statements]
        )
    else:
        rows = [(each.key, each.claim) for each in statements]
        show.print_columns("Statements of the theorem book", ("key", "claim"), rows)


def _print_book(entries: Sequence[Entry]) -> None:
    """A table for each paper, its corrections below, and a count of the verdicts at the end."""
    for paper in PAPERS.values():
        own = [entry for entry in entries if entry.statement.paper == paper.key]
        if own:
            names = ("statement", "verdict", "measured", "allowed", "as printed")
            show.print_columns(f"{paper.key}: {paper.title}", names, map(_cells, own))
            _print_corrections(own)
    verdicts = Counter(entry.verdict for entry in entries)
    listed = "; ".join(f"{each.value}: {verdicts[each]}" for each in Verdict if verdicts[each])
    is_good = not verdicts[Verdict.UNCONFIRMED]
    show.print_verdict(f"{len(entries)} statements. {listed}.", is_good)


def _cells(entry: Entry) -> tuple[str, ...]:
    """The comparison that comes nearest to its limit, and the printed form's worst failure."""
    right, printed = entry.telling, entry.counterexample
    numbers = ("", "") if right is None else _numbers(right)
    failure = "" if printed is None else " > ".join(_numbers(printed))
    return entry.statement.label, _word(entry.verdict), *numbers, failure


def _word(verdict: Verdict) -> str:
    """The verdict in a word or two."""
    return verdict.name.lower().replace("_", " ")


def _numbers(part: Comparison) -> tuple[str, str]:
    return show.error_text(part.measured), show.error_text(part.allowed)


def _print_corrections(entries: Sequence[Entry]) -> None:
    rows = [
        (entry.statement.label, entry.statement.correction)
        for entry in entries
        if entry.statement.correction is not None
    ]
    if rows:
        show.print_rows("What has to be corrected", rows)


def _print_whole(entry: Entry) -> None:
    """A statement in words and symbols, its verdict, and every comparison."""
    statement = entry.statement
    notes = {"correction": statement.correction, "reason": statement.reason}
    rows = [("claim", statement.claim), ("formula", statement.formula)]
    rows += [(name, text) for name, text in notes.items() if text is not None]
    show.print_rows(f"{statement.label} of {PAPERS[statement.paper].title}", rows)
    if entry.finding is not None:
        _print_comparisons("As it is right", entry.finding.right)
        _print_comparisons("As it is printed", entry.finding.printed)
    is_good = entry.verdict is not Verdict.UNCONFIRMED
    show.print_verdict(f"{entry.verdict.name}: {entry.verdict.value}.", is_good)


def _print_comparisons(title: str, parts: Sequence[Comparison]) -> None:
    names = ("", "measured", "allowed", "unit", "what was measured")
    rows = [
        ("holds" if part.holds else "FAILS", *_numbers(part), part.unit, part.case)
        for part in parts
    ]
    if rows:
        show.print_columns(title, names, rows)
