r"""Functional gradient descent itself, in float64: what kernel attention is compared with.

The function is held as what it is, f = sum_j a_j K(., x_j), and is evaluated where it is needed:

    a <- a + step_size * (y - f(x) - noise * a)

With momentum, a + m (a - a_before) takes the place of the first a, and with Nesterov's of both.
Its values at an example count noise * a as learnt, because that part of a label is no longer left.
Steps that move the inputs (GD++), or that have a kernel each, change the kernel from step to step,
so f is then the sum of what each step added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DivergenceWarning, OverflowedRunError, SettingError, brief
from icgd.problems.data import Task, as_numbers
from icgd.problems.kernel_machine import (
    SHAPES,
    KernelHead,
    KernelMachine,
    Rows,
    as_matrix,
    unit_rows,
)
from icgd.problems.oracles.oracle import (
    AbstractOracle,
    ExactStep,
    ResumedStep,
    Shapes,
    overflowed,
    stepped,
    trained,
)
from icgd.problems.spectrum import divergence
from icgd.problems.steps import FunctionalStep
from icgd.shapes import History, Inputs, KernelMatrix, Labels, Parameters, Predictions, Queries


def _hex(rows: Rows | None) -> list[list[str]]:
    return [[entry.hex() for entry in row] for row in rows or ()]


def _described(head: KernelHead, width: int) -> dict[str, Any]:
    """Describe a head for a certificate, defaults included."""
    if head.function.is_own:
        raise SettingError(
            f"The kernel {brief(head.kernel)} is a function of your own, which no rigorous proof "
            "can enclose. Use one of icgd's kernels, or leave the rigorous proof out."
        )
    shape = SHAPES.get(head.kernel, 0.0) if head.shape is None else head.shape
    return {
        "kernel": head.kernel,
        "transform": _hex(head.transform or unit_rows(1.0, width)),
        "weight": head.weight.hex(),
        "shape": float(shape).hex(),
    }


@dataclass(frozen=True)
class FunctionOracle(AbstractOracle):
    """f <- f + step_size * sum_i e_i K(., x_i) on the squared loss, from the function 0."""

    target: KernelMachine
    update: FunctionalStep

    def __post_init__(self) -> None:
        if self.loss != "squared":
            raise SettingError(
                f"loss of a kernel machine must be 'squared', got {brief(self.loss)}."
            )
        self.update.require_machine(self.target)
        if self.domain.score is not None:
            raise SettingError("domain.score has no effect without a linear model; leave it out.")
        if self.domain.rate is not None:
            raise SettingError("domain.rate has no effect without a network; leave it out.")

    @property
    def weight_shapes(self) -> Shapes:
        return ()

    def require_labels(self, y: Labels) -> None:
        """Accept every label, as the squared loss does."""

    def initial(
        self, x: Inputs, queries: Queries, *, given: Any = None, seed: int | None = None
    ) -> Parameters:
        """Return the function 0 at all tokens, the only one that may be given."""
        n_values = (x.shape[-2] + queries.shape[-2]) * self.target.output_width
        start = self.own_start((*x.shape[:-2], n_values), seed).to(x.device)
        if given is not None:
            numbers = as_numbers("initial", given) if isinstance(given, Tensor) else None
            if numbers is None or numbers.shape != start.shape or numbers.any():
                raise SettingError(
                    "A kernel machine starts from the function 0; leave `initial` out."
                )
        return start

    def own_start(self, batch: tuple[int, ...], seed: int | None) -> Parameters:
        return torch.zeros(batch, dtype=torch.float64)

    def kernels(self, task: Task) -> Iterator[KernelMatrix]:
        """Yield the kernel of all tokens (rows) and examples for each step, noise included."""
        points, n_examples = task.points, task.n_examples
        itself = self.update.noise * torch.eye(task.n_tokens, n_examples).to(points)
        for number in count():
            if number == 0 or self.update.changes_kernel:
                examples = points[..., :n_examples, :]
                kernel = self.update.machine_of(number, self.target).matrix(points, examples)
                noisy = kernel + itself if self.update.noise else kernel
            yield noisy
            transform = self.update.transform_of(number, self.target.input_width)
            if transform is not None:
                points = points + kernel @ examples @ as_matrix(transform, points).mT

    def exact_step(self, task: Task) -> ExactStep:
        """Return a step that starts from rest: momentum has nothing to keep."""
        resumed = self._resumed_step(task)
        return lambda values, number: resumed(values, values, number)

    def stepped(self, task: Task, history: History) -> Tensor:
        """Take one exact step from each entry but the last, with the run's own last change."""
        return stepped(self._resumed_step(task), history)

    def _resumed_step(self, task: Task) -> ResumedStep:
        y, kernels, update = task.y.double(), self.kernels(task), self.update
        seen: list[KernelMatrix] = []

        def step(values: Parameters, before: Parameters, number: int) -> Parameters:
            seen.extend(islice(kernels, max(0, number + 1 - len(seen))))
            now, earlier = (part.unflatten(-1, (-1, y.shape[-1])) for part in (values, before))
            at = now + update.lookahead_of(number) * (now - earlier)
            left = y - at[..., : task.n_examples, :]
            kept = now + update.momentum_of(number) * (now - earlier)
            after: Tensor = kept + update.size_of(number) * seen[number] @ left
            return after.flatten(-2)

        return step

    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        update, width = self.update, self.target.input_width
        if update.heads or any(head.key_transform for head in self.target.heads):
            raise SettingError(
                "A rigorous proof needs one kernel for all steps, with one transform for queries "
                "and keys; here steps have kernels of their own, as learnt layers have. Use "
                "icgd.verify, which measures and bounds every step."
            )
        if update.momentum is not None:
            raise SettingError(
                "A rigorous proof takes steps without momentum, and here they have some. Leave it "
                "out, or use icgd.verify without rigorous=True, which bounds every step."
            )
        n_transforms = len(update.transforms)
        return {
            "kind": "function",
            "heads": [_described(head, width) for head in self.target.heads],
            "step_sizes": [update.size_of(step).hex() for step in range(n_steps)],
            "noise": update.noise.hex(),
            "transforms": [_hex(update.transform_of(step, width)) for step in range(n_transforms)],
        }

    def train(self, task: Task, n_steps: int) -> History:
        """Return the function's values at all tokens before the first step and after every step."""
        if self.update.changes_kernel:
            return trained(self._resumed_step(task), task.initial.double(), n_steps)
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
        """(1 / 2n) sum_i |f(x_i) - y_i|^2."""
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
        """Transforms let the inputs grow with every step."""
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

    def doubts(self, task: Task, n_steps: int) -> Iterator[Warning]:
        """A warning if steps are too long for these data; a function is not clipped."""
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
