"""Wang's studies: the theorems' counts, the lottery of Lemma 5, widths, rates, in-context runs."""

from dataclasses import replace
from math import exp, inf, log, pi, sqrt

import polars as pl
import pytest
import torch

from icgd.constructions.recursion import Recursion
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import ConstructionError, SettingError
from icgd.pipeline import compile
from icgd.problems.mlp import MLP
from icgd.problems.oracles import predict
from icgd_papers.figure import Job
from icgd_papers.studies import wang_in_context, wang_rates, wang_resources
from icgd_papers.studies.ball import ball_network, ball_sample
from icgd_papers.studies.barron_sums import DECAY, Lottery
from icgd_papers.studies.least_squares import (
    Budget,
    damped_step,
    evaluate,
    fit,
    mean_curvature,
    mean_square,
)
from icgd_papers.studies.resources import (
    indicator,
    indicator_crossover,
    indicator_in,
    smooth,
    smooth_crossover,
)

# The counts of Theorems 3 and 4, by hand and by brute force.


def test_the_indicator_takes_the_widths_of_theorem_3():
    pair = indicator(1e-4)  # eps^(-1/4) = 10
    assert exp(pair.shallow.log_width) == pytest.approx(exp(10))
    assert exp(pair.deep.log_width) == pytest.approx(1e4)
    assert (pair.shallow.n_layers, pair.deep.n_layers) == (4, 9)
    assert exp(pair.shallow.log_heads) == pytest.approx(2 * exp(20))
    assert exp(pair.shallow.log_matrices) == pytest.approx(8 * exp(20))
    assert exp(pair.deep.log_matrices) == pytest.approx(27 * 1e8)
    assert exp(pair.shallow.log_printed) == pytest.approx(exp(20))
    # the printed count of 3 layers grows as eps^-1 and misses a square
    ratios = [x.deep.log_matrices - x.deep.log_printed for x in map(indicator, (1e-2, 1e-4))]
    assert ratios[1] - ratios[0] == pytest.approx(log(1e2))


def test_three_layers_are_cheaper_for_small_errors_only():
    error = exp(-indicator_crossover())
    assert error == pytest.approx(1.13e-4, rel=0.01)
    assert indicator(0.99 * error).deep_is_cheaper
    assert not indicator(1.01 * error).deep_is_cheaper
    assert indicator(1e-300).deep_is_cheaper  # counts beyond every float


def test_in_one_dimension_the_lemmas_give_a_lower_and_an_upper_bound():
    pair = indicator_in(10, 1e-5)
    assert exp(pair.shallow.log_width) == pytest.approx(exp(10))
    assert exp(pair.deep.log_width) == pytest.approx(8 * 100 / 1e-5)
    assert indicator_in(10, 1.1e-4).shallow.log_width == 0.0  # above 10^-4 Lemma 1 says nothing
    assert indicator_in(10, 0.9e-4).shallow.log_width == 10.0


def test_smooth_functions_take_the_networks_of_theorem_4():
    pair = smooth(exp(-4), dimension=3, smoothness=6, depth=3)
    assert (pair.shallow.depth, pair.deep.depth) == (3, 5)
    assert pair.shallow.log_width == pytest.approx(4 / 4)
    assert pair.deep.log_width == pytest.approx(4 * 3 / 6)
    assert exp(pair.deep.log_matrices) == pytest.approx(125 * exp(4))
    assert exp(pair.deep.log_printed) == pytest.approx(4**3 * exp(4))
    assert exp(pair.shallow.log_matrices) == pytest.approx(27 * exp(2))


@pytest.mark.parametrize(
    ("dimension", "smoothness", "depth"),
    [(1, 3, 2), (1, 4, 3), (2, 5, 2), (1, 13, 4), (1, 40, 4), (3, 6, 2)],
)
def test_the_deep_network_wins_in_the_end_exactly_if_the_paper_says_so(
    dimension, smoothness, depth
):
    function = {"dimension": dimension, "smoothness": smoothness, "depth": depth}
    crossover = smooth_crossover(**function)
    assert (crossover is not None) == (2 * (depth - 1) * dimension < smoothness)
    steps = range(2, 700, 2)
    lost = [step for step in steps if not smooth(exp(-step), **function).deep_is_cheaper]
    last_loss = max(lost, default=0)
    if crossover is None:
        assert last_loss == steps[-1]
    elif crossover == 0:
        assert not lost
    else:
        assert last_loss <= crossover < last_loss + 2


