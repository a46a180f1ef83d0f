"""The pictures of examples/ in the gallery: docs/images/example_<name>.png."""

import contextlib
import io
import runpy
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt

from benchmarks.notebooks import EXAMPLES, executed

SCRIPTS = ("train_a_network", "own_table", "known_algorithm", "ttt_layer")
"""Examples that write a picture of their own name into the working folder."""

NOTEBOOKS = ("in_context_descent", "on_your_data")
"""Notebooks whose last picture is called `figure`."""


def draw_all(folder: Path) -> list[Path]:
    """Run the examples, and say which files were written."""
    return [*(_of_script(folder, name) for name in SCRIPTS), *(_last(folder, n) for n in NOTEBOOKS)]


def _of_script(folder: Path, name: str) -> Path:
    path = folder / f"example_{name}.png"
    script = EXAMPLES / f"{name}.py"
    with TemporaryDirectory() as work, contextlib.chdir(work), patch("sys.argv", [str(script)]):
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
        shutil.copyfile(f"{name}.png", path)
    return path


def _last(folder: Path, name: str) -> Path:
    plt.switch_backend("Agg")
    with contextlib.redirect_stdout(io.StringIO()):
        names, _ = executed(f"{name}.ipynb")
    path = folder / f"example_{name}.png"
    figure: Any = names["figure"]
    figure.savefig(path, dpi=120)
    plt.close("all")
    return path
