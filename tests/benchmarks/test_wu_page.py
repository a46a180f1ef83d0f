"""The page of wu shows the committed results."""

from benchmarks.wu_page import PAGE, with_tables


def test_the_tables_of_the_page_are_those_of_the_committed_results():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), (
        "docs/reproductions/wu.md: run `python -m benchmarks.wu_page`."
    )
