"""relu-stack: the counts of its layers, what it promises, and its listing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import icgd
from icgd import LearnableRun
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.run import RunOptions
from icgd.choice import construction_for, construction_named
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.constructions.relu_stack import ReluStack
from icgd.errors import (
    DataError,
    DomainError,
    SettingError,
    UnknownNameError,
    UnsupportedProblemError,
)
from icgd.problems.data import Domain, as_task
from icgd.problems.functions import ACTIVATIONS, reciprocal_deviation, reciprocal_root
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.instructions import ApplyUnits, MapSlots
from icgd.program.stack import StackProgram
from tests import cases
from tests.cases import build, make_case, over
from tests.problems.test_oracles import SHAPED

RELU_STACK = ReluStack()
GOLDEN = Path(__file__).parents[1] / "golden"
HEADLINE = MLP((3, 4, 4, 2), "tanh")


def has_linear_output(target: MLP) -> bool:
    return target.layer_activation(target.depth).name == "identity"


@over(cases.SMALL)
def test_a_step_takes_2n_plus_3_layers_and_a_prediction_n_plus_1(case):
    """A layer less if the output is linear: the slope of the loss is multiplied by nothing."""
    depth, linear = case.problem.target.depth, has_linear_output(case.problem.target)
    program = build(RELU_STACK, case, n_steps=7)
    assert len(program.block) == 2 * depth + 3 - linear
    assert len(program.prediction) == depth + 1
    assert program.n_layers == 7 * (2 * depth + 3 - linear) + depth + 1
    attention, product, mlp = ["attention"], ["product"], ["mlp"]
    kinds = [layer.kind.value for layer in program.block]
    assert kinds == attention * depth + mlp + product * (depth - linear) + attention + mlp
    assert [layer.kind.value for layer in program.prediction] == attention * depth + mlp


@over(cases.SMALL)
def test_the_stream_is_as_wide_as_the_formula_says(case):
    """d_x + d_y + |w| + 3 sum k_j + d_y + 2 of the paper, two more constants, relu(z) of leaky.

    A linear output has no slope, and the slope of the loss for its delta.
    """
    target = case.problem.target
    x, y = target.input_width, target.output_width
    expected = x + y + target.n_parameters + 3 * sum(target.widths[1:]) + y + 4
    expected -= 2 * y * has_linear_output(target)
    layers = range(1, target.depth + 1)
    leaky = [j for j in layers if target.layer_activation(j).name == "leaky_relu"]
    assert build(RELU_STACK, case).layout.width == expected + sum(target.widths[j] for j in leaky)


def test_the_cases_cover_depths_1_to_4():
    assert {case.problem.target.depth for case in cases.SMALL} == {1, 2, 3, 4}


def test_the_weights_depend_on_neither_the_data_nor_the_number_of_steps():
    case = cases.FEW[0]
    few, many = build(RELU_STACK, case, n_steps=1), build(RELU_STACK, case, n_steps=50)
    assert (few.layout, few.functions, few.block) == (many.layout, many.functions, many.block)


@over(cases.SMALL)
def test_only_smooth_functions_are_approximated(case):
    for function in build(RELU_STACK, case).functions:
        is_smooth = function.name.rstrip("'") in cases.SMOOTH
        is_step = function.name in {"relu'", "leaky_relu'"}
        assert function.is_exact == (not is_smooth and not is_step), function.name


def test_the_golden_listing_of_3_4_4_2_tanh():
    case = make_case(HEADLINE, "squared")
    listing = build(RELU_STACK, case, n_steps=5, pieces=128).listing()
    assert listing == (GOLDEN / "relu_stack_3_4_4_2_tanh.txt").read_text(encoding="utf-8")


def test_the_golden_data_of_2_3_1_relu_huber():
    """Nothing in it is approximated, so its numbers are the same on every machine."""
    data = build(RELU_STACK, make_case(MLP((2, 3, 1), "relu"), "huber"), n_steps=2).to_data()
    golden = (GOLDEN / "relu_stack_2_3_1_relu_huber.json").read_text(encoding="utf-8")
    assert json.loads(json.dumps(data)) == json.loads(golden)


CROSS_ENTROPY = make_case(HEADLINE, "cross_entropy").problem


def test_cross_entropy_takes_two_layers_more():
    assert RELU_STACK.why_not(CROSS_ENTROPY) is None
    block = RELU_STACK.build(CROSS_ENTROPY, 1).block
    assert len(block) == 2 * HEADLINE.depth + 2 + 2
    titles = [layer.title for layer in block]
    slope = titles.index("loss slope")
    assert titles[slope - 2 : slope] == ["exponentials", "shares"]


def test_cross_entropy_is_refused_by_others_with_those_that_take_it():
    for name in ("recursion", "cot-network"):
        with pytest.raises(UnsupportedProblemError) as caught:
            construction_for(CROSS_ENTROPY, name)
        assert str(caught.value).endswith("Constructions that can: relu-stack, softmax-stack.")


def test_a_batch_size_is_refused_with_the_reason():
    problem = make_case(HEADLINE, "squared").problem
    batched = replace(problem, update=GradientStep(0.5, 0.5, batch_size=2))
    assert RELU_STACK.why_not(batched) is None
    assert CONSTRUCTIONS["recursion"].why_not(batched) == (
        "its attention averages over all examples of the prompt in every step, and takes no "
        "batch_size, got 2; use relu-stack or softmax-stack."
    )


def with_root(**numbers: float) -> Problem:
    update = icgd.AdamStep(0.01, box=2.0, **numbers)
    return Problem(MLP((2, 2, 1)), "squared", update, Domain(1.0, 1.0))


@pytest.mark.parametrize("numbers", [{"gradient_scale": 1e300}, {"weight_decay": 1e200}])
def test_gradients_whose_squares_leave_the_numbers_are_refused_with_a_root(numbers):
    found = RELU_STACK.why_not(with_root(**numbers))
    assert found.startswith("its gradients can reach ")
    assert "are proved up to 1e+40 only; use a smaller box, domain, gradient scale" in found
    assert RELU_STACK.why_not(with_root(weight_decay=1e38)) is None


def test_gradients_next_to_nothing_have_roots_of_a_wider_range():
    root = RELU_STACK.program(with_root(gradient_scale=1e-300), 1).functions[-1]
    assert root.high == pytest.approx(1e-60)
    assert 0 < root.error < 1.0


def test_preactivations_without_digits_are_refused():
    """3 inputs of size 1e12 with weights up to 3; labels add nothing to the first layer."""
    problem = make_case(HEADLINE, "squared", domain=Domain(1e12, 2.0)).problem
    assert RELU_STACK.why_not(problem) == (
        "its preactivations can reach 9e+12 on the domain, where float64 leaves no digits to "
        "evaluate an activation; use a smaller box or domain."
    )
    assert (
        RELU_STACK.why_not(make_case(HEADLINE, "squared", domain=Domain(1e11, 2.0)).problem) is None
    )


@over(cases.SMALL)
def test_every_loss_of_one_variable_is_served(case):
    assert RELU_STACK.why_not(case.problem) is None
    assert construction_for(case.problem, "relu-stack") == CONSTRUCTIONS["relu-stack"]


def test_an_unknown_construction_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        construction_named("relu_stack")
    message = str(caught.value)
    assert message.startswith("Unknown construction 'relu_stack'; known are relu-stack")
    assert message.endswith("Did you mean 'relu-stack'?")


@pytest.mark.parametrize("pieces", [0, -1])
def test_a_precision_has_at_least_one_piece(pieces):
    message = f"^pieces must be a whole number of at least 1, got {pieces}\\.$"
    with pytest.raises(SettingError, match=message):
        ReluStack(pieces=pieces)


def arguments(program: StackProgram, trace: dict) -> list[tuple[str, float]]:
    """Every function of the program, with the largest argument that it got in a traced run."""
    found = []
    for number, layer in enumerate(program.unrolled()):
        before = {name: states[number] for name, states in trace.items()}
        for instruction in layer.instructions:
            if isinstance(instruction, ApplyUnits):
                shape = program.layout.slot(instruction.weights).shape
                matrix = before[instruction.weights][0].view(shape)
                z = before[instruction.inputs] @ matrix.T
                found += [(name, float(z.abs().max())) for name in instruction.functions()]
            if isinstance(instruction, MapSlots):
                for summand in instruction.summands:
                    terms = summand.argument.terms()
                    z = sum(factor * before[name] for name, factor in terms)
                    found.append((summand.function, float(z.abs().max())))
    return found


def corner(bound: float, signs: list[bool], shape: tuple[int, ...]) -> torch.Tensor:
    """+-bound in every entry; the signs are repeated as often as needed."""
    size = torch.Size(shape).numel()
    repeated = (signs * size)[:size]
    return bound * torch.tensor([1.0 if s else -1.0 for s in repeated], dtype=torch.float64).view(
        shape
    )


all_plus, signs = st.just([True]), st.lists(st.booleans(), min_size=1, max_size=40)


@settings(max_examples=30)
@given(
    name=st.sampled_from(list(ACTIVATIONS)),
    output=st.sampled_from(list(ACTIVATIONS)),
    loss=st.sampled_from(cases.ONE_VARIABLE_LOSSES),
    widths=st.sampled_from(cases.SHAPES),
    pieces=st.sampled_from([2, 5, 16]),
    bounds=st.tuples(*[st.floats(0.1, 3.0)] * 4),
    x_signs=all_plus | signs,
    w_signs=all_plus | signs,
)
def test_no_argument_leaves_the_interval_of_its_function_at_the_corners_of_the_domain(
    name, output, loss, widths, pieces, bounds, x_signs, w_signs
):
    x_bound, y_bound, box, step_size = bounds
    domain = Domain(x_bound, y_bound)
    problem = Problem(MLP(widths, name, output), loss, GradientStep(step_size, box), domain)
    n_parameters = problem.target.n_parameters
    task = as_task(
        problem,
        corner(x_bound, x_signs, (3, widths[0])),
        torch.full((3, widths[-1]), min(1.0, y_bound), dtype=torch.float64),
        queries=corner(x_bound, [not sign for sign in x_signs], (2, widths[0])),
        initial=corner(box, w_signs, (n_parameters,)),
    )
    program = ReluStack(pieces).build(problem, n_steps=2)
    trace = DenseBackend().run(program, task, RunOptions(program.layout.names)).trace
    for function, largest in arguments(program, trace):
        assert largest <= program.relu_sum(function).high, function


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_the_interval_is_not_much_wider_than_needed(activation):
    """At the all-plus corner the widest preactivation of an increasing activation is reached."""
    case = make_case(MLP((2, 3, 1), activation), "squared")
    program = ReluStack(64).build(case.problem, n_steps=0)
    top = {"x": torch.full((1, 2), 2.0).double(), "queries": torch.full((1, 2), 2.0).double()}
    initial = torch.full((9,), 3.0, dtype=torch.float64)
    task = as_task(
        case.problem, top["x"], torch.zeros(1, 1).double(), queries=top["queries"], initial=initial
    )
    trace = DenseBackend().run(program, task, RunOptions(program.layout.names)).trace
    largest = max(size for _, size in arguments(program, trace))
    # Labels add 2 to what the loss sees, and there is a little room for rounding.
    assert largest <= program.functions[0].high <= 1.01 * (largest + 2.0)


def weight_error(case: cases.Case, pieces: int, n_steps: int = 5) -> float:
    """Largest distance to the exact run from the same weights."""
    task = case.task()
    program = build(RELU_STACK, case, n_steps=n_steps, pieces=pieces)
    weights = FusedBackend().run(program, task).parameters
    truth = case.problem.oracle.train(task, n_steps)
    assert (truth[-1] - truth[0]).abs().max() > 0.1
    return float((weights - truth).abs().max())


@pytest.mark.parametrize("output", ["identity", "tanh"])
@pytest.mark.parametrize("seed", range(5))
def test_five_steps_of_3_4_4_2_tanh_err_by_1e_4_at_most_with_128_pieces(output, seed):
    target = MLP(HEADLINE.widths, "tanh", output)
    case = make_case(target, "squared", step_size=0.5, box=3.0, n_examples=6, seed=seed)
    assert weight_error(case, pieces=128) <= 1e-4


def test_the_error_falls_with_the_square_of_the_pieces():
    data = [make_case(HEADLINE, "squared", n_examples=6, seed=seed) for seed in range(5)]
    coarse, fine = (max(weight_error(case, pieces) for case in data) for pieces in (16, 64))
    assert 8 <= coarse / fine <= 32


@pytest.mark.parametrize("activation", ["silu", "gelu", "softplus"])
def test_one_piece_is_too_few_for_an_activation_without_bounds(activation):
    case = make_case(MLP(HEADLINE.widths, activation), "squared")
    with pytest.raises(SettingError, match=f"^pieces=1 is too few for {activation}"):
        build(RELU_STACK, case, pieces=1)
    assert build(RELU_STACK, case, pieces=2).relu_sum(activation).n_pieces == 2


def test_more_pieces_than_can_be_fitted_are_refused():
    with pytest.raises(SettingError, match="pieces must be at most 131072, got 131073"):
        ReluStack(pieces=2**17 + 1)


@pytest.mark.parametrize("name", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
@pytest.mark.parametrize(("backend", "dtype"), [("fused", "float64"), ("fused", "float32")])
def test_kinked_networks_are_exact_by_default(name, activation, backend, dtype):
    """With ramps of 2^-13 some of these 200,000 preactivations lie on one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 3, generator=generator, dtype=torch.float64).clamp(-2, 2)
    step = GradientStep(0.1, 2.0)
    problem = Problem(MLP((3, 8, 8, 1), activation), "squared", step, Domain(2.0, 1.0))
    found = {}
    for width in (2.0**-13, None):
        compiled = icgd.compile(problem, name, n_steps=60, kink_width=width)
        report = icgd.verify(compiled, x, x.sin().mean(1), seed=1, backend=backend, dtype=dtype)
        assert report.verdict.holds
        found[width] = report.near_kinks.count, float(report.step_errors.max())
    assert found[2.0**-13][0] > 0
    assert found[2.0**-13][1] > 1e-4
    # How much float64 rounds depends on the order in which a processor sums; proved is 7.2e-15.
    assert found[None] == (0, pytest.approx(0.0, abs=7.2e-15 if dtype == "float64" else 1e-6))
    assert dtype == "float32" or float(report.step_bounds.max()) <= 7.2e-15


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_narrow_ramp_costs_the_dense_transformer_no_digits(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64).clamp(-2, 2)
    problem = Problem(
        MLP((3, 4, 1), "leaky_relu"), "squared", GradientStep(0.1, 2.0), Domain(2.0, 1.0)
    )
    compiled = icgd.compile(problem, "relu-stack", n_steps=20)
    report = icgd.verify(compiled, x, x.sin().mean(1), seed=1, backend="dense", dtype=dtype)
    eps = torch.finfo(getattr(torch, dtype)).eps
    assert float(report.step_errors.max()) <= 4 * eps
    assert float(report.step_bounds.max()) <= 1e3 * eps


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack", "cot-network"])
@pytest.mark.parametrize("n_steps", [10**6, 10**9, 10**12])
def test_more_different_steps_than_can_be_written_down_are_refused(construction, n_steps):
    update = icgd.MomentumStep(0.1, 1.0, 1, dampening=0.5)
    problem = Problem(MLP((2, 2, 1), "relu"), "squared", update, Domain(1.0, 1.0))
    with pytest.raises(
        SettingError, match=r"n_steps must be at most .* here, got .*,000: momentum"
    ):
        icgd.compile(problem, construction, n_steps=n_steps)


