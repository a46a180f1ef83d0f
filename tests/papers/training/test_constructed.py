"""The best constructions against scans of all of their numbers."""

import pytest
import torch

from icgd.errors import UnknownNameError
from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.constructed import (
    FAMILIES,
    NEAR,
    best_construction,
    compare_with_constructions,
)
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.descents import why_not_descent
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import InContextTask

LAW = Ellipsoid.of_seed(0)
MACHINE = KernelMachine(5, "exp")
TASK = AveragedTask(InContextTask(LAW, KernelProcess(MACHINE, LAW.whitening), n_examples=6))
BATCH = TASK.sample(60, seed=0, index=0)


def loss(steps, widths):
    """The mean loss of descent with these steps and widths of the kernel, on the batch."""
    model = KernelTransformer.constructed(MACHINE, steps, LAW.whitening)
    with torch.no_grad():
        for layer, width in enumerate(widths):
            model.B[layer] *= width
            model.C[layer] *= width
        return float(TASK.mean_loss(model, BATCH))


def best(family, n_layers):
    model = best_construction(
        family, TASK, MACHINE, BATCH, n_layers=n_layers, whitening=LAW.whitening
    )
    with torch.no_grad():
        return model, float(TASK.mean_loss(model, BATCH))


def test_the_constant_step_is_the_lowest_point_of_a_scan():
    model, found = best("constant step", 2)
    scanned = min(loss([float(s)] * 2, [1.0] * 2) for s in torch.linspace(0.01, 0.3, 59))
    assert found <= scanned <= 1.005 * found
    assert model.r[0] == model.r[1]
    assert torch.allclose(model.B[0, 0], LAW.whitening, atol=1e-14)


def test_steps_of_their_own_are_the_lowest_point_of_a_scan():
    model, found = best("steps", 2)
    sizes = torch.linspace(0.02, 0.5, 13).tolist()
    scanned = min(loss([a, b], [1.0] * 2) for a in sizes for b in sizes)
    assert found <= scanned <= 1.06 * found
    first, second = model.r.flatten().tolist()
    assert second < 1.1 * first < 0


def test_a_step_and_a_width_are_the_lowest_point_of_a_scan():
    _, found = best("steps and widths", 1)
    sizes = torch.linspace(0.01, 0.25, 13).tolist()
    scanned = min(loss([s], [w]) for s in sizes for w in torch.linspace(0.3, 1.5, 13).tolist())
    assert found <= scanned <= 1.03 * found


def test_more_free_numbers_are_never_worse_and_all_are_descent():
    models, losses = zip(*(best(family, 3) for family in FAMILIES), strict=True)
    assert losses[0] > losses[1] > losses[2]
    assert [why_not_descent(model) for model in models] == [None] * 3


def test_an_unknown_family_is_refused():
    with pytest.raises(UnknownNameError, match=r"Unknown family 'stepz'.*Did you mean 'steps'"):
        best("stepz", 1)


def test_a_model_of_a_family_is_like_its_best_construction():
    """Where the model is the best one itself, all measures say so."""
    fit = TASK.sample(60, seed=3, index=0)
    model = best_construction("steps", TASK, MACHINE, fit, n_layers=2, whitening=LAW.whitening)
    found = compare_with_constructions(model, TASK, MACHINE, LAW.whitening, n_tasks=60, seed=3)
    assert list(found) == [*FAMILIES, NEAR]
    same, other = found["steps"].similarity, found["constant step"].similarity
    assert same.prediction_difference == 0.0
    assert same.sensitivity_cosine == pytest.approx(1.0, abs=1e-12)
    assert other.prediction_difference > 0.01
    test = TASK.sample(60, seed=3, index=1)
    with torch.no_grad():
        assert found["steps"].loss == float(TASK.mean_loss(model, test))


def test_a_model_of_the_last_family_is_found_again_from_itself():
    """Widths that differ from layer to layer, fitted from both orders of the steps."""
    sizes = {"n_layers": 2, "whitening": LAW.whitening}
    best = best_construction("steps and widths", TASK, MACHINE, BATCH, **sizes)
    again = best_construction("steps and widths", TASK, MACHINE, BATCH, near=best, **sizes)
    assert torch.allclose(again.r, best.r, rtol=1e-3)
    assert torch.allclose(again.B, best.B, rtol=1e-3)
    assert (best.B[0].norm() / best.B[1].norm()).item() != pytest.approx(1.0, abs=0.05)


def test_both_orders_of_the_steps_are_tried():
    """Here shrinking steps lead to a lower minimum than growing ones, which a fit must not miss."""
    sizes = {"n_layers": 3, "whitening": LAW.whitening}
    best = best_construction("steps and widths", TASK, MACHINE, BATCH, **sizes)
    for sign in (1, -1):
        start = KernelTransformer.constructed(MACHINE, [0.1] * 3, LAW.whitening)
        with torch.no_grad():
            start.r.copy_(-0.1 * torch.exp(sign * torch.tensor([-0.5, 0.0, 0.5]))[:, None])
        near = best_construction("steps and widths", TASK, MACHINE, BATCH, near=start, **sizes)
        with torch.no_grad():
            losses = [float(TASK.mean_loss(model, BATCH)) for model in (best, near)]
        assert losses[0] <= 1.001 * losses[1]
