"""The ReLUs of every verb, number by number, and the heads of a product."""

import pytest
import torch

from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    MarkFlat,
    PassBack,
    SelectWhere,
)
from icgd.program.instructions import Combination
from icgd.weights.chain_lowering import heads_of, lower_chain, relus_of
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import Juggle

UP = Combination(("a", "b"), (2.0, -1.0))


def value_of(instruction, **slots: float) -> float:
    """The sum of the instruction's ReLUs at one coordinate."""
    total = 0.0
    for relu in relus_of(instruction):
        argument = sum(factor * slots[slot] for slot, factor in relu.slots.terms()) + relu.shift
        argument -= relu.gate * sum(slots[flag] for flag in relu.closed_by)
        total += relu.coefficient * max(argument, 0.0)
    return total


@pytest.mark.parametrize("a", [-1.75, 0.0, 0.3])
def test_a_copy_is_exact_where_it_is_open_and_nothing_elsewhere(a):
    copy = CopyWhere(Combination.of("a"), ("f", "g"), 64.0, "w")
    assert value_of(copy, a=a, f=0.0, g=0.0) == a
    for flags in ({"f": 1.0, "g": 0.0}, {"f": 0.0, "g": 1.0}, {"f": 1.0, "g": 1.0}):
        assert value_of(copy, a=a, **flags) == 0.0
    clipped = CopyWhere(Combination.of("a"), ("f",), 64.0, "w", bound=0.5)
    assert value_of(clipped, a=a, f=0.0) == min(max(a, -0.5), 0.5)
    assert value_of(clipped, a=a, f=1.0) == 0.0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_sum_is_selected_by_the_bits_of_its_number(number):
    sources = tuple(Combination(("a", "b"), (1.0, factor)) for factor in (0.0, 2.0, -3.0))
    select = SelectWhere(sources, ("g", "h"), ("i", "j"), ("f",), 64.0, "w", bound=1.5)
    low, high = float(number & 1), float(number >> 1)
    bits = {"g": low, "h": high, "i": 1 - low, "j": 1 - high}
    expected = [0.3, 0.3 + 2 * 0.55, -1.35][number]
    assert value_of(select, a=0.3, b=0.55, f=0.0, **bits) == pytest.approx(expected, abs=1e-15)
    assert value_of(select, a=9.0, b=0.0, f=0.0, **bits) == 1.5
    assert value_of(select, a=0.3, b=0.55, f=1.0, **bits) == 0.0


@pytest.mark.parametrize("leak", [0.0, 0.25])
@pytest.mark.parametrize("a", [-1.5, 2.5])
def test_a_slope_is_one_or_the_leak_and_between_on_a_kink(a, leak):
    passed = PassBack(UP, "flat", ("f",), leak, 64.0, "w")
    up = 2 * a - 0.5
    assert value_of(passed, a=a, b=0.5, flat=0.0, f=0.0) == up
    for flat in (1.0, 700.0):
        assert value_of(passed, a=a, b=0.5, flat=flat, f=0.0) == leak * up
    between = value_of(passed, a=a, b=0.5, flat=2.0**-6, f=0.0)
    assert leak * abs(up) < abs(between) < abs(up)
    assert value_of(passed, a=a, b=0.5, flat=0.0, f=1.0) == 0.0


@pytest.mark.parametrize("z", [-3.0, -(2.0**-30), 2.0**-30, 1.1])
def test_units_are_kinked_or_linear_and_know_where_they_are_flat(z):
    activate = ActivateWhere("z", "kinked", ("f",), 0.25, 64.0, "w")
    assert value_of(activate, z=z, kinked=1.0, f=0.0) == (z if z > 0 else z / 4)
    assert value_of(activate, z=z, kinked=0.0, f=0.0) == z
    assert value_of(activate, z=z, kinked=0.0, f=1.0) == 0.0
    mark = MarkFlat("z", "linear", ("f",), 2.0**-40, 64.0, "w")
    flat = value_of(mark, z=z, linear=0.0, f=0.0)
    assert flat == 0.0 if z > 0 else flat >= 1.0
    assert value_of(mark, z=z, linear=1.0, f=0.0) == 0.0
    assert value_of(mark, z=z, linear=0.0, f=1.0) == 0.0


@pytest.mark.parametrize("a", [-1.5, 0.3, 2.5])
def test_what_is_passed_back_may_be_clipped_first(a):
    passed = PassBack(Combination.of("a"), "flat", ("f",), 0.25, 64.0, "w", bound=1.0)
    clipped = min(max(a, -1.0), 1.0)
    assert value_of(passed, a=a, flat=0.0, f=0.0) == pytest.approx(clipped, abs=1e-15)
    assert value_of(passed, a=a, flat=1.0, f=0.0) == pytest.approx(clipped / 4, abs=1e-15)
    assert value_of(passed, a=a, flat=0.0, f=1.0) == 0.0


