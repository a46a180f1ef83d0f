"""The verdict on every statement of wang, and the small mathematics of its checks."""

from math import pi, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd.constructions.recursion import Recursion
from icgd.pipeline import compile
from icgd_papers.theorems.book import check_statement, statement_named
from icgd_papers.theorems.statement import CHECKS, Verdict
from icgd_papers.theorems.wang import descent, functions

VERDICTS = {
    "definition-3": Verdict.HOLDS,
    "assumption-1": Verdict.UNDECIDED,
    "assumption-2": Verdict.HOLDS,
    "theorem-1": Verdict.PROOF_FAILS,
    "remark-1": Verdict.HOLDS,
    "theorem-2": Verdict.PROOF_FAILS,
    "remark-2": Verdict.HOLDS,
    "lemma-1": Verdict.UNDECIDED,
    "lemma-2": Verdict.CORRECTED,
    "theorem-3": Verdict.PROOF_FAILS,
    "lemma-3": Verdict.HOLDS,
    "lemma-4": Verdict.HOLDS,
    "theorem-4": Verdict.UNDECIDED,
    "lemma-5": Verdict.HOLDS,
    "equation-4": Verdict.CORRECTED,
    "appendix-a-forward-layers": Verdict.CORRECTED,
    "appendix-a-loss-slope-layer": Verdict.CORRECTED,
    "appendix-a-gradient-layer": Verdict.CORRECTED,
}
SECONDS = {"theorem-1", "theorem-2", "lemma-5"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SECONDS else n for n in VERDICTS]
)
def test_every_statement_has_its_verdict(name):
    assert check_statement(statement_named(f"wang-{name}"), seed=0).verdict is VERDICTS[name]


def test_a_step_that_does_nothing_is_no_step():
    problem = descent.network_problem((2, 3, 1))
    compiled = compile(problem, Recursion(96, "relu"), n_steps=1)
    x, y = torch.full((5, 2), 0.5).double(), torch.full((5, 1), -1.0).double()
    task = compiled.task(x, y, seed=0)
    initial = compiled.run_task(task).parameters[0]
    moved = (problem.oracle.exact_step(task)(initial, 0) - initial).norm()
    assert moved > 3 * descent.STEP * descent.EPS
    assert descent.worst_step(compiled, 0, "literal") < descent.STEP * descent.EPS / 10


def test_too_few_units_are_noticed():
    comparison = descent.literal_steps(descent.network_problem((2, 3, 1)), "sigmoid", 0, n_units=48)
    assert not comparison.holds


@given(height=st.floats(0.1, 1.0))
def test_a_hat_has_its_height_and_its_norm(height):
    norm = 0.05
    z = torch.linspace(0, 1, 20_001, dtype=torch.float64)[:, None]
    values = descent.hat(z, height, norm)
    assert float(values.max()) == pytest.approx(height)
    measured = float(values.square().sum()) * 5e-5
    assert 0.9 * norm <= sqrt(measured) <= 1.001 * norm


def test_the_barron_norm_of_a_gaussian_is_the_mean_of_one_plus_its_frequency():
    t = torch.linspace(-40, 40, 2**14, dtype=torch.float64)
    norm = functions.barron_norm(torch.exp(-(t**2) / 2), float(t[1] - t[0]))
    assert norm == pytest.approx(1 + sqrt(2 / pi), rel=1e-3)


def test_the_test_function_of_the_lower_bound_has_a_bounded_transform():
    x = torch.linspace(1, 200, 400_001, dtype=torch.float64)
    spacing = float(x[1] - x[0])
    for frequency in (0.01, 0.1, pi / 200, 1.0, 3.0):
        integral = float((torch.sin(frequency * x) / x).sum()) * spacing
        assert abs(integral) <= functions.SINE_INTEGRAL + 1e-3


def test_three_layers_cost_the_square_of_what_is_printed():
    proof = [c for c in CHECKS["wang", "Theorem 3"](0) if c.unit.endswith("eps^-1")]
    assert [c.ratio for c in proof] == pytest.approx([2.0] * 3)


def test_units_in_the_key_give_every_token_the_same_mean():
    stream = descent.random_stream(1)
    head = ([{descent.ONE: 1.0}], [{0: 1.0}], {descent.ONE: 1.0})
    written = descent.attend(stream, [head], torch.relu)
    expected = torch.relu(stream[:, 0]).mean().expand(descent.N_TOKENS)
    torch.testing.assert_close(written, expected)
