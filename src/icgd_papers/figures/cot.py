r"""cot-fig2: operators that are learnt for a chain of thought, and the chain that they make.

Appendix D of cot trains a forward and a backward operator and reports two validation losses, 3.00
and 0.139. It announces the whole chain of 2NL blocks by the learnt operators, and does not show it.
Here both are measured, for the paper's architecture and for others nearer to the constructed block.

The paper does not say how its teachers are drawn, and a loss means little without that law. So the
losses are measured over a family of laws that is chosen by the usual initialisations of a layer and
not by any loss: all weights are N(0, s^2/d) and inputs N(0, I), for s = 1/4, 1/2, 1 and sqrt(2).
There 0.1 N(0, 1) at d = 5 has s = 0.22, torch's default has the variance of s = 0.58, LeCun's has
s = 1 and He's s = sqrt(2). At s = 2, descent diverges. Beside each loss stand
those of a constant, the mean block, and of the best linear map, both fitted to the training pairs.
A loss that meets the paper's number under one law says nothing about the paper's law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.constructions.cot_network import CotNetwork
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Axes
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.training.block_pairs import CHAIN_TEACHERS, DIRECTIONS, BlockTask, Pairs, Teachers
from icgd_papers.training.chain_blocks import BlockRows, Operators, weights_after_rounds
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.operators import (
    LearntOperator,
    PlainOperator,
    ProductOperator,
    as_operator,
)
from icgd_papers.training.tasks import generator_of

PAPER = {"forward": 3.00, "backward": 0.139}
"""The smallest validation losses that the paper reports."""

SCALES = (0.25, 0.5, 1.0, 1.4142)
"""The family of teacher laws: s of N(0, s^2/d)."""

LEARNING_RATES = {
    "plain, no positions": 1e-3,
    "plain": 1e-3,
    "plain, positions scale": 1e-3,
    "products": 3e-3,
    "products, steep slopes": 3e-3,
    "grid": 3e-3,
    "grid, random start": 3e-3,
}
"""The architectures, from the paper's to the nearest to the construction, and how fast they learn.

