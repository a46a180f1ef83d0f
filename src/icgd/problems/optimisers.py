r"""Optimisers as data: a `Rule` describes one step by linear combinations, a root and a product.

Entry by entry, a step maps the weights w, the gradient g and the optimiser's state s to

    g  <- g + decay * w
    s' <- sum of coefficient * quantity        of w, g, s and g^2, for each array of the state
    d  <- m / (sqrt(v) + eps)                  for a quantity m and a sum v, if there is a root
    w' <- clip(sum of coefficient * quantity)  of w, g, s' and d

The oracle evaluates the rule in float64, and constructions compile the same rule into layers, so
they agree by construction. A new optimiser needs only a new rule.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from icgd.errors import SettingError, quoted
from icgd.problems.sets import Sets, checked_sets, largest_weight, sets_in_words
from icgd.problems.settings import (
    as_row,
    below_one,
    count,
    entries,
    finite,
    flag,
    is_row,
    not_negative,
    positive,
    require_between,
    set_fields,
)
from icgd.shapes import Parameters

WEIGHTS, GRADIENT, SQUARE, SCALED = "weights", "gradient", "square", "scaled"
"""The quantities besides the state: w, g, g^2 and d."""

MOMENTUM, FIRST, SECOND = "momentum", "first_moment", "second_moment"
"""The arrays of the state."""

AVERAGE = "average"
"""The moving average of the weights, which no rule reads."""

Schedule = float | tuple[float, ...]
"""One number for all steps, or one for each step."""

Sum = Mapping[str, float]
"""A linear combination: quantities with their coefficients."""

PROBED_STEPS = (1, 2, 10, 100, 1000)
"""The steps whose rules are compared with the first; bias corrections show in the first ones."""

Groups = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""Names of weights, each with the options in which their rule differs."""

GROUP_OPTIONS = ("step_size", "weight_decay")
"""The options that a group may have of its own: those that no state or root depends on."""


@dataclass(frozen=True)
class Root:
    """The quantity "scaled" of a `Rule`: `factor` / (sqrt(`argument`) + `eps`).

    Args:
        factor: the quantity to scale, "gradient" or the name of an array of the state.
        argument: the sum under the root; "square" is the square of the gradient.
        eps: a positive number.
    """

    factor: str
    argument: Sum
    eps: float


@dataclass(frozen=True)
class Rule:
    """One step of an optimiser, entry by entry, as linear combinations of quantities.

    A combination maps quantities to coefficients. Quantities are "weights", "gradient", "square"
    and "scaled" (with a root), and the arrays of the state by name.

    Args:
        weights: the new weights before they are projected, from the weights, the gradient, the new
            state and the scaled quantity.
        state: the new value of every array of the state, from old values and the gradient.
        decay: the factor of the weights that is added to the gradient first.
        root: the divisor of a step such as Adam's, if there is one.

    Example:
        >>> from icgd.constructions import Rule
        >>> momentum = {"momentum": {"momentum": 0.5, "gradient": 1.0}}
        >>> Rule({"weights": 1.0, "momentum": -0.5}, momentum).linear["weights"]
        {'weights': 1.0, 'momentum': -0.25, 'gradient': -0.5}
    """

    weights: Sum
    state: Mapping[str, Sum] = field(default_factory=dict)
    decay: float = 0.0
    root: Root | None = None

    def applied(
        self, weights: Parameters, gradient: Parameters, state: Mapping[str, Parameters]
    ) -> tuple[Parameters, dict[str, Parameters]]:
        """Return the weights after the step, before they are clipped, and the new state."""
        gradient = gradient + self.decay * weights if self.decay else gradient
        values: dict[str, Tensor] = {WEIGHTS: weights, GRADIENT: gradient, **state}
        if self.root is not None:
            values[SQUARE] = gradient * gradient
        new_state = {name: evaluated(terms, values) for name, terms in self.state.items()}
        if self.root is not None:
            divisor = evaluated(self.root.argument, values).clamp_min(0.0).sqrt() + self.root.eps
            values[SCALED] = (values | new_state)[self.root.factor] / divisor
        return evaluated(self.weights, values | new_state), new_state

    @property
    def linear(self) -> dict[str, Sum]:
        """The new weights and state as sums of old quantities, for a rule without a root.

        Weight decay is included in the gradient, and the new state is substituted in the weights.
        The names do not depend on coefficients, which may be 0 in one step and not in the next.
        """
        moved, state = dict(self.weights), {name: dict(s) for name, s in self.state.items()}
        for terms in (moved, *state.values()):
            if self.decay and GRADIENT in terms:
                terms[WEIGHTS] = terms.get(WEIGHTS, 0.0) + self.decay * terms[GRADIENT]
        weights: dict[str, float] = {}
        for quantity, factor in moved.items():
            for old_quantity, inner in state.get(quantity, {quantity: 1.0}).items():
                weights[old_quantity] = weights.get(old_quantity, 0.0) + factor * inner
        return {WEIGHTS: weights, **state}


