import torch

from icgd_papers.theorems.wu.experiments import left, prompts, simple_baselines


def test_the_best_constant_leaves_all_of_the_variance():
    labels = torch.tensor([1.0, 2.0, 6.0])
    assert left((labels - 3.0) ** 2, labels) == 1.0
    assert left(torch.zeros(3), labels) == 0.0


def test_inputs_lie_around_minus_two():
    x, y = prompts(50, depth=3, seed=0)
    assert x.shape == (50, 51, 20)
    assert y.shape == (50, 51)
    assert abs(float(x.mean()) + 2) < 0.02


def test_ridge_regression_explains_more_than_the_mean_of_the_labels():
    mean, ridge = simple_baselines(depth=3, seed=5, n_prompts=100)
    assert 0.6 < mean < ridge < 1.0
