"""cot-network: what it refuses, how it routes, and the accuracy that the theorem asks for."""

import json
import random
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import icgd
from icgd.backends.chain import run_chain
from icgd.constructions.cot_network import BACKWARD, FORWARD, FROM_X, FROM_Y, CotNetwork
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import SettingError, ToleranceError, UnsupportedProblemError
from icgd.problems.data import Domain, as_task
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AbstractGradientStep, AdamStep, GradientStep, MomentumStep
from icgd.problems.problem import Problem
from icgd.problems.steps import FunctionalStep
from icgd.program.chain import ChainProgram
from icgd.program.chain_instructions import MarkFlat, MultiplyByEntries
from icgd.program.check import from_data
from icgd.program.instructions import Instruction
from tests.backends.chain_cases import COT_NETWORK, problem_of, program_of, task_of

PROBLEM = problem_of(MLP((3, 4, 4, 2), "relu"))
KERNEL = Problem(KernelMachine(3), "squared", FunctionalStep(0.1), Domain(1.0, 1.0))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (PROBLEM, None),
        (KERNEL, "it trains the weights of a network, not the function of a kernel."),
        (
            replace(PROBLEM, update=GradientStep(0.1, 3.0)),
            "its blocks have a column for each example of a round; give batch_size=1 for one "
            "example per round, or the number of examples for all of them.",
        ),
        (replace(PROBLEM, loss="cross_entropy"), None),
        (
            replace(PROBLEM, target=MLP((2, 3, 1), "relu", "relu"), loss="cross_entropy"),
            "the slope of the cross_entropy loss is computed from z_N, which is the prediction "
            "only if the output is linear, not relu; use output_activation='identity'.",
        ),
        (
            replace(PROBLEM, target=MLP((2, 3, 1), "relu", "tanh"), loss="logistic"),
            "the slope of the logistic loss is computed from z_N, which is the prediction "
            "only if the output is linear, not tanh; use output_activation='identity'.",
        ),
        (
            replace(PROBLEM, target=MLP((2, 3, 1), "relu", "leaky_relu")),
            "all layers share a block, which has one kinked activation, not relu and leaky_relu.",
        ),
        (replace(PROBLEM, update=MomentumStep((0.1, 0.2), 3.0, 1)), None),
        (
            replace(PROBLEM, update=AdamStep(0.1, 3.0, 1)),
            "it has no layers for the root of Adam steps (0.9, 0.999, eps 0.001); use relu-stack.",
        ),
        (
            replace(PROBLEM, update=GradientStep((0.1, 1e300), 3.0, 1)),
            "a step can make weights or the optimiser's state as large as 1.06e+307 before "
            "clipping, and no gate of float64 can exceed that; use a smaller step size, momentum "
            "or weight decay.",
        ),
        (
            replace(PROBLEM, domain=Domain(1e13, 1.0)),
            "its inputs, labels or weights can reach 1e+13, where float64 has too few digits for "
            "an activation; use a smaller box or domain.",
        ),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(problem, reason):
    assert COT_NETWORK.why_not(problem) == reason


def test_biases_are_left_to_others_by_tables_alone():
    problem = replace(PROBLEM, target=MLP((2, 3, 1), "relu", biases=True))
    assert COT_NETWORK.why_not(problem) is None
    whole = replace(problem, update=GradientStep(0.1, 3.0))
    assert CONSTRUCTIONS["relu-stack"].why_not(whole) is None
    assert CONSTRUCTIONS["softmax-stack"].why_not(whole) is None
    assert CONSTRUCTIONS["recursion"].why_not(whole) is None
    assert CONSTRUCTIONS["universal"].why_not(whole) == (
        "its layers have no biases; use relu-stack or softmax-stack, or give X a constant-1 "
        "feature, which is a bias of the first layer."
    )


def test_every_gate_is_open_on_its_own_kind_of_step_alone():
    pairs = [("forward", "backward"), ("backward", "forward"), ("backward", "data")]
    pairs.append(("forward", "data"))
    gates = (FORWARD, BACKWARD, FROM_X, FROM_Y)
    for (number, (near, far)), (own, gate) in product(enumerate(pairs), enumerate(gates)):
        flags = {f"near.is_{near}", f"far.is_{far}"}
        assert bool(flags & set(gate)) == (own != number)


