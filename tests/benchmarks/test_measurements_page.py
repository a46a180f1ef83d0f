import json

from benchmarks.measurements_page import LEFT_OUT, PAGE, RESULTS, SECTIONS, page

MACHINE = {"date": "d", "torch": "t", "cpu": "c"}


def test_the_page_is_that_of_the_last_benchmarks():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    said = "run python -m benchmarks.measurements_page"
    assert PAGE.read_text(encoding="utf-8") == page(results), said


def test_every_table_has_a_section_and_what_it_shows_was_measured():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {name.split(",")[0] for name in SECTIONS} == set(results) - {"machine", *LEFT_OUT}
    for name, section in SECTIONS.items():
        rows = results[name.split(",")[0]]
        measured = {column for row in rows for column in row}
        assert {*section.columns, *section.across, *section.only} <= measured, name
        assert section.goal in {"", *measured}, name
        for column, values in section.only.items():
            assert set(values) <= {row[column] for row in rows}, name


def test_numbers_have_three_digits_and_gaps_are_empty():
    rows = [{"N, d, rounds": "f", "beside": 0.123456}, {"N, d, rounds": "g", "ratio": 2000}]
    shown = page({"machine": MACHINE, "chain_speed": rows})
    assert "| f | 0.123 |  |\n| g |  | 2,000 |\n" in shown


def test_a_goal_says_how_many_rows_miss_it():
    rows = [{"ratio": ratio, "limit": limit} for ratio, limit in ((0.5, 1), (3.0, 2), (1, None))]
    missed = page({"machine": MACHINE, "chain_speed": rows})
    assert "Goal in 2 of 3 rows: at most 1 to 2; 1 of 2 rows miss it." in missed
    assert "Goal: at most 1; reached." in page({"machine": MACHINE, "chain_speed": rows[:1]})
    assert "`chain_speed`. A whole fused run.\n" in page(
        {"machine": MACHINE, "chain_speed": rows[2:]}
    )


def test_rows_that_differ_in_one_setting_share_a_line():
    rows = [
        {"construction": name, "n_steps": n, "ratio": float(ratio)}
        for name, n, ratio in (("a", 1, 2), ("b", 1, 3), ("a", 5, 4))
    ]
    shown = page({"machine": MACHINE, "verify_speed": rows})
    assert "| construction | n_steps 1 | n_steps 5 |\n" in shown
    assert "| a | 2 | 4 |\n| b | 3 |  |\n" in shown


def test_only_the_rows_that_are_asked_for_are_shown():
    rows = [{"axis": "n", "value": n, "times the first": float(n)} for n in (80, 81, 4096)]
    shown = page({"machine": MACHINE, "scaling": rows})
    assert "| n | 80 | 80 |\n| n | 4,096 | 4,096 |\n" in shown
