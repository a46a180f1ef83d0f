"""The learnt transformer against the formula of the paper, written out."""

import pytest
import torch

from icgd.errors import SettingError, UnknownNameError
from icgd.problems import kernel_machine as kernels
from icgd.problems.kernel_machine import (
    KERNELS,
    KernelHead,
    KernelMachine,
    kernel_named,
    register_kernel,
)
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.models import KernelTransformer
from tests.papers.training.toy import ToyTask

N_EXAMPLES, WIDTH = 4, 3

HEADS = [(name,) for name in KERNELS] + [("linear", "exp"), ("softmax", "rbf")]


def batch(n_tasks=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n_tasks, N_EXAMPLES + 1, WIDTH, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True)
    return x, torch.randn(x.shape[:-1], generator=generator, dtype=torch.float64)


def model_of(kernels, transforms_covariates, n_layers=3, **settings):
    return KernelTransformer(
        WIDTH,
        n_layers,
        kernels,
        transforms_covariates=transforms_covariates,
        seed=3,
        init_scale=0.6,
        value_scale=0.3,
        **settings,
    )


def written_out(model, x, y):
    """Z <- Z + sum_heads V Z M k(B X, C X), every entry of every layer; minus the last label."""
    n = x.shape[1] - 1
    z = torch.cat([x.mT, y[:, None]], dim=1)
    z[:, WIDTH, n] = 0
    M = torch.diag(torch.tensor([1.0] * n + [0.0], dtype=x.dtype))
    for layer in range(model.n_layers):
        X = z[:, :WIDTH]
        added = torch.zeros_like(z)
        for head, name in enumerate(model.kernels):
            keys = torch.einsum("oi,tin->tno", model.B[layer, head], X)
            readers = torch.einsum("oi,tin->tno", model.C[layer, head], X)
            k = torch.zeros(len(x), n + 1, n + 1, dtype=x.dtype)
            k[:, :n] = kernel_named(name).matrix(readers, keys[:, :n]).mT
            A = torch.zeros(WIDTH, WIDTH, dtype=x.dtype)
            A = A if model.A is None else model.A[layer, head]
            V = torch.block_diag(A, model.r[layer, head].reshape(1, 1))
            added = added + torch.einsum("oi,tin,nm,tmk->tok", V, z, M, k)
        z = z + added
    return -z[:, WIDTH, n]


def gradients(predictions, inputs):
    grads = torch.autograd.grad(predictions.square().sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]


@pytest.mark.parametrize("transforms_covariates", [False, True])
@pytest.mark.parametrize("kernels", HEADS, ids="+".join)
def test_it_is_the_formula_in_value_and_in_every_gradient(kernels, transforms_covariates):
    model = model_of(kernels, transforms_covariates)
    x, y = (part.requires_grad_() for part in batch())
    ours, formula = model(x, y), written_out(model, x, y)
    assert (ours - formula).abs().max() <= 1e-12 * formula.abs().max().clamp(min=1)
    inputs = [x, y, *model.parameters()]
    for mine, theirs in zip(gradients(ours, inputs), gradients(formula, inputs), strict=True):
        assert (mine - theirs).abs().max() <= 1e-10 * theirs.abs().max().clamp(min=1)


def test_only_weights_need_gradients_in_training():
    model = model_of(("softmax",), True)
    x, y = batch()
    inputs = list(model.parameters())
    pairs = zip(
        gradients(model(x, y), inputs), gradients(written_out(model, x, y), inputs), strict=True
    )
    assert all((mine - theirs).abs().max() <= 1e-10 for mine, theirs in pairs)


def test_the_query_s_own_label_is_not_read():
    model = model_of(("exp",), True)
    x, y = batch()
    other = y.clone()
    other[:, -1] = 9.0
    assert torch.equal(model(x, y), model(x, other))


def test_constructed_weights_perform_functional_gradient_descent():
    machine = KernelMachine(
        WIDTH,
        (
            KernelHead("exp", transform=[[0.5, 0.1, 0.0], [0.0, 0.4, 0.0], [0.0, 0.0, 0.3]]),
            KernelHead("polynomial", weight=0.1, shape=3.0),
        ),
    )
    whitening = torch.diag(torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64))
    x, y = batch()
    white, steps, examples = x @ whitening.mT, (0.02, 0.03, 0.01), y[:, :-1]
    values = torch.zeros_like(y)
    for step in steps:
        residuals = examples - values[:, :-1]
        kernel = machine.matrix(white, white[:, :-1])
        values = values + step * (kernel @ residuals[..., None])[..., 0]
    model = KernelTransformer.constructed(machine, steps, whitening)
    assert (model(x, y) - values[:, -1]).abs().max() <= 1e-12


