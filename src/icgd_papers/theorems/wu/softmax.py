r"""Softmax transformers: Lemmas 16 and 17, Theorem 6, and two formulas of their proof.

`universal` is this transformer at the sizes that fit: one weight, a few examples and levels.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import log, log10, pi, sqrt

import torch
from torch import Tensor

from icgd.backends.registry import AUTO
from icgd.certificates.network import step_lipschitz, table_step
from icgd.compiled import Compiled
from icgd.constructions.universal import STEP_TABLE, ContextHead, context_head, level_values
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.functions import ReluSum
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.network import EXACT, draw

LEVELS, N_EXAMPLES = 6, 2

STEP = 0.2

N_TASKS = 12


def _problem() -> Problem:
    target = MLP((1, 1), "tanh", "tanh")
    return Problem(target, "squared", GradientStep(STEP, box=1.0), Domain(1.0, 1.0))


@lru_cache(maxsize=1)
def _compiled() -> Compiled:
    return compile(_problem(), "universal", n_steps=1, levels=LEVELS, n_examples=N_EXAMPLES)


@lru_cache(maxsize=4)
def _worst_step(seed: int) -> float:
    """The worst step of random tasks, whose x and y lie off the ramps between levels."""
    compiled, source, found = _compiled(), draw(seed), []
    for _ in range(N_TASKS):
        cell = torch.randint(LEVELS, (2, N_EXAMPLES, 1), generator=source)
        inside = 0.9 * (2 * torch.rand(2, N_EXAMPLES, 1, generator=source).double() - 1)
        x, y = level_values(LEVELS)[cell] + inside / LEVELS
        w = 2 * torch.rand(1, generator=source).double() - 1
        task = compiled.task(x, y, initial=w)
        path = compiled.run_task(task, backend=AUTO).parameters
        step = compiled.problem.oracle.exact_step(task)
        found.append(float((path[1] - step(path[0], 0)).abs().max()))
    return max(found)


def lemma_16(seed: int) -> Finding:
    """Errors of looked-up steps off the ramps; and what the table says on a ramp."""
    problem, program = _problem(), _compiled().stack
    worst, case = _worst_step(seed), f"one tanh weight, 2 examples, {LEVELS} levels"
    piecewise = step_lipschitz(problem, N_EXAMPLES) * sqrt(3 * N_EXAMPLES) * 2 / LEVELS
    words = f"worst step of {N_TASKS} tasks, {case}"
    return Finding(
        right=(
            Comparison(words, worst, table_step(program, problem), "the lemma's bound"),
            Comparison(words, worst, piecewise, "the bound (F.4) of its first part"),
        ),
        printed=(
            Comparison(
                f"an x in the middle of a ramp, {case}",
                _off_neighbours(program.relu_sum(STEP_TABLE)),
                0.0,
                "distance to the answers of both neighbours, which (F.24) has between them",
            ),
        ),
    )


def _off_neighbours(table: ReluSum) -> float:
    """How far the table's answer on a ramp lies outside those of the levels on either side.

    It is the worst over all pairs of neighbouring levels of x_1, with y_1, x_2, y_2 and w fixed.
    """
    head, value = context_head(LEVELS, N_EXAMPLES), level_values(LEVELS)
    fixed, worst = value[[1, 4, 2]], 0.0
    for low, high in pairwise(value):
        sides = [_answer(table, head, x, fixed) for x in (low, (low + high) / 2, high)]
        worst = max(worst, sides[1] - max(sides[0], sides[2]), min(sides[0], sides[2]) - sides[1])
    return worst


def _answer(table: ReluSum, head: ContextHead, x: Tensor, fixed: Tensor) -> float:
    """The table at the prompt (x, fixed[0]), (fixed[1], fixed[2]) and the first weight above 0."""
    tokens = torch.stack([torch.stack([x, fixed[0]]), fixed[1:]])
    score, value = (torch.tensor(part, dtype=torch.float64) for part in (head.score, head.value))
    code = float(torch.softmax(tokens @ score, dim=0) @ (tokens @ value))
    return table(code + 0.5)


def lemma_17(seed: int) -> Finding:
    """Digits that tell contexts apart: by the printed separation, and by the head of universal."""
    del seed  # nothing is drawn
    head = context_head(4, N_EXAMPLES)
    ordered = _codes(head).sort().values
    digits = -log10(float(ordered.diff().min() / (ordered[-1] - ordered[0])))
    return Finding(
        right=(
            Comparison(f"{len(ordered)} contexts of 4 levels", digits, 15.95, "digits of float64"),
        ),
        printed=(
            Comparison(
                "2 tokens, d = 1, n = 2, r_min = 1/2, r_max = 1",
                -log10_separation(2, 1, 2, 0.5, 1.0, 0.5),
                323.3,
                "digits; float64 ends at 10^-323",
            ),
            Comparison(
                "a token in two contexts under the identity, which meets Definition 13",
                0.5,
                _apart_under_identity(delta=0.5),
                "delta; distance of its two codes",
            ),
        ),
    )


def _codes(head: ContextHead) -> Tensor:
    """What the head returns for every multiset of examples, computed anew."""
    value = level_values(head.levels)
    tokens = torch.cartesian_prod(value, value)[head.contexts]
    score, carried = (torch.tensor(part, dtype=torch.float64) for part in (head.score, head.value))
    return (torch.softmax(tokens @ score, dim=-1) * (tokens @ carried)).sum(-1)


def log10_separation(
    vocabulary: int, d: int, n: int, r_min: float, r_max: float, eps: float
) -> float:
    """The logarithm of the lemma's delta."""
    growth = (vocabulary + 1) ** 4 * (2 * log(n) + 3) * pi * d * r_max**2
    factor = 2 * log(n) ** 2 * eps**2 * r_min / growth
    return log10(factor) - growth / (4 * eps * r_min) / log(10)


