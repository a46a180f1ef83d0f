r"""Proposition 4.4: how errors of single blocks add up over rounds.

The paper adds the errors of the 2N blocks of a round to eps_round, and takes a round to expand no
distance, so that L rounds are off by L eps_round. Neither is so: an error of o_N comes back doubled
in delta_N, and a gradient step on a network expands distances wherever the risk is not convex.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from icgd.certificates.report import Report
from icgd.pipeline import compile, verify
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.theorems.cot.descent import drawn
from icgd_papers.theorems.cot.network import Round
from icgd_papers.theorems.statement import Comparison, Finding, Statement

SMALL = 1e-9
"""The accuracy of the blocks that are exact in these counterexamples; it must be above 0."""


def round_error(depth: int, x: float, forward: float, y: float, backward: float) -> float:
    """eps_round from the accuracies of Propositions 4.1, 4.2 and Theorems 4.1, 4.2."""
    return x + (depth - 1) * forward + y + (depth - 1) * backward + (2 * depth + 1) * SMALL


def _one_round(eps: float = 1e-3) -> Comparison:
    """A network of one weight: o_1 is off by eps, all else is exact; delta_1 is off by 2 eps."""
    label, output = 0.0, 1.0
    exact, off = 2 * (output - label), 2 * (output + eps - label)
    allowed = round_error(1, eps, SMALL, SMALL, SMALL)
    case = f"N = 1, d = 1, one round, W = x = 1, y = 0, o_1 off by {eps:g}: error of delta_1"
    return Comparison(case, off - exact, allowed, "error")


def _expansion(n_rounds: int, eps: float) -> float:
    """The error that rounds of one weight reach with x = y = 1 and the step 2.

    The weight starts at its optimum, 1. Every B_1 is off by eps, with the sign that hurts. A round
    maps w to w - 4 (w - 1), so that its Lipschitz constant is 3.
    """
    weight, one = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for _ in range(n_rounds):
        (after,) = Round((weight,), one, one).stepped(2.0)
        weight = after + (eps if float(after) >= 1 else -eps)
    return abs(float(weight) - 1)


def _saddle(n_rounds: int, step_size: float = 0.01, eps: float = 1e-7) -> tuple[float, float]:
    """Two weights between 0 and the optimum: the error reached, and what Lipschitz steps allow.

    Distances grow along w_1 = w_2 whatever the step size. The Lipschitz constant of a round is at
    most that of I - eta H, with the Hessian H at either run's point and a margin for what lies
    between.
    """
    start = [torch.full((1, 1), 0.05, dtype=torch.float64)] * 2
    exact, off, allowed = start, start, 0.0
    one = torch.ones(1, dtype=torch.float64)
    for _ in range(n_rounds):
        largest = max(_lipschitz(weights, step_size) for weights in (exact, off))
        allowed = largest * (1 + 1e-4) * allowed + eps
        exact = Round(tuple(exact), one, one).stepped(step_size)
        off = [after + eps for after in Round(tuple(off), one, one).stepped(step_size)]
    reached = max(float((a - b).abs()) for a, b in zip(exact, off, strict=True))
    return reached, allowed


def _lipschitz(weights: list[Tensor], step_size: float) -> float:
    """The norm of I - eta H for the risk (w_2 w_1 - 1)^2, as the largest row sum."""
    first, second = (float(matrix) for matrix in weights)
    mixed = 2 * (2 * first * second - 1)
    rows = (
        abs(1 - 2 * step_size * second**2) + step_size * abs(mixed),
        abs(1 - 2 * step_size * first**2) + step_size * abs(mixed),
    )
    return max(rows)


def _chain_problem(widths: tuple[int, ...], step_size: float, box: float) -> Problem:
    target = MLP(widths, "relu", output_activation="relu")
    update = GradientStep(step_size, box=box, batch_size=1)
    return Problem(target, "squared", update, Domain(x=2.0, y=2.0))


@dataclass(frozen=True)
class RunError:
    """How far a run ends from real descent, what is proved of it by balls, and the paper's line.

    `piled` is what the errors of its rounds add up to where each round expands distances by one
    known factor.
    """

    error: float
    bound: float
    paper: float
    piled: float

    @classmethod
    def last(cls, report: Report, factor: float = nan) -> RunError:
        piled, paper = 0.0, report.paper_trajectory
        for added in report.step_errors.tolist():
            piled = factor * piled + added
        ends = (report.trajectory_errors, report.trajectory_bounds, paper)
        error, bound, line = (nan if part is None else float(part[-1]) for part in ends)
        return cls(error, bound, line, piled)


def chain_in_float32(n_rounds: int = 20) -> RunError:
    """icgd's chain where a round multiplies distances by -2.2."""
    step_size = 0.9
    compiled = compile(_chain_problem((1, 1), step_size, 3.0), "cot-network", n_steps=n_rounds)
    x, y, initial = (torch.tensor(part) for part in ([[1.9]], [[0.37 * 1.9]], [0.37]))
    report = verify(compiled, x, y, initial=initial, dtype="float32")
    return RunError.last(report, factor=abs(1 - step_size * float(x) ** 2))