def test_what_the_theorems_do_not_cover_is_refused():
    for error in (0.0, 1.0, -0.1):
        with pytest.raises(SettingError, match=r"^error must lie strictly between 0 and 1, got "):
            indicator(error)
    with pytest.raises(SettingError, match="finite number"):
        indicator(inf)
    for name, value, least in (("dimension", 0, 1), ("smoothness", 2, 3), ("depth", 1, 2)):
        function = {"dimension": 1, "smoothness": 3, "depth": 2, name: value}
        with pytest.raises(
            SettingError, match=f"^{name} must be a whole number of at least {least}"
        ):
            smooth(0.1, **function)


# The lottery of Lemma 5.


def test_the_constants_are_the_integrals_that_they_stand_for():
    lottery = Lottery(1)
    w = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-(w**2) / 2) / sqrt(2 * pi) * float(w[1] - w[0])
    assert float(((1 + w.abs()) * density).sum()) == pytest.approx(lottery.barron_norm, rel=1e-6)
    assert float(((2 + 2 * w.abs()) * density).sum()) == pytest.approx(lottery.total, rel=1e-6)
    assert float(((1 + w.abs()) ** 2 * torch.exp(-(w**2) / 2)).max()) == pytest.approx(DECAY)
    assert [Lottery(d).volume for d in (1, 2, 3)] == pytest.approx([2.0, pi, 4 * pi / 3])


@pytest.mark.parametrize("dimension", [1, 5])
def test_units_are_drawn_from_the_density_of_the_proof(dimension):
    lottery = Lottery(dimension)
    w, b = lottery.draw_units(100_000, torch.Generator().manual_seed(0))
    size, mean = w.norm(dim=1), lottery.mean_frequency
    # E|w| = int |w| (1 + |w|) F / norm, and |b| <= |w| with probability |w| / (|w| + 1)
    assert float(size.mean()) == pytest.approx((mean + dimension) / lottery.barron_norm, rel=0.01)
    inside = float((b.abs() <= size).double().mean())
    assert inside == pytest.approx(mean / lottery.barron_norm, rel=0.02)
    beyond = (b.abs() - size)[b.abs() > size]
    assert float((beyond > 1).double().mean()) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("dimension", [1, 4])
def test_the_lottery_stays_within_its_bound_and_falls_like_the_root_of_n(dimension):
    lottery = Lottery(dimension)
    few, many = (lottery.drawn_distance(n, 30, seed=0) for n in (4, 400))
    assert few <= lottery.constant / 2
    assert many <= lottery.constant / 20
    assert few / many == pytest.approx(10, rel=0.5)


def test_greedy_sums_are_least_squares_fits_of_units_that_help_most():
    lottery = Lottery(2)
    distances = lottery.greedy_distances((1, 3, 20), n_drawn=20, seed=3)
    w, b = lottery.draw_units(20, torch.Generator().manual_seed(3))
    units = torch.exp(-((lottery.points @ w.mT + b) ** 2) / 2)
    alone = []
    for unit in units.mT:
        best = torch.linalg.lstsq(unit[:, None], lottery.wanted[:, None]).solution
        alone.append((unit * best[0, 0] - lottery.wanted).square().mean())
    assert distances[0] == pytest.approx(sqrt(pi) * float(min(alone)) ** 0.5)
    every = torch.linalg.lstsq(units, lottery.wanted[:, None]).solution
    rest = (units @ every)[:, 0] - lottery.wanted
    assert distances[2] == pytest.approx(sqrt(pi) * float(rest.square().mean()) ** 0.5, rel=1e-3)
    assert distances[0] > distances[1] > distances[2]


# The ball, and least squares on it.

BUDGET = Budget(n_train=300, n_curvature=300, n_test=100, n_starts=1, n_iterations=60)
SAMPLE = ball_sample(2, 300, seed=0, index=0)


@pytest.mark.parametrize("dimension", [1, 2, 8])
def test_half_of_the_points_lie_in_the_ball_whatever_the_dimension(dimension):
    x, y = ball_sample(dimension, 4000, seed=0, index=0)
    points, radii = x[:, :-1], x[:, :-1].norm(dim=1)
    assert (x[:, -1] == 1).all()
    assert ((radii <= 1).double() == y).all()
    assert (torch.histc(radii, 4, 0.0, 2.0) / 4000 - 0.25).abs().max() < 0.03
    assert points.mean(0).abs().max() < 0.06
    assert not torch.equal(x, ball_sample(dimension, 4000, seed=0, index=1)[0])


