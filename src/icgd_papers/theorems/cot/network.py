r"""Section 4 of cot, one step: what its blocks hold, and what one transformer block makes of them.

The network is square, with ReLUs in every layer and the loss |o_N - y|^2:

    z_i = W_i o_{i-1},  o_i = relu(z_i),  delta_N = 2 (o_N - y) r'(z_N),
    delta_i = W_{i+1}^T delta_{i+1} r'(z_i),  W_i <- W_i - eta delta_i o_{i-1}^T

icgd's block of cot-network is shown two blocks with exact numbers, as the mask would, and what it
writes is compared with the exact next block, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from icgd.backends.chain import GENERATORS
from icgd.constructions.cot_network import CotNetwork
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.chain import IS_BACKWARD, IS_DATA, IS_FORWARD, KINKED, ChainProgram
from icgd_papers.studies.cot_tokens import look_up, smooth_line
from icgd_papers.theorems.cot.convex import normal
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement

STEP_SIZE, WIDTH = 0.05, 5

KINK_WIDTH = 2.0**-30
"""c, the width of the ramp by which the slope of a ReLU is computed."""

EPS, ROUNDING = 1e-10, 1e-13

FORWARD, BACKWARD, FROM_X, FROM_Y = "forward", "backward", "x", "y"
"""The types of inputs: [F_{i-1}; B_i], [B_{i+1}; F_i], [B_1; X] and [F_N; Y]."""


@dataclass(frozen=True)
class Round:
    """One example, the weights before the round, and everything that the two passes compute."""

    weights: tuple[Tensor, ...]
    x: Tensor
    y: Tensor

    @property
    def depth(self) -> int:
        """N."""
        return len(self.weights)

    @cached_property
    def outputs(self) -> list[Tensor]:
        """o_0 .. o_N."""
        outputs = [self.x]
        for matrix in self.weights:
            outputs.append(torch.relu(matrix @ outputs[-1]))
        return outputs

    @cached_property
    def preactivations(self) -> list[Tensor]:
        """z_1 .. z_N."""
        return [w @ o for w, o in zip(self.weights, self.outputs[:-1], strict=True)]

    @cached_property
    def slopes(self) -> list[Tensor]:
        """r'(z_1) .. r'(z_N)."""
        return [(z > 0).double() for z in self.preactivations]

    @cached_property
    def deltas(self) -> list[Tensor]:
        """delta_1 .. delta_N."""
        deltas = [2 * (self.outputs[-1] - self.y) * self.slopes[-1]]
        for matrix, slope in zip(self.weights[:0:-1], self.slopes[-2::-1], strict=True):
            deltas.insert(0, matrix.T @ deltas[0] * slope)
        return deltas

    def stepped(self, step_size: float) -> list[Tensor]:
        """Return the weights after the round."""
        parts = zip(self.weights, self.deltas, self.outputs[:-1], strict=True)
        return [w - step_size * torch.outer(delta, o) for w, delta, o in parts]

    @cached_property
    def gradients(self) -> list[Tensor]:
        """The gradient of |o_N - y|^2 by each matrix, by automatic differentiation."""
        weights = [matrix.clone().requires_grad_() for matrix in self.weights]
        output = self.x
        for matrix in weights:
            output = torch.relu(matrix @ output)
        return list(torch.autograd.grad((output - self.y).square().sum(), weights))


def draw_round(seed: int, depth: int = 3, width: int = WIDTH) -> Round:
    """Draw a round in which no unit is within 1e-3 of its kink and every layer has a live unit."""
    for attempt in range(1000):
        draws = normal(1000 * seed + attempt, depth * width + 2, width)
        matrices = (draws[2:] * (2 / width) ** 0.5).clamp(-2, 2).reshape(depth, width, width)
        drawn = Round(tuple(matrices), draws[0].clamp(-2, 2), draws[1].clamp(-2, 2))
        nearest = min(float(z.abs().min()) for z in drawn.preactivations)
        is_live = all(0 < float(slope.sum()) < width for slope in drawn.slopes)
        if nearest > 1e-3 and is_live:
            return drawn
    raise AssertionError(f"seed {seed} draws no network with flat and steep units")


class Block:
    """icgd's block of cot-network, run literally, beside the exact blocks of a round."""

    def __init__(self, drawn: Round) -> None:
        network = MLP((len(drawn.x),) * (drawn.depth + 1), "relu", output_activation="relu")
        # icgd's risk is half of |o_N - y|^2, so its step is twice the paper's.
        update = GradientStep(2 * STEP_SIZE, box=10.0, batch_size=1)
        problem = Problem(network, "squared", update, Domain(x=4.0, y=4.0))
        self.program: ChainProgram = CotNetwork(KINK_WIDTH).build(problem, n_steps=1)
        self.generator = GENERATORS["literal"](self.program, drawn.x[None, :])
        self.round = drawn

    def forward(self, layer: int) -> dict[str, Tensor | float]:
        """Return the rows of F_i; the row `flat` says where the slope is 0."""
        z = self.round.preactivations[layer - 1]
        return {
            "first": self.round.outputs[layer][:, None],
            "second": self.round.outputs[layer - 1][:, None],
            "flat": torch.relu(KINK_WIDTH - z)[:, None] / KINK_WIDTH,
            "weights": self.round.weights[layer - 1],
            KINKED: 1.0,
            IS_FORWARD: 1.0,
        }

    def backward(self, layer: int) -> dict[str, Tensor | float]:
        """Return the rows of B_i after the round."""
        delta, matrix = self.round.deltas[layer - 1], self.round.weights[layer - 1]
        return {
            "first": delta[:, None],
            "second": (matrix.T @ delta)[:, None],
            "weights": self.round.stepped(STEP_SIZE)[layer - 1],
            KINKED: 1.0,
            IS_BACKWARD: 1.0,
        }

    def initial(self, layer: int) -> dict[str, Tensor | float]:
        """Return the rows of B_i before the round."""
        return {"weights": self.round.weights[layer - 1], KINKED: 1.0, IS_BACKWARD: 1.0}

    def steps(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
        """Yield the type of each step of a round, the two blocks it is shown, and its target."""
        x, y = ({"first": part[:, None], IS_DATA: 1.0} for part in (self.round.x, self.round.y))
        depth = self.round.depth
        yield FROM_X, self.initial(1), x, self.forward(1)
        for layer in range(2, depth + 1):
            yield FORWARD, self.forward(layer - 1), self.initial(layer), self.forward(layer)
        yield FROM_Y, self.forward(depth), y, self.backward(depth)
        for layer in range(depth - 1, 0, -1):
            yield BACKWARD, self.backward(layer + 1), self.forward(layer), self.backward(layer)

    def error(
        self, near: dict[str, Any], far: dict[str, Any], target: dict[str, Any], number: int
    ) -> float:
        """Return the largest error of any row of the block that is made from these two."""
        encode, row = self.generator.encode, self.generator.row
        made, exact = self.generator.step(encode(near), encode(far), number), encode(target)

        def slope(name: str, values: Tensor) -> Tensor:
            # The paper's row is r', which is 1 where `flat` is 0 and 0 where it is at least 1.
            return 1 - values.clamp(0, 1) if name == "flat" else values

        return max(
            float((slope(name, row(made, name)) - slope(name, row(exact, name))).abs().max())
            for name in self.program.rows.names
        )


SHAPES = ((1, 3), (2, 4), (3, 5), (4, 5), (6, 3))
"""Depths and widths of the networks on which the block is tried."""


@lru_cache(maxsize=64)
def block_errors(seed: int) -> dict[str, dict[str, float]]:
    """Return the largest error of each type of step, for each shape of networks with that type."""
    errors: dict[str, dict[str, float]] = {}
    for depth, width in SHAPES:
        shape = f"N = {depth}, d = {width}"
        for number in range(3):
            block = Block(draw_round(10 * seed + number, depth, width))
            for place, (kind, near, far, target) in enumerate(block.steps(), start=1):
                of_kind = errors.setdefault(kind, {})
                error = block.error(near, far, target, place)
                of_kind[shape] = max(of_kind.get(shape, 0.0), error)
    return errors


def steps_of(kind: str, seed: int) -> Iterator[Comparison]:
    """Compare the literal block's errors with eps."""
    for shape, error in block_errors(seed)[kind].items():
        yield at_most(error, EPS, f"{kind} type, 3 networks of {shape}, literal block", "row; eps")


def on_the_ramp() -> Comparison:
    """Show the block a network of one weight with z = c/2."""
    one = torch.ones(1, 1, dtype=torch.float64)
    drawn = Round((one,), one[0] * KINK_WIDTH / 2, one[0])
    block = Block(drawn)
    target = block.forward(1) | {"flat": torch.zeros(1, 1, dtype=torch.float64)}
    data = {"first": drawn.x[:, None], IS_DATA: 1.0}
    error = block.error(block.initial(1), data, target, 1)
    return printed(error, EPS, "a network of one weight, z = c/2 on the ramp of (21)", "r'(z); eps")


@statement("cot", "Definition 2.3")
def backpropagation_is_the_chain_rule(seed: int) -> Iterator[Comparison]:
    """Compare (2) to (4) with automatic derivatives, for networks with biases."""
    activations = {"relu": torch.relu, "tanh": torch.tanh, "softplus": functional.softplus}
    slopes: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": lambda z: (z > 0).double(),
        "tanh": lambda z: 1 - torch.tanh(z) ** 2,
        "softplus": torch.sigmoid,
    }
    for name, activation in activations.items():
        for depth in (1, 3, 5):
            draws = normal(seed, depth, WIDTH, WIDTH + 1) / 2
            weights = [draw[:, :WIDTH].clone().requires_grad_() for draw in draws]
            biases = [draw[:, WIDTH].clone().requires_grad_() for draw in draws]
            x, y = normal(seed + 1, 2, WIDTH)
            outputs, z = [x], []
            for matrix, bias in zip(weights, biases, strict=True):
                z.append(matrix @ outputs[-1] + bias)
                outputs.append(activation(z[-1]))
            exact = torch.autograd.grad((outputs[-1] - y).square().sum(), [*weights, *biases])
            delta, gradients = 2 * (outputs[-1] - y) * slopes[name](z[-1]), []
            for layer in range(depth - 1, -1, -1):
                gradients.append((torch.outer(delta, outputs[layer]), delta))
                if layer:
                    delta = weights[layer].T @ delta * slopes[name](z[layer - 1])
            by_formula = [*(g for g, _ in gradients[::-1]), *(d for _, d in gradients[::-1])]
            error = max(
                float((a.detach() - b).abs().max() / b.abs().max().clamp_min(1))
                for a, b in zip(by_formula, exact, strict=True)
            )
            case = f"{name}, {depth} layers of width {WIDTH} with biases"
            yield at_most(error, EPS, case, "gradient, relative")