def evaluated(terms: Sum, values: Mapping[str, Tensor]) -> Tensor:
    """Return the linear combination `terms` of these values."""
    total = torch.zeros_like(values[WEIGHTS])
    for name, factor in terms.items():
        total = total + factor * values[name]
    return total


class Scheduled:
    """An update whose settings may have a value for each step."""

    @property
    def schedules(self) -> dict[str, tuple[object, ...]]:
        """The settings that have a value for each step."""
        settings = {name: getattr(self, name, None) for name in ("step_size", "momentum")}
        return {name: value for name, value in settings.items() if isinstance(value, tuple)}

    @property
    def is_constant(self) -> bool:
        """Whether all steps apply the same rule."""
        return not self.schedules

    def require_steps(self, n_steps: int) -> None:
        """Raise unless every schedule has one value for each step.

        Args:
            n_steps: the number of steps.

        Raises:
            SettingError: if a schedule has more or fewer values.

        Example:
            >>> import icgd
            >>> icgd.GradientStep((0.2, 0.1), box=2.0).require_steps(2)
        """
        for name, schedule in self.schedules.items():
            if len(schedule) != n_steps:
                raise SettingError(
                    f"{name} has {len(schedule)} entries; expected {n_steps}, one for each step."
                )


def span_in_words(schedule: Schedule) -> str:
    """Format one number, or the range of a schedule, such as "0.1 to 0.2"."""
    numbers = schedule if isinstance(schedule, tuple) else (schedule,)
    least, largest = min(numbers), max(numbers)
    return f"{least:g} to {largest:g}" if least < largest else f"{least:g}"


def step_sizes(
    value: Any, check: Callable[[str, object], float] = positive, name: str = "step_size"
) -> Schedule:
    """Validate one positive step size, or a schedule with one for each step.

    With `check` = `not_negative` a schedule may contain zeros, as at the start of a warm-up.
    """
    if not is_row(value):
        return positive(name, value)
    sizes = tuple(check(name, size) for size in entries(value))
    if not sizes:
        raise SettingError(f"{name} is empty; give one number for each step.")
    return sizes


LEAST_EPS, LARGEST_EPS = 1e-30, 1e30
"""The range of eps: beyond it, slopes of reciprocal roots overflow."""


def _checked_eps(name: str, value: object) -> float:
    eps = positive(name, value)
    require_between(name, eps, LEAST_EPS, LARGEST_EPS)
    return eps


def _checked_betas(name: str, value: object) -> tuple[float, ...]:
    betas = as_row(value)
    if len(betas) != 2:
        raise SettingError(f"{name} has {len(betas)} entries; expected 2, one for each moment.")
    return tuple(below_one(f"{name}[{place}]", beta) for place, beta in enumerate(betas))


