from functools import cache

import pytest
import torch

import icgd
from icgd.cli.comparison import SIZES, Comparison, Settings, compare, draw
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import UnknownNameError, UnsupportedProblemError
from icgd.pictures import plotting
from tests.cases import TINY

NARROW = icgd.Problem(
    icgd.MLP((1, 1), "tanh", "tanh"),
    "squared",
    icgd.GradientStep(0.5, box=1.0),
    icgd.Domain(x=1.0, y=1.0),
)


def quick(problem: icgd.Problem, **settings: object) -> Settings:
    return Settings(problem, **{"n_steps": 2, "n_examples": 2, "n_timings": 1, **settings})


@cache
def compared(backend: str) -> Comparison:
    return compare(quick(NARROW, seed=1, backend=backend))


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_every_construction_that_accepts_the_problem_is_measured_within_its_bound(backend):
    found = compared("auto" if backend == "literal" else backend)
    rows = {row.construction: row for row in found.rows}
    assert list(rows) == ["relu-stack", "softmax-stack", "universal", "cot-network"]
    assert list(found.refusals) == [name for name in CONSTRUCTIONS if name not in rows]
    for row in found.rows:
        assert row.backend == backend
        assert row.verdict.holds
        assert row.step_error <= row.step_bound
        assert row.seconds > 0
    assert rows["softmax-stack"].step_error <= 1e-11
    assert 1e-9 < rows["relu-stack"].step_error < 1e-2
    assert (rows["relu-stack"].layers_per_step, rows["universal"].layers_per_step) == (5, 4)
    assert rows["cot-network"].step_error <= 1e-11


def test_errors_and_bounds_of_a_row_come_from_one_backend():
    compiled = icgd.compile(NARROW, "softmax-stack", n_steps=2)
    x, y = torch.tensor([[0.5], [-0.25]]), torch.tensor([[0.25], [0.75]])
    size, bounds = compiled.summary(2), {}
    for asked, backend in (("auto", "literal"), ("fused", "fused"), ("dense", "dense")):
        row = next(row for row in compared(asked).rows if row.construction == "softmax-stack")
        assert (row.backend, row.fused_because) == (backend, None)
        assert [getattr(row, name) for name in SIZES] == [getattr(size, name) for name in SIZES]
        bounds[backend] = row.domain_bound
        proved = icgd.verify(compiled, x, y, backend=backend).certificate.domain_step
        assert proved == row.domain_bound
    assert bounds["literal"] == bounds["dense"] > bounds["fused"]


def test_a_literal_run_that_is_too_long_is_fused_and_says_so(monkeypatch):
    monkeypatch.setattr("icgd.backends.registry.MOST_FLOPS", 10**7)
    for row in compare(quick(NARROW)).rows:
        assert row.backend == "fused"
        assert row.fused_because.startswith("a literal run takes ")


def test_an_unknown_backend_is_refused():
    with pytest.raises(UnknownNameError, match=r"Unknown backend 'fusd'.* Did you mean 'fused'"):
        quick(NARROW, backend="fusd")


def test_recursion_joins_where_the_output_is_linear():
    problem = icgd.Problem(icgd.MLP((2, 3, 1)), "squared", NARROW.update, NARROW.domain)
    rows = {row.construction: row for row in compare(quick(problem)).rows}
    assert {"relu-stack", "softmax-stack", "recursion", "cot-network"} <= rows.keys()
    assert not {"functional", "linear-stack", "universal"} & rows.keys()
    assert rows["recursion"].layers_per_step == 4
    assert rows["recursion"].verdict.holds


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
        icgd.MLP((2, 3)), "cross_entropy", TINY.problem.update, icgd.Domain(1e15, 1.0)
    )
    with pytest.raises(UnsupportedProblemError, match="No construction can compile this problem"):
        compare(quick(problem))


def test_labels_of_classes_are_shares():
    problem = icgd.Problem(
        icgd.MLP((2, 3)), "cross_entropy", TINY.problem.update, icgd.Domain(1.0, 1.0)
    )
    found = compare(quick(problem))
    able = ["relu-stack", "softmax-stack", "cot-network"]
    assert [row.construction for row in found.rows] == able
    assert all(row.verdict.holds for row in found.rows)


def test_the_picture_names_every_construction():
    figure = draw(compared("auto"))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == [
        "cot-network, literal",
        "universal, literal",
        "softmax-stack, literal",
        "relu-stack, literal",
    ]
    assert plotting.png(figure).startswith(b"\x89PNG")


def test_errors_of_several_sets_of_data_and_times_of_all_rounds_are_kept():
    problem = NARROW
    found = compare(quick(problem, n_seeds=3, n_timings=3, backend="fused"))
    alone = [compare(quick(problem, seed=seed, backend="fused")) for seed in range(3)]
    for place, row in enumerate(found.rows):
        assert row.step_errors == tuple(one.rows[place].step_error for one in alone)
        assert row.step_error == max(row.step_errors) <= row.step_bound
        assert 0 < row.over_descent_range[0] <= row.over_descent_range[1]


def test_the_picture_shows_the_spread():
    found = compare(quick(NARROW, n_seeds=2, n_timings=2, backend="fused"))
    _, errors, times = draw(found).axes
    last = found.rows[-1]
    assert errors.lines[0].get_xdata().tolist() == [max(e, 1e-17) for e in last.step_errors]
    assert tuple(times.lines[1].get_xdata()) == last.over_descent_range
    assert errors.get_xlabel() == "dots: 2 sets of data\nbar: proved, bound (b)"
