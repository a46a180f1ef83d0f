r"""A transformer learns the score of a diffusion in its context, and samples are drawn with it.

wu-score trains a network of tanh by softmax attention (softmax-stack), wu-score-relu one of ReLUs
by ReLU attention (relu-stack), as Theorem 1 and Lemma 19 have it. All else is the same, but for the
step size of the digits.

The prompt holds points (x_t, t) and labels: the exact score (Problem 3 of App. H), or the noise
that was added (H.2). A network of three layers is trained on them in three ways:

- in context: by the forward pass of a compiled transformer. A leg is one forward pass; the next
  leg starts from the weights that it left, as the following layers of one long transformer would.
- direct: by the same steps on the same prompt, with automatic differentiation.
- Adam: by Adam with fresh examples in every step, to see what the network is capable of.

The reverse equation then turns noise into samples with each of the learnt scores and with the exact
one, always with the same noise. Two things are measured at several times: the root mean squared
error of a score, on fresh points; and the sliced Wasserstein distance of the samples from data with
the noise of that time. Its floor is the distance of data from other data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import cos, inf, pi
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, Axes
from icgd.pipeline import compile, verify
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.oracles import predict
from icgd.problems.problem import Problem
from icgd.shapes import Parameters
from icgd_papers.figure import Figure, Job, draw_band, of_preset, six_digits
from icgd_papers.studies import diffusion
from icgd_papers.studies.diffusion import (
    SIDE,
    Array,
    Examples,
    Law,
    Points,
    Score,
    Span,
    Times,
    add_noise,
)
from icgd_papers.training.covariates import normal
from icgd_papers.training.tasks import generator_of

PROMPT, CHOICE, MEASURED, START, PATH, DATA, OTHER_DATA, DIRECTIONS = range(8)
"""Random streams of a job."""

FRESH = 2**16
"""Random stream of Adam's first batch."""

EXACT, IN_CONTEXT, DIRECT, ADAM, NORMAL = "exact score", "in context", "direct", "Adam", "N(0, I)"
"""The scores that are compared. The score of N(0, I) is -x; nothing is learnt for it."""

CONSTRUCTIONS = {"tanh": SoftmaxStack(), "relu": ReluStack(kink_width=2.0**-60)}
"""What trains a network of each activation.

A preactivation inside the ramp that stands in for the jump of relu's slope gets a slope in between,
and from there on the run is apart from descent. The default width is a share of what the domain
allows, here 1.5e-8, and some of the 10^8 preactivations of a training lie inside.
"""

BOX = 8.0
"""Weights are projected onto this box; the largest that occurred are below 3."""

REACH = 16.0
"""Bound on inputs and labels; x / 4s is the largest of them."""

SETTLED = 0.05
"""A loss has settled if a tenth of the training lowers it by a smaller share of the signal."""


@dataclass(frozen=True)
class Sizes:
    """How much is learnt from, for how long, and how precisely the result is measured."""

    n_examples: int
    leg_steps: int
    n_legs: int = 20
    width: int = 32
    adam_legs: int = 5
    adam_leg_steps: int = 500
    n_verified: int = 4
    """Steps whose errors are bounded, at the start and at the end of training."""
    n_measured: int = 4000
    """Points on which the error of a score is measured."""
    n_samples: int = 3000
    n_shown: int = 180
    """Samples that the rows keep for the picture."""
    n_times: int = 7
    steps_between: int = 40
    """Steps of the reverse equation between two times at which samples are measured."""
    step_share: float = 0.25
    """Step size times the curvature at the initial weights. Curvature grows several times during
    training; where it reaches 2 / step size, descent becomes unstable and rounding grows."""
    batch_size: int = 256
    learning_rate: float = 0.005
    span: Span = field(default_factory=lambda: Span(0.02, 5.0))

    @property
    def n_steps(self) -> int:
        return self.n_legs * self.leg_steps

    @property
    def adam_steps(self) -> int:
        return self.adam_legs * self.adam_leg_steps


