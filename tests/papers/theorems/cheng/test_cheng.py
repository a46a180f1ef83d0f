"""The checks of cheng give the verdicts that were worked out by hand, and each can fail."""

from dataclasses import replace
from math import pi

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd.layers import KernelAttention
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd_papers.theorems.book import check_statement, paper_named, statements_of
from icgd_papers.theorems.cheng import assumptions, descent, hilbert_space, landscape
from icgd_papers.theorems.cheng.transformer import (
    ACTIVATIONS,
    eye,
    generator,
    hidden,
    label_rows,
    layer,
    linear,
    mask,
    prompt,
    softmax,
    sphere_points,
    value_matrix,
    wave,
)
from icgd_papers.theorems.statement import Verdict
from icgd_papers.training.covariates import AbstractCovariates, ShiftedMixture, normal
from icgd_papers.training.models import KernelTransformer

BOOK = {statement.label: statement for statement in statements_of(paper_named("cheng"))}

CORRECTED = {
    "Equation (7)",
    "Equation (13)",
    "Example 8",
    "Assumption 4.4",
    "Equation (17)",
    "Section 4.4, condition number",
    "Equation (24)",
    "Figure 4, heads",
    "Figure 4(c), kernel",
    "Equation (40)",
    "Equation (43)",
    "Equation (51)",
    "Equation (58)",
    "Equation (68)",
    "Equation (82)",
    "Appendix G, linear regression",
}
PROOF_FAILS = {
    "Proposition 3.4",
    "Lemma A.1",
    "Proposition F.3",
    "Proposition F.4",
    "Lemma F.5",
    "Lemma G.3",
}
NOT_EXECUTABLE = {
    "Assumption 2.1",
    "Section 5, composition",
    "Section 5, choice of activation",
    "Section 5, moved covariates",
}
SLOW = {"Theorem 4.5", "Theorem 4.6", "Proposition D.1(B)"}


def verdict(label: str) -> Verdict:
    if label in CORRECTED:
        return Verdict.CORRECTED
    if label in PROOF_FAILS:
        return Verdict.PROOF_FAILS
    if label in NOT_EXECUTABLE:
        return Verdict.NOT_EXECUTABLE
    return Verdict.UNDECIDED if label == "Section 5, optimality" else Verdict.HOLDS


@pytest.mark.parametrize("label", [label for label in BOOK if label not in SLOW])
def test_verdicts(label):
    entry = check_statement(BOOK[label], seed=3)
    assert entry.verdict is verdict(label), entry.comparisons
    # Every printed form and every step of a proof that is compared is wrong.
    assert all(part.holds == (part.about.name == "STATEMENT") for part in entry.comparisons)


def test_stationary_points_are_those_of_the_family():
    (found,) = landscape.stationary_points(("linear",), ("exp",), 0, moves=True)
    assert found.holds


def measured(check, seed=0):
    return [part.measured for part in check(seed) if part.about.name == "STATEMENT"]


@pytest.mark.parametrize("names", ["BC", "A"])
def test_another_family_is_not_stationary(names, monkeypatch):
    law = landscape.arbitrary_law(3, seed=0)
    wrong = replace(law, root=eye(3), whitening=eye(3))
    monkeypatch.setattr(landscape, "WIDTHS", (3,))
    monkeypatch.setattr(landscape, "arbitrary_law", lambda *_: wrong)
    assert min(measured(lambda seed: landscape.derivatives(names, seed, moves=True))) > 1e-3


def test_labels_that_see_the_rotation_are_noticed(monkeypatch):
    law = landscape.arbitrary_law(3, seed=0)
    wrong = replace(law, covariance=law.X.mT @ law.X)
    monkeypatch.setattr(landscape, "WIDTHS", (3,))
    monkeypatch.setattr(landscape, "arbitrary_law", lambda *_: wrong)
    assert min(measured(lambda seed: landscape.derivatives("BC", seed, moves=False))) > 1e-3
    assert min(measured(lambda seed: landscape.speeds(seed, moves=True))) > 1e-4


@pytest.mark.parametrize("moves", [False, True])
def test_the_loss_of_a_law_is_that_of_the_transformer_on_its_prompts(moves):
    """E[y y^T] = F F^T is the mean over the columns of F, times their number, of y y^T."""
    law, rng = landscape.arbitrary_law(2, seed=1), generator(1)
    A, B, C = 0.3 * normal(rng, 3, 2, 2, 2)
    r = torch.tensor([-0.2, 0.1], dtype=torch.float64)
    parameters = {"r": r, "B": B, "C": C} | ({"A": A} if moves else {})
    labels = torch.linalg.cholesky(law.covariance).mT  # a row of labels for each column of F
    x = law.X.mT[:, :, None].expand(-1, -1, labels.shape[1], -1, -1)
    y = labels.expand(len(law.X), -1, -1, -1)
    Z = prompt(x, hidden(y))
    for place in range(2):
        V = value_matrix(A[place] if moves else 0 * A[place], float(r[place]))
        Z = layer(Z, V, B[place], C[place], softmax)
    errors = (Z[..., -1, -1] + y[..., -1]).square().sum(-1).mean()
    assert landscape.in_context_loss(law, softmax, parameters) == pytest.approx(errors.item())


