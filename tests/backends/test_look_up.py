"""Table look-up against the sum of ReLUs, and against a softmax head, point by point."""

import pytest
import torch

from icgd.approximation.lattice import fit_on_lattice, head
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.backends import look_up
from icgd.backends.look_up import (
    Cells,
    Evaluation,
    HeadTable,
    Table,
    is_simple,
    simple_operation,
    table_error,
)
from icgd.errors import ProgramError
from icgd.problems.catalog import FUNCTIONS, function_named
from icgd.problems.functions import SmoothFunction
from icgd.program.functions import Function, LatticeFunction, ReluSum

SMOOTH = [name for name, f in FUNCTIONS.items() if isinstance(f, SmoothFunction)]
KINKED = ["relu", "leaky_relu", "identity", "double", "negate", "clip"]
SIMPLE = [*KINKED, "relu'", "leaky_relu'", "identity'"]


ROUNDING = 1e-11
"""A sum of ReLUs for the slope of leaky_relu, 0.01, cancels numbers of 1e3 2^6 to the left."""


def fitted(name: str, reach: float = 9.0) -> ReluSum:
    return fit_relu_sum(function_named(name), -reach, reach, 40, 2.0**-6)


def arguments(*functions: ReluSum, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Everywhere, far outside, and at, just before and just after every knot; in two columns."""
    knots = torch.tensor([knot for f in functions for knot in f.knots], dtype=torch.float64)
    points = [torch.linspace(-9.5, 9.5, 301, dtype=torch.float64)]
    points += [knots, knots - 1e-9, knots + 1e-9, torch.tensor([-1e3, 1e3, 0.0])]
    everything = torch.cat(points)
    return everything[: len(everything) // 2 * 2].view(-1, 2).to(dtype)


def truth(function: ReluSum, z: torch.Tensor) -> torch.Tensor:
    return torch.tensor([function(p) for p in z.flatten().tolist()], dtype=torch.float64).view_as(z)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, size: float) -> None:
    torch.testing.assert_close(ours.double(), theirs, rtol=size, atol=size)


def looked_up(functions: list[ReluSum], z: torch.Tensor) -> list[torch.Tensor]:
    cells = Cells(functions, z)
    writes = [torch.full_like(z, float("nan")) for _ in functions]
    operations = [cells.evaluate(f, write) for f, write in zip(functions, writes, strict=True)]
    cells.find()
    for operation in operations:
        operation()
    return writes


by_grid_and_by_search = pytest.mark.parametrize("most_cells", [2**20, 0], ids=["grid", "search"])


@by_grid_and_by_search
@pytest.mark.parametrize("name", [*SMOOTH, "clip", "leaky_relu'"])
def test_a_table_gives_the_values_of_the_sum(monkeypatch, name, most_cells):
    monkeypatch.setattr(look_up, "MOST_CELLS", most_cells)
    function = fitted(name)
    z = arguments(function)
    assert_close(looked_up([function], z)[0], truth(function, z), ROUNDING)


@by_grid_and_by_search
def test_functions_of_one_argument_share_their_cells(monkeypatch, most_cells):
    monkeypatch.setattr(look_up, "MOST_CELLS", most_cells)
    functions = [fitted("tanh"), fitted("tanh'", reach=7.0), fitted("clip")]
    z = arguments(*functions)
    for function, values in zip(functions, looked_up(functions, z), strict=True):
        assert_close(values, truth(function, z), 1e-12)


@by_grid_and_by_search
def test_float32_tables_are_right_to_float32(monkeypatch, most_cells):
    monkeypatch.setattr(look_up, "MOST_CELLS", most_cells)
    function = fitted("sigmoid")
    z = arguments(function, dtype=torch.float32)
    (values,) = looked_up([function], z)
    assert values.dtype is torch.float32
    assert_close(values, truth(function, z.double()), 1e-5)


def test_an_operation_follows_later_changes_of_its_argument():
    function = fitted("tanh")
    z = torch.zeros(3, 2, dtype=torch.float64)
    cells, write = Cells([function], z), torch.empty_like(z)
    evaluate = cells.evaluate(function, write)
    for value in (-2.0, 0.3, 5.0):
        z.fill_(value)
        cells.find()
        evaluate()
        assert_close(write, truth(function, z), 1e-14)


@pytest.mark.parametrize("name", SIMPLE)
def test_a_simple_operation_gives_the_values_of_the_sum(name):
    function = fitted(name)
    z = arguments(function)
    write = torch.full_like(z, float("nan"))
    simple_operation(function, z, write)()
    assert_close(write, truth(function, z), ROUNDING)


SPECIAL = {
    "a constant": ((), (0.0,), 0.0, 2.5),
    "a line off the origin": ((), (-3.0,), 0.0, 2.5),
    "a falling ramp off the origin": ((1.0, 3.0), (0.0, -2.0, 0.0), 1.0, 5.0),
    "a steeper negative side": ((0.0,), (-0.5, 1.0), 0.0, 0.0),
}


@pytest.mark.parametrize(("knots", "slopes", "anchor", "value"), SPECIAL.values(), ids=SPECIAL)
def test_lines_kinks_and_ramps_of_every_kind_are_simple(knots, slopes, anchor, value):
    function = ReluSum("f", -9.0, 9.0, 1.0, knots, slopes, anchor, value, (0.0,) * len(slopes))
    z = arguments(function)
    write = torch.full_like(z, float("nan"))
    simple_operation(function, z, write)()
    assert_close(write, truth(function, z), ROUNDING)


@pytest.mark.parametrize(
    ("knots", "slopes", "value"),
    [
        ((0.0,), (0.0, 2.0), 0.0),
        ((0.0,), (2.0, 1.0), 0.0),
        ((0.0,), (0.0, 1.0), 1.0),
        ((1.0,), (0.0, 1.0), 0.0),
        ((0.0, 1.0), (0.0, 1.0, 0.5), 0.0),
        ((0.0, 1.0), (0.5, 1.0, 0.0), 0.0),
        ((0.0, 1.0, 2.0), (0.0, 1.0, 0.0, 1.0), 0.0),
    ],
)
def test_other_functions_are_looked_up(knots, slopes, value):
    function = ReluSum("f", -9.0, 9.0, 1.0, knots, slopes, knots[0], value, (0.0,) * len(slopes))
    assert not is_simple(function)
    z = arguments(function)
    assert_close(evaluated([function], z)[0], truth(function, z), 1e-12)


def test_a_kink_that_is_anchored_elsewhere_keeps_its_value_there():
    function = ReluSum("f", -9.0, 9.0, 1.0, (0.0,), (0.0, 1.0), 5.0, 0.0, (0.0, 0.0))
    z = arguments(function)
    assert_close(evaluated([function], z)[0], truth(function, z), 1e-12)


def test_exactly_the_exact_functions_are_simple():
    assert sorted(name for name in FUNCTIONS if is_simple(fitted(name))) == sorted(SIMPLE)
    assert sorted(name for name in FUNCTIONS if fitted(name).is_exact) == sorted(
        {*SIMPLE} - {"relu'", "leaky_relu'"}
    )


def evaluated(functions: list[Function], z: torch.Tensor) -> list[torch.Tensor]:
    evaluation = Evaluation(functions, z)
    writes = [torch.full_like(z, float("nan")) for _ in functions]
    operations = [
        evaluation.operation(f, write) for f, write in zip(functions, writes, strict=True)
    ]
    evaluation.prepare()
    for operation in operations:
        operation()
    return writes


@pytest.mark.parametrize(
    "names", [["tanh", "tanh'"], ["relu", "relu'"], ["relu", "sigmoid", "clip", "sigmoid'"]]
)
def test_simple_and_looked_up_functions_are_evaluated_side_by_side(names):
    functions = [fitted(name) for name in names]
    z = arguments(*functions)
    for function, values in zip(functions, evaluated(functions, z), strict=True):
        assert_close(values, truth(function, z), 1e-12)


LOOKED_UP = ("tanh", "tanh'", "sigmoid", "sigmoid'", "gelu'", "silu'", "coin_entropy")


def looked_up_by_heads(
    reach: float = 3.0, half: int = 30, names: tuple[str, ...] = LOOKED_UP
) -> tuple[LatticeFunction, ...]:
    """Functions over one grid, as a program has them."""
    return fit_on_lattice(tuple(function_named(name) for name in names), reach, half)


def sample(reach: float, n: int = 20_000, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Many more points than a table has cells."""
    return torch.linspace(-reach, reach, n, dtype=dtype).view(-1, 2)


def rounding_of(function: LatticeFunction, dtype: torch.dtype) -> float:
    """128 units: five coefficients, Horner's rule, and where in its cell the argument lies."""
    return 64 * torch.finfo(dtype).eps * function.size


both_precisions = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


@both_precisions
@pytest.mark.parametrize("half", [15, 30])
def test_a_table_is_as_close_to_the_head_as_is_proved(half, dtype):
    functions = looked_up_by_heads(half=half)
    z = sample(3.0, dtype=dtype)
    for function, ours in zip(functions, evaluated(list(functions), z), strict=True):
        assert not function.saturates
        assert table_error(function) <= 2.0**-40 * max(map(abs, function.values))
        allowed = table_error(function) + rounding_of(function, dtype)
        assert ours.dtype is dtype
        assert (ours - head(function, z.double())).abs().max() <= allowed, function.name


@both_precisions
def test_a_table_of_functions_that_saturate_holds_far_outside_too(dtype):
    functions = looked_up_by_heads(reach=1e3, half=60, names=("tanh", "silu'", "coin_entropy"))
    near, far = sample(45.0, dtype=dtype), torch.tensor([[-1e30, -1e3], [1e3, 1e30]]).to(dtype)
    z = torch.cat([near, far])
    for function, ours in zip(functions, evaluated(list(functions), z), strict=True):
        assert function.saturates
        assert table_error(function) <= 2 * function.error + 1e-12 * max(map(abs, function.values))
        allowed = table_error(function) + rounding_of(function, dtype)
        assert (ours - head(function, z.double())).abs().max() <= allowed, function.name
        inside = z.abs() <= function.reach
        gap = (ours - head(function, z.double())).abs()[inside]
        assert gap.max() <= allowed - 2 * function.error, function.name


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 2), (2, 3, 4), (0, 4)], ids=str)
def test_a_table_takes_arguments_of_any_shape(shape):
    functions = list(looked_up_by_heads()[:2])
    z = torch.linspace(-3, 3, 24, dtype=torch.float64)[: torch.Size(shape).numel()].view(shape)
    for function, ours in zip(functions, evaluated(functions, z), strict=True):
        assert ours.shape == z.shape
        assert_close(ours, head(function, z), 1e-12)
        assert torch.equal(HeadTable(function, z)(z), ours)


def test_a_table_follows_later_changes_of_its_argument():
    function = looked_up_by_heads()[0]
    z = torch.zeros(3, 2, dtype=torch.float64)
    table, write = Table([function], z), torch.empty_like(z)
    evaluate = table.evaluate(function, write)
    for value in (-3.0, 0.3, 2.0):
        z.fill_(value)
        table.find()
        evaluate()
        assert_close(write, head(function, z), 1e-12)


def test_sums_of_relus_and_heads_are_evaluated_side_by_side():
    relu_sum, by_head = fitted("clip"), looked_up_by_heads()[0]
    z = sample(3.0, 100)
    first, second = evaluated([relu_sum, by_head], z)
    assert_close(first, truth(relu_sum, z), 1e-12)
    assert_close(second, head(by_head, z), 1e-12)


def test_a_head_that_was_not_prepared_is_refused():
    z = sample(3.0, 4)
    operation = Evaluation([fitted("clip")], z).operation(
        looked_up_by_heads()[0], torch.empty_like(z)
    )
    with pytest.raises(ProgramError, match=r"^look-up: was not prepared for this argument$"):
        operation()
