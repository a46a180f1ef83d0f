"""The cost of a gradient step: formulas against what torch does, exponents, and the figure."""

from dataclasses import replace
from time import process_time

import polars as pl
import pytest
import torch

from icgd.backends.prompt import read_learnt
from icgd.pipeline import compile
from icgd.problems.oracles import predict
from icgd_papers.figure import Job
from icgd_papers.studies import cost_cases, cot_cost
from icgd_papers.studies.cost_cases import (
    CONSTRUCTIONS,
    MEMORIES,
    READINGS,
    Case,
    Counts,
    Network,
    built,
    chain_cases,
    chain_of,
    counted,
    measure,
    reading_job,
    step_cases,
    work_of,
    written,
)
from icgd_papers.studies.cot_cost import best_points, crossing, exponent, fitted_exponent

NETWORK = Network(depth=3, width=2, n_examples=4, seed=0)


def steps(construction, network=NETWORK, is_run=True):
    return step_cases("depth", network.depth, construction, network, 8, is_run=is_run)


# What torch does in a job.


def test_every_product_has_two_operations_for_each_term():
    matrix = torch.ones(4, 5, dtype=torch.float64)
    weights = torch.ones(3, 6, 5, dtype=torch.float64)
    total = torch.ones(4, 4, dtype=torch.float64)
    batch = torch.ones(2, 4, 4, dtype=torch.float64)

    def job():
        _ = matrix @ matrix.mT  # 4 x 5 x 4
        torch.einsum("tm,hdm->htd", matrix, weights)  # 4 x 5 x 18
        total.addmm_(matrix, matrix.mT)  # in place
        batch.baddbmm_(batch, batch)  # 2 x 4 x 4 x 4

    assert work_of(job).flops == 2 * (4 * 5 * 4 + 4 * 5 * 18 + 4 * 5 * 4 + 2 * 4 * 4 * 4)


def test_the_peak_is_what_is_held_at_a_time_and_not_what_was_given():
    matrix, buffer = torch.ones(4, 5, dtype=torch.float64), torch.zeros(100)

    def job():
        first = matrix * 2  # 160 bytes
        second = first + 1  # 320 held
        del first
        _ = second.view(20)  # a view holds nothing
        third = second * second  # 320 again
        del second, third
        return torch.zeros(10, dtype=torch.float64)  # 80

    work = work_of(job)
    assert (work.flops, work.peak_bytes) == (0, 320)
    assert work_of(lambda: buffer.add_(1).mul_(2)).peak_bytes == 0


# Cases by hand.


def product_case(backend="dense", why_not=None):
    """Return a case with a product of 2 x 2 matrices a step, after a set-up of one."""

    def job(n_steps):
        def products():
            matrix = torch.eye(2, dtype=torch.float64)
            for _ in range(1 + n_steps):
                matrix = matrix @ matrix

        return products

    counts = Counts(16, 10, 4)
    line = ("size", 2, "product", backend, NETWORK)
    return Case(*line, counts, job, (1, 3), (1, 3), counts.weights, why_not)


def test_set_up_is_neither_counted_nor_timed(monkeypatch):
    # two rounds with jobs of 1 and 3 steps: 5 and 9, then 6 and 8 seconds
    rounds = [{(0, 1): 5.0, (0, 3): 9.0}, {(0, 1): 6.0, (0, 3): 8.0}]
    monkeypatch.setattr(cost_cases, "interleaved_seconds", lambda *_: rounds)
    [result] = measure([product_case()], {"dense": 2}, is_counted=True)
    assert result == {"seconds": 1.5, "flops": 16, "bytes": 2 * 4 * 8 + 10 * 8}
    [result] = measure([product_case(why_not="too large")], {"dense": 2}, is_counted=True)
    assert set(result.values()) == {None}
    monkeypatch.setattr(cost_cases, "interleaved_seconds", lambda *_: [{(0, 1): 5.0, (0, 3): 4.0}])
    [result] = measure([product_case()], {"dense": 1}, is_counted=False)
    assert result["seconds"] is None  # the clock was disturbed


