"""The studies beside wu's figures: wu-choices, wu-mechanism, wu-flops."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.linear_model import LinearRegression

from icgd_papers.figure import Job
from icgd_papers.figures import wu_prompts
from icgd_papers.figures.wu import SETUPS
from icgd_papers.figures.wu_prompts import PRETRAINING, Constructed
from icgd_papers.runner import stored_rows
from icgd_papers.studies import wu_choices, wu_flops, wu_mechanism
from icgd_papers.studies.wu_mechanism import beside_descent, conclusions, read_out, streams_at_query

ROOT = Path(__file__).parents[2]
SMOKE, PAPER = SETUPS["smoke"], SETUPS["paper"]


class StoppedError(Exception):
    pass


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# wu-choices


def test_one_thing_is_chosen_otherwise_at_a_time():
    laptop = wu_choices.SETUPS["laptop"]
    changes = {
        name: {
            field: value for field, value in vars(setup).items() if value != getattr(laptop, field)
        }
        for name, setup in wu_choices.choices(laptop).items()
    }
    assert changes == {
        "as chosen": {},
        "teachers a quarter as wide": {"hidden_width": 5},
        "teachers four times as wide": {"hidden_width": 80},
        "half the learning rate": {"learning_rate": 0.001},
        "twice the learning rate": {"learning_rate": 0.004},
        "twice the steps": {"n_steps": 1000},
        "interleaved tokens": {"tokens": "interleaved"},
    }
    assert "joint tokens" in wu_choices.choices(wu_choices.SETUPS["paper"])  # it has interleaved
    assert len(wu_choices.settings("laptop", 0)) == 7 * 3 * (1 + 2)


def choice_rows(worst=0.5):
    lines = {"learnt decoder": 0.9, "direct, last epoch": 0.5, "label mean": worst, "ridge": 0.5}
    return pl.DataFrame(
        {
            "choice": choice,
            "inputs": inputs,
            "line": line,
            "r_squared": value - 0.01 * seed,
            "r_squared_within": value - 0.25 - 0.01 * seed,
        }
        for choice in ("as chosen", "twice the steps")
        for inputs in ("(1, 0)", "(0.5, 0.5)")
        for line, value in lines.items()
        for seed in range(3)
    )


def test_the_summary_of_choices_has_both_forms_of_r_squared():
    first = wu_choices.summarise(choice_rows()).row(0, named=True)
    assert (first["choice"], first["mixture"]) == ("as chosen", "(1, 0)")
    assert first["learnt decoder, R^2"] == "0.890 (0.880 to 0.900)"
    assert first["learnt decoder, within prompts"] == "0.640 (0.630 to 0.650)"
    assert first["ridge, R^2"] == "0.490"


def test_an_axis_says_that_worse_points_stand_at_its_end():
    axes = wu_choices.draw(choice_rows(worst=-0.8)).axes
    cut = "R^2; what is below -1 stands at -1"
    assert [ax.get_xlabel() for ax in axes] == ["R^2", cut, "R^2", cut]
    assert min(min(line.get_xdata()) for line in axes[1].lines) == -1.0
    assert axes[1].get_title(loc="left") == "mixture (1, 0), R^2 within prompts"


# wu-mechanism

PLAN = wu_mechanism.settings("smoke", 0)[0]


@pytest.fixture(scope="module")
def compared():
    return wu_mechanism.run(PLAN, Job())


def test_blocks_and_all_controls_are_compared_with_every_number_of_steps(compared):
    stages = compared.select("predictor", "stage", "descent_steps").rows()
    assert stages == [
        (predictor, stage, n_steps)
        for predictor, n_stages in {
            "learnt block": 1,
            "untrained block": 1,
            "ridge": 5,
            "label mean": 1,
            "arc-cosine": 1,
            "another prompt's label": 1,
            "descent, other start": 3,
        }.items()
        for stage in range(1, n_stages + 1)
        for n_steps in (0, 1, 3)
    ]
    assert compared.filter("is_nearest").height == 13
    for name in ("label mean", "arc-cosine"):
        assert set(compared.filter(predictor=name)[f"to_{name}"]) == {0.0}


def test_descent_is_the_mean_over_its_starts(compared):
    test = PLAN.prompts(wu_mechanism.TEST_INDEX, 8)
    step_size = compared["step_size"][0]
    paths = [
        torch.stack(Constructed(3, 4, step_size, start).path(test.x, test.y, (0, 1, 3)))
        for start in range(3)
    ]
    labels, mean = test.y[:, -1], (paths[0] + paths[1]) / 2
    expected = (paths[2][0] - mean).square().mean(1) / labels.var(correction=0)
    other = compared.filter(predictor="descent, other start", stage=1)
    assert other["distance"].to_list() == pytest.approx(expected.tolist(), rel=1e-5)


def test_an_interrupted_comparison_ends_with_the_same_rows(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(wu_prompts, "CHECKPOINT_EVERY", 1)

    def on_step(*_):
        raise StoppedError

    with pytest.raises(StoppedError):
        wu_mechanism.run(PLAN, Job(tmp_path, on_step=on_step))
    assert wu_mechanism.run(PLAN, Job(tmp_path)).equals(compared)
    assert (tmp_path / "descent.json").exists()
    assert wu_mechanism.run(PLAN, Job(tmp_path)).equals(compared)


def test_a_read_out_is_linear_regression_with_hardly_a_penalty():
    known, asked = normal(400, 5) * 10 + 3, normal(7, 5, seed=1)
    labels = known @ torch.arange(5.0).double() + 2 + normal(400, seed=2)
    expected = LinearRegression().fit(known, labels).predict(asked)
    np.testing.assert_allclose(read_out(known, labels, asked), expected, atol=0.05)
    ones = torch.ones(6, 2).double()  # what is constant says no more than the mean label
    assert read_out(ones, torch.arange(6.0).double(), ones[:1]).tolist() == pytest.approx([2.5])


def test_the_last_stream_of_the_query_gives_the_models_prediction():
    model, batch = SMOKE.decoder("softmax", 0), SMOKE.test(3, PRETRAINING, 0)
    streams = streams_at_query(model, batch)
    assert [stream.shape for stream in streams] == [(8, 8)] * SMOKE.n_blocks
    with torch.no_grad():  # at first the norm has no parameters of its own
        read = streams[-1] @ model.read_out[0] + model.read_out_bias
        torch.testing.assert_close(read, model(batch.x, batch.y))


def test_the_nearest_number_of_steps_has_the_smallest_distance():
    labels = normal(50)
    descent = [labels * share for share in (0.0, 0.5, 0.9, 1.1)]
    rows = beside_descent(0.88 * labels, labels, descent, (0, 1, 2, 5))
    assert [row["is_nearest"] for row in rows] == [False, False, True, False]
    spread = float(labels.square().mean() / labels.var(correction=0))
    distances = [spread * gap**2 for gap in (0.88, 0.38, 0.02, 0.22)]
    assert [row["distance"] for row in rows] == pytest.approx(distances, rel=1e-5)
    assert [row["error_cosine"] for row in rows] == pytest.approx([1, 1, 1, -1])  # on either side
    assert rows[0]["r_squared"] == pytest.approx(1 - 0.12**2 * spread, rel=1e-5)


REFERENCES = ("label mean", "ridge", "arc-cosine")


def mechanism_rows(learnt=(0.5, 0.1), near="descent"):
    """Two seeds; a predictor of distance D is nearest to 10 steps if D < 0.3, or else to 1 step."""
    stages = {
        "learnt block": learnt,
        "untrained block": (0.6,),
        "ridge": (0.4, 0.2),
        "label mean": (0.7,),
        "arc-cosine": (0.3,),
        "descent, other start": (0.8, 0.02),
    }
    return pl.DataFrame(
        {
            "attention": "relu",
            "seed": seed,
            "predictor": name,
            "stage": stage,
            "descent_steps": n_steps,
            "distance": distance + 0.1 * abs(n_steps - best),
            "is_nearest": n_steps == best,
            "r_squared": 1 - distance,
            "error_cosine": 0.5,
            **{f"to_{other}": 0.0 if other == near else 1.0 for other in REFERENCES},
        }
        for seed in (0, 1)
        for name, distances in stages.items()
        for stage, distance in enumerate(distances, start=1)
        for best in (10 if distance < 0.3 else 1,)
        for n_steps in (0, 1, 10)
    )


def test_what_is_nearer_than_every_control_is_said_to_be_so():
    assert conclusions(mechanism_rows()) == (
        "The last block is nearer to descent than every control.",
        "Nearest to the last block: descent.",
        "The number of nearest steps rises from the first block to the last. So does ridge "
        "regression as its penalty falls.",
    )


def test_a_control_that_is_nearer_leaves_no_sign_of_descent():
    assert conclusions(mechanism_rows(learnt=(0.25, 0.25), near="arc-cosine")) == (
        "The last block is not nearer to descent than ridge: no sign of descent.",
        "Nearest to the last block: arc-cosine.",
        "The number of nearest steps does not rise from block to block.",
    )


def test_all_seeds_must_agree():
    def in_seed_1(predictor, column):
        return pl.when(seed=1, predictor=predictor).then(0.01).otherwise(column).alias(column)

    rows = mechanism_rows()
    closer = rows.with_columns(in_seed_1("arc-cosine", "distance"))
    assert "not nearer to descent than arc-cosine" in conclusions(closer)[0]
    mixed = rows.with_columns(in_seed_1("learnt block", "to_ridge"))
    assert conclusions(mixed)[1] == "Nearest to the last block: no one reference for all seeds."


def test_the_summary_and_the_panels_show_the_last_stages():
    rows = mechanism_rows()
    lines = {line[1:3]: line for line in wu_mechanism.summarise(rows).rows()}
    assert lines["learnt block", "2"] == (
        *("relu", "learnt block", "2", "0.900", "10 (10 to 10)", "0.1000", "0.50"),
        *("1.0000", "1.0000", "1.0000"),
    )
    assert ("descent, other start", "1") not in lines
    assert lines["descent, other start", "2"][5] == "0.0200"
    axes = wu_mechanism.draw(rows).axes
    titles = [ax.get_title(loc="left").replace("\n", " ") for ax in axes]
    assert titles == [f"relu: {sentence}" for sentence in conclusions(rows)]
    learnt = axes[0].lines[1]  # after the first block, which is faint
    assert learnt.get_ydata().tolist() == pytest.approx([0.1 + 1.0, 0.1 + 0.9, 0.1])


def test_the_page_draws_the_conclusions_of_the_committed_rows():
    rows = stored_rows(ROOT / "results" / "wu-mechanism" / "laptop.json")
    page = (ROOT / "docs" / "reproductions" / "wu.md").read_text(encoding="utf-8")
    for of_attention in rows.partition_by("attention"):
        for sentence in conclusions(of_attention):
            assert sentence in page


# wu-flops


def test_the_formula_of_the_decoder_is_what_torch_counts():
    """The last block's MLP and the read-out are computed where labels are predicted alone."""
    setup = replace(SMOKE, tokens="interleaved", n_blocks=2)
    places, asked = 2 * setup.n_examples + 1, setup.n_examples + 1
    spared = (places - asked) * (2 * setup.width * setup.mlp_width + setup.width)
    products = wu_flops.decoder_products(setup, places)
    counted = wu_flops.counted_decoder(setup)["flops"]
    assert abs(counted / 2 - (products - spared)) <= 0.02 * products


