"""What is read of a chain, and what is kept of it."""

import pytest
import torch

from icgd_papers.studies.cost_cases import Network, counted
from icgd_papers.studies.cost_chains import (
    MEMORIES,
    READINGS,
    MemoryCase,
    ReadingCase,
    attended,
    written,
)
from icgd_papers.studies.cost_steps import ONE_EXAMPLE, built

NETWORK = Network(depth=2, width=2, n_examples=4, seed=0)
PROGRAM = built(NETWORK, ONE_EXAMPLE, 1).program
BLOCK_WIDTH = PROGRAM.rows.width


def test_all_readings_write_the_same_block_bit_for_bit():
    chain = written(NETWORK, 40)
    blocks = [ReadingCase(40, reading, NETWORK).block(chain) for reading in READINGS]
    assert torch.equal(blocks[0], blocks[1])
    assert torch.equal(blocks[0], blocks[2])
    # it is the last block of a round, B_1, whose weights were trained
    weights = chain.generator.row(blocks[0], "weights")
    before = chain.generator.row(chain.blocks[-chain.reach :][:1], "weights")
    assert chain.generator.row(blocks[0], "is_backward").item() == 1.0
    assert 1e-4 < (weights - before).abs().max() < 0.1


def test_a_masked_head_returns_one_block():
    values = torch.randn(9, 3, dtype=torch.float64)
    assert torch.equal(attended(values, 4), values[5:6])


def test_reading_all_blocks_costs_their_number_and_needs_them_all():
    cases = {name: ReadingCase(64, name, NETWORK) for name in READINGS}
    work = {name: counted(case) for name, case in cases.items()}
    formula = {name: case.counts() for name, case in cases.items()}
    assert work["two"][0] == pytest.approx(formula["two"].flops, rel=0.02)
    read = 4 * 64 * BLOCK_WIDTH
    for name, extra in (("cached", read), ("again", read + read * BLOCK_WIDTH)):
        assert work[name][0] - work["two"][0] == extra
        assert formula[name].flops - formula["two"].flops == extra
    kept = (64 - PROGRAM.mask.reach) * BLOCK_WIDTH * 8
    assert formula["cached"].bytes - formula["two"].bytes == kept
    assert work["cached"][1] - work["two"][1] >= kept


def test_a_short_memory_is_flat_and_a_whole_one_grows():
    flops, sizes = zip(
        *(counted(MemoryCase(size, kept, NETWORK)) for kept in MEMORIES for size in (16, 32)),
        strict=True,
    )
    expected = [MemoryCase(16, kept, NETWORK).counts().flops for kept in MEMORIES]
    assert list(flops) == [count for count in expected for _ in range(2)]
    assert expected == [3 * 2 * 2 - 2, 3 * 2 * 2]  # a round of 4 blocks spares a product of 8 FLOPs
    assert sizes[0] == sizes[1]
    assert sizes[3] - sizes[2] >= 16 * 2 * 2 * 8  # 16 more blocks, weights at least
    whole = [MemoryCase(size, "whole", NETWORK).counts().state for size in (16, 32)]
    assert whole[1] - whole[0] == 16 * BLOCK_WIDTH
    assert MemoryCase(16, "short", NETWORK).counts().state == (3 + 2) * BLOCK_WIDTH