def test_adam_is_refused_so_many_steps_that_they_fill_the_memory():
    problem = Problem(MLP((2, 1)), "squared", icgd.AdamStep(0.1, box=1.0), Domain(1.0, 1.0))
    with pytest.raises(
        SettingError, match="n_steps must be at most 33,333 here, got 1,000,000,000"
    ):
        icgd.compile(problem, n_steps=10**9)


# Shortcuts, layer norms and rates of examples in relu-stack, against the reference in float64.


TTT = SHAPED["ttt"]
KINKED = icgd.MLP((2, 4, 4, 4), "leaky_relu", norms=(1, 2), shortcuts=((1, 2), (2, 3)))
ALL = {**SHAPED, "kinked": KINKED}
over_all = pytest.mark.parametrize("target", ALL.values(), ids=ALL)
RATED = icgd.Domain(x=1.0, y=1.0, rate=1.0)


def problem_of(target: icgd.MLP, update=None, loss="squared", domain=None) -> icgd.Problem:
    update = update or icgd.GradientStep(0.1, box=2.0)
    return icgd.Problem(target, loss, update, domain or icgd.Domain(x=1.0, y=1.0))


def data_of(target: icgd.MLP, n_examples: int = 6, tasks: tuple[int, ...] = ()) -> dict:
    generator = torch.Generator().manual_seed(11)

    def numbers(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*tasks, *shape, generator=generator, dtype=torch.float64) - 1

    x, y = numbers(n_examples, target.input_width), numbers(n_examples, target.output_width)
    return {"X": x, "y": y, "queries": numbers(3, target.input_width)}


