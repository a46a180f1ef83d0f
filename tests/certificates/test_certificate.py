from math import nan

import pytest
import torch

from icgd.certificates.certificate import Certificate, Report, Verdict
from icgd.certificates.near_kinks import NearKinks


def report(step: float = 1.0, trajectory: float = 2.0, domain: float = 4.0) -> Report:
    return Report(
        certificate=Certificate(domain, 8.0, 16.0, n_tokens=3),
        step_errors=torch.tensor([0.5, step]),
        step_bounds=torch.tensor([1.0, 2.0]),
        trajectory_errors=torch.tensor([0.5, trajectory]),
        trajectory_bounds=torch.tensor([1.0, 3.0]),
        near_kinks=NearKinks(0, ()),
        backend="fused",
        dtype="float64",
    )


def test_a_certificate_alone_is_a_promise():
    assert report().certificate.verdict is Verdict.PROMISED


def test_errors_within_all_bounds_hold():
    assert report().verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    "broken",
    [
        {"step": 2.1},
        {"trajectory": 3.1},
        {"domain": 0.9},
        {"step": nan},
        {"trajectory": nan},
    ],
)
def test_one_error_beyond_a_bound_or_not_a_number_breaks_it(broken):
    assert report(**broken).verdict is Verdict.BROKEN


def test_verdicts_are_sentences():
    assert Verdict.HOLDS.value == "every measured error is within its proved bounds"
