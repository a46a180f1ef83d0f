"""Points in and around the ball."""

import pytest
import torch

from icgd.errors import SettingError
from icgd_papers.studies.ball import ball_sample


@pytest.mark.parametrize("dimension", [1, 2, 8])
def test_half_of_the_points_lie_in_the_ball_whatever_the_dimension(dimension):
    sample = ball_sample(dimension, 4000, seed=0, index=0)
    points, ones = sample.x[:, :-1], sample.x[:, -1]
    radii = points.norm(dim=1)
    assert points.shape == (4000, dimension)
    assert (ones == 1).all()
    assert ((radii <= 1).double() == sample.y).all()
    quarters = torch.histc(radii, 4, 0.0, 2.0) / 4000
    assert (quarters - 0.25).abs().max() < 0.03
    assert points.mean(0).abs().max() < 0.06
    assert (sample.y - 0.5).square().mean() == 0.25  # the best constant


def test_samples_of_two_numbers_differ_and_are_repeatable():
    first, again, other = (ball_sample(3, 50, seed=1, index=i).x for i in (0, 0, 1))
    assert torch.equal(first, again)
    assert (first[:, 0] != other[:, 0]).all()


def test_a_ball_has_a_dimension():
    with pytest.raises(SettingError) as caught:
        ball_sample(0, 10, seed=0, index=0)
    assert str(caught.value) == "dimension must be a whole number of at least 1, got 0."
