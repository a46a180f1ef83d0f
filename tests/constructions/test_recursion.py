import json
import re
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
import torch

import icgd
from icgd.choice import construction_for
from icgd.constructions.recursion import Recursion, default_activation, literal_layers
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import (
    ProgramError,
    SettingError,
    UnsupportedActivationError,
    UnsupportedProblemError,
)
from icgd.problems.data import Domain
from icgd.problems.functions import UNIT_ACTIVATIONS
from icgd.problems.mlp import MLP
from icgd.program.check import check_program, from_data
from icgd.program.layout import Role
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size
from tests.cases import make_case

RECURSION = CONSTRUCTIONS["recursion"]
GOLDEN = Path(__file__).parents[1] / "golden"


def problem_of(widths: tuple[int, ...], activation: str = "tanh", **settings: object):
    settings = {"box": 2.0, "domain": Domain(1.0, 1.0), **settings}
    return make_case(MLP(widths, activation), "squared", **settings).problem


def built(problem, activation: str | None = None, units: int = 200, n_steps: int = 3):
    construction = Recursion(units=units, unit_activation=activation)
    return construction.build(problem, n_steps)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_block_has_two_layers_more_than_the_network(depth):
    """Theorem 1 has two layers of attention and MLP for n = 2; n of them do for any n."""
    program = built(problem_of((2, *[3] * (depth - 1), 1)), n_steps=7)
    kinds = [layer.kind.value for layer in program.block]
    assert kinds == ["attention"] * max(depth - 1, 1) + ["mlp", "attention", "mlp"]
    forward = ["attention"] * max(depth - 1, 1)
    assert [layer.kind.value for layer in program.prediction] == [*forward, "mlp"]
    assert program.n_layers == 7 * len(kinds) + len(forward) + 1


def test_the_papers_own_count_grows_with_the_square_of_the_depth():
    """a_n = a_{n-1} + n + 1 from a_2 = 2: n - 1 forward layers, the network below, 2 more."""
    counts = [literal_layers(depth) for depth in range(1, 8)]
    assert counts == [2, 2, 6, 11, 17, 24, 32]
    compiled = icgd.compile(problem_of((2, 3, 3, 1)), n_steps=1, construction="recursion")
    summary = compiled.summary()
    assert (summary.paper_layers, summary.layers_per_step) == (6, 5)


def test_the_stream_holds_a_jacobian_for_every_layer_and_every_one_below():
    """z_m has k_m rows, and V_j has k_j k_{j-1} entries."""
    layout = built(problem_of((2, 3, 4, 1))).layout
    shapes = {slot.name: slot.shape for slot in layout.slots if slot.name.startswith("jacobian")}
    assert shapes == {"jacobian_2_1": (4, 6), "jacobian_3_1": (1, 6), "jacobian_3_2": (1, 12)}
    x, y, weights, units, z, slope, constants = 2, 1, 6 + 12 + 4, 3 + 4, 4 + 1, 1, 4
    assert layout.width == x + y + weights + units + z + (24 + 6 + 12) + slope + constants


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
def test_every_activation_serves(activation):
    program = built(problem_of((2, 3, 1)), activation, units=32)
    check_program(program)
    assert program.activation == activation
    assert {function.activation for function in program.functions} == {activation}


def test_kinks_are_met_exactly_by_what_bends_like_relu():
    """r, u, the clip, the wipe and the copy; s r'(t) but for a band around the kink."""
    program = built(problem_of((2, 3, 1), "leaky_relu"), "relu")
    assert {function.error for function in program.functions} == {0.0}
    bands = {function.name: function.bands for function in program.functions if function.bands}
    assert list(bands) == ["s leaky_relu'(t)"]
    ((band,),) = bands.values()
    assert (band.low, band.high) == (-(2.0**-13), 2.0**-13)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("tanh", "tanh"),
        ("gelu", "gelu"),
        ("relu", "relu"),
        ("leaky_relu", "relu"),
        ("identity", "relu"),
    ],
)
def test_units_are_those_of_the_network_unless_said(target, expected):
    assert default_activation(MLP((2, 3, 1), target)) == expected
    assert built(problem_of((2, 3, 1), target)).activation == expected


def test_the_weights_depend_on_neither_the_data_nor_the_number_of_steps():
    few, many = (built(problem_of((2, 3, 1)), n_steps=n) for n in (1, 50))
    assert (few.layout, few.functions, few.block) == (many.layout, many.functions, many.block)


def test_the_golden_listing_of_2_3_3_1_tanh_by_sigmoids():
    listing = built(problem_of((2, 3, 3, 1)), "sigmoid", n_steps=5).listing()
    golden = (GOLDEN / "recursion_2_3_3_1_tanh.txt").read_text(encoding="utf-8")
    without_errors = [line.split(", error")[0] for line in listing.splitlines()]
    assert without_errors == [line.split(", error")[0] for line in golden.splitlines()]


