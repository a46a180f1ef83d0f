"""The example reads a gradient out of the stream, with TransformerLens or without."""

import re
import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "known_algorithm.py"


def test_the_gradient_in_the_stream_is_that_of_autograd(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "weights_1 is written by layers [4, 9]" in printed
    assert float(re.search(r"off autograd by (\S+)", printed)[1]) < 1e-10
    found = re.search(r"TransformerLens, off by (\S+)", printed)
    assert float(found[1]) < 1e-9 if found else "needs transformer-lens" in printed
    assert (tmp_path / "known_algorithm.png").read_bytes().startswith(b"\x89PNG")