def _as_mapping(name: str, value: Any, content: str) -> dict[str, Any]:
    """Return a mapping, which may be given as its pairs."""
    pairs = [
        as_row(pair) for pair in as_row(value.items() if isinstance(value, Mapping) else value)
    ]
    is_mapping = all(len(pair) == 2 for pair in pairs)
    mapping = {str(key): part for key, part in pairs} if is_mapping else {}
    if not is_mapping or len(mapping) < len(pairs):  # a name that occurs twice is ambiguous
        raise SettingError(f"{name} must map {content}, got {quoted(value)}.")
    return mapping


def _layer_first(name: str) -> tuple[int, bool]:
    """Return what sorts names as weights_1, bias_1, weights_2, ..."""
    kind, layer = name.split("_")
    return int(layer), kind == "bias"


def _checked_groups(name: str, value: Any) -> Groups:
    """Validate options of groups, given as a mapping or as its pairs."""
    groups = []
    content = "names of weights to options, such as {'bias_1': {'weight_decay': 0.0}}"
    by_name = _as_mapping(name, value, content)
    for key in by_name:
        if not re.fullmatch(r"(weights|bias)_[1-9]\d*", key):
            raise SettingError(
                f"{name} has the name {quoted(key)}; expected names of weights, such as weights_1 "
                "and bias_1."
            )
    for key in sorted(by_name, key=_layer_first):  # so that the order does not matter
        content = "options to numbers, such as {'weight_decay': 0.0}"
        chosen = _as_mapping(f"{name}[{key!r}]", by_name[key], content)
        if not chosen:
            raise SettingError(f"{name}[{key!r}] must map {content}, got no option.")
        if unknown := [option for option in chosen if option not in GROUP_OPTIONS]:
            raise SettingError(
                f"{name}[{key!r}] has the option {quoted(unknown[0])}; expected one of "
                f"{' and '.join(GROUP_OPTIONS)}. All groups share the others."
            )
        checked = ((o, CHECKS[o](f"{name}[{key!r}]: {o}", v)) for o, v in sorted(chosen.items()))
        groups.append((key, tuple(checked)))
    return tuple(groups)


CHECKS: dict[str, Callable[[str, Any], object]] = {
    "step_size": lambda name, value: step_sizes(value, not_negative, name),
    "box": checked_sets,
    "batch_size": count,
    "average": below_one,
    "momentum": not_negative,
    "dampening": finite,
    "nesterov": flag,
    "betas": _checked_betas,
    "alpha": below_one,
    "eps": _checked_eps,
    "weight_decay": not_negative,
    "decoupled": flag,
    "gradient_scale": positive,
    "groups": _checked_groups,
}
"""The function that validates each setting of an optimiser and returns it as plain data."""


