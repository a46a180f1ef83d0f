"""The verdict on every statement of cot, and the small mathematics of its checks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd_papers.studies.cot_tokens import look_up, nearest_points, smooth_line
from icgd_papers.theorems.book import check_statement, paper_named, statement_named, statements_of
from icgd_papers.theorems.cot import chain, convex, layer, linear_models, network
from icgd_papers.theorems.statement import Verdict

HOLDS = {
    *("remark-2.1", "remark-2.2", "definition-2.3", "remark-3.1", "remark-3.2", "remark-3.3"),
    *("definition-4.1", "remark-4.1", "remark-4.2", "lemma-a.1", "remark-a.1", "appendix-c.1"),
    *(f"open-question-{topic}" for topic in ("masks", "constants", "other-models")),
}
PROOF_FAILS = {"theorem-4.2", "proposition-4.2", "proposition-4.4"}
UNDECIDED = {"appendix-c.3-heads", "appendix-d"}
NOT_EXECUTABLE = {"definition-2.2", "definition-3.2", "definition-a.1"}


def expected(name: str) -> Verdict:
    for verdict, names in (
        (Verdict.HOLDS, HOLDS),
        (Verdict.PROOF_FAILS, PROOF_FAILS),
        (Verdict.UNDECIDED, UNDECIDED),
        (Verdict.NOT_EXECUTABLE, NOT_EXECUTABLE),
    ):
        if name in names:
            return verdict
    return Verdict.CORRECTED


SECONDS = {"appendix-c.3-heads", "remark-3.3"}
NAMES = [statement.key.removeprefix("cot-") for statement in statements_of(paper_named("cot"))]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SECONDS else n for n in NAMES]
)
def test_every_statement_has_its_verdict(name):
    assert check_statement(statement_named(f"cot-{name}"), seed=0).verdict is expected(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in NOT_EXECUTABLE])
def test_no_verdict_depends_on_the_seed(name):
    for seed in (1, 2, 3):
        assert check_statement(statement_named(f"cot-{name}"), seed).verdict is expected(name), seed


def test_all_named_verdicts_are_in_the_book():
    assert set(NAMES) >= HOLDS | PROOF_FAILS | UNDECIDED | NOT_EXECUTABLE


# Convex functions


@pytest.mark.parametrize("number", range(3))
def test_gradients_curvatures_and_minimisers_belong_together(number):
    f = convex.smooth_functions(0)[number]
    w = convex.normal(9, convex.DIMENSION).requires_grad_()
    (gradient,) = torch.autograd.grad(f.value(w), w, create_graph=True)
    torch.testing.assert_close(gradient, f.gradient(w), rtol=0, atol=1e-12)
    assert f.gradient(f.minimiser).abs().max() < 1e-12
    rows = [torch.autograd.grad(g, w, retain_graph=True)[0] for g in gradient]
    eigenvalues = torch.linalg.eigvalsh(torch.stack(rows))
    assert f.alpha - 1e-12 <= eigenvalues.min()
    assert eigenvalues.max() <= f.beta + 1e-12


def test_errors_exceed_their_sum_if_steps_are_longer_than_two_over_beta():
    f = convex.smooth_functions(0)[0]
    assert not all(comparison.holds for comparison in convex.errors_add_up(f, 2.5, seed=0))


# The layer of Section 3


@given(seed=st.integers(0, 100), d=st.integers(1, 6), n=st.integers(1, 8))
def test_a_layer_takes_an_exact_lasso_step_with_decay(seed, d, n):
    x, y, w = layer.bounded_data(seed, n, d)
    heads = [(-0.1, layer.of_residual(smooth_line(d + 1.0)))]
    written = layer.next_block(layer.prompt(x, y, w), heads, decay=0.05, threshold=0.02)
    exact = convex.soft_threshold(w - 0.1 * x.T @ (x @ w - y) - 0.05 * w, 0.02)
    torch.testing.assert_close(written, layer.prompt(x, y, exact), rtol=0, atol=1e-12)


@given(s=st.floats(-3, 3))
def test_grids_look_up_their_functions(s):
    score = torch.tensor(s, dtype=torch.float64)
    assert float(look_up(smooth_line(3.0), score)) == pytest.approx(s, abs=1e-11)
    nearest = float(look_up(nearest_points(-1.0, 1.0, 3), score))
    assert abs(nearest - max(-1.0, min(1.0, s))) <= 0.5 + 1e-9


@given(seed=st.integers(0, 50), n=st.integers(1, 40))
def test_mirrored_heads_return_the_mean_gradient_whatever_the_number_of_examples(seed, n):
    x, y, w = layer.bounded_data(seed, n)
    read = layer.mirrored_heads(layer.prompt(x, y, w), n_heads=3, scale=1e-3)
    exact = x.T @ (x @ w - y) / n
    torch.testing.assert_close(read, exact[:, None].expand(-1, n), rtol=0, atol=1e-12)


# Linear models


@pytest.mark.parametrize("model", ["logistic", "poisson", "ridge", "lasso"])
def test_a_step_rests_at_the_minimiser_and_is_that_of_the_library(model):
    if model in ("logistic", "poisson"):
        fit = linear_models.generalised(model, 0)
    else:
        l2, l1 = (0.1, 0.0) if model == "ridge" else (0.0, 0.1)
        fit = linear_models.least_squares(model, 0, l2, l1)
    size = 1 / fit.beta
    assert (fit.step(fit.minimiser, size) - fit.minimiser).abs().max() < 1e-13
    assert 0 < fit.alpha <= fit.beta
    literal, exact = fit.literal_chain(size), fit.exact_chain(size)
    torch.testing.assert_close(literal, exact, rtol=0, atol=1e-10)


def test_the_lasso_leaves_a_coefficient_out():
    fit = linear_models.least_squares("lasso", 0, l1=0.1)
    assert (fit.minimiser == 0).sum() == 1


def test_the_corrected_bound_notices_chains_of_another_step(monkeypatch):
    """Chains of steps 0.5 / beta leave the bound for 1 / beta."""
    fit = linear_models.least_squares("ridge", 0, l2=0.1)
    chain = fit.exact_chain(0.5 / fit.beta)
    monkeypatch.setattr(linear_models.Fit, "chains", lambda fit, share: [("", chain, 1.0)])
    monkeypatch.setattr(linear_models.Fit, "step_error", lambda fit, chain, size: 0.0)
    assert not all(comparison.holds for comparison in linear_models.distances(fit, 1.0))


# One step of Section 4


@given(seed=st.integers(0, 50), depth=st.integers(1, 4))
def test_rounds_step_along_the_gradient(seed, depth):
    drawn = network.draw_round(seed, depth)
    parts = zip(drawn.weights, drawn.gradients, drawn.stepped(0.1), strict=True)
    for before, gradient, after in parts:
        torch.testing.assert_close(after, before - 0.1 * gradient, rtol=0, atol=1e-12)


def test_another_step_size_is_noticed_in_backward_blocks_alone(monkeypatch):
    block = network.Block(network.draw_round(2))
    monkeypatch.setattr(network, "STEP_SIZE", 0.04)
    for number, (kind, *blocks) in enumerate(block.steps(), start=1):
        is_backward = kind in (network.BACKWARD, network.FROM_Y)
        assert (block.error(*blocks, number) > 1e-4) == is_backward, kind


def test_corrected_gates_are_0_on_their_type_and_at_most_minus_1_on_others():
    def shifts(gates):
        return {own: [g(*tags) for tags in network.TAGS.values()] for own, g in gates.items()}

    assert shifts(network.CORRECTED_GATES) == {
        "forward": [0, -2, -3, -2],
        "backward": [-1, 0, -1, -3],
        "x": [-3, -1, 0, -1],
        "y": [-2, -2, -1, 0],
    }
    assert shifts(network.PRINTED_GATES)["backward"][0] == 0
    assert shifts(network.PRINTED_GATES)["x"] == [-2, 0, 1, 0]


# The chain


def test_what_the_steps_of_two_layers_need():
    assert list(chain.needed_blocks(2))[:6] == [
        (1, ("B", 1), None),
        (2, ("F", 1), ("B", 2)),
        (3, ("F", 2), None),
        (4, ("B", 2), ("F", 1)),
        (5, ("B", 1), None),
        (6, ("F", 1), ("B", 2)),
    ]


def test_a_mask_that_is_off_by_one_is_noticed():
    assert chain.wrong_steps(3, chain.corrected_far) == 0
    assert chain.wrong_steps(3, lambda t, n: chain.corrected_far(t, n) + 1) == 12
    assert chain.wrong_steps(3, chain.printed_far) == 12
    assert chain.wrong_data(3, lambda t, n: t // n - 1) == 6


def test_what_attention_reads_is_compared_with_the_mask(monkeypatch):
    n_steps, weight, error = chain.missed(2, seed=0)
    assert (n_steps, weight) == (12, 0.0)
    assert 0 < error <= 1e-12
    monkeypatch.setattr(chain.ChainMask, "asks", lambda mask, step: (0.0,) * 7)
    assert chain.missed(2, seed=0)[1] > 0.5


def test_errors_over_rounds():
    assert chain.expanding_rounds(5, 1e-6) == pytest.approx(121e-6, rel=1e-6)
    line = 1e-3 + 2 * 2e-3 + 3e-3 + 2 * 4e-3 + 7 * 5e-3
    assert chain.round_error(3, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3) == pytest.approx(line)
    reached, allowed = chain.rounds_at_a_saddle(150, 0.01, 1e-7)
    assert 150 * 2e-7 < reached <= allowed < 2 * reached


def test_blocks_of_teachers_hold_their_rows_once():
    forward, backward = (
        chain.teacher_blocks(kind, 1.0, has_signs=True, seed=0) for kind in ("forward", "backward")
    )
    assert forward.shape == (180, 3 * 5 + 25)
    assert backward.shape == (180, 2 * 5 + 25)
    two = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    assert chain.frobenius_loss(two, torch.zeros(2)) == pytest.approx(5 * (5 + 9) / 2)


def test_costs_grow_as_the_square_of_the_depth_and_as_the_depth():
    stack, block = (
        chain.flops(name, 64) / chain.flops(name, 32) for name in ("relu-stack", "cot-network")
    )
    assert stack == pytest.approx(4, rel=0.05)
    assert block == pytest.approx(2, rel=1e-3)