@pytest.mark.parametrize("network", [MLP((3, 5, 1)), MLP((3, 4, 4, 1))])
def test_error_slope_and_curvature_are_those_of_autograd(network):
    weights = network.initial_parameters(3, box=3.0)

    def outputs(w):
        return predict(network, w, SAMPLE[0])[:, 0]

    jacobian = torch.autograd.functional.jacobian(outputs, weights)
    residuals = outputs(weights) - SAMPLE[1]
    here = evaluate(network, SAMPLE, weights)
    assert here.error == pytest.approx(residuals.square().mean().item(), rel=1e-5)
    assert torch.allclose(here.slope, jacobian.mT @ residuals / 300, atol=1e-6)
    curvature = mean_curvature(network, SAMPLE[0], weights)
    assert torch.allclose(curvature, jacobian.mT @ jacobian / 300, atol=1e-5)
    assert mean_square(network, weights, SAMPLE) == pytest.approx(here.error, rel=1e-5)


def test_a_damped_step_solves_its_equations_and_is_0_for_what_is_indefinite():
    curvature, slope = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double(), torch.tensor([1.0, 2.0])
    expected = -torch.linalg.solve(curvature + 0.5 * torch.eye(2), slope.double())
    assert torch.allclose(damped_step(curvature, slope.double(), 0.5), expected)
    assert not damped_step(-curvature, slope.double(), 0.5).any()


def test_a_network_finds_what_a_network_of_its_shape_computes():
    network = MLP((3, 2, 1))
    real = torch.tensor([1.0, -1.0, 0.5, 0.5, 1.0, -0.5, 1.0, -1.0], dtype=torch.float64)
    sample = SAMPLE[0], predict(network, real, SAMPLE[0])[:, 0]
    budget = replace(BUDGET, low_enough=1e-9)
    fits = [fit(network, sample, network.initial_parameters(k, 3.0), budget) for k in range(4)]
    best = min(fits, key=lambda x: x.error)
    assert best.error <= 1e-9
    assert (best.ended, best.n_iterations < 60) == ("low enough", True)


def test_training_ends_at_a_minimum_or_with_the_budget():
    network = MLP((3, 2, 1))
    first = network.initial_parameters(0, 3.0)
    converged = fit(network, SAMPLE, first, BUDGET)
    assert converged.ended == "converged"
    assert converged.slope.abs().max() < 0.005
    cut = fit(network, SAMPLE, first, replace(BUDGET, n_iterations=3))
    assert (cut.ended, cut.n_iterations) == ("budget", 3)
    assert cut.error > converged.error
    zeros = torch.zeros(10, 3).double(), torch.ones(10).double()
    stuck = fit(network, zeros, torch.ones(8).double(), BUDGET)  # the network is 0 at 0
    assert (stuck.ended, stuck.n_iterations, stuck.error) == ("converged", 0, 1.0)


# wang-resources: which networks suffice, and which are compiled.


@pytest.fixture
def made_up(monkeypatch):
    """Errors by hand, and relu-stack alone, whose functions are quick to fit."""

    def train(setting, width, start, training, fresh):
        error = 0.12 if (setting.depth, width) == (2, 4) else 0.04
        error, weight = (0.5, 9.0) if start == 0 else (error, 2.5)
        row = {"dimension": setting.dimension, "depth": setting.depth, "width": width}
        return {**row, "start": start, "error": error, "largest_weight": weight}

    monkeypatch.setattr(wang_resources, "train", train)
    relu = {"relu-stack": CONSTRUCTIONS["relu-stack"]}
    monkeypatch.setattr(wang_resources, "CONSTRUCTIONS", relu)


def resource_rows():
    settings = wang_resources.settings("smoke", 0)
    return pl.concat([wang_resources.run(x, Job()) for x in settings], how="diagonal_relaxed")


def test_only_best_starts_of_networks_that_suffice_are_compiled(made_up):
    rows = resource_rows().filter(dimension=2)
    compiled = rows.filter(pl.col("construction") == "relu-stack")
    assert compiled.select("depth", "width", "start").rows() == [(2, 8, 1), (3, 4, 1)]
    assert compiled["layers"].to_list() == [6, 8]
    assert rows.height == 8
    assert wang_resources.summarise(rows).rows() == [
        ("2", "0.1", "8 / 4", "612 / 644"),
        ("2", "0.05", "8 / 4", "612 / 644"),
        ("2", "0.03", ">8 / >8", "- / -"),
    ]


def test_a_construction_that_cannot_compile_a_network_is_left_out(made_up, monkeypatch):
    def refused(problem, *, n_steps, construction):
        assert (n_steps, problem.gradient_step.box, problem.domain.x) == (1, 3.0, 2.0)
        raise ConstructionError("registers=3 is too few for these ranges")

    monkeypatch.setattr(wang_resources, "compile", refused)
    rows = resource_rows()
    assert rows.height == 16
    assert rows["construction"].null_count() == 16


