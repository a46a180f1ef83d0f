r"""Gradient descent on a network, in float64 and by explicit formulas.

    z_j = V_j p_{j-1},  p_j = r(z_j)                              forward
    s_N = r'(z_N) * u,  s_j = r'(z_j) * (V_{j+1}^T s_{j+1})        backward
    grad of V_j = (1 / 2n) sum_i s_{i,j} p_{i,j-1}^T

What a step makes of the gradient is the rule of its update (`problems/optimisers.py`).
With biases a constant 1 stands below every p_{j-1}, and nothing is passed back to it.

A layer with a norm has its preactivation h_j = c (z_j - mean z_j), c = 1 / sqrt(var z_j + eps), in
place of z_j, and with g = r'(h_j) * what is pulled back

    s_j = c (g - mean g - h_j mean(g h_j)).

Shortcuts (i, j) add p_i to p_j, and what is pulled back to p_j to that of p_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from icgd.errors import BoxWarning, DataError, ProofError, SettingError, at
from icgd.problems.data import Task, first_set
from icgd.problems.losses import Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AVERAGE, SECOND, WEIGHTS, AbstractGradientStep
from icgd.problems.oracles.oracle import AbstractOracle, ExactStep, Shapes
from icgd.problems.settings import count
from icgd.shapes import History, Inputs, Labels, Parameters, Predictions, Rates

NUMBERS_AT_ONCE = 2**16
"""The numbers in the widest layer over the steps that are taken together."""

LABEL_SUM_ROUNDING = 1e-6
"""Labels of classes add up to 1 within this."""


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
    """Steps from the gradient on all examples or on batches of them, by the update's own rule.

    What is trained is one vector: the weights, and after them each part of the optimiser's state,
    in the same order.
    """

    target: MLP
    update: AbstractGradientStep
    start: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        loss_named(self.loss)
        if self.domain.score is not None:
            raise SettingError("domain.score has no effect without a linear model; leave it out.")

    def started_from(self, initial: Sequence[float]) -> NetworkOracle:
        if len(initial) != self.target.n_parameters:
            raise SettingError(
                f"initial has {len(initial)} entries; expected {self.target.n_parameters}, one for "
                "each weight."
            )
        return replace(self, start=tuple(initial))

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
        parts, n_weights = self._split(trained), self.target.n_parameters
        bounded = [part * (name not in self.update.state) for name, part in parts.items()]
        super().require_start(torch.cat(bounded, dim=-1), n_examples, dtype)
        sizes = self.update.step_size
        size = max(sizes) if isinstance(sizes, tuple) else sizes
        largest = self.update.box / torch.finfo(dtype).eps / size if size else inf
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

    def starts_fresh(self, trained: Tensor) -> bool:
        parts = self._split(trained)
        return not any(bool(parts[name].any()) for name in self.update.state)

    def with_state(self, weights: Tensor) -> Tensor:
        n_weights = self.target.n_parameters
        if weights.ndim == 0 or weights.shape[-1] != n_weights:
            return weights
        trained = functional.pad(weights, (0, n_weights * len(self.update.state)))
        return trained if self.update.average is None else torch.cat([trained, weights], dim=-1)

    def labelled(self, y: Tensor, expected: tuple[int, ...]) -> Tensor:
        """Classes, counted from 0, become labels that are 1 for the class and 0 for all others."""
        n_classes, is_softmax = expected[-1], loss_named(self.loss).is_softmax
        if not is_softmax or tuple(y.shape) != expected[:-1]:
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
        are_probabilities = loss_named(self.loss).labels_are_probabilities
        if are_probabilities and (index := first_set((y < 0) | (y > 1))):
            raise DataError(
                f"y{at(index)} is {y[tuple(index)].item():.12g}; the {self.loss} loss needs "
                "labels between 0 and 1. Recode the labels, or use loss='squared'."
            )
        if loss_named(self.loss).is_softmax:
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
        seed = count("seed", 0 if seed is None else seed, least=0, most=2**63 - 1)
        return self.with_state(self.target.initial_parameters(seed, self.update.box, batch))

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

        def step(trained: Parameters, number: int) -> Parameters:
            parts = self._split(trained)
            weights, average = parts.pop(WEIGHTS), parts.pop(AVERAGE, None)
            gradient = self.gradient(data, weights, number)
            moved, after = self.update.rule(number).applied(weights, gradient, parts)
            clipped = moved.clamp(-self.update.box, self.update.box)
            if average is not None:
                kept = self.update.kept_of_average(number)
                after[AVERAGE] = kept * average + (1.0 - kept) * clipped
            return torch.cat([clipped, *after.values()], dim=-1) if after else clipped

        return step

    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        target, update = self.target, self.update
        if not update.is_plain:
            raise ProofError(
                "icgd-check checks plain gradient steps of one size only, not "
                f"{update.in_words()}. Leave out `rigorous` or `certify`; bounds of single steps "
                "and of the run hold without it."
            )
        if not target.is_chain:
            raise ProofError(
                "icgd-check cannot check networks with shortcuts or layer norms, such as this "
                f"{target.in_words()}. Leave out `rigorous` or `certify`; bounds of single steps "
                "and of the run hold without it."
            )
        if task.rates is not None:
            raise ProofError(
                "icgd-check cannot check rates of examples. Leave out `rigorous` or `certify`; "
                "bounds of single steps and of the run hold without it."
            )
        return {
            "kind": "network",
            "widths": list(target.widths),
            "activation": target.activation,
            "output_activation": target.output_activation,
            "biases": target.biases,
            "loss": self.loss,
            "step_size": update.size_of(0).hex(),
            "box": update.box.hex(),
            "batch_size": update.batch_size,
        }

    def stepped(self, task: Task, history: History) -> Tensor:
        """Steps that all use the same examples are taken together, groups of them at a time."""
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
            after.append(self.step(Task(x, y, queries, weights, rates=rates), weights))
        return torch.cat(after, dim=-2)

    def gradient(self, task: Task, weights: Parameters, number: int = 0) -> Parameters:
        """Return the gradient of the risk on the examples of a step, as the update scales it."""
        used, weights = self.examples(task, number), self.weights_of(weights).double()
        x, y, loss = used.x.double(), used.y.double(), loss_named(self.loss)
        rates = None if used.rates is None else used.rates.double()
        return gradient(self.target, loss, weights, x, y, rates) * self.update.gradient_factor

    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """By the average of the weights, if there is one."""
        parts = self._split(weights)
        own = parts.get(AVERAGE, parts[WEIGHTS])
        return predict(self.target, own.double(), task.queries.double())

    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """L(w) = (1 / 2n) sum_i loss(p_i, y_i), each times its rate if there are rates."""
        outputs = predict(self.target, self.weights_of(weights).double(), task.x.double())
        losses = loss_named(self.loss).value(outputs, task.y.double())
        rated = losses if task.rates is None else losses * task.rates.double().squeeze(-1)
        return rated.mean(-1) / 2

    @property
    def loss_in_words(self) -> str:
        rated = "" if self.domain.rate is None else ", each times its rate"
        return f"half the mean {self.loss.replace('_', ' ')} loss of all examples{rated}"

    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """weights_1, bias_1, weights_2, ...: a bias is the last column of its layer's matrix.

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

    def afterthoughts(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """A warning if a run that was given its start, as one from torch, ends at the box."""
        box, own = self.update.box, self.weights_of(weights)
        if self.start is not None and bool((own.abs() >= box).any()):
            yield BoxWarning(
                f"A weight ends at the box, {box:g}, which PyTorch does not have: the run is no "
                "longer the one of your script. Give a larger box."
            )

    def preactivations(self, task: Task, weights: Parameters, number: int) -> list[Tensor]:
        x = self.examples(task, number).x.double()
        return forward(self.target, self.weights_of(weights).double(), x).preactivations
