"""Both generators write the same block, from any pair of blocks that the mask can show."""

import pytest
import torch

from icgd.backends.chain_dense import DenseGenerator
from icgd.backends.chain_fused import FusedGenerator, result
from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import Juggle

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


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
@pytest.mark.parametrize("layer", [LINEAR, KINKED], ids=["linear", "kinked"])
@pytest.mark.parametrize(
    ("near", "far"),
    [(FORWARD, BACKWARD), (BACKWARD, FORWARD), (BACKWARD, DATA), (FORWARD, DATA)],
    ids=["forward", "backward", "from x", "from y"],
)
def test_the_generators_agree(near, far, layer, activation):
    program = program_of(problem_of(MLP((3, WIDTH, 2), activation), BATCH))
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


def test_an_instruction_without_a_kernel_is_named():
    with pytest.raises(ProgramError, match=r"Juggle: has no kernel in backends/chain_fused.py"):
        result(Juggle(), {})
