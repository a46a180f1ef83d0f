"""The example does what it says."""

import re
import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_a_network.py"


def test_the_example_trains_verifies_and_draws(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    before, after, r2 = (float(number) for number in re.findall(r"\d\.\d{3,}", printed))
    assert after < before / 10
    assert r2 > 0.7
    measured, proved = (float(number) for number in re.findall(r"\d\.\de-\d+", printed))
    assert measured < proved < 1e-8
    assert "every measured error is within its proved bound" in printed
    pictures = {path.name for path in tmp_path.iterdir()}
    assert pictures == {f"train_a_network{end}.png" for end in ("", "_layers", "_proof")}
