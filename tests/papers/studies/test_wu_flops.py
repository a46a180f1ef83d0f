"""Formulas against what torch counts, and against the paper's sizes done by hand."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from icgd_papers.figures.wu_curves import BUDGETS
from icgd_papers.studies.wu_flops import (
    DIRECT,
    FLOPS,
    IN_CONTEXT,
    counted,
    counted_decoder,
    counted_direct,
    decoder_products,
    nearest,
    network_weights,
)

ROOT = Path(__file__).parents[3]
SMOKE, PAPER = BUDGETS["smoke"], BUDGETS["paper"]


def rows_of(preset="smoke"):
    studies = FLOPS.studies(preset, seed=0)
    return FLOPS.rows(studies, [study.train() for study in studies])


def test_torch_counts_two_flops_for_a_product():
    assert counted(lambda: torch.ones(3, 4) @ torch.ones(4, 5)) == 2 * 3 * 4 * 5


def test_the_formula_of_the_decoder_is_what_torch_counts():
    """The last block's MLP and the read-out are computed where labels are predicted alone."""
    budget = replace(SMOKE, tokens="interleaved", n_blocks=2)
    places, asked = 2 * budget.n_examples + 1, budget.n_examples + 1
    spared = (places - asked) * (2 * budget.width * budget.mlp_width + budget.width)
    whole = decoder_products(budget, places)
    counted_by_torch = counted_decoder(budget).flops
    assert abs(counted_by_torch / 2 - (whole - spared)) <= 0.02 * whole


def test_the_formula_of_direct_training_is_what_torch_counts():
    """The inputs need no gradient, and the query is predicted once in each epoch."""
    n, first = SMOKE.n_examples, SMOKE.input_width * SMOKE.baselines.direct_width
    an_epoch = 2 * (3 * n + 1) * network_weights(SMOKE) - 2 * n * first
    assert counted_direct(SMOKE).flops == SMOKE.baselines.n_epochs * an_epoch


def test_the_papers_sizes_by_hand():
    assert network_weights(PAPER) == 20 * 200 + 4 * 200 * 200 + 200
    assert network_weights(PAPER, biases=True) == 164_200 + 5 * 200 + 1
    block = 4 * 256**2 + 2 * 256 * 256 + 2 * 102 * 256
    assert decoder_products(PAPER, 102) == 102 * (12 * block + 256 * 22)


def test_the_summary_begins_with_what_was_counted_and_then_has_the_nearest_conventions():
    rows = rows_of()
    summary = FLOPS.summary(rows)
    assert [row[5] for row in summary.rows] == ["torch", "torch", "program", *["formula"] * 6]
    of_side = nearest([row for row in rows if row["side"] == DIRECT])
    assert [row["side"] for row in of_side] == [DIRECT] * 3


def test_the_picture_shows_both_printed_numbers_and_what_torch_counted():
    rows = rows_of()
    ax = FLOPS.picture(rows).axes[0]
    lines = [line.get_ydata().tolist() for line in ax.lines if len(line.get_xdata()) == 2]
    assert lines == [[3.3] * 2] * 2 + [[7.6] * 2] * 2
    torch_counts = [row["flops"] / 1e9 for row in rows if row["counted_by"] == "torch"]
    texts = [text.get_text().strip() for text in ax.texts]
    assert {f"{count:.2f}" for count in torch_counts} <= set(texts)
    assert "the constructed transformer takes" in ax.get_title(loc="left")


def test_an_outcome_comes_back_from_its_data():
    [study] = FLOPS.studies("smoke", seed=0)
    found = study.train()
    assert study.outcome_of(asdict(found)) == found


def test_committed_results_say_which_convention_is_the_papers():
    numbers = json.loads((ROOT / "results/wu-flops/laptop.json").read_text(encoding="utf-8"))
    assert "dirty" not in numbers["commit"]
    exact = [row for row in numbers["rows"] if row["rounds_to_printed"]]
    assert [(row["side"], row["passes"], row["n_examples"]) for row in exact] == [
        (IN_CONTEXT, "forward and backward", 50)
    ]
    best = nearest([row for row in numbers["rows"] if row["side"] == DIRECT])[0]
    assert best["flops"] == pytest.approx(7.533e9, rel=1e-3)
