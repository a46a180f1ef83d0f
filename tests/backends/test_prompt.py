"""Prompts, what is read from the stream, and the ranges of scores and roots."""

from math import log, nan

import pytest
import torch

import icgd
from icgd.backends.prompt import (
    constants_of,
    encode,
    linear_scores,
    read_parameters,
    read_point,
    read_predictions,
    require_scores,
)
from icgd.errors import OverflowedRunError
from icgd.program.layout import MASKED, SHARE, Layout, Role, Slot
from icgd.program.linear_instructions import PredictMean
from tests import cases
from tests.cases import batch_of, build, every_construction, make_case
from tests.contracts.backend import RELU_STACK, SOFTMAX_STACK
from tests.linear_cases import compiled_of, problem_of, task_of

CASE = make_case(cases.MLP((3, 4, 2), "tanh"), "squared", n_examples=3, n_queries=2)
PROGRAM = build(RELU_STACK, CASE)
LAYOUT = PROGRAM.layout


def test_a_prompt_holds_examples_then_queries_with_the_weights_in_every_token():
    task = CASE.task()
    stream = encode(PROGRAM, task)
    assert stream.shape == (5, LAYOUT.width)
    first, second = CASE.problem.target.matrices(task.initial)
    column = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)[:, None]
    expected = {
        "x": torch.cat([task.x, task.queries]),
        "y": torch.cat([task.y, torch.zeros(2, 2, dtype=torch.float64)]),
        "weights_1": first.flatten().expand(5, 12),
        "weights_2": second.flatten().expand(5, 8),
        "one": torch.ones(5, 1, dtype=torch.float64),
        "is_example": column,
        "is_query": 1.0 - column,
        "tokens_per_example": torch.full((5, 1), 5 / 3, dtype=torch.float64),
    }
    for slot in LAYOUT.slots:
        values = stream[:, LAYOUT.range_of(slot.name)]
        assert torch.equal(values, expected.get(slot.name, torch.zeros_like(values))), slot.name


def test_a_sum_over_examples_finds_the_number_of_tokens_in_the_prompt():
    problem = problem_of("logistic", reduction="sum")
    program, task = compiled_of(problem).program, task_of(problem)
    constants = constants_of(program, task)
    assert "tokens_per_example" not in constants
    assert constants["n_tokens"].tolist() == [[9.0]] * 9


NARROW = make_case(
    cases.MLP((3, 4, 2), "tanh"),
    "squared",
    box=0.5,
    domain=cases.Domain(1.0, 1.0),
    n_examples=3,
    n_queries=2,
)


def test_registers_stand_in_front_and_hold_the_weights_times_their_scale():
    program, task = build(SOFTMAX_STACK, NARROW), NARROW.task()
    first, half = program.n_registers, program.n_registers // 2 - 1
    grid = torch.arange(-half, half + 1, dtype=torch.float64)[:, None]
    one = torch.ones(1, 1, dtype=torch.float64)
    scale = torch.cat([one, grid / half])
    weights = [m.flatten() for m in NARROW.problem.target.matrices(task.initial)]
    table = {
        f.name: torch.tensor(f.values, dtype=torch.float64)[:, None]
        for f in program.lattice_functions
    }
    assert set(table) == {"identity", "square", "tanh", "tanh'"}
    log_share = -torch.log(SHARE * torch.cat([scale[: half + 1].abs(), scale[half + 2 :].abs()]))
    registers = {
        "weights_1": scale * weights[0],
        "weights_2": scale * weights[1],
        "one": torch.ones_like(scale),
        "log_examples": torch.full_like(scale, log(3)),
        "is_register": torch.ones_like(scale),
        "is_memory": torch.cat([one, 0 * grid]),
        "scale": scale,
        "scale_size": scale.abs(),
        "scale_sign": scale.sign(),
        "offset": torch.cat([one * (-MASKED - half**2 / 2), -(grid**2) / 2]),
        "sink": torch.cat([log_share[: half + 1], one * MASKED, log_share[half + 1 :]]),
        **{f"value of {name}": torch.cat([0 * one, values]) for name, values in table.items()},
    }
    everywhere = ("one", "log_examples")
    data = {
        "x": torch.cat([task.x, task.queries]),
        "y": torch.cat([task.y, torch.zeros(2, 2, dtype=torch.float64)]),
        "is_example": torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]).double()[:, None],
        "is_query": torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]).double()[:, None],
        **{name: registers[name][:5] for name in everywhere},
    }
    stream = encode(program, task)
    assert stream.shape == (first + 5, program.layout.width)
    for slot in program.layout.slots:
        values = stream[:, program.layout.range_of(slot.name)]
        for ours, truth in ((values[:first], registers), (values[first:], data)):
            expected = truth.get(slot.name, torch.zeros_like(ours))
            torch.testing.assert_close(ours, expected, rtol=1e-15, atol=0, msg=slot.name)


@every_construction
def test_only_scratch_starts_at_zero(construction):
    program = build(construction, NARROW)
    stream, layout = encode(program, NARROW.task()), program.layout
    empty = {s.name for s in layout.slots if not stream[:, layout.range_of(s.name)].any()}
    assert empty == {slot.name for slot in layout.having(Role.SCRATCH)}