def deep_chain(seed: int, backend: str, n_rounds: int = 10) -> RunError:
    """A chain of 3 layers of width 5 in float64, one example a round."""
    compiled = compile(_chain_problem((5, 5, 5, 5), 0.1, 3.0), "cot-network", n_steps=n_rounds)
    x, y = drawn(seed, 2, n_rounds, 5).clamp(-2, 2)
    return RunError.last(verify(compiled, x, y, seed=seed, backend=backend))


def _rounds(seed: int) -> Finding:
    unit, n_rounds, eps = "error of a weight", 5, 1e-6
    reached = _expansion(n_rounds, eps)
    piled = eps * sum(3.0**k for k in range(n_rounds)) * (1 + 1e-6)
    at_saddle, allowed = _saddle(150)
    single, deep = chain_in_float32(), deep_chain(seed, "literal")
    line = n_rounds * round_error(1, SMALL, SMALL, eps, SMALL)
    saddle_line = 150 * round_error(2, SMALL, SMALL, 1e-7, 1e-7)
    one_weight = "N = 1, d = 1, eta = 2, x = y = 1, B_1 off by 1e-6, 5 rounds"
    two_weights = "N = 2, d = 1, eta = 0.01, x = y = 1, B_i off by 1e-7, 150 rounds"
    chain = "icgd's chain in float32, one weight, a round multiplies by -2.2, 20 rounds"
    deeper = "icgd's literal chain, N = 3, d = 5, 10 rounds"
    return Finding(
        (
            Comparison(f"{one_weight}: Lipschitz constant 3", reached, piled, unit),
            Comparison(f"{two_weights}: Lipschitz constants", at_saddle, allowed, unit),
            Comparison(f"{chain}: Lipschitz constant 2.2", single.error, single.piled, unit),
            Comparison(f"{deeper}: bound of the run", deep.error, deep.bound, unit),
        ),
        printed=(
            _one_round(),
            Comparison(f"{one_weight}: L eps_round", reached, line, unit),
            Comparison(f"{two_weights}: L eps_round", at_saddle, saddle_line, unit),
            Comparison(f"{chain}: sum of the rounds' bounds", single.error, single.paper, unit),
        ),
    )


ROUNDS = Statement(
    paper="cot",
    label="Proposition 4.4",
    claim=(
        "If single blocks err by at most eps_C1, eps_4.1, eps_C2, eps_4.2 and routing by eps_C3, "
        "one transformer block leaves the blocks B_i off by at most l eps_round after l rounds, "
        "where eps_round adds up the errors of the blocks of a round."
    ),
    formula="max_i |B^_i^(l+1) - B_i^(l+1)| <= l eps_round",
    check=_rounds,
    correction=(
        "E_{l+1} <= Lambda_l E_l + e_l, where Lambda_l is the Lipschitz constant of the exact "
        "round and e_l the error of a round from the same weights, which is no plain sum either: "
        "each block's error is multiplied by what the later blocks of the round make of it. The "
        "proof takes all these factors for 1."
    ),
)