def rates_of(data: dict) -> dict:
    n_examples = data["X"].shape[-2]
    rates = torch.linspace(0, 1, n_examples, dtype=torch.float64)
    return data | {"rates": rates.expand(data["X"].shape[:-1])}


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@over_all
def test_20_steps_stay_within_what_is_proved_and_close_to_the_reference(target):
    compiled = icgd.compile(problem_of(target), "relu-stack", n_steps=20)
    report = icgd.verify(compiled, **data_of(target), seed=3)
    assert report.verdict.holds
    assert (report.step_errors <= report.step_bounds).all()
    assert (report.prediction_errors <= report.prediction_bounds).all()
    assert 0 < report.step_errors.max() < 3e-4
    assert report.trajectory_errors.max() < 2e-3


@over_all
@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bounds_hold_in_every_arithmetic(target, backend, dtype):
    compiled = icgd.compile(problem_of(target), icgd.ReluStack(pieces=16), n_steps=3)
    start = problem_of(target).oracle.target.initial_parameters(seed=3, box=2.0)
    for initial in (start, start / 64):  # with small weights deviations are small too
        settings = {"initial": initial, "backend": backend, "dtype": dtype}
        report = icgd.verify(compiled, **data_of(target), **settings)
        assert report.verdict.holds
        assert (report.step_errors <= report.step_bounds).all()
        assert report.step_bounds.isfinite().all()