def _apart_under_identity(delta: float) -> float:
    """The distance of token 1's codes in (1, 2) and (1, 3), if Definition 13 is met; else delta."""
    sequences = torch.tensor([[1.0, 2.0], [1.0, 3.0]])
    tokens = sequences.flatten()
    apart = (tokens[:, None] - tokens).abs()
    is_met = bool((tokens < 4).all() and (apart[tokens[:, None] != tokens] > delta).all())
    return float(sequences[0, 0] - sequences[1, 0]) if is_met else delta


def theorem_6(seed: int) -> Finding:
    """Layers and errors of universal, and what the proof's choice of kappa gives."""
    compiled, worst = _compiled(), _worst_step(seed)
    eps, n_weights = 1e-2, 9

    def norm(total: float) -> float:
        """The norm of an error of kappa = total / sqrt(D_w) in each of 9 weights."""
        return float(torch.full((n_weights,), total / sqrt(n_weights), dtype=torch.float64).norm())

    allowed = table_step(compiled.stack, compiled.problem)
    unit = "|eps^(l)|_2 if every entry is off by kappa, eta = 0.2; eta eps"
    return Finding(
        right=(
            Comparison(
                "layers of a step of universal", float(len(compiled.stack.block)), 4.0, "layers"
            ),
            Comparison(f"worst step, {LEVELS} levels", worst, allowed, "the bound of Lemma 16"),
            Comparison("kappa = eta eps / sqrt(D_w)", norm(STEP * eps), STEP * eps, unit),
        ),
        printed=(Comparison("kappa = eps / sqrt(D_w)", norm(eps), STEP * eps, unit),),
    )


def _step_up(z: Tensor, width: float, height: float) -> Tensor:
    """(F.5): 0 below 0, `height` beyond height * width."""
    return torch.relu(z / width) - torch.relu(z / width - height)


def quantiser(z: Tensor, bound: float, levels: int, last: float, width: float = 1e-6) -> Tensor:
    """(F.10): levels B/D .. B on [0, B], with the step that brings larger numbers back to 0."""
    steps = [_step_up(z - t * bound / levels, width, bound) / levels for t in range(levels)]
    return torch.stack(steps).sum(0) - _step_up(z - bound, width, last)


def equation_f_10(seed: int) -> Finding:
    """The quantiser on [0, 2] at z = 3."""
    del seed  # nothing is drawn
    z = torch.tensor(3.0, dtype=torch.float64)
    right, printed = (float(quantiser(z, 2.0, 4, last)) for last in (2.0, 1.0))
    case, unit = "B_x = 2, D = 4, z = 3", "value outside [0, B_x], wanted 0"
    return Finding(
        right=(Comparison(case, abs(right), EXACT, unit),),
        printed=(Comparison(case, abs(printed), EXACT, unit),),
    )


