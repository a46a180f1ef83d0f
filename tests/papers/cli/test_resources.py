import json

import pytest

from icgd_papers.checksummed_json import with_checksum
from icgd_papers.cli.resources import number_text


@pytest.fixture
def measured(tmp_path):
    """Write rows where `icgd reproduce` writes them."""
    folder = tmp_path / "results" / "wang-resources"
    folder.mkdir(parents=True)
    names = ("dimension", "depth", "width", "error", "construction", "heads")
    rows = [
        dict(zip(names, (d, depth, width, error, "relu-stack", 100 * width), strict=True))
        for d in (2, 3)
        for depth, width, error in ((2, 8, 0.07), (3, 4, 0.02))
    ]
    (folder / "laptop.json").write_text(json.dumps(with_checksum({"rows": rows})))


def test_theorem_3_is_printed_at_once(command):
    ran = command("resources", "indicator", "--errors", "0.001,0.0001")
    assert ran.code == 0
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert ["0.0001", "2", "layers", "22,026", "4", "9.7e+08", "3.9e+09", "4.9e+08"] in lines
    assert ["0.0001", "3", "layers", "10,000", "9", "3.0e+08", "2.7e+09", "10,000"] in lines
    assert "costs less below an error of 1.1e-04." in ran.stdout
    assert "icgd reproduce wang-resources" in ran.stdout


def test_the_example_of_the_help_works(command):
    outcome = command(*command("resources", "--help").example())
    assert outcome.code == 0
    assert "Theorem 4: 6 derivatives, d = 1" in outcome.stdout
    assert "costs less below an error of 0.00856." in outcome.stdout


def test_a_deep_network_that_never_wins_is_said_to(command):
    given = ("resources", "smooth", "--dimension", "2", "--smoothness", "4")
    assert "costs more: 2 (L - 1) d = 4 is not below 4" in command(*given).stdout
    data = json.loads(command(*given, "--json").stdout)
    assert data["log10_crossover"] is None
    assert [pair["error"] for pair in data["pairs"]] == [0.1, 0.01, 0.001, 0.0001]
    assert not any(pair["deep_is_cheaper"] for pair in data["pairs"])
    assert data["pairs"][1]["shallow"]["matrices"] == pytest.approx(800)


def test_measured_widths_stand_beside_the_theorem(command, measured):
    ran = command("resources", "indicator", "--errors", "0.1,0.05")
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert "2 0.1 8 / 4 800 / 400" in lines
    assert "3 0.05 >8 / 4 - / 400" in lines


def test_a_dimension_chooses_the_lemmas_and_what_was_measured_in_it(command, measured):
    given = ("resources", "indicator", "--errors", "0.05", "--dimension")
    data = json.loads(command(*given, "3", "--json").stdout)
    assert data["theorem"] == "Lemmas 1 and 2: the indicator of a ball, d = 3"
    assert data["pairs"][0]["deep"]["width"] == pytest.approx(8 * 9 / 0.05)
    widths = [(x["dimension"], x["depth"], x["width"]) for x in data["measured"]]
    assert widths == [(3, 2, None), (3, 3, 4)]
    assert data["measured"][1]["relu-stack"] == 400
    assert "No widths were measured for this" in command(*given, "9").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("indicater",),
            "Unknown kind of function 'indicater'; known are indicator, smooth. "
            "Did you mean 'indicator'?",
        ),
        (
            ("indicator", "--errors", "0.1;0.2"),
            "--errors must be numbers joined by commas, such as 0.1,0.05, got '0.1;0.2'.",
        ),
        (("smooth", "--errors", "0.1,1"), "--errors must lie strictly between 0 and 1, got 1.0."),
        (
            ("indicator", "--dimension", "0"),
            "dimension must be a whole number of at least 1, got 0.",
        ),
        (("smooth", "--depth", "1"), "depth must be a whole number of at least 2, got 1."),
        (
            ("indicator", "--depth", "3"),
            "--depth has no effect without the kind smooth; give both or neither.",
        ),
    ],
)
def test_what_cannot_be_is_refused(command, arguments, message):
    assert command("resources", *arguments).refusal() == message


def test_numbers_of_every_size_have_a_text():
    assert number_text(0.0) == "1"
    assert number_text(-9.0861) == "1.1e-04"
    assert number_text(30.0) == "1.1e+13"
    assert number_text(7.6) == "1,998"
    assert number_text(23025.85) == "10^10,000"
