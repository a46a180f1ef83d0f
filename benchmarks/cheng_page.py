"""Write the tables of docs/reproductions/cheng.md again, from the committed results.

    python -m benchmarks.cheng_page

The first table below the heading of a figure is replaced by the summary of its results. Figures of
matrices have a line for each pair of kernels: the largest distances of all seeds, how the trainings
ended, and what `cheng-curvature` found at the predicted point.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from icgd.weights.files import whole_file
from icgd_papers.runner import stored_results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproductions" / "cheng.md"
FIGURES = {
    "## Figure 1": "cheng-fig1",
    "### Each panel on the other loss": "cheng-losses",
    "## Figure 2": "cheng-fig2",
    "## Figure 3": "cheng-fig3",
    "## Figure 4": "cheng-fig4",
    "## Figure 5": "cheng-fig5",
    "## Figure 6": "cheng-fig6",
    "## The curvature": "cheng-curvature",
}
"""The figure whose table stands below a heading that begins so."""

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def main() -> None:
    text = with_tables(PAGE.read_text(encoding="utf-8"))
    with whole_file(PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")


def with_tables(page: str, figures: Mapping[str, str] = FIGURES) -> str:
    """Return the page with the tables of all figures that have results."""
    for heading, figure in figures.items():
        before, separator, after = page.partition(f"\n{heading}")
        if separator and (summary := summary_of(figure)) is not None:
            if "end" in summary.columns:
                summary = of_pairs(summary, summary_of("cheng-curvature"))
            table = markdown(summary)
            page = before + separator + TABLE.sub(lambda _, table=table: table, after, count=1)
    return page


def summary_of(figure: str) -> pl.DataFrame | None:
    """Read the summary of a figure's laptop preset, if there are results."""
    path = ROOT / "results" / figure / "laptop.json"
    return pl.DataFrame(stored_results(path)["summary"]) if path.exists() else None


def of_pairs(models: pl.DataFrame, points: pl.DataFrame | None) -> pl.DataFrame:
    """Join the seeds of each pair: largest distances and loss, and how many trainings ended how."""
    counts = [
        pl.when((pl.col("end") == end).any()).then(
            pl.format("{} " + end, (pl.col("end") == end).sum())
        )
        for end in ("converged", "moving", "stalled")
    ]
    pairs = models.group_by("pair", "A", maintain_order=True).agg(
        pl.exclude("pair", "A", "seed", "end").max(),
        pl.concat_str(counts, separator=", ", ignore_nulls=True).first().alias("seeds"),
    )
    if points is not None:
        pairs = pairs.join(
            points.select("pair", "A", "best point"), on=["pair", "A"], maintain_order="left"
        )
    return pairs


def markdown(table: pl.DataFrame) -> str:
    """Write a frame of texts as a table."""
    lines = [table.columns, ["---"] * table.width, *table.rows()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    main()
