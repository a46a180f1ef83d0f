"""The demo: a transformer's forward pass trains a network on real cars.

A network of three layers learns a car's miles per gallon from its weight, horsepower and
quarter-mile time. Its gradient descent is compiled; the training cars and the initial weights
go into the prompt, and the forward pass gives predictions for cars that it never saw.

The 32 cars are those of the 1974 Motor Trend road tests (Henderson and Velleman 1981, "mtcars").
Weight is in 1000 lb, the quarter mile in seconds, displacement in cubic inches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from icgd.backends.run import OnProgress
from icgd.certificates.report import Report
from icgd.environment import one_thread
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, INK, ORANGE, RED, Axes, Figure
from icgd.pipeline import compile, verify
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.tables import Numbers, Scaling, read_table
from icgd.shapes import History
from icgd.timing import descend, interleaved_medians
from icgd.weights.sizes import Summary

CARS = Path(__file__).with_name("cars.csv")
INPUTS, LABEL = ("weight", "horsepower", "quarter_mile"), "mpg"


def read_cars() -> tuple[list[str], Numbers, Numbers]:
    """Return the names of the cars, their inputs and their miles per gallon, a row for each car."""
    table = read_table(CARS)
    return table.frame["car"].to_list(), table.numbers(INPUTS), table.numbers([LABEL])


def with_constant(x: Numbers) -> Numbers:
    """Append a column of ones, whose weights act as biases."""
    return np.column_stack([x, np.ones(len(x))])


@dataclass(frozen=True)
class Settings:
    """The settings of the demo; its bounds leave a little room around the standardised data."""

    hidden_widths: tuple[int, ...] = (8, 8)
    activation: str = "tanh"
    step_size: float = 0.2
    box: float = 1.5
    x_bound: float = 3.0
    y_bound: float = 2.5
    n_steps: int = 200
    pieces: int = 128
    n_held_out: int = 8
    split_seed: int = 0
    weight_seed: int = 3  # a start far from the end; seeds 0 to 11 err by 2.2 to 3.1 mpg
    n_timings: int = 5

    @property
    def problem(self) -> Problem:
        """The problem; its inputs are the columns and a constant 1."""
        widths = (len(INPUTS) + 1, *self.hidden_widths, 1)
        return Problem(
            target=MLP(widths, self.activation),
            loss="squared",
            update=GradientStep(self.step_size, self.box),
            domain=Domain(self.x_bound, self.y_bound),
        )


N_STAGES = 4
"""The number of stages that progress counts: training, fused run, certificate, timing."""

QUICK = Settings(hidden_widths=(3, 3), n_steps=5, pieces=16, n_timings=1)
"""The settings that tests use."""


@dataclass(frozen=True)
class Prediction:
    """A held-out car's miles per gallon: true, and predicted in two ways."""

    car: str
    true_mpg: float
    transformer_mpg: float
    descent_mpg: float


@dataclass(frozen=True)
class Seconds:
    """Wall-clock times; `transformer` and `descent` are medians of interleaved repetitions."""

    compile: float
    transformer: float
    descent: float
    literal: float


@dataclass(frozen=True)
class Result:
    """Every number of the demo. Losses are those before the first step and after every step."""

    settings: Settings
    summary: Summary
    report: Report
    transformer_losses: tuple[float, ...]
    descent_losses: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    fused_difference: float
    seconds: Seconds

    @property
    def transformer_rmse(self) -> float:
        """The root mean squared error on the held-out cars, in miles per gallon."""
        return _rmse([car.transformer_mpg - car.true_mpg for car in self.predictions])

    @property
    def descent_rmse(self) -> float:
        return _rmse([car.descent_mpg - car.true_mpg for car in self.predictions])


