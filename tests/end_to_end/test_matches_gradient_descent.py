"""The matrix: every construction, on every problem, on every backend, against the reference."""

import pytest

import icgd
from icgd.backends.registry import BACKENDS
from tests.cases import SMALL, Case, batch_of, every_construction, over


@over(SMALL)
@every_construction
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_step_stays_within_its_bounds(construction, case: Case, backend: str):
    if reason := construction.why_not(case.problem):
        pytest.skip(reason)
    compiled = icgd.compile(case.problem, n_steps=3, pieces=16, construction=construction.name)
    report = icgd.verify(compiled, case.x, case.y, seed=case.seed, backend=backend)
    assert report.verdict is icgd.Verdict.HOLDS
    if case.is_exact and report.near_kinks.count == 0:
        assert report.step_errors.max() <= 1e-11
    assert report.step_bounds.max() <= report.certificate.domain_step


@over(SMALL[::5])
@every_construction
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_batches_stay_within_their_bounds_in_both_precisions(construction, case: Case, dtype: str):
    if reason := construction.why_not(case.problem):
        pytest.skip(reason)
    batch = batch_of(case, 3)
    compiled = icgd.compile(case.problem, n_steps=3, pieces=32, construction=construction.name)
    report = icgd.verify(compiled, batch.x, batch.y, seed=case.seed, dtype=dtype)
    assert report.verdict is icgd.Verdict.HOLDS
    assert report.step_errors.shape == (3, 3)
    assert report.dtype == dtype
