"""Chains by both generators, as executors and block by block."""

from dataclasses import replace

import pytest
import torch

from icgd.backends.chain import (
    GENERATORS,
    Chain,
    DenseGenerator,
    FusedGenerator,
    make_chain,
    run_chain,
)
from icgd.backends.recorder import recorded_block
from icgd.backends.run import RunOptions
from icgd.errors import (
    InterruptedRunError,
    LayoutError,
    OverflowedRunError,
    SettingError,
    UnknownNameError,
)
from icgd.problems import oracles as network
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep, MomentumStep
from icgd.problems.problem import Problem
from tests.backends.chain_cases import problem_of, program_of, task_of
from tests.contracts.executor import ExecutorContract

PROBLEMS = {
    "one layer": problem_of(MLP((3, 2), "identity")),
    "two layers": problem_of(MLP((2, 4, 1), "relu"), step_size=0.5),
    "kinked output": problem_of(MLP((3, 3, 4, 2), "relu", "relu"), step_size=0.5),
    "leaky, batches": problem_of(MLP((3, 4, 4, 2), "leaky_relu"), batch_size=2, step_size=0.5),
    "small box": problem_of(MLP((3, 4, 2), "relu"), batch_size=5, step_size=2.0, box=0.6),
    "linear units": problem_of(MLP((2, 3, 2), "identity", "relu"), batch_size=3),
    "biases": problem_of(MLP((3, 2, 4, 1), "leaky_relu", biases=True), 2, step_size=0.5),
    "linear, biases": problem_of(MLP((2, 3, 2), "identity", biases=True), step_size=0.2),
    "huber": problem_of(MLP((3, 4, 2), "relu", "relu"), 2, loss="huber", step_size=0.5, box=9.0),
    "classes": problem_of(MLP((3, 5, 4), "relu"), 2, loss="cross_entropy", step_size=0.5),
    "classes, biases": problem_of(MLP((2, 3), biases=True), 5, loss="cross_entropy", step_size=0.5),
}
SMOOTH = {  # in a small box, whose tables are cheap
    "r(0) is not 0": problem_of(MLP((3, 2, 4, 1), "sigmoid"), 5, step_size=0.5, box=1.0),
    "grows like a line": problem_of(MLP((2, 3, 1), "softplus"), 2, step_size=0.2, box=1.0),
    "two smooth ones": problem_of(MLP((2, 3, 1), "gelu", "sigmoid"), 2, step_size=0.5, box=1.0),
    "smooth, biases": problem_of(MLP((2, 1, 2, 1), "sigmoid", biases=True), 3, box=1.0),
    "smooth, kinked": problem_of(MLP((2, 2, 1), "silu", "relu"), loss="huber", box=1.0),
    "logistic": problem_of(MLP((2, 3, 2), "relu"), 5, loss="logistic", step_size=0.5, box=1.0),
    "smooth, classes": problem_of(
        MLP((2, 4, 3), "tanh", biases=True), 2, loss="cross_entropy", step_size=0.5, box=1.0
    ),
    "smooth, logistic": problem_of(MLP((3, 4, 1), "tanh"), 1, loss="logistic", box=1.0),
}
PROBLEMS |= SMOOTH
RELU = problem_of(MLP((3, 4, 2), "relu", biases=True))
UPDATES = {
    "decay": MomentumStep(0.5, 3.0, 2, momentum=0.0, weight_decay=0.3, gradient_scale=2.0),
    "all decays": MomentumStep(0.5, 3.0, 2, momentum=0.0, weight_decay=2.0),
    "momentum": MomentumStep(0.3, 3.0, 2, momentum=0.8),
    "momentum, decay, clipped": MomentumStep(1.0, 0.6, 5, momentum=1.5, weight_decay=0.2),
    "dampening": MomentumStep(0.3, 3.0, 1, momentum=0.8, dampening=0.5, weight_decay=0.1),
    "nesterov": MomentumStep(0.3, 3.0, 2, momentum=0.8, nesterov=True, weight_decay=0.1),
    "schedule": GradientStep((0.5, 0.25, 0.0, 0.25), 3.0, 2),
    "schedule, nesterov": MomentumStep((0.0, 0.1, 0.2, 0.3), 3.0, 3, nesterov=True),
}
PROBLEMS |= {name: replace(RELU, update=update) for name, update in UPDATES.items()}
TOLERANCE = {"fused": 1e-14, "literal": 1e-11, "dense": 1e-11}
LOOKED_UP = 1e-11
"""What look-ups are off by."""

