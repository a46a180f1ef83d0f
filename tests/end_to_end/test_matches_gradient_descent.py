"""The matrix: every construction, on every problem, on every backend, against the reference."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

import icgd
from icgd.backends.registry import BACKENDS
from tests.cases import BATCHED, SMALL, Case, batch_of, every_construction_on

on_every_backend = pytest.mark.parametrize("backend", BACKENDS)


@lru_cache(maxsize=2)
def compiled_case(construction, case: Case, pieces: int, dtype: str = "float64") -> icgd.Compiled:
    """Pieces are a setting of relu-stack only; softmax-stack has full accuracy unless said."""
    if reason := construction.why_not(case.problem):
        pytest.skip(reason)
    wanted = {"pieces": pieces, "dtype": dtype}
    settings = {name: wanted[name] for name in construction.settings() if name in wanted}
    return icgd.compile(case.problem, replace(construction, **settings), n_steps=3)


@every_construction_on((*SMALL, *BATCHED), whole=True)
def test_every_step_stays_within_its_bounds(construction, case: Case):
    assert_within_bounds(construction, case, "fused")


@pytest.mark.parametrize("backend", sorted(BACKENDS.keys() - {"fused"}))
@every_construction_on((*SMALL, *BATCHED))
def test_every_step_of_the_other_backends_does(construction, case: Case, backend: str):
    assert_within_bounds(construction, case, backend)


def assert_within_bounds(construction, case: Case, backend: str) -> None:
    compiled = compiled_case(construction, case, pieces=16)
    report = icgd.verify(compiled, case.x, case.y, seed=case.seed, backend=backend)
    assert report.verdict.holds
    is_exact = case.is_exact or construction.name in {"softmax-stack", "cot-network"}
    if is_exact and report.near_kinks.count == 0:
        assert report.step_errors.max() <= 1e-11
    assert report.step_bounds.max() <= report.certificate.domain_step


@every_construction_on(SMALL[::5])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_batches_stay_within_their_bounds_in_both_precisions(construction, case: Case, dtype: str):
    batch = batch_of(case, 3)
    compiled = compiled_case(construction, case, pieces=32, dtype=dtype)
    report = icgd.verify(compiled, batch.x, batch.y, seed=case.seed, dtype=dtype)
    assert report.verdict.holds
    assert report.step_errors.shape == (3, 3)
    assert report.dtype == dtype


def error_after_five_steps(
    backend: str, activation: str = "tanh", dtype: str = "float64", registers: int | None = None
) -> float:
    """Largest error of a weight when softmax-stack trains 3-4-4-2 on 6 examples; none is above 1.

    With at most 110 registers. The weights move by more than 0.2, and no preactivation comes
    close to a kink.
    """
    problem = icgd.Problem(
        icgd.MLP((3, 4, 4, 2), activation),
        "squared",
        icgd.GradientStep(step_size=0.3, box=1.0),
        icgd.Domain(x=2.0, y=2.0),
    )
    compiled = icgd.compile(
        problem, n_steps=5, construction="softmax-stack", registers=registers, dtype=dtype
    )
    assert compiled.program.n_registers == registers or compiled.program.n_registers <= 110
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64).clamp(-2, 2)
    y = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    task = compiled.task(x, y, seed=1, dtype=dtype)
    weights = compiled.run_task(task, backend=backend).parameters.double()
    real = problem.oracle.train(task, 5)
    assert (real[-1] - real[0]).abs().max() > 0.2
    return float((weights - real).abs().max())


@on_every_backend
def test_softmax_stack_trains_a_tanh_network_to_eleven_digits(backend: str):
    assert error_after_five_steps(backend) <= 1e-11


@on_every_backend
def test_softmax_stack_trains_a_relu_network_away_from_kinks_to_ten_digits(backend: str):
    """The slopes of the domain are ten times those of tanh, and rounding grows with them."""
    assert error_after_five_steps(backend, "relu") <= 1e-10


@on_every_backend
@pytest.mark.parametrize(("registers", "most"), [(42, 1e-6), (66, 1e-8), (106, 1e-11)])
def test_the_error_of_softmax_stack_falls_exponentially(backend, registers: int, most: float):
    assert error_after_five_steps(backend, registers=registers) <= most


@pytest.mark.parametrize(
    ("backend", "activation", "most"),
    [
        ("fused", "tanh", 1e-6),
        ("fused", "relu", 1e-6),
        ("dense", "tanh", 1e-3),
        ("dense", "relu", 5e-3),
    ],
)
def test_softmax_stack_made_for_float32_reaches(backend: str, activation: str, most: float):
    """The dense transformer divides the rounding of a softmax weight by its probe of the slope."""
    assert error_after_five_steps(backend, activation, "float32") <= most