def penalty(z: Tensor, bound: float) -> Tensor:
    """(F.11): -B for a number outside [0, B]."""
    return torch.where((z < 0) | (z > bound), -bound, 0.0)


def equation_f_12(seed: int) -> Finding:
    """Token 1 of two prompts that differ in token 2 alone; a feed-forward layer sees no other."""
    tokens = torch.rand(3, 2, generator=draw(seed), dtype=torch.float64)  # d = 3, n = 2
    other = tokens.clone()
    other[0, 1] = 2.0  # outside [0, 1]

    def moved(axes: tuple[int, ...]) -> float:
        outs = [
            quantiser(z, 1.0, 4, 1.0) + penalty(z, 1.0).sum(axes, True) for z in (tokens, other)
        ]
        return float((outs[0] - outs[1])[:, 0].abs().max())

    case, unit = "d = 3, n = 2, an entry of token 2 leaves [0, 1]", "change of token 1"
    return Finding(
        right=(Comparison(f"{case}: penalty summed within a token", moved((0,)), 0.0, unit),),
        printed=(Comparison(f"{case}: penalty summed over tokens", moved((0, 1)), 0.0, unit),),
    )


LEMMA_16 = Statement(
    paper="wu",
    label="Lemma 16",
    claim=(
        "For every Lipschitz and permutation equivariant function a feed-forward layer, one softmax"
        " head and a feed-forward layer come within L (8 sqrt(dn) + sqrt(n)) B_x / 2D of it at"
        " every input, where D is the number of levels of each entry."
    ),
    formula="|f_Softmax(Z) - f(Z)|_2 <= L (8 sqrt(dn) + sqrt(n)) B_x / (2D) for all Z",
    check=lemma_16,
    correction=(
        "The proof is for inputs off the ramps between levels: on a ramp the tokens' codes are"
        " those of no context, and (F.24) fails. Off the ramps it is measured at the sizes that"
        " fit, where the bound is larger than the range of the weight; (F.4) is not."
    ),
)

LEMMA_17 = Statement(
    paper="wu",
    label="Lemma 17",
    claim=(
        "One softmax head of rank 1 is a contextual mapping: it gives every token a code that"
        " differs by delta in different contexts, with delta of order exp(-(|V|+1)^4)."
    ),
    formula=(
        "delta = 2 (log n)^2 eps^2 r_min / (r_max^2 (|V|+1)^4 (2 log n + 3) pi d)"
        " exp(-(|V|+1)^4 (2 log n + 3) pi d r_max^2 / (4 eps r_min))"
    ),
    check=lemma_17,
    correction=(
        "delta is below every positive float64 already for two tokens; icgd searches for a head"
        " that tells the contexts of a toy size apart. Definition 13 has to ask for different codes"
        " if tokens or contexts differ; as printed the identity meets it."
    ),
)

THEOREM_6 = Statement(
    paper="wu",
    label="Theorem 6",
    claim=(
        "For every risk with Lipschitz gradients a softmax transformer with 4 layers a step follows"
        " projected gradient descent with errors of norm eta eps, for any eps."
    ),
    formula="w^(l) = Proj(w^(l-1) - eta grad L_n + eps^(l-1)), |eps^(l-1)|_2 <= eta eps, 4L layers",
    check=theorem_6,
    correction=(
        "kappa = eta eps / sqrt(D_w) in the proof, and inputs off the ramps of Lemma 16. Measured"
        " for one weight, 2 examples and 6 levels; a table of D^(dn) entries allows no small eps."
    ),
)

EQUATION_F_10 = Statement(
    paper="wu",
    label="Equation (F.10)",
    claim="The quantiser maps [0, B_x] to its levels and every other number to 0.",
    formula="sum_t quant_t(z) - (relu(z/delta - B_x/delta) - relu(z/delta - 1 - B_x/delta))",
    check=equation_f_10,
    correction="The last step has the height B_x: relu(z/delta - B_x - B_x/delta).",
)

EQUATION_F_12 = Statement(
    paper="wu",
    label="Equation (F.12)",
    claim=(
        "A feed-forward layer computes the levels of all entries and subtracts B_x from every entry"
        " for each entry of the whole sequence that is out of range."
    ),
    formula="F_1(Z) = quant_D(Z) + sum_{t,k} penalty(Z_{t,k})",
    check=equation_f_12,
    correction="A feed-forward layer sees one token: the sum runs over t within the token k alone.",
)
