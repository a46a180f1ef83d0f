"""What every backend owes: subclass in tests/backends/test_<name>.py and name the backend."""

from functools import cache
from itertools import pairwise
from math import log

import pytest
import torch
from torch import Tensor

import icgd
from icgd.backends.run import AbstractBackend, Run, RunOptions
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import LayoutError
from icgd.problems import oracles as network
from icgd.problems.data import Task
from icgd.program.layout import Role
from icgd.program.stack import StackProgram
from tests import cases
from tests.cases import Case, batch_of, build, every_construction_on, exact_step, tasks_of

RELU_STACK, SOFTMAX_STACK = CONSTRUCTIONS["relu-stack"], CONSTRUCTIONS["softmax-stack"]
UNIVERSAL, RECURSION = CONSTRUCTIONS["universal"], CONSTRUCTIONS["recursion"]

STEP_TOLERANCE = {RELU_STACK: 2e-4, SOFTMAX_STACK: 1e-11, UNIVERSAL: 1e-10, RECURSION: 2e-4}
"""Of one step with 128 pieces; or with the registers for full accuracy, whose look-ups are proved
to 1e-11 and found right to 1e-12; or with 4 levels, from the levels, as the answers of a table are
rounded to 1e-10; or with 200 units, of which relus meet the logistic loss, and smooth ones the
corners of the huber loss and of the box, no better. A step of these cases moves a weight by more
than ten times that, so a backend that does not move, or moves the wrong way, cannot pass."""

PREDICTION_TOLERANCE = {
    RELU_STACK: 5e-4,
    SOFTMAX_STACK: 1e-11,
    UNIVERSAL: 1e-10,
    RECURSION: 1e-10,
}

FLOAT32_TOLERANCE = {
    RELU_STACK: (2e-4, 2e-4),
    SOFTMAX_STACK: (1e-4, 1e-4),
    UNIVERSAL: (1e-3, 1e-3),
    RECURSION: (1e-3, 1e-3),
}
"""Of weights and of predictions. softmax-stack divides the rounding of a softmax weight, 6e-8, by
the probe, which is 1 / 130 in these cases: 2e-5 a step are reached. The table of universal is a sum
of 1000 terms of up to 1e4."""

COPIES_TOLERANCE = {
    RELU_STACK: 1e-14,
    SOFTMAX_STACK: 1e-12,
    UNIVERSAL: 1e-14,
    RECURSION: 1e-12,
}
"""Of the weights' copies in all tokens. Registers add what they find in an exponential of their
own score, and that is not rounded alike."""

LEFT_OVER = {RECURSION: 1e-10}
"""What units leave of a slot that they wipe, or of a label that they should not touch; all other
constructions leave nothing."""


FLOAT32_DEFAULT, COPIES_DEFAULT = (2e-3, 5e-3), 1e-12
"""Of a construction that is in none of the tables: as large as the largest in them."""


def tolerance(case: Case, size: float) -> float:
    return 1e-11 if case.is_exact else size


def step_tolerance(construction: AbstractConstruction, case: Case) -> float:
    """What a step may err by: the table's number, or else what is proved of the run."""
    if construction in STEP_TOLERANCE:
        return tolerance(case, STEP_TOLERANCE[construction])
    return tolerance(case, proved_step_error(construction, case))


@cache
def proved_step_error(construction: AbstractConstruction, case: Case) -> float:
    """The largest bound on a step of the dense transformer's run on this case."""
    compiled, task = Compiled(case.problem, build(construction, case)), case.task()
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial, backend="dense")
    return float(report.step_bounds.max())


