"""A block that errs is found out."""

from icgd_papers.theorems.cot import passes
from icgd_papers.theorems.cot.network import BACKWARD, FORWARD, FROM_X, FROM_Y
from icgd_papers.theorems.statement import Verdict


def test_an_error_of_one_type_leaves_only_its_own_statements_unconfirmed(monkeypatch):
    errors = {FORWARD: 0.0, BACKWARD: 1e-3, FROM_X: 0.0, FROM_Y: 0.0}
    monkeypatch.setattr(passes, "measured_errors", lambda seed, backend: errors)
    found = {
        statement.label: statement.verdict(statement.check(0))
        for statement in (passes.FORWARD_PASS, passes.BACKWARD_PASS, passes.ONE_BLOCK)
    }
    assert found == {
        "Theorem 4.1": Verdict.CORRECTED,
        "Theorem 4.2": Verdict.UNCONFIRMED,
        "Proposition 4.3": Verdict.UNCONFIRMED,
    }
