"""Cases made by hand: what is timed, and what is counted."""

from dataclasses import dataclass, replace
from importlib import import_module
from time import process_time

import pytest
import torch

from icgd.pipeline import compile
from icgd.problems.oracles import predict
from icgd_papers.studies.cost_cases import AbstractCase, Counts, Measured, Network, counted, measure

NETWORK = Network(depth=3, width=4, n_examples=5, seed=0)
MODULE = import_module("icgd_papers.studies.cost_cases")


@dataclass(frozen=True)
class Case(AbstractCase):
    """A product of 2 x 2 matrices a step, after a set-up of one."""

    size: int
    reason: str | None = None
    axis: str = "size"
    name: str = "product"
    backend: str = "dense"
    network: Network = NETWORK
    n_steps: tuple[int, int] = (1, 3)
    n_counted: tuple[int, int] = (1, 3)

    def why_not(self) -> str | None:
        return self.reason

    def counts(self) -> Counts:
        return Counts(16, 10, 4)

    def job(self, n_steps):
        def product():
            matrix = torch.eye(2, dtype=torch.float64)
            for _ in range(1 + n_steps):
                matrix = matrix @ matrix

        return product


def test_set_up_is_neither_counted_nor_timed(monkeypatch):
    # of a warm-up and two rounds with jobs of 1 and 3 steps: 5 and 9, then 6 and 8 seconds
    seconds = {(0, 1): 5.0, (0, 3): 9.0}, {(0, 1): 6.0, (0, 3): 8.0}
    monkeypatch.setattr(MODULE, "interleaved_seconds", lambda *given: list(seconds))
    assert measure([Case(2)], {"dense": 2}, is_counted=True) == [Measured(1.5, 16, 64 + 80)]


def test_counts_hold_the_weights_that_a_job_finds():
    assert counted(Case(2)) == (16, 2 * 4 * 8 + 10 * 8)  # two matrices at a time, and weights


def test_a_case_that_cannot_be_measured_says_why_and_is_not_run(monkeypatch):
    def job(case, n_steps):
        raise AssertionError

    monkeypatch.setattr(Case, "job", job)
    measured = measure([Case(2, "too large")], {"dense": 1}, is_counted=True)
    assert measured == [Measured(None, None, None, "too large")]


def test_a_disturbed_clock_gives_no_time(monkeypatch):
    turns = [{(0, 1): 5.0, (0, 3): 4.0}]
    monkeypatch.setattr(MODULE, "interleaved_seconds", lambda *given: turns)
    assert measure([Case(2)], {"dense": 1}, is_counted=False) == [Measured()]


def test_each_backend_has_its_own_rounds(monkeypatch):
    given = []

    def timed(jobs, rounds, clock):
        given.append((len(jobs), rounds, clock))
        return [dict.fromkeys(jobs, 1.0)]

    monkeypatch.setattr(MODULE, "interleaved_seconds", timed)
    cases = [Case(2), Case(3, backend="fused"), Case(4)]
    measure(cases, {"dense": 3, "fused": 9}, is_counted=False)
    assert given == [(4, 3, process_time), (2, 9, process_time)]


@pytest.mark.parametrize(
    ("flops", "weights", "reason"),
    [
        (10**10, 2**28, None),
        (2 * 10**10, 2**27, "counted only: 2.0e+10 FLOPs a step, 1.0 GiB of weights"),
        (10, 2**29, "counted only: 1.0e+01 FLOPs a step, 4.0 GiB of weights"),
    ],
)
def test_dense_steps_beyond_the_limits_are_counted_only(flops, weights, reason):
    assert Counts(flops, weights, 0).objection == reason


def test_no_signal_fades_in_a_deep_network():
    deep = Network(depth=64, width=8, n_examples=4, seed=0)
    compiled = compile(deep.problem(1), n_steps=1, construction="cot-network")
    task = deep.task(compiled)
    outputs = predict(compiled.problem.network, task.initial, task.x)
    assert 1e-6 < outputs.min() <= outputs.max() <= 1.0


def test_the_box_is_one_over_the_width_unless_one_is_given():
    assert NETWORK.problem(None).gradient_step.box == 0.25
    assert replace(NETWORK, box=1.0).problem(2).gradient_step.box == 1.0
    assert NETWORK.problem(2).network.widths == (4, 4, 4, 4)
