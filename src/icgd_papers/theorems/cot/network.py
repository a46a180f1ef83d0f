r"""A square ReLU network, its passes written out, and the blocks of the chain that hold them.

    z_i = W_i o_{i-1},  o_i = relu(z_i),  delta_N = 2 (o_N - y) r'(z_N),
    delta_i = W_{i+1}^T delta_{i+1} r'(z_i),  W_i - eta delta_i o_{i-1}^T

This is the truth that Section 4 is compared with. No gradient is taken from icgd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from icgd.backends.chain import GENERATORS
from icgd.constructions.cot_network import CotNetwork
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.chain import IS_BACKWARD, IS_DATA, IS_FORWARD, KINKED, ChainProgram
from icgd_papers.theorems.cot.descent import drawn

DEPTH, WIDTH, STEP_SIZE = 3, 5, 0.05

KINK_WIDTH = 2.0**-30
"""c, the width of kinks."""

MARGIN = 1e-3
"""No unit of a drawn network is nearer to its kink than this."""

FORWARD, BACKWARD, FROM_X, FROM_Y = "forward", "backward", "x", "y"
"""The four types of inputs: [F_{i-1}; B_i], [B_{i+1}; F_i], [B_1; X] and [F_N; Y]."""


@dataclass(frozen=True)
class Round:
    """One example, the weights before the round, and everything that the two passes compute."""

    weights: tuple[Tensor, ...]
    x: Tensor
    y: Tensor

    @property
    def depth(self) -> int:
        return len(self.weights)

    @property
    def preactivations(self) -> list[Tensor]:
        """z_1 .. z_N."""
        outputs = self.outputs
        return [w @ o for w, o in zip(self.weights, outputs[:-1], strict=True)]

    @property
    def outputs(self) -> list[Tensor]:
        """o_0 .. o_N."""
        outputs = [self.x]
        for matrix in self.weights:
            outputs.append(torch.relu(matrix @ outputs[-1]))
        return outputs

    @property
    def slopes(self) -> list[Tensor]:
        """r'(z_1) .. r'(z_N)."""
        return [(z > 0).double() for z in self.preactivations]

    @property
    def deltas(self) -> list[Tensor]:
        """delta_1 .. delta_N."""
        slopes = self.slopes
        deltas = [2 * (self.outputs[-1] - self.y) * slopes[-1]]
        for matrix, slope in zip(self.weights[:0:-1], slopes[-2::-1], strict=True):
            deltas.insert(0, matrix.T @ deltas[0] * slope)
        return deltas

    def stepped(self, step_size: float) -> list[Tensor]:
        """The weights after the round."""
        parts = zip(self.weights, self.deltas, self.outputs[:-1], strict=True)
        return [w - step_size * torch.outer(delta, o) for w, delta, o in parts]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradient of |o_N - y|^2 by each matrix, by automatic differentiation."""
        weights = [matrix.clone().requires_grad_() for matrix in self.weights]
        output = self.x
        for matrix in weights:
            output = torch.relu(matrix @ output)
        return list(torch.autograd.grad((output - self.y).square().sum(), weights))


def draw_round(seed: int, depth: int = DEPTH, width: int = WIDTH) -> Round:
    """A random round in which no unit is near its kink, and some are flat and some are steep."""
    for attempt in range(1000):
        draws = drawn(1000 * seed + attempt, depth * width + 2, width)
        matrices = (draws[2:] * (2 / width) ** 0.5).clamp(-2, 2).reshape(depth, width, width)
        found = Round(tuple(matrices), draws[0].clamp(-2, 2), draws[1].clamp(-2, 2))
        nearest = min(float(z.abs().min()) for z in found.preactivations)
        is_live = all(0 < float(slope.sum()) < width for slope in found.slopes)
        if nearest > MARGIN and is_live:
            return found
    raise AssertionError(f"seed {seed} draws no network with flat and steep units")


