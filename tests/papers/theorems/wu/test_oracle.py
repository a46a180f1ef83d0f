import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icgd.layers import ActivationAttention, MLPLayer, ProductLayer
from icgd_papers.theorems.wu.oracle import (
    ACTIVATIONS,
    TANH_BEND,
    SumOfRelus,
    Training,
    largest,
    layer_norm,
    matrices_of,
    product_norm,
    tanh_slope,
    unit_rows,
)


@given(st.sampled_from(list(ACTIVATIONS)), st.sampled_from(["squared", "logistic", "huber"]))
@settings(max_examples=15, deadline=None)
def test_the_gradient_is_that_of_torch(activation, loss):
    rng, widths = np.random.default_rng(0), (2, 3, 3, 2)
    x, y, w = rng.normal(size=(5, 2)), rng.uniform(size=(5, 2)), rng.normal(size=21)
    training = Training(widths, x, y, 0.1, activation=activation, output="tanh", loss=loss)
    weights, target = torch.tensor(w, requires_grad=True), torch.tensor(y)
    p, start = torch.tensor(x), 0
    names = [activation, activation, "tanh"]
    for rows, columns, name in zip(widths[1:], widths[:-1], names, strict=True):
        matrix = weights[start : start + rows * columns].view(rows, columns)
        z, start = p @ matrix.mT, start + rows * columns
        p = z if name == "identity" else getattr(torch.nn.functional, name)(z)
    losses = {
        "squared": ((p - target) ** 2).sum(),
        "logistic": torch.nn.functional.binary_cross_entropy_with_logits(
            p, target, reduction="sum"
        ),
        "huber": torch.nn.functional.huber_loss(p, target, reduction="sum"),
    }
    (losses[loss] / 10).backward()
    np.testing.assert_allclose(training.gradient(w), weights.grad.numpy(), atol=1e-12)


def test_a_step_is_projected_and_the_hessian_is_that_of_a_parabola():
    x, y = np.array([[2.0]]), np.array([[1.0]])
    training = Training((1, 1), x, y, 0.1, box=0.3, activation="identity")
    assert training.after(np.zeros(1)) == pytest.approx(0.2)  # 0.1 * 2 * 1
    assert training.after(np.full(1, -0.3)) == pytest.approx(0.02)
    assert training.after(np.full(1, 1.5)) == 0.3
    assert training.hessian_norm(np.ones(1)) == pytest.approx(4.0)


def test_weights_are_split_layer_by_layer_and_row_by_row():
    first, second = matrices_of((3, 2, 1), np.arange(8.0))
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.tolist() == [[6, 7]]


def test_a_sum_of_relus_interpolates_and_goes_on_straight():
    fit = SumOfRelus(np.square, 2.0, 4)
    z = np.array([-2.0, -1.5, 0.0, 0.5, 2.0, 5.0])
    np.testing.assert_allclose(fit(z), [4.0, 2.5, 0.0, 0.5, 4.0, 4.0 + 3 * 3.0])
    assert fit.error == pytest.approx(0.25)  # h^2 / 4 with h = 1
    scales, shifts, coefficients = fit.terms
    assert (np.abs(scales) + np.abs(shifts)).max() <= 1 + 1e-15
    # constant -2, line 3 twice, bends of 2 at -1, 0, 1, scaled by 2, 1, 2
    assert fit.total == pytest.approx(2 + 6 + 2 * (2 + 1 + 2))
    assert len(coefficients) == 6


@given(st.integers(2, 40), st.floats(0.5, 4.0))
@settings(max_examples=20, deadline=None)
def test_an_interpolation_errs_by_h_squared_over_8_times_the_bend(pieces, reach):
    error = SumOfRelus(np.sin, reach, pieces).error
    assert error <= (2 * reach / pieces) ** 2 / 8 + 1e-14


def test_the_bend_of_tanh_is_its_largest_second_derivative():
    assert largest(lambda z: 2 * np.tanh(z) * tanh_slope(z), 3.0) == pytest.approx(
        TANH_BEND, abs=1e-6
    )


def test_rows_have_norm_one():
    rows = unit_rows(np.random.default_rng(0), 5, 3)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)


def heads(query: float, key: float, value: float) -> tuple[torch.Tensor, ...]:
    """Two equal heads that read two coordinates and write one."""
    read = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).expand(2, 2, 2)
    carried = torch.tensor([[1.0], [0.0]]).expand(2, 2, 1)
    written = torch.tensor([[value, -value]]).expand(2, 1, 2)
    return query * read, key * read, carried, written


def test_norms_of_layers():
    # |Q|_1 = 6, |K|_1 = 10, and |V|_1 = 14 for each of two heads.
    assert layer_norm(ActivationAttention(*heads(3.0, 5.0, 7.0))) == 10 + 2 * 14
    assert product_norm(ProductLayer(*heads(3.0, 5.0, 7.0))) == 14
    reads, bias = torch.tensor([[1.0, -2.0], [0.5, 0.5]]), torch.tensor([4.0, -5.0])
    writes = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    assert layer_norm(MLPLayer(reads, bias, writes)) == 9 + 3
