r"""Gradient descent in context: wang's Theorems 1 and 2 and what their proof is made of.

`recursion` is this transformer with the errors of the proof mended; literal runs compute each of
its heads and units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from icgd.constructions.recursion import Recursion, literal_layers
from icgd.layers import ActivationAttention
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.studies.wang_rates import BOX, N_TASKS, STEP, worst_step
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.theorems.wang.functions import ACTIVATIONS

EPS = 0.01

EXACT = 1e-12
"""Rounding error allowed in numbers of order 1."""


def network_problem(
    widths: tuple[int, ...], activation: str = "tanh", loss: str = "squared"
) -> Problem:
    """Return a small network with weights in [-1/2, 1/2] and data in [-1, 1]."""
    return Problem(MLP(widths, activation), loss, GradientStep(STEP, box=BOX), Domain(1.0, 1.0))


def literal_steps(problem: Problem, units: str, seed: int, n_units: int = 240) -> Comparison:
    """Compare the error of two literal steps with eta eps."""
    compiled = compile(problem, Recursion(n_units, units), n_steps=2)
    widths = "-".join(map(str, problem.network.widths))
    case = f"{widths} {problem.network.activation}, {problem.loss} loss, {n_units} {units} units"
    error = worst_step(compiled, seed, "literal")
    return at_most(error, STEP * EPS, case, f"largest |eps(w)| of {N_TASKS} tasks; eta eps")


def hat(z: Tensor, height: float, norm: float) -> Tensor:
    """Return a hat of three ReLUs around 1/2, of this height and at most this norm in L^2."""
    half_width = min(1.5 * (norm / height) ** 2, 0.5)
    corners = torch.relu((z - 0.5) / half_width + torch.tensor([1.0, 0.0, -1.0]).double())
    return height * (corners @ torch.tensor([1.0, -2.0, 1.0]).double())


@statement("wang", "Theorem 1")
def two_layers_take_a_step(seed: int) -> Iterator[Comparison]:
    """Run literal steps with every activation, and one step with functions close in L^2 alone."""
    widths = (2, 3, 1)
    for units in ACTIVATIONS:
        yield literal_steps(network_problem(widths), units, seed)
    for other_widths in ((1, 2, 1), (5, 6, 1)):
        for units in ("relu", "sigmoid"):
            yield literal_steps(network_problem(other_widths), units, seed)
    for activation in ("sigmoid", "softplus"):
        for loss in ("squared", "logistic"):
            yield literal_steps(network_problem(widths, activation, loss), "softplus", seed)
    for units in ("relu", "elu"):
        coarse, fine = (
            worst_step(
                compile(network_problem(widths), Recursion(n, units), n_steps=2), seed, "literal"
            )
            for n in (24, 96)
        )
        case = f"2-3-1 tanh, error with 96 {units} units over 24, as 4 = 2^2"
        yield at_most(fine / coarse, 0.5, case, "times; eps^-2 heads")
    layers = compile(network_problem(widths), Recursion(96, "relu"), n_steps=1)
    yield at_most(layers.stack.layers_per_step, 4, "2-3-1 tanh", "sub-layers; 2 attention, 2 MLP")
    # pred = u r(v x) with v x = 1/2, u = 1/2, y = -1: the derivative by u is (u r + 1) r.
    z = torch.tensor([0.5], dtype=torch.float64)
    exact, close_in_mean = torch.tanh(z), torch.tanh(z) + hat(z, 1.0, EPS)
    error = STEP * float(((close_in_mean / 2 + 1) * close_in_mean - (exact / 2 + 1) * exact).abs())
    case = f"r off by a hat of height 1, which is {EPS:g} in L^2"
    yield in_proof(error, 2 * STEP * EPS, case, "|eps(w)|; 2 eta eps, as the loss slope is below 2")


@statement("wang", "Theorem 2")
def deep_networks_take_a_step(seed: int) -> Iterator[Comparison]:
    """Run literal steps for 3 to 5 layers; count heads of the Jacobians and of backpropagation."""
    for widths in ((2, 3, 3, 1), (2, 3, 3, 3, 1), (2, 3, 3, 3, 3, 1)):
        for units in ACTIVATIONS if len(widths) < 6 else ("relu", "sigmoid", "softplus"):
            yield literal_steps(network_problem(widths), units, seed)
        compiled = compile(network_problem(widths), Recursion(96, "relu"), n_steps=1)
        n = len(widths) - 1
        unit = "sub-layers; 2 a_n = n (n + 3) - 6"
        yield at_most(compiled.stack.layers_per_step, 2 * literal_layers(n), f"n = {n}", unit)
    growing = (4, 8)
    for n in (3, 4):
        jacobians, backpropagation = (
            [compile(network_problem((*[k] * n, 1)), name, n_steps=1).summary() for k in growing]
            for name in (Recursion(64, "tanh"), "softmax-stack")
        )
        case = f"n = {n}, K = 8 over K = 4"
        width = backpropagation[1].d_model / backpropagation[0].d_model
        yield at_most(width, 4, f"width by backpropagation, {case}", "times; K^2")
        heads = jacobians[1].max_heads / jacobians[0].max_heads
        yield in_proof(heads, 4, f"heads of the proof's Jacobians, {case}", "times; K^2")
        width = jacobians[1].d_model / jacobians[0].d_model
        yield in_proof(width, 4, f"width of the proof's Jacobians, {case}", "times; K^2")


@statement("wang", "Remark 1")
def only_the_weights_change(seed: int) -> Iterator[Comparison]:
    """Compare all rows of all tokens after literal steps with the prompt."""
    source = torch.Generator().manual_seed(seed)
    x, y = (torch.rand(5, width, generator=source, dtype=torch.float64) for width in (2, 1))
    for widths in ((2, 3, 1), (2, 3, 3, 1)):
        for units in ("relu", "sigmoid", "softplus"):
            compiled = compile(network_problem(widths), Recursion(240, units), n_steps=2)
            run = compiled.run(x, y, seed=seed, backend="literal", trace=True)
            changes = {
                name: float((rows[compiled.stack.layers_per_step * 2] - rows[0]).abs().max())
                for name, rows in run.trace.items()
            }
            weights = [name for name in changes if name.startswith("weights")]
            case = f"{'-'.join(map(str, widths))} tanh, {units} units, 2 steps"
            others = max(changes[name] for name in changes if name not in weights)
            yield at_most(others, 1e-9, f"{case}, x, y, 1, t and the zeros", "largest change")
            moved = min(changes[name] for name in weights)
            yield at_most(1e-6, moved, f"{case}, every weight matrix", "least change of a matrix")


@statement("wang", "Remark 2")
def layers_grow_like_the_square_of_the_depth(seed: int) -> Iterator[Comparison]:
    """Count the layers of the printed recursion, and those of the compiled one."""
    del seed  # nothing is drawn
    ratios = [literal_layers(n) / n**2 for n in range(2, 1001)]
    yield at_most(max(ratios), 1, "a_n = n (n + 3) / 2 - 3, n = 2 to 1000", "a_n / n^2, largest")
    for n in (2, 4, 8):
        compiled = compile(network_problem((*[2] * n, 1)), Recursion(64, "tanh"), n_steps=1)
        case = f"a network of {n} layers, compiled with shared Jacobians"
        yield at_most(compiled.stack.layers_per_step, n + 2, case, "sub-layers; n + 2")


def projection_error(units: str, n_units: int) -> float:
    """Return how far the compiled MLP layer of some units is from the projection to the box."""
    compiled = compile(network_problem((1, 1, 1)), Recursion(n_units, units), n_steps=1)
    layer = compiled.transformer().layers_of(0, compiled.stack.layers_per_step)[-1]
    place = compiled.program.layout.range_of("weights_1")
    w = torch.linspace(-2 * BOX, 2 * BOX, 2001, dtype=torch.float64)
    stream = torch.zeros(len(w), 1, compiled.program.layout.width, dtype=torch.float64)
    stream[..., compiled.program.layout.range_of("one")] = 1.0
    stream[..., place] = w[:, None, None]
    with torch.no_grad():
        projected = layer(stream)[:, 0, place][:, 0]
    return float((projected - w.clamp(-BOX, BOX)).abs().max())


@statement("wang", "Assumption 2")
def mlp_layers_project_to_a_box(seed: int) -> Iterator[Comparison]:
    """Project weights up to twice as large as the box by the last layer of a compiled step."""
    del seed  # nothing is drawn
    unit = f"largest distance from the projection to [-{BOX}, {BOX}]"
    for units in ("relu", "elu", "softplus", "gelu", "silu"):
        yield at_most(projection_error(units, 96), EXACT, f"{units} units, |w| <= {2 * BOX}", unit)
    for units in ("sigmoid", "tanh"):
        for n_units, allowed in ((96, 2e-2), (240, 5e-4)):
            case = f"{n_units} {units} units, |w| <= {2 * BOX}"
            yield at_most(projection_error(units, n_units), allowed, case, unit)


@statement("wang", "Equation (4)")
def gradient_of_the_loss(seed: int) -> Iterator[Comparison]:
    """Compare the formula, with 1/N and with 1/2N, with the gradient of L_N."""
    source, n = torch.Generator().manual_seed(seed), 5
    x, v, u, y = (
        torch.randn(*shape, generator=source, dtype=torch.float64)
        for shape in ((n, 2), (3, 2), (3,), (n,))
    )
    weights = [v.requires_grad_(), u.requires_grad_()]
    prediction = torch.tanh(x @ v.mT) @ u
    loss = ((prediction - y) ** 2).sum() / (2 * n)
    gradient = torch.autograd.grad(loss, weights, retain_graph=True)
    formula = torch.autograd.grad(prediction, weights, grad_outputs=2 * (prediction - y))
    size = max(float(part.abs().max()) for part in gradient)
    for compare, factor, text in ((at_most, 1 / (2 * n), "1/2N"), (printed, 1 / n, "1/N")):
        error = max(
            float((factor * a - b).abs().max()) for a, b in zip(formula, gradient, strict=True)
        )
        case = f"2-3-1 tanh, squared loss, 5 random examples, {text}"
        yield compare(error / size, EXACT, case, "difference from grad L_N, relative")


N_TOKENS, N_UNITS = 5, 3
FIRST, SECOND, WRITE, ONE = (
    range(N_UNITS),
    range(N_UNITS, 2 * N_UNITS),
    2 * N_UNITS,
    2 * N_UNITS + 1,
)
"""The rows of a token: units or g, weights or the Jacobian, what heads write, and 1."""

Row = dict[int, float]
"""Entries of a linear map that reads one number from a token."""


def attend(
    stream: Tensor,
    heads: list[tuple[list[Row], list[Row], Row]],
    activation: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return what the attention of Definition 1 writes, with a query, a key and a value a head."""
    width = max(len(query) for query, _, _ in heads)
    queries, keys = torch.zeros(2, len(heads), stream.shape[-1], width, dtype=torch.float64)
    values = torch.zeros(len(heads), stream.shape[-1], 1, dtype=torch.float64)
    output = torch.zeros(len(heads), 1, stream.shape[-1], dtype=torch.float64)
    output[:, 0, WRITE] = 1.0
    for h, (query, key, value) in enumerate(heads):
        for matrix, rows in ((queries[h], query), (keys[h], key), (values[h], [value])):
            for entry, row in enumerate(rows):
                for place, weight in row.items():
                    matrix[place, entry] = weight
    layer = ActivationAttention(queries, keys, values, output, activation=activation)
    return layer.forward(stream)[:, WRITE].detach()


