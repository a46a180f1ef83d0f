from math import exp, log

import pytest
import torch

from icgd_papers.theorems.wu.score import FIRST, LAST, REACH, distance, network, score


def test_the_score_is_the_gradient_of_the_log_density():
    time = 0.7
    x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    mean = exp(-time / 2)
    bells = [-((x - c) ** 2) / (2 * (1 - mean**2)) for c in (-mean, mean)]
    (slope,) = torch.autograd.grad(torch.logaddexp(*bells).sum(), x)
    torch.testing.assert_close(score(x.detach(), torch.tensor(time).double()), slope)


def test_the_network_has_the_score_at_the_nodes_of_its_mesh():
    x = torch.linspace(-REACH, REACH, 9, dtype=torch.float64)
    time = exp((log(FIRST) + log(LAST)) / 2)
    found = network(x, time, n_x=9, n_t=3)
    torch.testing.assert_close(found, score(x, torch.tensor(time, dtype=torch.float64)))


def test_the_distance_falls_with_the_square_of_the_spacing():
    assert distance(0.57, 33, 9) / distance(0.57, 65, 17) == pytest.approx(4, rel=0.35)