EXACT = icgd.MLP((3, 3, 4, 3), "relu", shortcuts=((0, 1), (1, 3), (0, 3)), biases=True)


@pytest.mark.parametrize("target", [*ALL.values(), EXACT], ids=[*ALL, "exact"])
@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_bounds_hold_for_the_step_in_real_numbers(target, backend):
    balls = pytest.importorskip("tests.certificates.exact_step", reason="needs the extra proofs")
    problem = problem_of(target, domain=RATED)
    compiled = icgd.compile(problem, icgd.ReluStack(pieces=16), n_steps=1)
    data = rates_of(data_of(target, n_examples=4))
    run = compiled.run(**data, seed=3, backend=backend)
    start, x, y, rates = run.parameters[0], data["X"], data["y"], data["rates"]
    exact = balls.network_step(problem, start, x, y, rates)
    report = icgd.verify(compiled, **data, seed=3, backend=backend)
    missed, bound = balls.least_distance(run.parameters[1], exact), float(report.step_bounds[0])
    assert missed <= bound
    assert bound < 1e-12 if target is EXACT else missed > 1e-9
    real = problem.oracle.step(compiled.task(**data, seed=3), start)
    assert balls.least_distance(real, exact) < 1e-14


def test_more_pieces_prove_more():
    proved = []
    for pieces in (64, 1024):
        compiled = icgd.compile(problem_of(TTT), icgd.ReluStack(pieces=pieces), n_steps=3)
        report = icgd.verify(compiled, **data_of(TTT), seed=3)
        proved.append((report.step_errors.max(), report.step_bounds.max()))
    assert proved[1][0] < proved[0][0] / 64
    assert proved[1][1] < proved[0][1] / 64


