"""Files with a checksum: what was changed is refused, what only looks different is not."""

import json
from pathlib import Path

import pytest

from icgd.errors import CheckpointError
from icgd_papers.checksummed_json import (
    read_checksummed,
    with_checksum,
    without_checksum,
    write_checksummed,
)

RESULTS = Path(__file__).parents[2] / "results"

TABLE = {"figure": "toy", "rows": [{"loss": 0.1 + 0.2, "seed": 3, "none": None}]}


def test_a_table_comes_back():
    table = json.loads(json.dumps(with_checksum(TABLE)))
    assert list(table)[-1] == "digest"
    assert without_checksum(Path("toy.json"), table) == TABLE


def test_keys_and_rows_may_be_of_kinds_that_json_lacks():
    given = {"widths": {9: (1, 2), 10: ()}, "nan": float("nan")}
    table = without_checksum(Path("toy.json"), json.loads(json.dumps(with_checksum(given))))
    assert table["widths"] == {"9": [1, 2], "10": []}


def test_spaces_ends_of_lines_and_the_order_of_keys_do_not_matter():
    text = json.dumps(with_checksum(TABLE), indent=3, sort_keys=True).replace("\n", "\r\n")
    assert without_checksum(Path("toy.json"), json.loads(text)) == TABLE


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (TABLE, "it has no checksum"),
        ([1], "it has no checksum"),
        ({**with_checksum(TABLE), "figure": "other"}, "its checksum does not match"),
        ({**with_checksum(TABLE), "more": 1}, "its checksum does not match"),
        ({**with_checksum(TABLE), "digest": None}, "its checksum does not match"),
    ],
)
def test_what_was_changed_is_refused(table, problem):
    with pytest.raises(CheckpointError, match=rf"^toy\.json is damaged .*\({problem}\)"):
        without_checksum(Path("toy.json"), table)


@pytest.mark.parametrize("content", [None, 3.5, [1, {"a": 2}], TABLE])
def test_any_content_is_kept(tmp_path, content):
    write_checksummed(tmp_path / "part.json", content)
    assert read_checksummed(tmp_path / "part.json") == content


def test_a_file_without_content_is_refused(tmp_path):
    (tmp_path / "part.json").write_text(json.dumps(with_checksum({"other": 1})))
    with pytest.raises(CheckpointError, match="it has no content"):
        read_checksummed(tmp_path / "part.json")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00"])
def test_what_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "part.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"part\.json is damaged or was not written by icgd"):
        read_checksummed(tmp_path / "part.json")


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/*.json")), ids=lambda path: path.parent.name
)
def test_every_committed_result_has_its_checksum(path):
    assert without_checksum(path, json.loads(path.read_text(encoding="utf-8")))["rows"]


def test_what_is_nested_as_deeply_as_python_reads_is_refused(tmp_path):
    path = tmp_path / "part.json"
    for depth in range(800, 1001, 2):
        path.write_text(f'{{"content": {"[" * depth}{"]" * depth}, "digest": "none"}}')
        with pytest.raises(CheckpointError, match="is damaged"):
            read_checksummed(path)