def prediction_tolerance(construction: AbstractConstruction, case: Case, weights: Tensor) -> float:
    """What a prediction may err by: the table's number, or else what its functions add up to.

    A layer passes on what errs below it, times at most the slope of its activation, 1.2, and the
    largest sum of a row of weights; it adds the error of its function.
    """
    if construction in PREDICTION_TOLERANCE:
        return tolerance(case, PREDICTION_TOLERANCE[construction])
    error, functions = 0.0, build(construction, case).functions
    added = max((f.error for f in functions if not f.name.endswith("'")), default=0.0)
    for rows, columns in case.problem.network.matrix_shapes:
        matrix, weights = weights[: rows * columns], weights[rows * columns :]
        error = added + 1.2 * float(matrix.view(rows, columns).abs().sum(1).max()) * error
    return tolerance(case, max(error, 1e-11))


def seen_by(
    construction: AbstractConstruction, case: Case, weights: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, ...]:
    """What the construction computes with: universal rounds every number to one of 4 levels."""
    if construction is not UNIVERSAL:
        return weights, x, y
    box, domain = case.problem.update.box, case.problem.domain
    return on_levels(weights, box), on_levels(x, domain.x), on_levels(y, domain.y)


def on_levels(values: Tensor, bound: float) -> Tensor:
    """The centre of that quarter of [-bound, bound] in which each value lies."""
    quarter = (2 * (values / bound + 1)).floor().clamp(max=3)
    return bound * ((quarter + 0.5) / 2 - 1)


FLAGS = ("is_example", "is_query")


