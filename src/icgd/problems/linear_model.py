"""The target of ridge, lasso and generalised linear models, and their links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, pi, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, SettingError, at, quoted
from icgd.problems.data import checked_array, checked_inputs, first_set
from icgd.problems.functions import (
    EXP,
    IDENTITY_FUNCTION,
    NORMAL_DISTRIBUTION,
    SIGMOID,
    SOFTPLUS,
    TANH,
    SmoothFunction,
)
from icgd.problems.losses import log_cosh
from icgd.problems.piecewise import Function, is_written, read_function
from icgd.problems.scalar import Evaluate, ScalarFunction
from icgd.problems.settings import by_name, count, flag, named, set_fields
from icgd.reprs import counted
from icgd.shapes import Inputs, Labels, Parameters, Values


def _cauchit_1(z: Tensor) -> Tensor:
    return 1 / (pi * (1 + z * z))


# 1/2 + atan(z) / pi would cancel for very negative z; atan2 does not.
CAUCHIT = SmoothFunction(
    "cauchit",
    (
        lambda z: torch.atan2(torch.ones_like(z), -z) / pi,
        _cauchit_1,
        lambda z: -2 * pi * z * _cauchit_1(z) ** 2,
    ),
    ((), (0.0,), (-1 / sqrt(3), 1 / sqrt(3))),
    "1/2 + atan(x) / pi",
)


def _cloglog_1(z: Tensor) -> Tensor:
    z = z.clamp(max=10.0)  # beyond, the value underflows to 0, and inf - inf would be NaN
    return torch.exp(z - torch.exp(z))


CLOGLOG = SmoothFunction(
    "cloglog",
    (
        lambda z: -torch.expm1(-torch.exp(z)),
        _cloglog_1,
        lambda z: -torch.expm1(z.clamp(max=10.0)) * _cloglog_1(z),
    ),
    ((), (0.0,), (log((3 - sqrt(5)) / 2), log((3 + sqrt(5)) / 2))),
    "1 - exp(-exp(x))",
)


@dataclass(frozen=True)
class Link:
    """The inverse link `mean` (mu), its integral `potential` (a), and the labels it allows.

    mu maps a score to the expected label. The loss of an example is

        a(z) - y z,    a' = mu,    with the gradient (mu(z) - y) x in w,

    and convex because mu is increasing. For identity, logistic and poisson it is the negative
    log-likelihood of normal, Bernoulli and Poisson labels, up to terms independent of w. For the
    others it is the matching loss of the link, not a likelihood.

        identity  a = z^2 / 2               any label
        logistic  a = log(1 + exp z)        labels in [0, 1]: classes or proportions
        probit    a = z Phi(z) + phi(z)     labels in [0, 1]
        poisson   a = exp z                 labels >= 0: counts, or rates
        softplus  a = -Li_2(-exp z)         labels >= 0
        cauchit   a = z mu(z) - log(1 + z^2) / 2 pi      labels in [0, 1]
        cloglog   a = the integral of mu from 0          labels in [0, 1]
        tanh      a = log cosh z            labels in [-1, 1]
    """

    name: str
    mean: ScalarFunction
    potential: Evaluate
    least_label: float
    largest_label: float
    least_loss: Evaluate
    """A lower bound on the loss of an example with this label."""

    def loss(self, score: Values, label: Values) -> Values:
        """Return a(z) - y z."""
        return self.potential(score) - label * score

    def slopes(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        """Return the least and largest slope of mu on [low, high]; the ends may be infinite."""
        return self.mean.derivative().bounds(low, high)

    @property
    def labels(self) -> str:
        """A description of the allowed labels."""
        if self.least_label == -inf:
            return "any finite labels"
        if self.largest_label == inf:
            return f"labels of at least {self.least_label:g}"
        return f"labels between {self.least_label:g} and {self.largest_label:g}"


# B_2k / (2k + 1)! for k = 1, 2, ...: for t <= log 2 the next term is less than 1e-16.
_BERNOULLI = (
    1 / 36,
    -1 / 3600,
    1 / 211680,
    -1 / 10886400,
    1 / 526901760,
    -691 / 16999766784000,
    1 / 1120863744000,
)


def _dilogarithm(t: Tensor) -> Tensor:
    """Return -Li_2(1 - exp t) for 0 <= t <= log 2, by a series in t without cancellation."""
    total = torch.zeros_like(t)
    for coefficient in reversed(_BERNOULLI):
        total = (total + coefficient) * t * t
    return t * (1 + t / 4 + total)


def _softplus_integral(z: Tensor) -> Tensor:
    """Return the integral of softplus from -infinity; softplus(z) = z + softplus(-z) for z > 0."""
    below = _dilogarithm(torch.log1p(torch.exp(-z.abs())))
    return torch.where(z > 0, pi**2 / 6 + z * z / 2 - below, below)


def _least_poisson_loss(y: Tensor) -> Tensor:
    """Return the minimum of exp z - y z, which is at exp z = y."""
    least: Tensor = y - torch.special.xlogy(y, y)
    return least


def _least_quadratic_loss(y: Tensor) -> Tensor:
    """Return the minimum of z^2 / 2 - y z.

    It also bounds the loss of softplus, where a(z) >= z^2 / 2 for z > 0, and a >= 0 elsewhere.
    """
    return -y * y / 2


PANELS, NODES = 512, 16
"""The number of panels in the quadrature of a potential, and of Gauss-Legendre nodes in each."""


def integral_of(function: ScalarFunction, low: float, high: float) -> Evaluate:
    """Return the integral of a function from 0, or from the end of [low, high] closest to 0."""
    even = torch.linspace(low, high, PANELS + 1, dtype=torch.float64)
    knots = torch.tensor([k for k in function.knots if low < k < high], dtype=torch.float64)
    ends = torch.cat([even, knots]).sort().values
    rule = np.polynomial.legendre.leggauss(NODES)
    nodes, weights = (torch.from_numpy(values) / 2 for values in rule)

    def over_panel(start: Tensor, width: Tensor) -> Tensor:
        points = start.unsqueeze(-1) + width.unsqueeze(-1) * (nodes + 0.5)
        return width * (function(points) @ weights)

    sums = over_panel(ends[:-1], ends.diff()).cumsum(0)
    sums = torch.cat([sums.new_zeros(1), sums])

    def from_low(z: Tensor) -> Tensor:
        panel = (torch.searchsorted(ends, z.detach()) - 1).clamp(0, len(ends) - 2)
        return sums[panel] + over_panel(ends[panel], z - ends[panel])

    start = from_low(torch.zeros((), dtype=torch.float64).clamp(low, high))
    return lambda z: from_low(z) - start


def _cloglog_potential() -> Evaluate:
    """Return the integral of 1 - exp(-exp z), which is below 1e-17 left of -40 and 1 right of 8."""
    inside = integral_of(CLOGLOG, -40.0, 8.0)

    def potential(z: Tensor) -> Tensor:
        clamped = z.clamp(-40.0, 8.0)
        return inside(clamped) + (z - clamped).clamp(min=0.0)

    return potential


LINKS = by_name(
    Link("identity", IDENTITY_FUNCTION, lambda z: z * z / 2, -inf, inf, _least_quadratic_loss),
    Link("logistic", SIGMOID, SOFTPLUS, 0.0, 1.0, torch.zeros_like),
    Link(
        "probit",
        NORMAL_DISTRIBUTION,
        lambda z: z * NORMAL_DISTRIBUTION(z) + NORMAL_DISTRIBUTION.derivative()(z),
        0.0,
        1.0,
        torch.zeros_like,
    ),
    Link("poisson", EXP, torch.exp, 0.0, inf, _least_poisson_loss),
    Link("softplus", SOFTPLUS, _softplus_integral, 0.0, inf, _least_quadratic_loss),
    Link(
        "cauchit",
        CAUCHIT,
        lambda z: z * CAUCHIT(z) - torch.log1p(z * z) / (2 * pi),
        0.0,
        1.0,
        lambda y: torch.log(torch.sin(pi * y).clamp(min=0.0)) / pi,  # at mu(z) = y
    ),
    Link("cloglog", CLOGLOG, _cloglog_potential(), 0.0, 1.0, lambda y: torch.full_like(y, -1.0)),
    Link("tanh", TANH, log_cosh, -1.0, 1.0, lambda y: torch.full_like(y, -log(2))),
)


def link_named(name: str) -> Link:
    """Return the link called `name`, which may be the text of a function."""
    return _own_link(name) if is_written(name) else named("link", name, LINKS)


@lru_cache(maxsize=64)
def _own_link(name: str) -> Link:
    """Return the link whose mean is a function given as text."""
    mean = read_function(name)
    if place := mean.where_it_falls():
        raise SettingError(
            f"A link must be increasing and continuous, so that its loss is convex, and {mean} is "
            f"not at {place}. Give a function that increases on its whole domain, or a smaller "
            "domain."
        )
    reach = max(-mean.low, mean.high)
    least, largest = mean.bounds(*torch.tensor([mean.low, mean.high], dtype=torch.float64))
    steepest = float(torch.maximum(-least, largest))
    return Link(
        name,
        mean,
        integral_of(mean, mean.low, mean.high),
        -inf,
        inf,
        lambda y: -reach * (steepest + y.abs()),  # as a(0) = 0 and |a' - y| <= steepest + |y|
    )


Design = Float[Tensor, "*tasks example parameter"]
"""The design matrix: the inputs, with a column of ones for the intercept if there is one."""

REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class LinearModel:
    """A model of the expected label: mu(<w, x>), or mu(<w, x> + b) with an intercept b.

    Args:
        input_width: the number of inputs.
        link: the name of mu: "identity", "logistic", "poisson" or another link of icgd; or an
            increasing `icgd.Function`, whose name is stored.
        intercept: whether there is an intercept. It is the last coefficient, without a penalty.
        reduction: the risk is the "mean" or the "sum" of the examples' losses a(z) - y z. For the
            identity link the mean is (1 / 2n) sum_i (z_i - y_i)^2 up to a constant, as usual for
            ridge and lasso; cot uses the sum for other links.

    Raises:
        UnknownNameError: if no link has this name.
        SettingError: if the width is not a positive integer, or another setting is invalid.

    Example:
        >>> import icgd
        >>> icgd.LinearModel(3, "logistic", intercept=True).n_parameters
        4
    """

    input_width: int
    link: Any = "identity"  # a Function is converted to its name
    intercept: bool = False
    reduction: str = "mean"

    def __post_init__(self) -> None:
        set_fields(self, input_width=count("input_width", self.input_width))
        set_fields(self, link=self.link.name if isinstance(self.link, Function) else self.link)
        link_named(self.link)
        set_fields(self, intercept=flag("intercept", self.intercept))
        if self.reduction not in REDUCTIONS:
            raise SettingError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, got {quoted(self.reduction)}."
            )

    def in_words(self) -> str:
        """Return a short description, such as "linear model of 3 inputs, logistic link".

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.LinearModel(3).in_words()
            'linear model of 3 inputs, identity link'
        """
        intercept = ", intercept" * self.intercept
        return f"linear model of {counted(self.input_width, 'input')}, {self.link} link{intercept}"

    @property
    def output_width(self) -> int:
        """The number of labels, always 1."""
        return 1

    @property
    def n_parameters(self) -> int:
        """The number of coefficients, including the intercept."""
        return self.input_width + self.intercept

    @property
    def link_function(self) -> Link:
        """The link itself."""
        return link_named(self.link)

    def loss_scale(self, n_examples: int) -> float:
        """Return the factor of the sum of losses in the risk.

        Args:
            n_examples: the number of examples.

        Returns:
            The factor: 1 / n for the mean, 1 for the sum.

        Example:
            >>> import icgd
            >>> icgd.LinearModel(3).loss_scale(4)
            0.25
        """
        return 1 / count("n_examples", n_examples) if self.reduction == "mean" else 1.0

    def design(self, x: Inputs) -> Design:
        """Return the design matrix in float64: `x`, with a column of ones for the intercept.

        Args:
            x: inputs (..., n, d).

        Returns:
            The matrix (..., n, n_parameters).

        Example:
            >>> import icgd, torch
            >>> icgd.LinearModel(1, intercept=True).design(torch.zeros(1, 1)).tolist()
            [[0.0, 1.0]]
        """
        x = x.double()
        return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1) if self.intercept else x

    def penalised(self, like: Tensor) -> Float[Tensor, "parameter"]:
        """Return 1 for every penalised coefficient, 0 for the intercept.

        Args:
            like: a tensor with the dtype and device of the result.

        Returns:
            A flag for each coefficient.

        Example:
            >>> import icgd, torch
            >>> icgd.LinearModel(2, intercept=True).penalised(torch.zeros(1))
            tensor([1., 1., 0.])
        """
        flags = like.new_ones(self.n_parameters)
        flags[self.input_width :] = 0.0
        return flags

    def initial_parameters(self, tasks: tuple[int, ...] = ()) -> Parameters:
        """Return zeros, the initial coefficients of the theorems.

        Args:
            tasks: the batch shape: () for one task, (n_tasks,) for a batch.

        Returns:
            The coefficients.

        Example:
            >>> import icgd
            >>> icgd.LinearModel(2).initial_parameters((5,)).shape
            torch.Size([5, 2])
        """
        return torch.zeros(*tasks, self.n_parameters, dtype=torch.float64)


def require_data(model: LinearModel, x: Tensor, y: Tensor) -> None:
    """Raise `DataError` unless shapes, values and labels of the examples fit the model."""
    checked_inputs(x, model.input_width)
    expected = (*x.shape[:-1], 1)
    if checked_array("y", y).shape != expected:
        raise DataError(
            f"y has shape {tuple(y.shape)}; expected {expected}, a label for each row of X."
        )
    require_labels(model.link_function, y)


def require_labels(link: Link, y: Labels) -> None:
    """Raise `DataError` unless the link allows every label."""
    if index := first_set((y < link.least_label) | (y > link.largest_label)):
        value = y[tuple(index)].item()
        raise DataError(
            f"y{at(index)} is {value:.12g}; the {link.name} link needs {link.labels}. Recode the "
            "labels, or use link='identity'."
        )
