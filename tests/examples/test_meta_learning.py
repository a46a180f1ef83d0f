"""The example does what it says."""

import re
import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "meta_learning.py"


def test_the_example_learns_step_sizes_and_a_start_and_then_all_weights(capsys):
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    losses = [float(number) for number in re.findall(r"\d\.\d{4}", printed)]
    assert losses[1] < 0.7 * losses[0]
    assert losses[2] == losses[1]  # all weights begin where the learnt run ended
    assert losses[3] < losses[2]
