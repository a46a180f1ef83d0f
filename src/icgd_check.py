"""icgd-check: accept or refuse a certificate of a training run, without trusting who wrote it.

Balls of rigorous radius (Arb) enclose exact descent in real numbers, and are compared with the
numbers that a transformer computed. docs/certificates.md describes the format.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

try:
    from flint import arb, arb_mat, ctx
except ImportError:
    raise SystemExit("icgd-check needs python-flint: pip install python-flint") from None

VERSION, MOST_BITS, ZERO, ONE, FLAGS = 1, 2**16, arb(0), arb(1), {False: 0, True: 1}
MOST_MEMORY, FORMS = 2**33, {"float64": "d", "float32": "f"}  # bits of the largest matrix
ROWS, DEGREES = ("x", "y", "queries"), {float(degree): degree for degree in range(1, 33)}
CLAIM = "After each of {} steps every number of the run lies within its stated distance of exact"
CLAIM += " descent on the same data from the same start; at the end, within {}."
NAMES = "sha256 version claim transformer file_sha256 data_sha256 problem data bits distances steps"
Row = list[arb]
Data = dict[str, Any]
zipped = partial(zip, strict=True)


class RefusedError(Exception):
    """Why a certificate is not accepted, in one sentence."""


def kinked(leak: arb, z: arb) -> tuple[arb, arb]:  # a ball that holds the kink keeps both sides
    return z.max(leak * z), ONE if z > 0 else leak if z <= 0 else leak.union(ONE)


LINKS: dict[str, Callable[[arb], arb]] = {
    "identity": lambda z: z,
    "logistic": lambda z: (1 + (z / 2).tanh()) / 2,
    "probit": lambda z: (-z / arb(2).sqrt()).erfc() / 2,
    "poisson": lambda z: z.exp(),
    "softplus": lambda z: z.exp().log1p(),
}
sigmoid, normal = LINKS["logistic"], LINKS["probit"]
ACTIVATIONS: dict[str, Callable[[arb], tuple[arb, arb]]] = {
    "identity": lambda z: (z, ONE),
    "relu": partial(kinked, ZERO),
    "leaky_relu": partial(kinked, arb(0.01)),
    "tanh": lambda z: (t := z.tanh(), 1 - t * t),
    "sigmoid": lambda z: (s := sigmoid(z), s * (1 - s)),
    "silu": lambda z: (z * (s := sigmoid(z)), s + z * s * (1 - s)),
    "gelu": lambda z: (z * (p := normal(z)), p + z * (-z * z / 2).exp() / (2 * arb.pi()).sqrt()),
    "softplus": lambda z: (z.exp().log1p(), sigmoid(z)),
}


def softmax(row: Row) -> Row:
    powers = [(z - top).exp() for top in [max(row)] for z in row]
    total = sum(powers, ZERO)
    return [power / total for power in powers]


def clip(bound: arb | None, z: arb) -> arb:
    return z if bound is None else z.min(bound).max(-bound)


LOSS_SLOPES: dict[str, Callable[[Row, Row], Row]] = {
    "squared": lambda p, y: [2 * (a - b) for a, b in zipped(p, y)],
    "huber": lambda p, y: [clip(ONE, a - b) for a, b in zipped(p, y)],
    "logistic": lambda p, y: [sigmoid(a) - b for a, b in zipped(p, y)],
    "cross_entropy": lambda p, y: [sum(y, ZERO) * a - b for a, b in zipped(softmax(p), y)],
}


class Network:
    """w <- clip(w - step_size * gradient, -box, box), risk (1 / 2n) sum_i loss(p_i, y_i)."""

    def __init__(self, x: list[Row], y: list[Row], queries: list[Row], of: Data) -> None:
        widths, self.x, self.y = [count(width) for width in of["widths"]], x, y
        self.bias = [ONE] * FLAGS[of["biases"]]
        self.shapes = [(high, wide + len(self.bias)) for wide, high in pairwise(widths)]
        names = [of["activation"]] * (len(widths) - 2) + [of["output_activation"]]
        self.functions, self.slope = [ACTIVATIONS[n] for n in names], LOSS_SLOPES[of["loss"]]
        self.step_size, self.box = number(of["step_size"]), number(of["box"])
        self.batch = len(x) if of["batch_size"] is None else count(of["batch_size"])
        require(self.batch <= len(x), "a batch has more examples than there are")
        require((len(x[0]), len(y[0])) == (widths[0], widths[-1]), "its data do not fit its widths")
        self.n_numbers = sum(high * wide for high, wide in self.shapes)

    def step(self, weights: Row, number: int) -> Row:
        rows = [(number * self.batch + place) % len(self.x) for place in range(self.batch)]
        matrices, inputs, slopes = list[arb_mat](), list[arb_mat](), list[Row]()
        outputs = [self.x[row] for row in rows]
        for (high, wide), function in zipped(self.shapes, self.functions):
            start = sum(matrix.nrows() * matrix.ncols() for matrix in matrices)
            matrices.append(arb_mat(high, wide, weights[start : start + high * wide]))
            inputs.append(arb_mat([row + self.bias for row in outputs]))
            z = inputs[-1] * matrices[-1].transpose()
            pairs = [[function(entry) for entry in row] for row in z.tolist()]
            outputs = [[value for value, _ in row] for row in pairs]
            slopes.append([slope for row in pairs for _, slope in row])
        back = [slope for p, row in zipped(outputs, rows) for slope in self.slope(p, self.y[row])]
        gradient: Row = []
        for matrix, below, slope in list(zipped(matrices, inputs, slopes))[::-1]:
            delta = arb_mat(self.batch, matrix.nrows(), [a * b for a, b in zipped(slope, back)])
            gradient = (delta.transpose() * below).entries() + gradient
            pulled = (delta * matrix).tolist()
            back = [entry for row in pulled for entry in row[: len(row) - len(self.bias)]]
        share = self.step_size / (2 * self.batch)
        return [clip(self.box, w - share * g) for w, g in zipped(weights, gradient)]


class Linear:
    """w <- clip(S(w - step_size * (gradient + l2 * w))), S the soft threshold by step_size * l1."""

    def __init__(self, x: list[Row], y: list[Row], queries: list[Row], of: Data) -> None:
        one = [ONE] * FLAGS[of["intercept"]]  # no penalty applies to its coefficient
        self.x, self.y = arb_mat([row + one for row in x]), arb_mat(y)
        self.mean, self.n_numbers = LINKS[of["link"]], len(x[0]) + len(one)
        self.share = {"mean": ONE / len(x), "sum": ONE}[of["reduction"]]
        self.size, l1 = number(of["step_size"]), number(of["l1"])
        self.l2 = [number(of["l2"])] * len(x[0]) + [ZERO] * len(one)
        self.thresholds = [self.size * l1] * len(x[0]) + [ZERO] * len(one)
        self.box = None if of["box"] is None else number(of["box"])
        require(len(y[0]) == 1 and l1 >= 0, "its labels or its l1 are wrong")

    def step(self, weights: Row, number: int) -> Row:
        z = self.x * arb_mat(self.n_numbers, 1, weights)
        means = arb_mat(z.nrows(), 1, [self.mean(score) for score in z.entries()])
        slopes = (self.x.transpose() * (means - self.y) * self.share).entries()
        moved = [w - self.size * (g + l2 * w) for w, g, l2 in zipped(weights, slopes, self.l2)]
        pairs = [(v - by, -v - by) for v, by in zipped(moved, self.thresholds)]
        return [clip(self.box, above.max(ZERO) - below.max(ZERO)) for above, below in pairs]


def compared(u: Row, w: Row) -> tuple[arb, arb, Row]:
    gaps = [a - b for a, b in zipped(u, w)]
    return sum(map(arb.__mul__, u, w), ZERO), sum(map(arb.__mul__, gaps, gaps), ZERO), gaps


def matern(inner: arb, square: arb, gaps: Row, shape: float) -> arb:
    z = 2 * arb(shape) * square
    s = z.sqrt() if z >= 0 else ZERO.union(z.upper().sqrt())
    return {0.5: ONE, 1.5: 1 + s, 2.5: 1 + s + s * s / 3}[shape] * (-s).exp()


KERNELS: dict[str, Callable[[arb, arb, Row, float], arb]] = {  # inner product, distance squared
    "linear": lambda inner, square, gaps, shape: inner,
    "relu": lambda inner, square, gaps, shape: inner.max(ZERO),
    "exp": lambda inner, square, gaps, shape: inner.exp(),
    "softmax": lambda inner, square, gaps, shape: inner,  # `head` takes the softmax of each row
    "polynomial": lambda inner, square, gaps, shape: (1 + inner) ** DEGREES[shape],
    "rbf": lambda inner, square, gaps, shape: (-square / 2).exp(),
    "laplace": lambda inner, square, gaps, shape: (-sum(map(abs, gaps), ZERO)).exp(),
    "matern": matern,
}


class Function:
    """f <- f + step_size * (K + noise I) (y - f), its values at all examples and queries."""

    def __init__(self, x: list[Row], y: list[Row], queries: list[Row], of: Data) -> None:
        self.heads, self.y, self.n = of["heads"], arb_mat(y), len(x)
        self.points, self.n_numbers = arb_mat(x + queries), (len(x) + len(queries)) * len(y[0])
        self.sizes, self.noise = [number(size) for size in of["step_sizes"]], number(of["noise"])
        self.moves = [arb_mat(rows_of(matrix)).transpose() for matrix in of["transforms"]]

    def head(self, kernel: str, transform: Any, weight: str, shape: str) -> arb_mat:
        rows = (self.points * arb_mat(rows_of(transform)).transpose()).tolist()
        of, form = KERNELS[kernel], float(number(shape))
        values = [[of(*compared(u, w), form) for w in rows[: self.n]] for u in rows]
        values = [softmax(row) for row in values] if kernel == "softmax" else values
        return arb_mat(values) * number(weight)

    def step(self, values: Row, step: int) -> Row:
        if self.moves or step == 0:
            self.kernel = sum(
                (self.head(**h) for h in self.heads), arb_mat(self.points.nrows(), self.n)
            )
        left = self.y - arb_mat(self.n, self.y.ncols(), values[: self.n * self.y.ncols()])
        learnt, own = (self.kernel * left).entries(), (left * self.noise).entries()
        own += [ZERO] * (len(learnt) - len(own))
        if self.moves:
            move = self.moves[step if len(self.moves) > 1 else 0]
            self.points += self.kernel * arb_mat(self.points.tolist()[: self.n]) * move
        return [v + self.sizes[step] * (a + b) for v, a, b in zipped(values, learnt, own)]


def require(condition: bool, what: str) -> None:
    if not condition:
        raise RefusedError(what)


def number(text: str) -> arb:
    value = float.fromhex(text)  # such as "0x1.8p+1", an exact binary fraction
    require(arb(value).is_finite() and value.hex() == text, "a number is not a finite double")
    return arb(value)


def count(value: int) -> int:
    require(type(value) is int and value > 0, "a count is not a positive whole number")
    return value


def rows_of(data: Any) -> list[Row]:
    rows = [[number(entry) for entry in row] for row in data]
    require(len({len(row) for row in rows}) <= 1, "a matrix has rows of different lengths")
    return rows


def once(pairs: list[tuple[str, Any]]) -> Data:
    require(len(dict(pairs)) == len(pairs), "a name occurs twice")
    return dict(pairs)


LAYERED = "widths activation output_activation biases loss step_size box batch_size"
KINDS: dict[str, tuple[Any, str]] = {
    "network": (Network, LAYERED),
    "linear": (Linear, "link intercept reduction step_size l2 l1 box"),
    "function": (Function, "heads step_sizes noise transforms"),
}


def enclosures(problem: Data, data: Data, n_steps: int, bits: int) -> Iterator[Row]:
    """What exact descent makes of the data after every step, as balls of `bits` bits."""
    with ctx.workprec(bits):
        (kind, fields), (x, y, queries) = KINDS[problem["kind"]], [rows_of(data[n]) for n in ROWS]
        known = {"kind", *fields.split(), "initial", *ROWS}
        require({*problem, *data} == known, "it has other fields than it should")
        moves = [head["transform"] for head in problem.get("heads", [])]
        wide = [len(x + move) for move in moves + problem.get("transforms", [])]
        balls = len(x + queries) * max(wide + problem.get("widths", [1]))
        require(balls * (bits + 1024) <= MOST_MEMORY, f"it needs {balls} balls at once, too many")
        positive = [problem.get("step_size"), problem.get("box"), *problem.get("step_sizes", [])]
        require(all(n is None or number(n) > 0 for n in positive), "a step or box is not positive")
        require(len(x) == len(y) > 0, "it has not as many labels as examples")
        trained, numbers = kind(x, y, queries, problem), [number(n) for n in data["initial"]]
        require(len(numbers) == trained.n_numbers > 0, "its start does not fit its problem")
        for step in range(n_steps):
            numbers = trained.step(numbers, step)
            yield numbers


def is_table(path: Path, data: Data, form: str) -> bool:
    lines = [line for line in csv.reader(path.read_text("utf-8-sig").splitlines()) if any(line)]
    start = 0 if lines[0][0].strip().lstrip("+-.")[:1].isdigit() else 1  # below the header
    read = [array(form, map(float, line)) for line in lines[start:]]
    rows = [[float.fromhex(entry) for entry in x + y] for x, y in zipped(data["x"], data["y"])]
    return sorted(zipped(*rows)) == sorted(zipped(*read))  # labels may stand in any column


def check(text: bytes) -> Data:
    """The certificate that `text` is, if all that it claims is true."""
    reals: Data = dict.fromkeys(("parse_float", "parse_constant"), number)  # reals are texts
    certificate: Data = json.loads(text, object_pairs_hook=once, **reals)
    require(count(certificate["version"]) == VERSION, f"this program reads version {VERSION} only")
    require({*certificate} == {*NAMES.split()}, "it has other fields than it should")
    unsealed = text.replace(certificate["sha256"].encode(), b"", 1)
    require(hashlib.sha256(unsealed).hexdigest() == certificate["sha256"], "its seal is broken")
    steps, allowed, bits = (certificate[name] for name in ("steps", "distances", "bits"))
    sentence = CLAIM.format(len(steps), float.fromhex(allowed[-1]))
    require(count(bits) <= MOST_BITS, f"it asks for more than {MOST_BITS} bits")
    require(certificate["claim"] == sentence, f"it claims more or less than this: {sentence}")
    exact = enclosures(certificate["problem"], certificate["data"], len(steps), bits)
    for step, (balls, given, limit) in enumerate(zipped(exact, steps, map(number, allowed)), 1):
        near = [(ball - number(entry)).abs_upper() <= limit for ball, entry in zipped(balls, given)]
        require(all(near), f"step {step} is not as close to exact descent as it claims")
    return certificate


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="icgd-check", description="Check a certificate of icgd.")
    parser.add_argument("certificate", type=Path, help="the certificate, a JSON file")
    for name in ("file", "data"):
        parser.add_argument(f"--{name}", type=Path, help=f"the {name} that it must be about")
    options = parser.parse_args(arguments)
    try:
        certificate = check(options.certificate.read_bytes())
        for name, path in (("file", options.file), ("data", options.data)):
            found = None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
            require(found in (None, certificate[f"{name}_sha256"]), f"{path} is another {name}")
        form = FORMS[certificate["transformer"]["dtype"]]
        require(path is None or is_table(path, certificate["data"], form), f"{path} is other data")
    except BaseException as error:  # whatever is wrong with it, it is not accepted
        why = error if isinstance(error, RefusedError) else f"it cannot be checked: {error!r}"
        print(ascii(f"Refused: {options.certificate}: {why}.")[1:-1])  # one line, whatever it holds
        return 1
    print(f"Accepted: {certificate['claim']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