over_problems = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
over_backends = pytest.mark.parametrize("backend", GENERATORS)

PROBLEM = PROBLEMS["leaky, batches"]


class TestChain(ExecutorContract):
    traced = ("first", "weights")
    at_first, per_step = 3, 6

    def task(self) -> Task:
        return task_of(PROBLEM)

    def overflowing(self) -> None:
        return None

    def make(self, n_steps: int, task: Task, options: RunOptions) -> Chain:
        return make_chain(program_of(PROBLEM, n_steps), task, options, backend="fused")


@over_problems
@over_backends
def test_every_round_is_a_step_of_stochastic_gradient_descent(problem, backend):
    task = task_of(problem)
    run = run_chain(program_of(problem), task, backend=backend)
    real = problem.oracle.train(task, 4)
    tolerance = LOOKED_UP if problem in SMOOTH.values() else TOLERANCE[backend]
    assert (real[-1] - real[0]).abs().max() > 1e-2
    assert (run.parameters - real).abs().max() <= tolerance
    predicted = problem.oracle.predict(task, real[-1])
    assert (run.predictions - predicted).abs().max() <= tolerance


@over_backends
@pytest.mark.parametrize("output", ["identity", "leaky_relu"])
def test_the_huber_loss_passes_back_no_more_than_1(output, backend):
    """p = 2.5 * 2 and y = 0, so that w moves by 0.1 / 2 * 1 * 2."""
    problem = problem_of(MLP((1, 1), "relu", output), loss="huber")
    task = as_task(problem, [[2.0]], [[0.0]], initial=[2.5])
    run = run_chain(program_of(problem, 1), task, backend=backend)
    assert run.parameters.flatten().tolist() == pytest.approx([2.5, 2.4], abs=1e-12)


@over_backends
@pytest.mark.parametrize("name", ["leaky, batches", "smooth, biases"])
def test_a_batch_of_tasks_is_each_of_them(name, backend):
    problem = PROBLEMS[name]
    batch, program = task_of(problem, tasks=(2,)), program_of(problem, 2)
    together = run_chain(program, batch, RunOptions(program.rows.names), backend=backend)
    real = problem.oracle.train(batch, 2)
    tolerance = LOOKED_UP if problem in SMOOTH.values() else TOLERANCE[backend]
    assert (together.parameters - real).abs().max() <= tolerance
    assert together.predictions.shape == (2, 3, problem.network.output_width)
    blocks = 3 + 2 * 6  # depth 3: of the prompt, and of two rounds
    for row, recorded in together.trace.items():
        assert recorded.shape == (2, blocks, 1, program.rows.slot(row).width)


@over_backends
def test_the_memory_changes_no_number(backend):
    task, program = task_of(PROBLEM), program_of(PROBLEM, 3)
    short, whole = (
        run_chain(program, task, RunOptions(("first",)), backend=backend, memory=memory)
        for memory in ("short", "whole")
    )
    assert torch.equal(short.parameters, whole.parameters)
    assert torch.equal(short.trace["first"], whole.trace["first"])


def test_the_short_memory_keeps_what_the_mask_can_reach():
    task, program = task_of(PROBLEM), program_of(PROBLEM, 3)
    kept = {}
    for memory in ("short", "whole"):
        chain = Chain(program, task, GENERATORS["fused"](program, task.x), memory, ())
        assert len(list(chain.rounds())) == 3
        kept[memory] = sorted(chain.blocks)
    assert kept == {"short": list(range(14, 19)), "whole": list(range(-2, 19))}


@over_backends
def test_a_trace_holds_every_block(backend):
    """Depth 3: B_3 B_2 B_1 of the prompt, then F_1 F_2 F_3 B_3 B_2 B_1."""
    task, program = task_of(PROBLEM), program_of(PROBLEM, 1)
    options = RunOptions(("is_forward", "first", "flat"))
    trace = run_chain(program, task, options, backend=backend).trace
    assert trace["is_forward"].flatten().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    states = network.forward(PROBLEM.network, task.initial, task.x[:2])
    for block, outputs in zip((3, 4, 5), states.outputs[1:], strict=True):
        row = trace["first"][block, 0].view(4, 2)[: outputs.shape[-1]]
        torch.testing.assert_close(row.T, outputs, rtol=0, atol=1e-11)
    assert torch.equal(trace["flat"][3, 0].view(4, 2).T >= 1, states.preactivations[0] <= 0)
    assert not trace["flat"][5].any(), "the output is linear"


