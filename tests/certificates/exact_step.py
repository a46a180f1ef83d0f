"""One exact training step in real numbers: an independent computation by balls (Arb).

Every number is a ball that holds the real one; floats are taken as they are. A step function at a
ball that holds its jump returns a ball with both levels, so that nothing is decided by rounding.
"""

from collections.abc import Callable, Sequence

import torch
from flint import arb, ctx

import icgd
from icgd.problems.kernel_machine import KernelHead

PRECISION = 320
"""Bits of a ball. Products and sums of moderate floats are exact; others are rounded outwards."""

Row = list[arb]
Matrix = list[Row]
Scalar = Callable[[arb], arb]


def _both(first: arb, second: arb) -> arb:
    return first.union(second)


def _at_jump(z: arb, knot: float, below: arb, above: arb) -> arb:
    """`below` up to the knot itself, `above` beyond it."""
    if z <= knot:
        return below
    return above if z > knot else _both(below, above)


def _sigmoid(z: arb) -> arb:
    return 1 / (1 + (-z).exp())


def _normal(z: arb) -> arb:
    return (-z / arb(2).sqrt()).erfc() / 2


def _density(z: arb) -> arb:
    return (-z * z / 2).exp() / (2 * arb.pi()).sqrt()


def _softplus(z: arb) -> arb:
    return z.exp().log1p() if z < 0 else z + (-z).exp().log1p()


LEAK = arb(0.01)

ACTIVATIONS: dict[str, tuple[Scalar, Scalar]] = {
    "identity": (lambda z: z, lambda z: arb(1)),
    "relu": (lambda z: _at_jump(z, 0, arb(0), z), lambda z: _at_jump(z, 0, arb(0), arb(1))),
    "leaky_relu": (lambda z: _at_jump(z, 0, LEAK * z, z), lambda z: _at_jump(z, 0, LEAK, arb(1))),
    "tanh": (lambda z: z.tanh(), lambda z: 1 / z.cosh() ** 2),
    "sigmoid": (_sigmoid, lambda z: _sigmoid(z) * _sigmoid(-z)),
    "softplus": (_softplus, _sigmoid),
    "gelu": (lambda z: z * _normal(z), lambda z: _normal(z) + z * _density(z)),
    "silu": (
        lambda z: z * _sigmoid(z),
        lambda z: _sigmoid(z) * (1 + z * _sigmoid(-z)),
    ),
}

LOSS_SLOPES: dict[str, Callable[[arb, arb], arb]] = {
    "squared": lambda p, y: 2 * (p - y),
    "huber": lambda p, y: _clip(p - y, arb(1)),
    "logistic": lambda p, y: _sigmoid(p) - y,
}

MEANS: dict[str, Scalar] = {
    "identity": lambda z: z,
    "logistic": _sigmoid,
    "probit": _normal,
    "poisson": lambda z: z.exp(),
    "softplus": _softplus,
    "cauchit": lambda z: z.atan() / arb.pi() + arb(1) / 2,
    "cloglog": lambda z: 1 - (-z.exp()).exp(),
    "tanh": lambda z: z.tanh(),
}


def _clip(z: arb, bound: arb) -> arb:
    return (-bound).max(z.min(bound))


def _balls(matrix: torch.Tensor) -> Matrix:
    return [[arb(number) for number in row] for row in matrix.double().tolist()]


def _product(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right, strict=True))
    return [[_dot(row, column) for column in columns] for row in left]


def _dot(left: Sequence[arb], right: Sequence[arb]) -> arb:
    return sum((a * b for a, b in zip(left, right, strict=True)), arb(0))


def _transposed(matrix: Matrix) -> Matrix:
    return [list(row) for row in zip(*matrix, strict=True)]


def network_step(
    problem: icgd.Problem,
    weights: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    rates: torch.Tensor | None = None,
) -> Row:
    """clip(w - step_size * grad L(w)) for one task, all examples taken."""
    ctx.prec = PRECISION
    target, update = problem.network, problem.gradient_step
    matrices = [_balls(matrix) for matrix in target.matrices(weights)]
    activations = [
        ACTIVATIONS[target.layer_activation(layer).name] for layer in range(1, target.depth + 1)
    ]
    outputs, arguments, scales = [_balls(x)], [], {}
    for layer, (matrix, (value, _)) in enumerate(zip(matrices, activations, strict=True), start=1):
        inputs = _with_constant(outputs[-1]) if target.biases else outputs[-1]
        argument = _product(inputs, _transposed(matrix))
        if layer in target.norms:
            centred = [_centred(row) for row in argument]
            eps = arb(target.norm_eps)
            scales[layer] = [1 / (_dot(row, row) / len(row) + eps).sqrt() for row in centred]
            pairs = zip(scales[layer], centred, strict=True)
            argument = [[scale * z for z in row] for scale, row in pairs]
        arguments.append(argument)
        parts = [[[value(z) for z in row] for row in argument]]
        outputs.append(_sum(parts + [outputs[source] for source in target.sources(layer)]))
    slope, labels = LOSS_SLOPES[problem.loss], _balls(y)
    back = [
        [slope(*pair) for pair in zip(*rows, strict=True)]
        for rows in zip(outputs[-1], labels, strict=True)
    ]
    if rates is not None:
        weighted = zip(rates.double().tolist(), back, strict=True)
        back = [[arb(rate) * b for b in row] for rate, row in weighted]
    pulled_back = {target.depth: [back]}
    blocks: list[Row] = []
    for number in reversed(range(len(matrices))):
        derivative, below = activations[number][1], outputs[number]
        back = _sum(pulled_back[number + 1])
        delta = [
            [derivative(z) * b for z, b in zip(*rows, strict=True)]
            for rows in zip(arguments[number], back, strict=True)
        ]
        if number + 1 in scales:
            tokens = zip(scales[number + 1], arguments[number], delta, strict=True)
            delta = [_through_norm(*token) for token in tokens]
        inputs = _with_constant(below) if target.biases else below
        gradient = _product(_transposed(delta), inputs)
        blocks.insert(0, [entry / (2 * len(x)) for row in gradient for entry in row])
        passed_on = _product(delta, [row[: len(below[0])] for row in matrices[number]])
        pulled_back.setdefault(number, []).append(passed_on)
        for source in target.sources(number + 1):
            pulled_back.setdefault(source, []).append(back)
    gradient = [entry for block in blocks for entry in block]
    size, box = arb(update.step_size), arb(update.box)
    before = (arb(number) for number in weights.double().tolist())
    return [_clip(w - size * g, box) for w, g in zip(before, gradient, strict=True)]


