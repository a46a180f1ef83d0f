r"""Appendix D: what the losses of the trained operators say.

The loss is the mean squared Frobenius distance from the next block, whose d columns are equal. How
large it is depends on the law of the teachers, which is not given: here they are random square ReLU
networks with weights and inputs of some size, and under one of two laws a constant answer does
better than both reported losses. The share of the variance that is left tells what was learnt under
every law. There is no correction, because without the law the experiment cannot be repeated. And as
all columns of a block are equal, attention without positions is a linear map of the column.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from icgd_papers.theorems.cot.descent import drawn
from icgd_papers.theorems.cot.network import Round
from icgd_papers.theorems.statement import Comparison, Finding, Statement

WIDTH, DEPTH, N_TEACHERS, STEP_SIZE = 5, 3, 60, 0.05
LOSSES = {"forward": 3.00, "backward": 0.139}
"""The least validation losses that the paper reports."""


@dataclass(frozen=True)
class Law:
    """How teachers and inputs are drawn: numbers of this size, with or without signs."""

    name: str
    size: float
    has_signs: bool

    def teacher(self, seed: int) -> Round:
        draws = self.size * drawn(seed, DEPTH * WIDTH + 2, WIDTH)
        draws = draws if self.has_signs else draws.abs()
        matrices = draws[2:].reshape(DEPTH, WIDTH, WIDTH) / WIDTH**0.5
        return Round(tuple(matrices), draws[0], draws[1])


LAWS = (
    Law("normal weights", 1.0, True),
    Law("positive weights, a twentieth as large", 0.05, False),
)


def _column(round_: Round, kind: str, layer: int) -> Tensor:
    """The rows of F_i or B_i without tags, once: all d columns are equal."""
    before, delta = round_.weights[layer - 1], round_.deltas[layer - 1]
    if kind == "forward":
        inputs, slopes = round_.outputs[layer - 1], round_.slopes[layer - 1]
        return torch.cat([round_.outputs[layer], inputs, slopes, before.flatten()])
    after = round_.stepped(STEP_SIZE)[layer - 1]
    return torch.cat([delta, before.T @ delta, after.flatten()])


def _blocks(law: Law, kind: str, seed: int) -> Tensor:
    rounds = [law.teacher(1000 * seed + number) for number in range(N_TEACHERS)]
    return torch.stack([_column(r, kind, layer) for r in rounds for layer in range(1, DEPTH + 1)])


def _loss(blocks: Tensor, answer: Tensor) -> float:
    """The mean squared Frobenius distance; every row counts once for each of the d columns."""
    return float(WIDTH * (blocks - answer).square().sum(-1).mean())


def _of_nothing_learnt(law: Law, kind: str, seed: int) -> tuple[float, float]:
    """The loss of the mean block of other teachers, and the share of the variance it leaves."""
    blocks, others = _blocks(law, kind, seed), _blocks(law, kind, seed + 1)
    loss = _loss(blocks, others.mean(0))
    return loss, loss / _loss(blocks, blocks.mean(0))


def _idle_attention(seed: int) -> Comparison:
    """Softmax attention over d equal columns returns the value of one, whatever query and key."""
    query, key, value = drawn(seed, 3, 10, 10)
    columns = drawn(seed + 1, 10, 1).expand(10, WIDTH)
    scores = (query @ columns).T @ (key @ columns)
    attended = value @ columns @ torch.softmax(scores, dim=-1).T
    gap = float((attended - value @ columns).abs().max())
    return Comparison(f"attention over {WIDTH} equal columns beside V z", gap, 1e-12, "entry")


def _losses(seed: int) -> Finding:
    right, printed = [_idle_attention(seed)], []
    for law in LAWS:
        for kind, reported in LOSSES.items():
            loss, share = _of_nothing_learnt(law, kind, seed)
            case = f"{law.name}, {kind}:"
            right.append(
                Comparison(
                    f"{case} share of variance that the mean block leaves, its distance from 1",
                    abs(share - 1),
                    0.05,
                    "share",
                )
            )
            text = f"{case} the paper's loss beside that of the mean block, which learns nothing"
            printed.append(Comparison(text, reported, loss, "loss"))
    return Finding(tuple(right), printed=tuple(printed))


TRAINED = Statement(
    paper="cot",
    label="Appendix D",
    claim=(
        "Trained forward and backward operators reach validation losses of 3.00 and 0.139, and "
        "thereby show that a single-layer transformer has learnt both passes."
    ),
    formula="min validation |F(X) - Y|_F^2 = 3.00 (forward), 0.139 (backward)",
    check=_losses,
)
