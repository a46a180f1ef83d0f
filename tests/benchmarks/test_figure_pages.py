"""The pages of cheng and wu show the committed results."""

import polars as pl
import pytest

from benchmarks.figure_pages import PAGES, SHOWN_CHECKS, TABLES, pairs, summary, with_tables


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_a_page_are_those_of_the_committed_results(name):
    page = (PAGES / name).read_text(encoding="utf-8")
    assert page == with_tables(name, page), (
        f"docs/reproductions/{name}: run `python -m benchmarks.figure_pages`."
    )


@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_empty(name):
    assert all(frame.height for frame in TABLES[name]().values())


def test_every_network_that_a_page_lists_was_checked():
    checked = set(summary("wu-checks").select("check", "network").iter_rows())
    assert {(check, name) for check, names in SHOWN_CHECKS.items() for name in names} <= checked


def test_the_seeds_of_a_pair_share_a_line():
    names = ("pair", "A", "seed", "BC_0", "A_0", "end")
    seeds = [
        ("exp, relu", "0", "0", "0.050", "", "converged"),
        ("exp, relu", "0", "1", "0.200", "", "moving"),
        ("exp, relu", "free", "0", "0.050", "0.070", "converged"),
    ]
    points = {
        "pair": ["exp, relu"] * 2,
        "A": ["0", "free"],
        "antisymmetric": ["-2.0e-03 to 1.0e-03", "3.0e+00 to 4.0e+00"],
        "symmetric": ["1.0e-01 to 2.0e-01", "2.0e+00 to 3.0e+00"],
    }
    lines = pairs(pl.DataFrame(seeds, schema=list(names), orient="row"), pl.DataFrame(points))
    row = ("exp, relu", "1 of 2", "0.200", "-2.0e-03", "1 of 1", "0.070", "2.0e+00")
    assert lines.rows() == [row]
    ends = ("converged", "distance", "curvature")
    assert lines.columns == ["pair", *(f"{end}, A {a}" for a in ("= 0", "free") for end in ends)]
