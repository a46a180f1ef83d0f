"""Domains and tasks: what `as_task` makes of good data, and what it says about bad data."""

from dataclasses import replace
from datetime import date

import numpy as np
import polars as pl
import pytest
import torch

import icgd
from icgd.errors import DataError, DomainError, IcgdError, SettingError, SizeError, UnknownNameError
from icgd.problems.data import (
    FLOAT32_ROUNDING,
    Domain,
    Task,
    as_task,
    checked_array,
    checked_task,
    column_names,
    drawn_task,
    require_within,
)
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep, MomentumStep
from icgd.problems.problem import Problem
from tests.bare_oracles import bare_task

PROBLEM = Problem(MLP((3, 4, 1)), "squared", GradientStep(0.1, 3.0), Domain(4.0, 2.0))
TWO_OUTPUTS = replace(PROBLEM, target=MLP((3, 4, 2)))
LOGISTIC = replace(PROBLEM, loss="logistic")

X = np.linspace(-2.0, 2.0, 15).reshape(5, 3)
Y = np.linspace(0.0, 1.0, 5)[:, None]
QUERIES = X[:2] / 2
W = np.linspace(-1.0, 1.0, 16)


def changed(array: np.ndarray, index: tuple[int, ...], value: float) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


def refusal(problem: Problem = PROBLEM, x=X, y=Y, **settings) -> str:
    """What is said about bad input; always by one of icgd's own errors."""
    with pytest.raises(IcgdError) as caught:
        as_task(problem, x, y, **settings)
    return str(caught.value)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, np.ndarray.tolist])
def test_arrays_tensors_and_lists_become_float64_tensors(convert):
    task = as_task(PROBLEM, convert(X), convert(Y), queries=convert(QUERIES), initial=convert(W))
    parts = (task.x, task.y, task.queries, task.initial)
    for part, array in zip(parts, (X, Y, QUERIES, W), strict=True):
        assert part.dtype is torch.float64
        assert np.array_equal(part.numpy(), array)


@pytest.mark.parametrize("dtype", ["float32", torch.float32])
def test_float32_is_made_on_request(dtype):
    task = as_task(PROBLEM, X, Y, queries=QUERIES, initial=W, dtype=dtype)
    for part in (task.x, task.y, task.queries, task.initial):
        assert part.dtype is torch.float32
    assert np.array_equal(task.x.numpy(), X.astype("float32"))


def test_float32_data_becomes_float64_unless_asked_otherwise():
    task = as_task(PROBLEM, X.astype("float32"), torch.tensor(Y, dtype=torch.float32))
    assert task.x.dtype is task.y.dtype is task.initial.dtype is torch.float64
    assert np.array_equal(task.x.numpy(), X.astype("float32").astype("float64"))


def test_a_batch_of_tasks_has_an_axis_in_front():
    x, y = np.stack([X, -X]), np.stack([Y, Y])
    task = as_task(PROBLEM, x, y, queries=x[:, :2], seed=4)
    assert (task.n_examples, task.n_queries, task.batch) == (5, 2, (2,))
    assert torch.equal(task.initial, PROBLEM.target.initial_parameters(4, 3.0, (2,)))


def test_one_vector_of_initial_weights_serves_every_task_of_a_batch():
    x, y = np.stack([X, -X]), np.stack([Y, Y])
    task = as_task(PROBLEM, x, y, initial=W)
    assert np.array_equal(task.initial.numpy(), np.stack([W, W]))
    each = as_task(PROBLEM, x, y, initial=np.stack([W, -W]))
    assert np.array_equal(each.initial.numpy(), np.stack([W, -W]))


def test_labels_of_one_output_may_lack_their_last_axis():
    assert torch.equal(as_task(PROBLEM, X, Y[:, 0]).y, as_task(PROBLEM, X, Y).y)
    batch = as_task(PROBLEM, np.stack([X, X]), np.stack([Y[:, 0], Y[:, 0]]))
    assert batch.y.shape == (2, 5, 1)


def test_initial_weights_come_from_the_seed_and_from_seed_0_by_default():
    draw = PROBLEM.target.initial_parameters
    assert torch.equal(as_task(PROBLEM, X, Y, seed=7).initial, draw(7, 3.0))
    assert torch.equal(as_task(PROBLEM, X, Y).initial, draw(0, 3.0))


