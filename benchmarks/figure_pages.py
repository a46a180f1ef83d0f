"""Write the tables of the pages about cheng and wu again, from the committed results.

    python -m benchmarks.figure_pages

The first table below a heading is replaced. A page shows the rows that its text is about; all of
them are in results/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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


def summary(figure: str) -> pl.DataFrame:
    """Return the summary of a figure's committed results."""
    return pl.DataFrame(stored_results(ROOT / "results" / figure / "laptop.json")["summary"])


def cheng() -> dict[str, pl.DataFrame]:
    """Return the tables of the page about cheng."""
    models = pl.concat(map(summary, ("cheng-fig5", "cheng-fig6")), how="diagonal")
    return {
        "## Figure 1": summary("cheng-fig1").filter(pl.col("n").is_in(["6", "14"])),
        "## Figures 3, 5 and 6": pairs(models, summary("cheng-curvature")),
    }


def pairs(models: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    """Join the seeds of each pair, with A = 0 beside A free.

    A pair has the largest distance of a matrix from a multiple of I in any seed, how many seeds
    converged, and the smallest curvature of the loss at the predicted point.
    """
    matrices = pl.col("^(BC|A)_.*$").cast(pl.Float64, strict=False)
    counts = pl.format("{} of {}", (pl.col("end") == "converged").sum(), pl.len())
    ends = (
        models.with_columns(distance=pl.max_horizontal(matrices))
        .group_by("pair", "A", maintain_order=True)
        .agg(pl.col("distance").max(), counts.first().alias("converged"))
    )
    least = pl.min_horizontal(
        pl.col(column).str.split(" to ").list.first().cast(pl.Float64)
        for column in ("antisymmetric", "symmetric")
    )
    ends = ends.join(points.with_columns(least=least), on=["pair", "A"], maintain_order="left")
    ends = ends.select(
        "pair",
        "A",
        "converged",
        pl.col("distance").map_elements(lambda value: f"{value:.3f}", pl.String),
        pl.col("least").map_elements(lambda value: f"{value:.1e}", pl.String).alias("curvature"),
    )
    table = ends.filter(A="0").drop("A").rename(lambda name: _with_a(name, "A = 0"))
    free = ends.filter(A="free").drop("A").rename(lambda name: _with_a(name, "A free"))
    return table.join(free, on="pair", maintain_order="left")


def _with_a(name: str, which: str) -> str:
    return name if name == "pair" else f"{name}, {which}"


def wu() -> dict[str, pl.DataFrame]:
    """Return the tables of the page about the figures of wu."""
    is_end = pl.col("test law").is_in(["mixture (1, 0)", "mixture (0.5, 0.5)"])
    return {
        "## Figures 1 to 4": pl.concat(
            [
                curves("wu-fig1", "wu-fig2").filter(is_end),
                curves("wu-fig3", "wu-fig4")[1:],  # the first row is in Figure 1
            ]
        ),
        "## Is it gradient descent?": mechanism(),
        "## What the paper does not say": choices(),
    }


def curves(relu: str, softmax: str) -> pl.DataFrame:
    """Put the decoders of two figures beside the baselines, which they share."""
    decoders = {"ReLU": summary(relu), "softmax": summary(softmax)}
    columns = decoders["ReLU"].select("layers", "test law")
    for attention, frame in decoders.items():
        learnt = pl.format("{} ({})", "learnt decoder", "range of learnt")
        columns = columns.hstack(frame.select(learnt.alias(f"{attention} decoder")))
    baselines = ("direct, last epoch", "ridge", "arc-cosine", "constructed, 1000 steps")
    return columns.hstack(decoders["ReLU"].select(baselines))


def mechanism() -> pl.DataFrame:
    """List the first and last blocks that were learnt, and once the controls that all share."""
    nearest = ("nearest steps", "distance")
    rows = summary("wu-mechanism").select("attention", "predictor", "stage", "R^2", *nearest)
    is_block = pl.col("predictor") == "learnt block"
    shown = ["label mean", "arc-cosine", "descent, other start"]
    is_control = pl.col("predictor").is_in(shown) | (
        (pl.col("predictor") == "ridge") & pl.col("stage").is_in(["1", "5"])
    )
    controls = rows.filter(is_control, attention="relu").with_columns(attention=pl.lit(""))
    return pl.concat([rows.filter(is_block & pl.col("stage").is_in(["1", "4"])), controls])


def choices() -> pl.DataFrame:
    """List the decoder of each choice, then the baselines, for each law and form of R^2."""
    rows = summary("wu-choices")

    def predictor(line: str, rows: pl.DataFrame, name: pl.Expr) -> pl.DataFrame:
        forms = [
            pl.col(f"{line}, {form}").str.split(" (").list.first().alias(form)
            for form in ("R^2", "within prompts")
        ]
        return rows.select("mixture", name.alias("predictor"), *forms)

    shown = ["as chosen", "twice the steps", "interleaved tokens"]
    rows = rows.filter(pl.col("choice").is_in(shown))
    decoders = predictor("learnt decoder", rows, pl.format("decoder, {}", "choice"))
    as_chosen = rows.filter(choice="as chosen")
    baselines = [
        predictor(line, as_chosen, pl.lit(line))
        for line in ("direct, last epoch", "label mean", "ridge")
    ]
    long = pl.concat([decoders, *baselines])
    forms = ["R^2", "within prompts"]
    return long.pivot("mixture", index="predictor", values=forms, separator=", ")


def open_questions() -> dict[str, pl.DataFrame]:
    """Return the tables of the page about what wu leaves open."""
    widths = dimensions(stored_rows(ROOT / "results" / "wu-sizes" / "laptop.json"))
    is_corner = pl.col("N").is_in(["2", "32"]) & pl.col("K").is_in(["4", "256"])
    costs = summary("wu-sizes")
    is_told = pl.col("a step of").is_in(
        ["relu-stack, tanh", "relu-stack, tanh, d = 4", "direct training"]
    )
    return {
        "## Width": widths.filter(is_corner).select(
            "N", "K", "lower bound", "relu-stack", "softmax-stack", "cot-network"
        ),
        "## FLOPs of a step": costs.filter(is_told).drop("at N = 8, K = 64"),
        "## Checks": checks(summary("wu-checks")),
        "## Products": summary("wu-products").select(
            "form", "taken from", "FLOPs a product", "relative error"
        ),
    }


SHOWN_CHECKS: dict[str, Sequence[str]] = {
    "depth": ("4-(4 x 9)-1 tanh", "4-(4 x 15)-1 relu", "4-(4 x 15)-1 tanh"),
    "data": ("4-8-8-1 tanh", "16-16-16-10 relu"),
    "activation": ("4-8-8-1 relu6", "4-8-8-1 hardswish"),
    "width": ("3-5-4-1 relu", "4-3-5-2 sigmoid"),
}
"""The networks of each check that the page lists, on the squared loss or with classes."""


def checks(rows: pl.DataFrame) -> pl.DataFrame:
    """List the error of a step, its bound and the proof of the whole run for these networks."""
    is_shown = pl.any_horizontal(
        (pl.col("check") == check) & pl.col("network").is_in(networks)
        for check, networks in SHOWN_CHECKS.items()
    )
    rows = rows.filter(is_shown, pl.col("loss function") != "huber")
    names = ("error of a step", "its bound", "longest step", "whole run, proved")
    return rows.select("network", "construction", "data", *names)


TABLES: dict[str, Callable[[], dict[str, pl.DataFrame]]] = {
    "cheng.md": cheng,
    "wu.md": wu,
    "wu_open_questions.md": open_questions,
}


if __name__ == "__main__":
    main()
