"""Baselines of wu against independent code; the cases, tables and pictures of its figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from torch import nn

from icgd_papers.figure import Job
from icgd_papers.figures import wu, wu_prompts
from icgd_papers.figures.wu_prompts import (
    FIRST_TEST,
    PRETRAINING,
    Case,
    Constructed,
    DirectTraining,
    Law,
    arc_cosine,
    arc_cosine_kernel,
    best_epochs,
    decoder_predictions,
    label_mean,
    network_outputs,
    r_squared,
    r_squared_within,
    relative_error,
    ridge,
    run,
    trained_decoder,
    tuned_settings,
)
from icgd_papers.runner import stored_rows
from icgd_papers.training.tasks import query_loss

RESULTS = Path(__file__).parents[2] / "results"
SMOKE, LAPTOP, PAPER = (wu.SETUPS[preset] for preset in ("smoke", "laptop", "paper"))
FIGURES = {figure.name: figure for figure in wu.FIGURES}
BASELINES = Case(3, (Law((0.5, 0.5)),), 1, SMOKE, panel="d")
DECODER = Case(3, wu.MIXTURES[:2], 0, replace(SMOKE, n_steps=6), "softmax", "ab")


class StoppedError(Exception):
    pass


def stop_at(last_step):
    def on_step(step, *_):
        if step == last_step:
            raise StoppedError

    return on_step


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def prompts(n_tasks=6, n_tokens=9, width=3):
    return normal(n_tasks, n_tokens, width) - 2, normal(n_tasks, n_tokens, seed=1)


# Baselines


@pytest.mark.parametrize("penalty", [1e-3, 30.0])
@pytest.mark.parametrize("n_tokens", [3, 9])  # fewer examples than inputs, and more
def test_ridge_is_that_of_scikit_learn(penalty, n_tokens):
    x, y = prompts(n_tokens=n_tokens)
    expected = [
        Ridge(alpha=penalty).fit(a[:-1], b[:-1]).predict(a[-1:])[0]
        for a, b in zip(x.numpy(), y.numpy(), strict=True)
    ]
    y[:, -1] = 1e9  # the query's label is not read
    np.testing.assert_allclose(ridge(x, y, penalty), expected, rtol=1e-9)


def test_one_layer_has_the_gaussian_process_of_linear_functions():
    x, y = prompts(n_tokens=3)  # two examples in three dimensions: the kernel is not singular
    kernel = DotProduct(sigma_0=0, sigma_0_bounds="fixed")
    expected = [
        GaussianProcessRegressor(kernel, alpha=1e-12, optimizer=None)
        .fit(a[:-1], b[:-1])
        .predict(a[-1:])[0]
        for a, b in zip(x.numpy(), y.numpy(), strict=True)
    ]
    np.testing.assert_allclose(arc_cosine(x, y, 1), expected, rtol=1e-6)


@pytest.mark.parametrize("n_layers", [2, 4])
def test_the_kernel_is_the_covariance_of_wide_networks(n_layers):
    x, _ = prompts(n_tasks=1, n_tokens=4)
    x[0, :2] += 4  # clusters on both sides, so that the angles differ
    source, width, n_networks = torch.Generator().manual_seed(1), 128, 600
    outputs = x[0].expand(n_networks, -1, -1).float()
    for _ in range(n_layers - 1):
        fan_in = outputs.shape[-1]
        matrix = torch.randn(n_networks, fan_in, width, generator=source)
        outputs = torch.relu(outputs @ matrix * (2 / fan_in) ** 0.5)
    sampled = (outputs @ outputs.mT / width).mean(0).double()  # the last layer is averaged exactly
    expected = arc_cosine_kernel(x, n_layers)[0]
    assert (sampled - expected).abs().max() < 0.02 * expected.max()


def test_r_squared_is_that_of_scikit_learn_and_within_prompts_their_level_explains_nothing():
    _, y = prompts(n_tasks=500)
    guess = 0.8 * y[:, -1] + 0.1
    assert r_squared(guess - y[:, -1], y[:, -1]) == pytest.approx(r2_score(y[:, -1], guess))
    y = y + 100 * torch.arange(500.0)[:, None]  # prompts differ in their mean alone
    errors = label_mean(y) - y[:, -1]
    assert r_squared(errors, y[:, -1]) > 0.999
    assert r_squared_within(errors, y) < 0


def test_the_relative_error_does_not_depend_on_the_size_of_a_prompt():
    y = torch.tensor([[3.0, 3.0, 2.0], [300.0, -300.0, 150.0]]).double()
    error = relative_error(torch.tensor([3.5, 0.0]).double(), y)
    assert error == pytest.approx((0.25 + 0.25) / 2)


def trained_alone(x, y, first, learning_rate, n_epochs):
    """Train an ordinary module on one prompt, and predict the query after each epoch."""
    layers = [nn.Linear(*matrix.shape, bias=False) for matrix in first]
    for layer, matrix in zip(layers, first, strict=True):
        layer.weight.data.copy_(matrix.T)
    network = nn.Sequential(*[m for layer in layers[:-1] for m in (layer, nn.ReLU())], layers[-1])
    adam = torch.optim.Adam(network.parameters(), lr=learning_rate)
    size, predictions = y[:-1].square().mean().sqrt(), []
    for _ in range(n_epochs):
        adam.zero_grad()
        nn.functional.mse_loss(network(x[:-1])[:, 0], y[:-1] / size).backward()
        adam.step()
        predictions.append((network(x[-1:]) * size).item())
    return predictions


def test_direct_training_treats_every_prompt_as_if_it_were_alone():
    x, y = (tensor.float() for tensor in prompts(n_tasks=5))
    training = DirectTraining(3, 8, 12, 0.01, seed=4)
    first = training.first_weights(len(x), x.shape[-1], index=0)
    expected = [
        trained_alone(x[i], y[i], [matrix[i] for matrix in first], 0.01, 12) for i in range(len(x))
    ]
    y[:, -1] = 1e9
    np.testing.assert_allclose(training.predictions(x, y).T, expected, rtol=2e-4, atol=1e-4)


def test_direct_training_scales_with_the_labels_and_draws_weights_for_every_batch():
    x, y = (tensor[:1].expand(65, *tensor.shape[1:]) for tensor in prompts())
    training = DirectTraining(2, 8, 5, 0.01)
    near, far = training.predictions(x, y), training.predictions(x, 2.0**20 * y)
    np.testing.assert_array_equal(far, 2.0**20 * near)
    assert near[0, 0] != near[0, 64]  # the first prompts of two batches


def test_first_outputs_of_direct_training_are_small_beside_the_labels():
    first = DirectTraining(4, 64, 1, 0.01).first_weights(200, 5, index=0)
    outputs = network_outputs(first, normal(200, 20, 5).float())
    assert 0.7 < float(outputs.square().mean()) / (2 * 0.1**2) < 1.3  # |x|^2 / width is 1


def test_the_best_epoch_is_chosen_by_the_label():
    predictions = torch.tensor([[1.0, 5.0], [2.0, 3.0], [4.0, 4.5]]).double()
    assert best_epochs(predictions, torch.tensor([2.2, 5.1]).double()).tolist() == [2.0, 5.0]


def descended(transformer, x, y, n_steps, seed=0):
    """Descend on (1 / 2n) sum of squares by autograd; labels are divided by their size."""
    network = transformer.compiled(x.shape[-1], x.shape[1] - 1, 0).problem.network
    box = transformer.box(x.shape[-1])
    first = network.initial_parameters(seed, box, (len(x),))
    weights = [matrix.mT.clone().requires_grad_() for matrix in network.matrices(first)]
    size = y[:, :-1].square().mean(1).sqrt()
    for _ in range(n_steps):
        errors = network_outputs(weights, x[:, :-1]) - y[:, :-1] / size[:, None]
        gradients = torch.autograd.grad((errors.square().mean(1) / 2).sum(), weights)
        with torch.no_grad():
            for matrix, gradient in zip(weights, gradients, strict=True):
                matrix.sub_(gradient, alpha=transformer.step_size).clamp_(-box, box)
    return (network_outputs(weights, x[:, -1:])[:, 0] * size).detach()


def test_the_constructed_transformer_predicts_what_descent_does():
    x, y = prompts(n_tasks=4)
    transformer = Constructed(3, 6, 0.05)
    expected = [descended(transformer, x, 30 * y, n_steps) for n_steps in (0, 1, 40)]
    y[:, -1] = 1e9
    for predictions, wanted in zip(transformer.path(x, 30 * y, (0, 1, 40)), expected, strict=True):
        np.testing.assert_allclose(predictions, wanted, rtol=1e-9)
    y[:, :-1] = 0
    y[:, 2] = 1e6  # one label has all of the prompt's size, and lies in the domain
    assert transformer.path(x, y, [1])[0].isfinite().all()


def test_batches_of_descents_begin_with_weights_of_their_own(monkeypatch):
    x, y = prompts(n_tasks=5)
    transformer = Constructed(3, 6, 0.05, seed=2)
    monkeypatch.setattr(wu_prompts, "DESCENTS_AT_ONCE", 3)
    [predictions] = transformer.path(x, y, [4])
    np.testing.assert_allclose(predictions[:3], descended(transformer, x[:3], y[:3], 4, seed=2))
    np.testing.assert_allclose(predictions[3:], descended(transformer, x[3:], y[3:], 4, seed=1002))


@pytest.mark.parametrize("setup", [LAPTOP, PAPER])
def test_networks_of_six_layers_can_be_compiled(setup):
    transformer = Constructed(6, setup.hidden_width, 0.05)
    compiled = transformer.compiled(setup.input_width, setup.longest, 1000)
    assert compiled.summary().layers_per_step == 2 * 6 + 2


# Prompts and decoders


def test_the_paper_preset_has_the_papers_sizes():
    assert (PAPER.input_width, PAPER.n_examples, PAPER.longest) == (20, 50, 75)
    assert (PAPER.n_blocks, PAPER.n_heads, PAPER.width, PAPER.mlp_width) == (12, 8, 256, 256)
    assert (PAPER.batch_size, PAPER.n_steps, PAPER.n_test) == (64, 500_000, 6400)
    assert (PAPER.baselines.direct_width, PAPER.baselines.n_epochs) == (200, 100)
    assert (PAPER.tokens, PAPER.n_places(PAPER.longest)) == ("interleaved", 152)


def test_test_prompts_are_long_come_from_their_law_and_are_not_those_of_tuning():
    shifted, usual = (SMOKE.test(3, law, seed=0) for law in (Law((0.0, 1.0)), PRETRAINING))
    assert shifted.x.shape == (8, 7, 2)
    torch.testing.assert_close(usual.x + 4, shifted.x)  # N(2, I) with the same noise
    chosen = SMOKE.choice(3, seed=0)
    assert chosen.x.shape == (4, 5, 2)
    same_index = SMOKE.task(3, PRETRAINING, 4).sample(4, seed=0, index=FIRST_TEST)
    assert not torch.equal(chosen.x, same_index.x)


def test_prompts_are_drawn_in_batches_with_indices_of_their_own():
    many = replace(SMOKE, n_test=70).test(3, PRETRAINING, seed=5)
    task = SMOKE.task(3, PRETRAINING, 6)
    batches = [task.sample(n, seed=5, index=FIRST_TEST + i) for i, n in ((0, 64), (1, 6))]
    assert torch.equal(many.y, torch.cat([batch.y for batch in batches]))


@pytest.mark.parametrize("attention", ["relu", "softmax"])
@pytest.mark.parametrize("tokens", ["joint", "interleaved"])
def test_predictions_after_n_examples_read_no_more(attention, tokens):
    setup = replace(SMOKE, tokens=tokens, n_test=70)
    model, test = setup.decoder(attention, 0), setup.test(3, PRETRAINING, 0)
    with torch.no_grad():
        alone = model(test.x[:, :5], test.y[:, :5])
    torch.testing.assert_close(decoder_predictions(model, test)[:, 4], alone)


def test_training_makes_the_loss_smaller():
    setup = replace(SMOKE, n_steps=60, batch_size=32, learning_rate=0.02, width=16)
    batch = setup.task(3, PRETRAINING, 4).sample(256, seed=9, index=9)
    before = query_loss(setup.decoder("softmax", 0), batch).item()
    _, loss = trained_decoder(replace(DECODER, setup=setup), Job())
    assert loss < 0.6 * before


def test_an_interrupted_decoder_ends_with_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(wu_prompts, "CHECKPOINT_EVERY", 2)
    with pytest.raises(StoppedError):
        run(DECODER, Job(tmp_path, on_step=stop_at(5)))
    steps = []
    resumed = run(DECODER, Job(tmp_path, on_step=lambda step, *_: steps.append(step)))
    assert steps == [5, 6]  # it went on from the checkpoint of step 4
    assert resumed.equals(run(DECODER, Job()))
    assert resumed.select("panel", "inputs", "n_examples").rows() == [
        (panel, inputs, n)
        for panel, inputs in (("a", "(1, 0)"), ("b", "(0.9, 0.1)"))
        for n in (2, 4, 6)
    ]


# Cases of baselines


def test_every_baseline_is_measured_on_the_same_prompts():
    rows = run(BASELINES, Job())
    measured = {(row["line"], row["n_examples"]): row for row in rows.iter_rows(named=True)}
    test = SMOKE.test(3, Law((0.5, 0.5)), seed=1)
    for n in (2, 4, 6):
        x, y = test.x[:, : n + 1], test.y[:, : n + 1]
        expected = {
            "label mean": label_mean(y),
            "ridge": ridge(x, y, 1.0),
            "arc-cosine": arc_cosine(x, y, 3),
            "direct, last epoch": DirectTraining(3, 4, 3, 0.01, seed=1).predictions(x, y)[-1],
            "constructed, 2 steps": Constructed(3, 4, 0.05, seed=1).path(x, y, [2])[0],
        }
        for line, predictions in expected.items():
            value = r_squared(predictions - y[:, -1], y[:, -1])
            assert measured[line, n]["r_squared"] == pytest.approx(value, rel=1e-5), line
        best, last = measured["direct, best epoch", n], measured["direct, last epoch", n]
        assert best["r_squared"] >= last["r_squared"]
        assert best["setting"] == last["setting"] == 0.01


def test_baselines_are_tuned_by_the_least_error_on_other_prompts():
    plan = replace(SMOKE.baselines, penalties=(0.01, 1.0, 100.0), step_sizes=(1e-6, 0.05))
    case = replace(BASELINES, setup=replace(SMOKE, baselines=plan))
    tuned = tuned_settings(case, "cpu")
    batch = SMOKE.choice(3, seed=1)
    errors = {p: relative_error(ridge(batch.x, batch.y, p), batch.y) for p in plan.penalties}
    assert tuned["ridge"] == min(errors, key=errors.get)
    for n_steps in plan.step_counts:
        paths = [
            Constructed(3, 4, size, 1).path(batch.x, batch.y, [n_steps]) for size in plan.step_sizes
        ]
        best = min(
            (relative_error(path[0], batch.y), size)
            for path, size in zip(paths, plan.step_sizes, strict=True)
        )
        assert tuned[f"constructed, {n_steps} steps"] == best[1]


def test_interrupted_baselines_keep_finished_lengths(tmp_path):
    with pytest.raises(StoppedError):
        run(BASELINES, Job(tmp_path, on_step=stop_at(3)))  # tuning, and two lengths
    assert {path.name for path in tmp_path.iterdir()} == {
        "choice.json",
        "length-2.json",
        "length-4.json",
    }
    assert run(BASELINES, Job(tmp_path)).equals(run(BASELINES, Job()))


@pytest.mark.parametrize("figure", ["wu-fig1", "wu-fig2"])
def test_committed_baselines_are_those_of_this_code(figure):
    """Few examples, where a change of the first weights shows most; rounding may differ."""
    n, case = 5, Case(3, (PRETRAINING,), 0, LAPTOP)
    test = LAPTOP.test(3, PRETRAINING, seed=0)
    x, y = test.x[:, : n + 1], test.y[:, : n + 1]
    rows = stored_rows(RESULTS / figure / "laptop.json").filter(panel="a", seed=0, n_examples=n)
    stored = {row["line"]: row for row in rows.iter_rows(named=True)}
    direct = case.direct(stored["direct, last epoch"]["setting"], "cpu")
    predictions = {
        "direct, last epoch": direct.predictions(x, y)[-1],
        "label mean": label_mean(y),
        "ridge": ridge(x, y, stored["ridge"]["setting"]),
        "arc-cosine": arc_cosine(x, y, 3),
    }
    for line, values in predictions.items():
        value = r_squared(values - y[:, -1], y[:, -1])
        assert value == pytest.approx(stored[line]["r_squared"], abs=5e-3), line


# Figures


def test_there_is_a_decoder_for_each_depth_and_seed_and_baselines_for_each_panel():
    cases = FIGURES["wu-fig1"].settings("laptop", 4)
    decoders, baselines = cases[:9], cases[9:]
    assert {case.seed for case in cases} == {4, 5, 6}
    assert [(case.n_layers, case.panel) for case in decoders[::3]] == [
        (6, "ijkl"),
        (4, "efgh"),
        (3, "abcd"),
    ]
    assert {case.laws for case in decoders} == {wu.MIXTURES}
    assert {(case.panel, case.n_layers, case.laws[0].inputs) for case in baselines[:6]} == {
        ("a", 3, "(1, 0)"),
        ("b", 3, "(0.9, 0.1)"),
    }
    assert len(baselines) == 3 * 4 * 3
    assert {case.attention for case in decoders} == {"relu"}
    assert {case.attention for case in baselines} == {None}


def test_relu_decoders_learn_longer_on_a_laptop_and_baselines_are_shared():
    relu, softmax = (FIGURES[name].settings("laptop", 0) for name in ("wu-fig1", "wu-fig2"))
    assert relu[9:] == softmax[9:]
    for cases, schedule in ((relu, (2000, 0.003, 100)), (softmax, (1200, 0.002, 50))):
        setup = cases[0].setup
        assert (setup.n_steps, setup.learning_rate, setup.warmup_steps) == schedule
    assert FIGURES["wu-fig1"].settings("paper", 0)[0].setup == PAPER


def test_figures_3_and_4_shift_the_teachers_of_4_layers():
    cases = FIGURES["wu-fig3"].settings("laptop", 0)
    assert {case.n_layers for case in cases} == {4}
    assert [(law.inputs, law.teachers) for law in cases[0].laws] == [
        ("(1, 0)", "N(0, I)"),
        ("(1, 0)", "N(-0.5, I)"),
        ("(1, 0)", "N(0.5, I)"),
    ]


def curve_rows(pretraining_length=20):
    """Two panels and three seeds; the decoder has 0.9, less 0.01 for each seed, and gains 0.05."""
    return pl.DataFrame(
        {
            "panel": panel,
            "n_layers": 3,
            "inputs": inputs,
            "teacher_weights": weights,
            "line": line,
            "n_examples": n,
            "seed": seed,
            "r_squared": value - 0.01 * seed + 0.05 * (n > pretraining_length),
            "pretraining_length": pretraining_length,
        }
        for line, value in (
            ("learnt decoder", 0.9),
            ("ridge", 0.5),
            ("constructed, 10 steps", -3.0),
        )
        for panel, inputs, weights in (("b", "(1, 0)", "N(0.5, I)"), ("a", "(0.9, 0.1)", "N(0, I)"))
        for seed in range(3)
        for n in (10, 20, 30)
    )


def test_the_summary_has_means_at_the_length_of_pretraining_and_beyond():
    summary = wu.summarise_curves(curve_rows())
    assert summary["test law"].to_list() == ["mixture (0.9, 0.1)", "teachers N(0.5, I)"]
    assert summary.row(0, named=True) == {
        "layers": "3",
        "test law": "mixture (0.9, 0.1)",
        "learnt decoder": "0.890",
        "ridge": "0.490",
        "constructed, 10 steps": "-3.010",
        "range of learnt": "0.880 to 0.900",
        "learnt, 30 examples": "0.940",
    }


def test_panels_show_every_line_on_an_axis_that_rises_with_r_squared():
    figure = wu.draw_curves(curve_rows())
    ax = figure.axes[0]
    assert ax.get_title(loc="left") == (
        "a: 3 layers, mixture (0.9, 0.1)\nlearnt: 0.890 after 20, 0.940 after 30"
    )
    *lines, pretraining = ax.lines
    assert pretraining.get_xdata()[0] == 20
    learnt = lines[-1].get_ydata()  # drawn last, on top: geometric means of 1 - R^2
    assert learnt.tolist()[:2] == pytest.approx([(0.1 * 0.11 * 0.12) ** (1 / 3)] * 2)
    bottom, top = ax.get_ylim()
    assert bottom == 1.0 > top
    assert [label.get_text() for label in ax.get_yticklabels()][:4] == ["0", "0.5", "0.8", "0.9"]


def test_the_picture_of_the_laptop_preset_says_that_no_test_was_kept_apart():
    laptop, other = (wu.draw_curves(curve_rows(length)) for length in (20, 10))
    assert laptop.get_suptitle().startswith("No test set was kept apart")
    assert other.get_suptitle() == ""


def depth_rows(gain):
    return pl.DataFrame(
        {
            "attention": case.attention,
            "n_blocks": case.setup.n_blocks,
            "n_examples": n,
            "pretraining_length": 20,
            "r_squared": 0.9 + gain * (case.setup.n_blocks - 4) / 2 - 0.002 * case.seed,
        }
        for case in FIGURES["wu-fig5"].settings("laptop", 0)
        for n in case.setup.lengths
    )


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (0.01, "depth helps beyond the spread"),
        (0.001, "no more than the spread"),
        (-0.01, "worse beyond the spread"),
    ],
)
def test_the_verdict_on_depth_asks_that_all_seeds_agree(gain, verdict):
    rows = depth_rows(gain)
    summary = wu.summarise_depth(rows)
    assert summary.columns == [
        "attention",
        "examples",
        *(f"{n} blocks" for n in (4, 6, 8, 10)),
        "4 to 8 blocks",
    ]
    assert set(summary["4 to 8 blocks"]) == {verdict}
    titles = [ax.get_title(loc="left") for ax in wu.draw_depth(rows).axes]
    assert titles == [f"{name} attention\n4 to 8 blocks: {verdict}" for name in ("relu", "softmax")]
    assert summary.row(0)[:3] == ("relu", "6", "0.8980 (0.8960 to 0.9000)")


def test_seed_by_seed_8_blocks_are_better_than_4_and_10_no_better_than_8():
    """The page says so; a seed has test prompts of its own, which the ranges do not leave out."""
    rows = stored_rows(RESULTS / "wu-fig5" / "laptop.json")
    seeds = rows.pivot("n_blocks", index=["attention", "n_examples", "seed"], values="r_squared")
    gains = seeds.select(first=pl.col("8") - pl.col("4"), further=pl.col("10") - pl.col("8"))
    assert gains.height == 18
    assert 0.0026 < gains["first"].min() < gains["first"].max() < 0.0161
    assert (gains["further"] > 0).sum() == 8


def test_decoders_do_not_drop_beyond_the_length_of_pretraining_in_distribution():
    """The page says so of Figure 2: 7 of 9 decoders gain."""
    rows = stored_rows(RESULTS / "wu-fig2" / "laptop.json")
    learnt = rows.filter(line="learnt decoder", inputs="(1, 0)")
    seeds = learnt.pivot("n_examples", index=["n_layers", "seed"], values="r_squared")
    gains = seeds["30"] - seeds["20"]
    assert ((gains > 0).sum(), len(gains)) == (7, 9)
    assert (round(gains.min(), 3), round(gains.max(), 3)) == (-0.009, 0.035)
