"""What stands at each place of a stream, number by number."""

import torch

from icgd_papers.training.decoder import TOKEN_LAYOUTS

X = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
Y = torch.tensor([[[10.0], [20.0], [30.0]]])  # 30 is the query's, which nobody may read


def test_joint_tokens_hold_an_input_and_the_example_before_it():
    assert TOKEN_LAYOUTS["joint"].tokens(X, Y).tolist() == [
        [[1, 2, 0, 0, 0], [3, 4, 1, 2, 10], [5, 6, 3, 4, 20]]
    ]


def test_interleaved_tokens_hold_inputs_and_labels_in_turn():
    assert TOKEN_LAYOUTS["interleaved"].tokens(X, Y).tolist() == [
        [[1, 2, 0, 0], [0, 0, 10, 1], [3, 4, 0, 0], [0, 0, 20, 1], [5, 6, 0, 0]]
    ]


def test_sizes_are_those_of_the_tokens_and_inputs_predict():
    labels = torch.cat([Y, -Y], dim=-1)
    for layout in TOKEN_LAYOUTS.values():
        tokens = layout.tokens(X, labels)
        assert tokens.shape == (1, layout.n_places(3), layout.width(2, 2))
        assert torch.equal(tokens[:, layout.predicting, :2], X)
