r"""Lemmas 3.1 and A.5 and Appendix C.5: what one softmax head over a grid of tokens returns.

A linear map A along the sequence makes tokens from a column, token k being L_k times it, and the
head's score for token k is beta (s L_k - L_k^2 / 2) up to a constant, so that it looks at the grid
point nearest to s. The head returns that point, or any function of it, times the column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.approximation.lattice import head, identity, line_lattice
from icgd_papers.theorems.cot.descent import Map, drawn
from icgd_papers.theorems.statement import Comparison, Finding, Statement

SHARPNESS = 40.0
"""The temperature times the grid's spacing: the mass on far points is p exp(-40)."""


def nearest_point_head(
    s: Tensor, ends: tuple[float, float], n_points: int, slots: Tensor
) -> Tensor:
    """The head of Lemma A.5 at every s: token k has the value L_k in coordinate slots[k]."""
    low, high = ends
    k = torch.arange(n_points, dtype=torch.float64)
    spacing = (high - low) / (n_points - 1)
    points = low + spacing * k
    temperature = SHARPNESS / spacing
    weights = torch.softmax(temperature * (2 * s[:, None] - low - points) * k, dim=-1)
    values = torch.zeros(n_points, int(slots.max()) + 1, dtype=torch.float64)
    values[torch.arange(n_points), slots] = points
    return weights @ values


def _bound(ends: tuple[float, float], n_points: int) -> float:
    """max(|a|, |b|) eps_0 + (b - a)/p, with eps_0 for the mass on far points."""
    far = 2 * n_points * torch.exp(torch.tensor(-SHARPNESS)).item()
    return max(map(abs, ends)) * far + (ends[1] - ends[0]) / n_points


def _one_slot(ends: tuple[float, float], n_points: int) -> Comparison:
    """The error of the clipped line with d_o = 1, at sample points s that have all ties."""
    low, high = ends
    s = torch.linspace(low - 1, high + 1, 4001, dtype=torch.float64)
    ties = low + (high - low) / (n_points - 1) * (torch.arange(n_points - 1) + 0.5)
    s = torch.cat([s, ties.double()])
    found = nearest_point_head(s, ends, n_points, torch.zeros(n_points, dtype=torch.long))[:, 0]
    error = float((found - s.clamp(low, high)).abs().max())
    case = f"one slot (d_o = 1), [{low:g}, {high:g}], p = {n_points}, any s"
    return Comparison(case, error, _bound(ends, n_points), "error")


def _two_slots(n_points: int = 8) -> Comparison:
    """The error beside a tie, where the one-hot vector jumps and no continuous head can."""
    ends, k = (1.0, 2.0), n_points // 2
    slots = torch.arange(n_points) % 2
    tie = 1.0 + (k - 0.5) / (n_points - 1)
    s = torch.tensor([tie - 1e-9, tie + 1e-9], dtype=torch.float64)
    found = nearest_point_head(s, ends, n_points, slots)
    wanted = torch.zeros(2, 2, dtype=torch.float64)
    wanted[[0, 1], slots[[k - 1, k]]] = s
    case = f"two slots, G(k) = k mod 2, [1, 2], p = {n_points}, s = {tie:.3f} beside a tie"
    return Comparison(case, float((found - wanted).abs().max()), _bound(ends, n_points), "error")


def _truncated_line(seed: int) -> Finding:
    del seed  # every s is tried
    line = identity(line_lattice(1.0, 15))
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    error = float((head(line, s) - s).abs().max())
    smooth = Comparison("a lattice of 31 tokens, |s| <= 1, not clipped", error, 1e-13, "error")
    grids = tuple(_one_slot((-1.0, 2.0), n_points) for n_points in (8, 32, 128))
    return Finding((*grids, smooth), printed=(_two_slots(),))