def _sum(matrices: Sequence[Matrix]) -> Matrix:
    return [
        [sum(entries, arb(0)) for entries in zip(*rows, strict=True)]
        for rows in zip(*matrices, strict=True)
    ]


def _centred(row: Row) -> Row:
    mean = sum(row, arb(0)) / len(row)
    return [z - mean for z in row]


def _through_norm(scale: arb, normed: Row, slopes: Row) -> Row:
    """The transposed Jacobian scale (I - 1 1^T / k - h h^T / k), column by column."""
    width = len(normed)
    after = []
    for column in range(width):
        entries = [
            scale * (int(row == column) - arb(1) / width - normed[row] * normed[column] / width)
            for row in range(width)
        ]
        after.append(_dot(entries, slopes))
    return after


def _with_constant(rows: Matrix) -> Matrix:
    return [[*row, arb(1)] for row in rows]


def linear_step(
    problem: icgd.Problem, weights: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> Row:
    """clip(S(w - step_size * (grad L(w) + l2 w))) for one task."""
    ctx.prec = PRECISION
    model, update = problem.model, problem.proximal_step
    inputs = _balls(x)
    design = _with_constant(inputs) if model.intercept else inputs
    before = [arb(number) for number in weights.double().tolist()]
    means = [MEANS[model.link](_dot(row, before)) for row in design]
    left = [mean - label for mean, (label,) in zip(means, _balls(y), strict=True)]
    share = arb(1) / len(x) if model.reduction == "mean" else arb(1)
    size, after = arb(update.step_size), []
    for number, (w, column) in enumerate(zip(before, _transposed(design), strict=True)):
        is_penalised = number < model.input_width
        l2, l1 = (arb(part) if is_penalised else arb(0) for part in (update.l2, update.l1))
        moved = w - size * (share * _dot(column, left) + l2 * w)
        moved = moved - _clip(moved, size * l1)
        after.append(moved if update.box is None else _clip(moved, arb(update.box)))
    return after


def kernel_step(
    problem: icgd.Problem, values: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> Row:
    """f + step_size * (K + noise I) (y - f) at the examples, for the first step of one task."""
    ctx.prec = PRECISION
    machine, update, points = problem.machine, problem.functional_step, _balls(x)
    kernel = [[arb(0)] * len(x) for _ in x]
    for head in machine.heads:
        part = _kernel(head, points)
        kernel = [
            [a + b for a, b in zip(*rows, strict=True)] for rows in zip(kernel, part, strict=True)
        ]
    for number in range(len(x)):
        kernel[number][number] += arb(update.noise)
    before = _balls(values.unflatten(-1, y.shape))
    left = [
        [a - b for a, b in zip(*rows, strict=True)] for rows in zip(_balls(y), before, strict=True)
    ]
    size, added = arb(update.size_of(0)), _product(kernel, left)
    pairs = zip(before, added, strict=True)
    return [b + size * a for rows in pairs for b, a in zip(*rows, strict=True)]


def _kernel(head: KernelHead, points: Matrix) -> Matrix:
    if head.transform is not None:
        matrix = _balls(torch.tensor(head.transform, dtype=torch.float64))
        points = _product(points, _transposed(matrix))
    weight = arb(head.weight)
    if head.kernel == "softmax":
        rows = [[_dot(u, w).exp() for w in points] for u in points]
        return [[weight * entry / sum(row, arb(0)) for entry in row] for row in rows]
    return [[weight * _of_pair(head, u, w) for w in points] for u in points]


def _of_pair(head: KernelHead, u: Row, w: Row) -> arb:
    product = _dot(u, w)
    differences = [a - b for a, b in zip(u, w, strict=True)]
    square = _dot(differences, differences)
    match head.kernel:
        case "linear":
            return product
        case "relu":
            return product.max(arb(0))
        case "exp":
            return product.exp()
        case "polynomial":
            return (1 + product) ** int(head.shape or 2)
        case "rbf":
            return (-square / 2).exp()
        case "laplace":
            return (-sum((abs(part) for part in differences), arb(0))).exp()
        case "matern":
            return _matern(head.shape or 1.5, square.nonnegative_part().sqrt())
    raise NotImplementedError(head.kernel)


def _matern(nu: float, distance: arb) -> arb:
    s = arb(2 * nu).sqrt() * distance
    factor = {0.5: arb(1), 1.5: 1 + s, 2.5: 1 + s + s * s / 3}[nu]
    return factor * (-s).exp()


def least_distance(found: torch.Tensor, exact: Row) -> float:
    """The largest distance of a number that was found from the exact one, at the very least."""
    pairs = zip(found.double().tolist(), exact, strict=True)
    return max(float((arb(number) - ball).abs_lower()) for number, ball in pairs)
