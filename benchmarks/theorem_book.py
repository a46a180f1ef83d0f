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
from textwrap import indent
from typing import Any

from icgd.cli.show import error_text
from icgd.weights.files import whole_file
from icgd_papers.theorems.book import Paper, from_data, papers, statements, to_data, tried
from icgd_papers.theorems.statement import Comparison, Entry, Statement, Verdict

DOCS = Path(__file__).parents[1] / "docs"
SEED = 0

COMMANDS = """\
    icgd theorems                               # the whole book
    icgd theorems cheng                         # one paper
    icgd theorems --run cheng-proposition-3.1   # one statement in full, with the cases tried
"""

INTRODUCTION = """\
icgd tries what four papers state. Each statement has a check that measures it on small cases, \
beside the number that the statement allows. The sentences and formulas here are ours, not \
quotations.

| verdict | what it means |
| --- | --- |
| holds | every case is within what the statement allows: evidence, not a proof |
| holds with a correction | the printed form has a counterexample; the corrected form holds in \
every case |
| fails as printed | the printed form has a counterexample, and no correction is known |
| a step of its proof fails | the statement was not refuted, but a step of its printed proof has a \
counterexample |
| not decided here | it can be tried, but no number here decides it: unnamed constants, settings \
that the paper does not give, sizes below floating point |
| not executable | it has nothing to measure |
"""

ORIGIN = f"""\
`make theorems` writes this page from `src/icgd_papers/theorems/statements.toml` and from \
[theorems.json](theorems.json), which has every case that was tried, with seed {SEED}. Shown here \
is the case that comes nearest to what is allowed and, where something printed fails, the case \
that is furthest beyond it.
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
        entry = tried(statement, SEED)
        found[key] = to_data(entry)
        print(f"{time.process_time() - start:6.1f} s  {key}: {entry.verdict.value}", flush=True)
    return {"seed": SEED, "statements": found}


def _write(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"Written to docs/{path.name}")


def render(chosen: Iterable[Statement], data: Mapping[str, Any]) -> str:
    """The page of these statements, with the findings that `data` holds for each key."""
    entries = [from_data(statement, data["statements"][statement.key]) for statement in chosen]
    parts = ["# The theorem book\n", INTRODUCTION, COMMANDS, ORIGIN, _counts(entries)]
    for paper in papers().values():
        own = [entry for entry in entries if entry.statement.paper == paper.key]
        parts += [_paper_head(paper), *([_summary(own)] if own else []), *map(_section, own)]
    return "\n".join(parts)


def _counts(entries: Sequence[Entry]) -> str:
    """How many statements of every paper have which verdict."""
    rows = []
    for paper in papers().values():
        own = Counter(each.verdict for each in entries if each.statement.paper == paper.key)
        link = f"[{paper.key}](#{paper.key})"
        rows.append((link, str(own.total()), *(str(own[verdict]) for verdict in Verdict)))
    return _table(("paper", "statements", *(verdict.value for verdict in Verdict)), rows)


def _paper_head(paper: Paper) -> str:
    """The paper's key, title, authors, venue and number, as far as they are known."""
    arxiv = paper.arxiv and f"[arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})"
    known = [f"*{paper.title}*", paper.authors or "Authors unknown", paper.venue, arxiv]
    text = ". ".join(part for part in known if part) + "."
    if paper.earlier_title:
        text += f" An earlier version was called *{paper.earlier_title}*."
    if paper.numbering:
        text += f" {paper.numbering}"
    return f"## {paper.key}\n\n{text}\n"


def _summary(entries: Sequence[Entry]) -> str:
    names = ("statement", "verdict", "measured", "allowed", "as printed")
    return _table(names, [_summary_cells(entry) for entry in entries])


def _summary_cells(entry: Entry) -> tuple[str, ...]:
    closest, worst = entry.closest, entry.counterexample
    numbers = ("", "") if closest is None else _numbers(closest)
    failure = "" if worst is None else " > ".join(_numbers(worst))
    label = f"[{_escaped(entry.statement.label)}](#{entry.statement.key})"
    return label, entry.verdict.value, *numbers, _escaped(failure)


def _section(entry: Entry) -> str:
    """A statement in words and symbols, its verdict, and the comparison that tells most."""
    statement, verdict = entry.statement, entry.verdict.value.capitalize()
    notes = [statement.correction, statement.undecided, statement.reason]
    parts = [
        f'### <a id="{statement.key}"></a>{_escaped(statement.label)}',
        _escaped(statement.claim),
        indent(statement.formula, "    "),
        " ".join([f"**{verdict}.**", *(_escaped(note) for note in notes if note)]),
    ]
    return "\n\n".join(part for part in parts if part) + f"\n{_measured(entry)}"


def _measured(entry: Entry) -> str:
    closest, worst = entry.closest, entry.counterexample
    lines = [] if closest is None else [f"- {_sentence(closest)}"]
    if worst is not None:
        lines.append(f"- {worst.about.value}: {_sentence(worst)}")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _sentence(part: Comparison) -> str:
    measured, allowed = _numbers(part)
    return f"{_escaped(part.case)}: {measured}, allowed {allowed} ({_escaped(part.unit)})"


def _numbers(part: Comparison) -> tuple[str, str]:
    return error_text(part.measured), error_text(part.allowed)


def _escaped(text: str) -> str:
    """Text in which no mark means anything to Markdown."""
    return re.sub(r"([\\`*_<>|~$])", r"\\\1", text)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
