"""Least squares with coefficients of at least 0, against scipy and its own conditions."""

import pytest
import torch
from scipy.optimize import nnls

from icgd.problems.nonnegative import nonnegative_least_squares


def problem(seed: int, n_columns: int):
    """Bumps around random places, much alike, so that many columns which enter leave again."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(n_columns, generator=generator, dtype=torch.float64)
    line = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    matrix = torch.exp(-(((line - places) / 0.15) ** 2))
    matrix[:, 3] = matrix[:, 2]  # twins: only one of them can be used
    matrix[:, 1] = 0.0
    return matrix, torch.rand(20, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n_columns", [4, 100])
@pytest.mark.parametrize("seed", range(4))
def test_the_residual_is_that_of_scipy_and_no_column_could_lower_it(n_columns, seed):
    matrix, target = problem(seed, n_columns)
    found = nonnegative_least_squares(matrix, target)
    left = target - matrix @ found
    assert (found >= 0).all()
    assert float(left.norm()) == pytest.approx(nnls(matrix.numpy(), target.numpy())[1], abs=1e-11)
    assert (matrix.mT @ left).max() <= 1e-11
    assert ((matrix.mT @ left)[found > 0].abs() <= 1e-11).all()


@pytest.mark.parametrize(
    ("target", "expected"),
    [([-1.0, -1, -1], [0, 0, 0]), ([0.0, 0, 0], [0, 0, 0]), ([1.0, -1, 2], [1, 0, 2])],
)
def test_a_column_that_only_hurts_is_not_used(target, expected):
    matrix, target = torch.eye(3, dtype=torch.float64), torch.tensor(target, dtype=torch.float64)
    assert nonnegative_least_squares(matrix, target).tolist() == expected