@over_all
def test_the_transformer_is_what_the_fused_backend_computes(target):
    rated = problem_of(target, domain=RATED)
    for tasks in ((), (2,)):
        compiled = icgd.compile(rated, icgd.ReluStack(pieces=8), n_steps=3)
        data = rates_of(data_of(target, tasks=tasks))
        fused, dense = (compiled.run(**data, seed=3, backend=name) for name in ("fused", "dense"))
        assert relative(fused.parameters, dense.parameters) < 1e-11
        assert relative(fused.predictions, dense.predictions) < 1e-11


UPDATES = {
    "batches": icgd.GradientStep(0.1, box=2.0, batch_size=4),
    "schedule": icgd.GradientStep((0.1, 0.05, 0.2), box=2.0),
    "momentum": icgd.MomentumStep(0.1, box=2.0, momentum=0.9),
    "adam": icgd.AdamStep(0.01, box=2.0, eps=1e-3),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_every_update_trains_them(update):
    compiled = icgd.compile(problem_of(TTT, update, domain=RATED), "relu-stack", n_steps=3)
    data = rates_of(data_of(TTT))
    report = icgd.verify(compiled, **data, seed=3)
    assert report.verdict.holds
    assert report.step_errors.max() < 1e-3
    small = icgd.compile(problem_of(TTT, update, domain=RATED), icgd.ReluStack(8), n_steps=3)
    fused, dense = (small.run(**data, seed=3, backend=name) for name in ("fused", "dense"))
    assert relative(fused.parameters, dense.parameters) < 1e-11


def test_classes_and_float32():
    target = icgd.MLP((3, 4, 4), "gelu", norms=(2,), shortcuts=((1, 2),))
    compiled = icgd.compile(problem_of(target, loss="cross_entropy"), "relu-stack", n_steps=3)
    data = data_of(target) | {"y": torch.tensor([0, 1, 2, 3, 0, 1])}
    for dtype in ("float64", "float32"):
        report = icgd.verify(compiled, **data, seed=3, dtype=dtype)
        assert report.verdict.holds
        assert report.step_errors.max() < 1e-3


@pytest.mark.parametrize("eps", [1e-12, 1e-2, 1e6])
def test_every_eps_has_a_root_that_is_proved(eps):
    target = replace(TTT, norm_eps=eps)
    compiled = icgd.compile(problem_of(target), "relu-stack", n_steps=3)
    report = icgd.verify(compiled, **data_of(target), seed=3)
    assert report.verdict.holds
    assert report.step_errors.max() < 1e-3
    (root,) = (fit for fit in compiled.program.functions if fit.name.startswith("reciprocal"))
    assert float(root.name.rpartition(" ")[2]) == eps


def test_a_fitted_root_is_never_twice_too_large():
    """So a norm stays within what other functions are fitted for, however few pieces there are."""
    compiled = icgd.compile(problem_of(TTT), icgd.ReluStack(pieces=1), n_steps=1)
    root, function = compiled.stack.functions[-1], reciprocal_deviation(1e-5)
    assert root.name == function.name
    ends = torch.tensor([*root.knots, root.high], dtype=torch.float64)
    errors = torch.tensor(root.errors, dtype=torch.float64)
    assert (errors / function(ends)).max() < 0.1  # it falls, so that its least value is at the end


def test_equal_preactivations_are_no_danger():
    """All units are alike, so that the variance is 0, and only eps is divided by."""
    compiled = icgd.compile(problem_of(TTT), "relu-stack", n_steps=5)
    data = data_of(TTT)
    initial = torch.full((TTT.n_parameters,), 0.25, dtype=torch.float64)
    report = icgd.verify(compiled, **data, initial=initial)
    assert report.verdict.holds
    dense = compiled.run(**data, initial=initial, backend="dense")
    assert torch.isfinite(dense.parameters).all()


shapes = st.lists(st.integers(2, 4), min_size=2, max_size=4)


@given(widths=shapes, data=st.data())
@settings(max_examples=12, deadline=None)
def test_random_shapes(widths, data):
    layers = range(len(widths))
    pairs = [(i, j) for i in layers for j in layers if i < j and widths[i] == widths[j]]
    target = icgd.MLP(
        tuple(widths),
        data.draw(st.sampled_from(["relu", "tanh", "gelu", "leaky_relu"])),
        data.draw(st.sampled_from(["identity", "relu", "sigmoid"])),
        biases=data.draw(st.booleans()),
        shortcuts=tuple(data.draw(st.sets(st.sampled_from(pairs))) if pairs else ()),
        norms=tuple(data.draw(st.sets(st.sampled_from(layers[1:])))),
    )
    compiled = icgd.compile(problem_of(target, domain=RATED), icgd.ReluStack(16), n_steps=2)
    given_data = rates_of(data_of(target))
    report = icgd.verify(compiled, **given_data, seed=3)
    assert (report.step_errors <= report.step_bounds).all()
    fused, dense = (compiled.run(**given_data, seed=3, backend=b) for b in ("fused", "dense"))
    assert relative(fused.parameters, dense.parameters) < 1e-11


def test_a_norm_costs_five_layers_and_a_shortcut_and_rates_one_each():
    def layers(target: icgd.MLP, **domain: float) -> tuple[int, int]:
        problem = problem_of(target, domain=icgd.Domain(1.0, 1.0, **domain))
        program = icgd.compile(problem, "relu-stack", n_steps=1).program
        return len(program.block), len(program.prediction)

    plain = icgd.MLP((3, 6, 3), "gelu")
    assert layers(plain) == (6, 3)
    assert layers(replace(plain, shortcuts=((0, 2),))) == (7, 4)
    assert layers(replace(plain, output_activation="tanh")) == (7, 3)
    assert layers(replace(plain, output_activation="tanh", norms=(2,))) == (13, 7)
    assert layers(replace(plain, norms=(2,))) == (12, 6)  # a norm has slopes, if of a line
    assert layers(TTT) == (13, 7)
    assert layers(TTT, rate=1.0) == (14, 7)
    assert layers(replace(plain, norms=(1,))) == (12, 7)


def test_the_golden_listing_of_the_inner_loop_of_a_ttt_mlp_layer():
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=2)
    assert compiled.listing() == (GOLDEN / "relu_stack_ttt_mlp.txt").read_text()


