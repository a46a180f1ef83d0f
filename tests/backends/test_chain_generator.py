import pytest
import torch

from icgd.backends.chain import GENERATORS, run_chain
from icgd.errors import OverflowedRunError
from icgd.problems.mlp import MLP
from icgd.problems.problem import Domain, Problem
from icgd.problems.task import as_task
from icgd.problems.updates import GradientStep
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
