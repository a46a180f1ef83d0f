"""Write the tables of two pages about wu again, from the committed results.

    python -m benchmarks.wu_page

The first table below a heading is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl

from icgd.weights.files import whole_file
from icgd_papers.runner import stored_results, stored_rows
from icgd_papers.studies.wu_sizes import dimensions

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reproductions"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def main() -> None:
    for name in TABLES:
        page = PAGES / name
        text = with_tables(name, page.read_text(encoding="utf-8"))
        with whole_file(page) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print(f"Written to {page.relative_to(ROOT)}")


def with_tables(name: str, page: str) -> str:
    """Return the page of this name with new tables."""
    for heading, frame in TABLES[name]().items():
        rows = [frame.columns, ["---"] * frame.width, *frame.rows()]
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        start = page.index(f"\n{heading}")
        old_table = TABLE.findall(page, start)[0]
        page = page[:start] + page[start:].replace(old_table, table, 1)
    return page


def figures() -> dict[str, pl.DataFrame]:
    """Return the tables of the page about the paper's figures."""
    return {
        "## Figures 1 and 2": curves("wu-fig1", "wu-fig2"),
        "## Figures 3 and 4": curves("wu-fig3", "wu-fig4")[1:],  # the first row is in Figure 1
        "## Figure 5": summary("wu-fig5"),
        "## FLOPs": summary("wu-flops"),
        "## Is it gradient descent?": mechanism(),
        "## What the paper does not say": choices(),
    }


def open_questions() -> dict[str, pl.DataFrame]:
    """Return the tables of the page about what the paper leaves open."""
    checks = summary("wu-checks")

    def of_check(name: str, *columns: str) -> pl.DataFrame:
        ends = ("error of a step", "its bound", "longest step", "whole run, proved", "loss")
        return checks.filter(check=name).select(*columns, *ends)

    teachers = summary("wu-teachers")
    is_near = (pl.col("layers") == "3") | pl.col("width").is_in(["5", "20"])
    layers = ("layers a step", "2N + 4")
    return {
        "## Width": dimensions(stored_rows(ROOT / "results" / "wu-sizes" / "laptop.json")),
        "## Narrower networks": of_check("width", "network", "inside", "largest padded weight"),
        "## Other teachers": teachers.filter(is_near),
        "## FLOPs of a step": summary("wu-sizes"),
        "## Deep networks": of_check("depth", "network", "construction", *layers),
        "## Real data": of_check("data", "network", "data", "loss function", *layers),
        "## Kinks": of_check("activation", "network", "loss function", "beyond the last knot"),
        "## Products": summary("wu-products"),
    }


TABLES: dict[str, Callable[[], dict[str, pl.DataFrame]]] = {
    "wu.md": figures,
    "wu_open_questions.md": open_questions,
}


def summary(figure: str) -> pl.DataFrame:
    """Return the summary of a figure's committed results."""
    return pl.DataFrame(stored_results(ROOT / "results" / figure / "laptop.json")["summary"])


def curves(relu: str, softmax: str) -> pl.DataFrame:
    """Put the decoders of two figures beside the baselines, which they share."""
    decoders = {"ReLU": summary(relu), "softmax": summary(softmax)}
    columns = decoders["ReLU"].select("layers", "test law")
    for attention, frame in decoders.items():
        learnt = pl.format("{} ({})", "learnt decoder", "range of learnt")
        columns = columns.hstack(
            frame.select(
                learnt.alias(f"{attention} decoder (range)"),
                pl.col("learnt, 30 examples").alias(f"{attention}, 30 examples"),
            )
        )
    return columns.hstack(decoders["ReLU"].select(pl.exclude("^layers|test law|.*learnt.*$")))


def mechanism() -> pl.DataFrame:
    """List all learnt blocks, the last untrained ones, and once the controls that all share."""
    rows = summary("wu-mechanism").select(pl.exclude("^to .*$"))
    is_block = pl.col("predictor").str.ends_with("block")
    is_shown = (pl.col("predictor") == "learnt block") | (pl.col("stage") == "4")
    controls = rows.filter(~is_block, attention="relu").with_columns(attention=pl.lit(""))
    return pl.concat([rows.filter(is_block & is_shown), controls])


def choices() -> pl.DataFrame:
    """List the decoder of each choice, then the baselines, for each law and form of R^2."""
    rows = summary("wu-choices")

    def predictor(line: str, rows: pl.DataFrame, name: pl.Expr) -> pl.DataFrame:
        forms = [pl.col(f"{line}, {form}").alias(form) for form in ("R^2", "within prompts")]
        return rows.select("mixture", name.alias("predictor"), *forms)

    decoders = predictor("learnt decoder", rows, pl.format("decoder, {}", "choice"))
    as_chosen = rows.filter(choice="as chosen")
    baselines = [
        predictor(line, as_chosen, pl.lit(line))
        for line in ("direct, last epoch", "label mean", "ridge")
    ]
    long = pl.concat([decoders, *baselines])
    forms = ["R^2", "within prompts"]
    return long.pivot("mixture", index="predictor", values=forms, separator=", ")


if __name__ == "__main__":
    main()
