r"""Losses of a prediction t and a label y, given by their slope u(t, y), the derivative in t.

Constructions need only the slope. If the slope is a sum of functions of one variable, each of a
linear combination of t and y, they approximate these functions; a slope given as text is split into
such summands if possible. MLP layers evaluate any other slope operation by operation
(`constructions/composition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import SettingError, UnknownNameError, quoted
from icgd.problems.expressions import (
    MOST_CANONICAL,
    ONE,
    SUM,
    ZERO,
    Node,
    add,
    computed,
    multiply,
    number,
    parse,
    rebuilt,
    split,
    straight_line,
    text,
    variable,
    variables,
)
from icgd.problems.functions import (
    CLIP,
    DOUBLE,
    EXP,
    IDENTITY_FUNCTION,
    NEGATE,
    SIGMOID,
    SOFTPLUS,
    TANH,
)
from icgd.problems.piecewise import (
    HIGH,
    LOW,
    Function,
    domain_of,
    is_written,
    with_domain,
    without_domain,
)
from icgd.problems.scalar import ScalarFunction
from icgd.problems.settings import by_name, positive
from icgd.shapes import Labels

LARGEST_JUMP = 1e12
"""The slopes of l1 and of quantiles are defined on [-1e12, 1e12]."""

PREDICTION, LABEL = "t", "y"
"""The names of the variables of a slope."""


@dataclass(frozen=True)
class SlopeTerm:
    """The summand `function(prediction * t + label * y)` of a loss's slope."""

    prediction: float
    label: float
    function: ScalarFunction


# Slopes as sums of functions of one variable.

Direction = tuple[Fraction, Fraction]
"""The factors of t and y in a linear combination, scaled so that the first nonzero one is 1."""

OF_PREDICTION: Direction = (Fraction(1), Fraction(0))
OF_LABEL: Direction = (Fraction(0), Fraction(1))


def linear(node: Node) -> tuple[Fraction, Fraction, Fraction] | None:
    """Return a, b and c if the tree is a t + b y + c, otherwise None."""
    factors = dict.fromkeys((variable(PREDICTION), variable(LABEL), ONE), Fraction(0))
    for term in node.parts if node.kind == SUM else (node,):
        factor, monomial = split(term)
        if monomial not in factors:
            return None
        factors[monomial] = factor
    a, b, c = factors.values()
    return a, b, c


def along_one_direction(node: Node) -> tuple[Direction, Node] | None:
    """Return (direction, tree in x) if the tree depends on one combination x of t and y only.

    Otherwise return None.
    """
    directions = set[Direction]()

    def visit(part: Node) -> Node:
        if not variables(part):
            return part
        terms = part.parts if part.kind == SUM else ()
        lines = [term for term in terms if linear(term) is not None]
        if 1 < len(lines) < len(terms):  # treat t - y in t - y + sin(t - y) as one combination
            others = [term for term in terms if term not in lines]
            return add(visit(add(*lines)), *map(visit, others))
        if (line := linear(part)) is not None:
            a, b, c = line
            scale = a or b
            directions.add((a / scale, b / scale))
            return add(multiply(number(scale), variable("x")), number(c))
        return rebuilt(part, tuple(visit(inner) for inner in part.parts))

    tree = visit(node)
    return (directions.pop(), tree) if len(directions) == 1 else None


def sum_of_ridges(node: Node) -> dict[Direction, Node] | None:
    """Return a slope as a sum of functions of one variable, by direction, or None if it is none."""
    ridges: dict[Direction, Node] = {}
    lines, constants = list[Node](), list[Node]()
    for term in node.parts if node.kind == SUM else (node,):
        if not variables(term):
            constants.append(term)
            continue
        if linear(term) is not None:
            lines.append(term)
            continue
        ridge = along_one_direction(term)
        if ridge is None:
            return None
        direction, tree = ridge
        ridges[direction] = add(ridges.get(direction, ZERO), tree)
    a, b, _ = linear(add(*lines)) or (Fraction(0),) * 3
    combined = (Fraction(1), b / a) if a else OF_LABEL
    if a and b and combined not in ridges and OF_PREDICTION in ridges:
        summands = [(OF_PREDICTION, a), (OF_LABEL, b)]  # merge a t with the existing ridge of t
    else:
        summands = [(combined, a or b)]
    for direction, factor in summands:
        if factor:
            line = multiply(number(factor), variable("x"))
            ridges[direction] = add(ridges.get(direction, ZERO), line)
    first = next(iter(ridges))  # exists, because the slope depends on t
    ridges[first] = add(ridges[first], *constants)
    return ridges


BUILT_IN: dict[Node, ScalarFunction] = {
    parse(function.text): function for function in (TANH, SIGMOID, SOFTPLUS, EXP)
} | {
    parse(line): function
    for line, function in (("x", IDENTITY_FUNCTION), ("-x", NEGATE), ("2*x", DOUBLE))
}
"""Built-in functions that occur in slopes; they are defined on the whole real line."""


def function_of(tree: Node, low: float, high: float) -> ScalarFunction:
    """Return the function of a tree in x: a built-in one, or one named by the tree's text."""
    return BUILT_IN.get(tree) or Function._of_tree(tree, low, high)