SMOKE = Sizes(
    n_examples=16, leg_steps=2, n_legs=2, width=4, adam_legs=2, adam_leg_steps=2, n_verified=1,
    n_measured=32, n_samples=24, n_shown=4, n_times=3, steps_between=3, batch_size=16,
)  # fmt: skip
PLANE = Sizes(n_examples=512, leg_steps=500, n_verified=8)
NOISY_PLANE = Sizes(n_examples=3072, leg_steps=125, step_share=0.3)
IMAGES = Sizes(
    n_examples=1536, leg_steps=280, n_samples=800, n_shown=9, step_share=0.4, span=Span(0.05, 5.0)
)
NOISY_IMAGES = replace(IMAGES, n_examples=6144, leg_steps=50)
LONG = Sizes(
    n_examples=16_384, leg_steps=250, n_legs=200, width=64, adam_legs=40, adam_leg_steps=1000,
    n_verified=8, n_measured=20_000, n_samples=20_000, steps_between=100, batch_size=1024,
)  # fmt: skip
LONG_IMAGES = replace(LONG, n_samples=898, n_shown=9, step_share=0.4, span=Span(0.05, 5.0))

TANH = {
    "smoke": (1, 3, SMOKE, SMOKE, SMOKE, SMOKE),
    "laptop": (3, 8, PLANE, NOISY_PLANE, IMAGES, NOISY_IMAGES),
    "paper": (5, 8, LONG, LONG, LONG_IMAGES, LONG_IMAGES),
}
longer_steps = partial(replace, step_share=0.8)  # with 0.4 relu learns the digits slowly
RELU = TANH | {
    "laptop": (3, 8, PLANE, NOISY_PLANE, longer_steps(IMAGES), longer_steps(NOISY_IMAGES)),
    "paper": (5, 8, LONG, LONG, longer_steps(LONG_IMAGES), longer_steps(LONG_IMAGES)),
}
PRESETS = {"tanh": TANH, "relu": RELU}
"""Seeds, dimension of the digits, and sizes: the plane with exact and noisy labels, then images.

The paper has no experiment; the preset `paper` is what more time can buy.
"""


@dataclass(frozen=True)
class Setting:
    """A law, a kind of labels, a seed, and the activation of the network that learns."""

    panel: str
    law: str
    dimension: int
    targets: str
    seed: int
    sizes: Sizes
    activation: str


def settings(activation: str, preset: str, seed: int) -> list[Setting]:
    """Return both kinds of labels for every law and seed; the first seed's samples are shown."""
    n_seeds, image_dimension, plane, noisy_plane, images, noisy_images = of_preset(
        PRESETS[activation], preset
    )
    first_seed = [
        Setting("a", "ring", 2, "exact", seed, plane, activation),
        Setting("a", "ring", 2, "denoising", seed, noisy_plane, activation),
        Setting("b", "pinwheel", 2, "exact", seed, plane, activation),
        Setting("b", "pinwheel", 2, "denoising", seed, noisy_plane, activation),
        Setting("c", "digits", image_dimension, "exact", seed, images, activation),
        Setting("c", "digits", image_dimension, "denoising", seed, noisy_images, activation),
    ]
    return [
        replace(case, seed=seed + i, sizes=replace(case.sizes, n_shown=0)) if i else case
        for case in first_seed
        for i in range(n_seeds)
    ]


