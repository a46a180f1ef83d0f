"""Warnings name the line of the user's program."""

import subprocess
import sys
import warnings

from icgd.environment import warn

SCRIPT = """
import icgd

machine = icgd.KernelMachine(1, "linear")
problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(3.0), icgd.Domain(x=1.0, y=1.0))
compiled = icgd.compile(problem, n_steps=2)
compiled.run([[1.0]], [1.0])  # line 7
compiled.run_task(compiled.task([[1.0]], [1.0]))  # line 8
icgd.verify(compiled, [[1.0]], [1.0])  # line 9
"""


def test_a_warning_names_the_line_that_called_run_or_verify(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "always", str(path)], capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if "DivergenceWarning" in line]
    assert [line.split(": ")[0] for line in lines] == [f"{path}:{line}" for line in (7, 8, 9)]


def test_outside_icgd_it_names_its_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn(UserWarning("a"))
    assert caught[0].filename == __file__
