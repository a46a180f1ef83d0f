"""The example, on fewer steps, trains the hidden state of a TTT-MLP layer as autograd does."""

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ttt_layer.py"


def test_the_inner_loop_learns_and_its_answers_are_those_of_autograd(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    shorter = text.replace(
        "N_STEPS, STEP_SIZE = 8, 16, 20, 0.5", "N_STEPS, STEP_SIZE = 8, 16, 6, 0.5"
    )
    assert shorter != text
    exec(compile(shorter, str(EXAMPLE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.startswith("14 layers a step")
    before, after = map(float, re.search(r"loss (\S+) -> (\S+)", printed).groups())
    assert after < before / 2
    assert float(re.search(r"off autograd by (\S+)", printed)[1]) < 1e-4
    measured, proved = re.search(r"of a step (\S+), proved (\S+)", printed).groups()
    assert 0 < float(measured) < float(proved) < 1e-3
    assert (tmp_path / "ttt_layer.png").read_bytes().startswith(b"\x89PNG")