def _rmse(errors: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


@one_thread()  # with matrices this small, more threads only wait for each other
def numbers(settings: Settings | None = None, on_progress: OnProgress | None = None) -> Result:
    """Compile, run, compare and time; `on_progress` is called after every stage."""
    settings = settings or Settings()
    stage_done = on_progress or (lambda done, total: None)
    names, inputs, mpg = read_cars()
    order = np.random.default_rng(settings.split_seed).permutation(len(names))
    training, held_out = np.split(order, [len(order) - settings.n_held_out])
    x_scaling, y_scaling = Scaling.of(inputs[training]), Scaling.of(mpg[training])
    x = with_constant(x_scaling.applied(inputs))
    x, queries, y = x[training], x[held_out], y_scaling.applied(mpg[training])

    start = perf_counter()
    problem = settings.problem
    compiled = compile(problem, "relu-stack", n_steps=settings.n_steps, pieces=settings.pieces)
    compile_seconds = perf_counter() - start
    task = compiled.task(x, y, queries=queries, seed=settings.weight_seed)
    start = perf_counter()
    run = compiled.run_task(task, backend="literal")
    literal_seconds = perf_counter() - start
    real = problem.oracle.train(task, settings.n_steps)
    real_predictions = problem.oracle.predict(task, real[-1])
    stage_done(1, N_STAGES)
    fused = compiled.run_task(task)
    differences = [run.parameters - fused.parameters, run.predictions - fused.predictions]
    stage_done(2, N_STAGES)
    report = verify(compiled, x, y, queries=queries, initial=task.initial)
    stage_done(3, N_STAGES)
    seconds = interleaved_medians(
        {
            "transformer": lambda: compiled.run_task(task),
            "descent": lambda: descend(problem, task, settings.n_steps),
        },
        rounds=settings.n_timings,
    )
    stage_done(N_STAGES, N_STAGES)
    predicted = [y_scaling.undone(p.numpy())[:, 0] for p in (run.predictions, real_predictions)]
    columns = (mpg[held_out, 0], *predicted)
    return Result(
        settings=settings,
        summary=compiled.summary(task.n_tokens),
        report=report,
        transformer_losses=_losses(problem, run.parameters, task),
        descent_losses=_losses(problem, real, task),
        predictions=tuple(
            map(Prediction, [names[car] for car in held_out], *(c.tolist() for c in columns))
        ),
        fused_difference=max(float(part.abs().max()) for part in differences),
        seconds=Seconds(compile_seconds, **seconds, literal=literal_seconds),
    )


def _losses(problem: Problem, history: History, task: Task) -> tuple[float, ...]:
    return tuple(float(problem.oracle.risk(task, weights)) for weights in history)


def picture(result: Result) -> Figure:
    """Draw three panels: the losses, the errors with their bounds, the predictions."""
    figure, (losses, errors, cars) = plotting.new_figure(13.0, 4.4, n_panels=3)
    _draw_losses(losses, result)
    _draw_errors(errors, result)
    _draw_cars(cars, result)
    return figure


def _draw_losses(panel: Axes, result: Result) -> None:
    """Draw gradient descent as a broad band, and the transformer as a thin line inside it."""
    ours, real = result.transformer_losses, result.descent_losses
    plotting.describe(
        panel, "One forward pass trains the network", "training step", "training loss (log scale)"
    )
    panel.plot(real, color=ORANGE, linewidth=8, solid_capstyle="round")
    panel.plot(ours, color=BLUE, linewidth=2)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    at, top = 0.12 * len(ours), max(ours)
    plotting.note(panel, "broad: real gradient descent", (at, 0.75 * top), ORANGE)
    plotting.note(panel, "thin: the transformer", (at, 0.55 * top), BLUE)


def _draw_errors(panel: Axes, result: Result) -> None:
    """Draw the bound of the whole run as a broad band, and the measured errors as a thin line."""
    report = result.report
    proved = report.informative_bounds["trajectory_bounds"]
    plotting.describe(
        panel, "Every error is proved", "training step", "largest error of any weight (log scale)"
    )
    steps = range(1, len(report.step_errors) + 1)
    panel.plot(steps, proved, color=ORANGE, linewidth=8, solid_capstyle="round")
    panel.plot(steps, report.trajectory_errors, color=RED, linewidth=2)
    panel.plot(steps, report.step_bounds, color=BLUE, linewidth=2, linestyle=(0, (4, 2)))
    panel.plot(steps, report.step_errors, color=BLUE, linewidth=2)
    panel.set_yscale("log")
    low, high = float(report.step_errors.min()), float(proved.max())
    panel.set_ylim(low / 12, 25 * high)
    for text, height, colour in (
        ("broad: distance to exact descent, proved", 9 * high, ORANGE),
        ("thin: the same, measured", 3.2 * high, RED),
        ("dashed: error of one step, proved", low / 2.6, BLUE),
        ("solid: the same, measured", low / 7.5, BLUE),
    ):
        plotting.note(panel, text, (float(len(steps)), height), colour, ha="right")


def _draw_cars(panel: Axes, result: Result) -> None:
    """Draw gradient descent as large discs, and the transformer as dots in them."""
    cars = result.predictions
    true, ours = [car.true_mpg for car in cars], [car.transformer_mpg for car in cars]
    plotting.describe(
        panel, "It predicts cars that it never saw", "true miles per gallon", "predicted mpg"
    )
    panel.axline((20, 20), slope=1, color=FAINT, linewidth=1, linestyle=":")
    panel.scatter(true, [car.descent_mpg for car in cars], s=150, color=ORANGE, lw=0)
    panel.scatter(true, ours, s=26, color=BLUE)
    ends = (min(*true, *ours) - 2, max(*true, *ours) + 2)
    panel.set(xlim=ends, ylim=ends)
    for car in cars:
        side = -1 if car.true_mpg > 0.75 * ends[1] else 1
        at = (car.true_mpg + 0.8 * side, car.transformer_mpg)
        plotting.tag(panel, car.car, at, ha="left" if side > 0 else "right")
    low, high = ends
    for text, share, colour in (
        ("disc: real gradient descent", 0.96, ORANGE),
        ("dot: the transformer", 0.89, BLUE),
    ):
        plotting.note(panel, text, (low + 0.5, low + share * (high - low)), colour)
    error = f"off by {result.transformer_rmse:.1f} mpg (root mean square)"
    plotting.note(panel, error, (high - 0.5, low + 0.04 * (high - low)), INK, ha="right")