@statement("cot", "Definition 4.1")
def vec_stacks_columns(seed: int) -> Iterator[Comparison]:
    """Compare the printed index with stacked columns, for W and for an outer product."""
    for k, d in ((2, 3), (5, 5)):
        matrix = normal(seed, k, d)
        stacked = matrix.T.flatten()
        by_index = torch.zeros(k * d, dtype=torch.float64)
        for i in range(1, k + 1):
            for j in range(1, d + 1):
                by_index[(j - 1) * k + i - 1] = matrix[i - 1, j - 1]
        error = float((by_index - stacked).abs().max())
        yield at_most(error, 0.0, f"W of {k} x {d}: (j - 1) k + i beside stacked columns", "entry")
    delta, output = normal(seed + 1, 2, WIDTH)
    blocks = torch.outer(delta, output).T.flatten().reshape(WIDTH, WIDTH)
    error = float((blocks - output[:, None] * delta).abs().max())
    yield at_most(error, 0.0, "block h of vec(delta o^T) beside o_h delta (Appendix C.5)", "entry")


def factor_error(drawn: Round, layer: int, shift: int) -> tuple[float, float, str]:
    """Compare W_i - eta delta_i o^T, o = o_{i + shift}, with a step along the gradient."""
    outer = torch.outer(drawn.deltas[layer - 1], drawn.outputs[layer + shift])
    error = float(STEP_SIZE * (outer - drawn.gradients[layer - 1]).abs().max())
    case = f"B_{layer} of {drawn.depth} layers with delta_{layer} o_{layer + shift}^T"
    return error, ROUNDING, f"{case}: distance from a gradient step"


