"""Oracles: exact training in float64, the reference for all runs.

There is one for each kind of target: networks, linear models and kernel machines.
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
"""The shapes of matrices, in order."""

COPIES = 4
"""A lower bound on the copies of all weights that a run holds in memory at once."""

MATCHING = "matching"
"""The loss of a linear model: the matching loss of its link."""

INTERCEPT = "(intercept)"
"""The name of the intercept among those of inputs, chosen so that no input is likely to have it."""

NUMBERS_AT_ONCE = 2**16
"""The number of values in the widest layer, over the steps that are computed together."""

IN_SETS = 2.0**-40
"""Tolerance on the distance of initial weights from their set, relative to the largest weight."""

LABEL_SUM_ROUNDING = 1e-6
"""Tolerance on the sum of the labels of classes, which should be 1."""


@runtime_checkable
class ExactStep(Protocol):
    """Maps the weights before step `number`, counted from 0, to the weights after it.

    Momentum also needs the weights `before` the previous step; without them the momentum is 0.
    """

    def __call__(
        self, weights: Parameters, number: int, before: Parameters | None = None
    ) -> Parameters: ...


def overflowed(dtype: str, step_size: float | Sequence[float] | None = None) -> OverflowedRunError:
    """Return the error for a run that overflows; it names `step_size` if that is known."""
    largest = max(step_size) if isinstance(step_size, Sequence) else step_size
    cause = "a step" if largest is None else f"step_size={largest:g}"
    return OverflowedRunError(
        f"The run leaves the range of {dtype}: {cause} is too large for these data. Use a smaller "
        "step size."
    )


@dataclass(frozen=True)
class AbstractOracle(ABC):
    """Exact training of one kind of target. Subclasses are final and constructed by `Problem`.

    All methods take one task, or a batch of tasks with a leading axis. Weights are one vector: the
    matrices of `weight_shapes` in order, or the values of a function at all tokens.
    """

    target: MLP | KernelMachine | LinearModel
    loss: str
    update: AbstractGradientStep | FunctionalStep | ProximalStep
    domain: Domain

    def __post_init__(self) -> None:
        if self.domain.score is not None and not isinstance(self.target, LinearModel):
            raise SettingError("domain.score has no effect without a linear model. Omit it.")
        if self.domain.rate is not None and not isinstance(self.target, MLP):
            raise SettingError("domain.rate has no effect without a network. Omit it.")

    def started_from(self, initial: Sequence[float]) -> AbstractOracle:
        """Return an oracle whose default initial weights are these."""
        raise SettingError("initial has no effect without a network. Omit it.")

    @property
    @abstractmethod
    def weight_shapes(self) -> Shapes:
        """The shapes of the trained matrices; none if a function is trained."""

    def labelled(self, y: Tensor, expected: tuple[int, ...]) -> Tensor:
        """Return labels in the expected shape, such as classes as one-hot rows."""
        return y

    def require_labels(self, y: Labels) -> None:
        """Raise `DataError` unless the loss allows every label; the squared loss allows all."""
        return None

    def initial(
        self, x: Inputs, queries: Queries, *, given: Any = None, seed: int | None = None
    ) -> Parameters:
        """Return the initial weights of a run on these inputs: `given`, validated, or drawn."""
        n_weights = sum(rows * columns for rows, columns in self.weight_shapes)
        batch, shape = tuple(x.shape[:-2]), (*x.shape[:-2], n_weights)
        of_tasks = f" for {prod(batch):,} tasks" if batch else ""
        what = f"Training {n_weights:,} weights{of_tasks}"
        require_memory(what, COPIES * 8 * prod(shape), "Use a narrower network, or fewer tasks.")
        if given is None:
            return self.own_start(batch, seed)
        if seed is not None:
            raise SettingError("Give either initial or seed, not both.")
        weights = self.with_state(checked_array("initial", given))
        if tuple(weights.shape) not in {(n_weights,), shape}:
            raise DataError(f"initial has shape {tuple(weights.shape)}; expected {shape}.")
        return weights.expand(shape)

    def with_state(self, weights: Tensor) -> Tensor:
        """Append the initial state of the optimiser, unless the vector has a state already."""
        return weights

    def require_start(self, trained: Tensor, n_examples: int, dtype: torch.dtype) -> None:
        """Raise an error unless a run in this dtype can start from these weights and state."""
        if isinstance(self.update.box, float):
            require_within("initial", trained, self.update.box, "box")

    def starts_fresh(self, trained: Tensor) -> bool:
        """Return whether the initial state of the optimiser is 0."""
        return True

    def own_start(self, batch: tuple[int, ...], seed: int | None) -> Parameters:
        """Return the initial weights if none are given: 0, or random ones for a network."""
        n_weights = sum(rows * columns for rows, columns in self.weight_shapes)
        return torch.zeros(*batch, n_weights, dtype=torch.float64)

    @abstractmethod
    def exact_step(self, task: Task) -> ExactStep:
        """Return a function that takes exact steps; quantities shared by steps are precomputed."""

    def step(self, task: Task, weights: Parameters, number: int = 0) -> Parameters:
        """Return the weights after step `number`, counted from 0, from `weights`."""
        return self.exact_step(task)(weights.double(), number)

    def train(self, task: Task, n_steps: int) -> History:
        """Take `n_steps` exact steps; the history begins with the task's initial weights."""
        history, step = [task.initial.double()], self.exact_step(task)
        for number in range(n_steps):
            history.append(step(history[-1], number, history[max(0, number - 1)]))
        return torch.stack(history, dim=-2)

    def stepped(self, task: Task, history: History) -> Tensor:
        """Return one exact step from every entry of a run except the last, with its momentum."""
        before, step = history[..., :-1, :].double(), self.exact_step(task)
        rows = before.unbind(-2)
        after = [step(row, number, rows[max(0, number - 1)]) for number, row in enumerate(rows)]
        return torch.stack(after, dim=-2) if after else before

    @abstractmethod
    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        """Describe the problem for a certificate, as docs/certificates.md defines.

        All numbers are exact binary fractions such as "0x1.8p+1". Raise `ProofError` if the
        problem contains a user's own function.
        """

    @abstractmethod
    def work(self, task: Task, n_steps: int) -> int:
        """Estimate the operations of training in ball arithmetic; its bits grow with the steps."""

    @abstractmethod
    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Predict the labels of the queries."""

    @abstractmethod
    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return the training loss of each task."""

    @property
    @abstractmethod
    def loss_in_words(self) -> str:
        """A description of the loss that `risk` returns."""

    @abstractmethod
    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return the trained weights as named matrices, with a leading axis for a batch."""

    def objective(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"] | None:
        """Return the objective if it has penalties besides the training loss, otherwise None."""
        return None

    @property
    def unusual_loss(self) -> str | None:
        """The formula of the loss of an example, if its name suggests a different one."""
        return None

    def examples_of(self, number: int, n_examples: int) -> Sequence[int]:
        """Return the indices of the examples that step `number` uses."""
        return range(n_examples)

    def preactivations(self, task: Task, weights: Parameters, number: int) -> list[Tensor]:
        """Return the preactivations of every layer in a step; empty for targets without units."""
        return []

    def named(self, weights: Parameters, inputs: Sequence[str]) -> dict[str, float] | None:
        """Return the weights of one task by input name, or None if they do not belong to inputs."""
        return None

    def require_end(self, task: Task) -> None:
        """Raise an error if training on this task cannot converge."""
        return None

    def overflow(self, dtype: str) -> OverflowedRunError:
        """Return the error for a run that leaves the range of its dtype."""
        return overflowed(dtype, self.update.step_size)

    def warnings_before(self, task: Task, n_steps: int) -> Iterator[Warning]:
        """Yield the warnings to issue before a run."""
        return iter(())

    def warnings_after(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """Yield the warnings to issue after a run that ended with these weights."""
        return iter(())


@dataclass(frozen=True)
class Forward:
    """The preactivations z_1 .. z_N and outputs p_0 .. p_N of all layers.

    The preactivations of layers with a norm are normalised; `scales` has the factors.
    """

    preactivations: list[Tensor]
    outputs: list[Tensor]
    scales: dict[int, Tensor]


def forward(target: MLP, parameters: Parameters, x: Inputs) -> Forward:
    """Run the target network on every row of `x`."""
    states = Forward([], [x], {})
    outputs = states.outputs
    for layer, matrix in enumerate(target.matrices(parameters), start=1):
        z = target.layer_inputs(outputs[-1]) @ matrix.mT
        if layer in target.norms:
            z = z - z.mean(-1, keepdim=True)
            variance = (z * z).mean(-1, keepdim=True)
            states.scales[layer] = 1.0 / (variance + target.norm_eps).sqrt()
            z = z * states.scales[layer]
        states.preactivations.append(z)
        value = target.layer_activation(layer).value(z)
        outputs.append(sum((outputs[source] for source in target.sources(layer)), value))
    return states


def predict(target: MLP, parameters: Parameters, x: Inputs) -> Labels:
    """Return the output of the network."""
    return forward(target, parameters, x).outputs[-1]


def gradient(
    target: MLP, loss: Loss, weights: Parameters, x: Inputs, y: Labels, rates: Rates | None = None
) -> Parameters:
    """Return the gradient of the risk on these examples, weighted by their rates if given."""
    matrices = target.matrices(weights)
    states = forward(target, weights, x)
    slope = loss.slope(states.outputs[-1], y)
    # The gradient in the outputs of each layer, accumulated from the layers that read them.
    of_outputs = {target.depth: slope if rates is None else slope * rates}
    blocks: list[Tensor] = []
    for layer in range(target.depth, 0, -1):
        z, incoming = states.preactivations[layer - 1], of_outputs[layer]
        delta = target.layer_activation(layer).derivative(z) * incoming
        if layer in states.scales:  # backward pass of the norm
            centred = delta - delta.mean(-1, keepdim=True)
            projection = (centred * z).mean(-1, keepdim=True)
            delta = states.scales[layer] * (centred - projection * z)
        inputs = states.outputs[layer - 1]
        blocks.append((delta.mT @ target.layer_inputs(inputs)).flatten(-2))
        of_inputs = delta @ matrices[layer - 1][..., : inputs.shape[-1]]
        for source in target.sources(layer):
            of_outputs[source] = of_outputs[source] + incoming if source in of_outputs else incoming
        from_shortcuts = of_outputs.get(layer - 1)
        of_outputs[layer - 1] = of_inputs if from_shortcuts is None else of_inputs + from_shortcuts
    return torch.cat(blocks[::-1], dim=-1) / (2 * x.shape[-2])


@dataclass(frozen=True)
class NetworkOracle(AbstractOracle):
    r"""Gradient descent on a network, on all examples or on batches of them, by explicit formulas.

        z_j = V_j p_{j-1},  p_j = r(z_j)                               forward
        s_N = r'(z_N) * u,  s_j = r'(z_j) * (V_{j+1}^T s_{j+1})        backward
        grad of V_j = (1 / 2n) sum_i s_{i,j} p_{i,j-1}^T

    With biases a constant 1 is appended to every p_{j-1}, which receives no gradient. A layer with
    a norm has the preactivation h_j = c (z_j - mean z_j), c = 1 / sqrt(var z_j + eps), in place of
    z_j, and with g = r'(h_j) * (gradient in p_j)

        s_j = c (g - mean g - h_j mean(g h_j)).

    Shortcuts (i, j) add p_i to p_j, and the gradient in p_j to that in p_i. The rule of the update
    turns the gradient into a step (`problems/optimisers.py`).

    The trained vector has the weights, followed by each array of the optimiser's state in the same
    order.
    """

    target: MLP
    update: AbstractGradientStep
    start: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        loss_named(self.loss)
        self.sets  # noqa: B018 - raises if the sets do not fit the network
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
        """The sets that the weights of each layer are projected onto."""
        return sets_of(self.target, self.update.box)

    @property
    def weight_shapes(self) -> Shapes:
        return self.target.matrix_shapes * (1 + len(self.update.remembered))

    def weights_of(self, trained: Tensor) -> Tensor:
        """Return the weights without the state of the optimiser."""
        return trained[..., : self.target.n_parameters]

    def _split(self, trained: Tensor) -> dict[str, Tensor]:
        """Split the trained vector into the weights, the state, and the average of the weights."""
        arrays = trained.split(self.target.n_parameters, dim=-1)
        return dict(zip((WEIGHTS, *self.update.remembered), arrays, strict=True))

    def require_start(self, trained: Tensor, n_examples: int, dtype: torch.dtype) -> None:
        """Raise unless weights and their average are in the box, and state and batch size valid.

        A mean of squares must be nonnegative. Other state must be so small that a step along it
        leaves some digits of a weight.
        """
        arrays, n_weights, bounded = {}, self.target.n_parameters, trained
        if self.update.state:
            arrays = self._split(trained)
            inside = [array * (name not in self.update.state) for name, array in arrays.items()]
            bounded = torch.cat(inside, dim=-1)
        self._require_in_sets(bounded)
        sizes = [variant.step_size for variant in self.update.variants]
        size = max(max(s) if isinstance(s, tuple) else s for s in sizes)
        largest = self.update.reach / torch.finfo(dtype).eps / size if size else inf
        for number, name in enumerate(self.update.state, start=1):
            array = arrays[name].double()
            low, high = (0.0, inf) if name == SECOND else (-largest, largest)
            if index := first_set((array < low) | (array > high)):
                position = [*index[:-1], number * n_weights + index[-1]]
                expected = f"expected a number in [{low:.6g}, {high:.6g}], since a larger one "
                expected += "would leave no digit of a weight"
                if name == SECOND:
                    expected = "expected a nonnegative number, since it is a mean of squares"
                raise DataError(
                    f"initial{at(position)}, part of the {name.replace('_', ' ')}, is "
                    f"{array[tuple(index)].item():.12g}; {expected}. Give another one, or only "
                    "weights: the optimiser then starts from 0."
                )
        batch = self.update.batch_size
        if batch is not None and batch > n_examples:
            raise DataError(
                f"X has {n_examples} examples, fewer than batch_size={batch}. Give at least "
                f"{batch}, or a smaller batch_size."
            )

    def _require_in_sets(self, trained: Tensor) -> None:
        """Raise unless the weights and their average are in the sets; state is 0 here."""
        if (bound := self.sets.bound) is not None:
            require_within("initial", trained, bound, "box")
            return
        sets, arrays = self.sets, trained.unflatten(-1, (-1, self.target.n_parameters))
        is_state = [name in self.update.state for name in (WEIGHTS, *self.update.remembered)]
        nearest = torch.where(torch.tensor(is_state)[:, None], 0.0, sets.project(arrays))
        slack = FLOAT32_ROUNDING if trained.dtype == torch.float32 else IN_SETS
        if index := first_set((nearest - arrays).abs().flatten(-2) > slack * sets.reach):
            raise DomainError(
                f"initial{at(index)} is {trained[tuple(index)].item():.12g}, outside the "
                f"{sets_in_words(self.update.box)}: the nearest allowed weights have "
                f"{nearest.flatten(-2)[tuple(index)].item():.12g} there. Start from "
                "problem.oracle.sets.project(initial)."
            )

    def starts_fresh(self, trained: Tensor) -> bool:
        arrays = self._split(trained)
        return not any(bool(arrays[name].any()) for name in self.update.state)

    def with_state(self, weights: Tensor) -> Tensor:
        n_weights = self.target.n_parameters
        if weights.ndim == 0 or weights.shape[-1] != n_weights:
            return weights
        trained = weights
        if self.update.state:
            trained = functional.pad(weights, (0, n_weights * len(self.update.state)))
        return trained if self.update.average is None else torch.cat([trained, weights], dim=-1)

    def labelled(self, y: Tensor, expected: tuple[int, ...]) -> Tensor:
        """Convert classes, counted from 0, to one-hot labels."""
        n_classes = expected[-1]
        if not loss_named(self.loss).is_softmax or tuple(y.shape) != expected[:-1]:
            return y
        if n_classes == 1 and bool((y == 1).all()):  # probabilities, not classes
            return y
        if index := first_set((y < 0) | (y >= n_classes) | (y != y.round())):
            raise DataError(
                f"y{at(index)} is {y[tuple(index)].item():.12g}; the cross_entropy loss of "
                f"{n_classes} outputs needs classes from 0 to {n_classes - 1}, or a row of "
                f"{n_classes} probabilities for each example."
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
            is_wrong = (y.sum(-1, keepdim=True) - 1).abs() > LABEL_SUM_ROUNDING
            if index := first_set(is_wrong.expand_as(y)):
                total = y.sum(-1)[tuple(index[:-1])].item()
                raise DataError(
                    f"The labels of example {at(index[:-1])} add up to {total:.12g}; the "
                    f"{self.loss} loss needs probabilities that add up to 1, such as 1 for the "
                    "class and 0 for all others."
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
        """Return the task with only the examples of step `number`: all of them, or its batch."""
        if self.update.batch_size is None:
            return task
        rows = list(self.examples_of(number, task.n_examples))
        rates = None if task.rates is None else task.rates[..., rows, :]
        return replace(task, x=task.x[..., rows, :], y=task.y[..., rows, :], rates=rates)

    def exact_step(self, task: Task) -> ExactStep:
        data = task.double()

        def step(weights: Parameters, number: int, before: Parameters | None = None) -> Parameters:
            state = self._split(weights)
            weights, average = state.pop(WEIGHTS), state.pop(AVERAGE, None)
            gradient = self.gradient(data, weights, number)
            moved, new_state = self._moved(number, weights, gradient, state)
            projected = self.sets.project(moved)
            if average is not None:
                rho = self.update.kept_of_average(number)
                new_state[AVERAGE] = rho * average + (1.0 - rho) * projected
            return torch.cat([projected, *new_state.values()], dim=-1) if new_state else projected

        return step

    def _moved(
        self, number: int, weights: Parameters, gradient: Parameters, state: dict[str, Parameters]
    ) -> tuple[Parameters, dict[str, Parameters]]:
        """Return the weights before they are projected, and the new state."""
        moved, new_state = self.update.rule(number).applied(weights, gradient, state)
        for update, belongs in self._groups:
            others, state_of_others = update.rule(number).applied(weights, gradient, state)
            moved = torch.where(belongs, others, moved)
            new_state = {
                name: torch.where(belongs, state_of_others[name], array)
                for name, array in new_state.items()
            }
        return moved, new_state

    @cached_property
    def _groups(self) -> list[tuple[AbstractGradientStep, Tensor]]:
        """The updates of groups with options of their own, and masks of their weights."""
        groups = []
        for update in self.update.variants[1:]:
            masks = []
            columns = self._columns_of(update)
            for shape, ends in zip(self.target.matrix_shapes, columns, strict=True):
                mask = torch.zeros(shape, dtype=torch.bool)
                mask[:, slice(*(ends or (0, 0)))] = True
                masks.append(mask.flatten())
            groups.append((update, torch.cat(masks)))
        return groups

    def _columns_of(self, update: AbstractGradientStep) -> list[tuple[int, int] | None]:
        """Return the range of columns of every layer's matrix that an update moves, if any."""
        columns = list[tuple[int, int] | None]()
        for layer, (_, n_columns) in enumerate(self.target.matrix_shapes, start=1):
            width = self.target.widths[layer - 1]
            ranges = {f"weights_{layer}": (0, width)}
            if self.target.biases:
                ranges[f"bias_{layer}"] = (width, n_columns)
            moved = [
                ends for name, ends in ranges.items() if self.update.of_weights(name) is update
            ]
            columns.append((moved[0][0], moved[-1][1]) if moved else None)
        return columns

    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        target, update = self.target, self.update
        n_rules = 1 if update.is_constant else n_steps
        return {
            "kind": "network",
            "widths": list(target.widths),
            "activation": _definition(target.activation),
            "output_activation": _definition(target.output_activation),
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
        per_example = 3 * self.target.n_parameters + 10 * sum(self.target.widths[1:])
        per_step = n_examples * per_example + 100 * sum(map(prod, self.weight_shapes))
        is_plain = self.target.is_chain and not self.update.state and not self.update.has_root
        bits_factor = 1 + n_steps // (400 if is_plain else 100)  # plain steps lose few bits
        return prod(task.batch) * n_steps * per_step * bits_factor

    def _described_rule(self, step: int) -> Any:
        """Describe the rule of a step, with exact numbers.

        If groups of weights have rules of their own, there is one for each, with its columns.
        """
        if self.update.by_name:
            groups = [(update, self._columns_of(update)) for update in self.update.variants]
            return [
                {"columns": [ends and [*ends] for ends in columns], **self._rule_data(update, step)}
                for update, columns in groups
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
        """Return one exact step from every entry of a run; equal steps are computed in groups."""
        differs = self.update.batch_size is not None or not self.update.is_constant
        if differs or history.shape[-2] < 2:
            return super().stepped(task, history)
        per_step = task.n_examples * max(self.target.widths) * prod(task.batch)
        groups = history[..., :-1, :].double().split(max(1, NUMBERS_AT_ONCE // per_step), dim=-2)
        task, after = task.double(), []
        for weights in groups:  # a group of steps is a batch of tasks with the same data
            batch = weights.shape[:-1]
            x, y, queries = (
                data.unsqueeze(-3).expand(*batch, *data.shape[-2:])
                for data in (task.x, task.y, task.queries)
            )
            rates = task.rates
            rates = rates if rates is None else rates.unsqueeze(-3).expand(*batch, -1, -1)
            step = self.exact_step(Task(x, y, queries, weights, rates=rates))
            after.append(step(weights, 0))
        return torch.cat(after, dim=-2)

    def gradient(self, task: Task, weights: Parameters, number: int = 0) -> Parameters:
        """Return the gradient of the risk on the examples of a step, scaled for the update."""
        used, weights = self.examples(task, number), self.weights_of(weights).double()
        x, y, loss = used.x.double(), used.y.double(), loss_named(self.loss)
        rates = None if used.rates is None else used.rates.double()
        return gradient(self.target, loss, weights, x, y, rates) * self.update.gradient_factor

    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Predict with the average of the weights, if there is one."""
        arrays = self._split(weights)
        predicting = arrays.get(AVERAGE, arrays[WEIGHTS])
        return predict(self.target, predicting.double(), task.queries.double())

    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return L(w) = (1 / 2n) sum_i rate_i loss(p_i, y_i); without rates all are 1."""
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

        The state of the optimiser follows as momentum_1, momentum of bias_1, ..., and likewise the
        average of the weights.
        """
        matrices: dict[str, Tensor] = {}
        for kind, array in self._split(weights).items():
            bias = "bias" if kind == WEIGHTS else f"{kind} of bias"
            for layer, matrix in enumerate(self.target.matrices(array), start=1):
                n_inputs = self.target.widths[layer - 1]
                matrices[f"{kind}_{layer}"] = matrix[..., :n_inputs]
                if self.target.biases:
                    matrices[f"{bias}_{layer}"] = matrix[..., n_inputs]
        return matrices

    def warnings_after(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """Warn if a run with its own initial weights, as read from torch, ends at the box."""
        if self.start is None:
            return
        final, (low, high) = self.weights_of(weights), self.sets.ends()
        at_box = (low < high) & ((final <= low) | (final >= high))  # low == high fixes a weight
        if bool(at_box.any()):
            yield BoxWarning(
                f"A weight ends at the {sets_in_words(self.update.box)}. PyTorch has no box, so "
                "the run may differ from your script. Give a larger box; if the script's own "
                "weights stay within this one, a function is approximated too coarsely, and more "
                "pieces or a smaller box help."
            )

    def preactivations(self, task: Task, weights: Parameters, number: int) -> list[Tensor]:
        x = self.examples(task, number).x.double()
        return forward(self.target, self.weights_of(weights).double(), x).preactivations


def soft_threshold(values: Tensor, threshold: Tensor) -> Tensor:
    """Move every value towards 0 by its threshold, but not beyond 0."""
    return torch.relu(values - threshold) - torch.relu(-values - threshold)


@dataclass(frozen=True)
class Descent:
    """The end of a descent: its weights, number of steps, and largest change in the last step."""

    weights: Parameters
    n_steps: int
    last_change: float
    converged: bool


@dataclass(frozen=True)
class LinearOracle(AbstractOracle):
    """(Proximal) gradient descent on a linear model.

        g  = scale * sum_i (mu(<w, x_i>) - y_i) x_i
        w <- S(w - step_size * (g + l2 * w)),  S(v) = relu(v - c) - relu(-v - c), c = step_size * l1

    then clipped if there is a box, which gives the proximal step of the penalty on the box. With
    momentum m, w + m (w - w_before) replaces the first w; with Nesterov momentum, g is evaluated
    there too. The intercept is the coefficient of a constant input 1, with l2 = c = 0. A step costs
    O(n d) per task.
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
        """Return <w, x>, including the intercept."""
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
        link = f"the matching loss of the {self.target.link} link"
        formula = f", {self.unusual_loss}" if self.unusual_loss else ""
        return f"{self.target.reduction} over all examples of {link}{formula}"

    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return the coefficients, and the intercept if there is one."""
        width = self.target.input_width
        coefficients = {"coefficients": weights[..., :width]}
        return coefficients | ({"intercept": weights[..., width]} if self.target.intercept else {})

    def objective(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return L(w) + (l2 / 2) |w|_2^2 + l1 |w|_1."""
        penalised = weights.double() * self.target.penalised(weights.double())
        ridge, lasso = penalised.square().sum(-1) / 2, penalised.abs().sum(-1)
        return self.risk(task, weights) + self.update.l2 * ridge + self.update.l1 * lasso

    @property
    def unusual_loss(self) -> str | None:
        """The formula of the least-squares loss, which may be negative."""
        return "(z - y)^2 / 2 less y^2 / 2" if self.target.link == "identity" else None

    def gradient(self, task: Task, weights: Parameters) -> Parameters:
        """Return the gradient of L(w) + (l2 / 2) |w|_2^2, the smooth part of the objective."""
        weights, design = weights.double(), self.target.design(task.x)
        residual = self.target.link_function.mean(self.scores(weights, task.x)) - task.y.double()
        slope = (design.mT @ residual).squeeze(-1) * self.target.loss_scale(task.n_examples)
        return slope + self.update.l2 * self.target.penalised(slope) * weights

    def exact_step(self, task: Task) -> ExactStep:
        """Return a function that takes exact steps; a missing step size is computed in O(n d^2)."""
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
        per_step = task.n_examples * (2 * self.target.n_parameters + 10)
        return prod(task.batch) * n_steps * per_step * (1 + n_steps // 100)

    def descend(self, task: Task, *, tolerance: float, most_steps: int) -> Descent:
        """Take exact steps until no coefficient of any task changes by more than `tolerance`.

        Raise `SeparableDataError` if there is no minimiser, because steps become short even then.
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
        """Raise if there is no minimiser: steps become short, but coefficients grow for ever."""
        require_minimiser(self.target, self.update, task.x.double(), task.y.double())

    def named(self, weights: Parameters, inputs: Sequence[str]) -> dict[str, float]:
        names = (*inputs, *(INTERCEPT,) * self.target.intercept)
        return dict(zip(names, weights.tolist(), strict=True))

    def warnings_after(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """Warn if the descent ends at the box, because the minimiser lies outside."""
        box = self.update.box
        if box is None or not weights.numel():
            return
        largest, position = weights.abs().flatten().max(0)
        if largest >= box:
            number = int(position) % weights.shape[-1]
            name = f"Coefficient {number} (counted from 0)"
            if task.input_names:
                name = f"The coefficient of {(*task.input_names, INTERCEPT)[number]!r}"
            yield BoxWarning(
                f"{name} ends at the box, {box:g}, which keeps it from growing. Give a larger box, "
                "or a smaller step size if steps diverge."
            )


def _definition(activation: str | tuple[str, ...]) -> str | list[str]:
    """Return activations as certificates name them: by their text if they are defined by one."""
    if isinstance(activation, tuple):
        return [str(_definition(name)) for name in activation]
    value = activation_named(activation).value
    return value.definition if isinstance(value, Function) else activation


def _described_momentum(update: FunctionalStep | ProximalStep, n_steps: int) -> dict[str, Any]:
    """Describe momentum for a certificate: nothing, one number for all steps, or one for each."""
    differs = isinstance(update.momentum, tuple)
    n_momenta = 0 if update.momentum is None else n_steps if differs else 1
    momenta = [update.momentum_of(step).hex() for step in range(n_momenta)]
    return {"momenta": momenta, "nesterov": update.nesterov}


@dataclass(frozen=True)
class FunctionOracle(AbstractOracle):
    """Functional gradient descent on the squared loss, the reference for kernel attention.

    The function f = sum_j a_j K(., x_j), starting from f = 0, is represented by its coefficients
    and evaluated where needed:

        a <- a + step_size * (y - f(x) - noise * a)

    With momentum, a + m (a - a_before) replaces the first a, and with Nesterov momentum all of
    them. The values at examples include noise * a, which counts as learnt. If steps move the inputs
    (GD++) or have kernels of their own, the kernel changes from step to step, and f is the sum of
    the steps' increments.
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
        """Return the values of the function 0 at all tokens; no other start may be given."""
        n_values = (x.shape[-2] + queries.shape[-2]) * self.target.output_width
        start = torch.zeros(*x.shape[:-2], n_values, dtype=torch.float64, device=x.device)
        if given is not None:
            numbers = as_numbers("initial", given) if isinstance(given, Tensor) else None
            if numbers is None or numbers.shape != start.shape or numbers.any():
                raise SettingError(
                    "initial has no effect for a kernel machine, which starts from the function 0. "
                    "Omit it."
                )
        return start

    def kernels(self, task: Task) -> Iterator[KernelMatrix]:
        """Yield for each step the kernel matrix of all tokens and the examples, with the noise."""
        points, n_examples = task.points, task.n_examples
        noise = self.update.noise * torch.eye(task.n_tokens, n_examples).to(points)
        for number in count_up():
            if number == 0 or self.update.changes_kernel:
                examples = points[..., :n_examples, :]
                kernel = self.update.machine_of(number, self.target).matrix(points, examples)
                noisy = kernel + noise if self.update.noise else kernel
            yield noisy
            transform = self.update.transform_of(number, self.target.input_width)
            if transform is not None:
                points = points + kernel @ examples @ as_matrix(transform, points).mT

    def exact_step(self, task: Task) -> ExactStep:
        y, kernels, update = task.y.double(), self.kernels(task), self.update
        cache: list[KernelMatrix] = []

        def step(weights: Parameters, number: int, before: Parameters | None = None) -> Parameters:
            cache.extend(islice(kernels, max(0, number + 1 - len(cache))))
            both = (weights, weights if before is None else before)
            now, earlier = (values.unflatten(-1, (-1, y.shape[-1])) for values in both)
            point = now + update.lookahead_of(number) * (now - earlier)
            residual = y - point[..., : task.n_examples, :]
            start = now + update.momentum_of(number) * (now - earlier)
            after: Tensor = start + update.size_of(number) * cache[number] @ residual
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
        n_pairs, n_kernels = task.n_tokens * task.n_examples, n_steps
        if not self.update.changes_kernel:
            n_kernels = min(n_steps, 1)
        per_kernel = len(self.target.heads) * (10 + 2 * self.target.input_width)
        per_pair = n_kernels * per_kernel + n_steps * self.target.output_width
        return prod(task.batch) * n_pairs * per_pair * (1 + n_steps // 100)

    def train(self, task: Task, n_steps: int) -> History:
        """Return the function's values at all tokens before the first step and after every step."""
        if self.update.changes_kernel:
            return super().train(task, n_steps)
        y, update = task.y.double(), self.update
        now = earlier = torch.zeros_like(y)  # the coefficients a
        history = [y.new_zeros(*task.batch, task.n_tokens, y.shape[-1])]
        for number, kernel in zip(range(n_steps), self.kernels(task), strict=False):
            values, start = history[number][..., : task.n_examples, :], now
            if update.momentum is not None:
                before = history[max(0, number - 1)][..., : task.n_examples, :]
                values = values + update.lookahead_of(number) * (values - before)
                start = now + update.momentum_of(number) * (now - earlier)
            now, earlier = start + update.size_of(number) * (y - values), now
            history.append(kernel @ now)
        return torch.stack(history, dim=-3).flatten(-2)

    def limit(self, task: Task) -> Labels:
        """Return the limit at the queries: k_q (K + noise I)^-1 y, the kernel regression.

        If the kernel matrix is singular, its pseudo-inverse is used: descent from 0 stays in its
        range.
        """
        if self.update.heads:
            raise SettingError(
                "The limit of the function is defined for one kernel in all steps, with one "
                "transform for queries and keys; these steps have heads of their own. Use "
                "icgd.verify, which measures and bounds every step."
            )
        points, y = task.points, task.y.double()
        examples, queries = points[..., : task.n_examples, :], points[..., task.n_examples :, :]
        noise = self.update.noise * torch.eye(task.n_examples).to(points)
        gram = self.target.gram(examples) + noise
        inverse: Tensor = torch.linalg.pinv(gram, hermitian=self.target.is_symmetric)
        coefficients = inverse @ y
        # One step of iterative refinement reduces the rounding error.
        refined = coefficients + inverse @ (y - gram @ coefficients)
        return self.target.matrix(queries, examples) @ refined

    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Return the function's values at the queries."""
        values: Tensor = weights.unflatten(-1, (task.n_tokens, task.y.shape[-1]))
        return values[..., task.n_examples :, :]

    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return (1 / 2n) sum_i |f(x_i) - y_i|^2."""
        values = weights.double().unflatten(-1, (task.n_tokens, task.y.shape[-1]))
        residual: Tensor = values[..., : task.n_examples, :] - task.y.double()
        return residual.square().sum(-1).mean(-1) / 2

    @property
    def loss_in_words(self) -> str:
        return "half the mean squared loss of all examples"

    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return the function's values at the examples and at the queries."""
        values: Tensor = weights.unflatten(-1, (task.n_tokens, task.y.shape[-1]))
        examples, queries = values.split((task.n_examples, task.n_queries), dim=-2)
        return {"at_examples": examples, "at_queries": queries}

    def require_end(self, task: Task) -> None:
        """Raise: a run of a kernel machine always takes all its steps."""
        raise SettingError(
            "stop_below works with runs that train weights only, and this run trains a function. "
            "Omit it."
        )

    def overflow(self, dtype: str) -> OverflowedRunError:
        """Return the error for a run that overflows; transforms, if any, are the likely cause."""
        if not self.update.transforms:
            return overflowed(dtype, self.update.step_size)
        width, n_transforms = self.target.input_width, len(self.update.transforms)
        matrices = (self.update.transform_of(step, width) or () for step in range(n_transforms))
        largest = max(abs(entry) for matrix in matrices for row in matrix for entry in row)
        return OverflowedRunError(
            f"The run leaves the range of {dtype}: transforms with entries of up to {largest:g} "
            "are too large for these data, because they make the inputs grow with every step. Use "
            "smaller transforms."
        )

    def warnings_before(self, task: Task, n_steps: int) -> Iterator[Warning]:
        """Warn if steps are too long for these data; functions are not clipped to a box."""
        worst = divergence(self.target, self.update, task.x, n_steps)
        if worst is None:
            return
        size = self.update.step_size
        if worst.eigenvalue < 0:
            remedy = (
                "The kernel matrix is not positive: add noise of at least the absolute value of "
                "this eigenvalue, or use another kernel."
            )
        elif self.update.momentum is not None or isinstance(size, tuple):
            remedy = "Choose step sizes for a spectrum that includes this eigenvalue."
        else:
            remedy = f"step_size is {size:.6g}; it must be below {2 / worst.eigenvalue:.6g}."
        yield DivergenceWarning(
            f"The steps diverge on these data: the error grows {worst.growth:.3g}-fold along "
            f"an eigenvector of the kernel with eigenvalue {worst.eigenvalue:.6g}. {remedy}"
        )


def _described(head: KernelHead, width: int) -> dict[str, Any]:
    """Describe a head for a certificate, including defaults."""
    if head.function.is_own:
        raise ProofError(
            f"The kernel {quoted(head.kernel)} is your own function, which ball arithmetic cannot "
            "evaluate. Use a built-in kernel to have whole runs proved."
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
