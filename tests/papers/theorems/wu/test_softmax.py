from math import exp, log, pi

import pytest
import torch

from icgd.constructions.universal import STEP_TABLE, context_head, level_values
from icgd.problems.oracles import gradient
from icgd_papers.theorems.wu import softmax
from icgd_papers.theorems.wu.softmax import log10_separation, penalty, quantiser


def test_on_levels_the_table_has_the_exact_step():
    compiled, value = softmax._compiled(), level_values(softmax.LEVELS)
    table, head = compiled.stack.relu_sum(STEP_TABLE), context_head(softmax.LEVELS, 2)
    fixed = value[[1, 4, 2]]
    x, y = torch.stack([value[0], fixed[1]])[:, None], torch.stack([fixed[0], fixed[2]])[:, None]
    w = value[3:4]
    problem = compiled.problem
    moved = w - 0.2 * gradient(problem.network, problem.loss_function, w, x, y)
    assert abs(softmax._answer(table, head, value[0], fixed) - float(moved)) < 1e-9


def test_the_quantiser_rounds_up_to_its_levels():
    z = torch.tensor([-1.0, 0.1, 0.6, 1.1, 1.9, 3.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(quantiser(z, 2.0, 4, last=2.0), expected)


def test_the_penalty_is_for_numbers_out_of_range():
    z = torch.tensor([-0.1, 0.5, 2.1], dtype=torch.float64)
    assert penalty(z, 2.0).tolist() == [-2.0, 0.0, -2.0]


def test_the_separation_is_the_printed_one_where_a_float_holds_it():
    growth = 2**4 * (2 * log(2) + 3) * pi
    printed = 2 * log(2) ** 2 * 0.5**2 * 0.5 / growth * exp(-growth / (4 * 0.5 * 0.5))
    assert log10_separation(1, 1, 2, 0.5, 1.0, 0.5) == pytest.approx(log(printed) / log(10))
