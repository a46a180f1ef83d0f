"""Certificates, the bounds proved before any run, and reports, measured errors beside bounds.

Errors are distances from real training. In a near-kink event, a unit was inside the ramp that
approximates a step function, and got neither of its two levels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, nan, prod
from typing import NamedTuple

import torch
from torch import Tensor

from icgd import pictures
from icgd.backends.run import OnProgress, Run
from icgd.certificates.balls import Trajectory, rigorous_trajectory, rounded_up
from icgd.certificates.chain import ChainBounds
from icgd.certificates.enclosures import INTERVALS, AbstractBounds, Arithmetic
from icgd.certificates.functional import FunctionBounds
from icgd.certificates.linear import LinearBounds
from icgd.certificates.network import StackBounds
from icgd.environment import require_memory
from icgd.errors import OverflowedRunError
from icgd.problems.data import Task, dtype_name
from icgd.problems.functions import slope_of
from icgd.problems.oracles import FunctionOracle, LinearOracle
from icgd.problems.problem import Problem
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.reprs import number, with_repr
from icgd.shapes import History, Predictions


def bounds_of(problem: Problem, program: AbstractProgram, arithmetic: Arithmetic) -> AbstractBounds:
    """Return the bounds of a program that trains `problem`, run in the given arithmetic.

    Raises `SizeError` if the intervals of all weights do not fit into memory.
    """
    n_weights = sum(map(prod, program.weight_shapes))
    remedy = "Take a narrower network, or run without bounds."
    require_memory(f"Bounding {n_weights:,} weights", INTERVALS * 8 * n_weights, remedy)
    kind: type[AbstractBounds] = StackBounds
    if isinstance(program, ChainProgram):
        kind = ChainBounds
    elif isinstance(problem.oracle, FunctionOracle):
        kind = FunctionBounds
    elif isinstance(problem.oracle, LinearOracle):
        kind = LinearBounds
    return kind(problem, program, arithmetic)


def real_training(problem: Problem, task: Task, n_steps: int) -> History:
    """Train in float64; raise `OverflowedRunError` if the weights leave its range."""
    return _in_range(problem.oracle.train(task, n_steps))


def _in_range(real: History) -> History:
    if not real.isfinite().all():
        raise OverflowedRunError(
            "Real training leaves the range of float64 on these data, so that there is nothing to "
            "compare the run with. Rescale the data, or use a smaller step size."
        )
    return real


class StepErrors(NamedTuple):
    """The error of each step of a run, and the size of the exact step."""

    errors: Tensor
    sizes: Tensor


def stepwise_errors(problem: Problem, task: Task, history: History) -> StepErrors:
    """Return the largest |w_l - step(w_{l-1})| and |step(w_{l-1}) - w_{l-1}| of each step."""
    exact, weights = _in_range(problem.oracle.stepped(task, history)), history.double()
    before, after = weights[..., :-1, :], weights[..., 1:, :]
    return StepErrors(*((moved - exact).abs().amax(-1) for moved in (after, before)))


def trajectory_errors(history: History, real: History) -> Tensor:
    """Return the largest distance of a weight from the exact run after each step."""
    return (history.double() - real).abs().amax(-1)[..., 1:]


def coefficient_errors(
    problem: Problem, task: Task, history: History, real: History
) -> dict[str, float] | None:
    """Return the error of each coefficient at the end of a run, if columns have names."""
    if not task.input_names:
        return None
    distances = (history[-1].double() - real[-1]).abs()
    return problem.oracle.named(distances, task.input_names)


def prediction_errors(
    problem: Problem, task: Task, predictions: Predictions, real: History
) -> Predictions:
    """Return the distances of a run's predictions from those of real training."""
    return (predictions.double() - problem.oracle.predict(task, real[..., -1, :])).abs()


def at_end(bounds: Tensor) -> Tensor:
    """Return the bound after the last step, or 0 if there are no steps."""
    return bounds[..., -1:] if bounds.shape[-1] else torch.zeros_like(bounds.sum(-1, keepdim=True))


class WholeRun(NamedTuple):
    """Bounds (b) of a run: on its steps, its distance from real training, and its predictions.

    The last two come from balls if there is a `proof`, or from contraction where that is tighter.
    """

    steps: Tensor
    trajectory: Tensor | None
    predictions: Predictions | None
    paper: Tensor | None
    proof: Trajectory | None


