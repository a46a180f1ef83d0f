"""Kernel machines: sums of heads, and checks of what a kernel returns."""

import pytest
import torch

from icgd.errors import KernelError, SettingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine, register_kernel
from icgd.problems.spectrum import spectrum

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
    with pytest.raises(KernelError, match="The law needs a symmetric kernel, which 'lopsided' is"):
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
            "key_transform has 1 rows; expected 2, as many as transform has",
        ),
    ],
)
def test_wrong_heads_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        KernelHead(**settings)
