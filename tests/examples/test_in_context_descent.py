"""The notebook runs from its first cell to its last, and shows what it says."""

from itertools import pairwise

import matplotlib.pyplot as plt

from benchmarks.notebooks import cells_of, executed
from icgd.compiled import Compiled
from icgd.pictures.picture import Picture


def test_the_theorem_runs_and_its_error_falls_with_the_square_of_the_pieces():
    plt.switch_backend("Agg")
    names, shown = executed("in_context_descent.ipynb")
    assert names["report"].verdict.holds
    losses = names["run"].loss_curve.tolist()
    assert losses[-1] < losses[0]
    assert all(3 < coarse / fine < 6 for coarse, fine in pairwise(names["bounds"]))
    assert all(e <= b for e, b in zip(names["errors"], names["bounds"], strict=True))
    assert [type(each) for each in shown[:4]] == [Compiled, Picture, Picture, Picture]
    measured = names["panel"].lines[1]
    assert measured.get_ydata().tolist() == names["errors"]
    plt.close("all")


def test_it_is_stored_without_outputs():
    code = [cell for cell in cells_of("in_context_descent.ipynb") if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
