"""Each instruction by units, as heads or hidden units, computes its formula on any stream.

The sums of units are random ones: heads have to evaluate them, not to approximate anything.
"""

import pytest
import torch

from icgd.program.check import Shapes
from icgd.program.functions import RidgeSum, RidgeUnit
from icgd.program.instructions import Argument, Combination, Instruction
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import (
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddJacobian,
    AddOuterProduct,
    ClipByUnits,
    CopyToQueries,
    PassOn,
    PushJacobian,
    SlopeOfLoss,
    StartJacobian,
    WipeByUnits,
)
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size
from tests.approximation.yardsticks import evaluate

N_EXAMPLES, N_TOKENS = 3, 5

# Slots between those in use, so that a wrong offset shows.
LAYOUT = Layout(
    (
        Slot("x", (3,), Role.INPUT),
        Slot("y", (2,), Role.LABEL),
        Slot("first", (2, 3), Role.PARAMETER),
        Slot("between", (1,), Role.SCRATCH),
        Slot("second", (4, 2), Role.PARAMETER),
        Slot("last", (2, 4), Role.PARAMETER),
        Slot("first_b", (2, 4), Role.PARAMETER),
        Slot("second_b", (4, 3), Role.PARAMETER),
        Slot("last_b", (2, 5), Role.PARAMETER),
        Slot("units", (2,), Role.SCRATCH),
        Slot("mixed", (4,), Role.SCRATCH),
        Slot("started", (4, 6), Role.SCRATCH),
        Slot("pushed", (2, 6), Role.SCRATCH),
        Slot("started_b", (4, 8), Role.SCRATCH),
        Slot("slope", (2,), Role.SCRATCH),
        Slot("one", (1,), Role.CONSTANT),
        Slot("is_query", (1,), Role.CONSTANT),
        Slot("tokens_per_example", (1,), Role.CONSTANT),
        Slot("example_share", (1,), Role.CONSTANT),
    )
)
Z_1 = Argument(Combination.of("x"), "first")
Z_2 = Argument(Combination.of("mixed"))
Z_B = Argument(Combination.of("x"), "first_b", bias="one")


def random_sum(name: str, activation: str, n_arguments: int, seed: int) -> RidgeSum:
    """Five units with any numbers."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, n_arguments + 2, generator=generator, dtype=torch.float64).tolist()
    units = tuple(RidgeUnit(tuple(row[:-2]), row[-2], row[-1]) for row in rows)
    return RidgeSum(name, activation, (1.0,) * n_arguments, units, 0.0)


def program_of(activation: str) -> StackProgram:
    """A program with all functions, one layer of attention and one of hidden units."""
    line, two = random_sum("f", activation, 1, 0), random_sum("g", activation, 2, 1)
    layers = [
        Layer("attention", (PassOn("second", Z_1, "f", "mixed"),)),
        Layer("mlp", (WipeByUnits(("mixed",), "f", 2.0),)),
    ]
    return StackProgram("by hand", LAYOUT, (line, two), tuple(layers), 1, (), activation=activation)


def prompt() -> torch.Tensor:
    """Random but for the constants, and for the weights, which are equal in all tokens."""
    generator = torch.Generator().manual_seed(2)
    stream = torch.randn(N_TOKENS, LAYOUT.width, generator=generator, dtype=torch.float64)
    slots = Slots(stream)
    for slot in LAYOUT.having(Role.PARAMETER):
        slots[slot.name] = slots[slot.name][:1].expand(N_TOKENS, -1, -1)
    is_example = (torch.arange(N_TOKENS) < N_EXAMPLES).double().unsqueeze(-1)
    slots["one"], slots["is_query"] = torch.ones_like(is_example), 1 - is_example
    slots["tokens_per_example"] = slots["one"] * N_TOKENS / N_EXAMPLES
    slots["example_share"] = slots["tokens_per_example"] * is_example
    return stream


class Slots:
    """A stream's slots by name, in their shapes."""

    def __init__(self, stream: torch.Tensor) -> None:
        self.stream = stream

    def __getitem__(self, name: str) -> torch.Tensor:
        values = self.stream[:, LAYOUT.range_of(name)]
        return values.unflatten(-1, LAYOUT.slot(name).shape)

    def __setitem__(self, name: str, values: torch.Tensor) -> None:
        self.stream[:, LAYOUT.range_of(name)] = values.flatten(1)