@statement("cot", "Definition 4.3")
def blocks_hold_a_gradient_step(seed: int) -> Iterator[Comparison]:
    """Compare the weights in B_i with automatic derivatives, and count the rows of X_l."""
    for depth in (2, 3, 4):
        drawn = draw_round(seed, depth)
        for layer in range(1, depth + 1):
            yield at_most(*factor_error(drawn, layer, -1), "largest weight")
            yield printed(*factor_error(drawn, layer, 0), "largest weight")
    for d in (2, 5):
        rows = d**2 + 3 * d + 1
        for compare, zeros, text in (
            (at_most, d**2 + 2 * d, "2d + d^2"),
            (printed, d**2 + 3 * d, "3d + d^2"),
        ):
            case = f"d = {d}: rows of X_l with {text} zeros beside those of F_i"
            yield compare(abs(d + zeros + 1 - rows), 0, case, "rows too many")


@statement("cot", "Theorem 4.1")
def one_block_goes_forward(seed: int) -> Iterator[Comparison]:
    """Make F_i from [F_{i-1}; B_i], and from a preactivation on the ramp."""
    yield from steps_of(FORWARD, seed)
    yield on_the_ramp()


@statement("cot", "Theorem 4.2")
def one_block_goes_backward(seed: int) -> Iterator[Comparison]:
    """Make B_i from [B_{i+1}; F_i], and follow the selectors of the proof."""
    yield from steps_of(BACKWARD, seed)
    for is_printed, case, error in backward_selectors(seed):
        if is_printed:
            yield in_proof(error, ROUNDING, case, "error of an entry")


