"""Bounds (a) and (b) in 500 random cases, and how tight (b) is."""

from statistics import median

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import icgd
from icgd.problems.activations import ACTIVATIONS

N_CASES = 500

layer_widths = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(tuple)
names = st.sampled_from(sorted(ACTIVATIONS))
problems = st.builds(
    icgd.Problem,
    target=st.builds(
        icgd.MLP,
        layer_widths,
        names,
        st.one_of(st.just("identity"), names),
    ),
    loss=st.sampled_from(["squared", "logistic", "huber"]),
    update=st.builds(icgd.GradientStep, st.floats(0.01, 1.0), st.floats(0.5, 4.0)),
    domain=st.builds(icgd.Domain, st.floats(0.5, 4.0), st.floats(0.5, 2.0)),
)


def data_for(problem: icgd.Problem, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs over the whole domain; labels that suit every loss."""
    generator = torch.Generator().manual_seed(seed)
    widths, domain = problem.target.widths, problem.domain
    x = domain.x * (2 * torch.rand(n, widths[0], generator=generator, dtype=torch.float64) - 1)
    y = torch.rand(n, widths[-1], generator=generator, dtype=torch.float64)
    return x, y * min(1.0, domain.y)


def test_bounds_hold_in_every_random_case_and_are_tight_in_the_median():
    ratios: list[float] = []

    @settings(max_examples=N_CASES, deadline=None)
    @given(
        problem=problems,
        n=st.integers(1, 8),
        pieces=st.integers(2, 64),
        backend=st.sampled_from(["fused", "fused", "dense"]),
        seed=st.integers(0, 2**16),
    )
    def bounds_hold(problem: icgd.Problem, n: int, pieces: int, backend: str, seed: int) -> None:
        compiled = icgd.compile(problem, n_steps=3, pieces=pieces)
        x, y = data_for(problem, n, seed)
        report = icgd.verify(compiled, x, y, seed=seed, backend=backend)
        assert (report.step_errors <= report.step_bounds).all()
        assert (report.step_errors <= report.certificate.domain_step).all()
        assert (report.trajectory_errors <= report.trajectory_bounds).all()
        assert (report.trajectory_errors <= report.certificate.domain_trajectory).all()
        assert report.verdict is icgd.Verdict.HOLDS
        measured = float(report.step_errors.max())
        if measured > 0:
            ratios.append(float(report.step_bounds.max()) / measured)

    bounds_hold()
    assert len(ratios) >= 400
    assert median(ratios) <= 1000