def test_a_loaded_file_runs_the_same(tmp_path):
    compiled = icgd.compile(problem_of(KINKED, domain=RATED), icgd.ReluStack(8), n_steps=2)
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded.problem == compiled.problem
    data = rates_of(data_of(KINKED))
    assert torch.equal(
        loaded.run(**data, seed=3).parameters, compiled.run(**data, seed=3).parameters
    )


def test_they_are_counted_and_drawn(tmp_path):
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=2)
    summary, transformer = compiled.summary(), compiled.transformer()
    weights = sum(part.numel() for part in transformer.parameters())
    assert summary.layers_per_step == 14
    assert weights == summary.parameters
    compiled.draw(tmp_path / "drawing.png")
    assert (tmp_path / "drawing.png").stat().st_size > 10_000
    run = compiled.run(**rates_of(data_of(TTT)), seed=3, trace=True)
    assert torch.equal(run.trace["rates"][0, :6, 0], torch.linspace(0, 1, 6, dtype=torch.float64))
    assert not run.trace["rates"][0, 6:].any()


@pytest.mark.parametrize("name", sorted(set(CONSTRUCTIONS) - {"relu-stack"}))
def test_no_other_construction_takes_them(name):
    for problem in (problem_of(TTT), problem_of(icgd.MLP((3, 2)), domain=RATED)):
        problem = replace(problem, update=icgd.GradientStep(0.1, box=2.0))
        reason = CONSTRUCTIONS[name].why_not(problem)
        assert reason
        with pytest.raises(UnsupportedProblemError, match=name):
            icgd.compile(problem, name, n_steps=1)
    assert icgd.compile(problem_of(TTT), n_steps=1).program.construction == "relu-stack"


