"""The target of ridge, lasso and generalised linear models, and the links of the latter."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, SettingError, at, brief
from icgd.facts import counted
from icgd.problems.data import checked_array, checked_inputs, first_set
from icgd.problems.functions import (
    IDENTITY_FUNCTION,
    NORMAL_DISTRIBUTION,
    SIGMOID,
    SOFTPLUS,
    Evaluate,
    ScalarFunction,
    SmoothFunction,
)
from icgd.problems.settings import by_name, count, flag, named, settle
from icgd.shapes import Inputs, Labels, Parameters, Values

EXP = SmoothFunction("exp", (torch.exp,) * 4, ((),) * 4)
"""Every derivative is itself and rises, so none has a stationary point."""


@dataclass(frozen=True)
class Link:
    """The inverse link `mean` (mu), its integral `potential` (a), and the labels it allows.

    The inverse link mu turns a score into the expected label. The loss of an example is

        a(z) - y z,    a' = mu,    so that its gradient in w is (mu(z) - y) x,

    which is convex because mu rises. For identity, logistic and poisson it is the negative
    log-likelihood of normal, Bernoulli and Poisson labels, up to what does not depend on w. For
    probit and softplus it is the loss that matches the link, not a likelihood.

        identity  a = z^2 / 2               any label
        logistic  a = log(1 + exp z)        labels in [0, 1]: classes, or shares of a group
        probit    a = z Phi(z) + phi(z)     labels in [0, 1]
        poisson   a = exp z                 labels >= 0: counts, or rates
        softplus  a = -Li_2(-exp z)         labels >= 0
    """

    name: str
    mean: ScalarFunction
    potential: Evaluate
    least_label: float
    largest_label: float
    least_loss: Evaluate
    """A number that the loss of an example with this label is nowhere below."""

    def loss(self, score: Values, label: Values) -> Values:
        """Return a(z) - y z."""
        return self.potential(score) - label * score

    def slopes(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        """Return least and largest slope of mu on [low, high], whose ends may be infinite."""
        return self.mean.derivative().bounds(low, high)

    @property
    def labels(self) -> str:
        """The labels that it allows, in words."""
        if self.least_label == -inf:
            return "any finite labels"
        if self.largest_label == inf:
            return f"labels of at least {self.least_label:g}"
        return f"labels between {self.least_label:g} and {self.largest_label:g}"


# B_2k / (2k + 1)! for k = 1, 2, ...: for t <= log 2 the next would add less than 1e-16.
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
    """Return -Li_2(1 - exp t) for 0 <= t <= log 2 by the series in t, where nothing cancels."""
    total = torch.zeros_like(t)
    for coefficient in reversed(_BERNOULLI):
        total = (total + coefficient) * t * t
    return t * (1 + t / 4 + total)


def _softplus_integral(z: Tensor) -> Tensor:
    """Integrate softplus from -infinity; softplus(z) = z + softplus(-z) mirrors it at 0."""
    below = _dilogarithm(torch.log1p(torch.exp(-z.abs())))
    return torch.where(z > 0, pi**2 / 6 + z * z / 2 - below, below)


def _at_the_score_of_the_label(y: Tensor) -> Tensor:
    """exp z - y z is least where exp z = y."""
    least: Tensor = y - torch.special.xlogy(y, y)
    return least


def _half_square_below(y: Tensor) -> Tensor:
    """z^2 / 2 - y z is nowhere lower, and softplus has a(z) >= z^2 / 2 for z > 0, else a >= 0."""
    return -y * y / 2


LINKS = by_name(
    Link("identity", IDENTITY_FUNCTION, lambda z: z * z / 2, -inf, inf, _half_square_below),
    Link("logistic", SIGMOID, SOFTPLUS, 0.0, 1.0, torch.zeros_like),
    Link(
        "probit",
        NORMAL_DISTRIBUTION,
        lambda z: z * NORMAL_DISTRIBUTION(z) + NORMAL_DISTRIBUTION.derivative()(z),
        0.0,
        1.0,
        torch.zeros_like,
    ),
    Link("poisson", EXP, torch.exp, 0.0, inf, _at_the_score_of_the_label),
    Link("softplus", SOFTPLUS, _softplus_integral, 0.0, inf, _half_square_below),
)


def link_named(name: str) -> Link:
    """Return the link called `name`."""
    return named("link", name, LINKS)


Design = Float[Tensor, "*tasks example parameter"]
"""The inputs as the coefficients see them: with a 1 appended for the intercept, if there is one."""

REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class LinearModel:
    """Labels are expected to be mu(<w, x>), or mu(<w, x> + b) with an intercept b.

    Args:
        input_width: the number of inputs.
        link: the name of mu: "identity", "logistic", "poisson" or another link of icgd.
        intercept: whether there is an intercept. It is the last coefficient, and no penalty applies
            to it.
        reduction: what is made of the examples' losses a(z) - y z: the "mean" for ridge and lasso,
            where it is the usual (1 / 2n) sum_i (z_i - y_i)^2 less a constant; cot takes the "sum"
            for other links.

    Raises:
        UnknownNameError: if no link has this name.
        SettingError: if the width is no positive whole number, or another setting is wrong.

    Example:
        >>> import icgd
        >>> icgd.LinearModel(3, "logistic", intercept=True).n_parameters
        4
    """

    input_width: int
    link: str = "identity"
    intercept: bool = False
    reduction: str = "mean"

    def __post_init__(self) -> None:
        settle(self, input_width=count("input_width", self.input_width))
        link_named(self.link)
        settle(self, intercept=flag("intercept", self.intercept))
        if self.reduction not in REDUCTIONS:
            raise SettingError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, got {brief(self.reduction)}."
            )

    def in_words(self) -> str:
        """Return the model in a few words, such as "linear model of 3 inputs, logistic link".

        Returns:
            The words.

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
        """The number of coefficients, the intercept included."""
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
            1 / n for the mean, 1 for the sum.

        Example:
            >>> import icgd
            >>> icgd.LinearModel(3).loss_scale(4)
            0.25
        """
        return 1 / count("n_examples", n_examples) if self.reduction == "mean" else 1.0

    def design(self, x: Inputs) -> Design:
        """Return `x` in float64, with the constant coordinate of the intercept.

        Args:
            x: inputs (..., n, d).

        Returns:
            The inputs as the coefficients see them.

        Example:
            >>> import icgd, torch
            >>> icgd.LinearModel(1, intercept=True).design(torch.zeros(1, 1)).tolist()
            [[0.0, 1.0]]
        """
        x = x.double()
        return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1) if self.intercept else x

    def penalised(self, like: Tensor) -> Float[Tensor, "parameter"]:
        """Return 1 for every coefficient that penalties apply to, 0 for the intercept.

        Args:
            like: a tensor whose type and device the flags have.

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
        """Return coefficients of 0, where the theorems start; the risk is convex.

        Args:
            tasks: the number of tasks, () for one task.

        Returns:
            The coefficients.

        Example:
            >>> import icgd
            >>> icgd.LinearModel(2).initial_parameters((5,)).shape
            torch.Size([5, 2])
        """
        return torch.zeros(*tasks, self.n_parameters, dtype=torch.float64)


def require_data(model: LinearModel, x: Tensor, y: Tensor) -> None:
    """Raise `DataError` unless the examples fit the model: shapes, finite numbers, labels."""
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
