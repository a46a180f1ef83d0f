r"""The layer of cot's Section 3: softmax heads over grid tokens, and an MLP for the lasso.

What the layer does is tried on the library's own transformers, cot-ridge, cot-lasso and cot-glm.
The heads below have what those do without: the paper's grids, which look up the nearest point.

A block has the columns [x_i; y_i; w; 1]. In front of the head of example i a linear map makes p
tokens: token g has the key [pi_g x_i; rho_g y_i + o_g] and the value v_g x_i. Every column asks
with [w; 1], so its score is pi_g s + rho_g y_i + o_g with s = <w, x_i>. With pi_g = L_g / u,
rho_g = -L_g / u and o_g = -L_g^2 / (2 u) the head looks at grid points L_g near s - y_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.compiled import Compiled
from icgd.pipeline import compile, decode
from icgd.problems.data import Domain
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.problems.steps import ProximalStep
from icgd_papers.studies.cot_tokens import Grid, look_up, nearest_points, smooth_line
from icgd_papers.theorems.cot.convex import Map, normal, soft_threshold
from icgd_papers.theorems.statement import Comparison, at_most, printed, statement

EXACT = 1e-12


class Tokens(NamedTuple):
    """The numbers pi_g, rho_g, o_g and v_g of the tokens of a head."""

    of_score: Tensor
    of_label: Tensor
    offsets: Tensor
    values: Tensor


def of_score(grid: Grid) -> Tokens:
    """Return tokens that look up their function at s."""
    return Tokens(grid.slopes, 0 * grid.slopes, grid.offsets, grid.values)


def of_residual(grid: Grid) -> Tokens:
    """Return tokens that look up their function at s - y."""
    return Tokens(grid.slopes, -grid.slopes, grid.offsets, grid.values)


def of_label(grid: Grid) -> Tokens:
    """Return tokens that look up their function at y."""
    return Tokens(0 * grid.slopes, grid.slopes, grid.offsets, grid.values)


def of_both(reaches: tuple[float, float], n_tokens: int, slope: Map) -> Tokens:
    """Return a product grid that looks up a function of the pair [s, y] at the nearest points."""
    at_s, at_y = (nearest_points(-reach, reach, n_tokens) for reach in reaches)
    pairs = torch.cartesian_prod(at_s.values, at_y.values)
    return Tokens(
        at_s.slopes.repeat_interleave(n_tokens),
        at_y.slopes.repeat(n_tokens),
        (at_s.offsets[:, None] + at_y.offsets).flatten(),
        slope(pairs),
    )


def prompt(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Return the block [x_i; y_i; w; 1] with a column for each example."""
    return torch.cat([x.T, y[None], w[:, None].expand(-1, len(x)), torch.ones(1, len(x)).double()])


