import torch

from icgd.layers import ProductLayer


def heads(seed: int = 0) -> list[torch.Tensor]:
    """Query, key, value and output weights of 3 heads of width 2."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 5, 2)] * 3 + [(3, 2, 5)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def stream(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_loops(x, query, key, value, output):
    """x[i] + sum_head <W_Q x[i], W_K x[i]> W_O W_V x[i]."""
    result = x.clone()
    for i, token in enumerate(x):
        for head in range(len(query)):
            score = torch.dot(token @ query[head], token @ key[head])
            result[i] += score * (token @ value[head] @ output[head])
    return result


def test_it_is_its_formula():
    weights, x = heads(), stream(4, 5)
    torch.testing.assert_close(ProductLayer(*weights)(x), by_loops(x, *weights))


def test_a_batch_is_each_of_its_tasks():
    weights, x = heads(), stream(2, 3, 4, 5)
    together = ProductLayer(*weights)(x)
    for index in ((0, 0), (1, 2)):
        torch.testing.assert_close(together[index], by_loops(x[index], *weights))


def test_tokens_do_not_see_each_other():
    layer, x = ProductLayer(*heads()), stream(4, 5)
    alone = torch.cat([layer(token[None]) for token in x])
    torch.testing.assert_close(layer(x), alone)


def test_its_weights_have_the_usual_names_and_axes():
    shapes = {name: tuple(w.shape) for name, w in ProductLayer(*heads()).named_parameters()}
    assert shapes == {"W_Q": (3, 5, 2), "W_K": (3, 5, 2), "W_V": (3, 5, 2), "W_O": (3, 2, 5)}
