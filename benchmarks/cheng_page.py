"""Write the tables of docs/reproductions/cheng.md again, from the committed results.

    python -m benchmarks.cheng_page

The first table below the heading of a figure is replaced. Figures of losses show the summary of
their results. Figures of matrices show the largest distance of all seeds, and how many seeds have
converged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from icgd.weights.files import whole_file
from icgd_papers.results import stored_numbers

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproductions" / "cheng.md"
FIGURES = {
    "## Figure 1": "cheng-fig1",
    "### Each panel on the other loss": "cheng-losses",
    "## Figure 2": "cheng-fig2",
    "## Figure 3": "cheng-fig3",
    "## Figure 4": "cheng-fig4",
    "## Figure 5": "cheng-fig5",
    "### The curvature": "cheng-curvature",
    "## Figure 6": "cheng-fig6",
}
"""The figure whose table stands below a heading that begins so."""

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)

Line = Mapping[str, str]


def main() -> None:
    text = with_tables(PAGE.read_text(encoding="utf-8"))
    with whole_file(PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")


def with_tables(page: str, figures: Mapping[str, str] = FIGURES) -> str:
    """The page with the tables of all figures that have results."""
    for heading, figure in figures.items():
        results = ROOT / "results" / figure / "laptop.json"
        before, found, after = page.partition(f"\n{heading}")
        if found and results.exists():
            table = _table(rows_of(stored_numbers(results)["summary"]))
            page = before + found + TABLE.sub(lambda _, table=table: table, after, count=1)
    return page


def rows_of(summary: Sequence[Line]) -> list[Line]:
    """The rows that the page shows of a summary."""
    if "near" not in summary[0]:
        return list(summary)
    pairs = dict.fromkeys((row["pair"], row["A"]) for row in summary)
    return [_largest([row for row in summary if (row["pair"], row["A"]) == pair]) for pair in pairs]


def _largest(seeds: Sequence[Line]) -> Line:
    """The largest distances of a pair, and the number of its seeds that are near."""
    first, near = seeds[0], sum(row["near"] == "yes" for row in seeds)
    names = [name for name in first if name not in ("pair", "A", "seed", "near")]
    distances = {name: max(row[name] for row in seeds) for name in names}
    place = {"labels, attention": first["pair"], "A": first["A"]}
    return {**place, **distances, "seeds below 0.1": f"{near} of {len(seeds)}"}


def _table(rows: Sequence[Line]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    main()