def test_smooth_activations_and_classes_share_one_more_attention_layer():
    def kinds(activation: str, loss: str) -> list[str]:
        program = program_of(problem_of(MLP((2, 2, 1), activation), loss=loss, box=0.5))
        return [layer.kind.value for layer in program.layers]

    assert kinds("sigmoid", "squared") == ["softmax", "mlp", "softmax", "softmax", "mlp"]
    assert kinds("relu", "cross_entropy") == ["softmax", "mlp", "softmax", "softmax", "mlp"]
    assert kinds("tanh", "cross_entropy") == ["softmax", "mlp", "softmax", "softmax", "mlp"]
    assert kinds("relu", "logistic") == ["softmax", "mlp", "softmax", "mlp"]


def test_the_block_has_four_layers_whatever_the_depth():
    deep = program_of(problem_of(MLP((4,) * 10, "relu")))
    shallow = program_of(problem_of(MLP((4, 4, 4), "relu")))
    assert [layer.kind.value for layer in deep.layers] == ["softmax", "mlp", "softmax", "mlp"]
    assert deep.layout == shallow.layout
    assert deep.rows.width == 4 * 4 + 3 * 4 + 5
    assert (deep.n_blocks, shallow.n_blocks) == (72, 16)


def test_the_kink_is_as_wide_as_asked_or_2_to_the_minus_40_of_the_largest_preactivation():
    def width(kink_width: float | None, problem: Problem = PROBLEM) -> float:
        program = CotNetwork(kink_width=kink_width).build(problem, n_steps=1)
        (mark,) = (p for p in program.layers[3].instructions if isinstance(p, MarkFlat))
        return mark.width

    assert width(2.0**-13) == 2.0**-13
    assert width(2.0**-50) == 2.0**-50
    assert width(None) == 2.0**-29
    narrow = replace(PROBLEM, target=MLP((2, 1, 1), "relu"), domain=Domain(2.0**-8, 1.0))
    assert width(None, narrow) == 2.0**-44


def parts_of(program: ChainProgram) -> list[Instruction]:
    return [part for layer in program.layers for part in layer.instructions]


def run_of(
    depth: int, width: int, n_rounds: int, backend: str, activation: str = "relu"
) -> tuple[float, float]:
    """Largest difference from exact descent, and how far descent itself goes."""
    target = MLP((width,) * (depth + 1), activation)
    problem = Problem(target, "squared", GradientStep(0.05, 10.0, 1), Domain(4.0, 4.0))
    generator = torch.Generator().manual_seed(depth)
    x, y = (
        torch.randn(n_rounds, width, generator=generator).double().clamp(-4, 4) for _ in range(2)
    )
    task = as_task(problem, x, y, seed=0)
    ours = run_chain(program_of(problem, n_rounds), task, backend=backend).parameters
    real = problem.oracle.train(task, n_rounds)
    return float((ours - real).abs().max()), float((real[-1] - real[0]).abs().max())


SIZES = [(3, 5, 20), (6, 5, 20), (9, 10, 20), (4, 8, 200)]


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_fused_chains_are_exact_to_rounding(size):
    error, moved = run_of(*size, "fused")
    assert error <= 1e-13
    assert moved > 1e-2


