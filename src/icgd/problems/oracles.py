"""Oracles: exact training in float64, which all runs are compared with.

Each kind of target has one: a network, a linear model and the function of a kernel machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count as count_up
from itertools import islice
from math import inf, prod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from icgd.environment import require_memory
from icgd.errors import (
    BoxWarning,
    DataError,
    DivergenceWarning,
    DomainError,
    OverflowedRunError,
    ProofError,
    SettingError,
    at,
    quoted,
)
from icgd.problems.data import (
    FLOAT32_ROUNDING,
    Domain,
    Task,
    as_numbers,
    checked_array,
    first_set,
    require_within,
)
from icgd.problems.functions import activation_named
from icgd.problems.kernel_machine import (
    SHAPES,
    KernelHead,
    KernelMachine,
    Rows,
    as_matrix,
    unit_rows,
)
from icgd.problems.linear_model import LinearModel, require_labels
from icgd.problems.losses import Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AVERAGE, SECOND, WEIGHTS, AbstractGradientStep, Sum
from icgd.problems.piecewise import Function
from icgd.problems.separable import require_minimiser
from icgd.problems.sets import NetworkSets, sets_in_words, sets_of
from icgd.problems.settings import count, positive
from icgd.problems.spectrum import divergence, step_size
from icgd.problems.steps import FunctionalStep, ProximalStep
from icgd.shapes import (
    History,
    Inputs,
    KernelMatrix,
    Labels,
    Parameters,
    Predictions,
    Queries,
    Rates,
)

Shapes = tuple[tuple[int, int], ...]
"""The shapes of matrices, one after the other."""

COPIES = 4
"""Copies of all weights that a run holds at least: before and after a step, gradient, its own."""

MATCHING = "matching"
"""The loss of a linear model: the one that its link matches."""

INTERCEPT = "(intercept)"
"""What the coefficient of no input is called; no input is likely to have that name."""

NUMBERS_AT_ONCE = 2**16
"""The numbers in the widest layer over the steps that are taken together."""

IN_SETS = 2.0**-40
"""Initial weights may be so far from the nearest weights in a set, as a share of the largest."""

LABEL_SUM_ROUNDING = 1e-6
"""Labels of classes add up to 1 within this."""


@runtime_checkable
class ExactStep(Protocol):
    """From the weights before a step and its number, counted from 0, to the weights after it.

    Momentum needs the weights one step earlier, too. Without them a run begins at rest.
    """

    def __call__(
        self, weights: Parameters, number: int, before: Parameters | None = None
    ) -> Parameters: ...


def overflowed(dtype: str, step_size: float | Sequence[float] | None = None) -> OverflowedRunError:
    """Return the error of a run that overflows; `step_size` if it is known."""
    largest = max(step_size) if isinstance(step_size, Sequence) else step_size
    blamed = "a step" if largest is None else f"step_size={largest:g}"
    return OverflowedRunError(
        f"The run leaves the range of {dtype}: {blamed} is too large for these data. Use a smaller "
        "step size."
    )


@dataclass(frozen=True)
class AbstractOracle(ABC):
    """How one kind of target is trained exactly. Subclasses are final and made by `Problem`.

    Everything takes one task, or a batch of tasks with a leading axis. Weights are one vector: the
    matrices of `weight_shapes` one after the other, or the values of a function at all tokens.
    """

    target: MLP | KernelMachine | LinearModel
    loss: str
    update: AbstractGradientStep | FunctionalStep | ProximalStep
    domain: Domain

    def __post_init__(self) -> None:
        if self.domain.score is not None and not isinstance(self.target, LinearModel):
            raise SettingError("domain.score has no effect without a linear model; leave it out.")
        if self.domain.rate is not None and not isinstance(self.target, MLP):
            raise SettingError("domain.rate has no effect without a network; leave it out.")

    def started_from(self, initial: Sequence[float]) -> AbstractOracle:
        """Return an oracle that starts from these weights by default."""
        raise SettingError("initial has no effect without a network; leave it out.")

    @property
    @abstractmethod
    def weight_shapes(self) -> Shapes:
        """The shapes of the trained matrices; none if a function is trained."""

    def labelled(self, y: Tensor, expected: tuple[int, ...]) -> Tensor:
        """Return labels in the expected shape, if they can be given in another one."""
        return y

    def require_labels(self, y: Labels) -> None:
        """Raise `DataError` unless every label suits the loss; the squared loss takes all."""
        return None

    def initial(
        self, x: Inputs, queries: Queries, *, given: Any = None, seed: int | None = None
    ) -> Parameters:
        """Return the weights that a run on these inputs starts from: those given, or its own."""
        n_weights = sum(rows * columns for rows, columns in self.weight_shapes)
        batch, shape = tuple(x.shape[:-2]), (*x.shape[:-2], n_weights)
        of_tasks = f" for {prod(batch):,} tasks" if batch else ""
        what = f"Training {n_weights:,} weights{of_tasks}"
        require_memory(what, COPIES * 8 * prod(shape), "Take a narrower network, or fewer tasks.")
        if given is None:
            return self.own_start(batch, seed)
        if seed is not None:
            raise SettingError("Give either initial or seed, not both.")
        weights = self.with_state(checked_array("initial", given))
        if tuple(weights.shape) not in {(n_weights,), shape}:
            raise DataError(f"initial has shape {tuple(weights.shape)}; expected {shape}.")
        return weights.expand(shape)

    def with_state(self, weights: Tensor) -> Tensor:
        """Append what an optimiser remembers at its start, if these are weights alone."""
        return weights

    def require_start(self, trained: Tensor, n_examples: int, dtype: torch.dtype) -> None:
        """Raise an error unless a run of this precision can start from what is trained."""
        if isinstance(self.update.box, float):
            require_within("initial", trained, self.update.box, "box")

    def starts_fresh(self, trained: Tensor) -> bool:
        """Return whether the state of the optimiser is 0."""
        return True

    def own_start(self, batch: tuple[int, ...], seed: int | None) -> Parameters:
        """Return the weights that a run starts from if none are given: 0 unless drawn."""
        n_weights = sum(rows * columns for rows, columns in self.weight_shapes)
        return torch.zeros(*batch, n_weights, dtype=torch.float64)

    @abstractmethod
    def exact_step(self, task: Task) -> ExactStep:
        """Return an exact step for the task; what steps share is computed once."""

    def step(self, task: Task, weights: Parameters, number: int = 0) -> Parameters:
        """Return the weights after step `number`, counted from 0, which starts from `weights`."""
        return self.exact_step(task)(weights.double(), number)

    def train(self, task: Task, n_steps: int) -> History:
        """Take `n_steps` exact steps; the history begins with the task's initial weights."""
        history, step = [task.initial.double()], self.exact_step(task)
        for number in range(n_steps):
            history.append(step(history[-1], number, history[max(0, number - 1)]))
        return torch.stack(history, dim=-2)

    def stepped(self, task: Task, history: History) -> Tensor:
        """Take one exact step from each entry of a run but its last, with its own momentum."""
        before, step = history[..., :-1, :].double(), self.exact_step(task)
        rows = before.unbind(-2)
        after = [step(row, number, rows[max(0, number - 1)]) for number, row in enumerate(rows)]
        return torch.stack(after, dim=-2) if after else before

    @abstractmethod
    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        """Describe the problem for a certificate, as docs/certificates.md defines.

        All numbers are exact binary fractions such as "0x1.8p+1". Raises `ProofError` if
        something about it is a function of the user's.
        """

    @abstractmethod
    def work(self, task: Task, n_steps: int) -> int:
        """Estimate the operations of exact training in balls, whose bits grow with the steps."""

    @abstractmethod
    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Predict the labels of the queries."""

    @abstractmethod
    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return the training loss, one number a task."""

    @property
    @abstractmethod
    def loss_in_words(self) -> str:
        """Which loss `risk` is."""

    @abstractmethod
    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return what is trained as named matrices, with a leading axis for a batch of tasks."""

    def objective(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"] | None:
        """Return the objective where it is more than the training loss: with penalties."""
        return None

    @property
    def unusual_loss(self) -> str | None:
        """The loss of an example as a formula, where it is not the one that its name suggests."""
        return None

    def examples_of(self, number: int, n_examples: int) -> Sequence[int]:
        """Return the examples that a step uses, both counted from 0."""
        return range(n_examples)

    def preactivations(self, task: Task, weights: Parameters, number: int) -> list[Tensor]:
        """Return the preactivations of every layer in a step; none without units."""
        return []

    def named(self, weights: Parameters, inputs: Sequence[str]) -> dict[str, float] | None:
        """Return the weights of one task by input name, if each weight belongs to one input."""
        return None

    def require_end(self, task: Task) -> None:
        """Raise an error if a run on this task must not wait until its weights move no more."""
        return None

    def overflow(self, dtype: str) -> OverflowedRunError:
        """Return the error of a run that leaves the range of its numbers."""
        return overflowed(dtype, self.update.step_size)

    def warnings_before(self, task: Task, n_steps: int) -> Iterator[Warning]:
        """Yield warnings before a run."""
        return iter(())

    def warnings_after(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """Yield warnings after a run on a task that ended with these weights."""
        return iter(())


@dataclass(frozen=True)
class Forward:
    """Preactivations z_1 .. z_N and outputs p_0 .. p_N of every layer.

    Those of layers with a norm are normalised; `scales` has what they were multiplied by.
    """

    preactivations: list[Tensor]
    outputs: list[Tensor]
    scales: dict[int, Tensor]


def forward(target: MLP, parameters: Parameters, x: Inputs) -> Forward:
    """Run the target network on every row of `x`."""
    found = Forward([], [x], {})
    outputs = found.outputs
    for layer, matrix in enumerate(target.matrices(parameters), start=1):
        z = target.layer_inputs(outputs[-1]) @ matrix.mT
        if layer in target.norms:
            z = z - z.mean(-1, keepdim=True)
            variance = (z * z).mean(-1, keepdim=True)
            found.scales[layer] = 1.0 / (variance + target.norm_eps).sqrt()
            z = z * found.scales[layer]
        found.preactivations.append(z)
        value = target.layer_activation(layer).value(z)
        outputs.append(sum((outputs[source] for source in target.sources(layer)), value))
    return found


def predict(target: MLP, parameters: Parameters, x: Inputs) -> Labels:
    """Return the network's output."""
    return forward(target, parameters, x).outputs[-1]


