from math import sqrt

import torch

from icgd_papers.theorems.wu.forward import forward_constant, printed_bound, true_reach
from icgd_papers.theorems.wu.network import outputs


def test_the_constant_is_the_printed_sum():
    # K = 4, L_r B_v = 3: growth 6 over three layers, times sqrt(9) of the output
    assert forward_constant((2, 4, 4, 9), 1.0, 3.0) == (1 + 6 + 36) * 3


def test_the_printed_bound_is_on_single_outputs():
    assert printed_bound(torch.tanh, 1.0, 0.5, depth=2) == 0.5
    assert printed_bound(lambda z: 2 * z, 1.0, 0.5, depth=2) == 2.0


def test_no_argument_exceeds_the_true_reach():
    width = 9
    first = torch.zeros(width, 2, dtype=torch.float64)
    first[:, 0] = 1.0
    aligned = torch.full((1, width), 1 / sqrt(width), dtype=torch.float64)
    p = outputs([first], first[:1], torch.tanh)[-1]
    assert float(p @ aligned.mT) > printed_bound(torch.tanh, 1.0, 1.0, depth=2)
    assert (
        float(p @ aligned.mT) <= true_reach(torch.tanh, 1.0, 1.0, (2, width, 1), room=0.0) + 1e-12
    )