class Block:
    """icgd's block of cot-network, which is shown exact blocks and whose answers are compared."""

    def __init__(self, round_: Round, backend: str) -> None:
        width = len(round_.x)
        target = MLP((width,) * (round_.depth + 1), "relu", output_activation="relu")
        # The library's risk is half of |o_N - y|^2, so that its step is twice the paper's.
        update = GradientStep(2 * STEP_SIZE, box=10.0, batch_size=1)
        problem = Problem(target, "squared", update, Domain(x=4.0, y=4.0))
        self.program: ChainProgram = CotNetwork(KINK_WIDTH).build(problem, n_steps=1)
        self.generator = GENERATORS[backend](self.program, round_.x[None, :])
        self.round = round_

    def forward(self, layer: int) -> dict[str, Tensor | float]:
        """The rows of F_i; the row `flat` says where the slope is 0."""
        z, width = self.round.preactivations[layer - 1], self.program.kink_width
        return {
            "first": self.round.outputs[layer][:, None],
            "second": self.round.outputs[layer - 1][:, None],
            "flat": torch.relu(width - z)[:, None] / width,
            "weights": self.round.weights[layer - 1],
            KINKED: 1.0,
            IS_FORWARD: 1.0,
        }

    def backward(self, layer: int) -> dict[str, Tensor | float]:
        """The rows of B_i after the round."""
        delta, matrix = self.round.deltas[layer - 1], self.round.weights[layer - 1]
        return {
            "first": delta[:, None],
            "second": (matrix.T @ delta)[:, None],
            "weights": self.round.stepped(STEP_SIZE)[layer - 1],
            KINKED: 1.0,
            IS_BACKWARD: 1.0,
        }

    def before(self, layer: int) -> dict[str, Tensor | float]:
        """The rows of B_i that the round finds: the weights."""
        return {"weights": self.round.weights[layer - 1], KINKED: 1.0, IS_BACKWARD: 1.0}

    @staticmethod
    def data(values: Tensor) -> dict[str, Tensor | float]:
        return {"first": values[:, None], IS_DATA: 1.0}

    def steps(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
        """The type of each step of a round, the two blocks that it is shown, and its target."""
        depth = self.round.depth
        for layer in range(1, depth + 1):
            if layer == 1:
                yield FROM_X, self.before(1), self.data(self.round.x), self.forward(1)
            else:
                yield FORWARD, self.forward(layer - 1), self.before(layer), self.forward(layer)
        for layer in range(depth, 0, -1):
            if layer == depth:
                yield FROM_Y, self.forward(depth), self.data(self.round.y), self.backward(depth)
            else:
                yield BACKWARD, self.backward(layer + 1), self.forward(layer), self.backward(layer)

    def errors(self) -> dict[str, float]:
        """For each type the largest error of any row of any block of the round."""
        worst = dict.fromkeys((FORWARD, BACKWARD, FROM_X, FROM_Y), 0.0)
        for number, (kind, near, far, wanted) in enumerate(self.steps(), start=1):
            worst[kind] = max(worst[kind], self.error(near, far, wanted, number))
        return worst

    def error(
        self, near: dict[str, Any], far: dict[str, Any], wanted: dict[str, Any], number: int
    ) -> float:
        """The largest error of any row of the block that is made from these two."""
        encode, row = self.generator.encode, self.generator.row
        made, target = self.generator.step(encode(near), encode(far), number), encode(wanted)
        return max(
            float(
                (_as_slope(name, row(made, name)) - _as_slope(name, row(target, name))).abs().max()
            )
            for name in self.program.rows.names
        )


def _as_slope(name: str, row: Tensor) -> Tensor:
    """A row as the paper has it: r' is 1 where `flat` is 0, and 0 where `flat` is at least 1."""
    return 1 - row.clamp(0, 1) if name == "flat" else row


def block_errors(seed: int, backend: str, n_networks: int = 5) -> dict[str, float]:
    """The largest error of each type of step over several random networks, all by one block."""
    rounds = [draw_round(10 * seed + number) for number in range(n_networks)]
    found = [Block(round_, backend).errors() for round_ in rounds]
    return {kind: max(errors[kind] for errors in found) for kind in found[0]}


def slope_on_kink() -> float:
    """The error of r'(z) in F_1 of a network of one weight, at z = c/2 inside the ramp."""
    one = torch.ones(1, 1, dtype=torch.float64)
    round_ = Round((one,), one[0] * KINK_WIDTH / 2, one[0])
    block = Block(round_, "literal")
    wanted = block.forward(1) | {"flat": torch.zeros(1, 1, dtype=torch.float64)}
    return block.error(block.before(1), block.data(round_.x), wanted, 1)
