r"""The layer of cot's Section 3: softmax heads over grid tokens, and an MLP for the lasso.

A block has the columns [x_i; y_i; w; 1]. In front of the head of example i a linear map makes p
tokens: token g has the key [pi_g x_i; rho_g y_i + o_g] and the value v_g x_i. Every column asks
with [w; 1], so its score is pi_g s + rho_g y_i + o_g with s = <w, x_i>. With pi_g = L_g / u,
rho_g = -L_g / u and o_g = -L_g^2 / (2 u) the head looks at grid points L_g near s - y_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, lgamma, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from icgd_papers.theorems.cot.convex import Map, normal, soft_threshold
from icgd_papers.theorems.statement import Comparison, at_most, printed, statement

EXACT = 1e-12


class Tokens(NamedTuple):
    """The numbers pi_g, rho_g, o_g and v_g of the tokens of a head."""

    of_score: Tensor
    of_label: Tensor
    offsets: Tensor
    values: Tensor


def smooth_line(reach: float, n_tokens: int = 31) -> Tokens:
    """Return tokens that look up s itself, to rounding for |s| <= reach and 31 tokens.

    Their weights are wider than the grid's spacing, and the grid goes far beyond the reach.
    """
    spacing = 4 / 3 * reach
    points = spacing * (torch.arange(n_tokens, dtype=torch.float64) - (n_tokens - 1) / 2)
    variance = (spacing * min(0.285 * sqrt(n_tokens), 1.45)) ** 2
    return Tokens(points / variance, 0 * points, -(points**2) / (2 * variance), points)


def nearest_points(low: float, high: float, n_tokens: int, values: Map = torch.clone) -> Tokens:
    """Return the tokens of Lemma A.5, which look up the value at the grid point nearest to s."""
    points = torch.linspace(low, high, n_tokens, dtype=torch.float64)
    # A point that is further away by a spacing has a weight of exp(-40).
    slopes = 80 / (points[1] - points[0]) ** 2 * points
    return Tokens(slopes, 0 * points, -slopes * points / 2, values(points))


def logistic_labels() -> Tokens:
    """Return the two labels 0 and 1, whose softmax mean is the sigmoid itself."""
    labels = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return Tokens(labels, 0 * labels, 0 * labels, labels)


def poisson_labels(reach: float) -> Tokens:
    """Return the counts 0, 1, .. weighted by 1 / g!, whose softmax mean is exp(s)."""
    largest = int(exp(reach) + 12 * sqrt(exp(reach)) + 25)
    counts = torch.arange(largest + 1, dtype=torch.float64)
    offsets = torch.tensor([-lgamma(g + 1) for g in counts.tolist()], dtype=torch.float64)
    return Tokens(counts, 0 * counts, offsets, counts)


def of_residual(tokens: Tokens) -> Tokens:
    """Return tokens that look up their function at s - y."""
    return tokens._replace(of_label=-tokens.of_score)


def of_label(tokens: Tokens) -> Tokens:
    """Return tokens that look up their function at y."""
    return tokens._replace(of_score=0 * tokens.of_score, of_label=tokens.of_score)


def of_both(reaches: tuple[float, float], n_tokens: int, slope: Map) -> Tokens:
    """Return a product grid that looks up a function of the pair [s, y] at the nearest points."""
    at_s, at_y = (nearest_points(-reach, reach, n_tokens) for reach in reaches)
    pairs = torch.cartesian_prod(at_s.values, at_y.values)
    return Tokens(
        at_s.of_score.repeat_interleave(n_tokens),
        at_y.of_score.repeat(n_tokens),
        (at_s.offsets[:, None] + at_y.offsets).flatten(),
        slope(pairs),
    )


def look_up(tokens: Tokens, s: Tensor) -> Tensor:
    """Return what a head over these tokens makes of the score s."""
    return torch.softmax(s[..., None] * tokens.of_score + tokens.offsets, -1) @ tokens.values


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


@statement("cot", "Definition 2.1")
def blocks_have_more_rows_than_inputs(seed: int) -> Iterator[Comparison]:
    """Grow a prompt by the layer, and count its rows and columns."""
    x, y, w = bounded_data(seed)
    n, d = x.shape
    sequence = prompt(x, y, w)
    for t in range(2, 5):
        written = next_block(sequence[:, -n:], [(-STEP, of_residual(smooth_line(4.0)))])
        sequence = torch.cat([sequence, written], dim=-1)
        columns = abs(sequence.shape[-1] - t * n)
        yield at_most(columns, 0, f"Section 3, t = {t}: columns of Z_t beyond t n", "columns")
    rows = len(sequence)
    yield at_most(rows, 2 * d + 2, f"Section 3, x in R^{d}: rows of Z_t", "rows; 2d + 2")
    yield printed(rows, d, f"Section 3, x in R^{d}: rows of Z_t", "rows; d")


@statement("cot", "Remark 2.1")
def one_call_writes_a_block(seed: int) -> Iterator[Comparison]:
    """Compare the columns that one call writes with each other, and with one call a column."""
    x, y, w = bounded_data(seed)
    heads = [(-STEP, of_residual(smooth_line(4.0)))]
    sequence, by_token = prompt(x, y, w), prompt(x, y, w)
    n = len(y)
    for _ in range(5):
        sequence = torch.cat([sequence, next_block(sequence[:, -n:], heads)], dim=-1)
        for _ in range(n):
            # The oldest column of the window asks; the window holds every example once.
            column = next_block(by_token[:, -n:], heads)[:, :1]
            by_token = torch.cat([by_token, column], dim=-1)
    written = weights_of(sequence[:, -n:])
    spread = float((written - written[:, :1]).abs().max())
    yield at_most(spread, EXACT, "5 blocks of n = 6 columns: differences of their w", "weight")
    error = float((by_token - sequence).abs().max())
    yield at_most(error, EXACT, "the same columns, one a call, by a causal window", "entry")


@statement("cot", "Remark 2.2")
def blocks_keep_their_data(seed: int) -> Iterator[Comparison]:
    """Compare the rows of x, y and 1 after 50 calls with the prompt, with and without the MLP."""
    x, y, w = bounded_data(seed)
    for threshold in (0.0, 0.01):
        block = start = prompt(x, y, w)
        for _ in range(50):
            heads = [(-STEP, of_residual(smooth_line(4.0)))]
            block = next_block(block, heads, decay=0.01, threshold=threshold)
        is_data = torch.ones(len(block), dtype=torch.bool)
        is_data[len(block) // 2 : -1] = False
        change = float((block - start)[is_data].abs().max())
        case = f"50 calls {'with' if threshold else 'without'} the MLP: rows x, y and 1"
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
    """Write mu(<w, x_q>) to the label row of the query's column, and take off what stood there."""
    x, y, w = bounded_data(seed)
    models = (
        ("identity", smooth_line(3.0), torch.clone),
        ("logistic", logistic_labels(), torch.sigmoid),
        ("poisson", poisson_labels(3.0), torch.exp),
    )
    for name, tokens, mean in models:
        column = prompt(x, y, w)[:, 0]
        query, d = column.clone(), x.shape[-1]
        # Head 1 asks with [x_q; 1] for the keys [pi_g w; o_g] and the values v_g.
        keys = torch.cat([tokens.of_score[:, None] * w, tokens.offsets[:, None]], dim=-1)
        asking = torch.cat([query[:d], query[-1:]])
        query[d] += torch.softmax(keys @ asking, dim=0) @ tokens.values
        query[d] -= column[d]  # head 2 has the column itself as its one token, and the value -y
        error = float((query[d] - mean(w @ column[:d])).abs())
        yield at_most(error, EXACT, f"{name}, {len(keys)} tokens", "error of a prediction")


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
