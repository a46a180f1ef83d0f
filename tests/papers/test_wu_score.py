"""wu-score, wu-score-relu: diffusion against closed forms, three trainings, what is measured."""

from dataclasses import replace
from math import cos, exp, log, pi, sqrt
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from icgd.pipeline import compile
from icgd.problems.data import as_task
from icgd_papers.figure import Job
from icgd_papers.runner import stored_rows
from icgd_papers.studies import wu_score
from icgd_papers.studies.diffusion import (
    Components,
    Law,
    Mixture,
    Span,
    add_noise,
    decay,
    digits,
    draw_examples,
    network_inputs,
    pinwheel,
    read_digits,
    reverse_path,
    ring,
    score_of,
    sliced_wasserstein,
    spread,
    velocity_of,
)
from icgd_papers.studies.wu_score import ADAM, CHOICE, DIRECT, EXACT, FRESH, IN_CONTEXT, NORMAL
from icgd_papers.training.tasks import generator_of

ROOT = Path(__file__).parents[2]
SPAN = Span(0.05, 4.0)
LAWS = {"ring": ring(), "pinwheel": pinwheel(), "digits": digits(4, seed=3)}


def test_the_digits_and_their_components_are_those_of_scikit_learn():
    pixels, labels = read_digits()
    assert np.array_equal(pixels, load_digits().data)
    assert np.array_equal(labels, load_digits().target)
    components, pca = Components.of(pixels, 5), PCA(5, whiten=True, svd_solver="full").fit(pixels)
    signs = np.sign((components.directions * pca.components_).sum(axis=1))
    assert components.directions == pytest.approx(pca.components_ * signs[:, None], abs=1e-9)
    whitened = pca.transform(pixels) * signs * np.sqrt(1797 / 1796)
    assert components.coordinates(pixels) == pytest.approx(whitened, abs=1e-9)
    assert all(row[np.abs(row).argmax()] > 0 for row in components.directions)
    back = components.images(components.coordinates(pixels)).reshape(1797, 64)
    left = np.square(back - pixels).sum() / np.square(pixels - pixels.mean(axis=0)).sum()
    assert left == pytest.approx(1 - PCA(5).fit(pixels).explained_variance_ratio_.sum(), abs=1e-4)


@pytest.mark.parametrize("name", LAWS)
def test_scores_are_slopes_of_the_log_density_of_noisy_points(name):
    mixture = LAWS[name].mixture
    times = torch.tensor([0.02, 0.3, 5.0], dtype=torch.float64)
    dimension = mixture.means.shape[1]
    x = torch.randn(3, dimension, dtype=torch.float64).requires_grad_()
    scores = mixture.score(x.detach(), times)
    for i, (m, s) in enumerate(zip(decay(times), spread(times), strict=True)):
        covariances = m.square() * mixture.covariances + s.square() * torch.eye(dimension).double()
        components = MultivariateNormal(m * mixture.means, covariances)
        density = MixtureSameFamily(Categorical(mixture.shares), components)
        (slope,) = torch.autograd.grad(density.log_prob(x)[i], x)
        assert scores[i] == pytest.approx(slope[i], rel=1e-9, abs=1e-9)


def test_the_score_of_two_points_is_that_of_lemma_19():
    shares, means = torch.full((2,), 0.5).double(), torch.tensor([[-1.0], [1.0]]).double()
    points = Mixture(shares, means, torch.zeros(2, 1, 1, dtype=torch.float64))
    x, time = torch.linspace(-2, 2, 9).double(), 0.3
    m, variance = exp(-time / 2), 1 - exp(-time)
    closed_form = (m * torch.tanh(m * x / variance) - x) / variance
    scores = points.score(x[:, None], torch.full((9,), time).double())
    assert scores[:, 0] == pytest.approx(closed_form)