"products, steep slopes" and both grids read the slopes of forward blocks through steep units.
"""

N_GRID = 16


@dataclass(frozen=True)
class Setting:
    """Both operators of an architecture, for networks of `depth` layers of `width` units."""

    architecture: str
    weight_scale: float
    n_teachers: int
    width: int
    depth: int
    seed: int
    n_epochs: int = 20
    batch_size: int = 256
    n_validation_teachers: int = 60
    n_chains: int = 50
    n_rounds: int = 20
    step_size: float = 0.02

    @property
    def teachers(self) -> Teachers:
        return Teachers(self.width, self.depth, self.n_rounds, self.step_size, self.weight_scale)

    def task(self, direction: str) -> BlockTask:
        """Return the pairs that the operator of a direction learns from."""
        return BlockTask(
            self.teachers, direction, self.n_teachers, self.n_validation_teachers, self.seed
        )

    def model(self, direction: str) -> LearntOperator:
        """Make an untrained operator; forward and backward start from different seeds."""
        name, d = self.architecture, self.width
        seed = 2 * self.seed + DIRECTIONS.index(direction)
        if name.startswith("plain"):
            # Width 128, 8 heads and an MLP of 512 units for d = 5, more for wider networks.
            stream = 128 * d // 5 // 8 * 8 or 8
            positions = {"plain": "added", "plain, positions scale": "scaled"}.get(name, "none")
            return PlainOperator(
                d, stream_width=stream, hidden_width=4 * stream, positions=positions, seed=seed
            )
        # Room for all rows in the stream, and as many heads as the constructed block needs.
        return ProductOperator(
            d,
            stream_width=2 * BlockRows(d).n_rows + 14,
            n_heads=d**2 + 3 * d,
            key_width=d + 1,
            router_width=13 * d,
            hidden_width=26 * d,
            steep_slopes=name != "products" and direction == "forward",
            n_grid=N_GRID if name.startswith("grid") else 0,
            random_grid=name == "grid, random start",
            seed=seed,
        )

    @property
    def epoch_steps(self) -> int:
        return self.task("forward").steps_per_epoch(self.batch_size)

    @property
    def operator_steps(self) -> int:
        """The training steps of one operator."""
        return self.epoch_steps * self.n_epochs


def settings(preset: str, seed: int) -> list[Setting]:
    """Return the settings of a preset, those that take longest first.

    In deep networks of width 10 and more the descent of teachers with s = sqrt(2) overflows, so
    the sizes of the preset `paper` beyond the first have one law.
    """
    plain, products = "plain, no positions", "products, steep slopes"
    few = partial(
        Setting, n_epochs=2, batch_size=4, n_validation_teachers=2, n_chains=2, n_rounds=3
    )
    many = partial(Setting, n_validation_teachers=300, n_chains=100)
    long = ((plain, 300), (plain, 6000), ("grid", 6000))
    make, n_seeds, cases = of_preset(
        {
            "smoke": (
                few,
                1,
                [("plain", 1.0, 2, 2, 2), (products, 1.0, 2, 2, 2), ("grid", 0.5, 2, 2, 2)],
            ),
            "laptop": (
                Setting,
                2,
                [
                    *((name, s, 300, 5, 3) for name in (plain, products, "grid") for s in SCALES),
                    ("grid, random start", 1.0, 300, 5, 3),
                    (products, 1.0, 3000, 5, 3),
                ],
            ),
            "paper": (
                many,
                5,
                [
                    (name, s, n_teachers, d, depth)
                    for (name, n_teachers), d, depth in product(long, (5, 10, 20), (3, 6, 9))
                    for s in (SCALES if (d, depth) == (5, 3) else (1.0,))
                ],
            ),
        },
        preset,
    )
    jobs = [make(*case, seed + k) for case, k in product(cases, range(n_seeds))]
    return sorted(jobs, key=work, reverse=True)


def work(setting: Setting) -> float:
    """Return the steps of both operators; with positions every column is computed."""
    has_columns = setting.architecture in ("plain", "plain, positions scale")
    return float(2 * setting.operator_steps * (setting.width if has_columns else 1))


def memory(setting: Setting) -> float:
    """Return the bytes of an operator's pairs in float32, twice: a copy exists while drawing."""
    return 2 * setting.task("forward").n_pairs * 3 * setting.teachers.rows.n_rows * 4.0


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Train both operators, then let them train new students; rows are epochs and rounds."""
    frames, operators, n_parameters = [], {}, 0
    for direction in DIRECTIONS:
        model = setting.model(direction)
        n_parameters += sum(x.numel() for x in model.parameters() if x.requires_grad)
        frames.append(learnt(setting, direction, model, job))
        operators[direction] = as_operator(model.double().cpu())
    frames.append(chained(setting, Operators(**operators)))
    shared = {
        "architecture": setting.architecture,
        "weight_scale": setting.weight_scale,
        "n_teachers": setting.n_teachers,
        "width": setting.width,
        "depth": setting.depth,
        "n_rounds": setting.n_rounds,
        "step_size": setting.step_size,
        "batch_size": setting.batch_size,
        "learning_rate": LEARNING_RATES[setting.architecture],
        "n_validation_teachers": setting.n_validation_teachers,
        "n_chains": setting.n_chains,
        "n_parameters": n_parameters,
        "seed": setting.seed,
    }
    columns = [pl.lit(value).alias(name) for name, value in shared.items()]
    return pl.concat(frames, how="diagonal_relaxed").select(*columns, pl.all())


def learnt(setting: Setting, direction: str, model: LearntOperator, job: Job) -> pl.DataFrame:
    """Train an operator and return its losses after every epoch, and those of simple answers."""
    task, rate = setting.task(direction), LEARNING_RATES[setting.architecture]
    n_steps, epoch = setting.operator_steps, setting.epoch_steps

    def training_loss(model: nn.Module) -> dict[str, float]:
        weight = next(model.parameters())
        batch = task.training_part(task.n_validation).to(weight.device, weight.dtype)
        with torch.no_grad():
            return {"training_loss": float(task.loss(model, batch))}

    def on_step(step: int, _: int, loss: float) -> None:
        if job.on_step:
            earlier = DIRECTIONS.index(direction) * n_steps
            job.on_step(earlier + step, len(DIRECTIONS) * n_steps, loss)

    log = train(
        model,
        task,
        Settings(
            n_steps=n_steps,
            batch_size=setting.batch_size,
            learning_rate=rate,
            final_learning_rate=rate / 1000,
            warmup_steps=min(50, n_steps - 1),
            clip_norm=1.0,
            seed=setting.seed,
            log_every=epoch,
            checkpoint_every=max(1, epoch // 2),
            n_validation=task.n_validation,
            device=job.device,
        ),
        folder=job.folder and job.folder / direction,
        measure=training_loss,
        on_step=on_step,
    )
    names = ("variance", "mean_loss", "linear_loss")
    simple = simple_losses(setting.width, task.pairs, task.validation_pairs)
    return pl.DataFrame(
        [
            {
                "operator": direction,
                "at": row["step"] / epoch,
                "training_loss": six_digits(row["training_loss"]),
                "validation_loss": six_digits(row["validation_loss"]),
                **dict(zip(names, map(six_digits, simple), strict=True)),
            }
            for row in log.rows
        ]
    )


def simple_losses(width: int, pairs: Pairs, validation: Pairs) -> tuple[float, float, float]:
    """Return the variance of validation blocks, and the losses there of two simple answers.

    These are the mean training block, and the linear map with a constant term that fits the
    training pairs best, the shortest one if there are many.
    """
    inputs, new_inputs = (
        nn.functional.pad(stacked.double(), (0, 1), value=1.0)
        for stacked in (pairs[0], validation[0])
    )
    blocks, new_blocks = pairs[1].double(), validation[1].double()
    moments = inputs.mT @ inputs / len(inputs)
    linear = torch.linalg.pinv(moments, hermitian=True) @ (inputs.mT @ blocks / len(inputs))
    answers = (new_blocks.mean(0), blocks.mean(0), new_inputs @ linear)
    variance, mean_loss, linear_loss = (
        float(width * (new_blocks - answer).square().sum(-1).mean()) for answer in answers
    )
    return variance, mean_loss, linear_loss


def chained(setting: Setting, operators: Operators) -> pl.DataFrame:
    """Return squared distances from exact descent after every round, the mean over new students.

    Beside the learnt chain are the constructed one, and weights that are left alone.
    """
    teachers = setting.teachers
    students = teachers.students(setting.n_chains, generator_of(setting.seed, CHAIN_TEACHERS))
    data = students.start, students.x, students.y
    exact = weights_after_rounds(teachers.rows, teachers.exact, *data)

    def distances(weights: Tensor) -> Float[Tensor, "task round"]:
        return (weights - exact).square().sum((-3, -2, -1))

    by_learnt = distances(weights_after_rounds(teachers.rows, operators, *data))
    constructed = constructed_weights(teachers, *data, largest=float(exact.abs().max()))
    columns = {
        "learnt": by_learnt.mean(0),
        "learnt_median": by_learnt.median(0).values,
        "constructed": distances(constructed).mean(0),
        "unmoved": distances(exact[:, :1]).mean(0),
    }
    rounded = {name: [six_digits(x) for x in values.tolist()] for name, values in columns.items()}
    at = [float(round_) for round_ in range(setting.n_rounds + 1)]
    return pl.DataFrame({"operator": "chain", "at": at, **rounded})


def constructed_weights(
    teachers: Teachers, start: Tensor, x: Tensor, y: Tensor, *, largest: float
) -> Float[Tensor, "task round layer out in"]:
    """Return the weights after every round of the dense chain of cot-network.

    `largest` bounds the weights of exact descent.
    """
    problem = Problem(
        MLP((teachers.width,) * (teachers.depth + 1), "relu", "relu"),
        "squared",
        GradientStep(2 * teachers.step_size, 2 * largest, batch_size=1),
        Domain(float(x.abs().max()), max(float(y.abs().max()), 1.0)),
    )
    compiled = compile(problem, CotNetwork(), n_steps=teachers.n_rounds)
    run = compiled.run(x, y, initial=start.flatten(1), backend="dense")
    weights: Tensor = run.parameters.unflatten(-1, (teachers.depth, *[teachers.width] * 2))
    return weights


LAW = ["width", "depth", "weight_scale"]
CASE = [*LAW, "architecture", "n_teachers", "n_parameters"]
OPERATORS = (*DIRECTIONS, "chain")


def at_the_end(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the last epoch and of the last round."""
    return rows.filter(pl.col("at") == pl.col("at").max().over("operator"))