def test_a_program_survives_the_way_through_json():
    program = built(problem_of((2, 3, 1), "relu"), "softplus")
    assert from_data(json.loads(json.dumps(program.to_data()))) == program


def test_an_output_activation_is_refused_with_the_reason():
    problem = make_case(MLP((2, 3, 1), "tanh", "tanh"), "squared").problem
    reason = (
        "its target has a linear output, not tanh: the recursion starts from the derivatives of "
        "z_n itself."
    )
    with pytest.raises(UnsupportedProblemError) as caught:
        construction_for(problem, "recursion")
    able = ", ".join(c.name for c in CONSTRUCTIONS.values() if c.why_not(problem) is None)
    assert "relu-stack" in able
    assert str(caught.value) == (
        f"recursion cannot compile this problem: {reason} Constructions that can: {able}."
    )


def test_a_target_that_is_too_deep_is_refused_before_any_work():
    update, domain = icgd.GradientStep(0.1, box=1.0), Domain(1.0, 1.0)
    deepest, deeper = (
        icgd.Problem(MLP((1,) * (depth + 1), "tanh"), "squared", update, domain)
        for depth in (256, 257)
    )
    assert RECURSION.why_not(deepest) is None
    assert RECURSION.why_not(deeper) == (
        "it pushes forward the Jacobian of every layer with respect to every matrix below, "
        "32896 for 257 layers; give at most 256 layers."
    )


def test_a_loss_that_couples_its_outputs_and_data_without_digits_are_refused():
    coupled = make_case(MLP((2, 3, 2), "tanh"), "cross_entropy").problem
    assert "is not a sum of such functions" in RECURSION.why_not(coupled)
    huge = problem_of((2, 3, 1), domain=Domain(1e12, 1.0))
    assert "can reach 4e+12 on the domain" in RECURSION.why_not(huge)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cos"])
def test_kinks_by_units_without_kinks_are_refused(activation):
    with pytest.raises(SettingError, match=rf"{activation} units cannot fit a jump"):
        built(problem_of((2, 3, 1), "relu"), activation)


def test_a_polynomial_is_refused_with_the_reason():
    with pytest.raises(UnsupportedActivationError, match="'square' is a polynomial of degree 2"):
        icgd.compile(
            problem_of((2, 3, 1)), n_steps=1, construction="recursion", unit_activation="square"
        )


def test_a_box_too_large_for_the_units_is_refused_with_its_error_and_what_would_do():
    """cos has to meet the corners of the box on all that a step can reach."""
    wide = problem_of((2, 3, 1), domain=Domain(2.0, 2.0))
    with pytest.raises(SettingError) as caught:
        built(wide, "cos", units=32)
    box, rest = str(caught.value).split(" is too large for ")
    error, advice = rest.split(", above accuracy=0.5. ")
    assert box.startswith("The box [-30.")
    assert error.startswith("32 cos units: the error of clip would be 0.5")
    assert advice == "Use about 64 units, or use a smaller box."
    assert built(wide, "cos", units=64).activation == "cos"


@pytest.mark.parametrize("activation", ["tanh", "cos", "relu"])
def test_inputs_next_to_nothing_are_bounded_as_well_as_none(activation):
    bounds = [
        icgd.Compiled(problem, built(problem, activation, units=24)).certificate().domain_step
        for x in (1e-320, 1e-300, 1e-15)
        for problem in [problem_of((2, 2, 1), domain=Domain(x, 1.0))]
    ]
    assert bounds == pytest.approx([bounds[-1]] * 3, rel=0.01)
    assert bounds[-1] < 0.5


def test_a_box_next_to_nothing_is_refused_unless_units_have_corners():
    tiny = problem_of((2, 2, 1), box=1e-300)
    with pytest.raises(SettingError, match=r"tanh units cannot clip to \[-1e-300, 1e-300\]"):
        built(tiny, "tanh", units=24)
    assert icgd.Compiled(tiny, built(tiny, "relu", units=24)).certificate().domain_step < 1e-11


def test_a_step_too_long_for_waves_to_clip_is_refused_with_its_error():
    """cos has to meet the corners of the box on all that a step can reach."""
    with pytest.raises(SettingError, match=r"too large for 200 cos units: the error of clip"):
        built(problem_of((2, 3, 1), step_size=50.0), "cos")


