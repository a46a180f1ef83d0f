"""Try every statement of the theorem book, and write docs/theorems.json and .md: `make theorems`.

The page is made from the statements and the JSON file alone. `python -m benchmarks.theorem_book
--page` writes it again from the last findings, for which every statement must have one.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from icgd.cli.show import error_text
from icgd.weights.files import whole_file
from icgd_papers.theorems.book import Paper, check_statement, from_data, papers, statements, to_data
from icgd_papers.theorems.statement import About, Comparison, Entry, Statement, Verdict

DOCS = Path(__file__).parents[1] / "docs"
SEED = 0

COMMANDS = """\
    icgd theorems                               # the whole book
    icgd theorems --run cheng-proposition-3.1   # one statement in full, with the cases tried
"""

INTRODUCTION = """\
What four papers state, tried on small cases: a number is measured for each statement and set \
beside the largest one that the statement allows. A number within it is evidence, not a proof. \
The words are ours, not quotations.

| verdict | meaning |
| --- | --- |
| holds | every case is within what the statement allows |
| corrected | the printed form has a counterexample; the corrected form holds in every case |
| fails | the printed form has a counterexample, and no correction is known |
| proof fails | the statement was not refuted, a step of its printed proof was |
| undecided | no number here decides it: unnamed constants, settings that the paper does not give, \
sizes below floating point |
| not tried | a definition or an open question |
"""

ORIGIN = """\
Each row shows the case that comes nearest to what is allowed. The last column says what is \
wrong with the printed statement or its proof, with the worst counterexample. Every case, formula \
and correction in full:
"""

COMMANDS = """\
    icgd theorems --run cheng-proposition-3.1   # one statement
"""

FOOT = f"""\
The numbers are those of [theorems.json](theorems.json), seed {SEED}; `make theorems` tries all \
again and writes both files.
"""


def main(arguments: Sequence[str]) -> None:
    path = DOCS / "theorems.json"
    if list(arguments) != ["--page"]:
        _write(path, json.dumps(_try_all(), indent=1, allow_nan=False) + "\n")
    data = json.loads(path.read_text(encoding="utf-8"))
    if missing := statements().keys() - data["statements"].keys():
        raise SystemExit(f"{path} has no finding of {', '.join(missing)}: run `make theorems`.")
    _write(DOCS / "theorems.md", render(statements().values(), data))


def _try_all() -> dict[str, Any]:
    """What every check finds, with its verdict."""
    found = {}
    for key, statement in statements().items():
        start = time.process_time()
        entry = check_statement(statement, SEED)
        found[key] = to_data(entry)
        print(f"{time.process_time() - start:6.1f} s  {key}: {entry.verdict.value}", flush=True)
    return {"seed": SEED, "statements": found}


def _write(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"Written to docs/{path.name}")


def render(chosen: Iterable[Statement], data: Mapping[str, Any]) -> str:
    """Return the page of these statements, with the findings that `data` holds for each key."""
    entries = [from_data(statement, data["statements"][statement.key]) for statement in chosen]
    parts = ["# The theorem book\n", INTRODUCTION, _counts(entries), ORIGIN, COMMANDS, FOOT]
    for paper in papers().values():
        rows = [_row(entry) for entry in entries if entry.statement.paper == paper.key]
        parts += [_paper_head(paper), *([_table(COLUMNS, rows)] if rows else [])]
    return "\n".join(parts)


def _counts(entries: Sequence[Entry]) -> str:
    """Count the statements of every paper by verdict; verdicts that none has are left out."""
    verdicts = [v for v in Verdict if any(entry.verdict is v for entry in entries)]
    rows = []
    for paper in papers().values():
        counts = Counter(entry.verdict for entry in entries if entry.statement.paper == paper.key)
        link = f"[{paper.key}](#{paper.key})"
        rows.append((link, str(counts.total()), *(str(counts[verdict]) for verdict in verdicts)))
    return _table(("paper", "statements", *(IN_BRIEF[verdict] for verdict in verdicts)), rows)


def _paper_head(paper: Paper) -> str:
    """Return the paper's key, title and number, and whose numbering of statements is used."""
    link = f" ([arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv}))" if paper.arxiv else ""
    text = f"*{paper.title}*{link}."
    if paper.earlier_title:
        text += f" Earlier title: *{paper.earlier_title}*."
    if paper.numbering:
        text += f" Statements are numbered as in {paper.numbering}."
    return f"## {paper.key}\n\n{text}\n"


WRONG = {About.PRINTED: "Printed", About.PROOF: "Proof"}
"""What a counterexample refutes, in a word."""

IN_BRIEF = {
    Verdict.HOLDS: "holds",
    Verdict.CORRECTED: "corrected",
    Verdict.FAILS: "fails",
    Verdict.PROOF_FAILS: "proof fails",
    Verdict.UNDECIDED: "undecided",
    Verdict.NOT_EXECUTABLE: "not tried",
    Verdict.UNCONFIRMED: "**not confirmed**",
}
"""The verdicts in the words of the page."""

COLUMNS = ("statement", "it says", "verdict", "measured ≤ allowed", "what differs")


def _row(entry: Entry) -> tuple[str, ...]:
    """A statement in a few words, its verdict, its closest case, and what is wrong with it."""
    statement, closest, worst = entry.statement, entry.closest, entry.counterexample
    label = f'<a id="{statement.key}"></a>{_escaped(statement.label)}'
    measured = "" if closest is None else _comparison(closest, "≤")
    notes = [statement.in_a_line] if statement.in_a_line else []
    if worst is not None:
        is_same = closest is not None and worst.unit == closest.unit
        notes.append(f"{WRONG[worst.about]}: {_comparison(worst, '>', has_unit=not is_same)}")
    note = " ".join(notes)
    verdict = IN_BRIEF[entry.verdict]
    return label, _escaped(statement.gist), verdict, _escaped(measured), _escaped(note)


def _comparison(part: Comparison, sign: str, *, has_unit: bool = True) -> str:
    numbers = f"{error_text(part.measured)} {sign} {error_text(part.allowed)}"
    return f"{numbers} ({part.unit})" if has_unit else numbers


def _escaped(text: str) -> str:
    """Return text in which no mark means anything to Markdown.

    The site's Markdown knows no backslash before <, > and ~, so these are entities.
    """
    text = text.replace("<", "&lt;").replace(">", "&gt;").replace("~", "&#126;")
    return re.sub(r"([\\`*_|$])", r"\\\1", text)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
