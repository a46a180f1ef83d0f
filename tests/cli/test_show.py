import json
import re
from dataclasses import dataclass, replace

import pytest
import torch
from rich.console import Console

import icgd
from icgd.cli import show
from icgd.program.instructions import LayerKind
from tests.cli.files import compiled_run
from tests.cli.test_run import X, Y


@dataclass(frozen=True)
class Point:
    x: float
    tags: tuple[str, ...]


def test_plain_data_of_every_kind():
    data = {"point": Point(0.5, ("a",)), "kind": LayerKind.MLP, "t": torch.eye(2), "n": None}
    assert show.plain(data) == {
        "point": {"x": 0.5, "tags": ["a"]},
        "kind": LayerKind.MLP.value,
        "t": [[1.0, 0.0], [0.0, 1.0]],
        "n": None,
    }


def test_json_stays_valid_when_numbers_are_not_finite():
    text = show.json_text({"bound": float("inf"), "errors": torch.tensor([1.0, float("nan")])})
    assert json.loads(text) == {"bound": None, "errors": [1.0, None]}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (99_999, "99,999"),
        (100_034, "100 thousand"),
        (31_556_930, "31.6 million"),
        (1_000_000, "1.00 million"),
        (999_999_999, "1000 million"),
        (310_387_309_568, "310 billion"),
        (85_800_000_000_000, "85.8 trillion"),
        (191 * 10**18, "1.91e+20"),
    ],
)
def test_counts_as_a_reader_says_them(number, text):
    assert show.count_text(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0.00 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.50 KiB"),
        (8 * 31_556_930, "241 MiB"),
        (2**30, "1.00 GiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_bytes_in_binary_units(number, text):
    assert show.bytes_text(number) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (6.94e-6, "6.9e-06"),
        (0.176, "0.18"),
        (3.3e5, "3.3e+05"),
        (float("inf"), "inf"),
        (None, "none"),
    ],
)
def test_errors_show_two_digits(value, text):
    assert show.error_text(value) == text


def test_times_in_the_unit_that_suits_them():
    assert show.seconds_text(0.0552) == "55.2 ms"
    assert show.seconds_text(2.5) == "2.5 s"


def test_the_largest_of_no_steps_is_zero_and_nan_is_seen():
    assert show.largest(torch.zeros(0)) == 0.0
    assert show.largest(torch.tensor([1.0, 3.0])) == 3.0
    assert show.largest(torch.tensor([1.0, float("nan")])) != 0.0


def test_a_report_shows_its_verdict(capsys):
    report = icgd.verify(compiled_run(), X, Y)
    show.print_report(replace(report, step_errors=report.step_bounds + 1))
    assert "BROKEN: a measured error exceeds a proved bound" in capsys.readouterr().out


def test_a_report_shows_the_line_of_a_paper_and_where_the_run_leaves_it(capsys):
    report = icgd.verify(compiled_run(), X, Y)
    show.print_report(replace(report, paper_trajectory=report.trajectory_errors + 7.25e-6))
    text = capsys.readouterr().out
    assert "exceeds" not in text
    assert show.error_text(float(report.trajectory_errors.max()) + 7.25e-6) in text
    show.print_report(replace(report, paper_trajectory=report.trajectory_errors / 2))
    assert "From step 1 on the run exceeds the paper's bound" in capsys.readouterr().out


def test_a_report_shows_the_line_of_a_paper_that_has_no_bound_of_a_step(capsys):
    report = icgd.verify(compiled_run(), X, Y)
    without = replace(report.certificate, paper_step=None)
    show.print_report(replace(report, certificate=without, paper_trajectory=torch.tensor([9.25])))
    text = capsys.readouterr().out
    assert "(c) paper" in text
    assert re.search(r"the whole run .* 9\.2\b", text)
    assert "none" not in text


def test_a_report_shows_what_bounds_take_for_granted_of_kernels(capsys):
    report = icgd.verify(compiled_run(), X, Y)
    stated = replace(report.certificate, stated=("[red]",))
    show.print_report(replace(report, certificate=stated))
    text = capsys.readouterr().out
    assert "All bounds rely on the constants that were stated for the kernel '[red]'." in text
    assert "its proved bounds" in text
    show.print_certificate(stated)
    assert "that were stated for the kernel '[red]'." in capsys.readouterr().out


def test_a_report_never_calls_an_estimate_proved(capsys):
    report = icgd.verify(compiled_run(), X, Y)
    estimated = replace(report.certificate, estimated=("mine", "yours"))
    show.print_report(replace(report, certificate=estimated))
    text = " ".join(capsys.readouterr().out.split())
    assert "No constants were stated for the kernel 'mine', 'yours', so nothing is proved." in text
    assert "and its bounds, of which (b) is an estimate" in text
    assert (
        "HOLDS for this run: every measured error is within its bound, but bounds are estimates"
        in text
    )
    assert "proved bounds" not in text