def random_stream(seed: int) -> Tensor:
    """Return random tokens, with 0 in the row that heads write and 1 in the last one."""
    source = torch.Generator().manual_seed(seed)
    stream = torch.randn(N_TOKENS, ONE + 1, generator=source, dtype=torch.float64)
    stream[:, WRITE], stream[:, ONE] = 0.0, 1.0
    return stream


@statement("wang", "Appendix A, forward layers")
def units_belong_in_the_query(seed: int) -> Iterator[Comparison]:
    """Compute one unit of the next layer, sum_k V[k] relu(z[k]), with a head for each k."""
    stream = random_stream(seed)
    stream[:, list(SECOND)] = stream[0, list(SECOND)]  # all tokens hold the same weights
    units, weights = stream[:, list(FIRST)], stream[:, list(SECOND)]
    expected = (torch.relu(units) * weights).sum(1)
    pairs = list(zip(FIRST, SECOND, strict=True))
    one = {ONE: 1.0}
    for compare, place, heads in (
        (at_most, "query", [([{z: 1.0}], [one], {v: 1.0}) for z, v in pairs]),
        (printed, "key", [([one], [{z: 1.0}], {v: 1.0}) for z, v in pairs]),
    ):
        error = float((attend(stream, heads, torch.relu) - expected).abs().max())
        case = f"3 relu units, {N_TOKENS} tokens, unit in the {place}"
        yield compare(error, EXACT, case, "largest difference at any token")