def test_a_network_learns_the_ball_and_is_tested_on_fresh_points(tmp_path):
    budget = Budget(n_train=2000, n_curvature=500, n_test=2500, n_starts=1, n_iterations=25)
    setting = wang_resources.Setting(2, 3, (6,), 5, budget)
    job = Job(tmp_path)
    row = wang_resources.run(setting, job).row(0, named=True)
    assert row["error"] < 0.06  # far below the 0.25 of the best constant
    assert 0 < abs(row["error"] - row["training_error"]) < 0.5 * row["error"]
    assert row["network_weights"] == MLP((3, 6, 6, 1), "tanh").n_parameters
    assert wang_resources.run(setting, job).row(0, named=True) == row  # from what was kept


# wang-rates.


def test_the_worst_step_is_the_largest_distance_to_autograd_in_the_euclidean_norm():
    compiled = compile(wang_rates.PROBLEM, Recursion(24, "relu"), n_steps=1)
    generator = torch.Generator().manual_seed(5)
    x, y, w = (
        2 * torch.rand(wang_rates.N_TASKS, *shape, generator=generator, dtype=torch.float64) - 1
        for shape in ((5, 2), (5, 1), (9,))
    )
    worst = 0.0
    for task in range(wang_rates.N_TASKS):
        first = (wang_rates.BOX * w[task]).requires_grad_()
        matrices = first[:6].view(3, 2), first[6:].view(1, 3)
        output = torch.tanh(x[task] @ matrices[0].mT) @ matrices[1].mT
        (slope,) = torch.autograd.grad((output - y[task]).square().sum() / 10, first)
        exact = (first - wang_rates.STEP * slope).clamp(-wang_rates.BOX, wang_rates.BOX)
        reached = compiled.run(x[task], y[task], initial=first.detach()).parameters[-1]
        worst = max(worst, float((reached - exact.detach()).norm()))
    assert worst > 1e-6
    assert wang_rates.worst_step(compiled, 5, "dense") == pytest.approx(worst, rel=1e-9)


def test_errors_fall_faster_than_promised_and_stay_below_their_bounds():
    settings = wang_rates.settings("smoke", 0)
    rows = pl.concat([wang_rates.run(x, Job()) for x in settings])
    heads = rows.filter(curve="heads and units")
    assert heads["allowed"].null_count() == 2
    errors, sizes = heads["error"], heads["size"]
    assert errors[1] < errors[0] / sqrt(sizes[1] / sizes[0])
    sums = rows.filter(pl.col("allowed").is_not_null())
    assert sums.height == 8
    assert (sums["error"] <= sums["allowed"]).all()
    last = sums.row(-1, named=True)
    assert last["allowed"] == pytest.approx(Lottery(2).constant / sqrt(4), rel=1e-5)


# wang-in-context.

IN_CONTEXT = wang_in_context.Setting(
    2, 2, 3, 7, wang_in_context.Budget(3, 6, 5, 2, 2, step_sizes=(0.2, 50.0))
)


def test_two_layers_get_the_width_whose_transformer_is_nearest_in_weights():
    size_of = wang_in_context.size_of
    deep = size_of(2, 3, 2).parameters
    gaps = {width: abs(size_of(2, 2, width).parameters - deep) for width in range(1, 8)}
    assert wang_in_context.equal_width(2, 2) == min(gaps, key=gaps.get) == 4


def real_descent(network, x, y, weights, step_size):
    for _ in range(3):
        weights = weights.detach().requires_grad_()
        error = (predict(network, weights, x)[:, 0] - y).square().sum() / (2 * len(y))
        (slope,) = torch.autograd.grad(error, weights)
        weights = (weights - step_size * slope).clamp(-4, 4)
    return weights.detach()


def test_errors_are_those_of_real_descent_on_fresh_tasks_with_the_chosen_step():
    rows = wang_in_context.run(IN_CONTEXT, Job())
    chosen, other = rows.rows(named=True)
    assert (chosen["step_size"], chosen["is_chosen"], other["is_chosen"]) == (0.2, True, False)
    assert chosen["choice_error"] < other["choice_error"]  # steps of 50 throw the weights about
    network, errors = ball_network(2, 3, 2), []
    for index in (10_000, 10_001):
        x, y = ball_sample(2, 11, seed=7, index=index)
        start = network.initial_parameters(index, 4.0)
        weights = real_descent(network, x[:6], y[:6], start, 0.2)
        errors.append(mean_square(network, weights, (x[6:], y[6:])))
    assert chosen["error"] == pytest.approx(sum(errors) / 2, rel=1e-5)
    assert chosen["largest_error"] == pytest.approx(max(errors), rel=1e-5)
    assert chosen["off_descent"] < 1e-9
    assert (chosen["width"], chosen["layers"], other["error"]) == (2, 5, None)
