import pytest

import icgd
from icgd.errors import UnsupportedProblemError
from icgd.reproductions import plotting
from icgd.reproductions.comparison import Settings, compare, draw
from tests.cases import TINY

NARROW = icgd.Problem(
    icgd.MLP((1, 1), "tanh", "tanh"),
    "squared",
    icgd.GradientStep(0.5, box=1.0),
    icgd.Domain(x=1.0, y=1.0),
)


def quick(problem: icgd.Problem, **settings: int) -> Settings:
    return Settings(problem, **{"n_steps": 2, "n_examples": 2, "n_timings": 1, **settings})


def test_every_construction_that_accepts_the_problem_is_measured_within_its_bound():
    found = compare(quick(NARROW, seed=1))
    rows = {row.construction: row for row in found.rows}
    assert list(rows) == ["relu-stack", "softmax-stack", "universal", "cot-network"]
    others = ["recursion", "functional", "cot-ridge", "cot-lasso", "cot-glm"]
    assert list(found.refusals) == others
    for row in found.rows:
        assert row.verdict is icgd.Verdict.HOLDS
        assert row.step_error <= row.step_bound
        assert row.seconds > 0
    assert rows["softmax-stack"].step_error <= 1e-11
    assert 1e-9 < rows["relu-stack"].step_error < 1e-2
    assert (rows["relu-stack"].layers_per_step, rows["universal"].layers_per_step) == (6, 4)
    assert rows["softmax-stack"].n_registers > 0
    assert rows["cot-network"].step_error <= 1e-11


def test_recursion_joins_where_the_output_is_linear():
    problem = icgd.Problem(icgd.MLP((2, 3, 1)), "squared", NARROW.update, NARROW.domain)
    rows = {row.construction: row for row in compare(quick(problem)).rows}
    assert list(rows) == ["relu-stack", "softmax-stack", "recursion", "cot-network"]
    assert rows["recursion"].layers_per_step == 4
    assert rows["recursion"].verdict is icgd.Verdict.HOLDS


def test_functions_are_compared_with_kernel_regression():
    machine = icgd.KernelMachine(2, "rbf")
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0))
    found = compare(quick(problem, n_examples=4))
    assert [row.construction for row in found.rows] == ["functional"]
    assert found.rows[0].run_error <= 1e-14
    assert found.direct_flops == 2 * 2 * 4**2


def test_a_table_that_would_be_too_large_is_left_out_with_the_reason():
    found = compare(quick(NARROW, n_examples=9))
    assert "universal" not in {row.construction for row in found.rows}
    assert "needs a table of" in found.refusals["universal"]


def test_a_problem_that_nothing_compiles_says_why():
    problem = icgd.Problem(
        icgd.MLP((2, 3)), "cross_entropy", TINY.problem.update, icgd.Domain(1.0, 1.0)
    )
    with pytest.raises(UnsupportedProblemError, match="No construction can compile this problem"):
        compare(quick(problem))


def test_the_picture_names_every_construction():
    figure = draw(compare(quick(NARROW)))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["cot-network", "universal", "softmax-stack", "relu-stack"]
    assert plotting.png(figure).startswith(b"\x89PNG")