@statement("wang", "Appendix A, gradient layer")
def slope_and_jacobian_belong_in_the_key(seed: int) -> Iterator[Comparison]:
    """Average g_t J_t over tokens, with a b = ((a + b)^2 - (a - b)^2) / 4 as two units."""
    stream = random_stream(seed)
    g, jacobian = FIRST[0], SECOND[0]
    expected = (stream[:, g] * stream[:, jacobian]).mean()
    one = {ONE: 1.0}
    both_in_key = [([one], [{g: 1.0, jacobian: sign}], {ONE: sign / 4}) for sign in (1.0, -1.0)]
    slope_in_query = [
        ([{g: 1.0}, {ONE: sign}], [one, {jacobian: 1.0}], {ONE: sign / 4}) for sign in (1.0, -1.0)
    ]
    for compare, heads, place in (
        (at_most, both_in_key, "g and J in the key"),
        (printed, slope_in_query, "g in the query, J in the key"),
    ):
        error = float((attend(stream, heads, torch.square) - expected).abs().max())
        case = f"{N_TOKENS} tokens, one weight, {place}"
        yield compare(error, EXACT, case, "largest difference at any token")


@statement("wang", "Appendix A, loss slope layer")
def queries_are_masked_in_the_value(seed: int) -> Iterator[Comparison]:
    """Evaluate 2 (pred - y) at a query, where it must be 0, and average it over examples.

    The slope is exact with ReLU and softplus units. The others are used near 0, where they are
    almost linear: 2 s = (8 / h) (sigma(h s) - sigma(0)) for the sigmoid.
    """
    stream = random_stream(seed)
    slope, flag, h, reach = FIRST[0], SECOND[0], 0.01, 2.0
    residual = stream[:, FIRST[1]].clamp(-1, 1)
    is_example = torch.arange(N_TOKENS) < N_TOKENS - 1
    fits: dict[str, list[tuple[float, float]]] = {
        "relu": [(1.0, 2.0), (-1.0, -2.0)],
        "sigmoid": [(h, 8 / h), (0.0, -8 / h)],
        "tanh": [(h, 2 / h)],
        "softplus": [(h, 2 / h), (-h, -2 / h)],
    }
    for name, units in fits.items():
        at_examples, at_queries = (
            torch.stack([c * ACTIVATIONS[name](a * residual - shift) for a, c in units]).sum(0)
            for shift in (0.0, reach)
        )
        stream[:, slope], stream[:, flag] = at_examples, is_example.double()
        expected = (2 * residual * is_example).mean()
        head = ([{ONE: 1.0}], [{slope: 1.0}], {flag: 1.0})
        error = float((attend(stream, [head], torch.clone) - expected).abs().max())
        case = f"{len(units)} {name} units"
        yield at_most(error, 1e-3, f"{case}, t_j in the value of the next layer", "error of a mean")
        left = float(at_queries[~is_example].abs())
        yield printed(left, 1e-3, f"{case}, shifted by R_2 = {reach:g}", "|g| at a query")