def test_refusals_name_relu_stack():
    shaped, rated = problem_of(TTT), problem_of(icgd.MLP((3, 2)), domain=RATED)
    softmax_stack = CONSTRUCTIONS["softmax-stack"]
    assert softmax_stack.why_not(shaped) == (
        "its networks have no shortcuts and no layer norms; use relu-stack."
    )
    assert softmax_stack.why_not(rated) == "its examples have no rates; use relu-stack."


def test_rates_that_do_not_fit_are_refused():
    target = icgd.MLP((3, 2))
    rated = icgd.compile(problem_of(target, domain=RATED), "relu-stack", n_steps=1)
    data = data_of(target)
    with pytest.raises(DataError, match=r"rates has shape \(5,\)"):
        rated.run(**data, rates=[1.0] * 5)
    with pytest.raises(DataError, match=r"rates\[1\] is -0.5; expected a number from 0"):
        rated.run(**data, rates=[1.0, -0.5, 1.0, 1.0, 1.0, 1.0])
    with pytest.raises(DomainError, match=r"rates\[2\] is 1.5"):
        rated.run(**data, rates=[1.0, 0.5, 1.5, 1.0, 1.0, 1.0])
    with pytest.raises(DataError, match="rates"):
        rated.run(**data, rates=[1.0, 0.5, float("nan"), 1.0, 1.0, 1.0])
    plain = icgd.compile(problem_of(target), "relu-stack", n_steps=1)
    with pytest.raises(SettingError, match=r"rates has no effect without Domain\(rate=...\)"):
        plain.run(**data, rates=[1.0] * 6)