@pytest.mark.parametrize("name", LAWS)
def test_samples_have_the_mean_and_covariance_of_the_law(name):
    mixture = LAWS[name].mixture
    shares, means = mixture.shares[:, None], mixture.means
    centre = (shares * means).sum(0)
    covariance = (shares[..., None] * mixture.covariances).sum(0)
    covariance += (shares * (means - centre)).mT @ (means - centre)
    x = mixture.sample(100_000, generator_of(0, 0))
    assert x.mean(0) == pytest.approx(centre, abs=0.02)
    assert x.mT.cov() == pytest.approx(covariance, abs=0.03)
    assert covariance.diagonal().mean() == pytest.approx(1, abs=0.05 if name == "digits" else 1e-9)


def test_half_of_the_digits_are_held_out():
    law = LAWS["digits"]
    assert len(torch.cat((law.training, law.held_out)).unique(dim=0)) == 1797
    mean = (law.mixture.shares[:, None] * law.mixture.means).sum(0)
    assert mean == pytest.approx(law.training.mean(0))
    drawn = law.draw_training(50, generator_of(0, 1))
    assert all((point == law.training).all(1).any() for point in drawn)
    fresh = law.draw_fresh(898, generator_of(0, 2))
    assert torch.equal(fresh.unique(dim=0), law.held_out.unique(dim=0))
    assert not torch.equal(law.training, digits(4, seed=4).training)


def test_velocities_stand_for_scores_and_denoising_labels_for_conditional_scores():
    x, score, other, clean = (torch.randn(5, 3, dtype=torch.float64) for _ in range(4))
    times = torch.tensor([0.05, 0.1, 0.5, 1.0, 4.0], dtype=torch.float64)
    m, s = decay(times)[:, None], spread(times)[:, None]
    velocity = velocity_of(score, x, times)
    assert score_of(velocity, x, times) == pytest.approx(score)
    apart = (velocity_of(other, x, times) - velocity).square().sum(-1)
    ratio = (s / m).square()[:, 0]
    assert apart == pytest.approx(ratio * (other - score).square().sum(-1))
    noise = (x - m * clean) / s  # grad log p(x_t | x_0) is -noise / s
    assert velocity_of(-noise / s, x, times) == pytest.approx(m * noise - s * clean)


def test_exact_labels_are_the_conditional_mean_of_denoising_labels():
    """What is left is uncorrelated with all inputs; x_0 of a normal law."""
    variance = torch.tensor([[[0.3]]], dtype=torch.float64)
    law = Law(Mixture(torch.ones(1).double(), torch.full((1, 1), 0.4).double(), variance))
    exact, denoising = (
        draw_examples(law, targets, SPAN, 200_000, generator_of(0, 1))
        for targets in ("exact", "denoising")
    )
    assert torch.equal(exact.x, denoising.x)
    assert torch.equal(denoising.exact, exact.y)
    left = denoising.y - exact.y
    assert (exact.x * left).mean(0).abs().max() < 0.02
    assert float(left.square().mean()) > 0.1


def test_inputs_and_times_of_examples():
    examples = draw_examples(ring(), "exact", SPAN, 20_000, generator_of(0, 1))
    x = examples.x[:, :2]
    times = -2 * (examples.x[:, 2] / examples.x[:, 0]).log()  # from m x / x
    expected = network_inputs(x, times, SPAN)
    assert examples.x == pytest.approx(expected, abs=1e-6)
    assert expected[:, 4] == pytest.approx(x[:, 0] / (4 * spread(times)))
    assert expected[:, 7].unique().tolist() == [1.0]
    shares = (times / 0.05).log() / log(80)
    assert np.quantile(shares, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.02)
    score = ring().mixture.score(x, times)
    assert examples.y == pytest.approx(velocity_of(score, x, times), abs=1e-6)
    ends = torch.tensor([0.05, 4.0], dtype=torch.float64)
    assert SPAN.rescale(ends).tolist() == pytest.approx([-1.0, 1.0])
    assert SPAN.backwards(2).tolist() == pytest.approx([4.0, sqrt(0.2), 0.05])


def test_the_reverse_path_of_a_normal_law_ends_in_that_law():
    law = Mixture(*(torch.tensor(x, dtype=torch.float64) for x in ([1.0], [[0.5]], [[[0.04]]])))
    start = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0)).double()
    times = Span(0.02, 8.0).backwards(300)
    path = list(reverse_path(law.score, start, times, generator_of(0, 3)))
    assert torch.equal(path[0], start)
    forward = add_noise(law.sample(20_000, generator_of(0, 4)), 0.02, generator_of(0, 5))
    for points in (path[-1], forward):
        assert float(points.mean()) == pytest.approx(0.5 * exp(-0.01), abs=0.01)
        variance = exp(-0.02) * 0.04 + 1 - exp(-0.02)
        assert float(points.var()) == pytest.approx(variance, rel=0.05)