@statement("cot", "Proposition 4.1")
def one_block_starts_forward(seed: int) -> Iterator[Comparison]:
    """Make F_1 from [B_1; X]."""
    yield from steps_of(FROM_X, seed)
    yield on_the_ramp()


@statement("cot", "Proposition 4.2")
def one_block_starts_backward(seed: int) -> Iterator[Comparison]:
    """Make B_N from [F_N; Y], and follow the sign and the factor of the proof."""
    yield from steps_of(FROM_Y, seed)
    drawn = draw_round(seed)
    yield in_proof(*sign_error(drawn, -1.0), "entry of delta_N")
    yield in_proof(*factor_error(drawn, drawn.depth, 0), "largest weight")


@statement("cot", "Proposition 4.3")
def one_block_takes_every_step(seed: int) -> Iterator[Comparison]:
    """Take the steps of all types by one block, and route them by the printed gates."""
    for kind in (FORWARD, BACKWARD, FROM_X, FROM_Y):
        yield from steps_of(kind, seed)
    yield on_the_ramp()
    error = router_error(shifted_gate, PRINTED_GATES, seed)
    case = "the router of Appendix C.8, M = 8, on the four types: distance from Z or 0"
    yield in_proof(error, 0.0, case, "largest entry")


@statement("cot", "Appendix C.4, input")
def forward_input_has_2r_rows(seed: int) -> Iterator[Comparison]:
    """Count the rows of the displayed input."""
    del seed  # nothing is drawn
    for d in (2, 5, 10):
        # o, o, r' | vec W_i, 1 | delta, W^T delta | vec W_i | vec W_{i-1} | 0
        displayed = 3 * d + d**2 + 1 + 2 * d + d**2 + d**2 + d + 1
        stacked = 2 * (d**2 + 3 * d + 1)
        case = f"d = {d}: rows of [F_(i-1); B_i]"
        unit = "rows beyond 2 (d^2 + 3d + 1)"
        yield at_most(displayed - d**2 - stacked, 0, f"{case} without vec(W_(i-1)) in B_i", unit)
        yield printed(displayed - stacked, 0, f"{case} as displayed, {displayed}", unit)


def heads_product(column: Tensor, factor: Tensor, reach: float) -> Tensor:
    """Multiply a column by a number with one softmax head, to rounding for |factor| <= reach."""
    return look_up(smooth_line(reach), factor) * column


