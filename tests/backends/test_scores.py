from math import nan

import pytest
import torch

from icgd.backends.scores import linear_scores, require_scores
from icgd.errors import OverflowedRunError


def test_scores_are_products_and_the_intercept():
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    assert linear_scores(torch.tensor([0.5, 0.25]), x).tolist() == [[1.0], [1.25]]
    assert linear_scores(torch.tensor([0.5, 0.25, 10.0]), x).tolist() == [[11.0], [11.25]]


def test_a_batch_has_coefficients_of_its_own():
    x = torch.ones(2, 1, 2)
    weights = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert linear_scores(weights, x).flatten().tolist() == [6.0, 15.0]


@pytest.mark.parametrize("value", [-2.5, 2.5, nan])
def test_the_row_and_the_value_beyond_the_range_are_named(value):
    scores = torch.tensor([[1.0], [-2.0], [value]])
    where = rf"at step 4, example 2 \(counted from 0\) is {value:g}, but .* up to 2\."
    with pytest.raises(OverflowedRunError, match=where):
        require_scores(scores, 2.0, "step 4, example")


def test_scores_within_the_range_and_none_at_all_pass():
    require_scores(torch.tensor([[2.0], [-2.0]]), 2.0, "query")
    require_scores(torch.zeros(0, 1), 2.0, "query")
