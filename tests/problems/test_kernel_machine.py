"""Kernels against scikit-learn and scipy, and what is refused."""

from inspect import unwrap
from math import inf, nan

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern
from sklearn.metrics import pairwise

from icgd.errors import KernelError, SettingError, UnknownNameError
from icgd.problems import kernel_machine as kernels
from icgd.problems.kernel_machine import (
    KERNELS,
    KernelHead,
    KernelMachine,
    kernel_named,
    register_kernel,
)
from icgd.problems.spectrum import spectrum

U = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
W = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

TRUTH = {
    ("linear", None): pairwise.linear_kernel,
    ("relu", None): lambda u, w: np.maximum(u @ w.T, 0),
    ("exp", None): lambda u, w: np.exp(u @ w.T),
    ("rbf", None): lambda u, w: pairwise.rbf_kernel(u, w, gamma=0.5),
    ("laplace", None): lambda u, w: pairwise.laplacian_kernel(u, w, gamma=1.0),
    ("matern", None): Matern(nu=1.5),
    ("matern", 0.5): Matern(nu=0.5),
    ("matern", 2.5): Matern(nu=2.5),
    ("polynomial", None): lambda u, w: pairwise.polynomial_kernel(u, w, 2, gamma=1, coef0=1),
    ("polynomial", 5.0): lambda u, w: pairwise.polynomial_kernel(u, w, 5, gamma=1, coef0=1),
    ("softmax", None): lambda u, w: np.exp(u @ w.T) / np.exp(u @ w.T).sum(1, keepdims=True),
}


@pytest.mark.parametrize(("name", "shape"), TRUTH)
def test_every_kernel_is_what_others_compute(name, shape):
    ours = kernel_named(name, shape).matrix(U, W)
    truth = np.stack([TRUTH[name, shape](u, w) for u, w in zip(U.numpy(), W.numpy(), strict=True)])
    np.testing.assert_allclose(ours.numpy(), truth, rtol=1e-13, atol=1e-15)


def test_no_kernel_is_left_out():
    assert {name for name, _ in TRUTH} == {name for name, k in KERNELS.items() if not k.is_own}


@pytest.mark.parametrize("name", ["rbf", "laplace", "matern"])
def test_equal_points_are_exactly_alike(name):
    far = 1e4 * U[0]
    assert torch.equal(kernel_named(name).matrix(far, far).diagonal(), torch.ones(4).double())


@pytest.mark.parametrize("name", [name for name, k in KERNELS.items() if k.is_positive])
def test_kernels_called_positive_have_no_negative_eigenvalue(name):
    values = torch.linalg.eigvalsh(kernel_named(name).matrix(W[0], W[0]))
    assert values.min() >= -1e-12 * values.max()


def test_relu_is_not_positive():
    points = torch.tensor([[1.0, 0.0], [-0.5, 3.0], [-0.5, -3.0]]).double()
    points = torch.cat([points, torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()])
    assert torch.linalg.eigvalsh(kernel_named("relu").matrix(points, points)).min() < -0.1


def test_a_kernel_of_the_users_own_is_found_by_its_name():
    register_kernel("cosine", lambda u, w: torch.cos(u @ w.mT))
    assert torch.equal(kernel_named("cosine").matrix(U, W), torch.cos(U @ W.mT))
    assert not kernel_named("cosine").is_positive


def test_what_a_kernel_of_the_users_own_returns_is_checked():
    register_kernel("row", lambda u, w: u[..., :1])
    with pytest.raises(KernelError, match=r"'row' returned \(2, 4, 1\); expected a tensor of sh"):
        kernel_named("row").matrix(U, W)
    register_kernel("list", lambda u, w: [1.0])  # type: ignore[arg-type,return-value]
    with pytest.raises(KernelError, match=r"'list' returned a list; expected a tensor"):
        kernel_named("list").matrix(U, W)
    register_kernel("coarse", lambda u, w: (u @ w.mT).float())
    with pytest.raises(KernelError, match=r"'coarse' returned float32 for points of float64"):
        kernel_named("coarse").matrix(U, W)
    register_kernel("log", lambda u, w: torch.log(u @ w.mT))
    with pytest.raises(KernelError, match=r"'log' returned nan at \[0, 0, \d\]; every entry"):
        kernel_named("log").matrix(U, W)