def bounds_of_run(
    bounds: AbstractBounds,
    task: Task,
    run: Run,
    real: History,
    *,
    by_balls: bool,
    on_progress: Sequence[OnProgress | None] = (None, None),
) -> WholeRun:
    """Bound a run; report progress on its steps, and on its proof by balls."""
    on_steps, on_proof = on_progress
    run_bounds, predictions = bounds.run(task, run.parameters, real, on_steps), None
    steps, trajectory, paper = run_bounds.steps, run_bounds.trajectory, run_bounds.paper
    if trajectory is not None:
        predictions = bounds.predictions(task, real, at_end(trajectory))
    if not by_balls:
        return WholeRun(steps, trajectory, predictions, paper, None)
    histories = (run.parameters, run.predictions, real)
    proof = rigorous_trajectory(bounds.problem, task, *histories, on_proof)
    trajectory = _tighter(trajectory, proof.distances, proof.of_oracle)
    predictions = _tighter(predictions, proof.predictions, proof.predictions_of_oracle)
    return WholeRun(steps, trajectory, predictions, paper, proof)


def _tighter(bound: Tensor | None, of_run: Tensor, of_oracle: Tensor) -> Tensor:
    """Return the smaller of a bound on the distance of run and oracle and the triangle inequality.

    `of_run` and `of_oracle` bound their distances from exact descent.
    """
    triangle = (of_run + of_oracle) * (1 + 2.0**-50)
    return triangle if bound is None else torch.minimum(bound, triangle)


_SUBJECTS = {
    "step_bounds": "a step of this run",
    "trajectory_bounds": "this whole run",
    "prediction_bounds": "its predictions",
    "domain_step": "one step on all data",
    "domain_trajectory": "the whole run on all data",
}
"""What each bound is about, by the name of the bound."""

MOST_EVENTS = 20
"""The number of events that are listed; all are counted."""


@dataclass(frozen=True)
class NearKink:
    """An event: the preactivation of this unit was inside the ramp, at this step and token."""

    task: int
    step: int
    layer: int
    token: int
    unit: int
    preactivation: float


@dataclass(frozen=True)
class NearKinks:
    """The number of near-kink events in a run, and the first of them."""

    count: int
    events: tuple[NearKink, ...]


def near_kinks(
    program: AbstractProgram, problem: Problem, task: Task, history: History
) -> NearKinks:
    """Find the preactivations of all steps that are strictly inside a ramp."""
    if not program.has_kinks:
        return NearKinks(0, ())
    count, oracle, events = 0, problem.oracle, list[NearKink]()
    for step in range(history.shape[-2] - 1):
        tokens = oracle.examples_of(step, task.n_examples)
        preactivations = oracle.preactivations(task, history[..., step, :], step)
        for layer, z in enumerate(preactivations, start=1):
            activation = problem.network.layer_activation(layer)
            jumps = {jump.steps.name: jump.place for jump in slope_of(activation.value).jumps}
            if not jumps:
                continue
            is_inside = z != z
            for start, end in program.ramps(activation.derivative.name, jumps):
                is_inside = is_inside | ((start < z) & (z < end))
            places = is_inside.nonzero()
            count += len(places)
            for place in places[: MOST_EVENTS - len(events)].tolist():
                task_number, token, unit = place[0] if len(place) == 3 else 0, place[-2], place[-1]
                value = float(z[tuple(place)])
                events.append(NearKink(task_number, step + 1, layer, tokens[token], unit, value))
    return NearKinks(count, tuple(events))


class Verdict(Enum):
    """The outcome of a comparison; the value says it in words.

    Example:
        >>> import icgd
        >>> icgd.Verdict.HOLDS.value
        'every measured error is within its proved bound'
        >>> icgd.Verdict.BROKEN.holds
        False
    """

    PROMISED = "bounds are proved, and nothing has been measured yet"
    HOLDS = "every measured error is within its proved bound"
    HOLDS_EMPTY = "every measured error is within its bound, but not every bound says something"
    HOLDS_ESTIMATED = (
        "every measured error is within its bound, but bounds are estimates, not proofs"
    )
    BROKEN = "a measured error exceeds a proved bound: the construction or its lowering is wrong"
    IN_DOUBT = (
        "a measured error exceeds a bound that rests on what was stated or estimated of a kernel: "
        "that statement is wrong, or the construction or its lowering is"
    )

    @property
    def holds(self) -> bool:
        """Whether something was measured and no bound is broken."""
        return self in (Verdict.HOLDS, Verdict.HOLDS_EMPTY, Verdict.HOLDS_ESTIMATED)