def test_without_history_the_ends_are_kept():
    task, program = task_of(PROBLEM), program_of(PROBLEM)
    ends = run_chain(program, task, RunOptions(history=False)).parameters
    assert torch.equal(ends, run_chain(program, task).parameters[[0, -1]])
    assert torch.equal(run_chain(program_of(PROBLEM, 0), task).parameters, task.initial[None])


def test_an_interrupted_chain_leaves_its_whole_rounds():
    task, program = task_of(PROBLEM), program_of(PROBLEM)

    def stop(done: int, total: int) -> None:
        assert total == 4
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match="after 2 of 4 steps") as caught:
        run_chain(program, task, RunOptions(on_progress=stop))
    assert isinstance(caught.value, KeyboardInterrupt)
    assert "with the examples from number 4 (counted from 0) first" in str(caught.value)
    whole = run_chain(program_of(PROBLEM, 2), task)
    assert torch.equal(caught.value.partial.parameters, whole.parameters)
    assert torch.equal(caught.value.partial.predictions, whole.predictions)


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_chain_survives_queries_that_leave_the_grid():
    problem = problem_of(MLP((1, 1)), box=100.0)
    task = as_task(problem, [[0.1]], [[0.0]], queries=[[2.0]], initial=[99.0])
    task = replace(task, queries=10_000 * task.queries)
    with pytest.raises(InterruptedRunError, match="after 1 of 4 steps") as caught:
        run_chain(program_of(problem), task, RunOptions(("weights",), on_progress=_interrupt))
    partial = caught.value.partial
    assert partial.parameters.flatten().tolist() == pytest.approx([99.0, 99.0 - 0.1 * 0.99])
    assert partial.predictions.shape == (0, 1)
    assert partial.trace["weights"].flatten().tolist() == pytest.approx([99.0, 99.0, 98.901])


def test_predictions_that_are_interrupted_are_made_again_unless_that_is_too(monkeypatch):
    task, program = task_of(PROBLEM), program_of(PROBLEM, 2)
    whole, predict = run_chain(program, task), Chain.predictions
    for n_interrupts, expected in ((1, whole.predictions), (2, whole.predictions[:0])):
        tries = [_interrupt] * n_interrupts + [predict]
        monkeypatch.setattr(Chain, "predictions", lambda *args, tries=tries: tries.pop(0)(*args))
        with pytest.raises(InterruptedRunError, match="after 2 of 2 steps") as caught:
            run_chain(program, task, RunOptions(history=False))
        assert torch.equal(caught.value.partial.parameters, whole.parameters[[0, -1]])
        assert torch.equal(caught.value.partial.predictions, expected)


def test_a_chain_that_is_interrupted_before_it_starts_leaves_the_initial_weights(monkeypatch):
    task = task_of(PROBLEM)
    monkeypatch.setitem(GENERATORS, "fused", _interrupt)
    with pytest.raises(InterruptedRunError, match="after 0 of 4 steps") as caught:
        run_chain(program_of(PROBLEM), task)
    assert torch.equal(caught.value.partial.parameters, task.initial[None])
    assert caught.value.partial.predictions.shape == (0, 2)


def test_a_trace_that_is_interrupted_ends_with_a_whole_round(monkeypatch):
    """A round is 6 blocks after 3 of the prompt; block 10 is the fourth of the second round."""
    task, program, keep = task_of(PROBLEM), program_of(PROBLEM), Chain.keep

    def keep_until_10(chain, number, block):
        keep(chain, number, block)
        if number == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(Chain, "keep", keep_until_10)
    with pytest.raises(InterruptedRunError, match="after 1 of 4 steps") as caught:
        run_chain(program, task, RunOptions(("weights",)))
    recorded = caught.value.partial.trace["weights"]
    first_layer = caught.value.partial.parameters[-1, :12].view(4, 3)
    assert len(recorded) == 9
    assert torch.equal(recorded[8, 0].view(4, 4)[:, :3], first_layer)


