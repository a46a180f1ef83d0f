import pytest

from icgd.errors import CheckpointError
from icgd_papers.kept import kept


def test_what_was_found_is_not_looked_for_again(tmp_path):
    asked = []

    def find():
        asked.append(1)
        return {"value": 0.1 + 0.2, "none": None}

    folder = tmp_path / "study"
    first, second = (kept(folder, "part", find) for _ in range(2))
    assert first == second == {"value": 0.1 + 0.2, "none": None}
    assert asked == [1]
    assert kept(folder, "other", find) == first
    assert asked == [1, 1]


def test_without_a_folder_nothing_is_kept():
    assert [kept(None, "part", lambda: 3) for _ in range(2)] == [3, 3]


def test_a_damaged_part_is_named(tmp_path):
    (tmp_path / "part.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"part\.json"):
        kept(tmp_path, "part", lambda: 1)