@every_construction
def test_a_batch_is_encoded_task_by_task(construction):
    program, batch = build(construction, NARROW), batch_of(NARROW, n_tasks=3).task()
    together = encode(program, batch)
    for stream, task in zip(together, cases.tasks_of(batch), strict=True):
        assert torch.equal(stream, encode(program, task))


@every_construction
def test_a_prompt_has_the_type_of_its_task(construction):
    assert encode(build(construction, NARROW), NARROW.task("float32")).dtype is torch.float32


@every_construction
def test_weights_are_read_back_as_they_were_written(construction):
    program, task = build(construction, NARROW), NARROW.task()
    assert torch.equal(read_parameters(program.layout, encode(program, task)), task.initial)
    batch = batch_of(NARROW, n_tasks=3).task()
    assert torch.equal(read_parameters(program.layout, encode(program, batch)), batch.initial)


@every_construction
def test_predictions_are_a_copy_of_the_labels_at_the_queries(construction):
    program = build(construction, NARROW)
    stream = encode(program, NARROW.task())
    labels = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    stream[-2:, program.layout.range_of("y")] = labels
    predictions = read_predictions(program, stream, n_examples=3)
    stream.zero_()
    assert predictions.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_split_parameters_are_views_in_the_shape_of_their_slots():
    vector = torch.arange(20.0)
    parts = LAYOUT.split(vector)
    assert list(parts) == ["weights_1", "weights_2"]
    assert torch.equal(parts["weights_1"], torch.arange(12.0).view(4, 3))
    parts["weights_2"].zero_()
    assert not vector[12:].any()


def test_scores_are_products_and_the_intercept():
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    assert linear_scores(torch.tensor([0.5, 0.25]), x).tolist() == [[1.0], [1.25]]
    assert linear_scores(torch.tensor([0.5, 0.25, 10.0]), x).tolist() == [[11.0], [11.25]]


def test_a_batch_has_coefficients_of_its_own():
    x = torch.ones(2, 1, 2)
    weights = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert linear_scores(weights, x).flatten().tolist() == [6.0, 15.0]


def test_the_point_of_a_score_has_the_velocities_that_count():
    slots = {"w": (1, 2), "b": (1, 1), "v": (1, 2), "u": (1, 1)}
    layout = Layout(tuple(Slot(name, shape, Role.PARAMETER) for name, shape in slots.items()))
    stream = torch.arange(12.0).reshape(2, 6)
    ahead = PredictMean(
        "identity",
        ("w", "b", "v", "u"),
        ("x", "one", "x", "one"),
        9.0,
        "is_example",
        "mean",
        (1.0, 1.0, 0.5, 0.5),
    )
    assert read_point(ahead, layout, stream).tolist() == [1.5, 3.0, 4.5]


@pytest.mark.parametrize("value", [-2.5, 2.5, nan])
def test_the_row_and_the_value_beyond_the_range_are_named(value):
    scores = torch.tensor([[1.0], [-2.0], [value]])
    where = rf"at step 4, example 2 \(counted from 0\) is {value:g}, but .* up to 2\."
    with pytest.raises(OverflowedRunError, match=where):
        require_scores(scores, 2.0, "step 4, example")


def test_scores_within_the_range_and_none_at_all_pass():
    require_scores(torch.tensor([[2.0], [-2.0]]), 2.0, "query")
    require_scores(torch.zeros(0, 1), 2.0, "query")


X, Y = [[0.5, 1.0], [1.0, 0.0], [0.5, 0.5]], [1.0, 0.5, 0.0]
ADAM, RMSPROP = icgd.AdamStep(0.1, box=2.0), icgd.RmspropStep(0.1, box=2.0)
RUNS = [{"backend": "fused"}, {"backend": "dense"}, {"backend": "fused", "trace": "x"}]


def compiled(update):
    network, domain = icgd.MLP((2, 1)), icgd.Domain(x=1.0, y=1.0)
    return icgd.compile(icgd.Problem(network, "squared", update, domain), "relu-stack", n_steps=2)


def start(update, second):
    return [0.1, -0.2] * len(update.state) + [second] * 2


@pytest.mark.parametrize("options", RUNS)
@pytest.mark.parametrize(("update", "second"), [(ADAM, 1.0), (ADAM, 1e306), (RMSPROP, 1e4)])
def test_a_state_whose_root_no_sum_of_relus_knows_is_refused(update, second, options):
    with pytest.raises(OverflowedRunError, match="Step 1 divides by the root of"):
        compiled(update).run(X, Y, initial=start(update, second), **options)


@pytest.mark.parametrize("options", RUNS)
@pytest.mark.parametrize("update", [ADAM, RMSPROP])
def test_a_state_within_the_range_moves_weights_as_the_reference_does(update, options):
    run = compiled(update).run(X, Y, initial=start(update, 0.01), **options)
    task = compiled(update).task(X, Y, initial=start(update, 0.01))
    real = compiled(update).problem.oracle.train(task, 2)
    torch.testing.assert_close(run.parameters, real, rtol=0.0, atol=1e-4)
