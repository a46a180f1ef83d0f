"""What wu leaves open: wu-sizes, wu-checks, wu-products, wu-teachers, and their page."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import icgd
from icgd.backends.prompt import encode
from icgd.errors import ConstructionError
from icgd_papers.figure import Job
from icgd_papers.figures.wu import MIXTURES, curve_settings
from icgd_papers.figures.wu_prompts import baseline_rows, decoder_rows, trained_decoder
from icgd_papers.runner import stored_rows
from icgd_papers.studies import wu_checks, wu_sizes, wu_teachers
from icgd_papers.studies.wu_sizes import CHAIN, exponents, fit, last_slopes, rank_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reproductions" / "wu_open_questions.md").read_text(encoding="utf-8")


def rows_of(run, settings):
    return pl.concat([run(setting, Job()) for setting in settings], how="vertical_relaxed")


def committed(name):
    return stored_rows(ROOT / "results" / name / "laptop.json")


# wu-sizes


@pytest.fixture(scope="module")
def sizes():
    return rows_of(wu_sizes.run, wu_sizes.settings("smoke", 0))


def test_powers_of_a_known_polynomial_are_found():
    rows = pl.DataFrame(
        {"n_layers": n, "width": k, "flops": 7 * n**3 * k**5}
        for n in (2, 3, 5, 8)
        for k in (4, 8, 64)
    )
    assert fit(rows, "flops") == pytest.approx((3, 5))
    assert last_slopes(rows, "flops") == pytest.approx((3, 5))
    lower = rows.with_columns(flops=pl.col("flops") + 10**6 * pl.col("width") ** 2)
    assert fit(lower, "flops")[1] < last_slopes(lower, "flops")[1] < 5  # nearer at the end


def test_no_stream_of_one_column_is_below_the_bound(sizes):
    stacks = sizes.filter(pl.col("construction") != CHAIN)
    assert (stacks["d_model"] >= stacks["lower_bound"]).all()
    assert set(stacks["missing_rank"].drop_nulls()) == {0}
    assert stacks["least_stretch"].drop_nulls().min() > 1e-3


def test_bound_and_slots_by_hand(sizes):
    row = sizes.filter(n_layers=3, width=8, has_fixed_data=False).row(0, named=True)
    assert row["n_weights"] == 3 * 64
    assert row["lower_bound"] == 192 + 16
    assert row["paper_list"] == 192 + 5 * 8 + 6 * 8
    # x, y, w, then outputs, slopes and deltas of 24 units, the slope of the loss, 4 constants.
    assert row["d_model"] == 2 * 8 + 192 + 3 * 24 + 8 + 4


def test_linear_networks_say_less_of_their_examples():
    """They read sums of x x^T and y x^T alone: 4 examples can be rotated in 6 ways."""
    linear = icgd.MLP((4, 4, 4), "identity")
    assert rank_of(linear, 1)[0] == 0
    assert rank_of(linear, 4)[0] == 6
    assert rank_of(icgd.MLP((4, 4, 4), "tanh"), 4)[0] == 0


def test_relu_stack_serves_one_example_in_one_column_and_softmax_stack_keeps_weights_apart():
    problem = icgd.Problem(
        icgd.MLP((2, 3, 1), "tanh"), "squared", icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0)
    )
    streams = {}
    for name in ("relu-stack", "softmax-stack"):
        compiled = icgd.compile(problem, name, n_steps=1)
        task = compiled.task([[0.5, 1.0]], [1.0], initial=[0.5] * 9)
        streams[name] = encode(compiled.stack, task), compiled.stack
        assert compiled.run_task(task, backend="literal").parameters.shape == (2, 9)
    stream, _ = streams["relu-stack"]
    assert len(stream) == 1
    stream, stack = streams["softmax-stack"]
    weights = stream[:, stack.layout.range_of("weights_1")]
    assert weights[: stack.n_registers].abs().max() == 0.5
    assert not weights[stack.n_registers :].any()


def test_the_committed_powers_and_widths_are_those_of_the_page():
    rows = committed("wu-sizes")
    first = exponents(rows).row(0)
    assert first[:2] == ("relu-stack, tanh", "dense weights")
    a, b = (float(text.split("^")[-1]) for text in first[4].split())
    assert (abs(a - 2), abs(b - 4)) < (0.05, 0.05)
    stacks = rows.filter(pl.col("construction") != CHAIN)
    assert (stacks["d_model"] >= stacks["lower_bound"]).all()
    ratios = stacks.filter(construction="relu-stack")
    ratios = ratios["d_model"] / ratios["lower_bound"]
    assert f"{ratios.max():.1f} times as many at K = 4" in PAGE
    assert f"{100 * (ratios.min() - 1):.1f} percent more at K = 256" in PAGE
    assert set(rows["missing_rank"].drop_nulls()) == {0}
    assert rows["least_stretch"].min() == pytest.approx(0.0035, rel=0.02)
    chain = rows.filter(construction=CHAIN, n_layers=32, width=256).row(0, named=True)
    assert (
        f"{chain['d_model']:,} numbers where one column would need {chain['lower_bound']:,}" in PAGE
    )
    tanh = rows.filter(construction="relu-stack", activation="tanh", has_fixed_data=False)
    factors = tanh["sparse_flops"] / tanh["direct_flops"]
    assert 950 < factors.min() < 1050
    assert 1850 < factors.max() < 1950
    fixed = exponents(rows).filter(pl.col("a step of").str.ends_with("d = 4")).row(0)
    assert all(text.split()[0] in PAGE for text in (fixed[2], fixed[4]))


# wu-checks


def test_checks_are_within_their_bounds_and_take_no_more_layers_than_the_paper():
    rows = rows_of(wu_checks.run, wu_checks.SMOKE)
    allowed = rows.filter(pl.col("verdict") != wu_checks.REFUSED)
    assert set(allowed["verdict"]) == {"HOLDS"}
    assert (allowed["step_error"] <= allowed["step_bound"]).all()
    assert (allowed["step_size"] > 100 * allowed["step_error"]).all()
    assert (rows["layers_per_step"] <= rows["paper_layers"]).all()
    assert rows["paper_layers"][0] == 24
    assert allowed["largest_padded"].drop_nulls().to_list() == [0.0]
    assert rows.filter(check="activation")["beyond_upper_knot"][0] > 0.1
    by_hand = rows.filter(verdict=wu_checks.REFUSED).row(0, named=True)
    assert by_hand["largest_padded"] > 0.01
    assert by_hand["step_error"] > 1e-3


def test_for_widths_refuses_what_is_padded_by_hand():
    check = wu_checks.SMOKE[-1]
    assert check.by_hand
    x, y = check.read()
    with pytest.raises(ConstructionError, match="must be 4, not 2"):
        check.compiled(x, y).for_widths(check.widths)
    # Without padding nothing is wrong with sigmoid: the same check of the whole network holds.
    whole = replace(check, widths=(2, 4, 1), inside=None, by_hand=False)
    assert wu_checks.run(whole, Job())["verdict"][0] == "HOLDS"


def test_the_committed_checks_hold():
    rows = committed("wu-checks")
    bounded = rows.drop_nulls("step_bound")
    assert (bounded["step_error"] <= bounded["step_bound"]).all()
    assert (rows["layers_per_step"] <= rows["paper_layers"]).all()
    without = rows.filter(pl.col("step_bound").is_null())
    assert without["verdict"].to_list() == ["HOLDS_EMPTY", wu_checks.REFUSED]
    proved = rows.filter(pl.col("verdict") != wu_checks.REFUSED)
    assert (proved["proved_distance"] < 0.01).all()
    assert (rows["loss_after"] < rows["loss_before"]).all()
    deep = rows.filter(check="depth", construction="relu-stack")
    kinked = deep.filter(pl.col("network").str.ends_with("relu"))
    assert kinked["step_error"].max() < 1e-15
    bounds = deep.filter(pl.col("network").str.ends_with("tanh")).sort("pieces", "n_layers")
    growth = [bounds["step_bound"][i + 2] / bounds["step_bound"][i] for i in (0, 3)]
    assert growth == pytest.approx([30, 30], rel=0.1)
    curved = rows.filter(check="activation").filter(pl.col("step_error") > 1e-12)["network"]
    assert set(curved) == {"4-8-8-1 hardswish"}


# wu-products


def test_a_layer_writes_the_products_of_what_it_reads():
    settings = wu_checks.product_settings("smoke", 0)
    rows = rows_of(wu_checks.run_product, settings)
    errors = dict(zip(rows["form"], rows["relative_error"], strict=True))
    exact = ("product layer", "ReLU attention", "gated ReLU heads")
    assert all(errors[form] < 1e-15 for form in exact)
    assert all(1e-16 < errors[form] < 1e-10 for form in errors.keys() - set(exact))
    product = rows.row(0, named=True)
    assert (product["n_heads"], product["head_width"], product["nonzeros"]) == (4, 4, 40)


# wu-teachers


def test_decoders_are_those_of_the_figures():
    settings = wu_teachers.settings("laptop", 0)
    cases = [transfer.case for transfer in settings]
    assert [(case.attention, case.seed) for case in cases] == [
        (attention, seed) for attention in ("relu", None, "softmax") for seed in range(3)
    ]
    for attention in ("relu", "softmax"):
        trained = [case for case in cases if case.attention == attention]
        shown = [
            case
            for case in curve_settings(attention, (3, 4, 6), MIXTURES, "laptop", 0)
            if case.attention and case.n_layers == 3
        ]
        same = ("n_steps", "learning_rate", "hidden_width", "warmup_steps", "width", "n_blocks")
        for ours, theirs in zip(trained, shown, strict=True):
            assert [getattr(ours.setup, x) for x in same] == [
                getattr(theirs.setup, x) for x in same
            ]


@pytest.fixture(scope="module")
def teachers():
    settings = wu_teachers.settings("smoke", 0)
    return settings, rows_of(wu_teachers.run, settings)


def test_on_teachers_of_pretraining_everything_is_as_in_the_figures(teachers):
    settings, rows = teachers
    own = rows.filter(n_layers=3, hidden_width=4)
    baselines = next(transfer.case for transfer in settings if not transfer.case.attention)
    expected = baseline_rows(baselines, Job()).filter(pl.col("line") != "direct, best epoch")
    found = own.filter(pl.col("attention").is_null())
    assert found.select(expected.columns).rows() == expected.rows()
    decoder = next(transfer.case for transfer in settings if transfer.case.attention == "relu")
    model, _ = trained_decoder(decoder, Job())
    [value] = decoder_rows(decoder, model)["r_squared"]
    assert own.filter(line="relu decoder")["r_squared"].to_list() == [value]


def test_other_teachers_are_others(teachers):
    settings, rows = teachers
    assert rows.select("n_layers", "hidden_width").n_unique() == 4
    assert rows.filter(line="ridge")["r_squared"].n_unique() == 4
    inputs = {
        tuple(test.setup.test(test.n_layers, test.laws[0], 0).x.flatten().tolist())
        for test in settings[0].teachers
    }
    assert len(inputs) == 1  # the same inputs for all, so that only teachers differ


def test_the_page_says_what_the_committed_decoders_do():
    rows = committed("wu-teachers")
    keys = ["n_layers", "hidden_width", "seed"]
    is_decoder = pl.col("line").str.ends_with("decoder")
    decoders = rows.filter(is_decoder).select(*keys, "line", "r_squared")

    def better_than(line):
        other = rows.filter(line=line).select(*keys, other="r_squared")
        joined = decoders.join(other, on=keys)
        return int((joined["r_squared"] > joined["other"]).sum()), joined.height

    assert better_than("direct, last epoch") == (0, 120)
    n_better, n_decoders = better_than("ridge")
    assert f"only {n_better} of {n_decoders} are better than ridge" in PAGE
    means = decoders.group_by("n_layers", "hidden_width", "line").agg(pl.mean("r_squared"))
    is_outlier = (pl.col("n_layers") == 6) & (pl.col("hidden_width") == 5)
    others = means.filter(~is_outlier)["r_squared"]
    assert f"a mean R^2 of {others.min():.3f} to {others.max():.3f}" in PAGE
    falls = means.filter(is_outlier).sort("line")["r_squared"]
    worst = decoders.filter(is_outlier).group_by("line").agg(pl.min("r_squared")).sort("line")
    texts = [f"{value:.3f}" for value in (*falls, *worst["r_squared"])]
    assert "fall to {} and {}, the worst seed to {} and {}".format(*texts) in PAGE
    of_prompt = rows.filter(~is_decoder).group_by("n_layers", "hidden_width", "line")
    constructed = of_prompt.agg(pl.mean("r_squared")).filter(line="constructed, 100 steps")
    joined = means.join(constructed, on=["n_layers", "hidden_width"], suffix="_constructed")
    ahead = joined.filter(pl.col("r_squared_constructed") > pl.col("r_squared"))
    assert ahead.select("n_layers", "hidden_width").unique().rows() == [(6, 5)]