def backward_selectors(seed: int) -> Iterator[tuple[bool, str, float]]:
    """Compute delta o^T and W^T delta by d heads each, from the needed and the printed rows.

    Each item says whether the rows are printed ones, which they are, and the largest error.
    """
    delta, output, delta_above, *rows = normal(seed, 3 + WIDTH, WIDTH).clamp(-2, 2)
    weights = torch.stack(rows)

    def outer(factors: Tensor) -> Tensor:
        return torch.stack([heads_product(delta, factor, 2.0) for factor in factors], dim=-1)

    def pulled_back(vectors: Tensor) -> Tensor:
        one, reach = torch.ones((), dtype=torch.float64), 4.0 * WIDTH
        return torch.stack([heads_product(one, vector @ delta, reach) for vector in vectors])

    gradient, back = torch.outer(delta, output), weights.T @ delta
    for is_printed, case, error in (
        (False, "d heads with the factors o_{i-1}: delta o^T", outer(output) - gradient),
        (True, "factors by E = [I 0], which are delta_{i+1}", outer(delta_above) - gradient),
        (False, "d heads with the columns of W: W^T delta", pulled_back(weights.T) - back),
        (True, "d heads with the rows of W for W^T delta", pulled_back(weights) - back),
    ):
        yield is_printed, case, float(error.abs().max())


@statement("cot", "Appendix C.5")
def heads_make_outer_products(seed: int) -> Iterator[Comparison]:
    """Follow Steps 3 and 5 with the printed selectors and with those that are needed."""
    for is_printed, case, error in backward_selectors(seed):
        yield (printed if is_printed else at_most)(error, ROUNDING, case, "error of an entry")


@statement("cot", "Appendix C.6")
def selector_reads_both_blocks(seed: int) -> Iterator[Comparison]:
    """Count the columns of both parts of A_3, which is applied to 2R rows."""
    del seed  # nothing is drawn
    for d in (2, 5, 10):
        rows = 2 * (d**2 + 3 * d + 1)
        first = (1 + 3 * d + d**2) + d + (2 * d + d**2 + 1)
        second = 2 * d + d**2 + (d + 1)
        case, unit = f"d = {d}", "columns too few or too many"
        yield at_most(abs(first - rows), 0, f"{case}: part of A_3 that takes x", unit)
        widened = second + d**2 + 3 * d + 1
        yield at_most(abs(widened - rows), 0, f"{case}: the other part, with zeros for X", unit)
        yield printed(abs(second - rows), 0, f"{case}: part that takes W_1, {second}", unit)


def sign_error(drawn: Round, sign: float) -> tuple[float, float, str]:
    """Compare 2 sign (o_N - y) r'(z_N) with the derivative by z_N."""
    z = drawn.preactivations[-1].clone().requires_grad_()
    (exact,) = torch.autograd.grad((torch.relu(z) - drawn.y).square().sum(), z)
    delta = 2 * sign * (drawn.outputs[-1] - drawn.y) * drawn.slopes[-1]
    text = "2 (o_N - y) r'(z_N)" if sign > 0 else "2 (y - o_N) r'(z_N)"
    error = float((delta - exact).abs().max())
    return error, ROUNDING, f"delta_N = {text}: distance from the derivative by z_N"


@statement("cot", "Appendix C.7, sign")
def last_delta_has_the_sign_of_the_residual(seed: int) -> Iterator[Comparison]:
    """Compare both signs of delta_N with the derivative."""
    drawn = draw_round(seed)
    yield at_most(*sign_error(drawn, 1.0), "entry")
    yield printed(*sign_error(drawn, -1.0), "entry")


@statement("cot", "Appendix C.7, outer product")
def last_factor_is_the_input_of_the_layer(seed: int) -> Iterator[Comparison]:
    """Compare both factors of the last layer's gradient."""
    for depth in (2, 3):
        drawn = draw_round(seed, depth)
        yield at_most(*factor_error(drawn, depth, -1), "largest weight")
        yield printed(*factor_error(drawn, depth, 0), "largest weight")