@dataclass(frozen=True)
class AbstractGradientStep(Scheduled, ABC):
    """A step along the gradient of the loss on all examples, or on `batch_size` of them.

    `step_size` is one number for all steps or one for each step. With a batch size b, step
    l = 0, 1, ... uses the examples l b, l b + 1, ..., l b + b - 1, modulo n.

    After every step the weights are projected onto the sets of `box`.

    With an `average` rho, the predictions use an exponential moving average of the projected
    weights: average <- weights after the first step, then average <- rho * average + (1 - rho) *
    weights.

    `groups` give some weights a step size or a weight decay of their own, by the names `weights_1`,
    `bias_1`, ...: a bias that does not decay is {"bias_1": {"weight_decay": 0.0}}.

    A subclass, a frozen dataclass, defines `rule` and `name_in_words`. It overrides `state` if the
    rule has one, and `is_constant` if the rule changes in other steps than `PROBED_STEPS`.
    """

    step_size: Schedule
    box: Sets
    batch_size: int | None = None
    average: float | None = field(default=None, kw_only=True)
    groups: Any = field(default=(), kw_only=True)
    """A mapping is accepted too; pairs are stored, so that updates can be hashed."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            is_left_out = value is None and setting.default is None
            if setting.name in CHECKS and not is_left_out:
                set_fields(self, **{setting.name: CHECKS[setting.name](setting.name, value)})
        for name, options in self.groups:
            for option in (option for option, _ in options if not hasattr(self, option)):
                raise SettingError(
                    f"groups[{name!r}] has {option}, which {type(self).__name__} does not have. "
                    "Use MomentumStep, with momentum=0 if there is none."
                )
        lengths = {name: len(schedule) for name, schedule in self.schedules.items()}
        if len({*lengths.values()}) > 1:
            (name, n_first), *others = lengths.items()
            other, n_other = next(pair for pair in others if pair[1] != n_first)
            raise SettingError(
                f"{name} has {n_first} entries and {other} has {n_other}; expected as many in "
                "both, one for each step."
            )

    @abstractmethod
    def rule(self, step: int) -> Rule:
        """Return the rule that a step applies to weights, gradient and state.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The rule.

        Example:
            >>> import icgd
            >>> dict(icgd.GradientStep(0.1, box=2.0).rule(0).weights)
            {'weights': 1.0, 'gradient': -0.1}
        """

    @abstractmethod
    def name_in_words(self) -> str:
        """Return the kind of steps, such as "momentum steps (0.9)".

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.MomentumStep(0.1, box=2.0).name_in_words()
            'momentum steps (0.9)'
        """

    @cached_property
    def by_name(self) -> dict[str, AbstractGradientStep]:
        """The updates of weights whose options differ, by name; equal ones are one object."""
        variants = dict[Any, AbstractGradientStep]()
        updates = dict[str, AbstractGradientStep]()
        for name, options in self.groups:
            if any(getattr(self, option) != value for option, value in options):
                if options not in variants:
                    variants[options] = replace(self, groups=(), **dict(options))
                updates[name] = variants[options]
        return updates

    def of_weights(self, name: str) -> AbstractGradientStep:
        """Return the update of the weights of one name, with the options of their group.

        Args:
            name: the name, such as "bias_1".

        Returns:
            The update, whose `rule` is that of these weights.

        Example:
            >>> import icgd
            >>> groups = {"bias_1": {"step_size": 0.2}}
            >>> update = icgd.GradientStep(0.1, box=2.0, groups=groups)
            >>> dict(update.of_weights("bias_1").rule(0).weights)
            {'weights': 1.0, 'gradient': -0.2}
        """
        return self.by_name.get(name, self)

    @property
    def variants(self) -> tuple[AbstractGradientStep, ...]:
        """The updates of all groups, each once, that of all other weights first."""
        return (self, *{id(update): update for update in self.by_name.values()}.values())

    @property
    def schedules(self) -> dict[str, tuple[object, ...]]:
        """The settings that have an entry for each step, also those of groups."""
        schedules = super().schedules
        for name, options in self.groups:
            sizes = dict(options).get("step_size")
            if isinstance(sizes, tuple):
                schedules[f"step_size of {name}"] = sizes
        return schedules

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the arrays that the optimiser carries from step to step; they start at 0."""
        return ()

    @property
    def reach(self) -> float:
        """The largest absolute value of a weight."""
        return largest_weight(self.box)

    @property
    def has_root(self) -> bool:
        """Whether a step divides by a root, as Adam's does."""
        return self.rule(0).root is not None

    @property
    def remembered(self) -> tuple[str, ...]:
        """The names of the state, followed by the average of the weights if there is one."""
        return self.state if self.average is None else (*self.state, AVERAGE)

    def kept_of_average(self, step: int) -> float:
        """Return the factor rho of the average in a step; it is 0 in the first step.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The factor, from 0 to 1.

        Example:
            >>> import icgd
            >>> update = icgd.GradientStep(0.1, box=2.0, average=0.9)
            >>> [update.kept_of_average(step) for step in range(3)]
            [0.0, 0.9, 0.9]
        """
        return (self.average or 0.0) if step else 0.0

    @property
    def gradient_factor(self) -> float:
        """The factor of the gradient of half the mean loss, applied before the rule."""
        scale: float = getattr(self, "gradient_scale", 1.0)  # a field of all but GradientStep
        return scale

    @property
    def is_constant(self) -> bool:
        """Whether all steps apply the same rule, judged by some early and some later steps."""
        if self.schedules or self.average:
            return False
        first = self.rule(0)
        try:
            return all(self.rule(step) == first for step in PROBED_STEPS)
        except IndexError:  # a rule with a table of steps
            return False

    @property
    def is_plain(self) -> bool:
        """Whether every step is w - step_size * gradient, with one step size and no average."""
        return False

    def in_words(self) -> str:
        """Return a short description, such as "gradient steps of 0.1, box 2, batches of 4".

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.GradientStep((0.2, 0.1), box=2.0).in_words()
            'gradient steps of 0.1 to 0.2, box 2'
        """
        span = span_in_words(self.step_size)
        batches = "" if self.batch_size is None else f", batches of {self.batch_size:,}"
        averages = "" if self.average is None else f", averages of weights ({self.average:g})"
        words = [self.name_in_words() + f" of {span}", sets_in_words(self.box) + batches + averages]
        names = dict[Any, list[str]]()
        for name, options in self.groups:
            names.setdefault(options, []).append(name)
        for options, members in names.items():
            settings = (f"{option.replace('_', ' ')} {span_in_words(v)}" for option, v in options)
            rest = f"{members[0]} and {len(members) - 1} more"
            shown = " and ".join(members) if len(members) < 3 else rest
            words.append(f"{' and '.join(settings)} for {shown}")
        return ", ".join(words)

    def size_of(self, step: int) -> float:
        """Return the step size of a step.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The step size.

        Example:
            >>> import icgd
            >>> icgd.GradientStep((0.2, 0.1), box=2.0).size_of(1)
            0.1
        """
        sizes = self.step_size
        return sizes[step] if isinstance(sizes, tuple) else sizes

    def examples_of(self, step: int, n_examples: int) -> tuple[int, ...]:
        """Return the indices of the examples that a step uses.

        Args:
            step: the number of the step, counted from 0.
            n_examples: the number of all examples.

        Returns:
            The indices.

        Example:
            >>> import icgd
            >>> icgd.GradientStep(0.1, box=2.0, batch_size=2).examples_of(step=1, n_examples=3)
            (2, 0)
        """
        if self.batch_size is None:
            return tuple(range(n_examples))
        first = step * self.batch_size
        return tuple(number % n_examples for number in range(first, first + self.batch_size))


