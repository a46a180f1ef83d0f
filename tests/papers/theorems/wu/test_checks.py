"""Every statement of wu has its verdict, every erratum is shown, and broken code is noticed."""

import numpy as np
import pytest

from icgd_papers.theorems import book
from icgd_papers.theorems.statement import CHECKS, About, Entry, Verdict
from icgd_papers.theorems.wu import approximation, descent, oracle, softmax, transformers

VERDICTS = {
    "wu-equation-2.1": Verdict.CORRECTED,
    "wu-equation-3.5": Verdict.NOT_EXECUTABLE,
    "wu-remark-2": Verdict.HOLDS,
    "wu-lemma-1": Verdict.HOLDS,
    "wu-lemma-2": Verdict.CORRECTED,
    "wu-lemma-3": Verdict.CORRECTED,
    "wu-lemma-4": Verdict.CORRECTED,
    "wu-remark-3": Verdict.FAILS,
    "wu-lemma-5": Verdict.HOLDS,
    "wu-lemma-6": Verdict.CORRECTED,
    "wu-theorem-1": Verdict.PROOF_FAILS,
    "wu-theorem-1-for-relu-networks": Verdict.CORRECTED,
    "wu-corollary-1.1": Verdict.CORRECTED,
    "wu-theorem-2": Verdict.HOLDS,
    "wu-theorem-3": Verdict.HOLDS,
    "wu-appendix-b.3-dimensions": Verdict.CORRECTED,
    "wu-appendix-b.3-flops": Verdict.HOLDS,
    "wu-open-question-1": Verdict.UNDECIDED,
    "wu-open-question-2": Verdict.HOLDS,
    "wu-open-question-3": Verdict.HOLDS,
    "wu-lemma-7": Verdict.CORRECTED,
    "wu-equation-d.16": Verdict.CORRECTED,
    "wu-lemma-14": Verdict.CORRECTED,
    "wu-lemma-15": Verdict.HOLDS,
    "wu-theorem-5": Verdict.PROOF_FAILS,
    "wu-lemma-16": Verdict.PROOF_FAILS,
    "wu-theorem-6": Verdict.PROOF_FAILS,
    "wu-definition-13": Verdict.CORRECTED,
    "wu-lemma-17": Verdict.UNDECIDED,
    "wu-equation-f.10": Verdict.CORRECTED,
    "wu-equation-f.12": Verdict.CORRECTED,
    "wu-appendix-g-objective-1": Verdict.UNDECIDED,
    "wu-appendix-g-baseline": Verdict.UNDECIDED,
    "wu-lemma-19": Verdict.HOLDS,
}


SLOW = {"wu-theorem-1", "wu-theorem-5", "wu-lemma-16"}


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=pytest.mark.slow if key in SLOW else ()) for key in VERDICTS]
)
def test_a_statement_has_its_verdict_and_every_misprint_fails(key):
    entry = book.check_statement(book.statement_named(key), seed=3)
    assert entry.verdict is VERDICTS[key]
    holding = [c.case for c in entry.comparisons if c.about is not About.STATEMENT and c.holds]
    assert holding == []


@pytest.mark.parametrize("widths", [(2, 2), (3, 2, 1)])
def test_every_activation_and_loss_is_followed(widths):
    comparisons = list(transformers.follows([widths], seed=1))
    assert len(comparisons) == 3
    assert all(comparison.holds for comparison in comparisons)


def test_a_scaled_down_transformer_takes_the_same_step_within_the_norm():
    comparisons = list(transformers.norms((2, 3, 2), seed=1))
    assert [c.holds for c in comparisons if c.about is About.STATEMENT] == [True] * 3
    assert [c.holds for c in comparisons if c.about is About.PROOF] == [False]


def test_the_book_has_these_statements_in_words_and_symbols():
    statements = book.statements_of(book.paper_named("wu"))
    assert [statement.key for statement in statements] == list(VERDICTS)
    assert all(statement.claim.endswith(".") and statement.formula for statement in statements)
    assert "anonymous submission" in book.paper_named("wu").numbering


def verdict(label: str) -> Verdict:
    statement = next(s for s in book.statements().values() if (s.paper, s.label) == ("wu", label))
    return Entry(statement, tuple(CHECKS["wu", label](0))).verdict


def do_nothing(compiled, training, initial):
    return np.repeat(initial[None], compiled.program.n_steps + 1, axis=0)


@pytest.mark.parametrize(
    ("module", "name", "broken", "label"),
    [
        # A network that does nothing.
        (transformers, "literal_path", do_nothing, "Open question 2"),
        (softmax.FourLayers, "__call__", lambda self, tokens: tokens, "Theorem 6"),
        # Wrong constants and formulas.
        (approximation, "CONSTANTS", {1: 2.0, 2: 32.0}, "Lemma 7"),
        (approximation, "CONSTANTS", {1: 8.0, 2: 5.0}, "Lemma 7"),
        (approximation, "forward_constant", lambda *_: 0.05, "Lemma 2"),
        (approximation, "TANH_BEND", 1e-6, "Lemma 3"),
        (descent, "deltas", lambda *args: [1.01 * s for s in oracle.deltas(*args)], "Lemma 5"),
        (descent, "deltas", lambda *args: [1.01 * s for s in oracle.deltas(*args)], "Lemma 1"),
        (descent, "relu", lambda z: np.maximum(z, 0.01), "Equation (D.16)"),
        (softmax, "step_up", lambda z, *_: np.sign(z), "Equation (F.10)"),
    ],
)
def test_broken_code_is_not_confirmed(monkeypatch, module, name, broken, label):
    monkeypatch.setattr(module, name, broken)
    assert verdict(label) is Verdict.UNCONFIRMED


def test_a_table_that_does_nothing_is_worse_than_the_real_one(monkeypatch):
    monkeypatch.setattr(softmax, "literal_path", lambda _, prompts, w: np.stack([w, w], axis=1))
    worst, share = softmax.table_errors(10, 1, seed=0)
    assert worst > 0.1
    assert share == 1.0


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_theorem_1_is_not_confirmed_for_another_gradient(monkeypatch, loss):
    exact = oracle.LOSS_SLOPES[loss]
    monkeypatch.setitem(oracle.LOSS_SLOPES, loss, lambda p, y: 1.5 * exact(p, y))
    assert not all(comparison.holds for comparison in transformers.follows([(2, 3, 2)], seed=1))
