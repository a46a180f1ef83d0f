import torch

import icgd
from icgd.certificates.bounds import drift_of
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.streams import Streams, split
from tests.cases import make_case

CASE = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", box=0.5, domain=icgd.Domain(1.0, 1.0))


def streams_of(construction: str, backend: str) -> Streams:
    program = icgd.compile(CASE.problem, construction, n_steps=1).program
    return Streams(program, Arithmetic.of(torch.float64, 7, backend))


def test_only_registers_of_the_dense_transformer_hold_copies_of_the_weights():
    found = {
        (construction, backend): streams_of(construction, backend).have_copies
        for construction in ("relu-stack", "softmax-stack")
        for backend in ("fused", "dense")
    }
    assert [place for place, has in found.items() if has] == [("softmax-stack", "dense")]


def test_weights_are_split_into_the_matrices_of_the_layout():
    task, layout = CASE.task(), streams_of("relu-stack", "fused").program.layout
    parts = split(layout, Enclosure.common(Interval.point(task.initial)))
    matrices = CASE.problem.network.matrices(task.initial)
    assert [part.exact.low.tolist() for part in parts.values()] == [m.tolist() for m in matrices]
    assert all(part.is_common for part in parts.values())


def test_a_block_leaves_the_exact_step_within_its_error():
    task = CASE.task()
    for backend in ("fused", "dense"):
        streams = streams_of("softmax-stack", backend)
        weights = Enclosure.common(Interval.point(task.initial))
        data = {"x": Interval.point(task.x), "y": Interval.point(task.y)}
        after = streams.after(streams.program.block, data, weights, torch.zeros_like(task.initial))
        real = CASE.problem.network.matrices(CASE.problem.oracle.step(task, task.initial))
        for name, matrix in zip(split(streams.program.layout, weights), real, strict=True):
            assert bool((after[name].exact.low <= matrix).all())
            assert bool((matrix <= after[name].exact.high).all())
            assert float(after[name].error.max()) < 1e-9
            assert (drift_of(name) in after) == streams.have_copies
