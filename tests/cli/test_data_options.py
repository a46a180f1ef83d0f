from inspect import signature
from pathlib import Path

import pytest

from icgd.cli.data_options import source_from, takes_table
from icgd.cli.examples import Source
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.tables import Reading


def test_every_option_reaches_the_source():
    given = ["a", "b"], True, "semicolon", "comma", "drop", True, ["day"]
    made = source_from(Path("d.csv"), *given)
    reading = Reading(";", ",", True)
    assert made == Source(Path("d.csv"), ("a", "b"), reading, "drop", True, ("day",))
    assert source_from(Path("d.csv")) == Source(Path("d.csv"))


def test_the_options_stand_in_the_place_of_the_source():
    seen = {}

    @takes_table
    def command(file: Path, source: Source, seed: int = 0) -> None:
        seen.update(file=file, source=source, seed=seed)

    names = list(signature(command).parameters)
    assert names[:3] == ["file", "data", "target"]
    assert names[-1] == "seed"
    given = dict.fromkeys(("target", "header", "delimiter", "decimal", "ignore"))
    data = {"data": Path("d.csv"), "missing": "mean", "standardize": False}
    command(file=Path("f"), seed=3, **given, **data)
    assert seen == {
        "file": Path("f"),
        "source": Source(Path("d.csv"), missing="mean"),
        "seed": 3,
    }


def test_what_is_not_offered_is_refused():
    with pytest.raises(SettingError, match="--missing must be one of refuse, drop, mean, median"):
        source_from(Path("d.csv"), missing="zero")
    with pytest.raises(UnknownNameError, match=r"Unknown decimal 'point,'; .*'point'"):
        source_from(Path("d.csv"), decimal="point,")
