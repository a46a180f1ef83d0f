"""The page of wu shows the committed results."""

from benchmarks.cheng_page import with_tables
from benchmarks.wu_page import FIGURES, PAGE
from icgd_papers.registry import REPRODUCTIONS


def test_the_page_shows_the_committed_results():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page, FIGURES), (
        "docs/reproductions/wu.md: run `python -m benchmarks.wu_page`."
    )
    assert [heading for heading in FIGURES if f"\n{heading}" not in page] == []


def test_every_figure_of_wu_has_a_table():
    """The score has a page of its own."""
    of_wu = {name for name in REPRODUCTIONS if name.startswith("wu-")}
    assert set(FIGURES.values()) == of_wu - {"wu-score"}
