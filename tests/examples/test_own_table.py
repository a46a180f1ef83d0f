"""The example does what it says, on its own table and on another."""

import re
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_table.py"


def printed_by(*arguments, capsys, monkeypatch) -> str:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    return capsys.readouterr().out


def test_the_example_predicts_cars_that_were_not_in_the_prompt(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
    printed = printed_by(capsys=capsys, monkeypatch=monkeypatch)
    scores = [float(score) for score in re.findall(r"R² (\S+)", printed)]
    assert len(scores) == 2
    assert min(scores) > 0.7
    assert float(re.search(r"weight: (\S+)", printed)[1]) < -2  # heavy cars drive few miles
    assert "proof: every measured error is within its" in printed
    assert (tmp_path / "own_table.png").read_bytes().startswith(b"\x89PNG")


def test_it_takes_a_table_and_a_target_of_yours(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{x},{x % 3},{2 * x}\n" for x in range(20))
    (tmp_path / "mine.csv").write_text("size,other,price\n" + rows)
    printed = printed_by("mine.csv", "price", capsys=capsys, monkeypatch=monkeypatch)
    assert float(re.search(r"size: (\S+)", printed)[1]) > 1.5