def distance(a: Tensor, b: Tensor) -> float:
    """Largest distance, relative to the largest entry but at least absolute."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) if b.numel() else 0.0


@cache
def traced(backend: type[AbstractBackend], construction: AbstractConstruction, case: Case) -> Run:
    """A run with every slot recorded; many tests read the same one."""
    program = build(construction, case, pieces=32)
    return backend().run(program, case.task(), RunOptions(program.layout.names))


@cache
def untraced(backend: type[AbstractBackend], construction: AbstractConstruction, case: Case) -> Run:
    """The most accurate run; likewise."""
    return backend().run(build(construction, case), case.task())


class BackendContract:
    """Behaviour that does not depend on how a program is run."""

    def make_backend(self) -> AbstractBackend:
        raise NotImplementedError

    def run(self, program: StackProgram, task: Task, **settings: object) -> Run:
        return self.make_backend().run(program, task, RunOptions(**settings))

    def traced(self, construction: AbstractConstruction, case: Case) -> Run:
        return traced(type(self.make_backend()), construction, case)

    def untraced(self, construction: AbstractConstruction, case: Case) -> Run:
        return untraced(type(self.make_backend()), construction, case)

    @every_construction_on(cases.SMALL)
    def test_every_step_is_a_step_of_the_reference(self, construction, case):
        task = case.task()
        weights = self.untraced(construction, case).parameters
        assert weights.shape == (4, case.problem.target.n_parameters)
        for before, after in pairwise(weights):
            seen = seen_by(construction, case, before, task.x, task.y)
            truth = exact_step(case.problem, *seen)
            allowed = step_tolerance(construction, case)
            assert (truth - before).abs().max() > 10 * allowed
            assert (after - truth).abs().max() <= allowed

    @every_construction_on(cases.SMALL)
    def test_predictions_are_those_of_the_trained_network(self, construction, case):
        task = case.task()
        run = self.untraced(construction, case)
        weights, queries, _ = seen_by(construction, case, run.parameters[-1], task.queries, task.y)
        truth = network.predict(case.problem.target, weights, queries)
        assert distance(run.predictions, truth) <= prediction_tolerance(construction, case, weights)

    @every_construction_on(cases.SMALL)
    def test_the_first_weights_are_those_of_the_prompt(self, construction, case):
        run = self.untraced(construction, case)
        assert torch.equal(run.parameters[0], case.task().initial)

    @every_construction_on(cases.FEW)
    def test_without_steps_it_only_predicts(self, construction, case):
        task = case.task()
        run = self.run(build(construction, case, n_steps=0), task)
        assert torch.equal(run.parameters, task.initial[None])
        weights, queries, _ = seen_by(construction, case, task.initial, task.queries, task.y)
        truth = network.predict(case.problem.target, weights, queries)
        assert distance(run.predictions, truth) <= prediction_tolerance(construction, case, weights)

    @every_construction_on(cases.SMALL, cases.FEW)
    def test_a_batch_equals_its_tasks_one_by_one(self, construction, case):
        program = build(construction, case, pieces=32)
        batch = batch_of(case, n_tasks=3).task()
        together = self.run(program, batch)
        alone = [self.run(program, task) for task in tasks_of(batch)]
        assert distance(together.parameters, torch.stack([r.parameters for r in alone])) <= 1e-11
        assert distance(together.predictions, torch.stack([r.predictions for r in alone])) <= 1e-11

    @every_construction_on(cases.FEW)
    def test_the_trace_of_a_batch_is_that_of_its_tasks(self, construction, case):
        program = build(construction, case, pieces=32)
        names = program.layout.names
        batch = batch_of(case, n_tasks=2).task()
        together = self.run(program, batch, trace=names)
        alone = [self.run(program, task, trace=names) for task in tasks_of(batch)]
        for name in names:
            one_by_one = torch.stack([run.trace[name] for run in alone])
            assert distance(together.trace[name], one_by_one) <= 1e-11, name

    @every_construction_on(cases.SMALL, cases.FEW)
    def test_float32_is_close_to_float64(self, construction, case):
        program = build(construction, case, pieces=32, dtype="float32")
        single = self.run(program, case.task("float32"))
        double = self.run(program, case.task("float64"))
        assert single.parameters.dtype is single.predictions.dtype is torch.float32
        assert double.parameters.dtype is double.predictions.dtype is torch.float64
        weights, predictions = FLOAT32_TOLERANCE.get(construction, FLOAT32_DEFAULT)
        assert distance(single.parameters.double(), double.parameters) <= weights
        assert distance(single.predictions.double(), double.predictions) <= predictions

    @every_construction_on(cases.SMALL)
    def test_the_trace_has_every_slot_before_the_first_and_after_every_layer(
        self, construction, case
    ):
        program, task = build(construction, case, pieces=32), case.task()
        run = self.traced(construction, case)
        for slot in program.layout.slots:
            n_tokens = program.n_registers + task.n_tokens
            expected = (program.n_layers + 1, n_tokens, slot.width)
            assert run.trace[slot.name].shape == expected, slot.name
        layers = len(program.block)
        weights = [run.trace[slot.name] for slot in program.layout.having(Role.PARAMETER)]
        after_blocks = torch.cat(weights, dim=-1)[: 3 * layers + 1 : layers, 0]
        assert torch.equal(after_blocks, run.parameters)

    @every_construction_on(cases.SMALL, cases.FEW)
    def test_tracing_does_not_change_the_result(self, construction, case):
        plain = self.run(build(construction, case, pieces=32), case.task())
        traced = self.traced(construction, case)
        assert plain.trace == {}
        assert distance(traced.parameters, plain.parameters) <= 1e-11
        assert distance(traced.predictions, plain.predictions) <= 1e-11

    @every_construction_on(cases.SMALL)
    def test_scratch_is_zero_after_every_block(self, construction, case):
        program = build(construction, case, pieces=32)
        run, allowed = self.traced(construction, case), LEFT_OVER.get(construction, 0.0)
        for slot in program.layout.having(Role.SCRATCH):
            after_blocks = run.trace[slot.name][:: len(program.block)]
            assert len(after_blocks) == 4
            assert after_blocks.abs().max() <= allowed, slot.name
            assert run.trace[slot.name][-1].abs().max() <= allowed, slot.name
            assert run.trace[slot.name][: len(program.block)].abs().max() > 1e-6, slot.name

    @every_construction_on(cases.SMALL)
    def test_inputs_labels_and_constants_stay_as_they_are(self, construction, case):
        program, task = build(construction, case, pieces=32), case.task()
        trace = self.traced(construction, case).trace
        first = program.n_registers
        examples = slice(first, first + task.n_examples)
        queries = slice(examples.stop, None)
        inputs = torch.cat([task.x.new_zeros(first, task.x.shape[1]), task.x, task.queries])
        ones = torch.ones_like(inputs[:, :1])
        expected = {name: torch.zeros_like(ones) for name in (*FLAGS, *program.registers())}
        expected |= {"x": inputs, "one": ones, "log_examples": ones * log(task.n_examples)}
        expected["is_example"][examples] = 1.0
        expected["is_query"][queries] = 1.0
        expected["tokens_per_example"] = ones * task.n_tokens / task.n_examples
        expected["example_share"] = expected["tokens_per_example"] * expected["is_example"]
        for name, values in program.registers().items():
            expected[name][:first, 0] = torch.tensor(values, dtype=torch.float64)
        untouched = program.layout.having(Role.INPUT) + program.layout.having(Role.CONSTANT)
        for name in (slot.name for slot in untouched):
            assert torch.equal(trace[name], expected[name].expand_as(trace[name])), name
        labels = trace["y"][:, examples]
        assert torch.equal(labels[:-1], task.y.expand_as(labels[:-1]))
        assert (labels[-1] - task.y).abs().max() <= LEFT_OVER.get(construction, 0.0)
        assert not trace["y"][:-1, queries].any()
        assert not trace["y"][:, :first].any()

    @every_construction_on(cases.SMALL)
    def test_weights_are_those_of_the_first_token_times_the_scale_of_each(self, construction, case):
        program = build(construction, case, pieces=32)
        trace = self.traced(construction, case).trace
        scale = trace["scale"][:1] if program.n_registers else 1.0
        for slot in program.layout.having(Role.PARAMETER):
            expected = scale * trace[slot.name][:, :1].expand_as(trace[slot.name])
            allowed = COPIES_TOLERANCE.get(construction, COPIES_DEFAULT)
            assert distance(trace[slot.name], expected) <= allowed, slot.name

    @every_construction_on(cases.FEW)
    def test_queries_do_not_change_what_is_learnt(self, construction, case):
        program, task = build(construction, case, pieces=32), case.task()
        alone = Task(task.x, task.y, task.queries[:0], task.initial)
        crowd = Task(task.x, task.y, task.queries.repeat(4, 1), task.initial)
        run = self.run(program, alone)
        assert run.predictions.shape == (0, case.problem.target.output_width)
        assert distance(run.parameters, self.run(program, crowd).parameters) <= 1e-11

    @every_construction_on(cases.FEW)
    def test_the_task_is_left_as_it_was(self, construction, case):
        task, again = case.task(), case.task()
        self.run(build(construction, case, pieces=32), task)
        for name in ("x", "y", "queries", "initial"):
            assert torch.equal(getattr(task, name), getattr(again, name)), name

    @pytest.mark.parametrize("trace", [(), ("y",)], ids=["untraced", "traced"])
    def test_progress_is_reported_after_every_step(self, trace):
        case, calls = cases.FEW[0], []
        program = build(RELU_STACK, case, n_steps=4)
        self.run(program, case.task(), trace=trace, on_progress=lambda *call: calls.append(call))
        assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]

    @pytest.mark.parametrize("batched", [False, True], ids=["one task", "batch"])
    def test_results_are_ordinary_tensors(self, batched):
        case = batch_of(cases.FEW[0], n_tasks=2) if batched else cases.FEW[0]
        run = self.run(build(RELU_STACK, cases.FEW[0]), case.task(), trace=("y",))
        for result in (run.parameters, run.predictions, run.trace["y"]):
            assert not result.is_inference()
            assert not result.requires_grad

    def test_an_unknown_slot_in_the_trace_is_named_with_the_nearest(self):
        case = cases.FEW[0]
        with pytest.raises(LayoutError) as caught:
            self.run(build(RELU_STACK, case), case.task(), trace=("y", "delta1"))
        assert str(caught.value).startswith("Layout has no slot 'delta1'; it has x, y, weights_1")
        assert str(caught.value).endswith("Did you mean 'delta_1'?")