def test_the_sliced_distance_of_a_shift_and_of_a_stretch():
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    shift = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64)
    apart = sliced_wasserstein(points, points + shift, 20_000, generator_of(0, 0))
    assert apart == pytest.approx(5 / sqrt(3), rel=0.02)  # E <shift, direction>^2 = |shift|^2 / 3
    line = torch.arange(5.0, dtype=torch.float64)[:, None]
    shuffled = 2 * line[[3, 1, 4, 0, 2]]
    assert sliced_wasserstein(line, shuffled, 7, generator_of(0, 0)) == pytest.approx(sqrt(6.0))


@pytest.fixture(scope="module", params=["tanh", "relu"])
def setting(request):
    return wu_score.settings(request.param, "smoke", 3)[0]


@pytest.fixture(scope="module")
def problem(setting):
    return wu_score.problem_of(setting, ring())


@pytest.fixture(scope="module")
def task(setting, problem):
    prompt = wu_score.examples_of(setting, ring(), wu_score.PROMPT, setting.sizes.n_examples)
    return as_task(problem, prompt.x, prompt.y, seed=setting.seed)


@pytest.fixture(scope="module")
def rows(setting):
    return wu_score.run(setting, Job())


def test_the_step_size_follows_from_the_curvature_on_another_prompt(setting, problem, task):
    examples = wu_score.examples_of(setting, ring(), CHOICE, setting.sizes.n_examples)
    other = as_task(problem, examples.x, examples.y, seed=setting.seed)
    hessian = torch.autograd.functional.hessian(
        lambda weights: problem.oracle.risk(other, weights), other.initial
    )
    curvature = float(torch.linalg.eigvalsh(hessian).abs().max())
    assert problem.gradient_step.step_size == pytest.approx(0.25 / curvature, rel=1e-3)
    assert not torch.equal(other.x, task.x)
    assert torch.equal(other.initial, task.initial)