@pytest.mark.parametrize("activation", ["elu", "tanh"])
def test_a_line_that_is_the_activation_wipes_as_well(activation):
    """There is one function of that name, and what it is applied to here is far below 1."""
    problem = problem_of((1, 2, 1), "identity", box=0.125, domain=Domain(0.125, 1.0))
    compiled = icgd.Compiled(problem, built(problem, activation, units=24))
    assert compiled.program.ridge_sum("identity").half_widths == (1.0,)
    x, corner = torch.full((2, 1), 0.125), torch.full((4,), 0.125)
    report = icgd.verify(compiled, x, torch.ones(2, 1), initial=corner, backend="dense")
    assert report.verdict.holds
    assert float(report.step_bounds.max()) < {"elu": 1e-10, "tanh": 0.05}[activation]


def test_reaches_leave_room_for_the_rounding_of_float32():
    """Slots that might leave them would have no bound; near kinks the most is rounded."""
    problem = problem_of((2, 2, 2, 1), "leaky_relu", box=1.0)
    construction = Recursion(units=64, dtype="float32")
    compiled = icgd.Compiled(problem, construction.build(problem, n_steps=1))
    for backend in ("dense", "fused"):
        certificate = compiled.certificate(dtype="float32", n_tokens=16, backend=backend)
        assert certificate.domain_step < 2.01, "two points of the box"


def test_all_slots_stay_within_the_reach_of_their_wipe():
    """Weights at the corners of the box, inputs at those of the domain."""
    problem = problem_of((2, 3, 3, 1), "gelu")
    program = built(problem, "softplus", units=64)
    task = icgd.Compiled(problem, program).task(
        torch.ones(2, 2), torch.ones(2, 1), initial=torch.full((18,), 2.0)
    )
    run = icgd.Compiled(problem, program).run_task(task, trace=True, backend="dense")
    wipes = program.block[-1].instructions[1:]
    reaches = {name: wipe.reach for wipe in wipes for name in wipe.slots}
    for slot in program.layout.having(Role.SCRATCH):
        largest = run.trace[slot.name].abs().max()
        assert largest <= reaches[slot.name] / 2, slot.name
        assert reaches[slot.name] < inf


def test_the_example_of_its_page_runs(capsys):
    page = Path(__file__).parents[2] / "docs" / "constructions" / "recursion.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["report"].verdict.holds
    assert float(names["report"].trajectory_errors.max()) < 1e-9
    assert (
        "program recursion, 4 layers used 5 times, 2 to predict, d_model 33, sigmoid units"
        in capsys.readouterr().out
    )


BIASED = [
    ((2, 1), "tanh", "relu"),
    ((2, 2), "tanh", "sigmoid"),
    ((2, 3, 1), "tanh", "sigmoid"),
    ((2, 3, 2), "relu", "relu"),
    ((2, 3, 1), "silu", "silu"),
    ((2, 3, 2, 1), "tanh", "tanh"),
    ((2, 2, 3, 2), "leaky_relu", "elu"),
    ((2, 2, 2, 2, 1), "tanh", "tanh"),
    ((1, 2, 1), "tanh", "cos"),
]


def with_biases(widths: tuple[int, ...], activation: str, box: float = 1.0):
    target = MLP(widths, activation, biases=True)
    return make_case(target, "squared", box=box, domain=Domain(1.0, 1.0), n_examples=4)


@pytest.mark.parametrize(("widths", "activation", "units"), BIASED)
def test_biases_are_trained_as_autograd_trains_them(widths, activation, units):
    """A step is compared with torch, and both backends with each other."""
    case = with_biases(widths, activation)
    compiled = icgd.Compiled(case.problem, built(case.problem, units, n_steps=2))
    task = biased_task(case, compiled)
    dense, fused = (compiled.run_task(task, backend=backend) for backend in ("dense", "fused"))
    expected = step_by_autograd(case.problem, task)
    assert float((fused.parameters[1] - expected).abs().max()) < 1e-15
    assert float((dense.parameters - fused.parameters).abs().max()) < 1e-11
    assert float((dense.predictions - fused.predictions).abs().max()) < 1e-11
    assert float((expected - task.initial).abs().max()) > 0.01


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize(("widths", "activation", "units"), BIASED)
def test_bounds_hold_with_biases(widths, activation, units, backend):
    case = with_biases(widths, activation)
    compiled = icgd.Compiled(case.problem, built(case.problem, units, units=100, n_steps=2))
    task = biased_task(case, compiled)
    report = icgd.verify(
        compiled, task.x, task.y, initial=task.initial, queries=task.queries, backend=backend
    )
    assert report.verdict.holds
    assert (report.step_errors <= report.step_bounds).all()
    assert (report.trajectory_errors <= report.trajectory_bounds).all()
    assert (report.prediction_errors <= report.prediction_bounds).all()
    assert float(report.step_bounds.max()) < 0.01