register_unchecked = unwrap(register_kernel)
"""The function without the type checker of the tests, as users call it."""


def stating(**constants):
    register_unchecked("own", torch.add, **constants)


def test_what_is_stated_of_a_kernel_is_a_number_or_follows_from_a_radius(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    kernel = register_kernel("known", torch.add, lipschitz=2.0, bound=lambda r: r**300)
    assert kernel.stated("lipschitz", 9.0) == 2.0
    assert kernel.stated("bound", 2.0) == 2.0**300
    assert kernel.stated("bound", 1e9) == inf, "where the function overflows nothing is known"
    assert register_kernel("unknown", torch.add).stated("lipschitz", 1.0) == inf
    negative = register_kernel("negative", torch.add, lipschitz=lambda r: -r)
    with pytest.raises(KernelError, match=r"lipschitz of kernel 'negative' is -2\.0 for point"):
        negative.stated("lipschitz", 2.0)
    worded = register_kernel("worded", torch.add, lipschitz=lambda r: "two")
    with pytest.raises(KernelError, match="lipschitz of kernel 'worded' is 'two' for points of no"):
        worded.stated("lipschitz", 2.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: kernel_named("rfb"), UnknownNameError, "kernel 'rfb'.*Did you mean 'rbf'"),
        (lambda: kernel_named("rbf", 2.0), KernelError, "'rbf' has no shape, got shape=2.0"),
        (lambda: kernel_named("matern", 1.0), SettingError, "one of 0.5, 1.5, 2.5, got 1.0"),
        (
            lambda: kernel_named("polynomial", 1.5),
            SettingError,
            "an integer from 1 to 32, got 1.5",
        ),
        (lambda: kernel_named("polynomial", 33.0), SettingError, "got 33.0"),
        (lambda: register_kernel("rbf", torch.add), KernelError, "'rbf' is a built-in kernel"),
        (lambda: register_unchecked(None, torch.add), KernelError, "non-empty string, got None"),
        (lambda: register_kernel(" ", torch.add), KernelError, "non-empty string, got ' '"),
        (lambda: register_unchecked(["own"], torch.add), KernelError, r"string, got \['own'\]"),
        (lambda: register_unchecked("own", 3), KernelError, "'own' must be a function .*, got 3"),
        (
            lambda: stating(lipschitz=-1.0),
            SettingError,
            "lipschitz must be .* got -1.0",
        ),
        (
            lambda: stating(lipschitz=inf),
            SettingError,
            "lipschitz must be .* not negative, got i",
        ),
        (
            lambda: stating(lipschitz="1"),
            SettingError,
            "lipschitz must be .* not negative, got '1",
        ),
        (lambda: stating(lipschitz=1.0, bound=-1), SettingError, "bound must be a .*, got -1"),
        (
            lambda: stating(rounding=nan),
            SettingError,
            "rounding must be .* not negative, got nan",
        ),
        (lambda: stating(bound=1.0), SettingError, "bound has no effect without lipschitz"),
    ],
)
def test_wrong_kernels_are_refused(call, error, message):
    names = set(KERNELS)
    with pytest.raises(error, match=message):
        call()
    assert set(KERNELS) == names


# Kernel machines: sums of heads, and checks of what a kernel returns.


X = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
G = ((1.0, 2.0, 0.0), (0.0, -1.0, 3.0))


def test_the_kernel_is_the_weighted_sum_of_its_heads_in_their_own_coordinates():
    machine = KernelMachine(3, (KernelHead("linear", G, 0.5), KernelHead("rbf", weight=2.0)))
    moved = X @ torch.tensor(G).double().T
    distances = (X[:, None] - X[None]).square().sum(-1)
    truth = 0.5 * moved @ moved.T + 2.0 * torch.exp(-distances / 2)
    assert (machine.gram(X) - truth).abs().max() <= 1e-14


