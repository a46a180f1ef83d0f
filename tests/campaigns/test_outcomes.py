import json

import pytest

from icgd.errors import FileError
from tests.campaigns import outcomes
from tests.campaigns.outcomes import Campaign, outcome_of


def raising(problem):
    raise problem


def campaign(*found, allowed=("done", "refused")):
    def cases(n):
        return ((f"case {index}", outcome) for index, outcome in enumerate(found[:n]))

    return Campaign("toy", "Toys", 2, 9, dict.fromkeys(allowed, "it is so"), cases)


def test_outcomes_have_names():
    assert outcome_of(lambda: 1) == "done"
    assert outcome_of(lambda: raising(FileError("There is no file a."))) == "refused"
    assert outcome_of(lambda: raising(KeyError("a"))) == "foreign: KeyError"
    assert outcome_of(lambda: raising(KeyboardInterrupt())) == "foreign: KeyboardInterrupt"


def test_a_sample_is_counted_and_leaves_no_file(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "COUNTS", tmp_path)
    tally = campaign("done", "refused", "torn").carry_out(whole=False)
    assert tally.counts == {"done": 1, "refused": 1}
    assert "toy: 2 cases" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_whole_campaign_keeps_its_counts_also_if_it_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "COUNTS", tmp_path)
    with pytest.raises(AssertionError, match=r"2 x torn, such as\n    case 1\n    case 2"):
        campaign("done", "torn", "torn").carry_out(whole=True)
    kept = json.loads((tmp_path / "toy.json").read_text())
    assert kept["outcomes"] == {"done": 1, "refused": 0, "torn": 2}
    assert kept["cases"] == 3


def test_a_campaign_without_cases_fails():
    with pytest.raises(AssertionError, match="toy had no case"):
        campaign().carry_out(whole=False)