def with_fewest_teachers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the fewest teachers, to which constants and linear maps are fitted."""
    return rows.filter(pl.col("n_teachers") == pl.col("n_teachers").min())


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the means over seeds at the end of training and of the chain, law by law."""
    end = at_the_end(rows).sort(*LAW, "n_teachers", "architecture", maintain_order=True)
    lines: list[dict[str, str]] = []
    for law, of_law in end.group_by(LAW, maintain_order=True):
        about = dict(zip(("d", "N", "s"), (f"{x:g}" for x in law), strict=True))
        for name, column in (("mean block", "mean_loss"), ("linear map", "linear_loss")):
            losses = _losses(with_fewest_teachers(of_law), column)
            lines.append({**about, "operators": name, **losses})
        for name, column in (("weights left alone", "unmoved"), ("constructed", "constructed")):
            lines.append({**about, "operators": name, "chain": _mean(of_law, "chain", column)})
        for case, of_case in of_law.group_by(CASE, maintain_order=True):
            line = {**about, "operators": str(case[3])}
            line |= {"teachers": f"{case[4]:,}", "weights": f"{case[5]:,}"}
            line |= _losses(of_case, "validation_loss")
            lines.append({**line, "chain": _mean(of_case, "chain", "learnt")})
    names = ["d", "N", "s", "operators", "teachers", "weights"]
    names += ["forward", "share", "backward", "share ", "chain"]
    return pl.DataFrame([{name: line.get(name, "") for name in names} for line in lines])


