"""Learnt models as compiled runs, and what of them is gradient descent."""

import re
from pathlib import Path

import pytest
import torch

import icgd
from icgd.errors import SettingError, TrainingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.descents import (
    as_compiled,
    distances_to_descent,
    nearest_descent,
    why_not_descent,
)
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import InContextTask

DOMAIN = icgd.Domain(x=10.0, y=10.0)
TASK = InContextTask(
    (law := Ellipsoid.of_seed(0)), KernelProcess(KernelMachine(5, "exp"), law.whitening), 6
)


def model_of(*kernels, moves=False, seed=0, **settings):
    """Random B and C in every layer, steps that go downhill."""
    model = KernelTransformer(
        5, 3, kernels, transforms_covariates=moves, seed=seed, value_scale=0.05, **settings
    )
    with torch.no_grad():
        model.r.copy_(-model.r.abs())
    return model


def family_point(kernel):
    """A point B = b S^-1, C = c S^-1, r < 0, with other numbers in every layer."""
    model = KernelTransformer(5, 3, (kernel,), transforms_covariates=False, seed=0)
    fade = torch.linspace(1.0, 0.6, 3, dtype=torch.float64)
    with torch.no_grad():
        model.r.copy_(-fade[:, None] / TASK.n_examples)
        model.B.copy_(fade[:, None, None, None] * law.whitening)
        model.C.copy_(fade.flip(0)[:, None, None, None] * law.whitening)
    return model


def predictions(compiled, batch, backend="fused"):
    examples = batch.x[:, :-1], batch.y[:, :-1]
    return compiled.run(*examples, queries=batch.x[:, -1:], backend=backend).predictions.flatten()


EVERY_FORM = {
    "exp": model_of("exp"),
    "linear": model_of("linear"),
    "softmax": model_of("softmax"),
    "rbf": model_of("rbf"),
    "two heads": model_of("linear", "matern", shapes=(None, 2.5)),
    "moved": model_of("exp", moves=True),
    "float32": model_of("relu").float(),
    "descent": family_point("exp"),
}