@over_backends
def test_a_chain_stops_after_a_whole_pass_of_still_rounds(backend):
    """Examples 0 and 1 move nothing; example 2 takes w half the way to 2, at last by 0.0625."""
    problem = problem_of(MLP((1, 1)), step_size=0.5)
    x, y = [[0.0], [0.0], [1.0]], [[0.0], [0.0], [2.0]]
    task = as_task(problem, x, y, initial=[1.0])
    run = run_chain(program_of(problem, 90), task, RunOptions(stop_below=0.1), backend=backend)
    assert run.stopped_after == 12
    assert run.parameters[::3].flatten().tolist() == pytest.approx([1, 1.5, 1.75, 1.875, 1.9375])


@over_backends
def test_momentum_beyond_what_gates_close_stops_the_run(backend):
    """It is 6 in the first round, and then grows a million times in each."""
    update = MomentumStep(0.1, 1.0, 1, momentum=1e6)
    problem = replace(problem_of(MLP((1, 1))), update=update)
    task = as_task(problem, [[2.0]], [[-1.0]], initial=[1.0, 0.0])
    program = program_of(problem, 5)
    with pytest.raises(OverflowedRunError, match=r"The momentum of a weight is 6\S*e\+24 after 5"):
        run_chain(program, task, backend=backend)
    early = run_chain(program_of(problem, 4), task, backend=backend).parameters
    momentum = problem.oracle.train(task, 4)[:, 1]
    torch.testing.assert_close(early[:, 1], momentum, rtol=1e-11, atol=1e-11)
    far = replace(task, initial=torch.tensor([1.0, 1e30]).double())
    with pytest.raises(OverflowedRunError, match=r"The momentum of a weight is 1e\+30 after 0"):
        run_chain(program, far, backend=backend)


@over_backends
def test_the_code_of_a_rule_travels_down_the_layers(backend):
    """The rounds take rules 0, 1, 2 and 1; the prompt has the bits beside the labels."""
    problem = PROBLEMS["schedule"]
    program, task = program_of(problem), task_of(problem)
    assert program.rules == (0, 1, 2, 1)
    names = ("bit_1", "bit_2", "no_bit_1", "no_bit_2")
    trace = run_chain(program, task, RunOptions(names), backend=backend).trace
    bits = torch.cat([trace[name].flatten(-2) for name in names], dim=-1).tolist()
    nothing, codes = [0.0] * 4, ([0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1])
    rounds = [row for code in codes for row in (nothing, nothing, code, code)]
    assert bits == [nothing, nothing, *rounds]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"backend": "sparse"}, UnknownNameError, "Unknown backend 'sparse'; known are fused, lit"),
        ({"memory": "long"}, SettingError, "memory must be one of short, whole, got 'long'"),
        ({"options": RunOptions(("third",))}, LayoutError, "no slot 'third'"),
    ],
)
def test_wrong_settings_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        run_chain(program_of(PROBLEM), task_of(PROBLEM), **settings)


@pytest.mark.parametrize(
    ("activation", "leaves"),
    [
        ("relu", "delta of block 3 (backward 2 of round 1) reaches 10000"),
        ("gelu", "z of block 2 (forward 2 of round 1) reaches 5000"),
    ],
)
@pytest.mark.parametrize("backend", GENERATORS)
def test_what_leaves_the_grid_is_named(backend, activation, leaves):
    """Layer 1 gives 50, layer 2 100 * 50, and the slope of the loss is twice that.

    Heads of relu networks ask for delta. Those of gelu have all of z in their scores.
    """
    target = MLP((1, 1, 1), activation)
    problem = Problem(target, "squared", GradientStep(0.1, 100.0, 1), Domain(100.0, 1.0))
    task = as_task(problem, [[50.0]], [[0.0]], initial=torch.tensor([1.0, 100.0]).double())
    with pytest.raises(OverflowedRunError) as caught:
        run_chain(program_of(problem), task, backend=backend)
    assert str(caught.value) == (
        f"Row {leaves}, but the grid that its heads read ends at 4096. Use a smaller step size, "
        "box or domain."
    )