@final
@dataclass(frozen=True)
class GradientStep(AbstractGradientStep):
    """w <- clip(w - step_size * grad L(w), -box, box), on all examples or `batch_size` of them.

    `box` may also specify other sets to project onto: one set for all layers, a sequence with one
    for each layer, or a mapping from names of weights, `weights_1`, `bias_1`, ..., to sets. A set
    is a number, an array with a number for each weight, a `Box`, a `HalfSpace` or a `Simplex`.

    Args:
        step_size: the step size, or one for each step.
        box: the largest absolute value of a weight, or sets for layers or weights, such as `Box`.
        batch_size: the number of examples of a step; the default is all. Step l = 0, 1, ... uses
            the examples l b, ..., l b + b - 1, modulo n.
        average: the factor rho of a moving average of the weights, which then makes the
            predictions; the default is no average.
        groups: names of weights, each with a `step_size` of its own.

    Raises:
        SettingError: if a number is not positive, or the batch size is not an integer.

    Example:
        >>> import icgd
        >>> icgd.GradientStep(0.1, box=2.0, batch_size=4).in_words()
        'gradient steps of 0.1, box 2, batches of 4'
    """

    def rule(self, step: int) -> Rule:
        return Rule({WEIGHTS: 1.0, GRADIENT: -self.size_of(step)})

    @property
    def is_plain(self) -> bool:
        return self.is_constant and self.average is None and not self.groups

    def name_in_words(self) -> str:
        return "gradient steps"


