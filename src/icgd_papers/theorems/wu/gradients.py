"""The gradient of a network: Lemmas 1 and 15, the start (3.5) and the last attention (D.16)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from icgd.backends.registry import AUTO
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.network import (
    EXACT,
    deltas,
    draw,
    gradient,
    normal,
    outputs,
    random_inputs,
    random_matrices,
    slopes,
    squared_slope,
    tanh_slope,
)

N_EXAMPLES = 7


def lemma_1(seed: int) -> Finding:
    """Compare the printed product, and the recursion (3.7), with automatic differentiation."""
    return _decomposition((3, 4, 4, 4, 3), seed)


def lemma_15(seed: int) -> Finding:
    """The same with as many outputs as one likes."""
    return _decomposition((5, 4, 4, 2), seed)


def _decomposition(widths: Sequence[int], seed: int) -> Finding:
    matrices, x = random_matrices(widths, seed), random_inputs(N_EXAMPLES, widths[0], seed)
    y = normal(draw(seed + 2), N_EXAMPLES, widths[-1])
    real = _automatic(matrices, x, y)
    values = outputs(matrices, x, torch.tanh)
    bends = slopes(matrices, values, tanh_slope)
    u = squared_slope(values[-1], y)
    printed = _product_form(matrices, values, bends, u)
    recursive = gradient(values, deltas(matrices, bends, u))
    case = f"a tanh network {'-'.join(map(str, widths))} on {N_EXAMPLES} random examples"
    return Finding(
        right=(
            _distance(f"the product of the lemma, {case}", printed, real),
            _distance(f"the recursion (3.7) with (3.8), {case}", recursive, real),
        )
    )


def _distance(case: str, found: Tensor, real: Tensor) -> Comparison:
    off = float((found - real).abs().max())
    return Comparison(case, off, EXACT, "largest difference to automatic differentiation")


def _automatic(matrices: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The gradient of L_n = (1 / 2n) sum_i |p_i(N) - y_i|^2 by torch."""
    leaves = [matrix.clone().requires_grad_() for matrix in matrices]
    risk = ((outputs(leaves, x, torch.tanh)[-1] - y) ** 2).sum() / (2 * len(x))
    return torch.cat([part.flatten() for part in torch.autograd.grad(risk, leaves)])


def _product_form(
    matrices: Sequence[Tensor], values: Sequence[Tensor], bends: Sequence[Tensor], u: Tensor
) -> Tensor:
    """(1 / 2n) sum_i [A_i(1); ...; A_i(N)] with the printed products of matrices."""
    total = torch.zeros(sum(matrix.numel() for matrix in matrices), dtype=torch.float64)
    for i in range(len(u)):
        blocks, product = [], torch.diag(bends[-1][i])  # R_i(N-1)
        for j in range(len(matrices), 0, -1):
            row = values[j - 1][i][None, :]
            blocks.append(
                (product @ torch.kron(torch.eye(product.shape[1]).to(row), row)).mT @ u[i]
            )
            if j > 1:
                product = product @ matrices[j - 1] @ torch.diag(bends[j - 2][i])
        total += torch.cat(blocks[::-1])
    return total / (2 * len(u))


def equation_3_5(seed: int) -> Finding:
    """20 steps of a compiled tanh network from weights 0, and from random weights."""
    n_steps, target = 20, MLP((2, 4, 1), "tanh", "tanh")
    problem = Problem(target, "squared", GradientStep(0.5, box=2.0), Domain(1.0, 1.0))
    x = random_inputs(16, 2, seed)
    y = torch.tanh(x.sum(1, keepdim=True))
    compiled = compile(problem, "relu-stack", n_steps=n_steps)
    zero = torch.zeros(target.n_parameters, dtype=torch.float64)

    def left(initial: Tensor | None) -> float:
        task = compiled.task(x, y, initial=initial, seed=seed if initial is None else None)
        path = compiled.run_task(task, backend=AUTO).parameters
        risk = [float(problem.oracle.risk(task, path[step])) for step in (0, -1)]
        return risk[1] / risk[0]

    case = f"2-4-1 tanh, {n_steps} steps of 0.5 on 16 examples"
    return Finding(
        right=(Comparison(f"{case}, from random weights", left(None), 0.5, "of the first risk"),),
        printed=(Comparison(f"{case}, from weights 0", left(zero), 0.5, "of the first risk"),),
    )


def equation_d_16(seed: int) -> Finding:
    """The update of every token by the last attention, with both readings of its indices."""
    source, n, step = draw(seed), 5, 0.3
    s, p = normal(source, n + 1, 4), normal(source, n + 1, 3)
    s[n] = 0.0  # a query has no error
    wanted = -step / (2 * n) * s.mT @ p
    one = torch.ones(n + 1, dtype=torch.float64)
    value = -step * (n + 1) / (2 * n) * p

    def update(score: Tensor, read: str) -> Tensor:
        """The mean over tokens of (relu(score) - relu(-score)) times the value that is read."""
        return torch.einsum(f"isk,{read}l->ikl", score, value) / (n + 1)

    right = update(torch.einsum("i,sk->isk", one, s), "s")
    printed = update(torch.einsum("s,ik->isk", one, s), "i")
    unit, case = "largest difference to -step * gradient, at any token", f"{n} random examples"
    return Finding(
        right=(_update(f"<Q h_i, K h_s> V h_s, {case}", right, wanted, unit),),
        printed=(_update(f"<Q h_s, K h_i> V h_i, {case}", printed, wanted, unit),),
    )


def _update(case: str, found: Tensor, wanted: Tensor, unit: str) -> Comparison:
    return Comparison(case, float((found - wanted).abs().max()), EXACT, unit)


LEMMA_1 = Statement(
    paper="wu",
    label="Lemma 1",
    claim=(
        "The gradient of the risk is a mean of blocks, one for each layer, each a product of the"
        " derivatives and matrices of the layers above and the output of the layer below."
    ),
    formula=(
        "grad L_n = (1/2n) sum_i [A_i(1); ..; A_i(N)],"
        " A_i(j) = (R_i(N-1) V_N .. R_i(j-1) [I (x) p_i(j-1)^T])^T u_i"
    ),
    check=lemma_1,
)

LEMMA_15 = Statement(
    paper="wu",
    label="Lemma 15",
    claim="The formula of Lemma 1 holds for networks whose inputs and outputs differ in number.",
    formula="as in Lemma 1, with V_1 of size K x d_x and V_N of size d_y x K",
    check=lemma_15,
)

EQUATION_3_5 = Statement(
    paper="wu",
    label="Equation (3.5)",
    claim="The descent that the transformer follows starts from weights that are all 0.",
    formula="w^(0) = 0, w^(l) = Proj(w^(l-1) - eta (grad L_n(w^(l-1)) + eps^(l-1)))",
    check=equation_3_5,
    correction=(
        "For N >= 2 and r(0) = 0 the gradient at 0 is 0 and no step moves; the initial weights"
        " have to be part of the prompt."
    ),
)

EQUATION_D_16 = Statement(
    paper="wu",
    label="Equation (D.16)",
    claim=(
        "The last attention adds to every token the gradient step, a sum of s p^T over all"
        " examples."
    ),
    formula="h_i + (1/(n+1)) sum over tokens of relu(<Q h_s, K h_i>) V h_i = h_i - eta grad L_n",
    check=equation_d_16,
    correction=(
        "The sum runs over the key tokens: relu(<Q h_i, K h_s>) V h_s. With i and s exchanged,"
        " as in the last display, token i gets its own summand and not the mean."
    ),
)
