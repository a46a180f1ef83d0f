"""The mask of a chain: which blocks a block reads."""

import pytest
import torch

from icgd.problems.mlp import MLP
from icgd.program.chain import ChainMask
from icgd.program.chain_instructions import FINDING
from tests.backends.chain_cases import problem_of, program_of


def names(depth: int, n_rounds: int) -> dict[int, str]:
    """What the chain writes, by block number, from the initial weights on."""
    layers = range(1, depth + 1)
    one_round = [f"F{i}" for i in layers] + [f"B{i}" for i in reversed(layers)]
    written = [f"B{i}" for i in reversed(layers)] + one_round * n_rounds
    return dict(enumerate(written, start=1 - depth))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_block_reads_its_neighbour_and_the_block_of_its_own_layer(depth):
    mask, chain = ChainMask(depth), names(depth, 3)
    for reading in mask.walk(1, 6 * depth):
        step, place, far = reading.number, reading.place, reading.far
        assert place == mask.place(step)
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
    assert [step.far for step in mask.walk_round(1)] == [None, 5, 4, None, 8, 7]
    assert [step.number for step in mask.walk_round(1)] == [7, 8, 9, 10, 11, 12]
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("depth", [*range(1, 17), 100])
def test_a_softmax_of_positions_is_the_mask(depth, dtype):
    """Row t - 1 of the matrix shows the block before, which asks, and the one that it finds."""
    n_rounds, mask = 3, ChainMask(depth)
    answers = [
        mask.data_answers(number, 2 * number + place, is_x=place == 0)
        for number in range(n_rounds)
        for place in (0, 1)
    ]
    n_steps = mask.blocks_per_round * n_rounds
    blocks = enumerate(range(1 - depth, n_steps + 1), start=len(answers))
    answers += [mask.answers(step, place) for place, step in blocks]
    keys = torch.tensor(answers, dtype=dtype)
    n_prompt = 2 * n_rounds + depth
    for step, row in enumerate(mask.matrix(n_rounds), start=1):
        asks = torch.tensor(mask.asks(step), dtype=dtype) * torch.tensor(FINDING, dtype=dtype)
        seen = n_prompt + step - 1
        shown = torch.softmax(keys[:seen] @ asks, dim=0)
        far = torch.tensor(row)
        far[seen - 1] = False
        assert torch.equal(shown, far[:seen].to(dtype)), step


def test_the_mask_finds_blocks_of_long_chains():
    """Scales do not depend on the length: the last blocks of 20,000, and of 10,000 layers."""
    for depth, step in ((4, 20_000), (10_000, 39_999)):
        mask = ChainMask(depth)
        (reading,) = mask.walk(step, 1)
        steps = range(step - 3 * depth, step)
        keys = torch.tensor([mask.answers(k, 10**6 + k) for k in steps], dtype=torch.float64)
        asks = torch.tensor(mask.asks(step), dtype=torch.float64)
        shown = torch.softmax(keys @ (asks * torch.tensor(FINDING).double()), dim=0)
        assert steps[int(shown.argmax())] == reading.far
        assert shown.max() == 1


def test_no_block_reads_further_back_than_the_reach():
    for depth in (1, 4):
        mask = ChainMask(depth)
        steps = mask.walk(1, 4 * depth)
        distances = [1] + [step.number - step.far for step in steps if step.far is not None]
        assert max(distances) == mask.reach


def test_a_reading_finds_its_blocks_among_those_written_and_the_data_of_the_round():
    written = {number: f"block {number}" for number in range(-1, 5)}
    read = [step.blocks(written, "X", "Y") for step in ChainMask(2).walk_round(0)]
    assert read == [
        ("block 0", "X"),
        ("block 1", "block -1"),
        ("block 2", "Y"),
        ("block 3", "block 1"),
    ]


def test_a_chain_says_what_it_trains_what_can_be_recorded_and_where_its_ramp_is():
    chain = program_of(problem_of(MLP((2, 3, 1), "relu")))
    assert chain.weight_shapes == chain.shapes == ((3, 2), (1, 3))
    assert chain.traceable == chain.rows.names
    assert chain.n_examples is None
    assert chain.has_kinks
    assert chain.ramps("relu'") == ((0.0, chain.kink_width),)
    assert not program_of(problem_of(MLP((2, 3, 1), "identity"))).has_kinks


def test_a_chain_shows_itself_in_a_line():
    program = program_of(problem_of(MLP((3, 4, 2), "relu")), n_steps=2)
    assert repr(program) == (
        f"ChainProgram(construction: cot-network; steps: 2; chain: 8 blocks of width "
        f"{program.rows.width}; layers: 4 layers used 10 times, 2 of these to predict; "
        f"d_model: {program.layout.width} in "
        f"{len(program.layout.slots)} slots)"
    )