def biased_task(case, compiled):
    """Weights and biases of up to half the box, none of which is 0."""
    generator = torch.Generator().manual_seed(3)
    n_weights = case.problem.network.n_parameters
    initial = torch.rand(n_weights, generator=generator, dtype=torch.float64) - 0.5
    return compiled.task(case.x, case.y, queries=case.queries, initial=initial)


def step_by_autograd(problem, task):
    """w - step_size * gradient of half the mean squared loss, by torch's own derivatives."""
    target, weights = problem.network, task.initial.clone().requires_grad_()
    p = task.x
    for layer, matrix in enumerate(target.matrices(weights), start=1):
        z = p @ matrix[:, :-1].T + matrix[:, -1]
        p = z if layer == target.depth else getattr(torch.nn.functional, target.activation)(z)
    loss = (p - task.y).square().sum() / (2 * len(task.x))
    (gradient,) = torch.autograd.grad(loss, weights)
    box, size = problem.gradient_step.box, problem.gradient_step.size_of(0)
    return (task.initial - size * gradient).clamp(-box, box)


@pytest.mark.parametrize("widths", [(2, 1), (2, 3, 1), (2, 3, 4, 1)])
def test_biases_take_no_layer_more(widths):
    """A weight for each output of a layer, a column of every Jacobian for each, and one head."""
    plain = built(problem_of(widths), "relu")
    biased = built(with_biases(widths, "tanh", box=2.0).problem, "relu")
    check_program(biased)
    assert [layer.kind for layer in biased.block] == [layer.kind for layer in plain.block]
    shapes = {slot.name: slot.shape for slot in biased.layout.slots}
    for layer, (below, above) in enumerate(pairwise(widths), start=1):
        assert shapes[f"weights_{layer}"] == (above, below + 1)
        if layer < len(widths) - 1:
            last = shapes[f"jacobian_{len(widths) - 1}_{layer}"]
            assert last == (widths[-1], above * (below + 1))


@pytest.mark.parametrize("units", ["relu", "sigmoid"])
def test_sizes_of_heads_with_biases_are_those_of_the_built_layers(units):
    program = built(with_biases((2, 3, 2, 1), "tanh").problem, units, units=24)
    for layer in program.unrolled():
        size = layer_size(layer, program)
        weights = list(lower_layer(layer, program, torch.float64).parameters())
        assert size.parameters == sum(weight.numel() for weight in weights), layer.title
        assert size.nonzeros == sum(int(weight.count_nonzero()) for weight in weights), layer.title


def test_the_golden_listing_of_2_3_2_relu_with_biases():
    listing = built(with_biases((2, 3, 2), "relu").problem, "relu", n_steps=5).listing()
    golden = (GOLDEN / "recursion_2_3_2_relu_biases.txt").read_text(encoding="utf-8")
    assert listing.splitlines() == golden.splitlines()


def test_all_slots_with_biases_stay_within_the_reach_of_their_wipe():
    problem = with_biases((2, 3, 3, 1), "gelu", box=2.0).problem
    program = built(problem, "softplus", units=64)
    corner = torch.full((problem.network.n_parameters,), 2.0)
    task = icgd.Compiled(problem, program).task(torch.ones(2, 2), torch.ones(2, 1), initial=corner)
    run = icgd.Compiled(problem, program).run_task(task, trace=True, backend="dense")
    wipes = program.block[-1].instructions[1:]
    reaches = {name: wipe.reach for wipe in wipes for name in wipe.slots}
    for slot in program.layout.having(Role.SCRATCH):
        assert run.trace[slot.name].abs().max() <= reaches[slot.name] / 2, slot.name


def test_averages_are_refused_by_what_takes_plain_steps():
    problem = replace(problem_of((2, 3, 1)), update=icgd.GradientStep(0.1, 2.0, average=0.5))
    assert RECURSION.why_not(problem) == (
        "it takes plain gradient steps of one size without averages, not gradient steps of 0.1, "
        "box 2, averages of weights (0.5); use relu-stack or softmax-stack."
    )


def test_an_argument_whose_inputs_do_not_fit_its_matrix_breaks_a_rule():
    """Each head of the first layers reads the labels, one number, in place of two inputs."""
    program, n_tried = built(problem_of((2, 3, 3, 1)), "tanh"), 0
    for number, layer in enumerate(program.block):
        for place, part in enumerate(layer.instructions):
            argument = getattr(part, "argument", None)
            if argument is None or argument.inputs.slots != ("x",):
                continue
            other = replace(argument, inputs=replace(argument.inputs, slots=("y",)))
            parts = list(layer.instructions)
            parts[place] = replace(part, argument=other)
            block = list(program.block)
            block[number] = replace(layer, instructions=tuple(parts))
            with pytest.raises(ProgramError, match=r"weights_1"):
                check_program(replace(program, block=tuple(block)))
            n_tried += 1
    assert n_tried >= 2