# Losses.

N_PANELS = 64
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


class Loss:
    """A loss of one prediction t and its label y, defined by its slope u(t, y) in t.

    The loss of a network with several outputs is the sum over the outputs. All losses enter the
    risk as (1 / 2n) sum_i loss(t_i, y_i), so the slope of the squared loss is 2 (t - y).

    Args:
        slope: the text of u(t, y), with the functions of `icgd.Function`. abs and sign of a
            combination such as t - y give kinks and jumps; the value at a jump is the limit from
            the left.
        low: the lower end of the domain of t, of y and of combinations such as t - y.
        high: the upper end of the domain.

    Raises:
        SettingError: if the text is not such an expression, or is not finite on the domain.
        UnknownNameError: if a name in the text is unknown.

    Example:
        >>> import icgd
        >>> icgd.Loss(slope="tanh(t - y)")
        Loss('tanh(t - y) on -64 to 64')
    """

    name: str
    slope_terms: tuple[SlopeTerm, ...] | None
    labels_are_probabilities: bool = False
    is_softmax: bool = False
    node: Node | None = None
    """The tree of the slope, or None for built-in losses."""
    _value: Callable[[Tensor, Tensor], Tensor] | None = None

    def __init__(self, slope: str, low: float | int = LOW, high: float | int = HIGH) -> None:
        self._set(parse(slope, (PREDICTION, LABEL)), *domain_of(low, high))

    def _set(self, node: Node, low: float, high: float) -> None:
        self.node, self.low, self.high = node, low, high
        self.name = with_domain(text(node), low, high)
        if len(self.name) > MOST_CANONICAL:
            raise SettingError(
                f"The slope has {len(self.name)} characters when simplified; at most "
                f"{MOST_CANONICAL} are allowed."
            )
        if PREDICTION not in variables(node):
            raise SettingError(
                f"The slope {text(node)} does not depend on the prediction t, so the loss has no "
                "minimum. Write a slope in t and y, such as 'tanh(t - y)'."
            )
        self.slope_terms = None
        if (ridges := sum_of_ridges(node)) is not None:
            parts = []
            for (a, b), tree in ridges.items():
                try:
                    function = function_of(tree, low, high)
                except SettingError as error:
                    terms = ((a, PREDICTION), (b, LABEL))
                    x = add(*(multiply(number(factor), variable(name)) for factor, name in terms))
                    raise SettingError(
                        f"In the slope {text(node)}, with x = {text(x)}: {error}"
                    ) from None
                parts.append(SlopeTerm(float(a), float(b), function))
            self.slope_terms = tuple(parts)

    @classmethod
    def _of(
        cls,
        name: str,
        value: Callable[[Tensor, Tensor], Tensor],
        parts: tuple[SlopeTerm, ...] | None,
        **flags: bool,
    ) -> Loss:
        """Return a built-in loss with its own name and value."""
        loss = cls.__new__(cls)
        loss.name, loss.slope_terms = name, parts
        loss.__dict__.update(_value=value, **flags)
        return loss

    def __repr__(self) -> str:
        return f"Loss({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loss) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def _line(self) -> Any:
        return None if self.node is None else straight_line(self.node)

    def slope(self, prediction: Labels, label: Labels) -> Labels:
        """Return u(t, y), the gradient of the loss in the predictions.

        Args:
            prediction: the predictions (..., d_y).
            label: the labels (..., d_y).

        Returns:
            The slopes (..., d_y).

        Example:
            >>> import icgd, torch
            >>> icgd.Loss(slope="t * exp(y)").slope(torch.ones(1, 1), torch.zeros(1, 1))
            tensor([[1.]])
        """
        if self.is_softmax:
            return prediction.softmax(-1) - label
        if self.slope_terms is None:
            prediction, label = torch.broadcast_tensors(prediction, label)
            return computed(self._line, {PREDICTION: prediction, LABEL: label})
        terms = [p.function(p.prediction * prediction + p.label * label) for p in self.slope_terms]
        return torch.stack(terms).sum(0)

    def value(self, prediction: Labels, label: Labels) -> Tensor:
        """Return the loss, summed over the outputs.

        A loss given by its slope is 0 at t = 0: it is the integral of the slope from 0 to t, by
        Gauss-Legendre quadrature on 64 panels.

        Args:
            prediction: the predictions (..., d_y).
            label: the labels (..., d_y).

        Returns:
            The loss of each example; in the example below t**2 - 2 t y.

        Example:
            >>> import icgd, torch
            >>> loss = icgd.Loss(slope="2 * (t - y)")
            >>> round(float(loss.value(torch.tensor([[2.0]]), torch.tensor([[0.5]]))), 4)
            2.0
        """
        if self._value is not None:
            return self._value(prediction, label)
        prediction, label = torch.broadcast_tensors(prediction, label)
        # loss(t) = t * integral over s in [0, 1] of slope(s t)
        starts = torch.arange(N_PANELS, dtype=prediction.dtype)[:, None]
        nodes = ((starts + (torch.from_numpy(_NODES) + 1) / 2) / N_PANELS).flatten()
        weights = torch.from_numpy(_WEIGHTS).repeat(N_PANELS) / (2 * N_PANELS)
        integral = torch.zeros_like(prediction)
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            integral += weight * self.slope(node * prediction, label)
        return (prediction * integral).sum(-1)