@pytest.mark.parametrize(
    "size",
    [SIZES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[1:])],
    ids=str,
)
def test_dense_chains_are_exact_to_1e8(size):
    assert run_of(*size, "dense")[0] <= 1e-8


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize(
    "activation",
    ["tanh", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sigmoid", "softplus"))],
)
def test_chains_of_smooth_networks_are_exact_to_1e8(activation, backend):
    error, moved = run_of(*SIZES[0], backend, activation)
    assert error <= 1e-8
    assert moved > 1e-2


GOLDEN = {
    "relu": problem_of(MLP((3, 4, 2), "relu"), batch_size=2),
    "momentum": replace(
        problem_of(MLP((3, 4, 2), "relu")),
        update=MomentumStep((0.1, 0.2, 0.1, 0.4), 3.0, 2, weight_decay=0.5),
    ),
    "classes": problem_of(MLP((3, 4, 2), "relu"), batch_size=2, loss="cross_entropy"),
    "softplus": problem_of(MLP((3, 4, 2), "softplus", biases=True), 2, loss="logistic", box=0.5),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_listing_is_the_golden_one(name):
    program = program_of(GOLDEN[name])
    golden = Path(__file__).parents[1] / "golden" / f"cot_network_3_4_2_{name}.txt"
    # The last digits of a proved error depend on the machine.
    listing = re.sub(r"error at most \S+", "small error", program.listing())
    assert listing == golden.read_text(encoding="utf-8")
    assert all(function.error < 1e-11 for function in program.functions)
    assert from_data(json.loads(json.dumps(program.to_data()))) == program


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_a_compiled_chain_is_verified_saved_and_loaded(backend, tmp_path):
    compiled = icgd.compile(PROBLEM, n_steps=3, construction="cot-network")
    task = task_of(PROBLEM)
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial, backend=backend)
    assert report.verdict.holds
    assert report.step_bounds.max() < 1e-9
    assert report.certificate.domain_step == pytest.approx(6.0), "some data fall on a kink"
    compiled.save(tmp_path / "chain.safetensors")
    loaded = icgd.load(tmp_path / "chain.safetensors")
    assert loaded == compiled
    runs = [each.run_task(task, backend=backend, trace=True) for each in (compiled, loaded)]
    assert torch.equal(runs[0].predictions, runs[1].predictions)
    assert set(runs[0].trace) == set(compiled.program.rows.names)


def test_the_dense_weights_are_those_of_the_block():
    compiled = icgd.compile(PROBLEM, n_steps=2, construction="cot-network")
    n_weights = sum(weight.numel() for weight in compiled.block().parameters())
    assert n_weights == compiled.summary().parameters
    with pytest.raises(SettingError, match="is one block of layers, applied again and again"):
        compiled.transformer()


def test_linear_networks_are_proved_on_the_whole_domain():
    target = MLP((2, 2, 1), "identity")
    problem = Problem(target, "squared", GradientStep(0.01, 0.5, 2), Domain(1.0, 1.0))
    compiled = icgd.compile(problem, n_steps=4, construction="cot-network", tolerance=1e-12)
    certificate = compiled.certificate()
    assert certificate.domain_step <= certificate.domain_trajectory <= 1e-11
    with pytest.raises(ToleranceError, match="exact arithmetic"):
        icgd.compile(PROBLEM, n_steps=4, construction="cot-network", tolerance=1e-12)


def test_smooth_networks_are_proved_on_the_whole_domain():
    target = MLP((2, 2, 1), "sigmoid", biases=True)
    problem = Problem(target, "logistic", GradientStep(0.1, 0.5, 2), Domain(1.0, 1.0))
    compiled = icgd.compile(problem, n_steps=2, construction="cot-network", tolerance=1e-10)
    assert compiled.certificate().domain_trajectory <= 1e-10
    with pytest.raises(
        ToleranceError, match=r"with look-ups of full accuracy\. Rounding and look-ups"
    ):
        icgd.compile(problem, n_steps=2, construction="cot-network", tolerance=1e-20)


def test_grids_cover_what_biases_add():
    """z = 0.1 and delta = 4.2 are a hundred times what an input of 0.01 makes of them."""
    target = MLP((1, 1), "identity", biases=True)
    problem = Problem(target, "squared", GradientStep(0.1, 0.1, 1), Domain(0.01, 2.0))
    task = as_task(problem, [[0.01]], [[-2.0]], initial=[0.0, 0.1])
    real = problem.oracle.train(task, 1)
    ours = run_chain(program_of(problem, 1), task).parameters
    assert real[-1].tolist() == pytest.approx([-0.0021, -0.1])
    torch.testing.assert_close(ours, real, rtol=0, atol=1e-15)


def test_reaches_are_finite_whatever_the_depth():
    """Ranges of 400 layers overflow, and their products are not numbers."""
    problem = replace(PROBLEM, target=MLP((9,) * 400, "gelu"), domain=Domain(1e12, 1.0))
    reaches = {p.reach for p in parts_of(program_of(problem)) if isinstance(p, MultiplyByEntries)}
    assert reaches == {4096.0, 1e12 * (1 + 2.0**-10)}, "that of delta, and that of inputs"


def test_a_construction_without_batches_points_to_those_with_them():
    able = "Constructions that can: relu-stack, softmax-stack, cot-network"
    with pytest.raises(UnsupportedProblemError, match=able):
        icgd.compile(PROBLEM, "recursion", n_steps=1)


N_FAST = 12
"""Random cases of one round; the others have three, and are slow together."""

SMOOTH = ("tanh", "sigmoid", "softplus", "gelu", "silu")


def random_update(draw: random.Random, box: float) -> AbstractGradientStep:
    size, batch_size = draw.uniform(0.01, 0.5), draw.randint(1, 4)
    if draw.random() < 0.5:
        return GradientStep(size, box, batch_size)
    nesterov = draw.random() < 0.5
    return MomentumStep(
        size,
        box,
        batch_size,
        momentum=draw.choice((0.5, 0.9)),
        dampening=0.0 if nesterov else draw.choice((0.0, 0.5)),
        nesterov=nesterov,
        weight_decay=draw.choice((0.0, 0.1, 1 / size)),
    )


def random_problem(draw: random.Random) -> Problem:
    widths = tuple(draw.randint(1, 4) for _ in range(draw.randint(2, 5)))
    kinked = draw.choice(("relu", "leaky_relu"))
    names = (kinked, kinked, "identity", draw.choice(SMOOTH))
    loss = draw.choice(("squared", "logistic", "huber", "cross_entropy"))
    hidden, output = draw.choice(names), draw.choice(names)
    output = "identity" if loss in ("logistic", "cross_entropy") else output
    box = draw.choice((0.25, 0.5, 1.0))  # few, so that fits are shared
    update = random_update(draw, box)
    target = MLP(widths, hidden, output, biases=draw.random() < 0.3)
    return Problem(target, loss, update, Domain(2.0, 2.0))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed < N_FAST else pytest.mark.slow, id=str(seed))
        for seed in range(300)
    ],
)
def test_random_chains_stay_within_their_certificates(seed):
    draw = random.Random(seed)
    problem = random_problem(draw)
    task = task_of(problem, n_examples=draw.randint(4, 7))
    dtype, backend = draw.choice(("float64", "float32")), draw.choice(("fused", "dense"))
    n_steps = 1 if seed < N_FAST else 3
    compiled = icgd.compile(problem, n_steps=n_steps, construction="cot-network", dtype=dtype)
    report = icgd.verify(
        compiled, task.x, task.y, initial=task.initial, backend=backend, dtype=dtype
    )
    assert report.verdict.holds
    if dtype == "float64":  # float32 takes units near a kink for the other side
        assert report.step_errors.max() <= 1e-9


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize(
    ("activation", "size", "dtype"),
    [("relu", 1e-165, "float64"), ("tanh", 1e-100, "float64"), ("relu", 1e-19, "float32")],
)
def test_tiny_boxes_and_domains_are_trained_in(activation, size, dtype, backend):
    """Reaches are 0, or have no inverse, unless they have a floor; weights stay in the box."""
    update = GradientStep(0.05, size, 1)
    problem = Problem(MLP((2, 2, 1), activation), "squared", update, Domain(size, 1.0))
    compiled = icgd.compile(problem, n_steps=1, construction="cot-network")
    x = torch.full((2, 2), 0.9 * size, dtype=torch.float64)
    y = torch.ones(2, 1).double()
    report = icgd.verify(compiled, x, y, backend=backend, dtype=dtype, seed=0)
    assert report.verdict.holds
    assert report.step_errors.max() <= 2 * size


@pytest.mark.parametrize("update", [icgd.GradientStep, icgd.MomentumStep])
def test_averages_of_weights_are_refused(update):
    network, step = icgd.MLP((2, 3, 1), "tanh"), update(0.1, 2.0, batch_size=1, average=0.9)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(1.0, 1.0))
    reason = "it keeps no averages of weights; use relu-stack or softmax-stack."
    assert icgd.CotNetwork().why_not(problem) == reason
    assert icgd.ReluStack().why_not(problem) is icgd.SoftmaxStack().why_not(problem) is None
