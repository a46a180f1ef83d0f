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
from icgd_papers.theorems.book import (
    MODULES,
    check_statement,
    paper_named,
    papers,
    statement_named,
    statements,
    statements_of,
    with_words,
)
from icgd_papers.theorems.statement import About, Comparison, Entry, Statement, Verdict
from icgd_papers.training.tasks import LARGEST_SEED


def theorems(
    paper: Annotated[
        str | None, typer.Argument(help=f"{', '.join(MODULES)}. Default: all of them.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Try one statement, such as cheng-theorem-4.5, in full.")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the statements.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of the data.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Test the statements of the papers, and print what was measured beside what is allowed.

    The whole book takes some minutes. The exit code is 1 if a check contradicts what the book
    says of a statement, else 0.

    Example: icgd theorems --run cheng-proposition-3.1
    """
    if run is not None and paper is not None:
        raise SettingError("Give either a paper or --run, not both.")
    if run is not None and list_all:
        raise SettingError("Give either --list or --run, not both.")
    count("seed", seed, least=0, most=LARGEST_SEED)
    if run is not None:
        chosen = [statement_named(run)]
    else:
        chosen = list(statements().values()) if not paper else statements_of(paper_named(paper))
    if list_all:
        _print_list(chosen, as_json=as_json)
        return
    entries = []
    with progress("trying") as on_progress:
        for statement in chosen:
            entries.append(check_statement(statement, seed))
            on_progress(len(entries), len(chosen))
    if as_json:
        show.print_json([with_words(entry) for entry in entries])
    elif run is not None:
        _print_whole(entries[0])
    else:
        _print_book(entries)
    raise typer.Exit(int(any(entry.verdict is Verdict.UNCONFIRMED for entry in entries)))


def _print_list(chosen: Sequence[Statement], *, as_json: bool) -> None:
    if as_json:
        names = ("key", "label", "claim")
        show.print_json([{name: getattr(item, name) for name in names} for item in chosen])
    else:
        rows = [(item.key, item.claim) for item in chosen]
        show.print_columns("Statements of the theorem book", ("key", "claim"), rows)


def _print_book(entries: Sequence[Entry]) -> None:
    """Print a table for each paper with its corrections below, and count the verdicts."""
    for paper in papers().values():
        of_paper = [entry for entry in entries if entry.statement.paper == paper.key]
        if not of_paper:
            continue
        names = ("statement", "verdict", "measured", "allowed", "as printed")
        show.print_columns(f"{paper.key}: {paper.title}", names, map(_cells, of_paper))
        corrected = [entry.statement for entry in of_paper if entry.statement.correction]
        if corrected:
            rows = [(item.label, item.correction) for item in corrected]
            show.print_rows("What has to be corrected", rows)
    verdicts = Counter(entry.verdict for entry in entries)
    counts = "; ".join(f"{item.value}: {verdicts[item]}" for item in Verdict if verdicts[item])
    is_good = not verdicts[Verdict.UNCONFIRMED]
    show.print_verdict(f"{len(entries)} statements. {counts}.", is_good)


def _cells(entry: Entry) -> tuple[str, ...]:
    """Return the comparison that comes nearest to its limit, and the worst failure of what is
    printed.
    """
    closest, worst = entry.closest, entry.counterexample
    numbers = ("", "") if closest is None else _numbers(closest)
    failure = "" if worst is None else " > ".join(_numbers(worst))
    return entry.statement.label, entry.verdict.value, *numbers, failure


def _numbers(comparison: Comparison) -> tuple[str, str]:
    return show.error_text(comparison.measured), show.error_text(comparison.allowed)


def _print_whole(entry: Entry) -> None:
    """Print a statement in words and symbols, every comparison, and the verdict."""
    statement = entry.statement
    fields = ("claim", "formula", "correction", "undecided", "reason")
    rows = [(name, getattr(statement, name)) for name in fields if getattr(statement, name)]
    show.print_rows(f"{statement.label} of {papers()[statement.paper].title}", rows)
    for about in About:
        comparisons = entry.about(about)
        if comparisons:
            names = ("", "measured", "allowed", "unit", "what was measured")
            cells = [
                ("holds" if item.holds else "FAILS", *_numbers(item), item.unit, item.case)
                for item in comparisons
            ]
            show.print_columns(about.value, names, cells)
    is_good = entry.verdict is not Verdict.UNCONFIRMED
    show.print_verdict(f"{entry.verdict.name}: {entry.verdict.value}.", is_good)