SQUARED = Loss._of("squared", lambda p, y: ((p - y) ** 2).sum(-1), (SlopeTerm(1.0, -1.0, DOUBLE),))
HUBER = Loss._of(
    "huber",
    lambda p, y: functional.huber_loss(p, y, reduction="none").sum(-1),
    (SlopeTerm(1.0, -1.0, CLIP),),
)
LOGISTIC = Loss._of(
    "logistic",
    lambda p, y: (torch.logaddexp(p, torch.zeros_like(p)) - y * p).sum(-1),
    (SlopeTerm(1.0, 0.0, SIGMOID), SlopeTerm(0.0, 1.0, NEGATE)),
    labels_are_probabilities=True,
)
# The log-sum-exp couples all outputs, so the slope is not a sum of functions of one variable.
CROSS_ENTROPY = Loss._of(
    "cross_entropy",
    lambda p, y: p.logsumexp(-1) - p.mul(y).sum(-1),
    None,
    labels_are_probabilities=True,
    is_softmax=True,
)


def log_cosh(z: Tensor) -> Tensor:
    """Return log cosh z, without overflow."""
    return z.abs() + torch.log1p(torch.exp(-2 * z.abs())) - log(2)


LOG_COSH = Loss._of(
    "log_cosh",
    lambda p, y: log_cosh(p - y).sum(-1),
    (SlopeTerm(1.0, -1.0, TANH),),
)
POISSON = Loss._of(
    "poisson",
    lambda p, y: (p.exp() - y * p).sum(-1),
    (SlopeTerm(1.0, 0.0, EXP), SlopeTerm(0.0, 1.0, NEGATE)),
)


def jump(below: str, above: str) -> Function:
    """Return the step function with the value `below` up to 0, and `above` after it."""
    return Function.pieces((0,), (below, above), low=-LARGEST_JUMP, high=LARGEST_JUMP)


# One jump on each side of 0, at which the slope is 0, as that of torch.
L1 = Loss._of(
    "l1",
    lambda p, y: (p - y).abs().sum(-1),
    (SlopeTerm(1.0, -1.0, jump("0", "1")), SlopeTerm(-1.0, 1.0, jump("0", "-1"))),
)

SMOOTH_L1, QUANTILE = "smooth_l1_", "quantile_"
"""Prefixes of the names of losses that end in a number, as in smooth_l1_0.5."""


@lru_cache
def smooth_l1(beta: float) -> Loss:
    """Return the loss |t - y| - beta / 2, quadratic for |t - y| < beta; beta = 1 is huber."""
    beta = positive("beta", beta)
    if beta == 1.0:
        return HUBER
    return Loss._of(
        f"{SMOOTH_L1}{beta!r}",
        lambda p, y: functional.smooth_l1_loss(p, y, reduction="none", beta=beta).sum(-1),
        (SlopeTerm(1 / beta, -1 / beta, CLIP),),
    )


@lru_cache
def quantile(level: float) -> Loss:
    """Return the loss level (y - t) for y > t, else (1 - level) (t - y); a quantile is optimal."""
    level = positive("level", level)
    if not level < 1:
        raise SettingError(f"The level of a quantile must be between 0 and 1, got {level:g}.")
    return Loss._of(
        f"{QUANTILE}{level!r}",
        lambda p, y: torch.maximum(level * (y - p), (1 - level) * (p - y)).sum(-1),
        (SlopeTerm(1.0, -1.0, jump(repr(-level), repr(1 - level))),),
    )


LOSSES = by_name(SQUARED, LOGISTIC, HUBER, CROSS_ENTROPY, LOG_COSH, L1, POISSON)
LOSS_NAMES = (*LOSSES, f"{SMOOTH_L1}BETA", f"{QUANTILE}LEVEL")


def loss_named(name: str) -> Loss:
    """Return the loss called `name`; the name of a user's loss is its text."""
    if is_written(name):
        return read_loss(name)
    if isinstance(name, str):
        for prefix, loss_of in ((SMOOTH_L1, smooth_l1), (QUANTILE, quantile)):
            if name.startswith(prefix):
                with suppress(ValueError, SettingError):
                    return loss_of(float(name.removeprefix(prefix)))
    if not isinstance(name, str) or name not in LOSSES:
        raise UnknownNameError.of("loss", name, known=LOSS_NAMES)
    return LOSSES[name]


@lru_cache(maxsize=256)
def read_loss(name: str) -> Loss:
    """Return the loss that has this text as its `name`."""
    loss = Loss.__new__(Loss)
    try:
        body, low, high = without_domain(name)
        loss._set(parse(body, (PREDICTION, LABEL), is_canonical=True), low, high)
    except ValueError as error:  # icgd's errors are ValueErrors too
        raise SettingError(f"{quoted(name)} is not the text of a loss. {error}") from None
    return loss