def stream_of(program, **rows):
    """A column of the stream with these rows."""
    stream = torch.zeros(1, program.layout.width, dtype=torch.float64)
    stream[:, program.layout.range_of("one")] = 1.0
    for name, row in rows.items():
        stream[0, program.layout.range_of(name)] = row.flatten()
    return stream


def test_attention_looks_functions_up_and_multiplies_entries():
    """tanh(W o), tanh'(W o), sigmoid(W o) and up * slope, all over one grid."""
    program = program_of(problem_of(MLP((2, 3, 1), "tanh"), 2, loss="logistic", box=1.0))
    generator = torch.Generator().manual_seed(0)
    rows = {
        name: torch.randn(program.layout.slot(name).shape, generator=generator).double()
        for name in ("weights", "inputs", "up", "slope")
    }
    stream = stream_of(program, **rows)
    with torch.no_grad():
        after = lower_chain(program)[1](stream) - stream
    z = rows["weights"] @ rows["inputs"]
    expected = {
        "z": z,
        "tanh of z": torch.tanh(z),
        "tanh' of z": 1 / torch.cosh(z) ** 2,
        "sigmoid of z": torch.sigmoid(z),
        "delta": rows["up"] * rows["slope"],
    }
    for name, value in expected.items():
        read = after[0, program.layout.range_of(name)].view_as(value)
        torch.testing.assert_close(read, value, rtol=0, atol=1e-10)
    written = sum(program.layout.slot(name).width for name in expected)
    assert int((after != 0).sum()) == written, "no other slot changes"


@pytest.mark.parametrize("largest", [1.0, 4000.0])
def test_attention_shares_classes_beside_products(largest):
    """softmax(z) of the first three of four units; grid and classes do not see each other."""
    program = program_of(problem_of(MLP((2, 4, 3), "relu"), 2, loss="cross_entropy"))
    generator = torch.Generator().manual_seed(0)
    rows = {
        name: torch.rand(program.layout.slot(name).shape, generator=generator).double() - 0.5
        for name in ("z", "weights", "delta", "carried")
    }
    rows["z"] *= 2 * largest
    stream = stream_of(program, **rows)
    with torch.no_grad():
        after = lower_chain(program)[2](stream) - stream
    shares = torch.zeros(4, 2, dtype=torch.float64)
    shares[:3] = rows["z"][:3].softmax(0)
    expected = {
        "shares": shares,
        "outer": rows["delta"] @ rows["carried"].T,
        "back": rows["weights"].T @ rows["delta"],
    }
    for name, value in expected.items():
        read = after[0, program.layout.range_of(name)].view_as(value)
        torch.testing.assert_close(read, value, rtol=0, atol=1e-15 if name == "shares" else 1e-11)


def test_a_flag_of_units_closes_their_rows_alone():
    program = program_of(problem_of(MLP((2, 3, 1), "tanh"), 2, box=1.0))
    looked_up = torch.arange(1.0, 7.0).double().view(3, 2)
    flags = {"tanh": torch.ones(1), "padding": torch.tensor([0.0, 1.0, 0.0])}
    stream = stream_of(program, **{"tanh of z": looked_up}, **flags)
    with torch.no_grad():
        after = lower_chain(program)[-1](stream)
    first = after[0, program.layout.range_of("out.first")].view(3, 2)
    assert first.tolist() == [[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]]


def test_attention_multiplies_matrices():
    """z = W o, delta o^T and W^T delta of numbers that are put into the stream by hand."""
    program = program_of(problem_of(MLP((3, 4, 2), "relu"), batch_size=2))
    layout, attention = program.layout, lower_chain(program)[1]
    generator = torch.Generator().manual_seed(0)
    stream = torch.zeros(1, layout.width, dtype=torch.float64)
    stream[:, layout.range_of("one")] = 1.0
    matrices = {}
    for name in ("weights", "inputs", "carried", "delta"):
        shape = layout.slot(name).shape
        matrices[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
        stream[0, layout.range_of(name)] = matrices[name].flatten()
    with torch.no_grad():
        after = attention(stream) - stream
    weights, inputs, carried, delta = matrices.values()
    products = {"z": weights @ inputs, "outer": delta @ carried.T, "back": weights.T @ delta}
    for name, product in products.items():
        read = after[0, layout.range_of(name)].view_as(product)
        torch.testing.assert_close(read, product, rtol=0, atol=1e-11)
    written = sum(layout.slot(name).width for name in products)
    assert int((after != 0).sum()) == written, "no other slot changes"


def test_an_instruction_without_a_rule_is_named():
    with pytest.raises(ProgramError, match=r"Juggle has no rule in weights/chain_lowering.py"):
        relus_of(Juggle())
    with pytest.raises(ProgramError, match=r"Juggle has no heads in weights/chain_lowering.py"):
        heads_of(Juggle(), program_of(problem_of(MLP((1, 1), "relu"))), torch.float64)
