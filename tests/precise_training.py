"""Training in 60 digits, from the textbooks: what balls must enclose, and what runs come close to.

It reads the settings of a problem and nothing else of icgd: no rule, no gradient, no kernel. The
gradient follows by the chain rule from the loss, one operation after the other, and optimisers are
those of torch's documentation. Arithmetic is mpmath's.

Coefficients such as 1 - beta_1^t are numbers of float64 in icgd as in torch, and then factors of
exact numbers. With `coefficients=float` they are rounded here as well, so that results can be
compared to all digits; with `coefficients=real` formulas are those of the textbook in real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, NamedTuple

from mpmath.ctx_mp import MPContext

import icgd
from icgd.problems.data import Task

mp = MPContext()
mp.dps = 60
real = mp.mpf
ERROR = real(1e-45)  # what 60 digits may lose in some hundred steps
Number = Any  # of mpmath
Row = list[Number]


class Training(NamedTuple):
    """All numbers after each step, and the predictions at the queries after the last one."""

    steps: list[Row]
    predictions: Row


def distance(exact: Row, numbers: Sequence[float]) -> Number:
    """The largest distance of a number from the exact one."""
    return max(abs(value - real(number)) for value, number in zip(exact, numbers, strict=True))


def is_inside(value: Number, ball: Any) -> bool:
    """Whether a ball of Arb holds the value, as far as 60 digits say."""
    mantissa, exponent = ball.mid().man_exp()
    middle = mp.ldexp(real(int(mantissa)), int(exponent))
    return bool(abs(middle - value) <= real(float(ball.rad())) + ERROR * (1 + abs(value)))


def train(
    problem: icgd.Problem, task: Task, n_steps: int, coefficients: Callable[..., Any] = float
) -> Training:
    """Train one task exactly, as the update of its problem says."""
    kind = {
        icgd.MLP: NetworkTraining,
        icgd.LinearModel: LinearTraining,
        icgd.KernelMachine: KernelTraining,
    }[type(problem.target)](problem, task, coefficients)
    steps = list(islice(kind.steps(), n_steps))
    return Training(steps, kind.predictions(steps[-1]))


def rows_of(tensor: Any) -> list[Row]:
    return [[real(entry) for entry in row] for row in tensor.double().tolist()]


def at_step(setting: Any, step: int) -> Any:
    """A setting that is one for all steps, or has an entry for each."""
    return setting[step] if isinstance(setting, tuple) else setting


def clipped(value: Number, box: float | None) -> Number:
    return value if box is None else max(-real(box), min(real(box), value))


def product(left: Row, right: Row) -> Number:
    return mp.fdot(zip(left, right, strict=True))


# Functions of one number: the value and the slope. At a kink the slope is that from the left.


def sigmoid(z: Number) -> Number:
    return 1 / (1 + mp.exp(-z))


def kinked(leak: float, z: Number) -> tuple[Number, Number]:
    return (z, real(1)) if z > 0 else (real(leak) * z, real(leak))


ACTIVATIONS: dict[str, Callable[[Number], tuple[Number, Number]]] = {
    "identity": lambda z: (z, real(1)),
    "relu": lambda z: kinked(0.0, z),
    "leaky_relu": lambda z: kinked(0.01, z),
    "tanh": lambda z: (mp.tanh(z), mp.sech(z) ** 2),
    "sigmoid": lambda z: (sigmoid(z), sigmoid(z) * sigmoid(-z)),
    "silu": lambda z: (z * sigmoid(z), sigmoid(z) * (1 + z * sigmoid(-z))),
    "gelu": lambda z: (z * mp.ncdf(z), mp.ncdf(z) + z * mp.npdf(z)),
    "softplus": lambda z: (mp.log1p(mp.exp(z)), sigmoid(z)),
}

MEANS: dict[str, Callable[[Number], Number]] = {
    "identity": lambda z: z,
    "logistic": sigmoid,
    "probit": mp.ncdf,
    "poisson": mp.exp,
    "softplus": lambda z: mp.log1p(mp.exp(z)),
    "cauchit": lambda z: mp.atan(z) / mp.pi + real(1) / 2,
    "cloglog": lambda z: -mp.expm1(-mp.exp(z)),
    "tanh": mp.tanh,
}


# Networks


class Node:
    """A number that knows what it was computed from: nodes, and its slope in each of them."""

    def __init__(self, tape: list[Node], value: Number, *parents: tuple[Node, Number]) -> None:
        self.tape, self.value, self.parents, self.slope = tape, value, parents, real(0)
        tape.append(self)

    def then(self, function: Callable[[Number], tuple[Number, Number]]) -> Node:
        value, slope = function(self.value)
        return Node(self.tape, value, (self, slope))

    def __add__(self, other: Node) -> Node:
        return Node(self.tape, self.value + other.value, (self, real(1)), (other, real(1)))

    def __mul__(self, other: Node) -> Node:
        return Node(self.tape, self.value * other.value, (self, other.value), (other, self.value))

    def times(self, factor: Number) -> Node:
        return Node(self.tape, factor * self.value, (self, factor))


def sum_of(nodes: Sequence[Node]) -> Node:
    value = mp.fsum(node.value for node in nodes)
    return Node(nodes[0].tape, value, *((node, real(1)) for node in nodes))


def dot(left: Sequence[Node], right: Sequence[Node]) -> Node:
    pairs = list(zip(left, right, strict=True))
    value = mp.fdot((a.value, b.value) for a, b in pairs)
    slopes = [(a, b.value) for a, b in pairs] + [(b, a.value) for a, b in pairs]
    return Node(left[0].tape, value, *slopes)


def differentiate(top: Node) -> None:
    """Write the slope of `top` in every node before it."""
    top.slope = real(1)
    for node in reversed(top.tape):
        for parent, slope in node.parents:
            parent.slope += slope * node.slope


def normalised(row: list[Node], eps: float) -> list[Node]:
    """(z - mean z) / sqrt(var z + eps)."""
    share = real(1) / len(row)
    middle = sum_of(row).times(-share)
    centred = [z + middle for z in row]
    variance = dot(centred, centred).times(share)
    root = variance.then(lambda v: ((v + real(eps)) ** -0.5, -((v + real(eps)) ** -1.5) / 2))
    return [z * root for z in centred]


def smooth_l1(gap: Number, beta: Number) -> tuple[Number, Number]:
    if abs(gap) < beta:
        return gap**2 / (2 * beta), gap / beta
    return abs(gap) - beta / 2, mp.sign(gap)


LOSSES: dict[str, Callable[[Number, Number], tuple[Number, Number]]] = {
    "squared": lambda p, y: ((p - y) ** 2, 2 * (p - y)),
    "logistic": lambda p, y: (mp.log1p(mp.exp(p)) - y * p, sigmoid(p) - y),
    "huber": lambda p, y: smooth_l1(p - y, real(1)),
    "log_cosh": lambda p, y: (mp.log(mp.cosh(p - y)), mp.tanh(p - y)),
    "poisson": lambda p, y: (mp.exp(p) - y * p, mp.exp(p) - y),
    "l1": lambda p, y: (abs(p - y), mp.sign(p - y)),
    "-y*sigmoid(-y*t) on -64 to 64": lambda p, y: (
        mp.log1p(mp.exp(-y * p)),
        -y * sigmoid(-y * p),
    ),
    "3*tanh(t - 2*y) + abs(t) on -64 to 64": lambda p, y: (
        3 * mp.log(mp.cosh(p - 2 * y)) + p * abs(p) / 2,
        3 * mp.tanh(p - 2 * y) + abs(p),
    ),
}


def loss_of(name: str, outputs: list[Node], labels: Row) -> Node:
    """The loss of one example: cross_entropy is log sum exp p - <y, p>, all others are sums."""
    pairs = list(zip(outputs, labels, strict=True))
    if name == "cross_entropy":
        powers = [p.then(lambda z: (mp.exp(z), mp.exp(z))) for p in outputs]
        top = sum_of(powers).then(lambda z: (mp.log(z), 1 / z))
        return sum_of([top, *(p.times(-y) for p, y in pairs)])
    of_pair = LOSSES.get(name)
    if of_pair is None:
        beta = real(float(name.removeprefix("smooth_l1_")))
        return sum_of([p.then(lambda z, y=y: smooth_l1(z - y, beta)) for p, y in pairs])
    return sum_of([p.then(lambda z, y=y: of_pair(z, y)) for p, y in pairs])


class NetworkTraining:
    """Steps of an optimiser on (1 / 2b) sum_i rate_i * loss(p_i, y_i) over a batch of b."""

    def __init__(self, problem: icgd.Problem, task: Task, coefficients: Callable[..., Any]) -> None:
        self.target, self.update, self.loss = problem.target, problem.update, problem.loss
        self.x, self.y, self.queries = map(rows_of, (task.x, task.y, task.queries))
        self.rates = None if task.rates is None else [row[0] for row in rows_of(task.rates)]
        self.numbers = [real(entry) for entry in task.initial.double().tolist()]
        self.kind = coefficients
        options = {name: dict(of_group) for name, of_group in self.update.groups}
        self.updates = [
            replace(self.update, groups=(), **options.get(name, {})) for name in self.names()
        ]

    def names(self) -> Iterator[str]:
        """The name of every weight: a bias is the last one of its row."""
        widths = self.target.widths
        for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            for _ in range(outputs):
                yield from [f"weights_{layer}"] * inputs
                yield from [f"bias_{layer}"] * self.target.biases

    def forward(self, tape: list[Node], weights: list[Node], x: Row) -> list[Node]:
        """The outputs of the last layer at one point."""
        target, entries = self.target, iter(weights)
        layers = [[Node(tape, entry) for entry in x]]
        for layer, width in enumerate(target.widths[1:], 1):
            inputs = layers[-1] + ([Node(tape, real(1))] if target.biases else [])
            row = [dot(list(islice(entries, len(inputs))), inputs) for _ in range(width)]
            if layer in target.norms:
                row = normalised(row, target.norm_eps)
            is_last = layer == target.depth
            name = target.output_activation if is_last else target.activation
            row = [z.then(ACTIVATIONS[name]) for z in row]
            for first, last in target.shortcuts:
                if last == layer:
                    row = [a + b for a, b in zip(row, layers[first], strict=True)]
            layers.append(row)
        return layers[-1]

    def gradient(self, weights: Row, step: int) -> Row:
        n, tape, losses = len(self.x), list[Node](), []
        nodes = [Node(tape, weight) for weight in weights]
        batch = self.update.batch_size or n
        for place in (number % n for number in range(step * batch, (step + 1) * batch)):
            loss = loss_of(self.loss, self.forward(tape, nodes, self.x[place]), self.y[place])
            losses.append(loss if self.rates is None else loss.times(self.rates[place]))
        differentiate(sum_of(losses).times(real(1) / (2 * batch)))
        scale = real(getattr(self.update, "gradient_scale", 1.0))
        return [scale * node.slope for node in nodes]

    def steps(self) -> Iterator[Row]:
        """Weights, what the optimiser remembers, and the average of the weights if there is one."""
        update, n = self.update, self.target.n_parameters
        weights, *state = (self.numbers[at : at + n] for at in range(0, len(self.numbers), n))
        average = None if update.average is None else state.pop()
        step = 0
        while True:
            gradient = self.gradient(weights, step)
            columns = zip(self.updates, weights, gradient, *state, strict=True)
            moved = [self.moved(step, *entries) for entries in columns]
            weights, *state = (list(column) for column in zip(*moved, strict=True))
            weights = [clipped(weight, update.box) for weight in weights]
            if average is not None:
                kept = real(update.average if step else 0.0)
                average = [kept * a + (1 - kept) * w for a, w in zip(average, weights, strict=True)]
            yield [entry for part in (weights, *state, average or []) for entry in part]
            step += 1

    def moved(
        self, step: int, update: Any, w: Number, g: Number, *state: Number
    ) -> tuple[Number, ...]:
        """One weight and its state after a step: SGD, Adam, AdamW and RMSprop of torch."""
        t, number = step + 1, self.kind
        size = number(at_step(update.step_size, step))
        if isinstance(update, icgd.GradientStep):
            return (w - size * g,)
        decay = number(update.weight_decay)
        if not getattr(update, "decoupled", False):
            g = g + decay * w
        if isinstance(update, icgd.MomentumStep):
            if not state:
                return (w - size * g,)
            momentum = number(update.momentum)
            fresh = 1 - number(update.dampening) if step else number(1)
            m = momentum * state[0] + fresh * g
            return (w - size * g - (size * momentum) * m if update.nesterov else w - size * m), m
        eps = real(update.eps)
        if isinstance(update, icgd.RmspropStep):
            alpha = number(update.alpha)
            v = alpha * state[0] + (1 - alpha) * g**2
            return w - size * g / (mp.sqrt(v) + eps), v
        first, second = map(number, update.betas)
        m = first * state[0] + (1 - first) * g
        v = second * state[1] + (1 - second) * g**2
        rest = 1 - second**t  # v / rest, with the coefficients that a rule has
        spread = (second / rest) * state[1] + ((1 - second) / rest) * g**2
        if update.decoupled:
            w = (1 - size * decay) * w
        return w - (size / (1 - first**t)) * m / (mp.sqrt(spread) + eps), m, v

    def predictions(self, numbers: Row) -> Row:
        n = self.target.n_parameters
        own = numbers[:n] if self.update.average is None else numbers[-n:]
        weights, rows = [Node([], weight) for weight in own], self.queries
        return [node.value for x in rows for node in self.forward([], weights, x)]


# Linear models


class LinearTraining:
    """Proximal gradient steps, from w + m (w - w_before) with momentum m."""

    def __init__(self, problem: icgd.Problem, task: Task, coefficients: Callable[..., Any]) -> None:
        self.model, self.update = problem.target, problem.update
        one = [real(1)] if self.model.intercept else []
        self.x, self.queries = ([row + one for row in rows_of(t)] for t in (task.x, task.queries))
        self.y = [row[0] for row in rows_of(task.y)]
        self.start = [real(entry) for entry in task.initial.double().tolist()]
        self.mean = MEANS[self.model.link]

    def steps(self) -> Iterator[Row]:
        update, size, step = self.update, real(self.update.step_size), 0
        before = now = self.start
        while True:
            share = real(at_step(update.momentum, step) or 0.0)
            ahead = [w + share * (w - b) for w, b in zip(now, before, strict=True)]
            point = ahead if update.nesterov else now
            left = [self.mean(product(x, point)) - y for x, y in zip(self.x, self.y, strict=True)]
            scale = real(1) / len(self.x) if self.model.reduction == "mean" else real(1)
            after = []
            for place, (start, at) in enumerate(zip(ahead, point, strict=True)):
                is_penalised = place < self.model.input_width
                l2, l1 = (update.l2, update.l1) if is_penalised else (0.0, 0.0)
                slope = scale * product(left, [x[place] for x in self.x]) + real(l2) * at
                w, threshold = start - size * slope, size * real(l1)
                w = mp.sign(w) * max(abs(w) - threshold, real(0))
                after.append(clipped(w, update.box))
            before, now, step = now, after, step + 1
            yield now

    def predictions(self, numbers: Row) -> Row:
        return [self.mean(product(x, numbers)) for x in self.queries]


# Kernel machines


def kernel(head: icgd.KernelHead, u: Row, w: Row) -> Number:
    gaps = [a - b for a, b in zip(u, w, strict=True)]
    length = mp.sqrt(product(gaps, gaps))
    match head.kernel:
        case "linear":
            return product(u, w)
        case "relu":
            return max(product(u, w), real(0))
        case "exp" | "softmax":  # those of softmax are divided by their sum
            return mp.exp(product(u, w))
        case "polynomial":
            return (1 + product(u, w)) ** int(head.shape or 2)
        case "rbf":
            return mp.exp(-(length**2) / 2)
        case "laplace":
            return mp.exp(-mp.fsum(map(abs, gaps)))
        case "matern":
            shape = real(head.shape or 1.5)
            s = mp.sqrt(2 * shape) * length
            factor = {0.5: real(1), 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[float(shape)]
            return factor * mp.exp(-s)
    raise NotImplementedError(head.kernel)


def mapped(matrix: Any, point: Row) -> Row:
    if matrix is None:
        return point
    return [product([real(entry) for entry in row], point) for row in matrix]


class KernelTraining:
    """f <- f + step_size * sum_i K(., x_i) (y_i - f(x_i)), from 0, with momentum and noise."""

    def __init__(self, problem: icgd.Problem, task: Task, coefficients: Callable[..., Any]) -> None:
        self.machine, self.update = problem.target, problem.update
        self.points, self.y = rows_of(task.x) + rows_of(task.queries), rows_of(task.y)
        self.n = len(self.y)

    def matrix(self, step: int) -> list[Row]:
        """The kernel of all points and all examples, without the noise."""
        heads = self.update.heads[step] if self.update.heads else self.machine.heads
        found = [[real(0)] * self.n for _ in self.points]
        for head in heads:
            of_keys = head.transform if head.key_transform is None else head.key_transform
            keys = [mapped(of_keys, point) for point in self.points[: self.n]]
            for row, point in zip(found, self.points, strict=True):
                values = [kernel(head, mapped(head.transform, point), key) for key in keys]
                total = mp.fsum(values) if head.kernel == "softmax" else real(1)
                for place, value in enumerate(values):
                    row[place] += real(head.weight) * value / total
        return found

    def steps(self) -> Iterator[Row]:
        update, width = self.update, len(self.y[0])
        now = before = [[real(0)] * width for _ in self.points]
        step = 0
        while True:
            rows, share = self.matrix(step), real(at_step(update.momentum, step) or 0.0)
            ahead = [
                [a + share * (a - b) for a, b in zip(*pair, strict=True)]
                for pair in zip(now, before, strict=True)
            ]
            at = ahead if update.nesterov else now
            left = [
                [y - f for y, f in zip(*pair, strict=True)]
                for pair in zip(self.y, at, strict=False)
            ]
            size, after = real(at_step(update.step_size, step)), []
            for place, start in enumerate(ahead):
                moved = []
                for column in range(width):
                    errors = [row[column] for row in left]
                    own = real(update.noise) * errors[place] if place < self.n else real(0)
                    moved.append(start[column] + size * (product(rows[place], errors) + own))
                after.append(moved)
            self.move(rows, step)
            before, now, step = now, after, step + 1
            yield [value for row in now for value in row]

    def move(self, rows: list[Row], step: int) -> None:
        """x <- x + A sum_j K(x, x_j) x_j."""
        if not self.update.transforms:
            return
        examples, width = self.points[: self.n], len(self.points[0])
        matrix = self.update.transform_of(step, width)
        pulls = [
            [product(row, [x[place] for x in examples]) for place in range(width)] for row in rows
        ]
        self.points = [
            [a + b for a, b in zip(point, mapped(matrix, pull), strict=True)]
            for point, pull in zip(self.points, pulls, strict=True)
        ]

    def predictions(self, numbers: Row) -> Row:
        return numbers[self.n * len(self.y[0]) :]
