"""Direct training against torch's own modules, one prompt at a time."""

import numpy as np
import torch
from torch import nn

from icgd_papers.figures.wu_direct import DirectTraining, best_epochs, outputs_of

N_EPOCHS = 12


def prompts(n_tasks=5, n_tokens=7, width=3):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(n_tasks, n_tokens, width, generator=source) - 2
    return x, 3 * torch.randn(n_tasks, n_tokens, generator=source)


def trained_alone(x, y, first, learning_rate):
    """What an ordinary module predicts after each epoch, trained on one prompt."""
    layers = [nn.Linear(*matrix.shape, bias=False) for matrix in first]
    for layer, matrix in zip(layers, first, strict=True):
        layer.weight.data.copy_(matrix.detach().T)
    relus = [part for layer in layers[:-1] for part in (layer, nn.ReLU())]
    network = nn.Sequential(*relus, layers[-1])
    adam = torch.optim.Adam(network.parameters(), lr=learning_rate)
    size, found = y[:-1].square().mean().sqrt(), []
    for _ in range(N_EPOCHS):
        adam.zero_grad()
        nn.functional.mse_loss(network(x[:-1])[:, 0], y[:-1] / size).backward()
        adam.step()
        found.append(float(network(x[-1:]) * size))
    return found


def test_every_prompt_is_trained_as_if_it_were_alone():
    x, y = prompts()
    training = DirectTraining(3, 8, N_EPOCHS, 0.01, seed=4)
    first = training._first_weights(len(x), x.shape[-1], index=0)
    wanted = [
        trained_alone(x[i], y[i], [matrix[i] for matrix in first], 0.01) for i in range(len(x))
    ]
    y[:, -1] = 1e9  # the query's label is not read
    np.testing.assert_allclose(training.predictions(x, y).T, wanted, rtol=2e-4, atol=1e-4)


def test_parts_have_first_weights_of_their_own():
    x, y = (part[:1].expand(65, *part.shape[1:]) for part in prompts())
    found = DirectTraining(3, 8, 1, 0.01).predictions(x, y)[0]
    assert found.shape == (65,)
    assert found[0] != found[64]
    again = DirectTraining(3, 8, 1, 0.01).predictions(x, y)[0]
    assert found.tolist() == again.tolist()


def test_labels_of_another_size_change_nothing_else():
    x, y = prompts()
    training = DirectTraining(2, 8, 5, 0.01)
    near, far = training.predictions(x, y), training.predictions(x, 2.0**20 * y)
    np.testing.assert_array_equal(far, 2.0**20 * near)


def test_first_outputs_are_small_beside_the_labels():
    first = DirectTraining(4, 64, 1, 0.01)._first_weights(200, 5, index=0)
    outputs = outputs_of(first, torch.randn(200, 20, 5, generator=torch.Generator().manual_seed(0)))
    assert 0.7 < float(outputs.square().mean()) / (2 * 0.1**2) < 1.3  # |x|^2 / width is 1


def test_the_best_epoch_is_chosen_by_the_label():
    predictions = torch.tensor([[1.0, 5.0], [2.0, 3.0], [4.0, 4.5]]).double()
    assert best_epochs(predictions, torch.tensor([2.2, 5.1]).double()).tolist() == [2.0, 5.0]