def test_examples_without_given_rates_have_the_rate_1():
    target = icgd.MLP((3, 2))
    data, plain = data_of(target), problem_of(target)
    rated = replace(plain, domain=RATED)
    ours, theirs = (icgd.compile(each, "relu-stack", n_steps=2) for each in (rated, plain))
    assert torch.equal(ours.run(**data).parameters, theirs.run(**data).parameters)


def test_an_example_of_rate_0_is_not_there():
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=3)
    data = data_of(TTT)
    rates = torch.ones(6, dtype=torch.float64)
    rates[2] = 0.0
    moved = data["X"].clone()
    moved[2] = 0.9
    for backend in ("fused", "dense"):
        ours, theirs = (
            compiled.run(**data | {"X": x}, rates=rates, seed=3, backend=backend).parameters
            for x in (data["X"], moved)
        )
        assert torch.equal(ours, theirs) or relative(ours, theirs) < 1e-15


def test_gradients_go_through_the_run():
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=2)
    data = data_of(TTT)
    learnable = LearnableRun(compiled, seed=3)
    predictions = learnable(data["X"], data["y"], data["queries"])
    run = compiled.run(**data, seed=3)
    torch.testing.assert_close(predictions.detach(), run.predictions, rtol=1e-11, atol=1e-12)
    predictions.square().sum().backward()
    assert learnable.step_sizes.grad.abs().min() > 0


def test_only_networks_have_rates():
    with pytest.raises(SettingError, match=r"domain.rate has no effect without a network"):
        icgd.Problem(icgd.KernelMachine(2, "rbf"), "squared", icgd.FunctionalStep(0.5), RATED)
    with pytest.raises(SettingError, match=r"domain.rate has no effect without a network"):
        icgd.Problem(icgd.LinearModel(2), "matching", icgd.ProximalStep(0.5), RATED)


def test_the_root_reaches_as_far_as_the_largest_decay_of_a_group():
    decay, domain = {"weight_decay": 100.0}, icgd.Domain(1.0, 1.0)
    ends = []
    for options in ({}, decay, {"groups": {"weights_1": decay}}):
        step = icgd.RmspropStep(0.1, 1.0, **options)
        problem = icgd.Problem(icgd.MLP((2, 3, 1)), "squared", step, domain)
        program = icgd.compile(problem, "relu-stack", n_steps=1).program
        ends.append(program.relu_sum(reciprocal_root(step.eps).name).high)
    assert ends[0] < ends[1] / 100
    assert ends[1] == ends[2]
