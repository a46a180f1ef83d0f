"""The pages of wu show the committed results."""

import pytest

from benchmarks.wu_page import PAGES, TABLES, with_tables


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_a_page_are_those_of_the_committed_results(name):
    page = (PAGES / name).read_text(encoding="utf-8")
    assert page == with_tables(name, page), (
        f"docs/reproductions/{name}: run `python -m benchmarks.wu_page`."
    )
