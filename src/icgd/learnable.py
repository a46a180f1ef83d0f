r"""Gradients through a compiled run: learn its step sizes and initial weights, or all weights.

A compiled transformer is an ordinary torch module, so the loss at the queries is differentiable in
everything that the run depends on. The initial weights are part of the prompt. The step size is a
factor of W_O in one layer of the block (`program/stack.py`); here each step has its own factor, or
all share one:

    stream <- block(stream; W_O = step_size_l W_O(1)),   l = 1 .. n_steps

By the chain rule this gradient equals that of autograd through exact descent, as far as the
approximated functions have the slopes of the exact ones (docs/training/through_the_run.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from icgd.backends.dense import build_transformer
from icgd.backends.prompt import encode, read_parameters, read_predictions
from icgd.compiled import Compiled
from icgd.environment import own_modes
from icgd.errors import ConstructionError, SettingError
from icgd.layers import Transformer, Writing
from icgd.problems.data import Task, as_numbers, as_task, dtype_named
from icgd.problems.oracles import gradient, predict
from icgd.problems.preprocessing import Preprocessing
from icgd.problems.problem import Problem
from icgd.problems.settings import entries, is_row, positive
from icgd.program.stack import StackProgram, of_unit_step, step_layer
from icgd.shapes import History, Inputs, Labels, Parameters, Predictions, Queries, Stream


@dataclass(frozen=True)
class Steps:
    """The weights before the first step and after every step, with the predictions they make.

    Attributes:
        parameters: the weights, (..., n_steps + 1, n_parameters).
        predictions: the predictions at the queries, (..., n_steps + 1, n_queries, d_y).
    """

    parameters: History
    predictions: Float[Tensor, "*tasks step query output_width"]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Parameters, Predictions]]) -> Steps:
        """Stack the weights and predictions of consecutive steps."""
        parameters, predictions = zip(*pairs, strict=True)
        return cls(torch.stack(parameters, dim=-2), torch.stack(predictions, dim=-3))


class AbstractRun(nn.Module, ABC):
    """A compiled run as a module that computes every head of every layer.

    The parameter `initial` is written into the prompt after the projection that ends every step.
    """

    def __init__(
        self,
        problem: Problem,
        program: StackProgram,
        initial: Parameters,
        transformer: Transformer,
    ) -> None:
        super().__init__()
        self.problem, self.program = problem, program
        self.initial = nn.Parameter(initial.detach().clone())
        self.transformer = transformer

    @abstractmethod
    def _after_step(self, stream: Stream, number: int) -> Stream:
        """Apply the layers of step `number`, counted from 0."""

    @own_modes()
    def forward(self, x: Any, y: Any, queries: Any) -> Predictions:
        """Run all steps and predict at the queries.

        Gradients also reach `x`, `y` and `queries`, if they are tensors that require them.

        Args:
            x: the inputs of the examples, (n, d_x), or (tasks, n, d_x) for many tasks at once.
            y: their labels.
            queries: the inputs to predict at.

        Returns:
            The predictions after the last step.

        Raises:
            DataError: if the data do not fit together, or do not fit the problem.
            DomainError: if the data leave the domain of the problem.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=3)
            >>> run = icgd.LearnableRun(compiled, initial=[0.0, 0.0])
            >>> predictions = run([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [[1.0, 0.0]])
            >>> round(predictions.item(), 6)  # 1 - 0.95^3
            0.142625
        """
        task = self._task(x, y, queries)
        *_, last = self._streams(task)
        return self._predictions(last, task)

    @own_modes()
    def steps(self, x: Any, y: Any, queries: Any) -> Steps:
        """Run all steps, and return the weights and the predictions after each.

        The prediction layers follow the last step of a transformer; here they are applied after
        every step.

        Args:
            x: the inputs of the examples, (n, d_x), or (tasks, n, d_x) for many tasks at once.
            y: their labels.
            queries: the inputs to predict at.

        Returns:
            The weights and predictions before the first step and after every step.

        Raises:
            DataError: if the data do not fit together, or do not fit the problem.
            DomainError: if the data leave the domain of the problem.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=3)
            >>> run = icgd.LearnableRun(compiled, initial=[0.0, 0.0])
            >>> run.steps([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [[1.0, 0.0]]).parameters.shape
            torch.Size([4, 2])
        """
        task = self._task(x, y, queries)
        return Steps.of(
            (read_parameters(self.program.layout, stream), self._predictions(stream, task))
            for stream in self._streams(task)
        )

    def description(self) -> dict[str, Any]:
        """Return plain data that identify the untrained run, for checkpoints.

        Returns:
            The kind of the run, its construction, number of steps and problem.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> run = icgd.LearnableRun(icgd.compile(problem, "relu-stack", n_steps=3))
            >>> run.description()["construction"]
            'relu-stack'
        """
        return {
            "kind": type(self).__name__,
            "construction": self.program.construction,
            "n_steps": self.program.n_steps,
            "problem": self.problem.to_data(),
        }

    def _streams(self, task: Task) -> Iterator[Stream]:
        """Yield the prompt, then the stream after every step."""
        stream = encode(self.program, task)
        yield stream
        for number in range(self.program.n_steps):
            stream = self._after_step(stream, number)
            yield stream

    def _predictions(self, stream: Stream, task: Task) -> Predictions:
        for layer in self.transformer.final:
            stream = layer(stream)
        return read_predictions(self.program, stream, task.n_examples)

    def _task(self, x: Any, y: Any, queries: Any) -> Task:
        """Validate the data and return a task through which gradients flow to data and weights."""
        start = self.problem.network_oracle.sets.project(self.initial)
        checked = as_task(self.problem, x, y, queries=queries, initial=start, dtype=start.dtype)
        # `as_task` detaches; the tensors themselves keep their gradients.
        arrays = {"x": x, "y": y, "queries": queries}
        x, y, queries = (_with_gradient(name, data).to(start) for name, data in arrays.items())
        start = start.expand_as(checked.initial)
        return replace(checked, x=x, y=y.reshape(checked.y.shape), queries=queries, initial=start)


@final
class LearnableRun(AbstractRun):
    """A compiled run whose step sizes and initial weights are parameters.

    The weights of the transformer are frozen; the step sizes scale one layer of each step. The
    construction must be relu-stack or softmax-stack.

    Args:
        compiled: the compiled run.
        step_sizes: one step size for all steps, or one for each; the default is the problem's.
        initial: the initial weights; random by default.
        seed: the seed of the random initial weights if none are given; the default is 0.
        dtype: "float64" or "float32".

    Raises:
        ConstructionError: if the step size is not a factor of one layer, as in other constructions
            and with momentum, weight decay, groups, averages or schedules.
        SettingError: if a step size is not positive, or their number is wrong.
        DataError: if `initial` has another shape than the weights.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> run = icgd.LearnableRun(compiled, step_sizes=[0.5, 1.0], initial=[0.0, 0.0])
        >>> x, y = [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]
        >>> run(x, y, [[1.0, 0.0]]).sum().backward()
        >>> run.step_sizes.grad.tolist()  # of 1 - (1 - s / 2) (1 - t / 2) by s and t
        [0.25, 0.375]
    """

    def __init__(
        self,
        compiled: Compiled,
        *,
        step_sizes: Any = None,
        initial: Any = None,
        seed: int | None = None,
        dtype: str | torch.dtype = "float64",
    ) -> None:
        place, precision = step_layer(compiled.program), dtype_named(dtype)
        problem, n_steps = compiled.problem, compiled.program.n_steps
        if not problem.gradient_step.is_plain:
            raise ConstructionError(
                f"Step sizes cannot be learnt for {problem.gradient_step.in_words()}, because none "
                "is a factor of one layer that all steps share. Give a GradientStep with one step "
                "size for all steps and weights, without averaging."
            )
        default = problem.gradient_step.size_of(0)
        sizes = _step_sizes(default if step_sizes is None else step_sizes, n_steps)
        start = _start(problem, initial, seed, precision)
        transformer = build_transformer(of_unit_step(compiled.stack, default), precision)
        frozen = transformer.requires_grad_(requires_grad=False)
        super().__init__(problem, compiled.stack, start, frozen)
        self.place = place
        self.step_sizes = nn.Parameter(torch.tensor(sizes, dtype=precision))

    def _after_step(self, stream: Stream, number: int) -> Stream:
        for place, layer in enumerate(self.transformer.block):
            if place == self.place:
                stream = functional_call(layer, {"W_O": self._output(number)}, (stream,))
            else:
                stream = layer(stream)
        return stream

    def _output(self, number: int) -> Writing:
        """Return W_O of the layer that updates the weights, in step `number`, counted from 0."""
        unit = self.transformer.block[self.place].get_parameter("W_O")
        return self.step_sizes.expand(self.program.n_steps)[number] * unit

    @torch.no_grad()
    def untied(self) -> UntiedRun:
        """Return a copy of the run in which every weight of every layer is a parameter.

        Returns:
            A run with the same predictions.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> run = icgd.LearnableRun(icgd.compile(problem, "relu-stack", n_steps=3)).untied()
            >>> all(parameter.requires_grad for parameter in run.parameters())
            True
        """
        block: list[nn.Module] = []
        for number in range(self.program.n_steps):
            block += deepcopy(list(self.transformer.block))
            block[self.place - self.program.layers_per_step].get_parameter("W_O").copy_(
                self._output(number)
            )
        final = deepcopy(list(self.transformer.final))
        transformer = Transformer(block, 1, final).requires_grad_()
        return UntiedRun(self.problem, self.program, self.initial.detach().clone(), transformer)


@final
class UntiedRun(AbstractRun):
    """A run whose steps share no weights: all weights of all layers are parameters.

    `LearnableRun.untied` creates it.

    Args:
        problem: the problem of the run.
        program: its program.
        initial: the initial weights.
        transformer: the layers of all steps, one after the other.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=3)
        >>> run = icgd.LearnableRun(compiled).untied()
        >>> isinstance(run, icgd.UntiedRun)
        True
        >>> len(run.transformer.block) == 3 * compiled.program.layers_per_step
        True
    """

    def _after_step(self, stream: Stream, number: int) -> Stream:
        length = self.program.layers_per_step
        for layer in self.transformer.block[number * length : (number + 1) * length]:
            stream = layer(stream)
        return stream


def unrolled_descent(
    problem: Problem,
    x: Inputs,
    y: Labels,
    queries: Queries,
    initial: Float[Tensor, " parameter"],
    step_sizes: Float[Tensor, " step"],
) -> Steps:
    """Run exact gradient descent without a transformer, differentiably by autograd.

    Args:
        problem: the problem of a network, whose update is a `GradientStep` on all examples.
        x: the inputs of the examples.
        y: their labels.
        queries: the inputs to predict at after every step.
        initial: the initial weights.
        step_sizes: a step size for each step.

    Returns:
        The weights and predictions before the first step and after every step.

    Raises:
        SettingError: if the update has batches, groups or averages, or is another optimiser's.

    Example:
        >>> import icgd, torch
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> x, y = torch.eye(2, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
        >>> sizes = torch.full((3,), 0.1, dtype=torch.float64)
        >>> start = torch.zeros(2, dtype=torch.float64)
        >>> icgd.unrolled_descent(problem, x, y, x[:1], start, sizes).parameters.shape
        torch.Size([4, 2])
    """
    target, sets = problem.network, problem.network_oracle.sets
    update = problem.gradient_step
    if not replace(update, step_size=1.0).is_plain or update.batch_size is not None:
        raise SettingError(
            f"problem.update is {update.in_words()}, where unrolled_descent takes gradient steps "
            "on all examples, without groups and averages. Give such a GradientStep, or call "
            "problem.oracle.train."
        )
    weights = sets.project(initial).expand(*x.shape[:-2], -1)
    reached = [weights]
    for step_size in step_sizes:
        moved = weights - step_size * gradient(target, problem.loss_function, weights, x, y)
        weights = sets.project(moved)
        reached.append(weights)
    return Steps.of((weights, predict(target, weights, queries)) for weights in reached)


def _start(problem: Problem, initial: Any, seed: int | None, dtype: torch.dtype) -> Parameters:
    """Validate the initial weights, or draw them as a run does."""
    if problem.preprocessing not in (None, Preprocessing(), Preprocessing(flatten=True)):
        raise SettingError(
            f"problem.preprocessing is {problem.preprocessing.in_words()}, and gradients cannot "
            "pass through it. Give dataclasses.replace(problem, preprocessing=None) and prepared "
            "data."
        )
    n_examples = problem.gradient_step.batch_size or 1
    inputs = torch.zeros(n_examples, problem.target.input_width, dtype=torch.float64)
    labels = torch.zeros(n_examples, problem.target.output_width, dtype=torch.float64)
    task = as_task(problem, inputs, labels, initial=initial, seed=seed, dtype=dtype)
    return task.initial.clone()


def _with_gradient(name: str, data: Any) -> Tensor:
    """Return a tensor unchanged, so that gradients reach it; convert other arrays to tensors."""
    return data if isinstance(data, Tensor) else as_numbers(name, data)


def _step_sizes(given: object, n_steps: int) -> float | list[float]:
    """Validate one positive step size for all steps, or one for each."""
    given = as_numbers("step_sizes", given).tolist() if isinstance(given, Tensor) else given
    if not is_row(given):
        return positive("step_sizes", given)
    row = entries(given)
    sizes = [positive(f"step_sizes[{number}]", size) for number, size in enumerate(row)]
    if len(sizes) != n_steps:
        raise SettingError(
            f"step_sizes has {len(sizes)} entries; expected {n_steps}, one for each step."
        )
    return sizes