@pytest.mark.parametrize("backend", GENERATORS)
def test_a_query_that_leaves_the_grid_is_named(backend):
    """No step of training is large: the input is 0."""
    target = MLP((1, 1, 1), "relu")
    problem = Problem(target, "squared", GradientStep(0.1, 100.0, 1), Domain(100.0, 1.0))
    task = as_task(problem, [[0.0]], [[0.0]], queries=[[50.0]], initial=[100.0, 1.0])
    with pytest.raises(OverflowedRunError) as caught:
        run_chain(program_of(problem, 2), task, backend=backend)
    assert str(caught.value).startswith(
        "Row inputs of block 2 (forward 2 at the queries) reaches 5000,"
    )


@pytest.mark.parametrize("backend", GENERATORS)
def test_what_nobody_reads_may_leave_the_grid(backend):
    """B_1 passes back 6 * 1000 * 4, beyond the grid's 4096, where there is no layer below."""
    problem = Problem(MLP((1, 6)), "squared", GradientStep(0.1, 1000.0, 1), Domain(1e-3, 1.0))
    y, initial = -torch.ones(1, 6).double(), torch.full((6,), 1000.0).double()
    task = as_task(problem, [[1e-3]], y, initial=initial)
    run = run_chain(program_of(problem, 2), task, RunOptions(("second",)), backend=backend)
    real = problem.oracle.train(task, 2)
    assert run.trace["second"].abs().max() > 20000
    assert (run.parameters - real).abs().max() < 1e-11


@pytest.mark.parametrize("backend", GENERATORS)
def test_what_is_not_a_number_is_named_wherever_it_is(backend):
    """Not even B_1 may pass it back: weights that are 0 times it are not 0."""
    problem = Problem(MLP((1, 1)), "squared", GradientStep(0.1, 1.0, 1), Domain(1.0, 1.0))
    task = as_task(problem, [[1.0]], [[0.0]], initial=[1.0])
    generator = GENERATORS[backend](program_of(problem), task.x)
    back = next(
        part
        for layer in generator.program.layers
        for part in layer.instructions
        if part.writes() == ("back",)
    )
    with pytest.raises(OverflowedRunError, match=r"backward 1 of round 1\) reaches nan"):
        generator.require_reach(back, torch.tensor([torch.nan]), 2, at_queries=False)


def test_a_block_is_a_column_of_its_rows():
    program = program_of(problem_of(MLP((2, 2), "relu")))
    generator = DenseGenerator(program, torch.zeros(1, 2, dtype=torch.float64))
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    block = generator.encode({"weights": weights, "is_backward": 1.0})
    assert block.tolist() == [[0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 1, 0]]
    assert torch.equal(generator.row(block, "weights"), weights)


def test_one_block_of_layers_serves_networks_of_every_depth():
    """The weights depend on the width, not on the number of layers."""
    sizes = set()
    for depth in (2, 5):
        program = program_of(problem_of(MLP((3,) * (depth + 1), "relu")))
        layers = DenseGenerator(program, torch.zeros(1, 3, dtype=torch.float64)).layers
        sizes.add(sum(parameter.numel() for parameter in layers.parameters()))
    assert len(sizes) == 1


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
        slope = block_of({}, 3 + number)["first"].tanh()
        block["slope"], block["part"] = slope, block["second"]
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


@over_problems
@pytest.mark.parametrize("tasks", [(), (2,)], ids=["one task", "batch"])
def test_rounds_as_a_whole_are_those_block_by_block(problem, tasks):
    task, program = task_of(problem, tasks=tasks), program_of(problem, 4)
    chains = [Chain(program, task, FusedGenerator(program, task.x), "short", ()) for _ in range(2)]
    whole, by_block = list(chains[0].whole_rounds()), list(chains[1].rounds())
    assert (by_block[-1] - task.initial).abs().max() > 1e-2
    for ours, theirs in zip(whole, by_block, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_a_product_beyond_its_lattice_is_found_in_the_round_where_it_is():
    """Both ways name the same block: the first one whose product is too large."""
    problem = problem_of(MLP((1, 1, 1), "relu"), step_size=0.5, box=4.0)
    task = as_task(problem, [[1.0], [1.0]], [[0.0], [0.0]], initial=[2.0, 2.0])
    task = replace(task, x=torch.tensor([[1.0], [1e9]], dtype=torch.float64))
    program, messages = program_of(problem, 2), []
    for take in (Chain.whole_rounds, Chain.rounds):
        chain = Chain(program, task, FusedGenerator(program, task.x), "short", ())
        with pytest.raises(OverflowedRunError) as caught:
            list(take(chain))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "of round 2" in messages[0]
