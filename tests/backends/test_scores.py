from math import nan

import pytest
import torch

from icgd.backends.prompt import linear_scores, read_point, require_scores
from icgd.errors import OverflowedRunError
from icgd.program.layout import Layout, Role, Slot
from icgd.program.linear_instructions import PredictMean


def test_scores_are_products_and_the_intercept():
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    assert linear_scores(torch.tensor([0.5, 0.25]), x).tolist() == [[1.0], [1.25]]
    assert linear_scores(torch.tensor([0.5, 0.25, 10.0]), x).tolist() == [[11.0], [11.25]]


def test_a_batch_has_coefficients_of_its_own():
    x = torch.ones(2, 1, 2)
    weights = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert linear_scores(weights, x).flatten().tolist() == [6.0, 15.0]


def test_the_point_of_a_score_has_the_velocities_that_count():
    slots = {"w": (1, 2), "b": (1, 1), "v": (1, 2), "u": (1, 1)}
    layout = Layout(tuple(Slot(name, shape, Role.PARAMETER) for name, shape in slots.items()))
    stream = torch.arange(12.0).reshape(2, 6)
    ahead = PredictMean(
        "identity",
        ("w", "b", "v", "u"),
        ("x", "one", "x", "one"),
        9.0,
        "is_example",
        "mean",
        (1.0, 1.0, 0.5, 0.5),
    )
    assert read_point(ahead, layout, stream).tolist() == [1.5, 3.0, 4.5]


@pytest.mark.parametrize("value", [-2.5, 2.5, nan])
def test_the_row_and_the_value_beyond_the_range_are_named(value):
    scores = torch.tensor([[1.0], [-2.0], [value]])
    where = rf"at step 4, example 2 \(counted from 0\) is {value:g}, but .* up to 2\."
    with pytest.raises(OverflowedRunError, match=where):
        require_scores(scores, 2.0, "step 4, example")


def test_scores_within_the_range_and_none_at_all_pass():
    require_scores(torch.tensor([[2.0], [-2.0]]), 2.0, "query")
    require_scores(torch.zeros(0, 1), 2.0, "query")