def assert_adds(
    instruction: Instruction, activation: str = "tanh", **expected: torch.Tensor
) -> None:
    """The layer adds `expected` to those slots and leaves every other one; its size is counted."""
    program, before = program_of(activation), prompt()
    layer = Layer("here", (instruction,))
    assert Shapes(LAYOUT, is_chain=False).problem_with(instruction) is None
    built = lower_layer(layer, program, torch.float64)
    truth = before.clone()
    for name, values in expected.items():
        Slots(truth)[name] = Slots(truth)[name] + values.view_as(Slots(truth)[name])
    torch.testing.assert_close(built(before), truth, rtol=1e-12, atol=1e-12)
    size, weights = layer_size(layer, program), list(built.parameters())
    assert size.parameters == sum(weight.numel() for weight in weights)
    assert size.nonzeros == sum(int(weight.count_nonzero()) for weight in weights)


def f(z: torch.Tensor, activation: str = "tanh") -> torch.Tensor:
    return evaluate(random_sum("f", activation, 1, 0), z.unsqueeze(-1))


def g(a: torch.Tensor, b: torch.Tensor, activation: str = "tanh") -> torch.Tensor:
    pairs = torch.stack(torch.broadcast_tensors(a, b), dim=-1)
    return evaluate(random_sum("g", activation, 2, 1), pairs)


BEFORE = Slots(prompt())
FIRST, SECOND, LAST = (BEFORE[name][0] for name in ("first", "second", "last"))
ARGUMENT = BEFORE["x"] @ FIRST.T


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "cos"])
def test_units_are_activated_at_the_weights_times_the_inputs(activation):
    expected = 2.0 * f(ARGUMENT / 2.0, activation)
    assert_adds(ActivateUnits(Z_1, "f", 2.0, "units"), activation, units=expected)


def test_units_are_activated_at_a_slot():
    assert_adds(ActivateUnits(Z_2, "f", 0.5, "mixed"), mixed=0.5 * f(BEFORE["mixed"] / 0.5))


def test_what_units_pass_on_is_the_weights_times_their_values():
    assert_adds(PassOn("second", Z_1, "f", "mixed"), mixed=f(ARGUMENT) @ SECOND.T)
    assert_adds(PassOn("last", Z_2, "f", "slope"), slope=f(BEFORE["mixed"]) @ LAST.T)


def test_a_jacobian_starts_as_weights_times_inputs_times_slopes():
    """Entry (i, (k, l)): weights[i, k] P(inputs[l], argument[k])."""
    products = 3.0 * g(BEFORE["x"].unsqueeze(-2) / 3.0, ARGUMENT.unsqueeze(-1))
    expected = torch.einsum("ik,tkl->tikl", SECOND, products)
    start = StartJacobian("second", "x", Z_1, "tanh", "g", 3.0, "started")
    assert_adds(start, started=expected.flatten(-2))


def test_a_jacobian_is_pushed_by_the_weights():
    """Entry (i, p): sum_k weights[i, k] P(jacobian[k, p], argument[k])."""
    products = 3.0 * g(BEFORE["started"] / 3.0, BEFORE["mixed"].unsqueeze(-1))
    expected = torch.einsum("ik,tkp->tip", LAST, products)
    push = PushJacobian("last", "started", Z_2, "tanh", "g", 3.0, "pushed")
    assert_adds(push, pushed=expected)


def test_products_are_averaged_over_the_examples():
    left, right = BEFORE["slope"][:N_EXAMPLES], BEFORE["mixed"][:N_EXAMPLES]
    products = 6.0 * g(left.unsqueeze(-1) / 2.0, right.unsqueeze(-2) / 3.0)
    add = AddOuterProduct("slope", "mixed", (2.0, 3.0), "g", -0.75, "last")
    assert_adds(add, last=-0.75 * products.mean(0).expand(N_TOKENS, -1, -1))


def test_rows_of_a_jacobian_are_added_up_and_averaged_over_the_examples():
    left, rows = BEFORE["slope"][:N_EXAMPLES], BEFORE["pushed"][:N_EXAMPLES]
    products = 6.0 * g(left.unsqueeze(-1) / 2.0, rows / 3.0)
    add = AddJacobian("slope", "pushed", (2.0, 3.0), "g", -0.75, "first")
    assert_adds(add, first=-0.75 * products.sum(1).mean(0).expand(N_TOKENS, -1))


@pytest.mark.parametrize(("activation", "sharpness"), [("relu", 1.0), ("elu", 2.0**40)])
def test_gated_products_are_exact_and_leave_queries_out(activation, sharpness):
    left = BEFORE["slope"][:N_EXAMPLES]
    outer = torch.einsum("ti,tj->ij", left, BEFORE["mixed"][:N_EXAMPLES]) / N_EXAMPLES
    product = AddGatedProduct("slope", "mixed", 9.0, 16.0, sharpness, -0.75, "last")
    assert_adds(product, activation, last=-0.75 * outer.expand(N_TOKENS, -1, -1))
    rows = torch.einsum("tk,tkp->p", left, BEFORE["pushed"][:N_EXAMPLES]) / N_EXAMPLES
    jacobian = AddGatedJacobian("slope", "pushed", 9.0, 16.0, sharpness, -0.75, "first")
    assert_adds(jacobian, activation, first=-0.75 * rows.expand(N_TOKENS, -1))