def gradient(
    target: MLP, loss: Loss, weights: Parameters, x: Inputs, y: Labels, rates: Rates | None = None
) -> Parameters:
    """Return the gradient of the risk on these examples, each times its rate if any."""
    matrices = target.matrices(weights)
    states = forward(target, weights, x)
    slope = loss.slope(states.outputs[-1], y)
    pulled_back = {target.depth: slope if rates is None else slope * rates}
    blocks: list[Tensor] = []
    for layer in range(target.depth, 0, -1):
        z, back = states.preactivations[layer - 1], pulled_back[layer]
        delta = target.layer_activation(layer).derivative(z) * back
        if layer in states.scales:
            centred = delta - delta.mean(-1, keepdim=True)
            shared = (centred * z).mean(-1, keepdim=True)
            delta = states.scales[layer] * (centred - shared * z)
        inputs = states.outputs[layer - 1]
        blocks.append((delta.mT @ target.layer_inputs(inputs)).flatten(-2))
        passed_on = delta @ matrices[layer - 1][..., : inputs.shape[-1]]
        for source in target.sources(layer):
            pulled_back[source] = pulled_back[source] + back if source in pulled_back else back
        below = pulled_back.get(layer - 1)
        pulled_back[layer - 1] = passed_on if below is None else passed_on + below
    return torch.cat(blocks[::-1], dim=-1) / (2 * x.shape[-2])


