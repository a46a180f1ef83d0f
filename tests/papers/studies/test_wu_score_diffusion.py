"""The diffusion of wu-score: labels, the loss of (H.1), the way back, distances."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from icgd.errors import DataError, SettingError
from icgd_papers.studies.wu_score_diffusion import (
    Span,
    inputs,
    noised,
    prompt,
    reversed_path,
    score_of,
    sliced_wasserstein,
    velocity_of,
)
from icgd_papers.studies.wu_score_laws import Law, Mixture, decay, law_named, spread
from icgd_papers.training.tasks import generator_of

SPAN = Span(0.05, 4.0)


def normal_law(mean, variance):
    return Mixture(
        torch.ones(1, dtype=torch.float64),
        torch.tensor([[mean]], dtype=torch.float64),
        torch.tensor([[[variance]]], dtype=torch.float64),
    )


def test_a_score_and_its_velocity_are_the_same_thing():
    x, score = (torch.randn(5, 3, dtype=torch.float64) for _ in range(2))
    times = torch.tensor([0.05, 0.1, 0.5, 1.0, 4.0], dtype=torch.float64)
    velocity = velocity_of(score, x, times)
    assert score_of(velocity, x, times) == pytest.approx(score)
    # the identity of the docstring: |f - f'|^2 = (s / m)^2 |score - score'|^2
    other = torch.randn(5, 3, dtype=torch.float64)
    apart = (velocity_of(other, x, times) - velocity).square().sum(-1)
    ratio = (spread(times) / decay(times)).square()
    assert apart == pytest.approx(ratio * (other - score).square().sum(-1))


def test_denoising_labels_are_the_score_of_x_given_x_0():
    """grad log p(x_t | x_0) = -(x_t - m x_0) / s^2, as a velocity, is m z - s x_0."""
    times = torch.tensor([0.05, 0.7, 3.0], dtype=torch.float64)
    clean, noise = (torch.randn(3, 2, dtype=torch.float64) for _ in range(2))
    m, s = decay(times)[:, None], spread(times)[:, None]
    x = m * clean + s * noise
    given = -(x - m * clean) / s.square()
    assert velocity_of(given, x, times) == pytest.approx(m * noise - s * clean)


def test_exact_labels_are_the_mean_of_denoising_labels():
    """Regression on all inputs of a normal law: both prompts have the same best linear fit."""
    law = Law(normal_law(0.4, 0.3))
    exact, denoising = (
        prompt(law, targets, SPAN, 200_000, generator_of(0, 1))
        for targets in ("exact", "denoising")
    )
    assert torch.equal(exact.x, denoising.x)  # the same points, with other labels
    left = denoising.y - exact.y
    assert float(left.mean()) == pytest.approx(0.0, abs=0.01)
    assert (exact.x * left).mean(0).abs().max() < 0.02
    assert float(left.square().mean()) > 0.1
    assert torch.equal(denoising.exact, exact.y)
    assert denoising.signal == pytest.approx(float(exact.y.square().mean() / 2))


def test_a_prompt_is_inputs_and_velocities_at_times_of_uniform_logarithm():
    law = law_named("ring", 2, seed=0)
    found = prompt(law, "exact", SPAN, 20_000, generator_of(0, 1))
    assert found.x.shape == (20_000, 8)
    assert found.x[:, 7].unique().tolist() == [1.0]
    m = found.x[:, 2] / found.x[:, 0]
    times = -2 * m.log()
    assert found.x[:, 4] == pytest.approx(found.x[:, 0] / (4 * spread(times)), rel=1e-6)
    assert found.x[:, 6] == pytest.approx(SPAN.place(times), abs=1e-6)
    shares = times.log().sub(log(0.05)).div(log(80))
    assert np.quantile(shares, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.02)
    score = law.mixture.score(found.x[:, :2], times)
    assert found.y == pytest.approx(velocity_of(score, found.x[:, :2], times), abs=1e-6)


def test_the_place_of_the_ends_is_minus_one_and_one():
    ends = torch.tensor([0.05, 4.0], dtype=torch.float64)
    assert SPAN.place(ends).tolist() == pytest.approx([-1.0, 1.0])
    assert SPAN.backwards(2).tolist() == pytest.approx([4.0, sqrt(0.2), 0.05])
    x = torch.ones(2, 1, dtype=torch.float64)
    row = inputs(x, ends, SPAN)[0].tolist()
    s = sqrt(1 - exp(-0.05))
    assert row == pytest.approx([1.0, exp(-0.025), 1 / (4 * s), -1.0, 1.0])


def test_the_way_back_of_a_normal_law_ends_in_that_law():
    law = normal_law(0.5, 0.04)
    start = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0)).double()
    times = Span(0.02, 8.0).backwards(300)
    path = list(reversed_path(law.score, start, times, generator_of(0, 3)))
    assert torch.equal(path[0], start)
    assert len(path) == 301
    m, variance = exp(-0.01), exp(-0.02) * 0.04 + 1 - exp(-0.02)
    assert float(path[-1].mean()) == pytest.approx(0.5 * m, abs=0.01)
    assert float(path[-1].var()) == pytest.approx(variance, rel=0.05)


def test_noise_has_the_variance_of_its_time():
    clean = torch.full((100_000, 1), 2.0, dtype=torch.float64)
    x = noised(clean, 1.0, generator_of(0, 0))
    assert float(x.mean()) == pytest.approx(2 * exp(-0.5), abs=0.01)
    assert float(x.var()) == pytest.approx(1 - exp(-1.0), rel=0.02)


def test_the_sliced_distance_of_a_shift_and_of_a_stretch():
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    shift = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64)
    apart = sliced_wasserstein(points, points + shift, 20_000, generator_of(0, 0))
    assert apart == pytest.approx(5 / sqrt(3), rel=0.02)  # E <shift, direction>^2 = |shift|^2 / 3
    line = torch.arange(5.0, dtype=torch.float64)[:, None]
    shuffled = 2 * line[[3, 1, 4, 0, 2]]
    assert sliced_wasserstein(line, shuffled, 7, generator_of(0, 0)) == pytest.approx(sqrt(6.0))
    with pytest.raises(DataError, match=r"^second has shape \(4, 1\); expected \(5, 1\)"):
        sliced_wasserstein(line, line[:4], 7, generator_of(0, 0))


def test_times_without_a_score_are_refused():
    with pytest.raises(SettingError, match=r"^A diffusion must begin at a time above 0, got first"):
        Span(0.0, 5.0)
    with pytest.raises(SettingError, match=r"^last must lie between 0\.1 and 20, got 21\.0\.$"):
        Span(0.1, 21.0)
    with pytest.raises(SettingError, match=r"^last must lie between 0\.5 and 20, got 0\.1\.$"):
        Span(0.5, 0.1)
    with pytest.raises(SettingError, match=r"^An interval of times needs first < last"):
        Span(1.0, 1.0)
    with pytest.raises(SettingError, match=r"^first must be a finite number, got nan\.$"):
        Span(float("nan"), 1.0)
