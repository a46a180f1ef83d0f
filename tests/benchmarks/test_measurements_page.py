import json

from benchmarks.measurements_page import PAGE, RESULTS, SECTIONS, page


def test_the_page_is_that_of_the_last_benchmarks():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    said = "run python -m benchmarks.measurements_page"
    assert PAGE.read_text(encoding="utf-8") == page(results), said


def test_every_table_has_a_section():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(results) - {"machine"} <= set(SECTIONS)


def test_numbers_have_three_digits_and_gaps_are_empty():
    rows = {"machine": {"date": "d", "torch": "t", "cpu": "c"}, "fits": [{"a": 0.123456}, {"b": 2}]}
    assert "| a | b |\n| --- | --- |\n| 0.123 |  |\n|  | 2 |\n" in page(rows)