def test_an_infinite_bound_of_predictions_is_no_information(capsys):
    report = icgd.verify(compiled_run(), X, Y, queries=X)
    wide = replace(report, prediction_bounds=torch.full_like(report.prediction_bounds, torch.inf))
    show.print_report(wide)
    assert re.search(r"predictions .* no information", capsys.readouterr().out)
    data = show.report_data(wide)
    assert "prediction_bounds" in data["says_nothing"]
    assert json.loads(show.json_text(data))["largest"]["prediction_bounds"] is None


def test_exact_functions_are_not_listed_one_by_one(capsys):
    functions = [f for f in compiled_run().program.functions if f.is_exact]
    show.print_functions(functions)
    assert "all   exact" in capsys.readouterr().out


def test_long_lists_of_predictions_are_cut(capsys):
    show.print_predictions(["y"], [[float(i)] for i in range(14)])
    text = capsys.readouterr().out
    assert "and 4 more; the file of --output has all" in text
    assert " 13" not in text


def test_brackets_in_names_are_text_and_not_markup(capsys):
    show.print_columns("[bold]", ["", "[red]"], [["[x]", "1"]])
    text = capsys.readouterr().out
    assert "[bold]" in text
    assert "[red]" in text
    assert "[x]" in text


def printed(monkeypatch, capsys, width, show_it, *arguments) -> list[str]:
    """The lines that a terminal of this width shows."""
    monkeypatch.setattr(show, "output", Console(highlight=False, width=width))
    show_it(*arguments)
    return capsys.readouterr().out.splitlines()


NAMES = ("statement", "measured", "allowed", "as printed")
FOUND = [
    ("Theorem 1 for ReLU networks", "2.7e-13", "1.0e-10", "0.5 > 1.0e-10"),
    ("Lemma 14", "1.25e-300", "", "17,179,869,184 weights"),
]


@pytest.mark.parametrize("width", [30, 40, 50, 60, 80, 200])
def test_no_terminal_is_so_narrow_that_a_number_is_cut(width, monkeypatch, capsys):
    arguments = (show.print_columns, "Found", NAMES, FOUND)
    lines = printed(monkeypatch, capsys, width, *arguments)
    words = " ".join(lines).split()
    expected = [word for row in FOUND for cell in row for word in cell.split()]
    assert [word for word in expected if word not in words] == []
    assert {len(line) > width for line in lines} == {False}


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_no_value_of_a_list_is_cut(width, monkeypatch, capsys):
    rows = [(name, f"{value} of 17,179,869,184") for name, value, *_ in FOUND]
    lines = printed(monkeypatch, capsys, width, show.print_rows, "Found", rows)
    words = " ".join(lines).split()
    assert words.count("17,179,869,184") == 2
    assert {"2.7e-13", "1.25e-300", "Theorem", "networks"} <= set(words)
    assert {len(line) > width for line in lines} == {False}


def test_a_number_that_is_wider_than_the_terminal_is_whole(monkeypatch, capsys):
    number = "123,456,789" * 5
    for show_it, arguments in (
        (show.print_rows, [[("width", number)]]),
        (show.print_columns, [("", "width"), [("a", number)]]),
    ):
        lines = printed(monkeypatch, capsys, 40, show_it, "Found", *arguments)
        assert number in " ".join(lines).split()


def test_rows_stand_apart_where_columns_do_not_fit(monkeypatch, capsys):
    lines = printed(monkeypatch, capsys, 40, show.print_columns, "Found", NAMES, FOUND)
    assert [line.strip() for line in lines if line.strip()] == [
        "Found",
        "statement Theorem 1 for ReLU networks",
        "measured     2.7e-13",
        "allowed      1.0e-10",
        "as printed   0.5 > 1.0e-10",
        "statement Lemma 14",
        "measured     1.25e-300",
        "as printed   17,179,869,184 weights",
    ]
    wide = printed(monkeypatch, capsys, 60, show.print_columns, "Found", NAMES, FOUND)
    assert sum("measured" in line for line in wide) == 1


def test_the_first_column_is_whole_where_there_is_room(monkeypatch, capsys):
    monkeypatch.setattr(show, "output", Console(highlight=False, width=80))
    rows = [("Theorem 1 for ReLU networks", "so that " * 20)]
    show.print_columns("Found", ("statement", "claim"), rows)
    assert "Theorem 1 for ReLU networks" in capsys.readouterr().out


def test_a_report_names_the_column_that_is_furthest_off(capsys):
    report = icgd.verify(compiled_run(), X, Y)
    show.print_report(report)
    assert "Furthest" not in capsys.readouterr().out
    show.print_report(replace(report, coefficient_errors={"age": 1e-9, "[b]": 2e-9}))
    assert "Furthest from real descent at the end: [b]" in capsys.readouterr().out
