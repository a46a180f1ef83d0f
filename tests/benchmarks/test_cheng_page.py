"""The page of cheng shows the committed results."""

import json

from benchmarks import cheng_page
from benchmarks.cheng_page import FIGURES, PAGE, rows_of, with_tables
from icgd_papers.checksummed_json import with_checksum


def test_the_page_shows_the_committed_results():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), (
        "docs/reproductions/cheng.md: run `python -m benchmarks.cheng_page`."
    )
    assert [heading for heading in FIGURES if f"\n{heading}" not in page] == []


def test_matrices_show_the_largest_distance_of_all_seeds():
    first = {"pair": "exp, relu", "A": "0", "seed": "0", "BC_0": "0.050", "A_0": "", "near": "yes"}
    second = {**first, "seed": "1", "BC_0": "0.200", "near": "no"}
    other = {**first, "A": "free", "A_0": "0.010"}
    assert rows_of([first, second, other]) == [
        {
            "labels, attention": "exp, relu",
            "A": "0",
            "BC_0": "0.200",
            "A_0": "",
            "seeds below 0.1": "1 of 2",
        },
        {
            "labels, attention": "exp, relu",
            "A": "free",
            "BC_0": "0.050",
            "A_0": "0.010",
            "seeds below 0.1": "1 of 1",
        },
    ]


def test_the_first_table_below_a_heading_is_replaced(monkeypatch, tmp_path):
    (tmp_path / "results/cheng-fig2").mkdir(parents=True)
    (tmp_path / "results/cheng-fig2/laptop.json").write_text(
        json.dumps(with_checksum({"summary": [{"n": "6", "best": "exp"}]}))
    )
    monkeypatch.setattr(cheng_page, "ROOT", tmp_path)
    old, new = "| old |\n| --- |\n| 1 |\n", "| n | best |\n| --- | --- |\n| 6 | exp |\n"
    page = "# Page\n\n## Figure 2: loss\n\nText.\n\n{}\n| kept |\n"
    assert with_tables(page.format(old)) == page.format(new)