def weights_of(block: Tensor) -> Tensor:
    """Return the rows of w."""
    return block[len(block) // 2 : -1]


def example_heads(block: Tensor, tokens: Tokens) -> Tensor:
    """Sum the heads of all examples: sum_i v(<w, x_i>, y_i) x_i in every column."""
    d = len(block) // 2 - 1
    x, y = block[:d].T, block[d]
    keys_of_x = tokens.of_score[None, :, None] * x[:, None, :]
    keys_of_y = tokens.of_label * y[:, None] + tokens.offsets
    keys = torch.cat([keys_of_x, keys_of_y[..., None]], dim=-1)  # (example, token, d + 1)
    queries = torch.cat([weights_of(block), block[-1:]])
    attention = torch.softmax(keys @ queries, dim=-2)  # (example, token, asking column)
    return torch.einsum("ipc,p,id->dc", attention, tokens.values, x)


def mirrored_heads(block: Tensor, n_heads: int, scale: float) -> Tensor:
    """Return the mean of (<w, x_i> - y_i) x_i in every column, by heads that serve every n.

    The tokens are the columns and their negatives, T = [G, -G], and every column asks with
    k [w; -1]. So a head returns sum_i sinh(k s_i) x_i / sum_i cosh(k s_i), s_i = <w, x_i> - y_i:
    an odd function of k whose derivative at 0 is the mean. The heads m = 1 .. M have k = m `scale`
    and factors a_m with sum_m a_m m^(2j+1) = [j = 0] / `scale`, which cancel the other powers of k
    up to k^(2M).
    """
    d = len(block) // 2 - 1
    tokens = torch.cat([block[: d + 1], -block[: d + 1]], dim=-1)
    queries = torch.cat([weights_of(block), -block[-1:]])
    m = torch.arange(1, n_heads + 1, dtype=torch.float64)
    powers = m ** (2 * torch.arange(n_heads, dtype=torch.float64)[:, None] + 1)
    factors = torch.linalg.solve(powers, torch.eye(n_heads, dtype=torch.float64)[0]) / scale
    scores = tokens.T @ queries
    heads = [tokens[:d] @ torch.softmax(k * scores, dim=0) for k in (scale * m).tolist()]
    return torch.einsum("m,mdc->dc", factors, torch.stack(heads))


def decay_head(block: Tensor) -> Tensor:
    """Return w in every column by a head whose tokens are all equal, and its scores 0."""
    n = block.shape[-1]
    tokens = weights_of(block)[:, :1].expand(-1, n)
    return tokens @ torch.softmax(torch.zeros(n, n, dtype=torch.float64), dim=0)


def threshold_mlp(block: Tensor, threshold: float) -> Tensor:
    """Apply the soft threshold to w and copy the other rows, by 4d + 4 ReLUs without biases.

    The units relu(+-w_k - c 1) read the row of ones; the other rows are relu(z) - relu(-z).
    """
    size, identity = len(block), torch.eye(len(block), dtype=torch.float64)
    is_weight = torch.zeros(size, 1, dtype=torch.float64)
    is_weight[size // 2 : -1] = 1.0
    shift = threshold * is_weight * identity[-1]
    hidden = torch.relu(torch.cat([identity - shift, -identity - shift]) @ block)
    return torch.cat([identity, -identity], dim=-1) @ hidden


def next_block(
    block: Tensor,
    heads: Sequence[tuple[float, Tokens]],
    decay: float = 0.0,
    threshold: float = 0.0,
) -> Tensor:
    """Apply the layer: heads and a decay head, added by the skip connection, then the MLP."""
    written = block.clone()
    for factor, tokens in heads:
        written[len(block) // 2 : -1] += factor * example_heads(block, tokens)
    if decay:
        written[len(block) // 2 : -1] -= decay * decay_head(block)
    return threshold_mlp(written, threshold) if threshold else written


def bounded_data(seed: int, n: int = 6, d: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y and w with entries in [-1, 1], so that |s| <= d and |s - y| <= d + 1."""
    draws = normal(seed, n, d + 1).clamp(-1, 1)
    return draws[:, :d], draws[:, d], normal(seed + 1, d).clamp(-1, 1)


STEP = 0.1


@statement("cot", "Section 2, gradient step")
def gradient_has_the_factor_of_the_risk(seed: int) -> Iterator[Comparison]:
    """Compare both factors with the derivative of the risk (1/2n) sum_i (<w, x_i> - y_i)^2."""
    x, y, w = bounded_data(seed)
    w.requires_grad_()
    (gradient,) = torch.autograd.grad((x @ w - y).square().sum() / (2 * len(y)), w)
    summed = 2 * x.T @ (x @ w.detach() - y)
    for compare, factor, text in ((at_most, 0.5, "1/2n"), (printed, 1.0, "1/n")):
        error = float((factor / len(y) * summed - gradient).abs().max())
        case = f"least squares, 6 random examples, all of them in the batch, factor {text}"
        yield compare(error, EXACT, case, "largest difference from grad L_n")


def compiled_chain(x: Tensor, y: Tensor, n_steps: int, l1: float = 0.0) -> Compiled:
    """Return least squares by cot-ridge, or the lasso by cot-lasso, whose MLP has no box."""
    model, update = LinearModel(x.shape[-1]), ProximalStep(STEP, l1=l1)
    problem = Problem(model, "matching", update, Domain(1.0, 1.0, score=3.0 * x.shape[-1]))
    name = "cot-lasso" if l1 else "cot-ridge"
    return compile(problem, name, n_steps=n_steps, n_examples=len(y))


@statement("cot", "Definition 2.1")
def blocks_have_more_rows_than_inputs(seed: int) -> Iterator[Comparison]:
    """Grow a prompt by the layer, and count its rows and columns."""
    x, y, _ = bounded_data(seed)
    n, d = x.shape
    run = decode(compiled_chain(x, y, n_steps=3), x, y)
    for t in range(2, 5):
        columns = sum(block.shape[0] for block in run.trace["w"][:t])
        text = f"cot-ridge, t = {t}: columns of Z_t beyond t n"
        yield at_most(abs(columns - t * n), 0, text, "columns")
    rows = sum(run.trace[name].shape[-1] for name in ("x", "y", "w", "one"))
    yield at_most(rows, 2 * d + 2, f"cot-ridge, x in R^{d}: rows of Z_t", "rows; 2d + 2")
    yield printed(rows, d, f"cot-ridge, x in R^{d}: rows of Z_t", "rows; d")


@statement("cot", "Remark 2.1")
def one_call_writes_a_block(seed: int) -> Iterator[Comparison]:
    """Compare the columns that one call writes with each other, and with one call a column."""
    x, y, _ = bounded_data(seed)
    compiled = compiled_chain(x, y, n_steps=5)
    by_block, by_token = (decode(compiled, x, y, mask=mask).trace for mask in ("block", "window"))
    written = by_block["w"]
    spread = float((written - written[:, :1]).abs().max())
    yield at_most(spread, EXACT, "5 blocks of n = 6 columns: differences of their w", "weight")
    error = max(float((by_token[name] - by_block[name]).abs().max()) for name in by_block)
    yield at_most(error, EXACT, "the same columns, one a call, by a causal window", "entry")


@statement("cot", "Remark 2.2")
def blocks_keep_their_data(seed: int) -> Iterator[Comparison]:
    """Compare the rows of x, y and 1 after 50 calls with the prompt, with and without the MLP."""
    x, y, _ = bounded_data(seed)
    for l1 in (0.0, 0.1):
        trace = decode(compiled_chain(x, y, n_steps=50, l1=l1), x, y).trace
        change = max(
            float((trace[name][-1] - trace[name][0]).abs().max()) for name in ("x", "y", "one")
        )
        case = f"50 calls {'with' if l1 else 'without'} the MLP: rows x, y and 1"
        yield at_most(change, 0.0, case, "largest change")


@statement("cot", "Definition 3.1")
def prompts_have_2d_plus_2_rows(seed: int) -> Iterator[Comparison]:
    """Count the rows of [x_i; y_i; w; 1]."""
    for d in (1, 3, 10):
        rows = len(prompt(*bounded_data(seed, d=d)))
        for compare, count, text in (
            (at_most, 2 * d + 2, "2d + 2"),
            (printed, 2 * d + 3, "2d + 3"),
        ):
            yield compare(
                abs(rows - count), 0, f"d = {d}: rows of [x_i; y_i; w; 1]", f"off from {text}"
            )


def huber_slope(residual: Tensor) -> Tensor:
    """Return the derivative of the huber loss, which is C^1 and has a clipped line as its slope."""
    return residual.clamp(-1, 1)


def fit_slope(pairs: Tensor) -> Tensor:
    """Return the derivative of (tanh(s) - y)^2 / 2 by s, no function of s - y or of s alone."""
    s, y = pairs.unbind(-1)
    return (torch.tanh(s) - y) * (1 - torch.tanh(s) ** 2)


def gradient_error(tokens: Tokens, slope: Map, seed: int, n_tasks: int = 20) -> float:
    """Return the largest error of a step of 0.1 over random bounded data, in any entry."""
    worst = 0.0
    for task in range(n_tasks):
        x, y, w = bounded_data(100 * seed + 2 * task)
        written = next_block(prompt(x, y, w), [(-STEP, tokens)])
        exact = w - STEP * x.T @ slope(torch.stack([x @ w, y], dim=-1))
        worst = max(worst, float((written - prompt(x, y, exact)).abs().max()))
    return worst


@statement("cot", "Lemma 3.1")
def attention_takes_a_step(seed: int) -> Iterator[Comparison]:
    """Refine the grid of one layer for a loss of s - y, and for a loss of both arguments."""
    unit = "error of an entry; eps"

    def of_huber(pairs: Tensor) -> Tensor:
        return huber_slope(pairs[..., 0] - pairs[..., 1])

    for eps, n_tokens in ((1e-1, 33), (1e-2, 257), (1e-3, 2049)):
        tokens = of_residual(nearest_points(-4.0, 4.0, n_tokens, huber_slope))
        huber_error = gradient_error(tokens, of_huber, seed)
        yield at_most(huber_error, eps, f"huber loss, {n_tokens} tokens a head, 20 tasks", unit)
    for eps, n_tokens in ((1e-1, 17), (2e-2, 97)):
        tokens = of_both((3.0, 1.0), n_tokens, fit_slope)
        error = gradient_error(tokens, fit_slope, seed)
        case = f"(tanh(s) - y)^2 / 2, {n_tokens}^2 tokens a head, 20 tasks"
        yield at_most(error, eps, case, unit)
    case = "huber loss, 2049 tokens a head, asked to serve every eps > 0 at once"
    yield printed(huber_error, 0.0, case, unit)


@statement("cot", "Remark 3.1")
def any_smooth_loss_takes_one_layer(seed: int) -> Iterator[Comparison]:
    """Double the points of a product grid: for C^1 losses the error falls like the spacing."""
    slopes: dict[str, Map] = {
        "(tanh(s) - y)^2 / 2": fit_slope,
        "log(1 + exp(-s y))": lambda pairs: -pairs[..., 1] * torch.sigmoid(-pairs.prod(-1)),
        "squared hinge": lambda pairs: -2 * pairs[..., 1] * torch.relu(1 - pairs.prod(-1)),
    }
    for name, slope in slopes.items():
        coarse, fine = (
            gradient_error(of_both((3.0, 1.0), n_tokens, slope), slope, seed)
            for n_tokens in (25, 97)
        )
        case = f"{name}, 97^2 tokens over 25^2, 20 tasks"
        yield at_most(fine / coarse, 0.5, case, "error, relative; 1/4 where it is linear")


@statement("cot", "Remark 3.2")
def two_heads_predict(seed: int) -> Iterator[Comparison]:
    """Predict at a query by cot-glm, from the coefficients where three steps end.

    The second head takes off the query's label, which is 0 in these prompts.
    """
    x, y, _ = bounded_data(seed)
    means: dict[str, Map] = {
        "identity": torch.clone,
        "logistic": torch.sigmoid,
        "poisson": torch.exp,
    }
    for link, mean in means.items():
        labels = y if link == "identity" else (y > 0).double()
        model = LinearModel(x.shape[-1], link, reduction="sum")
        problem = Problem(model, "matching", ProximalStep(STEP), Domain(1.0, 1.0, score=3.0))
        compiled = compile(problem, "cot-glm", n_steps=3, n_examples=len(y))
        run = compiled.run(x, labels, queries=x / 2, backend="literal")
        error = float((run.predictions[:, 0] - mean(x / 2 @ run.parameters[-1])).abs().max())
        yield at_most(error, EXACT, f"cot-glm, {link}, 6 queries", "error of a prediction")


def clipped_line(
    s: Tensor, ends: tuple[float, float], n_points: int, slots: Tensor
) -> tuple[Tensor, float]:
    """Return the head of Lemma A.5, with L_k in coordinate slots[k], and the bound of the lemma."""
    tokens = nearest_points(*ends, n_points)
    values = torch.zeros(n_points, int(slots.max()) + 1, dtype=torch.float64)
    values[torch.arange(n_points), slots] = tokens.values
    spill = 2 * n_points * exp(-40)  # eps_0: the weight of points that are not nearest
    bound = max(map(abs, ends)) * spill + (ends[1] - ends[0]) / n_points
    return look_up(tokens._replace(values=values), s), bound


@statement("cot", "Lemma A.5")
def one_head_clips_a_line(seed: int) -> Iterator[Comparison]:
    """Try every s and all ties with one coordinate, and s beside a tie with two."""
    del seed  # nothing is drawn
    low, high = ends = (-1.0, 2.0)
    for n_points in (8, 32, 128):
        ties = low + (high - low) / (n_points - 1) * (torch.arange(n_points - 1).double() + 0.5)
        s = torch.cat([torch.linspace(low - 1, high + 1, 4001, dtype=torch.float64), ties])
        found, bound = clipped_line(s, ends, n_points, torch.zeros(n_points, dtype=torch.long))
        error = float((found[:, 0] - s.clamp(low, high)).abs().max())
        case = f"one coordinate, [{low:g}, {high:g}], p = {n_points}, -2 <= s <= 3 with all ties"
        yield at_most(error, bound, case, "error")
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    error = float((look_up(smooth_line(1.0), s) - s).abs().max())
    yield at_most(error, 1e-13, "31 tokens with wide weights, |s| <= 1, not clipped", "error")
    n_points = 8
    slots = torch.arange(n_points) % 2
    tie = 1.0 + 3.5 / (n_points - 1)
    s = torch.tensor([tie - 1e-9, tie + 1e-9], dtype=torch.float64)
    found, bound = clipped_line(s, (1.0, 2.0), n_points, slots)
    expected = torch.diag(s) if slots[3] == 0 else torch.diag(s).flip(-1)
    error = float((found - expected).abs().max())
    yield printed(error, bound, f"G(k) = k mod 2, [1, 2], p = 8, s = {tie:g} +- 1e-9", "error")


@statement("cot", "Remark A.1")
def attention_computes_relu_networks(seed: int) -> Iterator[Comparison]:
    """Clip at 0 for a ReLU, and sum heads for the units of networks of 1 to 4 layers."""
    s = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    for n_points in (32, 128):
        error = float((look_up(nearest_points(0.0, 6.0, n_points), s) - torch.relu(s)).abs().max())
        yield at_most(error, 6 / n_points, f"relu(s), |s| <= 6, p = {n_points}", "error; (b - a)/p")
    n_points, width = 4096, 5
    for depth in (1, 2, 3, 4):
        matrices = normal(seed, depth, width, width).clamp(-1, 1) / 2
        exact = found = normal(seed + 1, width).clamp(-1, 1)
        tokens, bound = nearest_points(0.0, 8.0, n_points), 0.0
        for matrix in matrices:
            exact, found = torch.relu(matrix @ exact), look_up(tokens, matrix @ found)
            # Errors of a layer pass through the next matrix, and each head adds its own.
            bound = float(matrix.abs().sum(-1).max()) * bound + 8 / n_points
        error = float((found - exact).abs().max())
        case = f"{depth} layers of width {width}, p = {n_points}"
        yield at_most(error, bound, case, "error; 8/p a layer, times row sums")


@statement("cot", "Equations (11) and (12)")
def threshold_needs_the_row_of_ones(seed: int) -> Iterator[Comparison]:
    """Compare the MLP with the soft threshold, and test the threshold for homogeneity.

    Without biases F = W_2 relu(W_1 w) has F(2w) = 2 F(w), which the threshold does not.
    """
    threshold = 0.2
    for d in (1, 3, 6):
        x, y, w = bounded_data(seed, d=d)
        block = prompt(x, y, w)
        written, exact = threshold_mlp(block, threshold), prompt(x, y, soft_threshold(w, threshold))
        error = float((written - exact).abs().max())
        yield at_most(error, EXACT, f"d = {d}, 4d + 4 ReLUs that read the row of ones", "entry")
        w = w.sign() * (w.abs() + threshold)
        gap = soft_threshold(2 * w, threshold) - 2 * soft_threshold(w, threshold)
        case = f"d = {d}, threshold {threshold:g}: prox(2w) - 2 prox(w)"
        yield printed(float(gap.abs().max()), 0.0, case, "entry; 0 for every MLP without biases")


@statement("cot", "Appendix C.2")
def ridge_needs_a_decay_head(seed: int) -> Iterator[Comparison]:
    """Take a ridge step with fewer examples than weights, with a decay head and without.

    The heads of Lemma 3.1 write combinations of x_1 .. x_n, in which lambda w need not lie.
    """
    l2 = 0.5
    x, y, w = bounded_data(seed, n=3, d=6)
    exact = w - STEP * (x.T @ (x @ w - y) + l2 * w)
    heads = [(-STEP, of_residual(smooth_line(8.0)))]
    written = weights_of(next_block(prompt(x, y, w), heads, decay=STEP * l2))
    error = float((written - exact[:, None]).abs().max())
    case = "n = 3, d = 6, lambda = 1/2"
    yield at_most(error, EXACT, f"{case}, heads of Lemma 3.1 and a decay head", "error of a weight")
    decay = STEP * l2 * w
    outside = decay - x.T @ torch.linalg.lstsq(x.T, decay).solution
    text = f"{case}, the part of eta lambda w that no sum over examples has"
    yield printed(float(outside.abs().max()), EXACT, text, "error of a weight")
