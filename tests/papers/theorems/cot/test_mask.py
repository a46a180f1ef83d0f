"""What each step of a chain needs, written out for N = 2."""

from icgd_papers.theorems.cot import mask

NEEDED = [
    (1, ("B", 1), None),
    (2, ("F", 1), ("B", 2)),
    (3, ("F", 2), None),
    (4, ("B", 2), ("F", 1)),
    (5, ("B", 1), None),
    (6, ("F", 1), ("B", 2)),
]


def test_what_is_needed_in_a_network_of_two_layers():
    assert list(mask.needed(2))[:6] == NEEDED


def test_blocks_have_the_names_of_the_prompt_and_of_the_chain():
    assert [mask.block_at(2, number, 5) for number in range(-1, 5)] == [
        ("B", 2), ("B", 1), ("F", 1), ("F", 2), ("B", 2), ("B", 1),
    ]  # fmt: skip
    assert mask.block_at(2, 5, 5) is None
    assert mask.block_at(2, -2, 5) is None
    assert mask.block_at(3, -2, 1, is_reversed=False) == ("B", 1)


def test_a_mask_that_is_off_by_one_is_noticed():
    assert mask.wrong_steps(3, mask.corrected) == 0
    assert mask.wrong_steps(3, lambda t, n: mask.corrected(t, n) + 1) == 12


def test_the_printed_mask_of_three_layers_has_no_far_block_right():
    assert mask.wrong_steps(3, mask.printed) == 12
    assert mask.printed(2, 2) == 2


def test_data_stand_where_the_corrected_number_says():
    assert mask.wrong_data(3, lambda t, n: (t - 1) // n + 1) == 0
    assert mask.wrong_data(3, lambda t, n: t // n - 1) == 6