@with_repr
@dataclass(frozen=True)
class Certificate:
    """Bounds proved for every task in the domain, before any run.

    They bound the error of any single weight. Bound (a) propagates intervals through the program;
    bound (c) is the paper's closed form. The bounds include the rounding of this `backend` and
    `dtype` for prompts of up to `n_tokens` tokens.

    Attributes:
        domain_step: bound (a) of one step.
        domain_trajectory: bound (a) of the whole run.
        paper_step: bound (c) of one step, if the paper has one.
        n_tokens: the longest prompt for which the bounds hold.
        widest: the distance that clipping alone ensures, or infinity: a bound of this size or more
            says nothing.
        condition: the condition under which bound (a) holds, if there is one.
        stated: the user's own kernels whose stated constants every bound assumes.
        estimated: the user's own kernels without stated constants: nothing is proved for them, and
            the bounds of a run are estimates.
        backend: the backend for which the bounds hold.
        dtype: the precision for which they hold.
        domain_predictions: bound (a) of predictions after the run; infinite if nothing is proved.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> certificate = compiled.certificate(n_tokens=64)
        >>> certificate.domain_step < certificate.domain_trajectory < certificate.widest
        True
    """

    domain_step: float
    domain_trajectory: float
    paper_step: float | None
    n_tokens: int
    widest: float = inf
    condition: str | None = None
    stated: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    backend: str = "literal"
    dtype: str = "float64"
    domain_predictions: float = inf

    @classmethod
    def of(cls, bounds: AbstractBounds, backend: str, dtype: torch.dtype) -> Certificate:
        """Return the certificate of these bounds, computed for this backend and precision.

        Args:
            bounds: the bounds.
            backend: the backend whose rounding they include.
            dtype: the precision whose rounding they include.

        Returns:
            The certificate.

        Example:
            >>> import icgd, torch
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> bounds = compiled.bounds_for(compiled.task([[0.5, 1.0]], [1.0]), "fused")
            >>> icgd.Certificate.of(bounds, "fused", torch.float64).n_tokens
            1
        """
        proved = bounds.domain()
        return cls(
            domain_step=proved.step,
            domain_trajectory=proved.trajectory,
            paper_step=bounds.paper_step(),
            n_tokens=bounds.arithmetic.n_tokens,
            widest=bounds.widest,
            condition=bounds.condition,
            stated=bounds.stated,
            estimated=bounds.estimated,
            backend=backend,
            dtype=dtype_name(dtype),
            domain_predictions=bounds.domain_predictions(proved),
        )

    def facts(self) -> dict[str, str]:
        """Return the facts that its repr and notebooks show.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.certificate().facts()["holds for"]
            'literal runs in float64, 1,024 tokens or fewer'
        """
        of_step, of_run = (
            f"at most {number(bound)}{', which says nothing' * self.says_nothing(bound)}"
            for bound in (self.domain_step, self.domain_trajectory)
        )
        return {
            "error of a step": of_step,
            "error of the run": of_run,
            "holds for": f"{self.backend} runs in {self.dtype}, {self.n_tokens:,} tokens or fewer",
            **({"if": self.condition} if self.condition else {}),
        }

    def of_run(self, *, is_covered: bool) -> Certificate:
        """Return the certificate for a run, with infinite bounds (a) if it does not cover the run.

        Args:
            is_covered: whether the condition holds for the run.

        Returns:
            The certificate, or the same with infinite bounds (a).

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.MomentumStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> certificate = icgd.compile(problem, "relu-stack", n_steps=2).certificate()
            >>> certificate.condition
            'of runs whose momentum is 0 at the start'
            >>> certificate.of_run(is_covered=False).domain_step
            inf
        """
        if is_covered:
            return self
        return replace(self, domain_step=inf, domain_trajectory=inf, domain_predictions=inf)

    def says_nothing(self, bound: float) -> bool:
        """Return whether a bound is no smaller than the distance that clipping alone ensures.

        Args:
            bound: the bound.

        Returns:
            True if it says nothing.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.certificate().says_nothing(2.0)  # the box is 1 in either direction
            True
        """
        return not bound < self.widest

    def informative(self, bound: float) -> float | None:
        """Return the bound, or None if it says nothing.

        Args:
            bound: the bound.

        Returns:
            The bound or None.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.certificate().informative(0.5)
            0.5
        """
        return None if self.says_nothing(bound) else bound

    @property
    def empty(self) -> tuple[str, ...]:
        """The names of the bounds that say nothing."""
        names = ("domain_step", "domain_trajectory")
        return tuple(name for name in names if self.says_nothing(getattr(self, name)))

    @property
    def verdict(self) -> Verdict:
        """`Verdict.PROMISED`: bounds are proved, and nothing is measured yet."""
        return Verdict.PROMISED