def work(setting: Setting) -> float:
    """Count the examples of all training steps."""
    sizes = setting.sizes
    return float(2 * sizes.n_steps * sizes.n_examples + sizes.adam_steps * sizes.batch_size)


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Train in three ways, draw samples with every score, and measure both.

    The frame has a row for each score and time, and one for each loss of a training.
    """
    sizes, span, seed = setting.sizes, setting.sizes.span, setting.seed
    construction = CONSTRUCTIONS[setting.activation]
    law = law_of(setting)
    prompt = examples_of(setting, law, PROMPT, sizes.n_examples)
    problem = problem_of(setting, law)
    task = as_task(problem, prompt.x, prompt.y, seed=seed)
    network = problem.network

    histories = train_all(setting, law, problem, task, job)
    weights = {name: history[-1] for name, history in histories.items()}
    losses = {
        name: [float(problem.oracle.risk(task, reached)) for reached in history]
        for name, history in histories.items()
    }

    # The transformer answers queries as part of its forward pass, here without any step.
    reader = compile(problem, construction, n_steps=0)
    learnt = replace(task, x=task.x[:1], y=task.y[:1], initial=weights[IN_CONTEXT])
    scores: dict[str, Score] = {
        EXACT: law.mixture.score,
        IN_CONTEXT: score_by(
            lambda x: reader.run_task(replace(learnt, queries=x)).predictions, span
        ),
        DIRECT: score_by(partial(predict, network, weights[DIRECT]), span),
        ADAM: score_by(partial(predict, network, weights[ADAM]), span),
        NORMAL: lambda x, _: -x,
    }
    paths = {name: sample_path(scores[name], setting) for name in (EXACT, *weights)}

    def distance(points: Points, data: Points) -> float:
        return diffusion.sliced_wasserstein(points, data, 128, generator_of(seed, DIRECTIONS))

    times = span.backwards(sizes.n_times - 1).tolist()
    data = noisy_data(law.draw_fresh, times, sizes.n_samples, generator_of(seed, DATA))
    training_data = noisy_data(
        law.draw_training, times, sizes.n_samples, generator_of(seed, OTHER_DATA)
    )
    measured = generator_of(seed, MEASURED)
    rows: list[dict[str, Any]] = []
    for i, time in enumerate(times):
        x = add_noise(law.mixture.sample(sizes.n_measured, measured), time, measured)
        at_time = torch.full((len(x),), time, dtype=torch.float64)
        exact = scores[EXACT](x, at_time)
        floor = distance(training_data[i], data[i])
        for name, score in scores.items():
            row: dict[str, Any] = {"method": name, "time": time}
            if name != EXACT:
                error = root_mean_square(score(x, at_time) - exact)
                row |= {"score_error": error, "relative_error": error / root_mean_square(exact)}
            if name != NORMAL:
                row |= {"distance": distance(paths[name][i], data[i]), "floor": floor}
            if name not in (NORMAL, ADAM) and sizes.n_shown:
                shown = paths[name][i][: sizes.n_shown].tolist()
                row["points"] = ";".join(" ".join(f"{x:.2f}" for x in point) for point in shown)
            rows.append(row)
    label_power = half_power(prompt.y)
    for name, curve in losses.items():
        leg_steps = sizes.adam_leg_steps if name == ADAM else sizes.leg_steps
        for leg, loss in enumerate(curve):
            step = {"step": leg * leg_steps, "loss": loss, "label_power": label_power}
            rows.append({"method": name, **step})

    # The distance from exact descent in real numbers is proved for the first steps. For the last
    # ones, from the learnt weights, only each step's own error is bounded.
    few_steps = compile(problem, construction, n_steps=sizes.n_verified)
    first = verify(few_steps, task.x, task.y, initial=task.initial, rigorous=True)
    last = verify(few_steps, task.x, task.y, initial=weights[IN_CONTEXT], rigorous=False)
    signal = half_power(prompt.exact)
    constants = {
        "panel": setting.panel,
        "law": setting.law,
        "dimension": setting.dimension,
        "targets": setting.targets,
        "seed": seed,
        "n_examples": sizes.n_examples,
        "width": sizes.width,
        "n_steps": sizes.n_steps,
        "step_share": sizes.step_share,
        "adam_steps": sizes.adam_steps,
        "n_samples": sizes.n_samples,
        "first_time": span.first,
        "last_time": span.last,
        "reverse_steps": sizes.steps_between * (sizes.n_times - 1),
        "step_size": problem.gradient_step.size_of(0),
        "settled_after": settled_after(losses[IN_CONTEXT], sizes.leg_steps, signal),
        "signal": signal,
        "weight_difference": largest(weights[IN_CONTEXT] - weights[DIRECT]),
        "sample_difference": largest(paths[IN_CONTEXT][-1] - paths[DIRECT][-1]),
        "step_error": max(largest(report.step_errors) for report in (first, last)),
        "step_bound": max(largest(report.step_bounds) for report in (first, last)),
        "proved": float(first.rigorous.distances[-1]) if first.rigorous else inf,
        "near_kinks": first.near_kinks.count + last.near_kinks.count,
    }
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame = frame.with_columns(**{name: pl.lit(value) for name, value in constants.items()})
    if not sizes.n_shown:
        frame = frame.with_columns(points=pl.lit(None, pl.String))
    return frame.with_columns(pl.col(pl.Float64).map_elements(six_digits, pl.Float64))


def law_of(setting: Setting) -> Law:
    """Return the law of the data; how the digits are split depends on the seed."""
    if setting.law == "digits":
        return diffusion.digits(setting.dimension, setting.seed)
    return diffusion.ring() if setting.law == "ring" else diffusion.pinwheel()


def examples_of(setting: Setting, law: Law, stream: int, n_examples: int) -> Examples:
    """Draw examples from one of the job's random streams."""
    generator = generator_of(setting.seed, stream)
    return diffusion.draw_examples(law, setting.targets, setting.sizes.span, n_examples, generator)


