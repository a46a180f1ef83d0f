import torch

from icgd.layers import MLPLayer


def weights(seed: int = 0) -> list[torch.Tensor]:
    """W_in, b_in and W_out of 6 hidden units on 4 features."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in [(4, 6), (6,), (6, 4)]
    ]


def stream(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_loops(x, weights_in, bias_in, weights_out):
    """x[i] + W_out relu(W_in x[i] + b_in)."""
    result = x.clone()
    for i, token in enumerate(x):
        for unit in range(len(bias_in)):
            hidden = float(torch.dot(token, weights_in[:, unit]) + bias_in[unit])
            result[i] += max(hidden, 0.0) * weights_out[unit]
    return result


def test_it_is_its_formula():
    x = stream(5, 4)
    torch.testing.assert_close(MLPLayer(*weights())(x), by_loops(x, *weights()))


def test_a_batch_is_each_of_its_tasks():
    x = stream(2, 3, 5, 4)
    together = MLPLayer(*weights())(x)
    for index in ((0, 1), (1, 2)):
        torch.testing.assert_close(together[index], by_loops(x[index], *weights()))


def test_its_weights_have_the_usual_names_and_axes():
    shapes = {name: tuple(w.shape) for name, w in MLPLayer(*weights()).named_parameters()}
    assert shapes == {"W_in": (4, 6), "b_in": (6,), "W_out": (6, 4)}
