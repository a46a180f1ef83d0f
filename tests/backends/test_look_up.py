"""Table look-up against the sum of ReLUs, and against a softmax head, point by point."""

from math import fsum
from types import SimpleNamespace

import pytest
import torch

from icgd.approximation.clipping import fit_clip
from icgd.approximation.lattice import fit_on_lattice, head
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.backends import look_up
from icgd.backends.look_up import (
    PieceTable,
    PolynomialTable,
    UnitTable,
    table_error,
    unit_cells,
)
from icgd.backends.recorder import Recorder, Tokens
from icgd.problems.functions import (
    FUNCTIONS,
    OWN,
    SmoothFunction,
    function_named,
    unit_activation_named,
)
from icgd.program.functions import LatticeFunction, ReluSum

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
    """All functions from one table, as a run reads them."""
    kind = PieceTable if isinstance(functions[0], ReluSum) else PolynomialTable
    cells = kind(functions, z).finder(z)
    writes = [torch.full_like(z, float("nan")) for _ in functions]
    evaluators = [cells.evaluator(number, write) for number, write in enumerate(writes)]
    cells.find()
    for evaluate in evaluators:
        evaluate()
    return writes


@pytest.fixture(params=["by row", "by column"], autouse=True)
def _gathered(request, monkeypatch):
    """Small arguments are gathered row by row, large ones column by column."""
    at_once = 2**40 if request.param == "by row" else 0
    monkeypatch.setattr(look_up, "GATHERED_AT_ONCE", at_once)


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


@pytest.mark.parametrize("make", [lambda: fitted("tanh"), lambda: looked_up_by_heads()[0]])
def test_an_evaluation_follows_later_changes_of_its_argument(make):
    function = make()
    kind = PieceTable if isinstance(function, ReluSum) else PolynomialTable
    z = torch.zeros(3, 2, dtype=torch.float64)
    table, write = kind([function], z), torch.empty_like(z)
    cells = table.finder(z)
    evaluate = cells.evaluator(0, write)
    for value in (-2.0, 0.3, 2.5):
        z.fill_(value)
        cells.find()
        evaluate()
        expected = truth(function, z) if kind is PieceTable else head(function, z)
        assert_close(write, expected, 1e-12)
        assert torch.equal(table(z, 0), write)


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
def test_functions_that_are_no_lines_kinks_or_ramps_are_looked_up(knots, slopes, value):
    function = ReluSum("f", -9.0, 9.0, 1.0, knots, slopes, knots[0], value, (0.0,) * len(slopes))
    assert not is_simple(function)
    z = arguments(function)
    assert_close(looked_up([function], z)[0], truth(function, z), 1e-12)


def is_simple(function: ReluSum) -> bool:
    """Whether a run computes it without a table."""
    program = SimpleNamespace(layout=None, relu_sum=lambda name: function)
    recorder = Recorder(program, Tokens(examples=1))
    argument = recorder.op("input", options=("z",), shape=(1, 1))
    return recorder.apply("f", argument, by="mlp").name != "pieces"


def test_exactly_the_exact_functions_are_simple():
    names = [name for name in FUNCTIONS if name.rstrip("'") not in OWN]
    assert sorted(name for name in names if is_simple(fitted(name))) == sorted(SIMPLE)
    assert sorted(name for name in names if fitted(name).is_exact) == sorted(
        {*SIMPLE} - {"relu'", "leaky_relu'"}
    )


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
    for function, ours in zip(functions, looked_up(list(functions), z), strict=True):
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
    for function, ours in zip(functions, looked_up(list(functions), z), strict=True):
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
    for function, ours in zip(functions, looked_up(functions, z), strict=True):
        assert ours.shape == z.shape
        assert_close(ours, head(function, z), 1e-12)
        assert_close(PolynomialTable([function], z)(z, 0), ours, 1e-14)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "cos"])
@pytest.mark.parametrize("reach", [5.0, 1e5])
def test_a_table_of_units_is_as_good_as_their_sum(activation, reach):
    """At random points, and around the corner of the clip, by sums that are nearly exact."""
    fit = fit_clip(3.0, reach, activation, 200)
    n_cells = unit_cells(fit, 3.75)
    assert n_cells is not None
    table = UnitTable(fit, 3.75, n_cells, torch.zeros(1, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    anywhere, near = torch.rand(2, 200, generator=generator, dtype=torch.float64)
    arguments = torch.cat([7.5 * anywhere - 3.75, 3 + 0.1 * (near - 0.5)])
    unit = unit_activation_named(fit.activation)
    slopes, offsets, coefficients = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in zip(
            *((u.direction[0], u.offset, u.coefficient) for u in fit.units), strict=True
        )
    )
    terms = coefficients * unit(arguments[:, None] * slopes + offsets)
    values = [fsum(row) for row in terms.tolist()]
    size = sum(abs(u.coefficient) * (1 + abs(u.offset)) for u in fit.units)
    off = (table(arguments, 0) - torch.tensor(values, dtype=torch.float64)).abs().max()
    assert float(off) <= 8 * 2.0**-53 * size


def test_few_units_and_units_with_kinks_have_no_table():
    assert unit_cells(fit_clip(3.0, 5.0, "tanh", 40), 3.75) is None
    assert unit_cells(fit_clip(3.0, 5.0, "relu", 200), 3.75) is None