@statement("cot", "Appendix C.7, linear maps")
def pulling_back_is_bilinear(seed: int) -> Iterator[Comparison]:
    """Double W_N and delta_N: a linear map doubles, W_N^T delta_N is four times as large."""
    drawn = draw_round(seed)
    matrix, delta = drawn.weights[-1], drawn.deltas[-1]
    one, reach = torch.ones((), dtype=torch.float64), 8.0 * WIDTH
    by_heads = torch.stack([heads_product(one, column @ delta, reach) for column in matrix.T])
    error = float((by_heads - matrix.T @ delta).abs().max())
    yield at_most(error, 1e-12, "W_N^T delta_N by d heads", "error of an entry")
    gap = (2 * matrix).T @ (2 * delta) - 2 * (matrix.T @ delta)
    case = "f(2z) - 2 f(z) for f = W_N^T delta_N"
    yield printed(float(gap.abs().max()), 1e-12, case, "entry; 0 for every linear map")


TAGS = {FORWARD: (1.0, 0.0), BACKWARD: (0.0, 1.0), FROM_X: (0.0, 2.0), FROM_Y: (1.0, 2.0)}
"""The tags (u, v) of the two blocks: 1 for F, 0 for B, 2 for data."""

Gates = Mapping[str, Callable[[float, float], float]]

PRINTED_GATES: Gates = {
    FORWARD: lambda u, v: u - v - 1,
    BACKWARD: lambda u, v: -u - v + 1,
    FROM_X: lambda u, v: -u + v - 1,
    FROM_Y: lambda u, v: u + v - 3,
}

CORRECTED_GATES: Gates = {
    **PRINTED_GATES,
    BACKWARD: lambda u, v: -2 * u - v + 1,
    FROM_X: lambda u, v: -u + v - 2,
}

LARGEST = 8.0
"""M: twice the largest entry."""


def shifted_gate(z: Tensor, g: float) -> Tensor:
    """Return sigma_0(Z + M g) as printed."""
    return torch.relu(z + LARGEST * g + LARGEST / 2) - LARGEST / 2


def gated_copy(z: Tensor, g: float) -> Tensor:
    """Return Z if g is 0, and 0 if it is at most -1."""
    return torch.relu(z + LARGEST * g) - torch.relu(-z + LARGEST * g)


def router_error(gate: Callable[[Tensor, float], Tensor], gates: Gates, seed: int) -> float:
    """Return the largest distance of a gate's answer from Z on its own type and 0 on the others."""
    z = normal(seed, 20).clamp(-LARGEST / 2, LARGEST / 2)
    return max(
        float((gate(z, g(*tags)) - (z if own == kind else 0 * z)).abs().max())
        for own, g in gates.items()
        for kind, tags in TAGS.items()
    )


@statement("cot", "Appendix C.8, gate")
def gates_open_and_close(seed: int) -> Iterator[Comparison]:
    """Open and close both gates."""
    z = normal(seed, 20).clamp(-LARGEST / 2, LARGEST / 2)
    for compare, name, gate in (
        (at_most, "gated copy", gated_copy),
        (printed, "sigma_0", shifted_gate),
    ):
        for g, expected, text in ((0.0, z, "Z"), (-1.0, 0 * z, "0"), (-2.0, 0 * z, "0")):
            error = float((gate(z, g) - expected).abs().max())
            case = f"{name}, M = 8, shift {LARGEST * g:g}: distance from {text}"
            yield compare(error, 1e-12, case, "largest entry")


@statement("cot", "Appendix C.8, tags")
def tags_tell_types_apart(seed: int) -> Iterator[Comparison]:
    """Evaluate all 16 shifts, and route all types by both sets of gates."""
    for compare, name, gates in (
        (at_most, "corrected", CORRECTED_GATES),
        (printed, "printed", PRINTED_GATES),
    ):
        wrong = sum(
            g(*tags) != 0 if own == kind else g(*tags) > -1
            for own, g in gates.items()
            for kind, tags in TAGS.items()
        )
        yield compare(wrong, 0, f"{name} identities, 4 gates on 4 types", "wrong shifts")
        error = router_error(gated_copy, gates, seed)
        case = f"{name} identities with gates that close: distance from Z or 0"
        yield compare(error, 1e-12, case, "largest entry")
