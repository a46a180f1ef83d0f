"""The benchmark of faster methods: its cases, and how it counts layers."""

import torch

from benchmarks import accelerated
from benchmarks.accelerated import CHEBYSHEV, METHODS, cases, layers_to, linear, methods


def test_every_method_reaches_its_tolerance_and_one_layer_less_does_not():
    case = linear(30.0)
    for name in METHODS[2:]:  # the others take longer
        n_layers = layers_to(case, name)
        assert accelerated._errors(case, name, n_layers, "dense")[-1] <= 1e-6
        assert accelerated._errors(case, name, n_layers - 1, "fused")[-1] > 1e-6
    assert layers_to(case, CHEBYSHEV) == 40
    assert layers_to(case, "Newton-Schulz") == 8


def test_whitening_makes_the_covariance_the_identity():
    case = linear(30.0)
    covariance = case.x.mT @ case.x / len(case.x)
    whitened = case.whitening @ covariance @ case.whitening.mT
    assert torch.linalg.cond(covariance) > 20
    assert torch.linalg.cond(whitened) < 8


def test_only_the_linear_kernel_has_all_methods():
    for case in cases():
        known = METHODS if case.name == "linear" else METHODS[:-2]
        assert tuple(methods(case)) == known
