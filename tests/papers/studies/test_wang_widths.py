"""From the rows of a figure to widths that are found to suffice."""

from icgd_papers.studies.wang_widths import dimensions, needed, suffices, table


def row(width, error, *, depth=2, dimension=3, construction=None, heads=None):
    return {
        "dimension": dimension,
        "depth": depth,
        "width": width,
        "error": error,
        "construction": construction,
        "heads": heads,
    }


ROWS = [
    row(4, 0.2),
    row(8, 0.1, construction="relu-stack", heads=1062),
    row(8, 0.1, construction="recursion", heads=7584),
    row(8, 0.3),
    row(16, 0.12),
    row(4, 0.049, depth=3, construction="relu-stack", heads=534),
]


def test_the_narrowest_network_that_reaches_the_error_is_taken():
    found = needed(ROWS, 3, 2, 0.12)  # width 16 reaches it too
    assert (found.width, found.width_text, found.widest) == (8, "8", 16)
    assert (found.heads("relu-stack"), found.heads("recursion")) == (1062, 7584)
    assert found.heads("softmax-stack") is None


def test_a_width_that_was_not_found_is_more_than_the_widest():
    found = needed(ROWS, 3, 2, 0.09)
    assert (found.width, found.width_text, found.heads_text("relu-stack")) == (None, ">16", "-")


def test_best_starts_of_networks_that_suffice_are_told_from_others():
    assert [suffices(each, ROWS) for each in ROWS] == [False, True, True, False, False, True]


def test_a_start_that_was_not_compiled_is_no_transformer():
    assert list(needed([*ROWS, row(8, 0.11)], 3, 2, 0.12).rows) == ["relu-stack", "recursion"]


def test_the_table_has_both_depths_in_a_cell():
    summary = table(ROWS, dimensions(ROWS), (0.1, 0.05))
    assert summary.names == ("d", "error", "width", "relu-stack", "recursion")
    assert summary.rows == (
        ("3", "0.1", "8 / 4", "1,062 / 534", "7,584 / -"),
        ("3", "0.05", ">16 / 4", "- / 534", "- / -"),
    )
