import torch

from icgd_papers.theorems.wu.network import (
    TANH_BEND,
    deltas,
    gradient,
    outputs,
    random_inputs,
    random_matrices,
    slopes,
    squared_slope,
    tanh_slope,
)


def test_rows_and_inputs_have_the_norms_that_are_asked_for():
    for matrix in random_matrices((3, 4, 2), seed=0, row_norm=1.5):
        torch.testing.assert_close(matrix.norm(dim=1), torch.full((len(matrix),), 1.5).double())
    x = random_inputs(5, 3, seed=0, norm=2.0)
    torch.testing.assert_close(x.norm(dim=1), torch.full((5,), 2.0).double())


def test_the_gradient_of_one_weight_is_that_on_paper():
    w, x, y = 0.5, 2.0, 0.3
    matrices = [torch.tensor([[w]], dtype=torch.float64)]
    values = outputs(matrices, torch.tensor([[x]], dtype=torch.float64), torch.tanh)
    bends = slopes(matrices, values, tanh_slope)
    u = squared_slope(values[-1], torch.tensor([[y]], dtype=torch.float64))
    p = torch.tanh(torch.tensor(w * x)).item()
    expected = (p - y) * (1 - p * p) * x
    assert abs(float(gradient(values, deltas(matrices, bends, u))) - expected) < 1e-6


def test_the_bend_of_tanh_is_the_largest_second_derivative():
    z = torch.linspace(-3, 3, 100_001, dtype=torch.float64)
    bend = (2 * torch.tanh(z) * tanh_slope(z)).abs().max()
    assert abs(float(bend) - TANH_BEND) < 1e-9
