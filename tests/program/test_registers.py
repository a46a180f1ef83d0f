from math import exp, log

import pytest

from icgd.program.functions import LatticeFunction
from icgd.program.registers import (
    MASKED,
    REGISTER_SLOTS,
    SHARE,
    register_constants,
    value_slot,
)

BUMP = LatticeFunction("bump", 1.0, 0.5, 1.4, (1.0, 2.0, 5.0, 3.0, 4.0), 0.0, 5.0, 1.0)
CONSTANTS = register_constants((BUMP,), 2)
"""The memory, then the grid -2, -1, 0, 1, 2."""


def test_every_slot_of_registers_has_a_value_for_each():
    assert set(CONSTANTS) == {*REGISTER_SLOTS, "value of bump"}
    assert {len(values) for values in CONSTANTS.values()} == {6}


def test_the_first_register_is_the_memory():
    assert CONSTANTS["is_register"] == (1.0,) * 6
    assert CONSTANTS["is_memory"] == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_the_memory_holds_the_weights_themselves_and_the_grid_holds_multiples():
    assert CONSTANTS["scale"] == (1.0, -1.0, -0.5, 0.0, 0.5, 1.0)
    assert CONSTANTS["scale_size"] == (1.0, 1.0, 0.5, 0.0, 0.5, 1.0)
    assert CONSTANTS["scale_sign"] == (1.0, -1.0, -1.0, 0.0, 1.0, 1.0)


def test_a_grid_token_holds_its_value_of_every_function_and_the_memory_holds_0():
    other = LatticeFunction("other", 1.0, 0.5, 1.4, (9.0, 8.0, 7.0, 6.0, 5.0), 0.0, 9.0, 1.0)
    both = register_constants((BUMP, other), 2)
    assert value_slot("bump") == "value of bump"
    assert both["value of bump"] == (0.0, 1.0, 2.0, 5.0, 3.0, 4.0)
    assert both["value of other"] == (0.0, 9.0, 8.0, 7.0, 6.0, 5.0)


def test_the_offset_completes_the_square_of_a_grid_token():
    assert CONSTANTS["offset"][1:] == (-2.0, -0.5, 0.0, -0.5, -2.0)


@pytest.mark.parametrize("half", [15, 119, 511])
def test_the_memory_scores_below_the_best_grid_token_whatever_the_argument(half):
    """A memory has the scale of the last token: for arguments beyond it only offsets differ."""
    offset = register_constants((), half)["offset"]
    for cells in (0.0, 0.5 * half, float(half), 3.0 * half, -2.0 * half):
        best = max(g * cells + offset[1 + half + g] for g in range(-half, half + 1))
        assert half * cells + offset[0] <= best - MASKED


def test_a_masked_score_has_a_softmax_weight_of_exactly_0():
    """Scores over the grid are divided by ratio^2, at most 1.5^2."""
    assert exp(-MASKED / 1.5**2) == 0.0


def test_beside_the_memory_examples_of_total_1_keep_a_share_in_proportion_to_the_scale():
    for scale, sink in zip(CONSTANTS["scale_size"], CONSTANTS["sink"], strict=True):
        share = exp(0.0 - sink) / (1 + exp(0.0 - sink))
        assert share == pytest.approx(SHARE * scale, rel=1e-11, abs=0)


def test_the_register_of_scale_0_leaves_examples_exactly_nothing():
    assert CONSTANTS["sink"][3] == MASKED
    assert exp(log(1e6) - MASKED) == 0.0