def biased(name: str) -> torch.Tensor:
    """A slot with a constant 1 after it."""
    return torch.cat([BEFORE[name], torch.ones(N_TOKENS, 1)], dim=-1)


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "cos"])
def test_the_last_column_of_weights_is_a_bias(activation):
    argument = biased("x") @ BEFORE["first_b"][0].T
    values = 2.0 * f(argument / 2.0, activation)
    assert_adds(ActivateUnits(Z_B, "f", 2.0, "units"), activation, units=values)
    weights, bias = BEFORE["second_b"][0][:, :-1], BEFORE["second_b"][0][:, -1]
    passed_on = f(argument, activation) @ weights.T + bias
    assert_adds(PassOn("second_b", Z_B, "f", "mixed", "one"), activation, mixed=passed_on)


def test_jacobians_and_products_have_a_column_for_the_bias():
    argument, weights = biased("x") @ BEFORE["first_b"][0].T, BEFORE["second_b"][0][:, :-1]
    products = 3.0 * g(biased("x").unsqueeze(-2) / 3.0, argument.unsqueeze(-1))
    started = torch.einsum("ik,tkl->tikl", weights, products).flatten(-2)
    start = StartJacobian("second_b", "x", Z_B, "tanh", "g", 3.0, "started_b", "one")
    assert_adds(start, started_b=started)
    products = 3.0 * g(BEFORE["started"] / 3.0, BEFORE["mixed"].unsqueeze(-1))
    pushed = torch.einsum("ik,tkp->tip", BEFORE["last_b"][0][:, :-1], products)
    assert_adds(PushJacobian("last_b", "started", Z_2, "tanh", "g", 3.0, "pushed"), pushed=pushed)
    left, right = BEFORE["slope"][:N_EXAMPLES], biased("mixed")[:N_EXAMPLES]
    products = 6.0 * g(left.unsqueeze(-1) / 2.0, right.unsqueeze(-2) / 3.0)
    add = AddOuterProduct("slope", "mixed", (2.0, 3.0), "g", -0.75, "last_b", "one")
    assert_adds(add, last_b=-0.75 * products.mean(0).expand(N_TOKENS, -1, -1))
    outer = torch.einsum("ti,tj->ij", left, right) / N_EXAMPLES
    gated = AddGatedProduct("slope", "mixed", 9.0, 16.0, 1.0, -0.75, "last_b", "one")
    assert_adds(gated, "relu", last_b=-0.75 * outer.expand(N_TOKENS, -1, -1))


BROKEN = {
    "pass on": (
        PassOn("second", Z_B, "f", "mixed", "one"),
        "a matrix (4, 2) meets (3) coordinates",
    ),
    "start": (
        StartJacobian("second_b", "x", Z_B, "tanh", "g", 3.0, "started", "one"),
        "writes (32) to started",
    ),
    "push": (
        PushJacobian("first", "started", Z_2, "tanh", "g", 3.0, "pushed"),
        "a matrix (2, 3) has no 4 columns, or one more for a bias",
    ),
    "product": (
        AddGatedProduct("slope", "mixed", 9.0, 16.0, 1.0, 1.0, "last", "one"),
        "products of (2) and (5) are added to (2, 4)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_weights_without_a_column_for_the_bias_are_named(name):
    instruction, message = BROKEN[name]
    problem = Shapes(LAYOUT, is_chain=False).problem_with(instruction)
    assert problem is not None
    assert problem.startswith(f"{message}, in {instruction.formula()} with ")


def test_the_slope_of_the_loss_is_taken_at_prediction_and_label():
    slope = SlopeOfLoss("units", "y", "squared", "g", "slope")
    assert_adds(slope, slope=g(BEFORE["units"], BEFORE["y"]))


def test_copying_reads_the_flag_of_queries():
    copy = CopyToQueries("units", "g", "y")
    assert_adds(copy, y=g(BEFORE["units"], BEFORE["is_query"]))


def test_clipping_and_wiping_add_their_function_of_every_coordinate():
    both = ("first", "units")
    assert_adds(ClipByUnits(both, 1.0, "f"), **{name: f(BEFORE[name]) for name in both})
    wiped = {name: -2.0 * f(BEFORE[name] / 2.0) for name in both}
    assert_adds(WipeByUnits(both, "f", 2.0), **wiped)