TRUNCATED_LINE = Statement(
    paper="cot",
    label="Lemma A.5",
    claim=(
        "One softmax head over p > n grid tokens returns the clipped product <w, x_i> + t_i in the "
        "coordinate that any map G gives to the nearest grid point, with an error of (b - a)/p and "
        "of max(|a|, |b|) eps_0, where eps_0 falls exponentially with the temperature."
    ),
    formula=(
        "|Attn(A(X))_i - Range_[a,b](<w, x_i> + t_i) e_G(k_i)| <= max(|a|, |b|) eps_0 + (b - a)/p"
    ),
    check=_truncated_line,
    correction=(
        "With one coordinate (d_o = 1), which is all that Section 4 needs, it holds for every "
        "input. With more, the one-hot vector jumps where two grid points are equally near, and a "
        "head, which is continuous, errs there by half of the product at any temperature; eps_0 "
        "then depends on the distance from such a tie. The term (b - a)/p is true and weak: a "
        "lattice whose weights are as wide as its spacing errs by 1e-15."
    ),
)


def huber_slope(residual: Tensor) -> Tensor:
    """The derivative of the huber loss, which is C^1 and has a clipped line for its slope."""
    return residual.clamp(-1, 1)


REACH = 5.0
"""Largest residual of the data below: 3 inputs and weights up to 1, and labels up to 1."""


def grid_heads(query: Tensor, columns: Tensor, values: Tensor, points: Tensor) -> Tensor:
    """One head for each column: token k has the key [L_k column; -L_k^2/2] and its value.

    The query is [query; 1], over the squared spacing, so that the weights are as wide as the grid.
    """
    spacing = points[1] - points[0]
    keys = points[None, :, None] * columns[:, None, :]
    offsets = (-(points**2) / 2).expand(len(columns), -1).unsqueeze(-1)
    lifted = torch.cat([query, torch.ones(1, dtype=torch.float64)])
    scores = torch.cat([keys, offsets], dim=-1) @ lifted / spacing**2
    return torch.softmax(scores, dim=-1) @ values


def grid(reach: float, n_tokens: int) -> Tensor:
    """The numbers L_k of the tokens."""
    return torch.linspace(-reach, reach, n_tokens, dtype=torch.float64)


def softmax_step(x: Tensor, y: Tensor, w: Tensor, n_tokens: int, step: float) -> Tensor:
    """w - step * gradient of the huber loss by n heads: their values are slope(L_k) x_i."""
    points, one = grid(REACH, n_tokens), torch.ones(1, dtype=torch.float64)
    columns = torch.cat([x, y[:, None]], dim=-1)
    slopes = grid_heads(torch.cat([w, -one]), columns, huber_slope(points), points)
    return w - step * slopes @ x


def mean_minus_label(x: Tensor, y: Tensor, w: Tensor, mean: Map, points: Tensor) -> Tensor:
    """The sum over i of (mean(<w, x_i>) - y_i) x_i by 2n heads.

    The values of one head are mean(L_k) x_i, its query is w. Those of the other are L_k x_i, its
    query is -1 and its keys hold y_i.
    """
    minus_one = -torch.ones(1, dtype=torch.float64)
    means = grid_heads(w, x, mean(points), points)
    labels = grid_heads(minus_one, y[:, None], points, points)
    return (means + labels) @ x


def _softmax_error(n_tokens: int, seed: int, n_tasks: int = 200) -> float:
    """The largest error of a step of 0.1 on n = 4 examples, over random data in the domain."""
    worst = 0.0
    for task in range(n_tasks):
        data = drawn(1000 * seed + task, 4, 5).clamp(-1, 1)
        x, y, w = data[:, :3], data[:, 3], data[:3, 4]
        exact = w - 0.1 * x.T @ huber_slope(x @ w - y)
        worst = max(worst, float((softmax_step(x, y, w, n_tokens, 0.1) - exact).abs().max()))
    return worst


