"""The mask of a chain: which blocks a block reads."""

import pytest

from icgd.program.chain import ChainMask


def names(depth: int, n_rounds: int) -> dict[int, str]:
    """What the chain writes, by block number, from the initial weights on."""
    layers = range(1, depth + 1)
    one_round = [f"F{i}" for i in layers] + [f"B{i}" for i in reversed(layers)]
    written = [f"B{i}" for i in reversed(layers)] + one_round * n_rounds
    return dict(enumerate(written, start=1 - depth))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_block_reads_its_neighbour_and_the_block_of_its_own_layer(depth):
    mask, chain = ChainMask(depth), names(depth, 3)
    for step in range(1, 6 * depth + 1):
        place, far = mask.place(step), mask.far(step)
        pass_name, other = ("F", "B") if place.is_forward else ("B", "F")
        assert chain[step] == f"{pass_name}{place.layer}"
        first = place.layer == (1 if place.is_forward else depth)
        if first:
            assert far is None
        else:
            assert chain[far] == f"{other}{place.layer}"
            assert 2 <= step - far <= mask.reach


def test_weights_come_from_the_round_before_and_outputs_from_this_one():
    mask = ChainMask(3)
    assert [mask.far(step) for step in range(7, 13)] == [None, 5, 4, None, 8, 7]
    assert [mask.place(step).round for step in (6, 7, 12, 13)] == [0, 1, 1, 2]
    assert mask.place(11).title() == "backward 2 of round 2"


def test_the_matrix_shows_data_then_initial_weights_then_the_chain():
    assert ["".join(".X"[read] for read in row) for row in ChainMask(2).matrix(2)] == [
        # X Y X Y, B2 B1, F1 F2 B2 B1 F1 F2 B2 B1
        "X....X........",
        "....X.X.......",
        ".X.....X......",
        "......X.X.....",
        "..X......X....",
        "........X.X...",
        "...X.......X..",
        "..........X.X.",
    ]


def test_no_block_reads_further_back_than_the_reach():
    for depth in (1, 4):
        mask = ChainMask(depth)
        steps = range(1, 4 * depth + 1)
        distances = [1] + [step - far for step in steps if (far := mask.far(step)) is not None]
        assert max(distances) == mask.reach
