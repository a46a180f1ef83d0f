from pathlib import Path

import pytest

from icgd.cli.data_options import names_in, source_from
from icgd.cli.examples import Source
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.tables import Reading


def test_every_option_reaches_the_source():
    given = {
        "target": ["a", "b"],
        "ignore": ["day"],
        "encode": True,
        "missing": "drop",
        "standardize": True,
        "header": True,
        "delimiter": "semicolon",
        "decimal": "comma",
    }
    reading = Reading(";", ",", True)
    expected = Source(Path("d.csv"), ("a", "b"), reading, "drop", True, ("day",), True)
    assert source_from(Path("d.csv"), **given) == expected
    assert source_from(Path("d.csv")) == Source(Path("d.csv"))
    assert names_in([" a , b", '"c,d"']) == ["a", "b", "c,d"]


def test_what_is_not_offered_is_refused():
    with pytest.raises(SettingError, match="--missing must be one of refuse, drop, mean, median"):
        source_from(Path("d.csv"), missing="zero")
    with pytest.raises(UnknownNameError, match=r"Unknown decimal 'point,'; .*'point'"):
        source_from(Path("d.csv"), decimal="point,")