def test_the_three_trainings(setting, problem, task):
    histories = wu_score.train_all(setting, ring(), problem, task, Job())
    construction = wu_score.CONSTRUCTIONS[setting.activation]
    whole = compile(problem, construction, n_steps=4).run_task(task).parameters
    assert torch.equal(torch.stack(histories[IN_CONTEXT]), whole[::2])  # legs of two steps
    exact = problem.oracle.train(task, 4)[::2]
    assert torch.stack(histories[DIRECT]) == pytest.approx(exact, abs=1e-14)

    weights, mean, square = task.initial, 0.0, 0.0
    for step in range(4):  # Adam, as it is defined
        batch = wu_score.examples_of(setting, ring(), FRESH + step, setting.sizes.batch_size)
        on_batch = replace(task, x=batch.x, y=batch.y)
        slope = problem.network_oracle.gradient(on_batch, weights)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope.square()
        rate = 0.005 * (1 + cos(pi * step / 4)) / 2
        scale = (square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        weights = weights - rate * mean / (1 - 0.9 ** (step + 1)) / scale
    assert histories[ADAM][-1] == pytest.approx(weights, abs=1e-12)
    assert [len(history) for history in histories.values()] == [3, 3, 3]


def test_an_interrupted_job_resumes_with_the_same_rows(setting, rows, tmp_path):
    steps = []

    def stop_in_direct_training(step, n_steps, loss):
        steps.append((step, n_steps))
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wu_score.run(setting, Job(tmp_path, on_step=stop_in_direct_training))
    assert steps == [(2, 12), (4, 12), (6, 12)]
    assert wu_score.run(setting, Job(tmp_path)).equals(rows)


def test_rows_of_scores_and_losses(setting, rows):
    timed = rows.filter(pl.col("time").is_not_null())
    assert timed["time"].unique().to_list() == pytest.approx([0.02, sqrt(0.1), 5.0], rel=1e-5)
    in_context, direct = (timed.filter(method=name) for name in (IN_CONTEXT, DIRECT))
    for column in ("score_error", "distance"):
        assert in_context[column].to_list() == pytest.approx(direct[column].to_list(), rel=1e-5)
    # All scores begin with the same noise, and only the first seed keeps samples.
    first = timed.filter(pl.col("points").is_not_null(), pl.col("time") == 5.0)
    assert first["method"].to_list() == [EXACT, IN_CONTEXT, DIRECT]
    assert first["points"].n_unique() == 1
    assert len(first["points"][0].split(";")) == 4
    assert wu_score.settings(setting.activation, "laptop", 0)[1].sizes.n_shown == 0
    curve = rows.filter(pl.col("step").is_not_null(), method=IN_CONTEXT)
    assert curve["step"].to_list() == [0, 2, 4]
    assert curve["loss"].is_sorted(descending=True)
    row = rows.row(0, named=True)
    scale = {"tanh": 1.0, "relu": 1e-4}[setting.activation]  # relu is exact, and the rest rounding
    assert row["weight_difference"] < 1e-11 * scale
    assert row["sample_difference"] < 1e-10 * scale
    assert row["step_error"] <= row["step_bound"] < 1e-8 * scale
    assert 0 < row["proved"] < 1e-9 * scale
    assert row["near_kinks"] == 0
    assert row["signal"] == curve["label_power"][0]  # labels are exact


def test_the_measured_error_of_the_normal_score_is_that_of_many_points(rows):
    mixture = ring().mixture
    clean = mixture.sample(20_000, generator_of(9, 9))
    for row in rows.filter(pl.col("time") < 1, method=NORMAL).to_dicts():
        x = add_noise(clean, row["time"], generator_of(9, 10))
        score = mixture.score(x, torch.full((len(x),), row["time"], dtype=torch.float64))
        error = wu_score.root_mean_square(score + x)
        assert row["score_error"] == pytest.approx(error, rel=0.3)
        relative = error / wu_score.root_mean_square(score)
        assert row["relative_error"] == pytest.approx(relative, rel=0.3)


def test_a_loss_settles_where_a_tenth_of_the_training_hardly_lowers_it():
    losses = [1.0, 0.5, 0.4, 0.39, 0.388, 0.387, 0.386, 0.385, 0.384, 0.383, 0.382]
    assert wu_score.settled_after(losses, 100, signal=0.1) == 300  # 0.39 falls by 0.002 < 0.005
    assert wu_score.settled_after(losses, 100, signal=1.0) == 200
    assert wu_score.settled_after(losses, 100, signal=0.01) is None


def test_a_relu_network_learns_by_relus_and_a_tanh_network_by_softmax(setting, problem):
    summary = compile(problem, wu_score.CONSTRUCTIONS[setting.activation], n_steps=1).summary()
    assert problem.network.activation == setting.activation
    expected = {"tanh": ("softmax-stack", 7), "relu": ("relu-stack", 8)}[setting.activation]
    assert (summary.construction, summary.layers_per_step) == expected


@pytest.fixture(scope="module")
def committed():
    return stored_rows(ROOT / "results/wu-score/laptop.json")


@pytest.fixture(scope="module")
def committed_relu():
    return stored_rows(ROOT / "results/wu-score-relu/laptop.json")


PAGE = (ROOT / "docs/reproductions/wu_score.md").read_text(encoding="utf-8")


def test_the_picture_shows_samples_losses_errors_and_distances(committed):
    figure = wu_score.draw(committed)
    panels = {axes.get_label(): axes for axes in figure.axes}
    row = committed.filter(law="ring", targets="exact", method=DIRECT, seed=0, time=5.0)
    points = [[float(x) for x in point.split()] for point in row["points"][0].split(";")]
    assert panels["ring 2 0"].collections[0].get_offsets().tolist() == points
    assert panels["digits 1 4"].images[0].get_array().shape == (26, 26)  # 3 x 3 images, 2 lines
    left, right = panels["ring error"].get_xlim()
    assert left > right  # time runs from noise to data
    at_t0 = committed.filter(law="pinwheel", targets="exact", time=0.02)
    dots = panels["pinwheel distance"].collections[2].get_offsets()
    assert dots[:, 0].tolist() == at_t0.filter(method=EXACT)["distance"].to_list()
    end = committed.filter(pl.col("step") == pl.col("n_steps"), law="digits", targets="exact")
    shares = end.filter(method=DIRECT)["loss"] / end.filter(method=DIRECT)["label_power"]
    line = panels["digits loss"].lines[0].get_ydata()
    assert line[-1] == pytest.approx(np.exp(shares.log().mean()))


def test_the_page_shows_the_committed_numbers(committed):
    at_t0 = committed.filter(pl.col("time") == pl.col("time").min().over("law"))
    ends = committed.filter(pl.col("step") == pl.col("n_steps"), method=IN_CONTEXT)
    for (law, targets), samples in at_t0.group_by("law", "targets", maintain_order=True):

        def mean(column, name, samples=samples):
            return f"{samples.filter(method=name)[column].mean():.3f}"

        def range_of(column, name, samples=samples):
            values = samples.filter(method=name)[column]
            return f"{values.mean():.3f} ({values.min():.3f}-{values.max():.3f})"

        end = ends.filter(law=law, targets=targets)
        cells = [law, targets, f"{(end['loss'] / end['label_power']).mean():.3f}"]
        cells += [range_of("relative_error", IN_CONTEXT), mean("relative_error", ADAM)]
        cells += [mean("relative_error", NORMAL), range_of("distance", IN_CONTEXT)]
        cells += [mean("distance", ADAM), range_of("distance", EXACT), mean("floor", EXACT)]
        assert f"| {' | '.join(cells)} |" in PAGE
    errors = committed.filter(targets="exact", method=IN_CONTEXT).drop_nulls("time")
    means = errors.group_by("law", "time").agg(pl.col("relative_error").mean())
    last = means.filter(pl.col("time") == pl.col("time").min().over("law"))["relative_error"]
    assert f"by {100 * last.min():.0f} to {100 * last.max():.0f} percent at T_0" in PAGE
    first = means.filter(time=5.0)["relative_error"]
    assert first.min() > 0.005
    assert first.max() < 0.015  # 1 percent, as the page says


def test_the_page_sets_tanh_and_relu_side_by_side(committed, committed_relu):
    at_t0 = committed_relu.filter(pl.col("time") == pl.col("time").min().over("law"))
    ends = committed_relu.filter(pl.col("step") == pl.col("n_steps"), method=IN_CONTEXT)
    for (law, targets), samples in at_t0.group_by("law", "targets", maintain_order=True):
        end = ends.filter(law=law, targets=targets)
        means = [(end["loss"] / end["label_power"]).mean()]
        means += [
            samples.filter(method=method)[column].mean()
            for method, column in (
                (IN_CONTEXT, "relative_error"),
                (ADAM, "relative_error"),
                (IN_CONTEXT, "distance"),
            )
        ]
        assert f"| {' | '.join([law, targets, *(f'{mean:.3f}' for mean in means)])} |" in PAGE

    shown = {
        "error of one step": ("step_error", "6.7e-15", "6.7e-15"),
        "its bound (b)": ("step_bound", "1.6e-10", "8.4e-12"),
        "proved distance from exact descent after 4 or 8 steps": ("proved", "1.7e-14", "1.5e-14"),
        "weights, from direct training": ("weight_difference", "1.2e-11", "2.6e-13"),
        "samples, from direct training": ("sample_difference", "1.7e-11", "2.8e-12"),
    }
    for words, (column, *bounds) in shown.items():
        assert f"| {words} | at most {bounds[0]} | at most {bounds[1]} |" in PAGE
        for rows, bound in zip((committed, committed_relu), bounds, strict=True):
            assert 0.9 * float(bound) < rows[column].max() <= float(bound)
    verified = committed_relu.filter(targets="exact")["step_error"].max()
    assert "err by 2.8e-16 at most" in PAGE
    assert 0.9 * 2.8e-16 < verified <= 2.8e-16
    assert committed_relu["near_kinks"].max() == 0