@pytest.mark.parametrize("model", EVERY_FORM.values(), ids=EVERY_FORM)
@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_the_program_predicts_what_the_module_predicts(model, backend):
    batch = TASK.sample(20, seed=1, index=0)
    expected = model.double()(batch.x, batch.y).detach()
    found = predictions(as_compiled(model, domain=DOMAIN), batch, backend)
    assert expected.abs().max() > 0.05
    assert (found - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("model", EVERY_FORM.values(), ids=EVERY_FORM)
def test_every_step_is_verified_against_the_models_own_descent(model, tmp_path):
    compiled = as_compiled(model, domain=DOMAIN)
    batch = TASK.sample(1, seed=1, index=0)
    examples = batch.x[0, :-1], batch.y[0, :-1]
    report = icgd.verify(compiled, *examples, queries=batch.x[0, -1:])
    assert report.verdict.holds
    assert report.step_errors.max() <= 1e-13
    assert report.step_bounds.max() <= 1e-10
    compiled.save(tmp_path / "learnt.safetensors")
    assert icgd.load(tmp_path / "learnt.safetensors") == compiled


def test_a_wrong_program_breaks_its_bound():
    """A number of B that is off by 1e-9 is noticed."""
    model = model_of("exp")
    right = as_compiled(model, domain=DOMAIN)
    with torch.no_grad():
        model.B[1, 0, 0, 0] += 1e-9
    wrong = icgd.compiled.Compiled(right.problem, as_compiled(model, domain=DOMAIN).program)
    batch = TASK.sample(1, seed=1, index=0)
    report = icgd.verify(wrong, batch.x[0, :-1], batch.y[0, :-1])
    assert report.verdict is icgd.Verdict.BROKEN


def test_a_constructed_model_becomes_the_problem_that_it_was_constructed_from():
    G = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double()
    machine = KernelMachine(5, (KernelHead("rbf", G, 0.75), KernelHead("exp", G / 4, 0.25)))
    compiled = as_compiled(KernelTransformer.constructed(machine, [0.5, 0.25]), domain=DOMAIN)
    assert compiled.problem.target == machine
    assert compiled.problem.update == icgd.FunctionalStep((0.5, 0.25))


def test_a_family_point_is_descent_on_one_kernel_of_scores():
    """B = b S^-1 and C = c S^-1 differ, but the kernel sees b c Sigma^-1 alone."""
    model = family_point("exp")
    assert not torch.equal(model.B, model.C)
    assert why_not_descent(model) is None
    update = as_compiled(model, domain=DOMAIN).problem.functional_step
    G = torch.tensor(update.heads[0][0].transform).double()
    M = (model.B[0, 0].mT @ model.C[0, 0]).detach()
    assert (G.mT @ G - M).abs().max() <= 1e-6
    assert all(head.is_positive for step in update.heads for head in step)


def test_the_distance_is_that_of_the_nearest_symmetric_positive_matrix():
    model = model_of("exp")
    with torch.no_grad():
        model.B.copy_(torch.eye(5).double().expand_as(model.B))
        model.C.copy_(torch.eye(5).double().expand_as(model.C))
        model.C[1, 0, 0, 1] += 0.3  # its symmetric part is 0.3 / sqrt(2) away
        model.C[2, 0, 0, 0] = -2.0  # the nearest one has 0 there
    expected = [0.0, 0.3 / 2**0.5 / (5 + 0.09) ** 0.5, 2 / 8**0.5]
    assert torch.allclose(distances_to_descent(model)[:, 0], torch.tensor(expected).double())
    assert why_not_descent(model) == (
        "in layer 1, head 0, B^T C is off the nearest symmetric matrix without negative "
        "eigenvalues by 0.094 of its size."
    )
    nearest = nearest_descent(model)
    assert nearest.distance == pytest.approx(2 / 8**0.5)
    assert why_not_descent(nearest.model) is None
    M = nearest.model.B[2, 0].mT @ nearest.model.C[2, 0]
    assert torch.allclose(M, torch.diag(torch.tensor([0.0, 1, 1, 1, 1])).double(), atol=1e-14)


def test_no_other_symmetric_positive_matrix_is_nearer():
    model = model_of("exp")
    M = (model.B[0, 0].mT @ model.C[0, 0]).detach()
    found = nearest_descent(model).model
    nearest = (found.B[0, 0].mT @ found.C[0, 0]).detach()
    best = (M - nearest).norm()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
        for share in (0.01, 0.1, 0.5):
            assert (M - torch.lerp(nearest, root @ root.mT, share)).norm() >= best - 1e-12


def test_other_kernels_need_equal_matrices():
    model = model_of("rbf")
    off = ((model.B[0] - model.C[0]).norm() / (model.B[0] + model.C[0]).norm()).item()
    assert why_not_descent(model) == (
        f"in layer 0, head 0, B and C are off their mean by {off:.2g} of its size."
    )
    nearest = nearest_descent(model).model
    assert torch.equal(nearest.B, nearest.C)
    assert torch.allclose(nearest.B, (model.B + model.C) / 2)


def test_softmax_is_a_program_but_no_gradient_descent():
    assert why_not_descent(model_of("softmax")) == (
        "the softmax kernel is not symmetric, whatever B and C are."
    )


def test_a_linear_head_may_go_downhill_by_a_negative_matrix():
    model = family_point("linear")
    with torch.no_grad():
        model.r.neg_()
        model.B.neg_()
    assert why_not_descent(model) is None
    batch = TASK.sample(4, seed=1, index=0)
    found = predictions(as_compiled(model, domain=DOMAIN), batch)
    assert (found - model(batch.x, batch.y)).abs().max() <= 1e-13


def test_a_head_that_goes_uphill_is_named_and_its_nearest_does_nothing():
    model = model_of("exp", "relu")
    with torch.no_grad():
        model.r[1, 1] = 0.25
    reason = "r = 0.25 in layer 1, head 1, and a step of descent has r < 0"
    with pytest.raises(
        TrainingError, match=f"^This model is not a program of .*: {reason}. Compile"
    ):
        as_compiled(model, domain=DOMAIN)
    nearest = nearest_descent(model).model
    assert nearest.r[1, 1] == 0
    compiled = as_compiled(nearest, domain=DOMAIN)
    assert [len(step) for step in compiled.problem.functional_step.heads] == [2, 1, 2]
    batch = TASK.sample(4, seed=1, index=0)
    found = predictions(compiled, batch)
    assert (found - nearest(batch.x, batch.y)).abs().max() <= 1e-13


def test_a_layer_that_does_nothing_is_no_step():
    model = model_of("exp")
    with torch.no_grad():
        model.r[1] = 0.0
    compiled = as_compiled(model, domain=DOMAIN)
    assert compiled.program.n_steps == 2
    batch = TASK.sample(4, seed=1, index=0)
    assert (predictions(compiled, batch) - model(batch.x, batch.y)).abs().max() <= 1e-13
    with torch.no_grad():
        model.r.zero_()
    with pytest.raises(TrainingError, match=r"functional descent: r = 0 in every head, so that it"):
        as_compiled(model, domain=DOMAIN)


def test_heads_that_move_the_inputs_apart_are_no_program():
    with pytest.raises(
        TrainingError, match="in layer 0, heads 0 and 1 move the inputs by matrices A that are no"
    ):
        as_compiled(model_of("exp", "linear", moves=True), domain=DOMAIN)
    model = model_of("exp", "linear", moves=True)
    with torch.no_grad():
        model.A[:, 1] = model.A[:, 0] * (model.r[:, 1] / model.r[:, 0])[:, None, None]
    batch = TASK.sample(4, seed=1, index=0)
    found = predictions(as_compiled(model, domain=DOMAIN), batch)
    assert (found - model(batch.x, batch.y)).abs().max() <= 1e-12


def test_only_a_kernel_transformer_is_compiled():
    with pytest.raises(
        SettingError, match="model must be of type KernelTransformer, got 'Identity'"
    ):
        as_compiled(torch.nn.Identity(), domain=DOMAIN)


def test_in_the_example_of_its_page_a_trained_model_is_loaded_and_verified(capsys):
    page = Path(__file__).parents[3] / "docs" / "training" / "models.md"
    example, _ = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    names: dict = {}
    exec(example, names)
    report, batch = names["report"], names["batch"]
    assert report.verdict.holds
    assert report.step_errors.max() <= 1e-13
    found = predictions(names["compiled"], batch)
    assert (found - names["learnt"](batch.x, batch.y)).abs().max() <= 1e-12
    assert "layer 0, head 0, B^T C is off the nearest" in capsys.readouterr().out
