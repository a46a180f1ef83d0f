import json

from benchmarks.measurements_page import ELSEWHERE, PAGE, RESULTS, SECTIONS, page

MACHINE = {"date": "d", "torch": "t", "cpu": "c"}


def test_the_page_is_that_of_the_last_benchmarks():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    said = "run python -m benchmarks.measurements_page"
    assert PAGE.read_text(encoding="utf-8") == page(results), said


def test_every_table_has_a_section_or_another_page():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    here = {name.split(",")[0] for name in SECTIONS}
    elsewhere = [name for names in ELSEWHERE.values() for name in names]
    assert sorted([*here, *elsewhere]) == sorted(set(results) - {"machine"})
    assert all((PAGE.parent / path).exists() for path in ELSEWHERE)


def test_every_column_that_is_shown_was_measured():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name, section in SECTIONS.items():
        measured = {column for row in results[name.split(",")[0]] for column in row}
        assert {*section.columns, *section.across} <= measured, name
        assert section.goal in {"", *measured}, name


def test_numbers_have_three_digits_and_gaps_are_empty():
    rows = [{"function": "f", "error": 0.123456}, {"function": "g", "optimum": 2000}]
    shown = page({"machine": MACHINE, "fits": rows})
    assert "| f | 0.123 |  |\n| g |  | 2,000 |\n" in shown


def test_a_goal_says_how_many_rows_miss_it():
    rows = [{"ratio": ratio, "limit": limit} for ratio, limit in ((0.5, 1), (3.0, 2), (1, None))]
    missed = page({"machine": MACHINE, "recursion_speed": rows})
    assert "Goal: ratio at most 1 to 2; 1 of 2 rows miss it." in missed
    assert "Goal: ratio at most 1; all rows reach it." in page(
        {"machine": MACHINE, "recursion_speed": rows[:1]}
    )
    assert "relu-stack. Deep networks and kinks are slow.\n" in page(
        {"machine": MACHINE, "recursion_speed": rows[2:]}
    )


def test_rows_that_differ_in_one_setting_share_a_line():
    rows = [
        {"construction": name, "n_steps": n, "ratio": float(ratio)}
        for name, n, ratio in (("a", 1, 2), ("b", 1, 3), ("a", 5, 4))
    ]
    shown = page({"machine": MACHINE, "verify_speed": rows})
    assert "| construction | n_steps 1 | n_steps 5 |\n" in shown
    assert "| a | 2 | 4 |\n| b | 3 |  |\n" in shown
