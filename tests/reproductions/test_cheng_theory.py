"""Every statement of cheng is measured and holds; a wrong layer would be noticed."""

from dataclasses import replace

import torch

from icgd.layers.kernel_attention import KernelAttention
from icgd.problems.oracles.function import FunctionOracle
from icgd.reproductions.cheng_theory import QUICK, checks


def test_every_statement_holds():
    found = list(checks(QUICK))
    assert [check.claim for check in found if not check.holds] == []
    claims = [check.claim.split(",")[0].split(" for")[0] for check in found]
    assert set(claims) == {
        "Proposition 3.1",
        "Proposition D.1",
        "Proposition 3.4",
        "Assumption 4.1",
        "Assumption 4.2",
        "Assumption 4.3",
        "Theorem 4.5",
        "Theorem 4.6",
    }


def test_a_layer_that_reads_the_queries_too_is_noticed(monkeypatch):
    everyone = lambda layer, x: torch.ones(x.shape[-2], dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(KernelAttention, "_is_example", everyone)
    first = next(checks(replace(QUICK, n_layers=2)))
    assert not first.holds
    assert first.measured > 1e-3


def test_a_limit_that_is_not_kernel_regression_is_noticed(monkeypatch):
    limit = FunctionOracle.limit
    monkeypatch.setattr(FunctionOracle, "limit", lambda *parts: 1.5 * limit(*parts))
    found = [check for check in checks(QUICK) if "kernel regression" in check.claim]
    assert [check.holds for check in found] == [False]