def problem_of(setting: Setting, law: Law) -> Problem:
    """Return a network, with a step size that follows from the curvature.

    The curvature is measured at the initial weights, on a prompt that is not learnt from.
    """
    width, dimension = setting.sizes.width, setting.dimension
    network = MLP((3 * dimension + 2, width, width, dimension), setting.activation)
    problem = Problem(network, "squared", GradientStep(1.0, BOX), Domain(REACH, REACH))
    examples = examples_of(setting, law, CHOICE, setting.sizes.n_examples)
    task = as_task(problem, examples.x, examples.y, seed=setting.seed)
    step_size = setting.sizes.step_share / largest_curvature(problem, task, setting.seed)
    return replace(problem, update=GradientStep(step_size, BOX))


def largest_curvature(problem: Problem, task: Task, seed: int) -> float:
    """Return the spectral norm of the risk's Hessian at the initial weights, by power iteration."""
    weights = task.initial.clone().requires_grad_()
    (slope,) = torch.autograd.grad(problem.oracle.risk(task, weights), weights, create_graph=True)
    direction = normal(generator_of(seed, 0), len(weights))
    for _ in range(40):
        direction = direction / direction.norm()
        (direction,) = torch.autograd.grad(slope @ direction, weights, retain_graph=True)
    return float(direction.norm())