def _one_step(seed: int) -> Finding:
    right = tuple(
        Comparison(
            f"huber loss, n = 4, {n_tokens} tokens a head, 200 bounded inputs, eps = {eps:g}",
            _softmax_error(n_tokens, seed),
            eps,
            "error of a weight",
        )
        for eps, n_tokens in ((1e-1, 33), (1e-2, 257), (1e-3, 2049))
    )
    case = "the last of these attentions, asked to serve every eps > 0 at once"
    printed = Comparison(case, right[-1].measured, 0.0, "error of a weight")
    return Finding(right, printed=(printed,))


ONE_STEP = Statement(
    paper="cot",
    label="Lemma 3.1",
    claim=(
        "There is a multi-head softmax attention with skip connections and a linear map in front "
        "of each head which, for any eps > 0 and any bounded prompt, replaces the weights by one "
        "gradient step on a sum of C^1 losses of (<w, x_i>, y_i), to within eps."
    ),
    formula="exists Attn: for all eps > 0: |Attn(A(X)) - [x; y; w - eta grad L(w); 1]| <= eps",
    check=_one_step,
    correction=(
        "The attention depends on eps: for every eps there is one. As printed one attention would "
        "be exact, and cannot be: it is analytic in the prompt, which the slope of the huber loss "
        "is not."
    ),
)


def _lattice_product(column: Tensor, factor: Tensor, reach: float) -> Tensor:
    """One head: the query holds the number `factor`, token g the values (L_g reach) * column."""
    line = identity(line_lattice(1.0, 15))
    return reach * head(line, (factor / reach).reshape(1)) * column


def outer_by_heads(delta: Tensor, outputs: Tensor) -> Tensor:
    """delta o^T by one head for each column, whose values are vectors."""
    columns = [_lattice_product(delta, output, 4.0) for output in outputs]
    return torch.stack(columns, dim=-1)


def _dot_products(rows: Tensor, delta: Tensor) -> Tensor:
    """One head for each row: the query holds the row, the keys L_g delta, the values L_g."""
    one, reach = torch.ones(1, dtype=torch.float64), 4.0 * len(delta)
    return torch.cat([_lattice_product(one, row @ delta, reach) for row in rows])


def _outer_products(seed: int, width: int = 5) -> Finding:
    """Steps 3 and 5 with the printed selectors and with those that are needed."""
    draws = drawn(seed, 3 + width, width).clamp(-2, 2)
    delta, outputs, above, weights = draws[0], draws[1], draws[2], draws[3:]
    gradient, back = torch.outer(delta, outputs), weights.T @ delta
    by_heads, by_printed = outer_by_heads(delta, outputs), outer_by_heads(delta, above)
    by_columns, by_rows = _dot_products(weights.T, delta), _dot_products(weights, delta)
    unit = "error of an entry"
    right = (
        ("d heads, values L_g delta, queries (o_{i-1})_h: delta o^T", by_heads - gradient),
        ("d heads with columns W_{:,h} of the weights: W^T delta", by_columns - back),
    )
    printed = (
        ("selector E = [I 0], which takes delta_{i+1} for o_{i-1}", by_printed - gradient),
        ("d heads with rows W_{h,:} of the weights for W^T delta", by_rows - back),
    )
    return Finding(
        *(
            tuple(Comparison(case, float(gap.abs().max()), 1e-13, unit) for case, gap in part)
            for part in (right, printed)
        )
    )


OUTER_PRODUCTS = Statement(
    paper="cot",
    label="Appendix C.5",
    claim=(
        "d heads make the outer product delta_i o_{i-1}^T and d heads W_i^T delta_i, from the rows "
        "that the selectors E and E_h take out of A*(Z) and from the rows of W_i."
    ),
    formula="Attn_h = (o_{i-1})_h delta_i, E = [I_d 0]; Attn*_h = <(W_i)_{h,:}, delta_i>",
    check=_outer_products,
    correction=(
        "d heads suffice for the outer product, as each returns a vector. But E takes the first d "
        "rows of A*(Z), which hold delta_{i+1}; o_{i-1} is the third block of d rows. And Step 5 "
        "needs column h of W_i, not row h. E also has d columns too many, and A* one too few."
    ),
)