def _losses(rows: pl.DataFrame, column: str) -> dict[str, str]:
    """Return the loss of both directions, and its share of the variance of the blocks."""
    shares = rows.with_columns(share=pl.col(column) / pl.col("variance"))
    cells = [_mean(shares, x, name) for x in DIRECTIONS for name in (column, "share")]
    return dict(zip(("forward", "share", "backward", "share "), cells, strict=True))


def _mean(rows: pl.DataFrame, operator: str, column: str) -> str:
    values = rows.filter(operator=operator)[column]
    if values.null_count():  # what is not finite was stored as null
        return "overflows"
    return f"{fmean(values):.{2 if column == 'share' else 3}g}"


COLOURS = {
    "plain, no positions": BLUE,
    "products, steep slopes": ORANGE,
    "grid": GREEN,
    "grid, random start": PURPLE,
}
REFERENCES = {"mean_loss": FAINT, "linear_loss": INK, "unmoved": INK}
REFERENCE_NAMES = {"a constant": FAINT, "linear map; of chains, weights left alone": INK}
SMALLEST = 1e-33
"""A smaller distance is drawn as this: a logarithmic axis has no 0."""


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw two lines of panels for each size: over laws, and over epochs and rounds at s = 1.

    Over laws every architecture has its smallest number of teachers; at s = 1 its largest.
    """
    sizes = list(rows.group_by("width", "depth", maintain_order=True))
    figure, panels = plotting.new_grid(16.5, 8.8 * len(sizes) + 0.6, 2 * len(sizes), 3)
    for line, ((width, depth), of_size) in enumerate(sizes):
        few, many = (
            of_size.filter(pl.col("n_teachers") == extreme.over("architecture", "weight_scale"))
            for extreme in (pl.col("n_teachers").min(), pl.col("n_teachers").max())
        )
        one_law = many.filter((pl.col("weight_scale") - 1).abs().pipe(lambda x: x == x.min()))
        scale = one_law["weight_scale"][0]
        teachers = f"up to {max(one_law['n_teachers']):,} teachers"
        for column, operator in enumerate(OPERATORS):
            over_laws, over_time = panels[6 * line + column], panels[6 * line + 3 + column]
            title = "Chain after the last round" if operator == "chain" else f"{operator} operator"
            size = f"d = {width}, N = {depth}"
            _draw_lines(over_laws, at_the_end(few), operator, "weight_scale")
            over_laws.set_xscale("log", base=2)
            over_laws.set_xticks(few["weight_scale"].unique().to_list())
            over_laws.xaxis.set_major_formatter("{x:.2g}")
            _describe(over_laws, f"{title}, {size}", "teachers' weights N(0, s²/d): s", operator)
            _draw_lines(over_time, one_law, operator, "at")
            time = "round" if operator == "chain" else "epoch"
            _describe(over_time, f"The same at s = {scale:g}, {teachers}", time, operator)
            plotting.whole_numbers(over_time)
    entries = [(name, colour) for name, colour in COLOURS.items() if name in rows["architecture"]]
    entries += [*REFERENCE_NAMES.items(), ("the paper's loss, law unknown", RED)]
    plotting.legend(figure, entries, dashed=list(REFERENCE_NAMES), n_columns=4)
    return figure


def _draw_lines(panel: Axes, rows: pl.DataFrame, operator: str, x: str) -> None:
    """Draw the architectures and what they are compared with over the column `x`."""
    plotting.logarithmic_height(panel)
    shown = rows.filter(pl.col("operator") == operator)
    if operator == "chain":
        shown = shown.filter(pl.col("at") > 0)
    column = "learnt" if operator == "chain" else "validation_loss"
    for name, colour in COLOURS.items():
        _band(panel, shown.filter(architecture=name), x, column, colour)
    for reference in ["unmoved"] if operator == "chain" else ["mean_loss", "linear_loss"]:
        colour = REFERENCES[reference]
        _band(panel, with_fewest_teachers(shown), x, reference, colour, linestyle="--")
    if operator in PAPER:
        panel.axhline(PAPER[operator], color=RED, lw=1.5)


def _band(
    panel: Axes, rows: pl.DataFrame, x: str, column: str, colour: str, linestyle: str = "-"
) -> None:
    """Draw the mean and the range over seeds wherever all are finite."""
    places, values = [], []
    for (place,), at_place in rows.sort(x).group_by(x, maintain_order=True):
        if at_place[column].null_count() == 0:
            places.append(float(place))
            values.append([max(value, SMALLEST) for value in at_place[column]])
    marker = "o" if x == "weight_scale" and linestyle == "-" else ""
    plotting.band(panel, places, values, colour, linestyle=linestyle, marker=marker)


def _describe(panel: Axes, title: str, x: str, operator: str) -> None:
    height = "squared distance from descent" if operator == "chain" else "validation loss"
    plotting.describe(panel, title[0].upper() + title[1:], x, height)


FIGURES = (
    Figure(
        name="cot-fig2",
        place="Figure 2, App. D",
        shows="losses of learnt operators of a chain over laws of teachers, and their chain",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
        memory=memory,
        uses_device=True,
    ),
)