def train_all(
    setting: Setting, law: Law, problem: Problem, task: Task, job: Job
) -> dict[str, list[Parameters]]:
    """Return the weights of each training: the initial ones, and those after every leg."""
    sizes, network = setting.sizes, problem.network

    def risk(weights: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return (predict(network, weights, x) - y).square().sum(-1).mean() / 2

    def in_context(weights: Parameters) -> list[float]:
        compiled = compile(problem, CONSTRUCTIONS[setting.activation], n_steps=sizes.leg_steps)
        forward_pass = compiled.run_task(replace(task, initial=weights), history=False)
        return forward_pass.parameters[-1].tolist()

    def direct(weights: Parameters) -> list[float]:
        for _ in range(sizes.leg_steps):
            weights = weights.detach().requires_grad_()
            (slope,) = torch.autograd.grad(risk(weights, task.x, task.y), weights)
            weights = (weights - problem.gradient_step.size_of(0) * slope).clamp(-BOX, BOX)
        return weights.tolist()

    def adam() -> list[list[float]]:
        """Train on fresh examples; the learning rate falls to 0 like a cosine."""
        weights = task.initial.clone().requires_grad_()
        optimizer = torch.optim.Adam([weights], lr=sizes.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: (1 + cos(pi * step / sizes.adam_steps)) / 2
        )
        history = []
        for step in range(1, sizes.adam_steps + 1):
            examples = examples_of(setting, law, FRESH + step - 1, sizes.batch_size)
            optimizer.zero_grad()
            loss = risk(weights, examples.x, examples.y)
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % sizes.adam_leg_steps == 0:
                history.append(weights.tolist())
                report(2 * sizes.n_steps + step, loss.item())
        return history

    def report(step: int, loss: float) -> None:
        if job.on_step:
            job.on_step(step, 2 * sizes.n_steps + sizes.adam_steps, loss)

    histories = {}
    for n_before, (name, leg) in enumerate(((IN_CONTEXT, in_context), (DIRECT, direct))):
        history = [task.initial]
        for index in range(sizes.n_legs):
            reached = job.cached(f"{name}-{index}", partial(leg, history[-1]))
            history.append(torch.tensor(reached, dtype=torch.float64))
            n_done = n_before * sizes.n_steps + (index + 1) * sizes.leg_steps
            report(n_done, float(risk(history[-1], task.x, task.y)))
        histories[name] = history
    after_legs = torch.tensor(job.cached(ADAM, adam), dtype=torch.float64)
    return {**histories, ADAM: [task.initial, *after_legs]}


def score_by(velocity: Callable[[Tensor], Tensor], span: Span) -> Score:
    """Return the score that a network's velocity stands for; inputs are clipped to the domain."""

    def score(x: Points, times: Times) -> Points:
        inputs = diffusion.network_inputs(x, times, span).clamp(-REACH, REACH)
        return diffusion.score_of(velocity(inputs), x, times)

    return score


def sample_path(score: Score, setting: Setting) -> list[Points]:
    """Draw samples by the reverse equation; all scores get the same noise."""
    sizes, seed = setting.sizes, setting.seed
    start = normal(generator_of(seed, START), sizes.n_samples, setting.dimension)
    times = sizes.span.backwards(sizes.steps_between * (sizes.n_times - 1))
    path = diffusion.reverse_path(score, start, times, generator_of(seed, PATH))
    return list(path)[:: sizes.steps_between]


def noisy_data(
    draw: Callable[[int, np.random.Generator], Points],
    times: list[float],
    n_points: int,
    generator: np.random.Generator,
) -> list[Points]:
    """Return the same data with the noise of each time."""
    clean = draw(n_points, generator)
    return [add_noise(clean, time, generator) for time in times]


def root_mean_square(vectors: Points) -> float:
    """Return the root of the mean squared length."""
    return float(vectors.square().sum(-1).mean().sqrt())


def half_power(labels: Tensor) -> float:
    """Return half the mean squared length, which is the loss of predicting 0."""
    return float(labels.square().sum(-1).mean() / 2)


def largest(tensor: Tensor) -> float:
    """Return the largest absolute value."""
    return float(tensor.abs().max())


def settled_after(losses: list[float], leg_steps: int, signal: float) -> int | None:
    """Return the first step after which a tenth of the training hardly lowers the loss."""
    window = max(1, (len(losses) - 1) // 10)
    for leg, (now, later) in enumerate(zip(losses, losses[window:], strict=False)):
        if now - later < SETTLED * signal:
            return leg * leg_steps
    return None


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a line for each law and kind of labels, with means over the seeds."""
    keys = ["law", "targets"]
    at_end = rows.filter(pl.col("step") == pl.col("n_steps"), method=IN_CONTEXT)
    of_training = at_end.group_by(keys, maintain_order=True).agg(
        pl.col("n_steps").first(),
        pl.col("settled_after").cast(pl.String).fill_null("-"),
        loss_left=(pl.col("loss") / pl.col("label_power")).mean(),
        off_direct=pl.col("weight_difference").max(),
    )
    at_t0 = rows.filter(pl.col("time") == pl.col("time").min().over("law"))
    of_samples = at_t0.group_by(keys).agg(
        *(
            pl.col("relative_error", "distance").filter(method=name).mean().name.suffix(f", {name}")
            for name in (IN_CONTEXT, ADAM, EXACT)
        ),
        pl.col("floor").mean(),
    )
    lines = []
    for line in of_training.join(of_samples, on=keys, maintain_order="left").to_dicts():
        errors = [line[f"relative_error, {name}"] for name in (IN_CONTEXT, ADAM)]
        distances = [line[f"distance, {name}"] for name in (IN_CONTEXT, ADAM, EXACT)]
        distances.append(line["floor"])
        cells = {
            "law": line["law"],
            "labels": line["targets"],
            "steps": str(line["n_steps"]),
            "settled after": ", ".join(line["settled_after"]),
            "loss left": f"{line['loss_left']:.3f}",
            "score error at T_0: in context / Adam": " / ".join(f"{x:.3f}" for x in errors),
            "distance: in context / Adam / exact / floor": " / ".join(
                f"{x:.3f}" for x in distances
            ),
            "off direct": f"{line['off_direct']:.0e}",
        }
        lines.append(cells)
    return pl.DataFrame(lines)


COLOURS = {EXACT: INK, IN_CONTEXT: BLUE, DIRECT: ORANGE, ADAM: GREEN}

STRIPS = (
    ("exact", EXACT, "exact\nscore"),
    ("exact", IN_CONTEXT, "in context,\nfrom scores"),
    ("exact", DIRECT, "direct,\nfrom scores"),
    ("denoising", IN_CONTEXT, "in context,\ndenoising"),
)
"""The rows of samples: their labels, their score, and the words beside them."""

MOST_SHOWN = 5
"""Times that fit into a row of samples."""

MONTAGE = 3
"""Images are shown in squares of MONTAGE x MONTAGE."""


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a block per law: samples on the left; losses, errors and distances on the right."""
    laws = rows["law"].unique(maintain_order=True).to_list()
    n_times = len(shown_times(rows.filter(law=laws[0])))
    names = [
        [f"{law} {strip} {column}" for column in range(n_times)]
        + [f"{law} loss", f"{law} error", f"{law} distance"]
        for law in laws
        for strip in range(len(STRIPS))
    ]
    ratios = [1.0] * n_times + [2.3] * 3
    figure, panels = plotting.new_mosaic(17.0, 5.6 * len(laws) + 0.4, names, ratios)
    for law in laws:
        of_law = rows.filter(law=law)
        for strip, (targets, method, words) in enumerate(STRIPS):
            samples = of_law.filter(pl.col("points").is_not_null(), targets=targets, method=method)
            axes = [panels[f"{law} {strip} {column}"] for column in range(n_times)]
            draw_samples(axes, samples, shown_times(of_law), COLOURS[method])
            axes[0].set_ylabel(words, fontsize=11.5, color=INK, rotation=0, ha="right", va="center")
        for column, time in enumerate(shown_times(of_law)):
            panels[f"{law} 0 {column}"].set_title(f"t = {time:.2g}", fontsize=11.5, color=INK)
        panels[f"{law} 0 0"].annotate(
            law, (-0.9, 1.22), xycoords="axes fraction", fontsize=15, color=INK, weight="bold"
        )
        draw_losses(panels[f"{law} loss"], of_law)
        draw_errors(panels[f"{law} error"], of_law)
        draw_distances(panels[f"{law} distance"], of_law)
    entries = [*COLOURS.items(), (f"score of {NORMAL}", FAINT), ("from denoising", INK)]
    plotting.legend(figure, entries, dashed=("from denoising",))
    return figure


def shown_times(rows: pl.DataFrame) -> list[float]:
    """Return the times with a column: first, last, and those at which the law takes shape."""
    times = rows["time"].drop_nulls().unique().sort(descending=True).to_list()
    return times if len(times) <= MOST_SHOWN else [times[0], *times[2:MOST_SHOWN], times[-1]]


def draw_samples(axes: list[Axes], rows: pl.DataFrame, times: list[float], colour: str) -> None:
    """Draw points of the plane as dots, and points of more dimensions as images."""
    for panel, time in zip(axes, times, strict=True):
        panel.set(xticks=[], yticks=[], aspect="equal")
        panel.grid(visible=False)
        panel.spines[["top", "right", "left", "bottom"]].set_visible(False)
        text = rows.filter(time=time)["points"][0]
        points = np.array([[float(entry) for entry in point.split()] for point in text.split(";")])
        if points.shape[1] == 2:
            panel.scatter(points[:, 0], points[:, 1], s=4.5, color=colour, alpha=0.7, linewidths=0)
            panel.set(xlim=(-2.7, 2.7), ylim=(-2.7, 2.7))
        else:
            images = digit_components(points.shape[1]).images(points)
            panel.imshow(montage(images), cmap="gray_r", vmin=0, vmax=16)


@cache
def digit_components(dimension: int) -> diffusion.Components:
    """Return the principal components of the digits."""
    return diffusion.Components.of(diffusion.read_digits()[0], dimension)


def montage(images: Array) -> Array:
    """Arrange the first images in a square, with a white line between them."""
    side = min(MONTAGE, int(len(images) ** 0.5))
    sheet = np.zeros((side * (SIDE + 1) - 1, side * (SIDE + 1) - 1))
    for index, image in enumerate(images[: side * side]):
        row, column = divmod(index, side)
        top, left = (SIDE + 1) * row, (SIDE + 1) * column
        sheet[top : top + SIDE, left : left + SIDE] = image.clip(0, 16)
    return sheet


def draw_losses(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw the loss on the prompt over the loss of predicting 0, after each leg."""
    shares = rows.filter(pl.col("step") > 0).with_columns(
        share=pl.col("loss") / pl.col("label_power")
    )
    draw_lines(panel, shares.filter(pl.col("method") != ADAM), "step", "share")
    plotting.describe(panel, "loss on the prompt", "step of training", "over that of predicting 0")


def draw_errors(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw the relative error of every score; time runs from noise to data."""
    timed = rows.filter(pl.col("relative_error").is_not_null())
    draw_lines(panel, timed, "time", "relative_error")
    draw_band(panel, timed.filter(targets="exact", method=NORMAL), "time", "relative_error", FAINT)
    panel.set_ylim(bottom=max(panel.get_ylim()[0], 1e-3))
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.invert_xaxis()
    plotting.describe(panel, "score: relative error", "t", "")


def draw_lines(panel: Axes, rows: pl.DataFrame, x: str, y: str) -> None:
    """Draw a line per method and kind of labels; direct training is wide, and lies below."""
    plotting.logarithmic_height(panel)
    for targets, style in (("exact", "-"), ("denoising", "--")):
        for method, width in ((DIRECT, 5.0), (IN_CONTEXT, 1.8), (ADAM, 1.8)):
            of_method = rows.filter(targets=targets, method=method)
            draw_band(panel, of_method, x, y, COLOURS[method], linestyle=style, width=width)


def draw_distances(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw a dot per seed at T_0, hollow if learnt from denoising, and a bar at their mean."""
    at_t0 = rows.filter(pl.col("time") == pl.col("time").min())
    lines = [("exact", EXACT, "floor", "data", FAINT), ("exact", EXACT, "distance", EXACT, INK)]
    for targets, suffix in (("exact", ""), ("denoising", ",\ndenoising")):
        for method in (IN_CONTEXT, DIRECT, ADAM):
            lines.append((targets, method, "distance", method + suffix, COLOURS[method]))
    for i, (targets, method, column, _, colour) in enumerate(lines):
        values = at_t0.filter(targets=targets, method=method)[column].to_list()
        fill = colour if targets == "exact" else "white"
        panel.scatter(
            values, [-i] * len(values), s=42, color=fill, edgecolors=colour, linewidths=1.6
        )
        panel.scatter(fmean(values), -i, s=420, marker="|", color=colour, linewidths=2.2)
    panel.set_yticks([-i for i in range(len(lines))], [name for _, _, _, name, _ in lines])
    panel.set_xlim(left=0)
    panel.set_ylim(0.6 - len(lines), 0.6)
    plotting.describe(panel, "samples at T_0", "distance from data", "")


FIGURES = tuple(
    Figure(
        name=name,
        place="App. H",
        shows=f"a diffusion's score learnt in context{of}: errors, distances and samples",
        settings=partial(settings, activation),
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
    )
    for name, activation, of in (
        ("wu-score", "tanh", ""),
        ("wu-score-relu", "relu", " by a ReLU network"),
    )
)