def test_a_frame_keeps_its_names_and_its_numbers():
    frame = pl.DataFrame(X, schema=["age", "size", "bmi"])
    named = as_task(PROBLEM, frame, Y, queries=frame[:2], initial=W)
    plain = as_task(PROBLEM, X, Y, queries=X[:2], initial=W)
    assert (named.input_names, plain.input_names) == (("age", "size", "bmi"), ())
    for part in ("x", "y", "queries", "initial"):
        assert torch.equal(getattr(named, part), getattr(plain, part))
        assert getattr(named, part).stride() == getattr(plain, part).stride()
    assert checked_task(PROBLEM, named).input_names == ("age", "size", "bmi")
    assert as_task(PROBLEM, frame, Y, queries=X[:2]).input_names == ("age", "size", "bmi")
    assert as_task(PROBLEM, X, Y, queries=frame[:2]).input_names == ()


def test_what_is_wrong_with_a_frame_is_named_by_its_column():
    frame = pl.DataFrame(changed(X, (3, 1), 5.5), schema=["age", "size", "bmi"])
    assert refusal(x=frame).startswith("X[3, 1] (column 'size') is 5.5, outside [-4, 4].")
    good = pl.DataFrame(X, schema=["age", "size", "bmi"])
    message = refusal(x=good, queries=frame)
    assert message.startswith("queries[3, 1] (column 'size') is 5.5, outside [-4, 4].")
    assert refusal(x=good, queries=good["bmi", "size", "age"]) == (
        "queries has the columns bmi, size, age, but X has age, size, bmi. Give the same columns "
        "in the same order."
    )
    wide = replace(PROBLEM, domain=Domain(1e300, 2.0))
    large = pl.DataFrame(changed(X, (3, 1), 1e200), schema=["age", "size", "bmi"])
    message = refusal(wide, x=large, dtype="float32")
    assert message.startswith("X[3, 1] (column 'size') is 1e+200, too large for float32.")


def test_the_bounds_themselves_are_inside():
    x, y, w = np.full((1, 3), 4.0), np.full((1, 1), -2.0), np.full(16, 3.0)
    task = as_task(PROBLEM, x, y, queries=-x, initial=w)
    assert (task.x.max(), task.y.min(), task.initial.max()) == (4.0, -2.0, 3.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("name", "setting", "array", "index"),
    [
        ("X", "x", X, (3, 1)),
        ("y", "y", Y, (2, 0)),
        ("queries", "queries", QUERIES, (1, 2)),
        ("initial", "initial", W, (9,)),
    ],
    ids=["X", "y", "queries", "initial"],
)
def test_what_is_not_finite_is_named_by_its_entry(name, setting, array, index, bad):
    message = refusal(**{setting: changed(array, index, bad)})
    assert message == (
        f"{name}{list(index)} is {bad}; every entry must be finite. Drop or fill such rows first."
    )


@pytest.mark.parametrize(
    ("setting", "array", "index", "value", "start", "remedy"),
    [
        ("x", X, (3, 1), 5.5, "X[3, 1] is 5.5, outside [-4, 4].", "domain.x"),
        ("y", Y, (2, 0), -2.5, "y[2, 0] is -2.5, outside [-2, 2].", "domain.y"),
        ("queries", QUERIES, (1, 2), -6.0, "queries[1, 2] is -6, outside [-4, 4].", "domain.x"),
        ("initial", W, (9,), 3.25, "initial[9] is 3.25, outside [-3, 3].", "box"),
    ],
    ids=["X", "y", "queries", "initial"],
)
def test_what_lies_outside_the_domain_is_named_with_value_bound_and_remedy(
    setting, array, index, value, start, remedy
):
    message = refusal(**{setting: changed(array, index, value)})
    assert message == f"{start} Rescale the data or compile with a larger {remedy}."


def test_an_entry_of_a_batch_is_named_by_its_task_too():
    x = changed(np.stack([X, X]), (1, 4, 0), 9.0)
    assert refusal(x=x, y=np.stack([Y, Y])).startswith("X[1, 4, 0] is 9, outside [-4, 4].")


