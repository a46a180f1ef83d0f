"""softmax-stack: the counts of its layers, what it promises, and its listing."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import icgd
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.run import RunOptions
from icgd.choice import construction_for
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.constructions.softmax_stack import PROBE, SoftmaxStack
from icgd.errors import SettingError, UnsupportedProblemError
from icgd.problems.data import Domain, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.check import check_program
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import (
    AddGradient,
    AddProduct,
    Argument,
    Combination,
    LookUp,
    MapSlots,
    Project,
)
from icgd.program.network_instructions import ShareClasses
from icgd.program.stack import StackProgram
from tests import cases
from tests.cases import make_case
from tests.constructions.test_relu_stack import all_plus, corner, signs

SOFTMAX_STACK = SoftmaxStack()
GOLDEN = Path(__file__).parents[1] / "golden"
HEADLINE = MLP((3, 4, 4, 2), "tanh")
DEPTHS = (1, 2, 3, 4)
COARSE = SoftmaxStack(registers=32)


def problem_of(
    target: MLP, loss: str = "squared", *, box: float = 1.0, domain: Domain | None = None
) -> Problem:
    return Problem(target, loss, GradientStep(0.5, box), domain or Domain(x=2.0, y=2.0))


def build(
    problem: Problem, construction: SoftmaxStack = SOFTMAX_STACK, *, n_steps: int = 1
) -> StackProgram:
    return construction.build(problem, n_steps)


def chain(depth: int, activation: str, output: str = "identity") -> MLP:
    """A network of one unit a layer."""
    return MLP((1,) * (depth + 1), activation, output)


def kinds(program: StackProgram) -> str:
    """A for attention, M for an MLP."""
    return "".join({"softmax": "A", "mlp": "M"}[layer.kind.value] for layer in program.block)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "identity"])
def test_a_step_takes_2n_plus_1_layers(activation, loss, depth):
    program = build(problem_of(chain(depth, activation), loss), COARSE, n_steps=7)
    check_program(program)
    assert kinds(program) == "A" * (2 * depth) + "M"
    assert program.n_layers == 7 * (2 * depth + 1) + depth + 1


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("loss", "more"), [("squared", "A"), ("logistic", "AA"), ("huber", "MA")])
def test_an_output_activation_takes_one_layer_more_and_another_for_a_loss_slope(loss, more, depth):
    program = build(problem_of(chain(depth, "tanh", "sigmoid"), loss), COARSE)
    assert kinds(program) == "A" * depth + more + "A" * (depth - 1) + "AM"


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
def test_a_kinked_activation_takes_an_mlp_in_every_layer_that_has_it_and_one_more(activation):
    hidden = build(problem_of(chain(3, activation)), COARSE)
    assert kinds(hidden) == "AM" * 2 + "A" + "M" + "AA" + "AM"
    output = build(problem_of(chain(3, "tanh", activation)), COARSE)
    assert kinds(output) == "AAAM" + "M" + "AAA" + "AM"


def test_slopes_at_kinks_share_the_mlp_of_the_huber_loss():
    program = build(problem_of(chain(3, "relu"), "huber"), COARSE)
    assert kinds(program) == "AM" * 2 + "A" + "M" + "AA" + "AM"
    assert [part.write for part in program.block[5].instructions] == [
        "loss_part_1",
        "slope_1",
        "slope_2",
    ]


@pytest.mark.parametrize("activation", ["gelu", "silu", "softplus"])
def test_an_activation_that_grows_takes_another_attention_in_every_layer_that_has_it(activation):
    assert kinds(build(problem_of(chain(3, activation)), COARSE)) == "AA" * 2 + "A" + "AA" + "AM"
    output = build(problem_of(chain(3, "tanh", activation)), COARSE)
    assert kinds(output) == "AAAA" + "AAA" + "AM"


def test_the_huber_loss_takes_an_mlp():
    assert kinds(build(problem_of(chain(3, "tanh"), "huber"), COARSE)) == "AAA" + "M" + "AA" + "AM"


def hidden_of(target: MLP) -> list[str]:
    return [target.activation] if target.depth > 1 else []


def layers_a_step(target: MLP, loss: str) -> int:
    """Counted as the module says."""
    hidden = 0 if target.activation in {"identity", "tanh", "sigmoid"} else 1
    output = 0 if target.output_activation in {"identity", "tanh", "sigmoid"} else 1
    is_linear = target.output_activation == "identity"
    kinked = {"relu", "leaky_relu"} & {target.output_activation, *hidden_of(target)}
    looked_up = loss == "logistic" and not is_linear
    slope = looked_up + bool(loss == "huber" or kinked)
    more = hidden * (target.depth - 1) + output + (not is_linear) + slope
    return 2 * target.depth + 1 + more


def unfitted(functions: tuple, reach: float, half: int) -> tuple[LatticeFunction, ...]:
    """Look-ups with made-up values: the layers do not depend on them."""
    made_up = LatticeFunction("", reach, 0.5, 1.4, (0.0,) * (2 * half + 1), 1e-9, 1.0, 1.0)
    return tuple(replace(made_up, name=function.name) for function in functions)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("loss", cases.ONE_VARIABLE_LOSSES)
def test_no_problem_takes_more_than_3n_plus_4_layers(loss, depth, monkeypatch):
    monkeypatch.setattr("icgd.approximation.lattice.fit_on_lattice", unfitted)
    hidden = list(cases.KNOWN) if depth > 1 else ["tanh"]
    counts = []
    for activation, output in product(hidden, cases.KNOWN):
        target = chain(depth, activation, output)
        program = build(problem_of(target, loss, box=0.5, domain=Domain(1.0, 1.0)), COARSE)
        assert len(program.block) == layers_a_step(target, loss), target
        assert set(kinds(program)) == {"A", "M"}
        counts.append(len(program.block))
    worst = 3 * depth + (4 if loss == "logistic" else 3)
    assert max(counts) == worst


def test_3_4_4_2_tanh_needs_at_most_110_registers_for_1e_11():
    program = build(problem_of(HEADLINE))
    assert program.n_registers <= 110
    assert len(program.block) == 7
    assert {function.name for function in program.lattice_functions} == {
        "identity",
        "square",
        "tanh",
        "tanh'",
    }
    assert max(function.error for function in program.lattice_functions) <= 1e-11


def test_registers_are_those_that_are_asked_for():
    for registers in (32, 64, 100):
        assert (
            build(problem_of(HEADLINE), SoftmaxStack(registers=registers)).n_registers == registers
        )
    assert build(problem_of(chain(2, "relu"))).n_registers == 32


def test_float32_is_content_with_fewer_registers():
    assert build(problem_of(HEADLINE), SoftmaxStack(dtype="float32")).n_registers <= 64


def test_the_weights_depend_on_neither_the_data_nor_the_number_of_steps():
    few, many = (build(problem_of(HEADLINE), COARSE, n_steps=n) for n in (1, 50))
    assert (few.layout, few.functions, few.block) == (many.layout, many.functions, many.block)


def test_scratch_has_only_the_slots_that_are_used():
    names = build(problem_of(chain(2, "tanh"))).layout.names
    assert names[:7] == ("x", "y", "weights_1", "weights_2", "units_1", "units_2", "slope_1")
    assert names[7:9] == ("delta_1", "one")


def test_the_golden_listing_of_3_4_4_2_tanh():
    """But for the errors, which come out of a least-squares fit, in whatever order it rounds."""
    problem = make_case(HEADLINE, "squared").problem
    listing = build(problem, SoftmaxStack(registers=64), n_steps=5).listing()
    listing = re.sub(r"error at most \S+", "error at most ...", listing)
    assert listing == (GOLDEN / "softmax_stack_3_4_4_2_tanh.txt").read_text(encoding="utf-8")


def test_cross_entropy_takes_one_layer_more_with_one_head():
    coupled, alone = (problem_of(HEADLINE, loss) for loss in ("cross_entropy", "squared"))
    assert SOFTMAX_STACK.why_not(coupled) is None
    block = build(coupled).block
    assert len(block) == len(build(alone).block) + 1
    (shares,) = (layer for layer in block if layer.title == "shares")
    assert shares.instructions == (ShareClasses("units_3", ("class_1", "class_2"), "shares"),)


def test_classes_have_registers_of_their_own():
    many = MLP((2, 70), "relu")
    assert build(problem_of(many, "cross_entropy")).n_registers == 72
    assert build(problem_of(many)).n_registers == 32


def test_scores_that_no_mask_hides_are_refused():
    wide = problem_of(MLP((2, 3), "relu"), "cross_entropy", box=100.0, domain=Domain(100.0, 1.0))
    reason = SOFTMAX_STACK.why_not(wide)
    assert reason == (
        "the scores of its classes can reach 2e+04 on the domain, and a mask hides other tokens "
        "only up to 1024; use a smaller box or domain."
    )


@pytest.mark.parametrize(
    ("target", "domain", "largest"),
    [
        # 3 inputs of size 1e12 with weights up to 1.
        (HEADLINE, Domain(1e12, 2.0), "3e+12"),
        # Slopes of a loss are 2 (|p| + |y|); labels add nothing to preactivations.
        (MLP((1, 1), "tanh"), Domain(1.0, 1e12), "2e+12"),
        # A linear network passes 1e14 on, and the slope of the loss doubles it.
        (MLP((1, 1, 1), "identity"), Domain(1e14, 1.0), "2e+14"),
    ],
)
def test_arguments_without_digits_are_refused(target, domain, largest):
    assert SOFTMAX_STACK.why_not(problem_of(target, domain=domain)) == (
        f"its preactivations or slopes can reach {largest} on the domain, where float64 has too "
        "few digits to look them up; use a smaller box or domain."
    )


@pytest.mark.parametrize("activation", cases.KNOWN)
@pytest.mark.parametrize("loss", cases.ONE_VARIABLE_LOSSES)
def test_every_loss_of_one_variable_is_served(activation, loss):
    problem = problem_of(MLP((2, 3, 1), activation, activation), loss)
    assert SOFTMAX_STACK.why_not(problem) is None
    assert construction_for(problem, "softmax-stack") == CONSTRUCTIONS["softmax-stack"]


@pytest.mark.parametrize("registers", [1, 31, 1025])
def test_registers_out_of_range_are_refused(registers):
    message = f"^registers must lie between 32 and 1024, got {registers}\\.$"
    with pytest.raises(SettingError, match=message):
        build(problem_of(HEADLINE), SoftmaxStack(registers=registers))


def test_registers_out_of_range_are_refused_even_if_nothing_is_fitted():
    with pytest.raises(SettingError, match=r"^registers must lie between 32 and 1024, got 8\.$"):
        build(problem_of(chain(1, "relu")), SoftmaxStack(registers=8))


@pytest.mark.parametrize("registers", [0, -2])
def test_a_precision_has_at_least_one_register(registers):
    message = f"^registers must be a whole number of at least 1, got {registers}\\.$"
    with pytest.raises(SettingError, match=message):
        SoftmaxStack(registers=registers)


def test_too_few_registers_for_an_activation_that_grows_are_refused():
    """The error of a gate is multiplied by a preactivation, which grows by it in every layer."""
    problem = problem_of(MLP((2, 3, 3, 3, 2), "silu", "silu"), box=10.0)
    with pytest.raises(SettingError, match=r"^registers=32 is too few for these ranges: the error"):
        build(problem, COARSE)
    assert build(problem, SoftmaxStack(registers=64)).n_registers == 64


def inputs_of(combination: Combination, before: dict) -> torch.Tensor:
    return sum(factor * before[name] for name, factor in combination.terms())


def value_of(argument: Argument, before: dict, program: StackProgram) -> torch.Tensor:
    """At every token, with the weights that the memory holds."""
    inputs = inputs_of(argument.inputs, before)
    if argument.weights is None:
        return inputs
    matrix = before[argument.weights][0].view(program.layout.slot(argument.weights).shape)
    return inputs @ (matrix if argument.transposed else matrix.T)


def ranges(instruction, before: dict, program: StackProgram) -> list[tuple[float, float]]:
    """What the instruction takes at its largest, and what it was made for."""
    match instruction:
        case LookUp(argument=argument, lookups=(name, *_)):
            look_up = program.look_up(name)
            reach = float("inf") if look_up.saturates else look_up.reach
            pairs = [(value_of(argument, before, program), reach)]
        case Project(argument=argument, reach=reach):
            pairs = [(value_of(argument, before, program), reach)]
        case AddProduct(argument=argument, reach=reach, factor=factor, factor_reach=bound):
            pairs = [(value_of(argument, before, program), reach), (before[factor], bound)]
        case AddGradient(left=left, probe=probe):
            pairs = [(probe * inputs_of(left, before), (1 + 2.0**-9) * PROBE["float64"])]
        case MapSlots(summands=(summand,)):
            function = program.relu_sum(summand.function)
            pairs = [(inputs_of(summand.argument, before), function.high)]
        case _:
            pairs = []
    return [(float(taken.abs().max()), made_for) for taken, made_for in pairs]


@settings(max_examples=20)
@given(
    name=st.sampled_from(cases.KNOWN),
    output=st.sampled_from(cases.KNOWN),
    loss=st.sampled_from(cases.ONE_VARIABLE_LOSSES),
    widths=st.sampled_from(cases.SHAPES),
    registers=st.sampled_from([32, 40]),
    bounds=st.tuples(*[st.floats(0.1, 2.0)] * 4),
    x_signs=all_plus | signs,
    w_signs=all_plus | signs,
)
def test_no_argument_leaves_its_range_at_the_corners_of_the_domain(
    name, output, loss, widths, registers, bounds, x_signs, w_signs
):
    x_bound, y_bound, box, step_size = bounds
    domain = Domain(x_bound, y_bound)
    problem = Problem(MLP(widths, name, output), loss, GradientStep(step_size, box), domain)
    task = as_task(
        problem,
        corner(x_bound, x_signs, (3, widths[0])),
        torch.full((3, widths[-1]), min(1.0, y_bound), dtype=torch.float64),
        queries=corner(x_bound, [not sign for sign in x_signs], (2, widths[0])),
        initial=corner(box, w_signs, (problem.target.n_parameters,)),
    )
    program = build(problem, SoftmaxStack(registers=registers), n_steps=2)
    trace = DenseBackend().run(program, task, RunOptions(program.layout.names)).trace
    for number, layer in enumerate(program.unrolled()):
        before = {name: states[number] for name, states in trace.items()}
        for instruction in layer.instructions:
            for taken, made_for in ranges(instruction, before, program):
                assert taken <= made_for, instruction.formula()


@pytest.mark.parametrize("registers", [None, 240])
def test_saturated_units_are_looked_up_too(registers):
    """Far out on a large grid, where the memory has a higher score than most of its tokens."""
    problem = make_case(MLP((3, 2), "tanh", "tanh"), "logistic").problem
    program = build(problem, SoftmaxStack(registers=registers))
    top = torch.full((2, 3), 2.0, dtype=torch.float64)
    initial = torch.tensor([3.0, 3.0, 3.0, -1.5, -1.5, -1.5], dtype=torch.float64)
    task = as_task(problem, top, torch.zeros(2, 2).double(), queries=top, initial=initial)
    predictions = DenseBackend().run(program, task).predictions
    expected = torch.tensor([18.0, -9.0], dtype=torch.float64).tanh().expand(2, 2)
    torch.testing.assert_close(predictions, expected, rtol=0, atol=1e-10)


def test_every_register_keeps_the_weights_times_its_own_scale():
    case = make_case(HEADLINE, "squared", box=1.0)
    program = build(case.problem, COARSE, n_steps=2)
    trace = DenseBackend().run(program, case.task(), RunOptions(program.layout.names)).trace
    scale = trace["scale"][-1]
    for name in ("weights_1", "weights_2", "weights_3"):
        end = trace[name][-1]
        assert (end[0] - trace[name][0][0]).abs().max() > 0.01
        torch.testing.assert_close(end, scale * end[0], rtol=0, atol=1e-12)
        assert not end[scale[:, 0] == 0].any()


def weight_error(seed: int, registers: int | None, n_steps: int = 5) -> float:
    """Largest distance to the exact run from the same weights."""
    case = make_case(HEADLINE, "squared", box=1.0, n_examples=6, seed=seed)
    task = case.task()
    program = build(case.problem, SoftmaxStack(registers=registers), n_steps=n_steps)
    weights = FusedBackend().run(program, task).parameters
    truth = case.problem.oracle.train(task, n_steps)
    assert (truth[-1] - truth[0]).abs().max() > 0.1
    return float((weights - truth).abs().max())


def test_five_steps_of_3_4_4_2_tanh_err_by_1e_11_at_most():
    assert max(weight_error(seed, None) for seed in range(3)) <= 1e-11


def test_the_error_falls_exponentially_with_the_registers():
    errors = [max(weight_error(seed, n) for seed in range(2)) for n in (32, 64, 96)]
    assert errors[0] >= 1000 * errors[1]
    assert errors[1] >= 1000 * errors[2]


@pytest.mark.parametrize(("box", "x"), [(1e-300, 1e-300), (1e-200, 1.0), (1e-320, 1e-320)])
def test_ranges_that_underflow_are_refused(box, x):
    step, domain = icgd.GradientStep(0.1, box=box), icgd.Domain(x=x, y=1.0)
    problem = icgd.Problem(icgd.MLP((2, 2, 1), "relu"), "squared", step, domain)
    with pytest.raises(UnsupportedProblemError, match=r"one is at most .* too small for float64"):
        icgd.compile(problem, "softmax-stack", n_steps=1)