def test_examples_may_have_a_transform_of_their_own():
    H = ((0.5, 0.0, -1.0), (1.0, 0.3, 0.2))
    head = KernelHead("exp", G, 2.0, key_transform=H)
    queries, keys = (X @ torch.tensor(matrix, dtype=torch.float64).T for matrix in (G, H))
    truth = 2 * torch.exp(torch.einsum("io,jo->ij", queries, keys))
    assert ((head.matrix(X, X) - truth) / truth).abs().max() <= 1e-13
    assert (truth - truth.T).abs().max() > 1
    assert [head.is_symmetric, head.is_positive] == [False, False]
    plain = KernelHead("exp", G)
    assert [plain.is_symmetric, plain.is_positive] == [True, True]
    with pytest.raises(KernelError, match="The spectrum needs a symmetric kernel"):
        spectrum(KernelMachine(3, head), X)


def test_one_head_may_be_given_by_its_kernels_name():
    assert KernelMachine(3, "exp").heads == (KernelHead("exp"),)
    assert KernelMachine(3, KernelHead("exp")).heads == (KernelHead("exp"),)


def test_matrices_of_any_kind_become_plain_data():
    assert KernelHead(transform=torch.tensor(G)).transform == G
    assert KernelHead(transform=[list(row) for row in G]) == KernelHead(transform=G)


def test_a_sum_is_symmetric_or_positive_only_if_all_heads_are():
    relu, softmax, rbf = (KernelHead(name) for name in ("relu", "softmax", "rbf"))
    assert KernelMachine(3, (rbf, rbf)).is_positive
    assert not KernelMachine(3, (rbf, relu)).is_positive
    assert KernelMachine(3, (rbf, relu)).is_symmetric
    assert not KernelMachine(3, (rbf, softmax)).is_symmetric


def test_a_kernel_that_only_claims_to_be_symmetric_is_found_out():
    register_kernel("lopsided", lambda u, w: u[..., :1] + 2 * w[..., :1].mT)
    with pytest.raises(KernelError, match=r"'lopsided' is not symmetric: it is \S+ at \[0, 1\] an"):
        KernelMachine(3, "lopsided").gram(X)
    register_kernel("lopsided", lambda u, w: u[..., :1] + 2 * w[..., :1].mT, symmetric=False)
    assert KernelMachine(3, "lopsided").gram(X).shape == (5, 5)
    with pytest.raises(KernelError, match="The law needs a symmetric kernel, and 'lopsided' is"):
        KernelMachine(3, "lopsided").require_symmetric("The law")


def test_a_kernel_that_overflows_is_named():
    with pytest.raises(KernelError, match=r"Kernel 'exp' returned inf at \[0, 0\]"):
        KernelMachine(3, "exp").gram(100 * X)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_width": 0}, "input_width must be a whole number of at least 1, got 0"),
        ({"heads": ()}, "heads is empty; give at least one"),
        ({"heads": (KernelHead(transform=((1.0,),)),)}, "row of transform has 1 entries; exp"),
        (
            {"heads": KernelHead("rbf", G[:1], key_transform=((1.0,),))},
            "row of key_transform has 1 entries; expected 3, one for each input",
        ),
    ],
)
def test_wrong_machines_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        KernelMachine(**{"input_width": 3, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 0.0}, "weight must be a positive finite number, got 0.0"),
        ({"transform": ((float("nan"),),)}, "transform must be a matrix of finite numb"),
        ({"transform": (1.0, 2.0)}, "transform must be a matrix of finite numbers"),
        ({"transform": ((1.0,), (1.0, 2.0))}, "transform must be a matrix of numbers"),
        ({"key_transform": G}, "key_transform has no effect without transform; give both"),
        (
            {"transform": G, "key_transform": G[:1]},
            "key_transform has 1 rows; expected 2, as in transform",
        ),
    ],
)
def test_wrong_heads_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        KernelHead(**settings)