def test_a_seed_gives_the_same_weights_and_another_seed_others():
    weights = [
        KernelTransformer(2, 1, ("exp",), transforms_covariates=False, seed=seed).B
        for seed in (1, 1, 2)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def distances(u, w):
    return torch.exp(-torch.cdist(u, w, compute_mode="donot_use_mm_for_euclid_dist"))


OWN = {"own line": lambda u, w: u @ w.mT, "own distance": distances}


@pytest.fixture
def own_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    for name, function in OWN.items():
        register_kernel(name, function)


@pytest.mark.parametrize("transforms_covariates", [False, True])
@pytest.mark.usefixtures("own_kernels")
def test_heads_of_the_users_own_kernels_follow_the_formula(transforms_covariates):
    model = model_of((*OWN, "softmax"), transforms_covariates)
    x, y = (part.requires_grad_() for part in batch())
    ours, formula = model(x, y), written_out(model, x, y)
    assert (ours - formula).abs().max() <= 1e-12 * formula.abs().max().clamp(min=1)
    inputs = [x, y, *model.parameters()]
    for mine, theirs in zip(gradients(ours, inputs), gradients(formula, inputs), strict=True):
        assert (mine - theirs).abs().max() <= 1e-10 * theirs.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.usefixtures("own_kernels")
def test_a_kernel_of_the_users_own_is_trained_as_its_twin_of_icgd_is(dtype):
    settings = Settings(n_steps=60, batch_size=32, learning_rate=0.02, log_every=59, dtype=dtype)
    losses = {}
    for kernel in ("own line", "linear", "own distance"):
        model = KernelTransformer(2, 2, (kernel,), transforms_covariates=True, seed=0)
        losses[kernel] = train(model, ToyTask(), settings).column("loss")
        assert losses[kernel][-1] < 0.8 * losses[kernel][0]
    assert losses["own line"] == pytest.approx(losses["linear"], rel=1e-4)


@pytest.mark.usefixtures("own_kernels")
def test_descent_on_a_kernel_of_the_users_own_is_constructed():
    steps, (x, y) = [0.1, 0.2], batch()
    own, known = (
        KernelTransformer.constructed(KernelMachine(WIDTH, name), steps)
        for name in ("own line", "linear")
    )
    assert (own(x, y) - known(x, y)).abs().max() <= 1e-14


def test_its_description_is_enough_to_make_it_again():
    model = model_of(("matern", "exp"), True, shapes=(0.5, None))
    settings = model.description()
    assert settings.pop("kind") == "kernel transformer"
    settings |= {name: tuple(settings[name]) for name in ("kernels", "shapes")}
    again = KernelTransformer(**settings)
    x, y = batch()
    assert torch.equal(model(x, y), again(x, y))


def test_impossible_settings_are_named():
    with pytest.raises(UnknownNameError, match=r"Unknown kernel 'softmx'.*'softmax'"):
        model_of(("softmx",), False)
    with pytest.raises(SettingError, match="n_layers must be a whole number of at least 1, got 0"):
        model_of(("exp",), False, n_layers=0)
    with pytest.raises(SettingError, match="kernels is empty; give at least one"):
        model_of((), False)
    with pytest.raises(SettingError, match="shapes has 1 entries; expected 2, one for each kernel"):
        model_of(("exp", "matern"), False, shapes=(0.5,))


@pytest.mark.parametrize("moves", [False, True])
def test_each_entry_of_a_vector_is_predicted_by_itself(moves):
    model = KernelTransformer(2, 2, ("exp", "relu"), transforms_covariates=moves, seed=0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    together = model(x, y)
    assert together.shape == (3, 4)
    for entry in range(4):
        alone = model(x, y[..., entry])
        torch.testing.assert_close(together[:, entry], alone, rtol=1e-13, atol=1e-15)


def test_autocast_does_not_touch_kernels():
    model = KernelTransformer(2, 2, ("exp",), transforms_covariates=True, seed=0).float()
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(3, 5, *width, generator=generator) for width in ((2,), ()))
    with torch.autocast("cpu", torch.bfloat16):
        inside = model(x, y)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, model(x, y))
