from math import log

import torch

from icgd.backends.prompt import (
    constants_of,
    encode,
    read_parameters,
    read_predictions,
    split_parameters,
)
from icgd.program.layout import MASKED, SHARE, Role
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
    parts = split_parameters(LAYOUT, vector)
    assert list(parts) == ["weights_1", "weights_2"]
    assert torch.equal(parts["weights_1"], torch.arange(12.0).view(4, 3))
    parts["weights_2"].zero_()
    assert not vector[12:].any()
