import pytest
import torch

from icgd.backends.chain import GENERATORS, run_chain
from icgd.backends.run import RunOptions
from icgd.errors import OverflowedRunError
from icgd.problems.data import Domain, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from tests.backends.chain_cases import program_of


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("backend", GENERATORS)
def test_what_leaves_the_grid_is_named(backend, activation):
    """Layer 1 gives 50, layer 2 100 * 50, more than the grid's 4096."""
    target = MLP((1, 1, 1), activation)
    problem = Problem(target, "squared", GradientStep(0.1, 100.0, 1), Domain(100.0, 1.0))
    task = as_task(problem, [[50.0]], [[0.0]], initial=torch.tensor([1.0, 100.0]).double())
    with pytest.raises(OverflowedRunError) as caught:
        run_chain(program_of(problem), task, backend=backend)
    assert str(caught.value) == (
        "Row z of block 2 (forward 2 of round 1) reaches 5000, but the grid that its heads read "
        "ends at 4096. Use a smaller step size, box or domain."
    )


@pytest.mark.parametrize("backend", GENERATORS)
def test_a_query_that_leaves_the_grid_is_named(backend):
    """No step of training is large: the input is 0."""
    problem = Problem(MLP((1, 1)), "squared", GradientStep(0.1, 100.0, 1), Domain(100.0, 1.0))
    task = as_task(problem, [[0.0]], [[0.0]], queries=[[50.0]], initial=[100.0])
    with pytest.raises(OverflowedRunError) as caught:
        run_chain(program_of(problem, 2), task, backend=backend)
    assert str(caught.value).startswith("Row z of block 1 (forward 1 at the queries) reaches 5000,")


@pytest.mark.parametrize("backend", GENERATORS)
def test_what_nobody_reads_may_leave_the_grid(backend):
    """B_1 passes back 6 * 1000 * 4, beyond the grid's 4096, where there is no layer below."""
    problem = Problem(MLP((1, 6)), "squared", GradientStep(0.1, 1000.0, 1), Domain(1e-3, 1.0))
    y, initial = -torch.ones(1, 6).double(), torch.full((6,), 1000.0).double()
    task = as_task(problem, [[1e-3]], y, initial=initial)
    run = run_chain(program_of(problem, 2), task, RunOptions(("second",)), backend=backend)
    real = problem.oracle.train(task, 2)
    assert run.trace["second"].abs().max() > 20000
    assert (run.parameters - real).abs().max() < 1e-11


@pytest.mark.parametrize("backend", GENERATORS)
def test_what_is_not_a_number_is_named_wherever_it_is(backend):
    """Not even B_1 may pass it back: weights that are 0 times it are not 0."""
    problem = Problem(MLP((1, 1)), "squared", GradientStep(0.1, 1.0, 1), Domain(1.0, 1.0))
    task = as_task(problem, [[1.0]], [[0.0]], initial=[1.0])
    generator = GENERATORS[backend](program_of(problem), task.x)
    back = next(
        part
        for layer in generator.program.layers
        for part in layer.instructions
        if part.writes() == ("back",)
    )
    with pytest.raises(OverflowedRunError, match=r"backward 1 of round 1\) reaches nan"):
        generator.require_reach(back, torch.tensor([torch.nan]), 2, at_queries=False)