@final
@dataclass(frozen=True)
class MomentumStep(AbstractGradientStep):
    """Descent with momentum and weight decay, with the conventions of `torch.optim.SGD`.

        g <- gradient + weight_decay * w
        m <- momentum * m + (1 - dampening) * g      in the first step m <- g
        w <- w - step_size * m                       nesterov: w - step_size * (g + momentum * m)

    Args:
        step_size: the step size, or one for each step.
        box: the largest absolute value of a weight, or sets for layers or weights, such as `Box`.
        batch_size: the number of examples of a step, in consecutive batches; the default is all.
        momentum: the momentum coefficient.
        dampening: the dampening of the gradient, after the first step.
        nesterov: whether to use Nesterov momentum.
        weight_decay: the factor of the weights that is added to the gradient.
        gradient_scale: a factor of the gradient of half the mean loss; 2 gives the mean loss.
        average: the factor rho of a moving average of the weights, which then makes the
            predictions; the default is no average.
        groups: names of weights, each with its own `step_size` or `weight_decay`.

    Raises:
        SettingError: if a number is out of its range, or if nesterov is used without momentum.

    Example:
        >>> import icgd
        >>> icgd.MomentumStep(0.1, box=2.0, nesterov=True).in_words()
        'Nesterov steps (0.9) of 0.1, box 2'
    """

    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    gradient_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise SettingError(
                "nesterov=True needs a momentum above 0 and no dampening, got "
                f"momentum={self.momentum:g} and dampening={self.dampening:g}."
            )

    @property
    def state(self) -> tuple[str, ...]:
        return (MOMENTUM,) if self.momentum else ()

    def rule(self, step: int) -> Rule:
        size, decay = self.size_of(step), self.weight_decay
        if not self.momentum:
            return Rule({WEIGHTS: 1.0, GRADIENT: -size}, decay=decay)
        new = 1.0 if step == 0 else 1.0 - self.dampening
        state = {MOMENTUM: {MOMENTUM: self.momentum, GRADIENT: new}}
        direction = {MOMENTUM: -size}
        if self.nesterov:
            direction = {GRADIENT: -size, MOMENTUM: -size * self.momentum}
        return Rule({WEIGHTS: 1.0, **direction}, state, decay=decay)

    def name_in_words(self) -> str:
        kind = "Nesterov" if self.nesterov else "momentum"
        return _kind_in_words(kind, f"{self.momentum:g}", decay=self.weight_decay)


def _kind_in_words(kind: str, *numbers: str, decay: float) -> str:
    """Return a kind of steps with its settings: "momentum steps (0.9, weight decay 0.1)"."""
    settings = [*numbers, f"weight decay {decay:g}"] if decay else numbers
    return f"{kind} steps ({', '.join(settings)})"


