import csv
import json
import re
from math import inf, isnan, nan

import pytest

from icgd.errors import DataError, TrainingError
from icgd_papers.training.logs import Log, read_json, write_csv, write_json

LOG = Log(({"step": 0.0, "loss": 0.1 + 0.2}, {"step": 10.0, "loss": 5e-324}))


def test_a_csv_log_reads_back_exactly(tmp_path):
    write_csv(LOG, tmp_path / "log.csv")
    text = (tmp_path / "log.csv").read_text()
    assert text == "step,loss\n0,0.30000000000000004\n10,5e-324\n"
    rows = csv.DictReader(text.splitlines())
    assert [{name: float(cell) for name, cell in row.items()} for row in rows] == list(LOG.rows)


def test_a_json_log_is_json_even_where_numbers_are_none(tmp_path):
    strange = Log((*LOG.rows, {"step": 20.0, "loss": nan}, {"step": 30.0, "loss": -inf}))
    write_json(strange, tmp_path / "log.json")
    text = (tmp_path / "log.json").read_text()
    assert text.splitlines()[1] == '{"step": 0, "loss": 0.30000000000000004},'
    assert [row["loss"] for row in json.loads(text)] == [0.1 + 0.2, 5e-324, None, None]


def test_every_row_has_the_same_columns():
    assert LOG.with_row({"step": 20.0, "loss": 1.0}).column("loss")[2] == 1.0
    with pytest.raises(TrainingError, match=r"columns step, loss; a row came with step, lost\."):
        LOG.with_row({"step": 20.0, "lost": 1.0})


def test_a_written_log_reads_back(tmp_path):
    strange = Log((*LOG.rows, {"step": 20.0, "loss": nan}))
    write_json(strange, tmp_path / "log.json")
    again = read_json(tmp_path / "log.json")
    assert again.rows[:2] == LOG.rows
    assert isnan(again.rows[2]["loss"])
    (tmp_path / "log.json").write_text("[{")
    with pytest.raises(DataError, match=r"Cannot read .*log\.json: it is not a log"):
        read_json(tmp_path / "log.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 0}',
        "[[1], [2]]",
        '[{"loss": 1}]',
        '[{"step": 0, "loss": 1}, {"step": 1}]',
        '[{"step": 1' + "0" * 400 + "}]",
        "[" * 100_000,
    ],
)
def test_what_is_no_log_is_refused(tmp_path, text):
    (tmp_path / "log.json").write_text(text)
    path = re.escape(str(tmp_path / "log.json"))
    with pytest.raises(DataError, match=f"^Cannot read {path}: it is not a log \\("):
        read_json(tmp_path / "log.json")
