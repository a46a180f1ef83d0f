import pytest
import torch
from torch import nn

from icgd.layers import Transformer


class Affine(nn.Module):
    """scale * x + 1."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + 1.0


ONE = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("n_repeats", "value"),
    [
        (0, 11.0),  # 10 * 1 + 1
        (1, 101.0),  # 3 (2 * 1 + 1) + 1 = 10, then 10 * 10 + 1
        (2, 641.0),  # 3 (2 * 10 + 1) + 1 = 64
    ],
)
def test_the_block_runs_as_often_as_said_and_the_final_layers_once(n_repeats, value):
    transformer = Transformer([Affine(2.0), Affine(3.0)], n_repeats, [Affine(10.0)])
    assert transformer(ONE).item() == value


def test_layers_come_in_the_order_in_which_they_run():
    block, final = [Affine(2.0), Affine(3.0)], [Affine(10.0)]
    assert list(Transformer(block, 2, final).unrolled()) == [*block, *block, *final]


def test_a_repeated_block_has_its_weights_once():
    transformer = Transformer([Affine(2.0), Affine(3.0)], 5, [Affine(10.0)])
    assert [weight.item() for weight in transformer.parameters()] == [2.0, 3.0, 10.0]


def test_it_shows_itself_in_a_line():
    transformer = Transformer([Affine(2.0), Affine(3.0)], 5, [Affine(10.0)])
    assert repr(transformer) == (
        "Transformer(layers: 11: 2 layers repeated 5 times, then 1; weights: 3)"
    )
    assert transformer._repr_html_().startswith("<strong>Transformer</strong><table>")