def test_each_backend_has_its_own_rounds(monkeypatch):
    calls = []

    def timed(jobs, rounds, clock):
        calls.append((len(jobs), rounds, clock))
        return [dict.fromkeys(jobs, 1.0)]

    monkeypatch.setattr(cost_cases, "interleaved_seconds", timed)
    cases = [product_case(), product_case("fused"), product_case()]
    measure(cases, {"dense": 3, "fused": 9}, is_counted=False)
    assert calls == [(4, 3, process_time), (2, 9, process_time)]


# Steps of constructions.


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_flops_by_formula_are_what_torch_does(construction):
    dense, fused = steps(construction)
    flops, size = counted(dense)
    assert flops == pytest.approx(dense.counts.flops, rel=0.02)  # but for biases, slot products
    assert dense.counts.bytes <= size <= 4 * dense.counts.bytes  # without scores, hidden units
    flops, size = counted(fused)
    n_examples = 1 if construction.endswith("b = 1") else 4
    products = 3 * (3 * 2 * 2) - 2 * 2  # all but W_1^T delta_1
    assert flops == fused.counts.flops == 2 * n_examples * products
    assert 0.5 <= size / fused.counts.bytes <= 4


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_the_job_is_a_gradient_step_of_the_construction(construction, backend):
    compiled = built(NETWORK, construction, 1)
    task = NETWORK.task(compiled)
    real = compiled.problem.oracle.train(task, 1)[-1]
    result = steps(construction)[backend == "fused"].job(1)()
    if backend == "fused":
        learnt = result.parameters[-1]
    elif construction.startswith("cot"):
        (learnt,) = result
    else:
        learnt = read_learnt(compiled.stack, task, result)
    assert (learnt - real).abs().max() <= 1e-9
    assert (learnt - task.initial).abs().max() > 1e-3


def test_counts_of_a_stack_grow_with_the_square_of_depth_and_those_of_a_chain_linearly():
    deep = Network(16, 2, 4, 0), Network(32, 2, 4, 0)
    relu, chain = (
        [steps(name, network)[0].counts for network in deep]
        for name in ("relu-stack", "cot-network")
    )
    assert relu[1].flops / relu[0].flops == pytest.approx(4, rel=0.1)
    assert relu[1].weights / relu[0].weights == pytest.approx(4, rel=0.1)
    assert chain[1].flops == 2 * chain[0].flops
    assert chain[1].weights == chain[0].weights


def test_a_fused_job_is_timed_without_its_set_up_and_a_dense_one_has_none():
    assert [case.n_steps for case in steps("cot-network")] == [(0, 1), (2, 4)]  # 8 layers, 3 a step
    assert steps("relu-stack")[1].n_steps == (42, 84)  # 16 times as many


def test_what_cannot_be_built_or_is_too_large_says_so():
    wide = Network(depth=16, width=8, n_examples=8, seed=0, box=1.0)
    refused = steps("relu-stack", wide)[0]
    assert "its preactivations can reach" in refused.why_not
    assert refused.counts is None
    assert steps("cot-network, b = 1", wide)[0].why_not is None
    assert steps("cot-network", is_run=False)[1].why_not == "counted only"
    large = steps("softmax-stack", Network(depth=4, width=64, n_examples=8, seed=0))
    assert large[0].why_not.startswith("counted only: 8.8e+11 FLOPs")
    assert large[1].why_not is None


def test_no_signal_fades_in_a_deep_network():
    deep = Network(depth=64, width=8, n_examples=4, seed=0)
    compiled = compile(deep.problem(1), n_steps=1, construction="cot-network")
    task = deep.task(compiled)
    outputs = predict(compiled.problem.network, task.initial, task.x)
    assert 1e-6 < outputs.min() <= outputs.max() <= 1.0
    assert compiled.problem.gradient_step.box == 1 / 8


# Blocks of chains.


def test_all_readings_write_the_same_block_bit_for_bit():
    network = replace(NETWORK, depth=2)
    chain, rows = written(network, 40)
    blocks = [reading_job(network, 40, reading)() for reading in READINGS]
    assert torch.equal(blocks[0], blocks[1])
    assert torch.equal(blocks[0], blocks[2])
    # it is the last block of a round, B_1, whose weights were trained
    weights = chain.generator.row(blocks[0], "weights")
    before = chain.generator.row(rows[-chain.program.mask.reach :][:1], "weights")
    assert chain.generator.row(blocks[0], "is_backward").item() == 1.0
    assert 1e-4 < (weights - before).abs().max() < 0.1