@final
@dataclass(frozen=True)
class AdamStep(AbstractGradientStep):
    """Adam with the conventions of `torch.optim.Adam`; if `decoupled`, of `torch.optim.AdamW`.

    At step t = 1, 2, ...:

        g <- gradient + weight_decay * w       decoupled: w <- (1 - step_size * decay) w instead
        m <- beta_1 m + (1 - beta_1) g,   v <- beta_2 v + (1 - beta_2) g^2
        w <- w - step_size / (1 - beta_1^t) * m / (sqrt(v / (1 - beta_2^t)) + eps)

    Args:
        step_size: the step size, or one for each step.
        box: the largest absolute value of a weight, or sets for layers or weights, such as `Box`.
        batch_size: the number of examples of a step, in consecutive batches; the default is all.
        betas: the decay rates of the first and the second moment.
        eps: the number added to the root; the number of pieces grows with its logarithm.
        weight_decay: the factor of the weights that is added to the gradient.
        decoupled: whether weight decay is applied to the weights directly, as in AdamW.
        gradient_scale: a factor of the gradient of half the mean loss; 2 gives the mean loss.
        average: the factor rho of a moving average of the weights, which then makes the
            predictions; the default is no average.
        groups: names of weights, each with its own `step_size` or `weight_decay`.

    Raises:
        SettingError: if a number is out of its range.

    Example:
        >>> import icgd
        >>> icgd.AdamStep(0.01, box=2.0).in_words()
        'Adam steps (0.9, 0.999, eps 0.001) of 0.01, box 2'
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    gradient_scale: float = 1.0

    @property
    def state(self) -> tuple[str, ...]:
        return (FIRST, SECOND)

    def rule(self, step: int) -> Rule:
        (first, second), size = self.betas, self.size_of(step)
        correction = 1.0 - second ** (step + 1)  # of the bias of the second moment
        moment = {SECOND: second, SQUARE: 1.0 - second}
        corrected = {name: factor / correction for name, factor in moment.items()}
        root = Root(FIRST, corrected, self.eps)
        decay = size * self.weight_decay if self.decoupled else 0.0
        return Rule(
            weights={WEIGHTS: 1.0 - decay, SCALED: -size / (1.0 - first ** (step + 1))},
            state={FIRST: {FIRST: first, GRADIENT: 1.0 - first}, SECOND: moment},
            decay=0.0 if self.decoupled else self.weight_decay,
            root=root,
        )

    def name_in_words(self) -> str:
        kind, (first, second) = "AdamW" if self.decoupled else "Adam", self.betas
        numbers = (f"{first:g}", f"{second:g}", f"eps {self.eps:g}")
        return _kind_in_words(kind, *numbers, decay=self.weight_decay)


@final
@dataclass(frozen=True)
class RmspropStep(AbstractGradientStep):
    """RMSprop with the conventions of `torch.optim.RMSprop`, uncentred and without momentum.

        v <- alpha v + (1 - alpha) g^2,   w <- w - step_size * g / (sqrt(v) + eps)

    Args:
        step_size: the step size, or one for each step.
        box: the largest absolute value of a weight, or sets for layers or weights, such as `Box`.
        batch_size: the number of examples of a step, in consecutive batches; the default is all.
        alpha: the decay rate of the mean square of the gradient.
        eps: the number added to the root; the number of pieces grows with its logarithm.
        weight_decay: the factor of the weights that is added to the gradient.
        gradient_scale: a factor of the gradient of half the mean loss; 2 gives the mean loss.
        average: the factor rho of a moving average of the weights, which then makes the
            predictions; the default is no average.
        groups: names of weights, each with its own `step_size` or `weight_decay`.

    Raises:
        SettingError: if a number is out of its range.

    Example:
        >>> import icgd
        >>> icgd.RmspropStep(0.01, box=2.0).in_words()
        'RMSprop steps (0.99, eps 0.001) of 0.01, box 2'
    """

    alpha: float = 0.99
    eps: float = 1e-3
    weight_decay: float = 0.0
    gradient_scale: float = 1.0

    @property
    def state(self) -> tuple[str, ...]:
        return (SECOND,)

    def rule(self, step: int) -> Rule:
        moment = {SECOND: self.alpha, SQUARE: 1.0 - self.alpha}
        return Rule(
            weights={WEIGHTS: 1.0, SCALED: -self.size_of(step)},
            state={SECOND: moment},
            decay=self.weight_decay,
            root=Root(GRADIENT, moment, self.eps),
        )

    def name_in_words(self) -> str:
        numbers = (f"{self.alpha:g}", f"eps {self.eps:g}")
        return _kind_in_words("RMSprop", *numbers, decay=self.weight_decay)
