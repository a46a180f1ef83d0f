from math import exp

import pytest
import torch
from flint import arb, ctx

from icgd.approximation.lattice import (
    MOST_POINTS,
    OFFSET_ROUNDING,
    _truncation_error,
    line,
    log_factorial,
    mean_of_link,
)
from icgd.errors import SettingError
from icgd.problems.linear_model import LINKS
from icgd.program.functions import GridMean
from tests.certificates.exact_step import MEANS


def head(fit: GridMean, s: torch.Tensor) -> torch.Tensor:
    """What a softmax head over the tokens returns."""
    point, offset, value = (
        torch.tensor(part, dtype=torch.float64) for part in (fit.points, fit.offsets, fit.values)
    )
    return torch.softmax(s[:, None] * point + offset, dim=-1) @ value


@pytest.mark.parametrize("reach", [0.5, 5.0])
@pytest.mark.parametrize("link", LINKS)
def test_the_mean_of_every_link_is_within_its_proved_error(link, reach):
    fit = mean_of_link(link, reach)
    s = torch.linspace(-reach, reach, 4001, dtype=torch.float64)
    distance = (head(fit, s) - LINKS[link].mean(s)).abs().max()
    rounding = 2.0**-53 * (len(fit.values) + 8) * (fit.per_argument * reach + fit.per_offset)
    assert distance <= fit.error + rounding
    assert fit.error <= 1e-12 * max(1.0, fit.size)


def exact_head(fit: GridMean, s: arb) -> arb:
    """What a head over these tokens returns in real numbers."""
    weights = [(arb(p) * s + arb(o)).exp() for p, o in zip(fit.points, fit.offsets, strict=True)]
    pairs = zip(weights, fit.values, strict=True)
    return sum((w * arb(v) for w, v in pairs), arb(0)) / sum(weights, arb(0))


@pytest.mark.parametrize("reach", [0.5, 5.0])
@pytest.mark.parametrize("link", LINKS)
def test_in_real_numbers_the_head_of_every_link_is_within_its_proved_error(link, reach):
    """For poisson the offsets' own digits are most of the error: 9e-14 at a score of 5."""
    ctx.prec, fit = 200, mean_of_link(link, reach)
    for share in range(-16, 17):
        s = arb(reach) * share / 16
        assert float((exact_head(fit, s) - MEANS[link](s)).abs_lower()) <= fit.error + 1e-50


def test_no_offset_of_poisson_is_off_by_more_than_is_counted():
    ctx.prec = 200
    for g in range(2, MOST_POINTS + 1):
        exact = arb(g + 1).lgamma()
        off = abs(arb(log_factorial(g)) - exact) / exact
        assert float(off.abs_upper()) <= 0.75 * OFFSET_ROUNDING


def test_two_tokens_are_the_logistic_mean_for_scores_of_any_size():
    fit = mean_of_link("logistic", 700.0)
    assert (fit.points, fit.offsets, fit.values, fit.error) == (
        (0.0, 1.0),
        (0.0, 0.0),
        (0.0, 1.0),
        0,
    )
    s = torch.tensor([-700.0, -40.0, 0.0, 40.0, 700.0], dtype=torch.float64)
    torch.testing.assert_close(head(fit, s), torch.sigmoid(s), rtol=1e-15, atol=0)


def test_poisson_reads_the_counts_and_is_right_relatively():
    fit = mean_of_link("poisson", 3.0)
    assert fit.points == fit.values == tuple(float(count) for count in range(len(fit.values)))
    s = torch.linspace(-3, 3, 101, dtype=torch.float64)
    torch.testing.assert_close(head(fit, s), torch.exp(s), rtol=1e-13, atol=0)


def test_the_counts_that_are_left_out_are_what_is_missing():
    """By hand, with the labels 0 and 1 only: of e^s the mean e^s / (1 + e^s) is left."""
    short = exp(0.5) / (1 + exp(0.5))
    assert _truncation_error(0.5, last=1) == pytest.approx(exp(0.5) - short, rel=1e-14)


def test_a_line_is_itself():
    fit = line("label", 40.0)
    s = torch.linspace(-40, 40, 201, dtype=torch.float64)
    assert fit.name == "label"
    assert (head(fit, s) - s).abs().max() <= 1e-12


@pytest.mark.parametrize(("link", "reach"), [("poisson", 7.0), ("poisson", 900.0)])
def test_scores_that_no_head_can_cover_are_refused(link, reach):
    with pytest.raises(
        SettingError, match=r"^A head of 1024 tokens cannot return the poisson mean"
    ):
        mean_of_link(link, reach)
