from pathlib import Path

import pytest

from icgd_papers.figures.wu_depth import DEPTH, verdict
from icgd_papers.figures.wu_lines import Outcome, Point
from tests.papers.committed import committed

ROOT = Path(__file__).parents[3]


def outcome(study, gain=0.01):
    value = 0.9 + gain * (study.budget.n_blocks - 4) / 2 - 0.002 * study.seed
    points = [
        Point("(1, 0)", "N(0, I)", "learnt decoder", n, value, 0.5) for n in study.budget.lengths
    ]
    return Outcome(tuple(points), 1.0, 0.25)


def rows_of(gain=0.01):
    studies = DEPTH.studies("laptop", seed=0)
    return DEPTH.rows(studies, [outcome(study, gain) for study in studies])


def test_decoders_of_all_depths_and_both_kinds_of_attention_are_trained():
    studies = DEPTH.studies("laptop", seed=3)
    assert len(studies) == 4 * 2 * 3
    assert {study.budget.n_blocks for study in studies} == {4, 6, 8, 10}
    assert {study.attention for study in studies} == {"relu", "softmax"}
    paper = DEPTH.studies("paper", seed=0)[0].budget
    assert (paper.lengths, paper.n_examples) == ((15, 30, 45), 50)
    laptop = studies[0].budget  # the same shares of the prompt
    assert [n / laptop.n_examples for n in laptop.lengths] == [0.3, 0.6, 0.9]


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.01, "depth helps beyond the spread"),
        (0.001, "no more than the spread"),
        (-0.01, "worse beyond the spread"),
    ],
)
def test_the_verdict_asks_that_all_seeds_agree(gain, words):
    rows = [row for row in rows_of(gain) if row["attention"] == "relu" and row["n_examples"] == 6]
    assert verdict(rows) == words
    assert verdict([row for row in rows if row["n_blocks"] != 8]) == "not measured"


def test_the_summary_has_all_depths_and_the_verdict():
    summary = DEPTH.summary(rows_of())
    assert summary.names == (
        *(
            "attention",
            "examples",
            "4 blocks",
            "6 blocks",
            "8 blocks",
            "10 blocks",
            "4 to 8 blocks",
        ),
    )
    assert summary.rows[0] == (
        *("relu", "6", "0.8980 (0.8960 to 0.9000)", "0.9080 (0.9060 to 0.9100)"),
        *("0.9180 (0.9160 to 0.9200)", "0.9280 (0.9260 to 0.9300)"),
        "depth helps beyond the spread",
    )


def test_the_picture_says_the_verdict_over_each_panel():
    axes = DEPTH.picture(rows_of()).axes
    assert [ax.get_title(loc="left") for ax in axes] == [
        f"{name} attention\n4 to 8 blocks: depth helps beyond the spread"
        for name in ("relu", "softmax")
    ]
    assert axes[0].lines[0].get_xdata().tolist() == [4, 6, 8, 10]


@pytest.mark.parametrize("gain", [0.01, 0.001])
def test_no_title_is_cut_off(gain):
    figure = DEPTH.picture(rows_of(gain))
    figure.canvas.draw()
    ends = [ax.get_tightbbox().x1 for ax in figure.axes]
    assert ends[0] < figure.axes[1].get_tightbbox().x0
    assert ends[1] <= figure.bbox.x1


def test_the_height_is_that_of_the_data():
    rows = rows_of(0.001)  # R^2 from 0.896 to 0.903
    bottom, top = DEPTH.picture(rows).axes[0].get_ylim()
    assert (bottom, top) == pytest.approx((1.15 * 0.104, 0.097 / 1.15))


def test_committed_results_are_whole_and_of_a_clean_commit():
    numbers = committed("wu-fig5")
    assert "dirty" not in numbers["commit"]
    summary = DEPTH.summary(numbers["rows"])
    assert [tuple(row.values()) for row in numbers["summary"]] == list(summary.rows)


def test_seed_by_seed_8_blocks_are_better_than_4_and_10_no_better_than_8():
    """The page says so; a seed has test prompts of its own, which the ranges do not leave out."""
    rows = committed("wu-fig5")["rows"]
    names = ("attention", "n_examples", "seed", "n_blocks")
    found = {tuple(row[name] for name in names): row["r_squared"] for row in rows}
    cases = sorted({key[:3] for key in found})
    gains = [found[*case, 8] - found[*case, 4] for case in cases]
    assert len(gains) == 18
    assert 0.0026 < min(gains) < max(gains) < 0.0161
    further = [found[*case, 10] - found[*case, 8] for case in cases]
    assert sum(gain > 0 for gain in further) == 8
