r"""The activations of the target network.

The stationary points below are where a derivative of the next order vanishes. Those of tanh,
sigmoid and softplus come from t = tanh z:

    tanh' = 1 - t^2,  tanh'' = -2 t (1 - t^2),  tanh''' = (6 t^2 - 2)(1 - t^2),
    tanh'''' = (16 t - 24 t^3)(1 - t^2),

those of gelu from its second derivative phi(z) (2 - z^2), where phi is the normal density.
The three of silu, and the minimum of gelu, are roots of transcendental equations, correct to
the last digit of a double.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import atanh, pi, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from icgd.problems.functions import KinkedFunction, ScalarFunction, SmoothFunction
from icgd.problems.settings import by_name, named


@dataclass(frozen=True)
class Activation:
    """An activation r together with its derivative r'.

    A smooth one that grows like a line is z gate(z) + rest(z), where gate and rest are bounded.
    """

    value: ScalarFunction
    gate: SmoothFunction | None = None
    rest: SmoothFunction | None = None

    @property
    def name(self) -> str:
        return self.value.name

    @property
    def derivative(self) -> ScalarFunction:
        return self.value.derivative()


def _around_zero(*points: float) -> tuple[float, ...]:
    return (*(-point for point in reversed(points)), *points)


def _tanh_1(z: Tensor) -> Tensor:
    return 1 / torch.cosh(z) ** 2


def _tanh_2(z: Tensor) -> Tensor:
    return -2 * torch.tanh(z) * _tanh_1(z)


def _tanh_3(z: Tensor) -> Tensor:
    return (6 * torch.tanh(z) ** 2 - 2) * _tanh_1(z)


TANH = SmoothFunction(
    "tanh",
    (torch.tanh, _tanh_1, _tanh_2, _tanh_3),
    (
        (),
        (0.0,),
        _around_zero(atanh(sqrt(1 / 3))),
        (-atanh(sqrt(2 / 3)), 0.0, atanh(sqrt(2 / 3))),
    ),
)


def _sigmoid_1(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _sigmoid_2(z: Tensor) -> Tensor:
    return -torch.tanh(z / 2) * _sigmoid_1(z)


def _sigmoid_3(z: Tensor) -> Tensor:
    return (1 - 6 * _sigmoid_1(z)) * _sigmoid_1(z)


# sigmoid(z) = (1 + tanh(z / 2)) / 2, so its stationary points are twice those of tanh.
SIGMOID = SmoothFunction(
    "sigmoid",
    (torch.sigmoid, _sigmoid_1, _sigmoid_2, _sigmoid_3),
    tuple(tuple(2 * point for point in points) for points in TANH.stationary),
)

SOFTPLUS = SmoothFunction(
    "softplus",
    (lambda z: torch.logaddexp(z, torch.zeros_like(z)), *SIGMOID.tower[:3]),
    ((), *SIGMOID.stationary[:3]),
)


def _normal_density(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / sqrt(2 * pi)


def _normal_distribution(z: Tensor) -> Tensor:
    # Not torch.special.ndtr, which is exactly 0 below -9.
    return torch.erfc(-z / sqrt(2)) / 2


GELU = SmoothFunction(
    "gelu",
    (
        lambda z: z * _normal_distribution(z),
        lambda z: _normal_distribution(z) + z * _normal_density(z),
        lambda z: (2 - z * z) * _normal_density(z),
        lambda z: (z * z - 4) * z * _normal_density(z),
    ),
    (
        (-0.75179152469356445746,),
        _around_zero(sqrt(2)),
        (-2.0, 0.0, 2.0),
        _around_zero(sqrt((7 - sqrt(33)) / 2), sqrt((7 + sqrt(33)) / 2)),
    ),
)

SILU = SmoothFunction(
    "silu",
    (
        lambda z: z * torch.sigmoid(z),
        lambda z: torch.sigmoid(z) + z * _sigmoid_1(z),
        lambda z: 2 * _sigmoid_1(z) + z * _sigmoid_2(z),
        lambda z: 3 * _sigmoid_2(z) + z * _sigmoid_3(z),
    ),
    (
        (-1.2784645427610737951,),
        _around_zero(2.3993572805154676678),
        (-3.435840993535110689, 0.0, 3.435840993535110689),
        _around_zero(1.0319582417807491234, 4.4292351005572279796),
    ),
)

NORMAL_DISTRIBUTION = SmoothFunction(
    "normal_distribution",
    (_normal_distribution, _normal_density, lambda z: -z * _normal_density(z)),
    ((), (0.0,), (-1.0, 1.0)),
)


def _coin_entropy(z: Tensor) -> Tensor:
    # Even; written for the side on which nothing cancels.
    size = z.abs()
    return torch.log1p(torch.exp(-size)) + size * torch.sigmoid(-size)


# softplus(z) - z sigmoid(z), the entropy of a coin that shows heads with probability sigmoid(z).
COIN_ENTROPY = SmoothFunction(
    "coin_entropy",
    (
        _coin_entropy,
        lambda z: -z * _sigmoid_1(z),
        lambda z: -_sigmoid_1(z) - z * _sigmoid_2(z),
    ),
    (
        (0.0,),
        _around_zero(1.5434046384182084480),
        (-2.7032361206583568889, 0.0, 2.7032361206583568889),
    ),
)

LEAK = 0.01
"""Slope of leaky_relu for negative arguments, torch's default."""

RELU = KinkedFunction("relu", torch.relu, (0.0,), (0.0, 1.0))
LEAKY_RELU = KinkedFunction(
    "leaky_relu", lambda z: functional.leaky_relu(z, LEAK), (0.0,), (LEAK, 1.0)
)
IDENTITY_FUNCTION = KinkedFunction("identity", lambda z: z, (), (1.0,))

ACTIVATIONS = by_name(
    *map(Activation, (RELU, LEAKY_RELU, IDENTITY_FUNCTION, TANH, SIGMOID)),
    Activation(GELU, gate=NORMAL_DISTRIBUTION),
    Activation(SILU, gate=SIGMOID),
    Activation(SOFTPLUS, gate=SIGMOID, rest=COIN_ENTROPY),
)


def activation_named(name: str) -> Activation:
    """The activation called `name`."""
    return named("activation", name, ACTIVATIONS)