def test_a_value_just_outside_is_not_printed_as_the_bound():
    assert "X[3, 1] is 4.00000001" in refusal(x=changed(X, (3, 1), 4.00000001))


@pytest.mark.parametrize("value", [-0.5, 1.25])
def test_labels_of_the_logistic_loss_lie_between_0_and_1(value):
    assert refusal(LOGISTIC, y=changed(Y, (3, 0), value)) == (
        f"y[3, 0] is {value:g}; the logistic loss needs labels between 0 and 1. "
        "Recode the labels, or use loss='squared'."
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("X", {"x": [[1.0, 2.0, 3.0], [4.0, 5.0]]}),
        ("y", {"y": [[1.0], [1.0, 2.0]]}),
        ("queries", {"queries": [[1.0, 2.0, 3.0], []]}),
        ("initial", {"initial": [[1.0], [1.0, 2.0]]}),
    ],
    ids=["X", "y", "queries", "initial"],
)
def test_ragged_lists_are_refused(name, settings):
    assert refusal(**settings) == (
        f"{name} is not a rectangular array of numbers (rows of different lengths). "
        "Every row must have the same length."
    )


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [
        ("X", {"x": np.zeros((0, 3))}, (0, 3)),
        ("X", {"x": []}, (0,)),
        ("y", {"y": np.zeros((0, 1))}, (0, 1)),
        ("queries", {"queries": np.zeros((0, 3))}, (0, 3)),
        ("initial", {"initial": np.zeros(0)}, (0,)),
    ],
)
def test_empty_arrays_are_refused(name, settings, shape):
    assert refusal(**settings) == (f"{name} is empty: its shape is {shape}. Give at least one row.")


BATCH = {"x": np.stack([X, X]), "y": np.stack([Y, Y])}
WRONG_SHAPES = {
    "X of the wrong width": (
        {"x": X[:, :2]},
        "X has shape (5, 2); expected (n, 3) or (tasks, n, 3).",
    ),
    "X of one axis": ({"x": X[0]}, "X has shape (3,); expected (n, 3) or (tasks, n, 3)."),
    "X of four axes": (
        {"x": X[None, None]},
        "X has shape (1, 1, 5, 3); expected (n, 3) or (tasks, n, 3).",
    ),
    "a number for X": ({"x": 1.5}, "X has shape (); expected (n, 3) or (tasks, n, 3)."),
    "a label too few": (
        {"y": Y[:4]},
        "y has shape (4, 1); expected (5, 1), a label for each row of X.",
    ),
    "labels of the wrong width": (
        {"y": np.hstack([Y, Y])},
        "y has shape (5, 2); expected (5, 1), a label for each row of X.",
    ),
    "flat labels for two outputs": (
        {"problem": TWO_OUTPUTS, "y": Y[:, 0]},
        "y has shape (5,); expected (5, 2), a label for each row of X.",
    ),
    "labels of a batch too few": (
        {"x": BATCH["x"], "y": np.zeros((2, 4, 1))},
        "y has shape (2, 4, 1); expected (2, 5, 1), a label for each row of X.",
    ),
    "queries of the wrong width": (
        {"queries": QUERIES[:, :1]},
        "queries has shape (2, 1); expected (n_queries, 3).",
    ),
    "one query without its row": (
        {"queries": QUERIES[0]},
        "queries has shape (3,); expected (n_queries, 3).",
    ),
    "queries of one task for a batch": (
        {**BATCH, "queries": QUERIES},
        "queries has shape (2, 3); expected (2, n_queries, 3).",
    ),
    "too few weights": ({"initial": W[:-1]}, "initial has shape (15,); expected (16,)."),
    "weights for three tasks of two": (
        {**BATCH, "initial": np.stack([W, W, W])},
        "initial has shape (3, 16); expected (2, 16).",
    ),
}