@pytest.mark.parametrize("width", [2, 3, 5])
def test_signed_shifts_are_a_group_of_rotations_with_the_mean_of_all(width):
    shifts = landscape.signed_shifts(width)
    assert len(shifts) == width * 2**width
    assert torch.equal(shifts.mT @ shifts, eye(width).expand_as(shifts))
    codes = {tuple(shift.flatten().tolist()) for shift in shifts}
    assert {tuple(shift.flatten().tolist()) for shift in shifts[-1] @ shifts} == codes
    R = normal(generator(0), width, width)
    assert torch.allclose((shifts.mT @ R @ shifts).mean(0), R.trace() / width * eye(width))


def test_dihedral_groups_average_fourth_powers_as_all_rotations_do():
    R = normal(generator(0), 2, 2)

    def mean(turns):
        moved = (turns.mT @ R @ turns).flatten(1)
        return (moved[:, :, None] * moved[:, None, :]).mean(0)

    coarse, fine, square = (mean(landscape.dihedral(order)) for order in (8, 100, 4))
    assert torch.allclose(coarse, fine, atol=1e-14)
    assert not torch.allclose(square, fine, atol=1e-2)


@given(
    eigenvalues=st.lists(st.floats(0.01, 100.0), min_size=2, max_size=5),
    part=st.floats(0.001, 1 / 3),
)
def test_short_linear_layers_improve_condition_numbers(eigenvalues, part):
    t = torch.tensor(eigenvalues, dtype=torch.float64)
    after = t * (1 - part * t / t.max()) ** 2
    assert after.max() / after.min() <= t.max() / t.min() * (1 + 1e-12)


def test_a_layer_that_reads_the_queries_too_is_noticed(monkeypatch):
    assert descent.every_layer([KernelHead("linear")], seed=0, n_layers=2).holds
    everyone = lambda layer, x: torch.ones(x.shape[-2], dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(KernelAttention, "is_example", everyone)
    assert descent.every_layer([KernelHead("linear")], seed=0, n_layers=2).measured > 1e-3


def test_too_few_layers_are_not_yet_bayes_estimator():
    assert descent.excess_loss(KernelMachine(5, "rbf"), 6, 5, seed=0).measured > 1e-3


class Cube(AbstractCovariates):
    """Uniform on a cube: the moments of order 1 to 3 are round, those of order 4 are not."""

    def sample(self, n_tasks, n_tokens, generator):
        size = (n_tasks, n_tokens, self.input_width)
        return torch.from_numpy(generator.uniform(-1, 1, size=size)) @ self.root


@pytest.mark.parametrize("law", [Cube(torch.eye(2)), ShiftedMixture.of_width(5)], ids=str)
def test_laws_that_are_not_round_are_noticed(law):
    assert assumptions.moment_deviation(law, seed=0) > assumptions.SAMPLING_ERRORS


def test_the_covariance_of_random_networks_by_hand():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]], dtype=torch.float64)
    m = assumptions.HIDDEN_WIDTH
    expected = [[m / 2, m / pi, 0.0], [m / pi, 2 * m, 3 * m / pi], [0.0, 3 * m / pi, 4.5 * m]]
    expected = torch.tensor(expected, dtype=torch.float64)
    assert torch.allclose(assumptions.network_covariance(x), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_minimum_of_theorem_g_2_is_reached(seed):
    (found,) = hilbert_space.representer_theorem(seed)
    assert found.measured <= 1e-12


def test_quadratic_features_give_the_polynomial_kernel():
    u, w = normal(generator(2), 2, 4, 3)
    products = hilbert_space.quadratic(u) @ hilbert_space.quadratic(w).mT
    assert torch.allclose(products, (1 + u @ w.mT) ** 2)


def test_softmax_is_normalised_over_the_examples_alone():
    ones = torch.ones(5, 3, dtype=torch.float64)
    assert softmax(ones, ones).tolist() == [[0.5] * 3, [0.5] * 3, [0.0] * 3]
    assert mask(3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_one_layer_by_hand():
    x = torch.zeros(3, 5, dtype=torch.float64)
    x[:, 0] = torch.tensor([1.0, 2.0, 3.0])
    y = torch.tensor([1.0, -1.0, 7.0], dtype=torch.float64)
    rows = label_rows(x, y, linear, 0.1, 1)
    assert rows.tolist() == [[1.0, -1.0, 0.0], pytest.approx([1.1, -0.8, 0.3])]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_written_out_transformer_predicts_as_the_model_that_is_trained(name):
    x = sphere_points(9, seed=3)
    rows = label_rows(x, wave(x), ACTIVATIONS[name], 0.1, 4)
    machine = KernelMachine(5, name)
    model = KernelTransformer.constructed(machine, [0.1] * 4)
    with torch.no_grad():
        predicted = model(x[None], wave(x)[None])
    assert predicted.item() == pytest.approx(-rows[-1, -1].item(), abs=1e-12)
