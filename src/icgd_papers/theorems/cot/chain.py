r"""Section 4 of cot, the chain: masks, phases, costs, errors over rounds, and training.

Forward step i needs F_{i-1} and the newest B_i, backward step i needs B_{i+1} and the newest F_i;
the first step of each pass is shown data in place of one of them. Blocks have names here, such as
("F", 2), so that what a mask shows can be read off the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import log2
from typing import cast

import torch
from torch import Tensor

from icgd.backends.decoder import Decoded
from icgd.compiled import Compiled
from icgd.pipeline import compile, decode, verify
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AbstractGradientStep, AdamStep, GradientStep, MomentumStep
from icgd.problems.problem import Problem
from icgd.program.chain import ChainMask
from icgd_papers.theorems.cot.convex import normal
from icgd_papers.theorems.cot.network import Round
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement

Name = tuple[str, int]
"""The letter of a block and its layer."""

Far = Callable[[int, int], int]
"""The number of the second block that step t reads in a network of N layers."""

DEPTHS, N_ROUNDS = (1, 2, 3, 4, 7), 3


@statement("cot", "Section 4, phases of a round")
def phases_follow_from_the_step(seed: int) -> Iterator[Comparison]:
    """Count the steps of three rounds whose residue names no phase, or the wrong one."""
    del seed  # all steps are tried
    for depth in DEPTHS:
        numbers = range(1, 2 * depth * N_ROUNDS + 1)
        for compare, shift, text in (
            (at_most, 1, "((t - 1) mod 2N) + 1"),
            (printed, 0, "t mod 2N"),
        ):
            wrong = 0
            for number in numbers:
                residue = (number - shift) % (2 * depth) + shift
                is_forward = ChainMask(depth).place(number).is_forward
                phases = (1 <= residue <= depth, depth + 1 <= residue <= 2 * depth)
                wrong += phases != (is_forward, not is_forward)
            case = f"N = {depth}, {N_ROUNDS} rounds, {text}"
            yield compare(wrong, 0, case, "steps in no phase, or in the wrong one")


def chain_names(depth: int) -> list[Name]:
    """Return the names of the blocks 1, 2, .. of three rounds."""
    layers = range(1, depth + 1)
    forward, backward = [("F", i) for i in layers], [("B", i) for i in reversed(layers)]
    return (forward + backward) * N_ROUNDS


def needed_blocks(depth: int) -> Iterator[tuple[int, Name, Name | None]]:
    """Yield each step with the names of the two blocks it needs; None stands for data."""
    for number, (letter, layer) in enumerate(chain_names(depth), start=1):
        if letter == "F":
            first = layer == 1
            yield number, ("B", 1) if first else ("F", layer - 1), None if first else ("B", layer)
        else:
            first = layer == depth
            near = ("F", depth) if first else ("B", layer + 1)
            yield number, near, None if first else ("F", layer)


def wrong_steps(
    depth: int, far: Far, *, is_reversed: bool = True, n_steps: int | None = None
) -> int:
    """Count the steps that are not shown the blocks they need by t - 1 and `far`.

    The prompt ends with B_N .. B_1, which are blocks -(N - 1) .. 0, or with B_1 .. B_N.
    """
    layers = range(depth, 0, -1) if is_reversed else range(1, depth + 1)
    names = [("B", layer) for layer in layers] + chain_names(depth)

    def shown(number: int, step: int) -> Name | None:
        """Return the name of a block, if it is written before the step."""
        place = number + depth - 1
        return names[place] if 0 <= place < step + depth - 1 else None

    wrong = 0
    for step, near_name, far_name in list(needed_blocks(depth))[:n_steps]:
        is_near_wrong = shown(step - 1, step) != near_name
        is_far_wrong = far_name is not None and shown(far(step, depth), step) != far_name
        wrong += is_near_wrong or is_far_wrong
    return wrong


def corrected_far(step: int, depth: int) -> int:
    """Return t - (2i - 1), as icgd's mask has it; steps at i = 1 read data instead."""
    (reading,) = ChainMask(depth).walk(step, 1)
    return step if reading.far is None else reading.far


def printed_far(step: int, depth: int) -> int:
    """Return t - (2t mod N)."""
    return step - 2 * step % depth


def shifted(far: Far, shift: int, step: int, depth: int) -> int:
    """Return what a mask reads that counts steps from an earlier block."""
    return far(step + shift, depth) - shift


