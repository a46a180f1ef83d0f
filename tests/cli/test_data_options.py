from pathlib import Path

import pytest

from icgd.cli.data_options import Source, described_source, names_in
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
    source = Source(Path("d.csv"), **given)
    assert source.reading == Reading(";", ",", True)
    assert (source.targets, source.ignore) == (("a", "b"), ("day",))
    assert (source.missing, source.encode, source.standardize) == ("drop", True, True)
    assert Source(Path("d.csv"), target="a,b").targets == ("a", "b")
    assert names_in([" a , b", '"c,d"']) == ["a", "b", "c,d"]


def test_what_is_not_offered_is_refused_by_option_or_by_key():
    path = Path("d.csv")
    with pytest.raises(SettingError, match=r"^--missing must be one of refuse, drop, mean, median"):
        described_source(path, {"missing": "zero"}, None, ["missing"])
    with pytest.raises(SettingError, match=r"^p.toml, \[table\]: missing must be one of refuse"):
        described_source(path, {"missing": "zero"}, "p.toml")
    with pytest.raises(UnknownNameError, match=r"^--decimal: Unknown decimal 'point,'; .*'point'"):
        described_source(path, {"decimal": "point,"}, None, ["decimal"])
    with pytest.raises(UnknownNameError, match=r"known are point, comma\. Did"):
        described_source(path, {"decimal": "point,"}, None)