def test_reading_all_blocks_costs_their_number_and_a_whole_memory_grows():
    network = replace(NETWORK, depth=2)
    program = chain_of(network)
    width, reach = program.rows.width, program.mask.reach
    cases = {(case.name, case.size): case for case in chain_cases(network, (16, 32), (64,))}
    two, cached, again = (cases[name, 64] for name in READINGS)
    d_model = program.layout.width
    read = 2 * 4 * d_model * width + 4 * 64 * width
    for case, extra in ((cached, read), (again, read + 4 * 63 * d_model * width)):
        assert counted(case)[0] - counted(two)[0] == extra
        assert case.counts.flops - two.counts.flops == extra
    kept = (2 * 64 - reach) * width + 4 * d_model * width
    assert cached.counts.bytes - two.counts.bytes == kept * 8
    (short, long), (small, large) = ([cases[name, n] for n in (16, 32)] for name in MEMORIES)
    assert counted(short) == counted(long)
    assert counted(short)[0] == short.counts.flops == 3 * 2 * 2 - 2  # spares 8 in 4 blocks
    assert counted(large)[0] == large.counts.flops == 3 * 2 * 2
    assert large.counts.state - small.counts.state == 16 * width
    assert short.counts.state == (reach + 2) * width


# Lines of the figure.


def line(backend, n_measured=5):
    """Time grows like the size, FLOPs like its square, memory not at all; counts are all there."""
    sizes = (2, 4, 8, 16, 32)
    some = [size if i < n_measured else None for i, size in enumerate(sizes)]
    return pl.DataFrame(
        {
            "axis": "depth",
            "name": "cot-network",
            "size": sizes,
            "backend": backend,
            "seconds": [size and 0.5 * size for size in some],
            "flops_counted": [3 * size**2 for size in sizes],
            "flops_measured": [size and 4 * size**3 for size in some],
            "bytes_counted": 7,
            "bytes_measured": [size and 9 * size for size in some],
        }
    )


def test_dense_lines_are_counted_and_fused_ones_measured():
    assert best_points(line("dense", 2), "FLOPs")["cost"].to_list() == [12, 48, 192, 768, 3072]
    assert best_points(line("fused", 2), "FLOPs").rows() == [(2, 32), (4, 256)]
    assert exponent(best_points(line("fused", 1), "time")) is None


def test_exponents_are_those_of_the_four_largest_sizes():
    for rows, expected in (
        (line("dense", 3), ("1.00", "2-8", "2.00", "0.00", "4-32")),
        (line("fused"), ("1.00", "4-32", "3.00", "1.00", "4-32")),
    ):
        assert cot_cost.summarise(rows).row(0)[2:] == expected
    # logs to base 2: (0, 0), (1, 2), (2, 1): slope (0*(-1) + 1*1) / 2 = 1/2
    assert fitted_exponent([1, 2, 4], [1.0, 4.0, 2.0]) == pytest.approx(0.5, abs=1e-12)


def test_lines_cross_where_their_costs_are_equal():
    sizes = [2, 4, 8, 16, 32]
    squares = pl.DataFrame({"size": sizes, "cost": [float(n**2) for n in sizes]})
    above = pl.DataFrame({"size": [*sizes, 64], "cost": [10.0 * n for n in (*sizes, 64)]})
    assert crossing(squares, above) == (pytest.approx(10), pytest.approx(100))
    assert crossing(above, squares) is None  # it falls below, and never rises above


def test_a_row_has_the_median_of_its_turns_and_the_counts_of_the_first(monkeypatch):
    times = iter([3.0, 1.0, None])

    def measured(cases, rounds, *, is_counted):
        seconds, work = next(times), 7 if is_counted else None
        return [{"seconds": seconds, "flops": work, "bytes": work} for _ in cases]

    monkeypatch.setattr(cot_cost, "measure", measured)
    setting = replace(cot_cost.settings("smoke", 0)[0], n_turns=3)
    row = cot_cost.run(setting, Job()).row(0, named=True)
    assert (row["seconds"], row["fastest_turn"], row["slowest_turn"]) == (2.0, 1.0, 3.0)
    assert (row["flops_measured"], row["bytes_measured"]) == (7, 7)
