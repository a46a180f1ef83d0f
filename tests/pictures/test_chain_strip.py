import itertools

import pytest

from icgd.pictures import program_picture as chain_strip
from icgd.pictures.canvas import Canvas
from icgd.program.chain import ChainMask
from tests.pictures import drawn


def names(mask: ChainMask) -> list[str]:
    return [chain_strip.block_name(mask, number) for number in chain_strip.block_places(mask)]


def test_the_blocks_of_the_prompt_come_before_those_of_the_round():
    assert names(ChainMask(2)) == ["B2", "B1", "F1", "F2", "B2", "B1"]
    assert names(ChainMask(1)) == ["B1", "F1", "B1"]


def test_arrows_join_the_blocks_of_one_layer():
    mask = ChainMask(3)
    joined = [
        tuple(chain_strip.block_name(mask, number) for number in pair)
        for pair in chain_strip.far_arrows(mask)
    ]
    assert joined == [("B2", "F2"), ("B3", "F3"), ("F2", "B2"), ("F1", "B1")]
    assert chain_strip.far_arrows(mask) == [(-1, 2), (-2, 3), (2, 5), (1, 6)]


def test_a_deep_network_is_folded():
    mask = ChainMask(400)
    assert names(mask) == [
        *("B400", "B2", "B1"), *("F1", "F2", "F400"), *("B400", "B2", "B1")
    ]  # fmt: skip
    places = list(chain_strip.block_places(mask).values())
    gaps = [right - left for left, right in itertools.pairwise(places)]
    wide = chain_strip.BLOCK_PITCH + chain_strip.FOLD
    assert gaps == [
        wide,
        *[chain_strip.BLOCK_PITCH] * 3,
        wide,
        chain_strip.BLOCK_PITCH,
        wide,
        chain_strip.BLOCK_PITCH,
    ]


@pytest.mark.parametrize("depth", [1, 2, 6, 400])
def test_no_arrow_leaves_the_strip(depth):
    mask = ChainMask(depth)
    assert chain_strip.strip_height(mask) <= 40 + chain_strip.HIGHEST + 22 + chain_strip.BELOW


def test_the_strip_says_which_blocks_read_data_and_what_comes_next():
    canvas = Canvas(800.0, 400.0)
    chain_strip.draw_chain(drawn.compiled("cot-network").program, canvas)
    texts = canvas.texts()
    assert texts[0] == "The chain: round 1 of 4, each a step on 2 examples"
    assert {"X", "Y", "F1", "F2", "B1", "B2", "forward", "next round"} <= set(texts)
    assert texts.count("B1") == 2
