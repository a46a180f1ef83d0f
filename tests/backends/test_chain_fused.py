"""Both generators write the same block, from any pair of blocks that the mask can show."""

import pytest
import torch

from icgd.backends.chain import DenseGenerator, FusedGenerator
from icgd.backends.recorder import recorded_block
from icgd.problems.mlp import MLP
from tests.backends.chain_cases import problem_of, program_of

LINEAR, KINKED = {"linear": 1.0}, {"kinked": 1.0}
FORWARD, BACKWARD, DATA = {"is_forward": 1.0}, {"is_backward": 1.0}, {"is_data": 1.0}

LIKE = torch.zeros(1, 3, dtype=torch.float64)
WIDTH, BATCH = 4, 2


def block_of(flags: dict, seed: int) -> dict:
    """Random rows; units are flat, steep, or between, on a kink."""
    generator = torch.Generator().manual_seed(seed)
    float64 = {"generator": generator, "dtype": torch.float64}
    data = {name: torch.randn(WIDTH, BATCH, **float64) for name in ("first", "second")}
    choice = torch.randint(0, 3, (WIDTH, BATCH), generator=generator)
    flat = torch.tensor([0.0, 2.0**-14, 3.0], dtype=torch.float64)[choice]
    weights = torch.randn(WIDTH, WIDTH, **float64)
    return {**data, "flat": flat, "weights": weights, **flags}


@pytest.mark.parametrize(("activation", "loss"), [("relu", "squared"), ("leaky_relu", "huber")])
@pytest.mark.parametrize("layer", [LINEAR, KINKED], ids=["linear", "kinked"])
@pytest.mark.parametrize(
    ("near", "far"),
    [(FORWARD, BACKWARD), (BACKWARD, FORWARD), (BACKWARD, DATA), (FORWARD, DATA)],
    ids=["forward", "backward", "from x", "from y"],
)
def test_the_generators_agree(near, far, layer, activation, loss):
    program = program_of(problem_of(MLP((3, WIDTH, 2), activation), BATCH, loss=loss))
    blocks = [block_of({**near, **layer}, 1), block_of({**far, **layer}, 2)]
    if far is DATA:
        blocks[1] = {"first": blocks[1]["first"], **DATA}
    dense, fused = DenseGenerator(program, LIKE), FusedGenerator(program, LIKE)
    truth = dense.step(*map(dense.encode, blocks), 1)
    ours = fused.step(*map(fused.encode, blocks), 1)
    for name in program.rows.names:
        expected = dense.row(truth, name)
        # z is off by rounding, which the width of a kink divides.
        atol = 1e-10 if name != "flat" else 1e-12 * 2.0**40
        torch.testing.assert_close(fused.row(ours, name), expected, rtol=0, atol=atol)
    assert dense.row(truth, "first").abs().max() > 0.1


@pytest.mark.parametrize("kind", ["linear", "tanh"])
@pytest.mark.parametrize(
    ("near", "far"),
    [(FORWARD, BACKWARD), (BACKWARD, FORWARD), (BACKWARD, DATA), (FORWARD, DATA)],
    ids=["forward", "backward", "from x", "from y"],
)
def test_the_generators_agree_on_smooth_layers_with_closed_units(near, far, kind):
    """Unit 3 is padding: whatever its row of the weights holds, it gives nothing."""
    program = program_of(problem_of(MLP((3, WIDTH, 2), "tanh"), BATCH, loss="logistic", box=1.0))
    padding = (torch.arange(WIDTH)[:, None] == 3).double()
    travelling = {kind: 1.0, "padding": padding, "flat": 0.0}
    blocks = [block_of(near, 1) | travelling, block_of(far, 2) | travelling]
    for number, block in enumerate(blocks):
        block["slope"], block["part"] = block_of({}, 3 + number)["first"], block["second"]
    if far is DATA:
        blocks[1] = {"first": blocks[1]["first"], **DATA}
    dense, fused = DenseGenerator(program, LIKE), FusedGenerator(program, LIKE)
    truth = dense.step(*map(dense.encode, blocks), 1)
    ours = fused.step(*map(fused.encode, blocks), 1)
    for name in program.rows.names:
        expected = dense.row(truth, name)
        torch.testing.assert_close(fused.row(ours, name), expected, rtol=0, atol=1e-10)
    first = dense.row(truth, "first")
    assert first[:3].abs().min() > 1e-3
    assert first[3].abs().max() <= 1e-15, "a head returns 0 but for rounding"


def test_work_that_nothing_kept_depends_on_is_left_out():
    """tanh and its slope in a smooth layer, sigmoid for the loss in a linear one."""
    program = program_of(problem_of(MLP((3, WIDTH, 2), "tanh"), BATCH, loss="logistic", box=1.0))
    done = {}
    for kind in ("linear", "tanh"):
        fused = FusedGenerator(program, LIKE)
        near, far = (block_of({**flag, kind: 1.0}, 1) for flag in (FORWARD, BACKWARD))
        blocks = fused.encode(near), fused.encode(far)
        recording = recorded_block(program, *(block.constants for block in blocks))
        looked_up = [op.options[0].name for op in recording.ops if op.name == "polynomials"]
        done[kind] = sorted(looked_up)
    assert done == {"linear": ["sigmoid"], "tanh": ["tanh", "tanh'"]}