@dataclass(frozen=True)
class NetworkOracle(AbstractOracle):
    r"""Gradient descent on a network, on all examples or on batches of them, by explicit formulas.

        z_j = V_j p_{j-1},  p_j = r(z_j)                               forward
        s_N = r'(z_N) * u,  s_j = r'(z_j) * (V_{j+1}^T s_{j+1})        backward
        grad of V_j = (1 / 2n) sum_i s_{i,j} p_{i,j-1}^T

    With biases a constant 1 stands below every p_{j-1}, and nothing is passed back to it. A layer
    with a norm has its preactivation h_j = c (z_j - mean z_j), c = 1 / sqrt(var z_j + eps), in
    place of z_j, and with g = r'(h_j) * what is pulled back

        s_j = c (g - mean g - h_j mean(g h_j)).

    Shortcuts (i, j) add p_i to p_j, and what is pulled back to p_j to that of p_i. What a step
    makes of the gradient is the rule of its update (`problems/optimisers.py`).

    What is trained is one vector: the weights, and after them each part of the optimiser's state,
    in the same order.
    """

    target: MLP
    update: AbstractGradientStep
    start: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        loss_named(self.loss)
        self.sets  # noqa: B018 - it checks that the sets suit the network
        kinds = ("weights", "bias") if self.target.biases else ("weights",)
        names = [f"{kind}_{j}" for kind in kinds for j in range(1, self.target.depth + 1)]
        for name in (name for name, _ in self.update.groups if name not in names):
            raise SettingError(
                f"groups: {name} is no name of weights of this network, which has "
                f"{', '.join(names)}."
            )

    def started_from(self, initial: Sequence[float]) -> NetworkOracle:
        if len(initial) != self.target.n_parameters:
            raise SettingError(
                f"initial has {len(initial)} entries; expected {self.target.n_parameters}, one for "
                "each weight."
            )
        return replace(self, start=tuple(initial))

    @cached_property
    def sets(self) -> NetworkSets:
        """What the weights of each layer are projected onto."""
        return sets_of(self.target, self.update.box)

    @property
    def weight_shapes(self) -> Shapes:
        return self.target.matrix_shapes * (1 + len(self.update.remembered))

    def weights_of(self, trained: Tensor) -> Tensor:
        """Return the weights without the state of the optimiser."""
        return trained[..., : self.target.n_parameters]

    def _split(self, trained: Tensor) -> dict[str, Tensor]:
        """Split into the weights, each part of the state, and the average of the weights."""
        parts = trained.split(self.target.n_parameters, dim=-1)
        return dict(zip((WEIGHTS, *self.update.remembered), parts, strict=True))

    def require_start(self, trained: Tensor, n_examples: int, dtype: torch.dtype) -> None:
        """Check weights and their average against the box, the state, and the batch size.

        A mean of squares is not negative; all else of the state must leave a weight some digits
        when a step along it is added.
        """
        parts, n_weights, bounded = {}, self.target.n_parameters, trained
        if self.update.state:
            parts = self._split(trained)
            inside = [part * (name not in self.update.state) for name, part in parts.items()]
            bounded = torch.cat(inside, dim=-1)
        self._require_in_sets(bounded)
        sizes = self.update.step_size
        size = max(sizes) if isinstance(sizes, tuple) else sizes
        largest = self.update.reach / torch.finfo(dtype).eps / size if size else inf
        for number, name in enumerate(self.update.state, start=1):
            part = parts[name].double()
            low, high = (0.0, inf) if name == SECOND else (-largest, largest)
            if index := first_set((part < low) | (part > high)):
                place = [*index[:-1], number * n_weights + index[-1]]
                why = f"which lies within [{low:.6g}, {high:.6g}], or no digit of a weight is left"
                if name == SECOND:
                    why = "a mean of squares, which is not negative"
                raise DataError(
                    f"initial{at(place)} is {part[tuple(index)].item():.12g}; it belongs to the "
                    f"{name.replace('_', ' ')}, {why}. Give another one, or weights alone: the "
                    "optimiser then starts from 0."
                )
        batch = self.update.batch_size
        if batch is not None and batch > n_examples:
            raise DataError(
                f"X has {n_examples} examples, fewer than batch_size={batch} that a step takes. "
                f"Give at least {batch}, or a smaller batch_size."
            )

    def _require_in_sets(self, trained: Tensor) -> None:
        """Check that weights, and their average, are what they are projected to."""
        if (bound := self.sets.bound) is not None:
            require_within("initial", trained, bound, "box")
            return
        sets, parts = self.sets, trained.unflatten(-1, (-1, self.target.n_parameters))
        # What is not in the state, which is 0 here, is to be in the sets.
        is_state = [name in self.update.state for name in (WEIGHTS, *self.update.remembered)]
        nearest = torch.where(torch.tensor(is_state)[:, None], 0.0, sets.project(parts))
        slack = FLOAT32_ROUNDING if trained.dtype == torch.float32 else IN_SETS
        if index := first_set((nearest - parts).abs().flatten(-2) > slack * sets.reach):
            raise DomainError(
                f"initial{at(index)} is {trained[tuple(index)].item():.12g}, outside the "
                f"{sets_in_words(self.update.box)}: the nearest weights that are allowed have "
                f"{nearest.flatten(-2)[tuple(index)].item():.12g} there. Start from "
                "problem.oracle.sets.project(initial)."
            )

    def starts_fresh(self, trained: Tensor) -> bool:
        parts = self._split(trained)
        return not any(bool(parts[name].any()) for name in self.update.state)

    def with_state(self, weights: Tensor) -> Tensor:
        n_weights = self.target.n_parameters
        if weights.ndim == 0 or weights.shape[-1] != n_weights:
            return weights
        trained = weights
        if self.update.state:
            trained = functional.pad(weights, (0, n_weights * len(self.update.state)))
        return trained if self.update.average is None else torch.cat([trained, weights], dim=-1)

    def labelled(self, y: Tensor, expected: tuple[int, ...]) -> Tensor:
        """Turn classes, counted from 0, into labels: 1 for the class and 0 for all others."""
        n_classes = expected[-1]
        if not loss_named(self.loss).is_softmax or tuple(y.shape) != expected[:-1]:
            return y
        if n_classes == 1 and bool((y == 1).all()):  # shares, not classes
            return y
        if index := first_set((y < 0) | (y >= n_classes) | (y != y.round())):
            raise DataError(
                f"y{at(index)} is {y[tuple(index)].item():.12g}; the cross_entropy loss of "
                f"{n_classes} outputs needs classes from 0 to {n_classes - 1}, or a row of "
                f"{n_classes} shares for each example."
            )
        return functional.one_hot(y.long(), n_classes).to(y)

    def require_labels(self, y: Labels) -> None:
        loss = loss_named(self.loss)
        if loss.labels_are_probabilities and (index := first_set((y < 0) | (y > 1))):
            raise DataError(
                f"y{at(index)} is {y[tuple(index)].item():.12g}; the {self.loss} loss needs "
                "labels between 0 and 1. Recode the labels, or use loss='squared'."
            )
        if loss.is_softmax:
            off = (y.sum(-1, keepdim=True) - 1).abs() > LABEL_SUM_ROUNDING
            if index := first_set(off.expand_as(y)):
                total = y.sum(-1)[tuple(index[:-1])].item()
                raise DataError(
                    f"The labels of example {at(index[:-1])} add up to {total:.12g}; the "
                    f"{self.loss} loss needs shares that add up to 1, such as a 1 for the class "
                    "and 0 for all others."
                )

    def own_start(self, batch: tuple[int, ...], seed: int | None) -> Parameters:
        if self.start is not None and seed is None:
            start = torch.tensor(self.start, dtype=torch.float64)
            return self.with_state(start).expand(*batch, -1)
        drawn = self.target.initial_parameters(seed or 0, self.update.reach, batch)
        return self.with_state(self.sets.project(drawn))

    def examples_of(self, number: int, n_examples: int) -> Sequence[int]:
        return self.update.examples_of(number, n_examples)

    def examples(self, task: Task, number: int) -> Task:
        """Return the task with the examples that a step uses: all of them, or its batch."""
        if self.update.batch_size is None:
            return task
        rows = list(self.examples_of(number, task.n_examples))
        rates = None if task.rates is None else task.rates[..., rows, :]
        return replace(task, x=task.x[..., rows, :], y=task.y[..., rows, :], rates=rates)

    def exact_step(self, task: Task) -> ExactStep:
        data = task.double()

        def step(weights: Parameters, number: int, before: Parameters | None = None) -> Parameters:
            parts = self._split(weights)
            weights, average = parts.pop(WEIGHTS), parts.pop(AVERAGE, None)
            gradient = self.gradient(data, weights, number)
            moved, after = self._moved(number, weights, gradient, parts)
            clipped = self.sets.project(moved)
            if average is not None:
                kept = self.update.kept_of_average(number)
                after[AVERAGE] = kept * average + (1.0 - kept) * clipped
            return torch.cat([clipped, *after.values()], dim=-1) if after else clipped

        return step

    def _moved(
        self, number: int, weights: Parameters, gradient: Parameters, parts: dict[str, Parameters]
    ) -> tuple[Parameters, dict[str, Parameters]]:
        """Return the weights before they are projected, and the new state."""
        moved, after = self.update.rule(number).applied(weights, gradient, parts)
        for update, belongs in self._groups:
            own, own_state = update.rule(number).applied(weights, gradient, parts)
            moved = torch.where(belongs, own, moved)
            after = {name: torch.where(belongs, own_state[name], after[name]) for name in after}
        return moved, after

    @cached_property
    def _groups(self) -> list[tuple[AbstractGradientStep, Tensor]]:
        """The updates of groups with options of their own, and masks of their weights."""
        found = []
        for update in self.update.variants[1:]:
            masks = []
            columns = self._columns_of(update)
            for shape, ends in zip(self.target.matrix_shapes, columns, strict=True):
                mask = torch.zeros(shape, dtype=torch.bool)
                mask[:, slice(*(ends or (0, 0)))] = True
                masks.append(mask.flatten())
            found.append((update, torch.cat(masks)))
        return found

    def _columns_of(self, update: AbstractGradientStep) -> list[tuple[int, int] | None]:
        """Return the range of columns of every layer's matrix that an update moves, if any."""
        columns = list[tuple[int, int] | None]()
        for layer, (_, n_columns) in enumerate(self.target.matrix_shapes, start=1):
            width = self.target.widths[layer - 1]
            ranges = {f"weights_{layer}": (0, width)}
            if self.target.biases:
                ranges[f"bias_{layer}"] = (width, n_columns)
            own = [ends for name, ends in ranges.items() if self.update.of_weights(name) is update]
            columns.append((own[0][0], own[-1][1]) if own else None)
        return columns

    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        target, update = self.target, self.update
        n_rules = 1 if update.is_constant else n_steps
        return {
            "kind": "network",
            "widths": list(target.widths),
            "activation": _defined(target.activation),
            "output_activation": _defined(target.output_activation),
            "biases": target.biases,
            "shortcuts": [list(pair) for pair in target.shortcuts],
            "norms": list(target.norms),
            "norm_eps": target.norm_eps.hex(),
            "loss": self.loss,
            "box": self.sets.in_certificates(),
            "batch_size": update.batch_size,
            "gradient_scale": update.gradient_factor.hex(),
            "remembered": list(update.remembered),
            "rules": [self._described_rule(step) for step in range(n_rules)],
        }

    def work(self, task: Task, n_steps: int) -> int:
        n_examples = self.update.batch_size or task.n_examples
        of_example = 3 * self.target.n_parameters + 10 * sum(self.target.widths[1:])
        of_step = n_examples * of_example + 100 * sum(map(prod, self.weight_shapes))
        is_plain = self.target.is_chain and not self.update.state and not self.update.has_root
        longer = 1 + n_steps // (400 if is_plain else 100)  # plain steps lose few bits
        return prod(task.batch) * n_steps * of_step * longer

    def _described_rule(self, step: int) -> Any:
        """Describe the rule of a step, a table of sums, with exact numbers.

        If groups of weights have rules of their own, there is one for each, with its columns.
        """
        if self.update.by_name:
            parts = [(update, self._columns_of(update)) for update in self.update.variants]
            return [
                {"columns": [ends and [*ends] for ends in columns], **self._rule_data(update, step)}
                for update, columns in parts
                if any(columns)
            ]
        return self._rule_data(self.update, step)

    def _rule_data(self, update: AbstractGradientStep, step: int) -> dict[str, Any]:
        rule, average = update.rule(step), None
        if update.average is not None:
            average = update.kept_of_average(step).hex()
        root = None
        if rule.root is not None:
            argument, eps = _hex_sum(rule.root.argument), rule.root.eps.hex()
            root = {"factor": rule.root.factor, "argument": argument, "eps": eps}
        return {
            "weights": _hex_sum(rule.weights),
            "state": {name: _hex_sum(terms) for name, terms in rule.state.items()},
            "decay": float(rule.decay).hex(),
            "root": root,
            "average": average,
        }

    def stepped(self, task: Task, history: History) -> Tensor:
        """Take steps that all use the same examples together, groups of them at a time."""
        differs = self.update.batch_size is not None or not self.update.is_constant
        if differs or history.shape[-2] < 2:
            return super().stepped(task, history)
        numbers = task.n_examples * max(self.target.widths) * prod(task.batch)
        groups = history[..., :-1, :].double().split(max(1, NUMBERS_AT_ONCE // numbers), dim=-2)
        task, after = task.double(), []
        for weights in groups:  # as a batch of tasks that share their data
            batch = weights.shape[:-1]
            x, y, queries = (
                part.unsqueeze(-3).expand(*batch, *part.shape[-2:])
                for part in (task.x, task.y, task.queries)
            )
            rates = task.rates
            rates = rates if rates is None else rates.unsqueeze(-3).expand(*batch, -1, -1)
            step = self.exact_step(Task(x, y, queries, weights, rates=rates))
            after.append(step(weights, 0))
        return torch.cat(after, dim=-2)

    def gradient(self, task: Task, weights: Parameters, number: int = 0) -> Parameters:
        """Return the gradient of the risk on the examples of a step, as the update scales it."""
        used, weights = self.examples(task, number), self.weights_of(weights).double()
        x, y, loss = used.x.double(), used.y.double(), loss_named(self.loss)
        rates = None if used.rates is None else used.rates.double()
        return gradient(self.target, loss, weights, x, y, rates) * self.update.gradient_factor

    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Predict by the average of the weights, if there is one."""
        parts = self._split(weights)
        own = parts.get(AVERAGE, parts[WEIGHTS])
        return predict(self.target, own.double(), task.queries.double())

    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return L(w) = (1 / 2n) sum_i loss(p_i, y_i), each times its rate if there are rates."""
        outputs = predict(self.target, self.weights_of(weights).double(), task.x.double())
        losses = loss_named(self.loss).value(outputs, task.y.double())
        rated = losses if task.rates is None else losses * task.rates.double().squeeze(-1)
        return rated.mean(-1) / 2

    @property
    def loss_in_words(self) -> str:
        rated = "" if self.domain.rate is None else ", each times its rate"
        return f"half the mean {self.loss.replace('_', ' ')} loss of all examples{rated}"

    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return weights_1, bias_1, weights_2, ...: a bias is the last column of its matrix.

        What an optimiser remembers follows as momentum_1, momentum of bias_1, ..., and so does the
        average of the weights.
        """
        found: dict[str, Tensor] = {}
        for kind, part in self._split(weights).items():
            bias = "bias" if kind == WEIGHTS else f"{kind} of bias"
            for layer, matrix in enumerate(self.target.matrices(part), start=1):
                n_inputs = self.target.widths[layer - 1]
                found[f"{kind}_{layer}"] = matrix[..., :n_inputs]
                if self.target.biases:
                    found[f"{bias}_{layer}"] = matrix[..., n_inputs]
        return found

    def warnings_after(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """Warn if a run that was given its start, as one from torch, ends at the box."""
        if self.start is None:
            return
        ends, (low, high) = self.weights_of(weights), self.sets.ends()
        at_box = (low < high) & ((ends <= low) | (ends >= high))  # others are fixed there
        if bool(at_box.any()):
            yield BoxWarning(
                f"A weight ends at the {sets_in_words(self.update.box)}, which PyTorch does not "
                "have: the run is no longer the one of your script. Give a larger box; if the "
                "script's own weights stay within this one, a function is approximated too "
                "coarsely, and more pieces or a smaller box help."
            )

    def preactivations(self, task: Task, weights: Parameters, number: int) -> list[Tensor]:
        x = self.examples(task, number).x.double()
        return forward(self.target, self.weights_of(weights).double(), x).preactivations


def soft_threshold(values: Tensor, threshold: Tensor) -> Tensor:
    """Move every value towards 0 by its threshold, and no further."""
    return torch.relu(values - threshold) - torch.relu(-values - threshold)


@dataclass(frozen=True)
class Descent:
    """Where a run stopped, after how many steps, and the largest change of its last step."""

    weights: Parameters
    n_steps: int
    last_change: float
    converged: bool


@dataclass(frozen=True)
class LinearOracle(AbstractOracle):
    """(Proximal) gradient descent on a linear model.

        g  = scale * sum_i (mu(<w, x_i>) - y_i) x_i
        w <- S(w - step_size * (g + l2 * w)),  S(v) = relu(v - c) - relu(-v - c), c = step_size * l1

    and clipped, if there is a box: that is the proximal step of the penalty within it. With
    momentum m, w + m (w - w_before) takes the place of the first w; with Nesterov's g is taken
    there too. The intercept is the coefficient of a constant input 1; l2 and c are 0 for it. A step
    costs O(n d) a task.
    """

    target: LinearModel
    update: ProximalStep

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss != MATCHING:
            raise SettingError(
                f"loss of a linear model must be {MATCHING!r}, got {quoted(self.loss)}."
            )

    @property
    def weight_shapes(self) -> Shapes:
        return ((1, self.target.input_width), *(((1, 1),) if self.target.intercept else ()))

    def require_labels(self, y: Labels) -> None:
        require_labels(self.target.link_function, y)

    def scores(self, weights: Parameters, x: Inputs) -> Labels:
        """Return <w, x>, with the intercept."""
        return self.target.design(x) @ weights.double().unsqueeze(-1)

    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Return the expected labels mu(<w, x>)."""
        return self.target.link_function.mean(self.scores(weights, task.queries))

    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return L(w): the sum or mean of a(z_i) - y_i z_i."""
        scores = self.scores(weights, task.x)
        losses = self.target.link_function.loss(scores, task.y.double())
        return self.target.loss_scale(task.n_examples) * losses.sum((-2, -1))

    @property
    def loss_in_words(self) -> str:
        link = f"the loss that matches the {self.target.link} link"
        formula = f", {self.unusual_loss}" if self.unusual_loss else ""
        return f"{self.target.reduction} over all examples of {link}{formula}"

    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return the coefficients, and the intercept if there is one."""
        width = self.target.input_width
        found = {"coefficients": weights[..., :width]}
        return found | ({"intercept": weights[..., width]} if self.target.intercept else {})

    def objective(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return L(w) + (l2 / 2) |w|_2^2 + l1 |w|_1."""
        penalised = weights.double() * self.target.penalised(weights.double())
        ridge, lasso = penalised.square().sum(-1) / 2, penalised.abs().sum(-1)
        return self.risk(task, weights) + self.update.l2 * ridge + self.update.l1 * lasso

    @property
    def unusual_loss(self) -> str | None:
        """Losses of least squares may be negative, which nobody expects of them."""
        return "(z - y)^2 / 2 less y^2 / 2" if self.target.link == "identity" else None

    def gradient(self, task: Task, weights: Parameters) -> Parameters:
        """Return the gradient of L(w) + (l2 / 2) |w|_2^2, the smooth part of the objective."""
        weights, design = weights.double(), self.target.design(task.x)
        left = self.target.link_function.mean(self.scores(weights, task.x)) - task.y.double()
        slope = (design.mT @ left).squeeze(-1) * self.target.loss_scale(task.n_examples)
        return slope + self.update.l2 * self.target.penalised(slope) * weights

    def exact_step(self, task: Task) -> ExactStep:
        """Return an exact step; without a step size it costs O(n d^2) once to find one."""
        update, size = self.update, step_size(self.target, self.update, task.x)
        penalised = self.target.penalised(task.x.double())

        def step(weights: Parameters, number: int, before: Parameters | None = None) -> Parameters:
            start = point = weights.double()
            if update.momentum is not None and before is not None:
                change = start - before.double()
                point = start + update.lookahead_of(number) * change
                start = start + update.momentum_of(number) * change
            moved = start - size * self.gradient(task, point)
            if update.l1:
                moved = soft_threshold(moved, size * update.l1 * penalised)
            return moved if update.box is None else moved.clamp(-update.box, update.box)

        return step

    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        update, box = self.update, self.update.box
        return {
            "kind": "linear",
            "link": self.target.link,
            "intercept": self.target.intercept,
            "reduction": self.target.reduction,
            "step_size": step_size(self.target, update, task.x).hex(),
            "l2": update.l2.hex(),
            "l1": update.l1.hex(),
            "box": None if box is None else box.hex(),
            **_described_momentum(update, n_steps),
        }

    def work(self, task: Task, n_steps: int) -> int:
        of_step = task.n_examples * (2 * self.target.n_parameters + 10)
        return prod(task.batch) * n_steps * of_step * (1 + n_steps // 100)

    def descend(self, task: Task, *, tolerance: float, most_steps: int) -> Descent:
        """Step exactly until no coefficient of any task changes by more than `tolerance`.

        Raises `SeparableDataError` where no minimiser exists, for steps shorten there all the same.
        """
        self.require_end(task)
        positive("tolerance", tolerance)
        count("most_steps", most_steps)
        weights, step, change = task.initial.double(), self.exact_step(task), inf
        before = weights
        for n_steps in range(1, most_steps + 1):
            before, weights = weights, step(weights, n_steps - 1, before)
            change = float((weights - before).abs().max())
            if change <= tolerance:
                return Descent(weights, n_steps, change, converged=True)
            if not change < inf:
                raise overflowed("float64", step_size(self.target, self.update, task.x))
        return Descent(weights, most_steps, change, converged=False)

    def require_end(self, task: Task) -> None:
        """Require a minimiser: without one steps shorten, but coefficients grow for ever."""
        require_minimiser(self.target, self.update, task.x.double(), task.y.double())

    def named(self, weights: Parameters, inputs: Sequence[str]) -> dict[str, float]:
        names = (*inputs, *(INTERCEPT,) * self.target.intercept)
        return dict(zip(names, weights.tolist(), strict=True))

    def warnings_after(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """Warn if the descent ends at the box, because its minimiser lies beyond."""
        box = self.update.box
        if box is None or not weights.numel():
            return
        largest, place = weights.abs().flatten().max(0)
        if largest >= box:
            number = int(place) % weights.shape[-1]
            which = f"Coefficient {number} (counted from 0)"
            if task.input_names:
                which = f"The coefficient of {(*task.input_names, INTERCEPT)[number]!r}"
            yield BoxWarning(
                f"{which} ends at the box, {box:g}: without it, it would be larger. Give a larger "
                "box, or a smaller step size if steps diverge."
            )


def _defined(activation: str | tuple[str, ...]) -> str | list[str]:
    """Return what a certificate calls activations: their texts, if these define them."""
    if isinstance(activation, tuple):
        return [str(_defined(name)) for name in activation]
    value = activation_named(activation).value
    return value.definition if isinstance(value, Function) else activation


def _described_momentum(update: FunctionalStep | ProximalStep, n_steps: int) -> dict[str, Any]:
    """Describe the momentum of steps for a certificate: one share for all steps, or one for each.

    There are none without momentum.
    """
    differs = isinstance(update.momentum, tuple)
    n_shares = 0 if update.momentum is None else n_steps if differs else 1
    shares = [update.momentum_of(step).hex() for step in range(n_shares)]
    return {"momenta": shares, "nesterov": update.nesterov}


@dataclass(frozen=True)
class FunctionOracle(AbstractOracle):
    """Functional gradient descent on the squared loss: what kernel attention is compared with.

    The function is held as what it is, f = sum_j a_j K(., x_j), from f = 0, and is evaluated where
    it is needed:

        a <- a + step_size * (y - f(x) - noise * a)

    With momentum, a + m (a - a_before) takes the place of the first a, and with Nesterov's of both.
    Its values at an example count noise * a as learnt, because that part of a label is no longer
    left. Steps that move the inputs (GD++), or that have a kernel each, change the kernel from step
    to step, so f is then the sum of what each step added.
    """

    target: KernelMachine
    update: FunctionalStep

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss != "squared":
            raise SettingError(
                f"loss of a kernel machine must be 'squared', got {quoted(self.loss)}."
            )
        self.update.require_machine(self.target)

    @property
    def weight_shapes(self) -> Shapes:
        return ()

    def initial(
        self, x: Inputs, queries: Queries, *, given: Any = None, seed: int | None = None
    ) -> Parameters:
        """Return the function 0 at all tokens, the only one that may be given."""
        n_values = (x.shape[-2] + queries.shape[-2]) * self.target.output_width
        start = torch.zeros(*x.shape[:-2], n_values, dtype=torch.float64, device=x.device)
        if given is not None:
            numbers = as_numbers("initial", given) if isinstance(given, Tensor) else None
            if numbers is None or numbers.shape != start.shape or numbers.any():
                raise SettingError(
                    "A kernel machine starts from the function 0; leave `initial` out."
                )
        return start

    def kernels(self, task: Task) -> Iterator[KernelMatrix]:
        """Yield the kernel of all tokens (rows) and examples for each step, noise included."""
        points, n_examples = task.points, task.n_examples
        itself = self.update.noise * torch.eye(task.n_tokens, n_examples).to(points)
        for number in count_up():
            if number == 0 or self.update.changes_kernel:
                examples = points[..., :n_examples, :]
                kernel = self.update.machine_of(number, self.target).matrix(points, examples)
                noisy = kernel + itself if self.update.noise else kernel
            yield noisy
            transform = self.update.transform_of(number, self.target.input_width)
            if transform is not None:
                points = points + kernel @ examples @ as_matrix(transform, points).mT

    def exact_step(self, task: Task) -> ExactStep:
        y, kernels, update = task.y.double(), self.kernels(task), self.update
        seen: list[KernelMatrix] = []

        def step(weights: Parameters, number: int, before: Parameters | None = None) -> Parameters:
            seen.extend(islice(kernels, max(0, number + 1 - len(seen))))
            both = (weights, weights if before is None else before)
            now, earlier = (part.unflatten(-1, (-1, y.shape[-1])) for part in both)
            at = now + update.lookahead_of(number) * (now - earlier)
            left = y - at[..., : task.n_examples, :]
            kept = now + update.momentum_of(number) * (now - earlier)
            after: Tensor = kept + update.size_of(number) * seen[number] @ left
            return after.flatten(-2)

        return step

    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        update, width = self.update, self.target.input_width
        n_sizes = n_steps if isinstance(update.step_size, tuple) else 1
        machines = [update.machine_of(step, self.target) for step in range(n_steps)]
        return {
            "kind": "function",
            "heads": [
                [_described(head, width) for head in machine.heads]
                for machine in (machines if update.heads else [self.target])
            ],
            "step_sizes": [update.size_of(step).hex() for step in range(n_sizes)],
            "noise": update.noise.hex(),
            "transforms": [
                _hex(update.transform_of(step, width)) for step in range(len(update.transforms))
            ],
            **_described_momentum(update, n_steps),
        }

    def work(self, task: Task, n_steps: int) -> int:
        pairs, n_kernels = task.n_tokens * task.n_examples, n_steps
        if not self.update.changes_kernel:
            n_kernels = min(n_steps, 1)
        of_pair = len(self.target.heads) * (10 + 2 * self.target.input_width)
        of_steps = n_kernels * of_pair + n_steps * self.target.output_width
        return prod(task.batch) * pairs * of_steps * (1 + n_steps // 100)

    def train(self, task: Task, n_steps: int) -> History:
        """Return the function's values at all tokens before the first step and after every step."""
        if self.update.changes_kernel:
            return super().train(task, n_steps)
        y, update = task.y.double(), self.update
        now = earlier = torch.zeros_like(y)  # the coefficients a
        history = [y.new_zeros(*task.batch, task.n_tokens, y.shape[-1])]
        for number, kernel in zip(range(n_steps), self.kernels(task), strict=False):
            values, kept = history[number][..., : task.n_examples, :], now
            if update.momentum is not None:
                before = history[max(0, number - 1)][..., : task.n_examples, :]
                values = values + update.lookahead_of(number) * (values - before)
                kept = now + update.momentum_of(number) * (now - earlier)
            now, earlier = kept + update.size_of(number) * (y - values), now
            history.append(kernel @ now)
        return torch.stack(history, dim=-3).flatten(-2)

    def limit(self, task: Task) -> Labels:
        """Return the limit at the queries: k_q (K + noise I)^-1 y, the kernel regression.

        Where the kernel matrix is singular it is the pseudo-inverse: descent from 0 never leaves
        its range.
        """
        if self.update.heads:
            raise SettingError(
                "What the function tends to needs one kernel for all steps, with one transform for "
                "queries and keys; here steps have kernels of their own, as learnt layers have. "
                "Use icgd.verify, which measures and bounds every step."
            )
        points, y = task.points, task.y.double()
        examples, queries = points[..., : task.n_examples, :], points[..., task.n_examples :, :]
        noise = self.update.noise * torch.eye(task.n_examples).to(points)
        gram = self.target.gram(examples) + noise
        inverse: Tensor = torch.linalg.pinv(gram, hermitian=self.target.is_symmetric)
        coefficients = inverse @ y
        refined = coefficients + inverse @ (y - gram @ coefficients)  # once, against rounding
        return self.target.matrix(queries, examples) @ refined

    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Return the function's values at the queries, out of those at all tokens."""
        values: Tensor = weights.unflatten(-1, (task.n_tokens, task.y.shape[-1]))
        return values[..., task.n_examples :, :]

    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return (1 / 2n) sum_i |f(x_i) - y_i|^2."""
        values = weights.double().unflatten(-1, (task.n_tokens, task.y.shape[-1]))
        left: Tensor = values[..., : task.n_examples, :] - task.y.double()
        return left.square().sum(-1).mean(-1) / 2

    @property
    def loss_in_words(self) -> str:
        return "half the mean squared loss of all examples"

    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return the function's values at the examples and at the queries: it has no weights."""
        values: Tensor = weights.unflatten(-1, (task.n_tokens, task.y.shape[-1]))
        examples, queries = values.split((task.n_examples, task.n_queries), dim=-2)
        return {"at_examples": examples, "at_queries": queries}

    def require_end(self, task: Task) -> None:
        """Refuse: a function takes all its steps."""
        raise SettingError(
            "stop_below is for runs that train weights; a function takes all its steps. Leave it "
            "out."
        )

    def overflow(self, dtype: str) -> OverflowedRunError:
        """Blame transforms, which let the inputs grow with every step."""
        if not self.update.transforms:
            return overflowed(dtype, self.update.step_size)
        width, n_transforms = self.target.input_width, len(self.update.transforms)
        matrices = (self.update.transform_of(step, width) or () for step in range(n_transforms))
        largest = max(abs(entry) for matrix in matrices for row in matrix for entry in row)
        return OverflowedRunError(
            f"The run leaves the range of {dtype}: transforms with entries of up to {largest:g} "
            "are too large for these data, as they let the inputs grow with every step. Use "
            "smaller transforms."
        )

    def warnings_before(self, task: Task, n_steps: int) -> Iterator[Warning]:
        """Warn if steps are too long for these data; a function is not clipped."""
        worst = divergence(self.target, self.update, task.x, n_steps)
        if worst is None:
            return
        size, place = self.update.step_size, f"the kernel's eigenvalue {worst.eigenvalue:.6g}"
        if worst.eigenvalue < 0:
            place = f"an eigenvector of eigenvalue {worst.eigenvalue:.6g}"
            remedy = (
                "The kernel is not positive there: add noise of at least that size, or use another "
                "kernel."
            )
        elif self.update.momentum is not None or isinstance(size, tuple):
            remedy = "Choose steps for a spectrum that reaches that far."
        else:
            remedy = f"step_size is {size:.6g}; it must be below {2 / worst.eigenvalue:.6g}."
        yield DivergenceWarning(
            f"The steps diverge on these data: the error grows {worst.growth:.3g}-fold along "
            f"{place}. {remedy}"
        )


def _described(head: KernelHead, width: int) -> dict[str, Any]:
    """Describe a head for a certificate, defaults included."""
    if head.function.is_own:
        raise ProofError(
            f"The kernel {quoted(head.kernel)} is a function of your own, which no ball can "
            "enclose. Use one of icgd's kernels to have whole runs proved."
        )
    shape = SHAPES.get(head.kernel, 0.0) if head.shape is None else head.shape
    return {
        "kernel": head.kernel,
        "transform": _hex(head.transform or unit_rows(1.0, width)),
        "key_transform": None if head.key_transform is None else _hex(head.key_transform),
        "weight": head.weight.hex(),
        "shape": float(shape).hex(),
    }


def _hex(rows: Rows | None) -> list[list[str]]:
    return [[entry.hex() for entry in row] for row in rows or ()]


def _hex_sum(terms: Sum) -> dict[str, str]:
    return {name: float(factor).hex() for name, factor in terms.items()}