def wrong_data(depth: int, place: Far) -> int:
    """Count the first steps of a pass that read other data than X_l or Y_l, 2l - 1 and 2l."""
    firsts = [step for step, _, far in needed_blocks(depth) if far is None]
    return sum(place(step, depth) != number for number, step in enumerate(firsts, start=1))


@statement("cot", "Definition 4.4")
def mask_shows_what_is_needed(seed: int) -> Iterator[Comparison]:
    """Count the steps of three rounds that are shown a wrong block."""
    del seed  # all steps are tried
    unit = "steps shown a wrong block"
    for depth in DEPTHS:
        case = f"N = {depth}, {N_ROUNDS} rounds"
        yield at_most(wrong_steps(depth, corrected_far), 0, f"{case}: t - (2i - 1)", unit)
        data = wrong_data(depth, lambda t, n: (t - 1) // n + 1)
        yield at_most(data, 0, f"{case}: data floor((t - 1)/N) + 1", unit)
    case = f"N = 3, {N_ROUNDS} rounds"
    yield printed(wrong_steps(3, printed_far), 0, f"{case}: t - (2t mod N)", unit)
    # t may be counted from any block of the prompt on, and mod may be taken of the difference.
    best = min(
        wrong_steps(3, partial(shifted, far, shift))
        for far in (printed_far, lambda t, n: -t % n)
        for shift in range(10)
    )
    yield printed(best, 0, f"{case}: the best of 20 readings", unit)
    yield printed(wrong_data(3, lambda t, n: t // n - 1), 0, f"{case}: data floor(t/N) - 1", unit)
    reads_itself = printed_far(1, 1) == 1
    yield printed(reads_itself, 0, "N = 1, t = 1: is shown block 1 before it is written", unit)


@statement("cot", "Section 4.1, input format")
def prompt_ends_with_b1(seed: int) -> Iterator[Comparison]:
    """Count the wrong forward steps of the first round with the initial blocks in either order."""
    del seed  # all steps are tried
    unit = "forward steps of the first round shown a wrong block"
    for depth in DEPTHS[1:]:
        for compare, is_reversed, text in (
            (at_most, True, "B_N .. B_1"),
            (printed, False, "B_1 .. B_N"),
        ):
            wrong = wrong_steps(depth, corrected_far, is_reversed=is_reversed, n_steps=depth)
            yield compare(wrong, 0, f"N = {depth}, prompt ends with {text}", unit)


@statement("cot", "Remark 4.2")
def every_step_reads_two_blocks(seed: int) -> Iterator[Comparison]:
    """Count the blocks that the mask shows, and how far back they are."""
    del seed  # all steps are tried
    for depth in DEPTHS:
        rows = ChainMask(depth).matrix(N_ROUNDS)
        case = f"N = {depth}, {len(rows)} steps"
        yield at_most(max(map(sum, rows)), 2, f"{case}: blocks shown to a step", "blocks, most")
        backs = [
            reading.number - reading.far
            for reading in ChainMask(depth).walk(1, len(rows))
            if reading.far is not None
        ]
        yield at_most(max(backs, default=1), 2 * depth - 1, f"{case}: blocks back", "most; 2N - 1")


WIDTH, N_EXAMPLES = 8, 8


def compiled_step(construction: str, depth: int) -> Compiled:
    """Compile one gradient step on 8 examples of a network of width 8."""
    batch_size = N_EXAMPLES if construction == "cot-network" else None
    update = GradientStep(0.05, box=1 / WIDTH, batch_size=batch_size)
    network = MLP((WIDTH,) * (depth + 1), "relu")
    problem = Problem(network, "squared", update, Domain(1.0, 1.0))
    return compile(problem, construction, n_steps=1)


def flops(construction: str, depth: int) -> float:
    """Count the floating point operations of a gradient step."""
    return float(compiled_step(construction, depth).summary(N_EXAMPLES).flops)


@statement("cot", "Remark 4.1")
def chains_save_a_factor_of_n(seed: int) -> Iterator[Comparison]:
    """Compare the growth of FLOPs of the chain and of a stack that carries all weights."""
    del seed  # nothing is drawn
    depths = (32, 64, 128, 256)
    sizes = f"d = {WIDTH}, {N_EXAMPLES} examples, N = {depths[-2]} to {depths[-1]}"
    stack, chain = (
        log2(flops(name, depths[-1]) / flops(name, depths[-2]))
        for name in ("relu-stack", "cot-network")
    )
    case = f"{sizes}: exponent of N in FLOPs(stack) / FLOPs(chain), its distance from 1"
    yield at_most(abs(stack - chain - 1), 0.05, case, "exponent")
    widths = {compiled_step("cot-network", depth).summary().d_model for depth in depths}
    case = f"d = {WIDTH}, N = {depths[0]} to {depths[-1]}: different widths of the chain's stream"
    yield at_most(len(widths), 1, case, "widths")


@statement("cot", "Open question, constants")
def constants_of_the_saving(seed: int) -> Iterator[Comparison]:
    """Find the depth from which on the chain does less than the stack."""
    del seed  # nothing is drawn
    for depth, cheaper, dearer in (
        (256, "relu-stack", "cot-network"),
        (512, "cot-network", "relu-stack"),
    ):
        case = f"d = {WIDTH}, {N_EXAMPLES} examples, N = {depth}: {cheaper} beside {dearer}"
        yield at_most(flops(cheaper, depth), flops(dearer, depth), case, "FLOPs of a step")


def missed(depth: int, seed: int) -> tuple[int, float, float]:
    """Generate three rounds of a network with one unit a layer, in which attention is the mask.

    Return the number of steps, the largest weight that one of them gives to any block but the
    second one that it needs, and the largest error of a trained weight.
    """
    x, y = 0.5 + normal(seed, 2, N_ROUNDS, 1).abs().clamp(max=0.5)
    compiled = compile(chain_problem((1,) * (depth + 1), 0.1), "cot-network", n_steps=N_ROUNDS)
    task = compiled.task(x, y, initial=torch.full((depth,), 0.9, dtype=torch.float64))
    decoded = cast(Decoded, decode(compiled, x, y, initial=task.initial))
    needed = torch.tensor(ChainMask(depth).matrix(N_ROUNDS), dtype=torch.float64)
    for step, row in enumerate(needed):
        row[2 * N_ROUNDS + depth - 1 + step] = 0.0  # the block before is the token that asks
    error = decoded.parameters - compiled.problem.oracle.train(task, N_ROUNDS)
    return len(needed), float((decoded.found - needed).abs().max()), float(error.abs().max())


@statement("cot", "Open question, masks")
def one_softmax_layer_masks(seed: int) -> Iterator[Comparison]:
    """Generate chains token by token, where one softmax head finds the second block."""
    for depth in (1, 2, 3, 4, 8, 16):
        n_steps, weight, error = missed(depth, seed)
        case = f"N = {depth}, {n_steps} steps"
        yield at_most(weight, 0, f"{case}: weight on any block but the needed one", "weight")
        yield at_most(error, 1e-12, f"{case}: distance from exact descent", "largest weight")


@statement("cot", "Open question, other models")
def other_networks_and_optimisers(seed: int) -> Iterator[Comparison]:
    """Verify literal runs with other activations, losses and optimisers, and with shortcuts."""
    x, y = normal(seed, 2, 4, 3).clamp(-1, 1)
    relu, step = MLP((3, 3, 3), "relu"), GradientStep(0.1, box=1.0, batch_size=1)
    momentum = MomentumStep(0.1, box=1.0, batch_size=1)
    residual = MLP((3, 3, 3, 3), "relu", shortcuts=((1, 2),))
    cases: tuple[tuple[str, str, MLP, str, AbstractGradientStep], ...] = (
        ("cot-network", "tanh", MLP((3, 3, 3), "tanh"), "squared", step),
        ("cot-network", "biases", MLP((3, 3, 3), "relu", biases=True), "squared", step),
        ("cot-network", "logistic loss", relu, "logistic", step),
        ("cot-network", "momentum", relu, "squared", momentum),
        ("relu-stack", "shortcut", residual, "squared", GradientStep(0.1, box=0.5)),
        ("relu-stack", "Adam", relu, "squared", AdamStep(0.01, box=0.5)),
    )
    for construction, name, network, loss, update in cases:
        problem = Problem(network, loss, update, Domain(1.0, 1.0))
        compiled = compile(problem, construction, n_steps=4)
        labels = (y > 0).double() if loss == "logistic" else y
        report = verify(compiled, x, labels, seed=seed, backend="literal")
        error = float(report.trajectory_errors[-1])
        case = f"{construction}, {name}, 4 literal steps"
        yield at_most(error, 1e-4, case, "largest error of a weight")


SMALL = 1e-9
"""The accuracy of blocks that are exact in the counterexamples to Proposition 4.4."""


def round_error(
    depth: int, x: float, forward: float, y: float, backward: float, routing: float = SMALL
) -> float:
    """Return eps_round as printed, from the accuracies of the four types of steps and routing."""
    return x + (depth - 1) * forward + y + (depth - 1) * backward + (2 * depth + 1) * routing


def expanding_rounds(n_rounds: int, eps: float) -> float:
    """Return the error that rounds of one weight reach with x = y = 1 and eta = 2.

    The weight starts at its optimum, 1, and every B_1 is off by eps, with the sign that hurts. A
    round maps w to w - 4 (w - 1), so that its Lipschitz constant is 3.
    """
    weight, one = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for _ in range(n_rounds):
        (after,) = Round((weight,), one, one).stepped(2.0)
        weight = after + (eps if float(after) >= 1 else -eps)
    return abs(float(weight) - 1)


def rounds_at_a_saddle(n_rounds: int, step_size: float, eps: float) -> tuple[float, float]:
    """Return the error of two weights near a saddle, and what Lipschitz constants allow.

    Distances grow along w_1 = w_2 whatever the step size. A round's Lipschitz constant is that of
    I - eta H, with the Hessian at either run's point and a margin for what lies between.
    """
    one = torch.ones(1, dtype=torch.float64)
    exact = perturbed = [torch.full((1, 1), 0.05, dtype=torch.float64)] * 2
    allowed = 0.0
    for _ in range(n_rounds):
        constants = []
        for weights in (exact, perturbed):
            first, second = (float(matrix) for matrix in weights)
            mixed = step_size * abs(2 * (2 * first * second - 1))
            constants += [abs(1 - 2 * step_size * w**2) + mixed for w in (first, second)]
        allowed = max(constants) * (1 + 1e-4) * allowed + eps
        exact = Round(tuple(exact), one, one).stepped(step_size)
        perturbed = [after + eps for after in Round(tuple(perturbed), one, one).stepped(step_size)]
    reached = max(float((a - b).abs()) for a, b in zip(exact, perturbed, strict=True))
    return reached, allowed


def chain_problem(widths: tuple[int, ...], step_size: float) -> Problem:
    """Return a ReLU network that a chain trains on one example a round."""
    network = MLP(widths, "relu", output_activation="relu")
    update = GradientStep(step_size, box=3.0, batch_size=1)
    return Problem(network, "squared", update, Domain(x=2.0, y=2.0))


@statement("cot", "Proposition 4.4")
def errors_over_rounds(seed: int) -> Iterator[Comparison]:
    """Compare literal chains with L eps_round, and follow errors through expanding rounds."""
    unit = "error of a weight"
    eps, n_rounds = 1e-10, 10
    for depth, width in ((1, 5), (2, 5), (3, 5), (4, 3)):
        compiled = compile(
            chain_problem((width,) * (depth + 1), 0.1), "cot-network", n_steps=n_rounds
        )
        x, y = normal(seed, 2, n_rounds, width).clamp(-2, 2)
        report = verify(compiled, x, y, seed=seed, backend="literal")
        case = f"icgd's literal chain, N = {depth}, d = {width}, {n_rounds} rounds"
        allowed = n_rounds * round_error(depth, eps, eps, eps, eps, eps)
        yield at_most(float(report.trajectory_errors[-1]), allowed, case, f"{unit}; eps = {eps:g}")
    for depth in (1, 2, 5):
        surplus = 2 * depth + 1 - ChainMask(depth).blocks_per_round
        case = f"N = {depth}: calls of the block in (2N + 1) eps_C3 beyond those of a round"
        yield in_proof(surplus, 0, case, "calls")
    # One weight, W = x = 1, y = 0: o_1 is off by eps and delta_1 = 2 (o_1 - y) by twice as much.
    eps = 1e-3
    case = f"N = 1, one round, W = x = 1, y = 0, o_1 off by {eps:g}: error of delta_1"
    yield in_proof(2 * eps, round_error(1, eps, SMALL, SMALL, SMALL), case, unit)

    n_rounds, eps = 5, 1e-6
    reached = expanding_rounds(n_rounds, eps)
    case = f"N = 1, eta = 2, x = y = 1, B_1 off by {eps:g}, {n_rounds} rounds"
    allowed = eps * sum(3.0**k for k in range(n_rounds)) * (1 + 1e-6)
    yield at_most(reached, allowed, f"{case}: Lipschitz constant 3", unit)
    line = n_rounds * round_error(1, SMALL, SMALL, eps, SMALL)
    yield in_proof(reached, line, f"{case}: L eps_round", unit)

    n_rounds, eps = 150, 1e-7
    reached, allowed = rounds_at_a_saddle(n_rounds, 0.01, eps)
    case = f"N = 2, eta = 0.01, x = y = 1, B_i off by {eps:g}, {n_rounds} rounds"
    yield at_most(reached, allowed, f"{case}: Lipschitz constants", unit)
    line = n_rounds * round_error(2, SMALL, SMALL, eps, eps)
    yield in_proof(reached, line, f"{case}: L eps_round", unit)

    # A round of a 1-1 network with eta = 0.9 and x = 1.9 multiplies distances by -2.2.
    size, n_rounds = 0.9, 20
    compiled = compile(chain_problem((1, 1), size), "cot-network", n_steps=n_rounds)
    x, y, initial = (torch.tensor(part) for part in ([[1.9]], [[0.37 * 1.9]], [0.37]))
    report = verify(compiled, x, y, initial=initial, dtype="float32", backend="literal")
    reached, allowed = float(report.trajectory_errors[-1]), 0.0
    for step_error in report.step_errors.tolist():
        allowed = abs(1 - size * float(x) ** 2) * allowed + step_error
    case = f"icgd's literal chain in float32, rounds that multiply by -2.2, {n_rounds} rounds"
    yield at_most(reached, allowed, f"{case}: Lipschitz constant 2.2", unit)
    line = float(report.step_errors.sum())
    yield in_proof(reached, line, f"{case}: sum of the rounds' errors", unit)


REPORTED_LOSSES = {"forward": 3.00, "backward": 0.139}

TEACHER_LAWS = [
    (size, has_signs) for has_signs in (True, False) for size in (0.05, 0.2, 0.5, 1.0, 2.0)
]
"""Teachers and inputs are normal numbers of these sizes, over sqrt(d) for weights, or their
absolute values."""


def teacher_blocks(kind: str, size: float, *, has_signs: bool, seed: int) -> Tensor:
    """Return the columns of F_i or B_i without tags, of 60 teachers of 3 layers of width 5."""
    columns = []
    for number in range(60):
        draws = size * normal(1000 * seed + number, 17, 5)
        draws = draws if has_signs else draws.abs()
        teacher = Round(tuple(draws[2:].reshape(3, 5, 5) / 5**0.5), draws[0], draws[1])
        after = teacher.stepped(0.05)
        for i, matrix in enumerate(teacher.weights):
            outputs, delta = teacher.outputs, teacher.deltas[i]
            if kind == "forward":
                rows = [outputs[i + 1], outputs[i], teacher.slopes[i], matrix.flatten()]
            else:
                rows = [delta, matrix.T @ delta, after[i].flatten()]
            columns.append(torch.cat(rows))
    return torch.stack(columns)


def frobenius_loss(blocks: Tensor, answer: Tensor) -> float:
    """Return the mean squared Frobenius distance of blocks that have 5 equal columns each."""
    return float(5 * (blocks - answer).square().sum(-1).mean())


@statement("cot", "Appendix D")
def losses_depend_on_the_teachers(seed: int) -> Iterator[Comparison]:
    """Compare the reported losses with those of a constant answer, over a family of laws."""
    query, key, value = normal(seed, 3, 10, 10)
    columns = normal(seed + 1, 10, 1).expand(10, 5)
    attention = torch.softmax((key @ columns).T @ (query @ columns), dim=0)
    error = float((value @ columns @ attention - value @ columns).abs().max())
    case = "softmax attention over a block's 5 equal columns beside V z"
    yield at_most(error, 1e-12, case, "entry")
    for kind, reported in REPORTED_LOSSES.items():
        for size, has_signs in TEACHER_LAWS:
            blocks, others = (
                teacher_blocks(kind, size, has_signs=has_signs, seed=s) for s in (seed, seed + 1)
            )
            loss = frobenius_loss(blocks, others.mean(0))
            sign = "normal" if has_signs else "positive"
            case = f"{kind}, {sign} teachers of size {size:g}: the reported loss"
            yield printed(reported, loss, case, "loss; that of the mean block of other teachers")