@pytest.mark.parametrize(("settings", "message"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_a_wrong_shape_is_named_with_the_one_expected(settings, message):
    assert refusal(**settings) == message


def test_the_shape_that_is_named_is_the_one_that_was_given():
    assert refusal(x=BATCH["x"], y=Y).startswith("y has shape (5, 1); expected (2, 5, 1)")


def test_each_kind_of_fault_has_its_own_kind_of_error():
    faults = [
        (DataError, {"x": X[:, :2]}),
        (DomainError, {"x": 100 * X}),
        (SettingError, {"seed": -1}),
        (UnknownNameError, {"dtype": "float16"}),
    ]
    for error, settings in faults:
        with pytest.raises(error):
            as_task(PROBLEM, **{"x": X, "y": Y, **settings})


def test_initial_weights_and_a_seed_exclude_each_other():
    assert refusal(initial=W, seed=1) == "Give either initial or seed, not both."


def test_what_float32_cannot_hold_is_named():
    wide = replace(PROBLEM, domain=Domain(1e300, 2.0))
    message = refusal(wide, x=changed(X, (3, 1), 1e200), dtype="float32")
    assert message.startswith("X[3, 1] is ")


def test_a_seed_is_a_whole_number():
    assert refusal(seed=-1) == "seed must be a whole number of at least 0, got -1."
    assert refusal(seed=2**63) == f"seed must be at most {2**63 - 1}, got {2**63}."


@pytest.mark.parametrize("dtype", ["float16", torch.float16])
def test_an_unknown_type_lists_the_known_ones(dtype):
    message = "Unknown dtype 'float16'; known are float64, float32. Did you mean 'float64'?"
    assert refusal(dtype=dtype) == message


def test_a_batch_needs_as_many_examples():
    problem = replace(PROBLEM, update=GradientStep(0.1, 3.0, batch_size=len(X) + 1))
    assert refusal(problem).startswith(f"X has {len(X)} examples, fewer than batch_size=")
    exact = replace(PROBLEM, update=GradientStep(0.1, 3.0, batch_size=len(X)))
    assert as_task(exact, X, Y).n_examples == len(X)


def test_averages_start_in_the_box_and_momentum_anywhere():
    problem = replace(PROBLEM, update=MomentumStep(0.1, 3.0, average=0.9))
    n_weights = problem.target.n_parameters
    start = torch.cat([torch.zeros(n_weights), torch.full((n_weights,), 50.0), torch.ones(2)])
    start = torch.cat([start, torch.zeros(n_weights - 2)])
    assert torch.equal(as_task(problem, X, Y, initial=start).initial, start.double())
    outside = start.clone()
    outside[2 * n_weights + 1] = 3.5
    assert refusal(problem, initial=outside).startswith("initial[33] is 3.5, outside [-3, 3].")


def test_a_task_shares_no_memory_with_what_it_was_made_from():
    problem = icgd.Problem(
        icgd.MLP((2, 1)), "squared", icgd.GradientStep(0.1, box=1.0), icgd.Domain(x=1.0, y=1.0)
    )
    x, y, queries = (torch.ones(shape, dtype=torch.float64) for shape in ((3, 2), (3, 1), (1, 2)))
    initial = torch.zeros(2, dtype=torch.float64)
    task = icgd.as_task(problem, x, y, queries=queries, initial=initial)
    for given in (x, y, queries, initial):
        given.fill_(0.25)
    assert (task.x == 1).all()
    assert (task.y == 1).all()
    assert (task.queries == 1).all()
    assert (task.initial == 0).all()


@pytest.mark.parametrize(
    ("update", "place", "value", "said"),
    [
        (icgd.AdamStep(0.1, box=2.0), 4, -1e-3, ("second moment", "expected a nonnegative number")),
        (
            icgd.RmspropStep(0.1, box=2.0),
            3,
            -1.0,
            ("second moment", "expected a nonnegative number"),
        ),
        (icgd.AdamStep(0.1, box=2.0), 3, -1e160, ("first moment", "expected a number in [-")),
        (icgd.MomentumStep(0.1, box=2.0), 2, 1e18, ("momentum", "expected a number in [-")),
    ],
)
def test_what_no_optimiser_remembers_is_refused(update, place, value, said):
    problem = Problem(MLP((2, 1)), "squared", update, Domain(1.0, 1.0))
    initial = [0.1] * 2 * (1 + len(update.state))
    initial[place] = value
    answer = refusal(problem, [[0.5, 1.0]], [1.0], initial=initial)
    assert answer.startswith(f"initial[{place}], part of the {said[0]}, is {value:g}; {said[1]}")


def array_refusal(data) -> str:
    with pytest.raises(DataError) as caught:
        checked_array("X", data)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_arrays_keep_their_precision_and_their_numbers(convert, dtype):
    array = checked_array("X", convert(X.astype(dtype)))
    assert array.dtype is getattr(torch, dtype)
    assert np.array_equal(array.numpy(), X.astype(dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bytes_may_be_in_another_order(dtype):
    array = checked_array("X", X.astype(dtype).astype(np.dtype(dtype).newbyteorder()))
    assert array.dtype is getattr(torch, dtype)
    assert np.array_equal(array.numpy(), X.astype(dtype))


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_whole_numbers_and_truth_values_become_float64(convert, dtype):
    array = checked_array("X", convert(np.array([[0, 1], [1, 1]], dtype)))
    assert array.dtype is torch.float64
    assert array.tolist() == [[0.0, 1.0], [1.0, 1.0]]


def test_parameters_become_plain_tensors_without_gradients():
    array = checked_array("X", torch.nn.Parameter(torch.from_numpy(X)))
    assert type(array) is torch.Tensor
    assert not array.requires_grad


def test_a_reversed_array_is_read_as_it_is_shown():
    assert np.array_equal(checked_array("X", X[::-1]).numpy(), X[::-1])


def test_masked_entries_are_refused():
    assert array_refusal(np.ma.masked_array(X, X > 1)).startswith("X has masked entries.")
    assert np.array_equal(checked_array("X", np.ma.masked_array(X, X > 9)).numpy(), X)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("dtype", ["float16", "complex128"])
def test_other_types_of_number_are_refused_by_name(convert, dtype):
    assert array_refusal(convert(X.astype(dtype))) == (
        f"X has dtype {dtype}; expected float64, float32, integers or bool. Convert it "
        "to one of them."
    )


class Frame:
    """A data frame as other libraries make them: columns by any names, and an array."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows

    def __array__(self, dtype=None, copy=None):
        return np.array(self.rows, dtype)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (pl.DataFrame({"age": [1], "size": [2]}), ("age", "size")),
        (Frame(np.array(["age", "size"]), [[1, 2]]), ("age", "size")),
        (Frame([0, 1], [[1, 2]]), ()),
        (Frame(["age", "age"], [[1, 2]]), ()),
        (np.ones((1, 2)), ()),
        (torch.ones(1, 2), ()),
        (None, ()),
    ],
)
def test_columns_have_names_if_all_are_texts_and_no_two_are_alike(data, names):
    assert column_names(data) == names


def test_a_frame_of_numbers_is_an_array():
    frame = pl.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    assert checked_array("X", frame).tolist() == [[1.0, 0.5], [2.0, 1.5]]
    mixed = Frame(["a", "b"], [[1, np.float64(0.5)], [True, 2.5]])
    mixed.rows = np.array(mixed.rows, object)  # as pandas has it
    assert checked_array("X", mixed).tolist() == [[1.0, 0.5], [1.0, 2.5]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            pl.DataFrame({"a": [1, 2], "b": [3, 4], "name": ["x", "y"]}),
            "X[0, 2] (column 'name') is 'x', which is not a number. Remove the column or encode",
        ),
        (
            pl.DataFrame({"a": [1, 2], "day": [date(2020, 1, 2), None]}),
            "X[0, 1] (column 'day') is datetime.date(2020, 1, 2), which is not a number.",
        ),
        (Frame(["a", "b"], [[1, 2], [3, None]]), "X[1, 1] (column 'b') is None, which is not a"),
        (pl.DataFrame({"a": [1, 2], "b": [3, None]}), "X[1, 1] (column 'b') is nan; every entry"),
        ([[0.5, 1.0], [None, 2.0]], "X[1, 0] is None, which is not a number."),
        ([["1", "2"]], "X[0, 0] is '1', which is not a number."),
        ([[1.0, "z"]], "X[0, 1] is 'z', which is not a number."),
        ([[10**400, 1.0]], "X holds a number beyond the range of float64."),
        (torch.eye(2).to_sparse(), "X is a sparse or meta tensor"),
        (torch.ones(1, 2, device="meta"), "X is a sparse or meta tensor"),
        ("abc", "X is 'abc', which is not a number."),
    ],
)
def test_what_is_not_a_number_is_named_by_row_and_column(data, message):
    assert array_refusal(data).startswith(message)


def test_a_bound_is_inside_and_float32_may_have_rounded_it_up():
    bound = 0.1
    require_within("X", torch.tensor([-bound, bound], dtype=torch.float64), bound, "domain.x")
    rounded = torch.tensor([bound], dtype=torch.float32)
    assert rounded.double() > bound
    require_within("X", rounded, bound, "domain.x")
    beyond = torch.tensor([bound * (1 + 4 * FLOAT32_ROUNDING)], dtype=torch.float32)
    for outside in (rounded.double(), beyond):
        with pytest.raises(DomainError, match=r"^X\[0\] is 0\.1.*, outside \[-0\.1, 0\.1\]\."):
            require_within("X", outside, bound, "domain.x")


def test_bounds_become_floats():
    domain = Domain(np.float64(4), np.float64(2), score=np.float64(3))
    bounds = [domain.x, domain.y, domain.score]
    assert bounds == [4.0, 2.0, 3.0]
    assert {type(bound) for bound in bounds} == {float}


def test_the_bound_on_scores_may_be_left_out():
    assert Domain(1.0, 2.0).score is None


def test_the_domain_of_data_has_room_for_queries():
    assert Domain.of([[1.0, -2.0]], [4.0]) == Domain(x=2.5, y=5.0)
    assert Domain.of(np.array([[3, -8]]), np.array([True]), room=1.0) == Domain(x=8.0, y=1.0)
    assert Domain.of([[0.0]], [0.0]) == Domain(x=1.0, y=1.0)
    with pytest.raises(SettingError, match="room must be a positive finite number, got 0"):
        Domain.of([[1.0]], [1.0], room=0.0)
    with pytest.raises(DataError, match=r"X\[0, 0\] is nan"):
        Domain.of([[float("nan")]], [1.0])


@pytest.mark.parametrize("name", ["x", "y", "score"])
@pytest.mark.parametrize("bad", [0.0, -1.5, float("nan"), float("inf")])
def test_bounds_must_be_positive_and_finite(name, bad):
    with pytest.raises(SettingError) as caught:
        Domain(**{"x": 1.0, "y": 1.0, name: bad})
    assert str(caught.value) == f"domain.{name} must be a positive finite number, got {bad!r}."


def test_rates_have_a_bound_if_examples_have_rates():
    assert Domain(x=1.0, y=1.0).rate is None
    domain = Domain(x=1.0, y=1.0, rate=2.0)
    assert domain.rate == 2.0
    assert domain.in_words() == "|x| <= 1, |y| <= 1, rates <= 2"
    with pytest.raises(SettingError, match=r"domain.rate must be a positive finite number, got 0"):
        Domain(x=1.0, y=1.0, rate=0.0)


ROWS = torch.arange(15.0).reshape(5, 3)
LABELS, WEIGHTS = torch.zeros(5, 1), torch.zeros(16)


def test_its_counts_follow_from_its_data():
    task = Task(ROWS, LABELS, -ROWS[:2], WEIGHTS)
    assert (task.n_examples, task.n_queries, task.n_tokens, task.batch) == (5, 2, 7, ())
    alone = bare_task(ROWS, LABELS, WEIGHTS)
    assert (alone.n_queries, alone.n_tokens) == (0, 5)


def test_a_batch_has_an_axis_in_front():
    task = Task(
        ROWS.expand(4, 5, 3),
        LABELS.expand(4, 5, 1),
        -ROWS[:2].expand(4, 2, 3),
        WEIGHTS.expand(4, 16),
    )
    assert (task.n_examples, task.n_queries, task.n_tokens, task.batch) == (5, 2, 7, (4,))


def test_its_points_are_the_examples_then_the_queries_in_float64():
    points = Task(ROWS, LABELS, -ROWS[:2], WEIGHTS).points
    assert points.dtype is torch.float64
    assert points.tolist() == [*ROWS.tolist(), *(-ROWS[:2]).tolist()]


def test_it_shows_the_names_of_its_inputs_if_it_has_any():
    named = Task(ROWS, LABELS, ROWS[:0], WEIGHTS, input_names=("age", "<size>", "bmi"))
    assert "1 label; inputs: age, <size>, bmi; queries: 0;" in repr(named)
    assert ">age, &lt;size&gt;, bmi</td>" in named._repr_html_()


def test_it_shows_itself_in_a_line():
    assert repr(Task(ROWS, LABELS, -ROWS[:2], WEIGHTS)) == (
        "Task(examples: 5 of 3 inputs, 1 label; queries: 2; initial: 16 numbers; dtype: float32)"
    )
    batch = Task(
        ROWS.expand(4, 5, 3),
        LABELS.expand(4, 5, 1),
        ROWS[:0].expand(4, 0, 3),
        WEIGHTS.expand(4, 16),
    )
    assert repr(batch).startswith("Task(tasks: 4; examples: 5 of 3 inputs, 1 label; queries: 0;")


def test_tasks_of_a_batch_keep_their_own_rates():
    network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0, rate=1.0))
    rates = torch.tensor([[0.0, 0.5, 1.0], [1.0, 0.25, 0.0]], dtype=torch.float64)
    batch = icgd.as_task(problem, torch.ones(2, 3, 2), torch.ones(2, 3), rates=rates)
    assert batch.facts()["rates"] == "one for each example"
    assert torch.equal(batch.of_batch(1).rates, rates[1, :, None])
    assert torch.equal(batch.of_batch(slice(1, 2)).rates, rates[1:, :, None])
    assert batch.of_batch(slice(1, 2)).batch == (1,)
    plain = replace(problem, domain=icgd.Domain(1.0, 1.0))
    without = icgd.as_task(plain, torch.ones(2, 3, 2), torch.ones(2, 3))
    assert without.of_batch(0).rates is None
    assert "rates" not in without.facts()


def test_places_that_are_not_there_are_refused():
    problem = icgd.Problem(
        icgd.MLP((2, 1)), "squared", icgd.GradientStep(0.1, box=1.0), icgd.Domain(x=1.0, y=1.0)
    )
    batch = icgd.as_task(problem, torch.ones(2, 3, 2), torch.ones(2, 3))
    with pytest.raises(icgd.errors.SettingError, match="place must lie between -2 and 1, got 2"):
        batch.of_batch(2)
    with pytest.raises(icgd.errors.DataError, match="This is one task, not a batch"):
        batch.of_batch(0).of_batch(0)


def test_a_task_in_float64_has_the_same_numbers_and_names():
    network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0, rate=1.0))
    task = icgd.as_task(problem, ROWS[:, :2] / 15, LABELS, rates=ROWS[:, 2] / 15, dtype="float32")
    named = replace(task, input_names=("a", "b")).double()
    assert named.input_names == ("a", "b")
    for part in ("x", "y", "queries", "initial", "rates"):
        assert getattr(named, part).dtype == torch.float64
        assert torch.equal(getattr(named, part), getattr(task, part).double())


DOMAIN = icgd.Domain(x=3.0, y=0.5)
STEP = icgd.GradientStep(0.1, box=1.0)


def test_inputs_cover_the_domain_and_labels_lie_in_it():
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", STEP, DOMAIN)
    task = drawn_task(problem, 500, seed=0)
    assert task.n_examples == 500
    assert 2.9 < float(task.x.abs().max()) <= 3
    assert float(task.x.min()) < -2.9
    assert float(task.y.min()) >= 0
    assert 0.49 < float(task.y.max()) <= 0.5


def test_labels_of_classes_are_shares():
    network = icgd.MLP((2, 3))
    problem = icgd.Problem(network, "cross_entropy", STEP, icgd.Domain(x=1.0, y=1.0))
    labels = drawn_task(problem, 20, seed=0).y
    assert torch.allclose(labels.sum(-1), torch.ones(20, dtype=torch.float64))
    assert len(set(labels[:, 0].tolist())) == 20


def test_the_seed_decides():
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", STEP, DOMAIN)
    first, again, other = (drawn_task(problem, 3, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.initial, again.initial)
    assert not torch.equal(first.x, other.x)


def test_memory_is_asked_for_first():
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", STEP, DOMAIN)
    with pytest.raises(SizeError, match="1,000,000,000,000 examples"):
        drawn_task(problem, 10**12, seed=0)
