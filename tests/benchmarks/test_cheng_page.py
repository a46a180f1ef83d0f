"""The page of cheng shows the committed results."""

import polars as pl

from benchmarks.cheng_page import FIGURES, PAGE, of_pairs, with_tables


def test_the_page_shows_the_committed_results():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), (
        "docs/reproductions/cheng.md: run `python -m benchmarks.cheng_page`."
    )
    assert [heading for heading in FIGURES if f"\n{heading}" not in page] == []


def test_the_seeds_of_a_pair_share_a_line():
    names = ("pair", "A", "seed", "BC_0", "A_0", "end", "loss / family's")
    seeds = [
        ("exp, relu", "0", "0", "0.050", "", "converged", "1.0010"),
        ("exp, relu", "0", "1", "0.200", "", "moving", "1.0020"),
        ("exp, relu", "free", "0", "0.050", "0.010", "converged", "0.9990"),
    ]
    found = {"pair": ["exp, relu"] * 2, "A": ["free", "0"], "best point": ["minimum", "saddle"]}
    lines = of_pairs(pl.DataFrame(seeds, schema=list(names), orient="row"), pl.DataFrame(found))
    assert lines.columns == ["pair", "A", "BC_0", "A_0", "loss / family's", "seeds", "best point"]
    assert lines.rows() == [
        ("exp, relu", "0", "0.200", "", "1.0020", "1 converged, 1 moving", "saddle"),
        ("exp, relu", "free", "0.050", "0.010", "0.9990", "1 converged", "minimum"),
    ]
