import torch

from icgd.backends.prompt import encode, read_parameters, read_predictions, split_parameters
from icgd.program.layout import Role
from tests import cases
from tests.cases import batch_of, build, make_case
from tests.contracts.backend import RELU_STACK

CASE = make_case(cases.MLP((3, 4, 2), "tanh"), "squared", n_examples=3, n_queries=2)
LAYOUT = build(RELU_STACK, CASE).layout


def test_a_prompt_holds_examples_then_queries_with_the_weights_in_every_token():
    task = CASE.task()
    stream = encode(LAYOUT, task)
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


def test_only_scratch_starts_at_zero():
    stream = encode(LAYOUT, CASE.task())
    empty = {s.name for s in LAYOUT.slots if not stream[:, LAYOUT.range_of(s.name)].any()}
    assert empty == {slot.name for slot in LAYOUT.having(Role.SCRATCH)}


def test_a_batch_is_encoded_task_by_task():
    batch = batch_of(CASE, n_tasks=3).task()
    together = encode(LAYOUT, batch)
    for stream, task in zip(together, cases.tasks_of(batch), strict=True):
        assert torch.equal(stream, encode(LAYOUT, task))


def test_a_prompt_has_the_type_of_its_task():
    assert encode(LAYOUT, CASE.task("float32")).dtype is torch.float32


def test_weights_are_read_back_as_they_were_written():
    task = CASE.task()
    assert torch.equal(read_parameters(LAYOUT, encode(LAYOUT, task)), task.initial)
    batch = batch_of(CASE, n_tasks=3).task()
    assert torch.equal(read_parameters(LAYOUT, encode(LAYOUT, batch)), batch.initial)


def test_predictions_are_a_copy_of_the_labels_at_the_queries():
    stream = encode(LAYOUT, CASE.task())
    stream[3:, LAYOUT.range_of("y")] = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    predictions = read_predictions(LAYOUT, stream, n_examples=3)
    stream.zero_()
    assert predictions.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_split_parameters_are_views_in_the_shape_of_their_slots():
    vector = torch.arange(20.0)
    parts = split_parameters(LAYOUT, vector)
    assert list(parts) == ["weights_1", "weights_2"]
    assert torch.equal(parts["weights_1"], torch.arange(12.0).view(4, 3))
    parts["weights_2"].zero_()
    assert not vector[12:].any()
