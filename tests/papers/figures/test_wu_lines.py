from dataclasses import asdict

import pytest
import torch

from icgd_papers.figures.wu_lines import Outcome, Point, constructed, outcome_of
from icgd_papers.figures.wu_setting import Law


def test_a_point_compares_with_the_last_label():
    y = torch.tensor([[0.0, 1.0, 2.0], [4.0, 3.0, -2.0]]).double()
    predictions = torch.tensor([1.0, -2.0])
    point = Point.of(Law((0.5, 0.5)), "ridge", predictions, y, setting=0.1)
    assert (point.inputs, point.n_examples, point.setting) == ("(0.5, 0.5)", 2, 0.1)
    assert point.r_squared == pytest.approx(1 - 0.5 / 4)  # labels 2 and -2 have variance 4
    within = (2 / 3 + (4**2 + 3**2 + 2**2) / 3 - (5 / 3) ** 2) / 2
    assert point.r_squared_within == pytest.approx(1 - 0.5 / within)
    assert point.columns["line"] == "ridge"


def test_an_outcome_comes_back_from_its_data():
    point = Point("(1, 0)", "N(0, I)", constructed(10), 5, 0.5, 0.25, 0.05)
    assert point.line == "constructed, 10 steps"
    outcome = Outcome((point,), 1.5, loss=0.25)
    assert outcome_of(asdict(outcome)) == outcome


def test_what_json_cannot_hold_is_left_out_of_a_row():
    point = Point("(1, 0)", "N(0, I)", "ridge", 5, float("-inf"), 0.123456789)
    assert point.columns["r_squared"] is None
    assert point.columns["r_squared_within"] == 0.123457
