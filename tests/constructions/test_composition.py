"""Loss slopes that MLP layers evaluate operation by operation."""

import pytest
import torch

import icgd
from icgd.constructions.composition import Composition
from icgd.errors import UnsupportedProblemError
from icgd.problems.losses import Loss

CASES = {
    "-y * sigmoid(-t * y)": (4.0, 1.0, 275),
    "t * exp(-t * y)": (2.0, 1.0, 1162),
    "(1 + y**2) * tanh(t - y)": (2.0, 1.0, 275),
    "t * sqrt(0.1 + t**2 * y**2)": (2.0, 1.0, 893),
    "pi * t * y + sqrt(2 + exp(t * y) + y) + 3": (1.0, 1.0, 600),
}
"""The largest |t| and |y|, and the units with which a slope is evaluated to 1e-3."""


def evaluated(composition, fits, slots):
    """The slope by the fits, slot by slot."""
    for part in composition.operations:
        total = 0.0
        for argument, function in part.summands:
            z = sum(factor * slots[name] for name, factor in argument.terms())
            terms = fits[function.name].terms()
            total = total + sum(t.coefficient * torch.relu(t.scale * z + t.shift) for t in terms)
        slots[part.slot] = total
    return sum(factor * slots[name] for name, factor in composition.term.combination.terms())


@pytest.mark.parametrize("slope", CASES)
def test_the_fits_evaluate_the_slope_with_few_units(slope):
    reach_t, reach_y, most = CASES[slope]
    loss = Loss(slope)
    composition = Composition(loss.node, "p", (reach_t, reach_y))
    generator = torch.Generator().manual_seed(0)
    u, v = 2 * torch.rand(2, 20_000, generator=generator, dtype=torch.float64) - 1
    t, y = reach_t * u[:, None], reach_y * v[:, None]
    for pieces in (16, 32, 48, 64, 128, 208):
        fits = {fit.name: fit for fit in composition.fitted(pieces, None)}
        summands = [f for part in composition.operations for _, f in part.summands]
        n_units = sum(len(fits[function.name].terms()) for function in summands)
        error = (evaluated(composition, fits, {"p": t, "y": y}) - loss.slope(t, y)).abs().max()
        if error <= 1e-3:
            break
    assert error <= 1e-3
    assert n_units <= most


def test_a_product_is_in_the_range_of_its_factors():
    """It is a difference of squares, whose ranges alone would allow 1 + t**2 y**2 to be 0."""
    composition = Composition(Loss("(t - y) / (1 + t**2*y**2)").node, "p", (2.0, 2.0))
    (product,) = (f for f in composition.functions.values() if "(-1)" in f.name)
    assert -1.0 < product.low < 0.0 < 16.0 < product.high < 17.0


def problem(slope: str) -> icgd.Problem:
    step, domain = icgd.GradientStep(0.3, box=1.0), icgd.Domain(1.0, 1.0)
    return icgd.Problem(icgd.MLP((2, 3, 1), "tanh"), icgd.Loss(slope=slope), step, domain)


@pytest.mark.parametrize("slope", CASES)
def test_the_transformer_descends_within_its_bounds(slope):
    generator = torch.Generator().manual_seed(1)
    x, y = 2 * torch.rand(2, 5, 2, generator=generator, dtype=torch.float64) - 1
    compiled = icgd.compile(problem(slope), "relu-stack", n_steps=3)
    report = icgd.verify(compiled, x, y[:, :1], queries=x[:2], seed=0)
    assert report.verdict.holds
    assert report.certificate.backend == "literal"
    assert 0 < float(report.trajectory_bounds[-1]) < 3e-3
    dense, fused = (compiled.run(x, y[:, :1], seed=0, backend=b) for b in ("dense", "fused"))
    torch.testing.assert_close(dense.parameters, fused.parameters, rtol=0, atol=1e-12)


def test_predictions_and_labels_outside_the_domain_of_a_slope_are_refused():
    narrow = problem("t*y")
    loss = Loss("y * log(3 + t)", low=-1.5, high=50)
    wide = icgd.Problem(narrow.network, loss, narrow.update, narrow.domain)
    with pytest.raises(
        UnsupportedProblemError, match=r"predictions and labels can reach .*-1.5, 50"
    ):
        icgd.compile(wide, "relu-stack", n_steps=1)


@pytest.mark.parametrize("construction", ["softmax-stack", "recursion"])
def test_other_constructions_refuse(construction):
    with pytest.raises(UnsupportedProblemError, match="slope of the"):
        icgd.compile(problem("-y * sigmoid(-t * y)"), construction, n_steps=1)


def test_a_chain_refuses_what_no_row_holds():
    of_gap = problem("tanh(t - y)")
    update = icgd.GradientStep(0.3, box=1.0, batch_size=1)
    batched = icgd.Problem(of_gap.network, of_gap.loss, update, of_gap.domain)
    with pytest.raises(UnsupportedProblemError, match=r"its blocks can hold u\(t, y\) only if"):
        icgd.compile(batched, "cot-network", n_steps=1)


@pytest.mark.parametrize(
    ("activation", "slope"),
    [
        ("tanh", "t - y + 1"),
        ("tanh", "abs(t - y + 1)"),
        (icgd.Function.pieces((-3, 3), ("0", "x/6 + 1/2", "1")), "2*t - 2*y"),
    ],
)
def test_softmax_stack_refuses_what_its_registers_would_not_hold_at_0(activation, slope):
    """An MLP writes f(0) into registers, which added 1e-2 to a step where f(0) was not 0."""
    of_tanh = problem(slope)
    network = icgd.MLP((2, 3, 1), activation)
    own = icgd.Problem(network, of_tanh.loss, of_tanh.update, of_tanh.domain)
    with pytest.raises(UnsupportedProblemError, match="in registers, whose slots must stay 0"):
        icgd.compile(own, "softmax-stack", n_steps=1)
    generator = torch.Generator().manual_seed(1)
    x, y = 2 * torch.rand(2, 5, 2, generator=generator, dtype=torch.float64) - 1
    compiled = icgd.compile(own, "relu-stack", n_steps=2)
    assert icgd.verify(compiled, x, y[:, :1], seed=0, rigorous=False).verdict.holds