def test_the_formula_of_direct_training_is_what_torch_counts():
    """The inputs need no gradient, and the query is predicted once in each epoch."""
    n, first = SMOKE.n_examples, SMOKE.input_width * SMOKE.baselines.direct_width
    an_epoch = 2 * (3 * n + 1) * wu_flops.network_weights(SMOKE) - 2 * n * first
    assert wu_flops.counted_direct(SMOKE)["flops"] == SMOKE.baselines.n_epochs * an_epoch


def test_the_papers_sizes_by_hand():
    assert wu_flops.network_weights(PAPER) == 20 * 200 + 4 * 200 * 200 + 200
    assert wu_flops.network_weights(PAPER, biases=True) == 164_200 + 5 * 200 + 1
    block = 4 * 256**2 + 2 * 256 * 256 + 2 * 102 * 256
    assert wu_flops.decoder_products(PAPER, 102) == 102 * (12 * block + 256 * 22)


def test_the_committed_counts_say_which_convention_is_the_papers():
    rows = stored_rows(ROOT / "results" / "wu-flops" / "laptop.json")
    exact = rows.filter("rounds_to_printed").select("side", "passes", "n_examples")
    assert exact.rows() == [("in context", "forward and backward", 50)]
    assert wu_flops.nearest(rows, "direct training")["flops"][0] == pytest.approx(7.533e9, rel=1e-3)
    ax = wu_flops.draw(rows).axes[0]
    printed = [line.get_ydata().tolist() for line in ax.lines if len(line.get_xdata()) == 2]
    assert printed == [[3.3] * 2] * 2 + [[7.6] * 2] * 2
    assert {"3.27", "1.07", "4.92", "7.53"} == {text.get_text() for text in ax.texts}