@with_repr
@dataclass(frozen=True)
class Report:
    """Measured errors of a run beside their bounds, with an entry for each task and step.

    Each is the largest over all weights. Bounds (a) of `certificate` are proved for every run,
    bounds (b) for this run.

    Attributes:
        certificate: the bounds proved for every run.
        step_errors: |w_l - step(w_{l-1})|, the errors that the theorems bound.
        step_bounds: bounds (b) of `step_errors`.
        step_sizes: |step(w_{l-1}) - w_{l-1}|, the size of exact steps, which is the error of a run
            that leaves the weights unchanged. A step with a larger error is useless.
        trajectory_errors: the distance from real gradient descent in float64.
        trajectory_bounds: bounds (b) of `trajectory_errors`, by balls, or by contraction where that
            is tighter; None if there is neither. They include the error of float64 itself.
        near_kinks: the events in which a unit was so close to a kink that its slope was in between.
        paper_trajectory: the paper's bound (c) for the whole run, if it has one. It assumes that no
            step expands distances, so that a run may exceed it, and no verdict depends on it.
        rigorous: the proof by balls of the whole run's distance from exact descent in real numbers,
            if there is one.
        unproved_because: why there is no such proof, unless `rigorous=False` left it out.
        prediction_errors: the distances of predictions at the queries from those of real gradient
            descent.
        prediction_bounds: bounds (b) of `prediction_errors`, or None.
        fused_because: why the fused backend ran, if it was not requested.
        coefficient_errors: the distances of a linear model's coefficients from those of real
            descent after the last step, by the names of the columns, if X was a data frame.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> report = icgd.verify(compiled, [[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5])
        >>> bool((report.step_errors <= report.step_bounds).all()), report.verdict.name
        (True, 'HOLDS')
    """

    certificate: Certificate
    step_errors: Tensor
    step_bounds: Tensor
    trajectory_errors: Tensor
    trajectory_bounds: Tensor | None
    near_kinks: NearKinks
    paper_trajectory: Tensor | None = None
    rigorous: Trajectory | None = None
    prediction_errors: Tensor | None = None
    prediction_bounds: Tensor | None = None
    coefficient_errors: Mapping[str, float] | None = None
    fused_because: str | None = None
    unproved_because: str | None = None
    step_sizes: Tensor | None = None

    def facts(self) -> dict[str, str]:
        """Return the facts that its repr and notebooks show.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> icgd.verify(compiled, [[0.5, 1.0]], [1.0]).facts()["steps"]
            '2'
        """
        predictions = None
        if self.prediction_errors is not None and self.prediction_errors.numel():
            predictions = self._largest("prediction_errors", "prediction_bounds")
        return {
            "verdict": self.conclusion,
            **({"whole run": self.headline} if self.headline else {}),
            "steps": f"{self.step_errors.shape[-1]:,}",
            "backend": self.backend_in_words,
            "error of a step": self._largest("step_errors", "step_bounds"),
            **({"for comparison": idle} if (idle := self.idle) else {}),
            "distance from real descent": self._largest("trajectory_errors", "trajectory_bounds"),
            **({"furthest at the end": self.furthest} if self.furthest else {}),
            **({"error of predictions": predictions} if predictions else {}),
        }

    @property
    def backend(self) -> str:
        """The backend that ran."""
        return self.certificate.backend

    @property
    def backend_in_words(self) -> str:
        """The backend that ran, and why it was not the transformer itself."""
        return self.backend + (f", because {self.fused_because}" if self.fused_because else "")

    @property
    def conclusion(self) -> str:
        """The verdict in words: what holds for this run, and which bounds say nothing."""
        verdict = self.verdict
        name = "HOLDS for this run" if verdict.holds else verdict.name
        missing = ", ".join(_SUBJECTS[bound] for bound in self.empty)
        gaps = f". No bound for {missing}" if missing and verdict.holds else ""
        return f"{name}: {verdict.value}{gaps}"

    @property
    def headline(self) -> str | None:
        """The proof of the whole run in a sentence, or why there is none; None if not requested.

        If balls contain kinks or become infinite, the sentence gives the step.
        """
        if self.unproved_because is not None:
            reason = self.unproved_because
            return f"not proved by balls: {reason[0].lower()}{reason[1:]}"
        if self.rigorous is None or not self.step_errors.numel():
            return None
        proof = self.rigorous
        largest = proof.distances.unsqueeze(0).flatten(0, -2).amax(0)
        is_informative = (largest < self.certificate.widest) & largest.isfinite()
        n_proved = int(is_informative.long().cumprod(0).sum())  # up to the first that is not
        kinks = ""
        if proof.kinks:
            _, step, layer, example, unit = proof.kinks[0]
            kinks = (
                f"; from step {step:,} on this allows for both slopes of a kink that exact descent "
                f"may lie on (layer {layer}, example {example}, unit {unit})"
            )
        if not n_proved:
            return f"nothing is proved of the whole run{kinks}"
        bound = number(rounded_up(float(largest[:n_proved].max())))
        is_complete = n_proved == len(largest)
        subject = "the whole run" if is_complete else f"the run up to step {n_proved:,}"
        remainder = "" if is_complete else "; nothing is proved of later steps"
        return f"proved: {subject} is within {bound} of exact gradient descent{remainder}{kinks}"

    @property
    def idle(self) -> str | None:
        """The size of exact steps, and the ratio of errors to it, or None if no step was taken.

        A run that leaves the weights unchanged has errors of this size, a ratio of 1.
        """
        if self.step_sizes is None or not self.step_sizes.numel():
            return None
        largest, total = number(float(self.step_sizes.max())), self.step_sizes.sum()
        text = f"exact steps move a weight by up to {largest}"
        if not total > 0:
            return text
        ratio = number(float(self.step_errors.sum() / total))
        return f"{text}; the mean error is {ratio} times the mean step"

    @property
    def dtype(self) -> str:
        """The precision that it ran in."""
        return self.certificate.dtype

    @property
    def furthest(self) -> str | None:
        """The column whose coefficient ends furthest from that of real descent.

        None if the columns have no names, or if all coefficients are equal.
        """
        errors = self.coefficient_errors or {}
        return max(errors, key=lambda name: errors[name]) if any(errors.values()) else None

    def _largest(self, errors: str, bounds: str) -> str:
        """Return the largest measured error and its bound in words."""
        if not getattr(self, errors).numel():
            return "no step was taken"
        measured, proved = float(getattr(self, errors).max()), self.informative_bounds.get(bounds)
        if proved is None:
            return f"{number(measured)}, not proved"
        value = "says nothing"
        if not proved.isnan().any():
            value = f"is {number(rounded_up(float(proved.max())))}"
        return f"{number(measured)}, the bound of the run {value}"

    def plot(self, path: str | os.PathLike[str] | None = None) -> pictures.picture.Picture:
        """Return the measured errors beside their bounds over the steps, on logarithmic axes.

        For a batch of tasks, the largest are drawn. The legend marks bounds that say nothing.

        Args:
            path: the file that the picture is also written to, as SVG or PNG by its ending.

        Returns:
            The picture, which a notebook shows.

        Raises:
            FileError: if the name has another ending, or if the file cannot be written.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> type(icgd.verify(compiled, [[0.5, 1.0]], [1.0]).plot()).__name__
            'Picture'
        """
        panels = {"Error of one step": self._curves("step")}
        panels["Distance from real descent"] = self._curves("trajectory")
        title = self.headline if self.rigorous is not None and self.verdict.holds else None
        return pictures.report_picture.draw(panels, title or self.conclusion, path)

    def _curves(self, which: str) -> dict[str, list[float]]:
        """Return measured errors and their bounds by name, with NaN where a bound says nothing."""
        errors = getattr(self, f"{which}_errors")
        domain_bound = self.certificate.informative(getattr(self.certificate, f"domain_{which}"))
        run_bounds = self.informative_bounds.get(f"{which}_bounds", torch.full_like(errors, nan))
        curves = {"measured": errors, "proved for this run (b)": run_bounds}
        curves["proved for every run (a)"] = torch.full_like(errors, domain_bound or nan)
        if which == "step" and (paper := self.certificate.paper_step) is not None:
            name = f"the theorem's own bound (c), {number(paper)}"
            curves[name] = torch.full_like(errors, self.certificate.informative(paper) or nan)
        if which == "trajectory" and self.paper_trajectory is not None:
            curves["the paper's line (c)"] = self.paper_trajectory
        if which == "trajectory" and self.furthest:
            del curves["measured"]
            curves = {f"measured, at the end largest for {self.furthest}": errors, **curves}
        # The largest of all tasks, for each step.
        return {
            name: values.unsqueeze(0).flatten(0, -2).amax(0).tolist()
            for name, values in curves.items()
        }

    @property
    def beyond_paper(self) -> int | None:
        """The first step, counted from 1, after which a run exceeds the paper's bound, or None."""
        if self.paper_trajectory is None:
            return None
        is_beyond = self.trajectory_errors > self.paper_trajectory
        steps = is_beyond.flatten(0, -2).any(0) if is_beyond.ndim > 1 else is_beyond
        return int(steps.nonzero()[0]) + 1 if steps.any() else None

    @property
    def verdict(self) -> Verdict:
        """The outcome. A NaN anywhere counts as broken; an infinite bound is never broken."""
        proved, errors = self.certificate, self.trajectory_errors
        within = [
            self.step_errors <= self.step_bounds,
            self.step_errors <= proved.domain_step,
            errors <= proved.domain_trajectory,
        ]
        if self.trajectory_bounds is not None:
            within.append(errors <= self.trajectory_bounds)
        if self.rigorous is not None:
            trajectory_bounds = (self.trajectory_bounds, proved.domain_trajectory)
            within += [
                self.rigorous.least <= bound for bound in trajectory_bounds if bound is not None
            ]
        if self.prediction_errors is not None:
            within.append(self.prediction_errors <= proved.domain_predictions)
            if self.prediction_bounds is not None:
                within.append(self.prediction_errors <= self.prediction_bounds)
        is_within = all(bool(values.all()) for values in within)
        if not is_within:
            return Verdict.IN_DOUBT if proved.stated or proved.estimated else Verdict.BROKEN
        if proved.estimated:
            return Verdict.HOLDS_ESTIMATED
        is_empty = any(bool(values.isnan().any()) for values in self.informative_bounds.values())
        return Verdict.HOLDS_EMPTY if is_empty else Verdict.HOLDS

    @property
    def empty(self) -> tuple[str, ...]:
        """The names of the bounds that say nothing, for a step of the run or for any run."""
        names = [
            name for name, values in self.informative_bounds.items() if bool(values.isnan().any())
        ]
        return (*names, *self.certificate.empty)

    @property
    def informative_bounds(self) -> dict[str, Tensor]:
        """The bounds of this run by name, NaN where they say nothing.

        Bounds on predictions say nothing where the weights may end anywhere in the box.
        """
        widest = self.certificate.widest
        informative = {"step_bounds": self.step_bounds.where(self.step_bounds < widest, nan)}
        if (trajectory := self.trajectory_bounds) is not None:
            informative["trajectory_bounds"] = trajectory.where(trajectory < widest, nan)
            if (bounds := self.prediction_bounds) is not None:
                ends = at_end(trajectory).unsqueeze(-1)
                informative["prediction_bounds"] = bounds.where(
                    (ends < widest) & (bounds < inf), nan
                )
        return informative
