r"""The figures of cheng: losses of trained transformers (1, 2, 4), and their matrices (3, 5, 6).

Inputs lie on the ellipsoid of App. H.1, whose axes follow from the seed, and labels are drawn from
the kernel process of the whitened inputs (Example 7). The kernel of "linear + exp" is

    1/2 <G_1 u, G_1 v> + 1/2 exp(<G_2 u, G_2 v>),    G_1 = diag(1, 1, 0, 0, 0), G_2 = I - G_1,

by the definition in App. D; the formula printed there has a further 1/2 inside exp.

Figures of losses show the test loss over the number of examples or layers, beside the loss of the
best predictor (13). Figures of matrices follow the distance of S B^T C S, S = Sigma^{1/2}, and of A
to the multiples of I, where Theorem 4.5 (A = 0) and Theorem 4.6 (A free) predict them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import inf
from typing import Any

import polars as pl
import torch

from icgd.errors import TrainingError
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED
from icgd.problems.kernel_machine import KernelHead, KernelMachine, Rows
from icgd_papers.figure import Figure, Job, draw_band, of_preset, six_digits
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.covariates import PAPER_SPECTRUM, Ellipsoid
from icgd_papers.training.family import family_model, minimise_on_family
from icgd_papers.training.labels import KernelProcess, LinearFunctions
from icgd_papers.training.logs import Log
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.similarity import distances_to_identity
from icgd_papers.training.tasks import InContextTask

INPUT_WIDTH = len(PAPER_SPECTRUM)


def _diagonal(*entries: float) -> Rows:
    return tuple(map(tuple, torch.diag(torch.tensor(entries)).tolist()))


LABELS: Mapping[str, tuple[KernelHead, ...]] = {
    "linear": (KernelHead("linear"),),
    "relu": (KernelHead("relu"),),
    "exp": (KernelHead("exp"),),
    "linear + exp": (
        KernelHead("linear", _diagonal(1.0, 1.0, 0.0, 0.0, 0.0), weight=0.5),
        KernelHead("exp", _diagonal(0.0, 0.0, 1.0, 1.0, 1.0), weight=0.5),
    ),
}
"""The kernels of the labels, by name."""

TEST_INDEX = 2**31
"""The index of the test batch, which training never reaches."""

FULL_UNIT_LAYERS = 3
"""Models of up to this many layers learn in full units; in deeper ones effects multiply."""

LARGEST_A_UNIT = {"exp": 0.1}
"""The largest unit of A: exp attention overflows if its inputs grow by much in each layer."""

FIRST_A = 0.1
"""The standard deviation of A's first entries, in units: a layer hardly moves the inputs."""

N_ATTEMPTS = 4

CHECKPOINT_EVERY = 50
"""Steps between two checkpoints: an interruption costs a second or two of the laptop presets."""


@dataclass(frozen=True)
class Budget:
    """How long and on how much every model of a figure is trained.

    Attributes:
        n_steps: training steps.
        batch_size: tasks in a batch.
        n_test: tasks of the test.
        n_seeds: models that differ only in their seed.
        learning_rate: at the first step; it falls along a half cosine to a hundredth.
        resample_every: steps on each batch.
        averages_labels: whether training averages over labels in closed form; the paper draws them.
        logarithmic: whether training minimises the logarithm of that average.
        clip_norm: longer gradients are shortened to this.
        n_rows: points of a curve over the training.
    """

    n_steps: int
    batch_size: int
    n_test: int
    n_seeds: int
    learning_rate: float = 0.02
    resample_every: int = 2
    averages_labels: bool = True
    logarithmic: bool = False
    clip_norm: float = 1.0
    n_rows: int = 40


@dataclass(frozen=True)
class Model:
    """A model to train: the kernel of its labels and of each head, its sizes, seed and budget."""

    panel: str
    labels: str
    attention: tuple[str, ...]
    n_examples: int
    n_layers: int
    transforms_covariates: bool
    seed: int
    budget: Budget

    @property
    def task(self) -> InContextTask:
        """The tasks on the seed's ellipsoid."""
        return task_of(self.labels, self.n_examples, self.seed)

    @property
    def training(self) -> Settings:
        """The settings of the training loop."""
        budget = self.budget
        return Settings(
            n_steps=budget.n_steps,
            batch_size=budget.batch_size,
            learning_rate=budget.learning_rate,
            final_learning_rate=budget.learning_rate / 100,
            clip_norm=budget.clip_norm,
            resample_every=budget.resample_every,
            seed=self.seed,
            log_every=max(1, budget.n_steps // budget.n_rows),
            checkpoint_every=CHECKPOINT_EVERY,
        )


def task_of(labels: str, n_examples: int, seed: int) -> InContextTask:
    """Return tasks on the seed's ellipsoid whose labels have the kernel of this name."""
    inputs = Ellipsoid.of_seed(seed)
    if labels == "linear":  # a random direction has the same law, and is drawn faster
        return InContextTask(inputs, LinearFunctions(inputs.whitening), n_examples)
    machine = KernelMachine(INPUT_WIDTH, LABELS[labels])
    return InContextTask(inputs, KernelProcess(machine, inputs.whitening), n_examples)


def step_unit(kernel: str, n_examples: int) -> float:
    """Return the unit of a step: one over the usual largest eigenvalue of the kernel matrix."""
    mean = {"linear": 1 / INPUT_WIDTH, "relu": 1 / INPUT_WIDTH, "exp": 1.0}
    return 1.0 if kernel == "softmax" else 1 / (mean[kernel] * n_examples)


def first_model(setting: Model) -> KernelTransformer:
    """Return the model before training: A, B and C are Gaussian, and r is at most half a step.

    Parameters are learnt in units in which they are of order 1, for every number of examples and
    of layers: Adam moves all at the same speed, and 8 layers of exp attention overflow if B and C
    grow too fast. The units do not change what the model can compute.
    """
    model = KernelTransformer(
        INPUT_WIDTH,
        setting.n_layers,
        setting.attention,
        transforms_covariates=setting.transforms_covariates,
        seed=setting.seed,
    )
    units = torch.tensor([step_unit(kernel, setting.n_examples) for kernel in setting.attention])
    share = min(1.0, FULL_UNIT_LAYERS / setting.n_layers)
    with torch.no_grad():
        model.r.copy_((-0.5 * share * units).expand_as(model.r))
    model.learn_in_units(r=units, B=torch.tensor(share), C=torch.tensor(share))
    if model.A is not None:
        largest = torch.tensor([LARGEST_A_UNIT.get(kernel, inf) for kernel in setting.attention])
        A_units = share**4 * units.minimum(largest)[:, None, None]
        with torch.no_grad():
            model.A.mul_(FIRST_A / model.value_scale * A_units)
        model.learn_in_units(A=A_units)
    return model


def train_and_test(setting: Model, job: Job) -> tuple[dict[str, Any], Log]:
    """Train a model; return the columns that all figures share, and the log of the training.

    If training overflows, it begins again with half the learning rate.
    """
    budget, task = setting.budget, setting.task
    averaged = AveragedTask(task, budget.logarithmic)
    for attempt in range(N_ATTEMPTS):
        model, rate = first_model(setting), budget.learning_rate / 2**attempt
        training = replace(
            setting.training,
            learning_rate=rate,
            final_learning_rate=rate / 100,
            device=job.device,
        )
        try:
            log = train(
                model,
                averaged if budget.averages_labels else task,
                training,
                folder=job.folder and job.folder / f"attempt-{attempt}",
                measure=partial(distances_to_identity, covariance=task.covariates.covariance),
                on_step=job.on_step,
            )
            break
        except TrainingError:
            if attempt == N_ATTEMPTS - 1:
                raise
    test = averaged.sample(budget.n_test, seed=setting.seed, index=TEST_INDEX)
    with torch.no_grad():
        test_loss = float(averaged.mean_loss(model.cpu().double(), test))
    columns = {
        **asdict(setting),
        **asdict(budget),
        "attention": " + ".join(setting.attention),
        "learning_rate": rate,
        "test_loss": six_digits(test_loss),
        "bayes_loss": six_digits(max(averaged.bayes_loss(test), 0.0)),
    }
    for name in ("budget", "n_seeds", "n_rows"):
        del columns[name]
    return columns, log


# Figures 1, 2 and 4: losses

COLOURS = {"linear": BLUE, "relu": ORANGE, "exp": RED, "softmax": GREEN, "linear + exp": GREEN}
"""The colour of each kind of attention."""

SIZES = {"n_examples": "n", "n_layers": "layers"}
"""The columns that change along a figure, and their short names."""

SMALLEST_LOSS = 1e-7
"""A smaller loss is rounding; the best predictor of linear labels makes no error at all."""

SMOKE = Budget(n_steps=2, batch_size=4, n_test=8, n_seeds=1, n_rows=1)
LAPTOP = Budget(600, 400, 4000, n_seeds=3, learning_rate=0.03, resample_every=4, n_rows=10)
LAPTOP_DEEP = replace(LAPTOP, n_steps=500, batch_size=250)
"""The budget of figures in which most models have more than 3 layers."""

PAPER = Budget(
    n_steps=20_000,
    batch_size=30_000,
    n_test=30_000,
    n_seeds=3,
    learning_rate=0.01,
    resample_every=10,
    averages_labels=False,
)
"""The paper gives no number of steps."""

LAYERS = {
    "smoke": ((1, 2), SMOKE),
    "laptop": (tuple(range(1, 9)), LAPTOP_DEEP),
    "paper": (tuple(range(1, 9)), PAPER),
}
"""The numbers of layers in Figures 2 and 4, and the budget of each model."""

LossPanel = tuple[str, tuple[int, ...], tuple[int, ...], bool]
"""Labels, numbers of examples, numbers of layers, and whether to train on the loss's logarithm."""


def _loss_models(
    panels: Sequence[LossPanel], attentions: Sequence[tuple[str, ...]], budget: Budget, seed: int
) -> list[Model]:
    """Return every panel, point, attention and seed; all models have A free."""
    seeds = range(seed, seed + budget.n_seeds)
    return [
        Model(
            panel=panel,
            labels=labels,
            attention=attention,
            n_examples=n_examples,
            n_layers=n_layers,
            transforms_covariates=True,
            seed=seed,
            # The logarithm of a batch's loss is used only where labels are averaged.
            budget=replace(budget, logarithmic=logarithmic and budget.averages_labels),
        )
        for panel, (labels, examples, layers, logarithmic) in zip("abcd", panels, strict=False)
        for n_examples, n_layers, attention, seed in product(examples, layers, attentions, seeds)
    ]


FOUR = (("linear",), ("relu",), ("exp",), ("softmax",))


def figure_1(preset: str, seed: int) -> list[Model]:
    """Return the models of 3 layers over the number of examples."""
    budget = of_preset({"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER}, preset)
    examples = (2, 3) if preset == "smoke" else (2, 4, 6, 8, 10, 12, 14)
    # On the logarithm, linear attention trades rare large errors for a small usual one.
    panels = [(labels, examples, (3,), labels != "linear") for labels in ("linear", "relu", "exp")]
    return _loss_models(panels, FOUR, budget, seed)


def on_the_other_loss(preset: str, seed: int) -> list[Model]:
    """Return models of Figure 1, with a loss where it takes the logarithm, and vice versa."""
    return [
        replace(
            model,
            budget=replace(
                model.budget, averages_labels=True, logarithmic=model.labels == "linear"
            ),
        )
        for model in figure_1(preset, seed)
        if preset != "laptop" or model.n_examples in (6, 14)
    ]


def figure_2(preset: str, seed: int) -> list[Model]:
    """Return the models over the number of layers, with 14 and 6 examples."""
    layers, budget = of_preset(LAYERS, preset)
    panels = [(labels, (n,), layers, True) for n in (14, 6) for labels in ("relu", "exp")]
    return _loss_models(panels, FOUR[1:], budget, seed)


def figure_4(preset: str, seed: int) -> list[Model]:
    """Return the models with one head or two, over the number of layers."""
    layers, budget = of_preset(LAYERS, preset)
    panels = [(labels, (14,), layers, True) for labels in ("linear", "exp", "linear + exp")]
    return _loss_models(panels, (("linear",), ("exp",), ("linear", "exp")), budget, seed)


def run_losses(setting: Model, job: Job) -> pl.DataFrame:
    """Train one model and return its row."""
    columns, _ = train_and_test(setting, job)
    return pl.DataFrame([columns])


def summarise_losses(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean test loss of every attention, the best predictor's, and who wins."""
    place = ["labels", *(name for name in SIZES if rows[name].n_unique() > 1)]
    attentions = rows["attention"].unique(maintain_order=True).to_list()
    means = rows.pivot(
        "attention", index=place, values="test_loss", aggregate_function="mean", maintain_order=True
    ).with_columns(best=pl.concat_list(attentions).list.arg_min())
    bayes = rows.group_by(place).agg(Bayes=pl.mean("bayes_loss"))
    return means.join(bayes, on=place, maintain_order="left").select(
        *(pl.col(name).cast(pl.String).alias(SIZES.get(name, name)) for name in place),
        *(pl.col(name).map_elements(loss_text, pl.String) for name in (*attentions, "Bayes")),
        pl.col("best").replace_strict(dict(enumerate(attentions)), return_dtype=pl.String),
    )


def loss_text(loss: float) -> str:
    """Write a loss in six or seven characters; "0" if it is rounding."""
    if loss < SMALLEST_LOSS:
        return "0"
    return f"{loss:.4f}" if loss >= 0.001 else f"{loss:.1e}"


def draw_losses(rows: pl.DataFrame) -> plotting.Figure:
    """Draw the loss of each attention over examples or layers, and the best predictor's."""
    over = "n_layers" if rows["n_layers"].n_unique() > 1 else "n_examples"
    panels = rows.partition_by("panel", maintain_order=True)
    figure, axes = plotting.new_panels(len(panels), 2 if len(panels) == 4 else 3, 4.6, 3.7)
    for panel, ax in zip(panels, axes, strict=True):
        plotting.logarithmic_height(ax)
        first = panel.row(0, named=True)
        for models in panel.partition_by("attention", maintain_order=True):
            seen = models.with_columns(pl.col("test_loss").clip(SMALLEST_LOSS))
            colour = COLOURS[models["attention"][0]]
            draw_band(ax, seen, over, "test_loss", colour, marker="o")
        seen = panel.filter(pl.col("bayes_loss").min().over(over) > SMALLEST_LOSS)
        if len(seen):
            draw_band(ax, seen, over, "bayes_loss", INK, linestyle="--")
        ax.set_xticks(panel[over].unique().sort().to_list())
        fixed = (
            f"n = {first['n_examples']}" if over == "n_layers" else f"{first['n_layers']} layers"
        )
        title = f"({first['panel']}) {first['labels']} labels, {fixed}"
        plotting.describe(ax, title, "layers" if over == "n_layers" else "examples n", "test loss")
    entries = [
        (f"{name} attention", COLOURS[name])
        for name in rows["attention"].unique(maintain_order=True)
    ]
    plotting.legend(figure, [*entries, ("best predictor", INK)], dashed=["best predictor"])
    figure.suptitle(_tuning(rows), fontsize=10, color=FAINT)
    return figure


# Figures 3, 5 and 6: matrices

N_EXAMPLES, N_LAYERS = 30, 3

CLOSE = 0.1
"""A matrix nearer to the multiples of I than this is where the theorems predict it."""

STILL = 0.1
"""A larger relative change of a distance in the last quarter of the steps is a movement."""

MATRIX_BUDGETS = {
    "smoke": Budget(n_steps=4, batch_size=4, n_test=8, n_seeds=1, n_rows=2),
    "laptop": Budget(
        3000, 200, 1000, n_seeds=3, learning_rate=0.1, resample_every=5, logarithmic=True
    ),
    "paper": Budget(
        n_steps=20_000,
        batch_size=30_000,
        n_test=30_000,
        n_seeds=3,
        learning_rate=0.02,
        resample_every=10,
        averages_labels=False,
        n_rows=200,
    ),
}
"""One budget for all pairs of kernels, with A = 0 and free. The paper gives no number of steps."""

MATRICES = {"BC_0": BLUE, "BC_1": ORANGE, "BC_2": GREEN, "A_0": PURPLE, "A_1": INK}
"""The colour of each matrix; BC stands for S B^T C S."""

PAIRS = [(a, b) for b, a in product(("linear", "relu", "softmax"), ("linear", "relu", "exp"))]
"""The kernels of labels and attention, a row of panels for each attention."""


def matrix_models(
    pairs: Sequence[tuple[str, str]], frees: Sequence[bool], preset: str, seed: int
) -> list[Model]:
    """Return a panel for each pair of kernels with A = 0 or free, and every seed."""
    budget = of_preset(MATRIX_BUDGETS, preset)
    panels = zip("abcdefghi", product(frees, pairs), strict=False)
    return [
        Model(panel, labels, (attention,), N_EXAMPLES, N_LAYERS, free, seed + offset, budget)
        for (panel, (free, (labels, attention))), offset in product(panels, range(budget.n_seeds))
    ]


def run_matrices(setting: Model, job: Job) -> pl.DataFrame:
    """Train one model; return the distances of its matrices at every logged step."""
    columns, log = train_and_test(setting, job)
    columns["family_loss"] = job.cached("family", partial(family_loss, setting))
    return pl.DataFrame(
        [
            {
                **columns,
                "step": int(row["step"]),
                **{name: six_digits(row[name]) if name in row else None for name in MATRICES},
            }
            for row in log.rows
        ],
        schema_overrides=dict.fromkeys(MATRICES, pl.Float64),
    )


def family_loss(setting: Model) -> float | None:
    """Return the loss of the predicted family's best point, which is fitted to the test itself."""
    task = AveragedTask(setting.task)
    [kernel] = setting.attention
    model = family_model(
        kernel,
        setting.task.covariates,
        setting.n_layers,
        step_unit(kernel, setting.n_examples),
        transforms_covariates=setting.transforms_covariates,
    )
    test = task.sample(setting.budget.n_test, seed=setting.seed, index=TEST_INDEX)
    return six_digits(minimise_on_family(model, task, test))


def ending(model: pl.DataFrame) -> str:
    """Judge the end of a training: "converged" where the theorems predict, "moving" or "stalled".

    This is the one criterion for all pairs. All distances below `CLOSE` have converged. Otherwise
    the training is moving if a distance above it changes by more than `STILL` of itself in the last
    quarter of the steps, and has stalled elsewhere if none does.
    """
    last_quarter = model.filter(pl.col("step") >= 0.75 * pl.col("n_steps")).select(*MATRICES)
    pairs = zip(last_quarter.row(0), last_quarter.row(-1), strict=True)
    far = [(before, after) for before, after in pairs if after is not None and after >= CLOSE]
    if not far:
        return "converged"
    is_moving = any(abs(after - before) > STILL * before for before, after in far)
    return "moving" if is_moving else "stalled"


def summarise_matrices(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the last distances of each model, how it ended, and its loss beside the family's."""
    names = [name for name in MATRICES if rows[name].is_not_null().any()]
    summary = []
    for model in rows.partition_by("panel", "seed", maintain_order=True):
        last = model.row(-1, named=True)
        line = {
            "pair": f"{last['labels']}, {last['attention']}",
            "A": "free" if last["transforms_covariates"] else "0",
            "seed": str(last["seed"]),
            **{name: "" if last[name] is None else f"{last[name]:.3f}" for name in names},
            "end": ending(model),
        }
        if "family_loss" in last:
            line["loss / family's"] = f"{last['test_loss'] / last['family_loss']:.4f}"
        summary.append(line)
    return pl.DataFrame(summary)


def draw_matrices(rows: pl.DataFrame) -> plotting.Figure:
    """Draw the distances of all matrices over the steps, a panel for each pair of kernels."""
    panels = rows.partition_by("panel", maintain_order=True)
    width = 6.0 if len(panels) == 1 else 4.3
    figure, axes = plotting.new_panels(len(panels), 3 if len(panels) > 4 else 2, width, 3.1)
    names = [name for name in MATRICES if rows[name].is_not_null().any()]
    for panel, ax in zip(panels, axes, strict=True):
        first = panel.row(0, named=True)
        plotting.logarithmic_height(ax)
        ax.set_ylim(0.003, 1.5)
        ax.axhline(CLOSE, color=FAINT, linewidth=1, linestyle=":")
        models = panel.partition_by("seed", maintain_order=True)
        for model, name in product(models, names):  # seeds may end apart, so each has its lines
            ax.plot(model["step"], model[name], color=MATRICES[name], linewidth=1.2, alpha=0.85)
        ends = [ending(model) for model in models]
        text = f"{ends.count('converged')} of {len(ends)} seeds converged"
        plotting.tag(ax, text, (float(first["n_steps"]), 1.15), ha="right")
        A = "A free" if first["transforms_covariates"] else "A = 0"
        title = f"({first['panel']}) {first['attention']} on {first['labels']} labels, {A}"
        plotting.describe(ax, title, "training step", "dist(M, I)")
    layers = [name.split("_") for name in names]
    symbols = [f"$B_{n}^T C_{n}$" if kind == "BC" else f"$A_{n}$" for kind, n in layers]
    entries = [(symbol, MATRICES[name]) for symbol, name in zip(symbols, names, strict=True)]
    plotting.legend(figure, entries)
    figure.suptitle(_tuning(rows), fontsize=10, color=FAINT)
    return figure


def _tuning(rows: pl.DataFrame) -> str:
    """Say on a figure whether its seeds were used to choose the settings of training."""
    seeds = rows["seed"].unique().sort().to_list()
    shown = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    if not rows["averages_labels"].all():
        return f"Batches of the paper's size, labels drawn. Shown: {shown}."
    return f"Training settings were tuned by trial on seeds 0 to 2. Shown: {shown}."


def work(setting: Model) -> float:
    """Return the number of layers that all steps pass through."""
    return float(setting.budget.n_steps * setting.n_layers)


_losses = partial(
    Figure[Model],
    run=run_losses,
    summarise=summarise_losses,
    draw=draw_losses,
    work=work,
    uses_device=True,
)
_matrices = partial(
    Figure[Model],
    run=run_matrices,
    summarise=summarise_matrices,
    draw=draw_matrices,
    work=work,
    uses_device=True,
)

FIGURES = (
    _losses(
        name="cheng-fig1",
        place="Figure 1, Section 3.3",
        shows="log test loss over examples; 3 layers",
        settings=figure_1,
    ),
    _losses(
        name="cheng-fig2",
        place="Figure 2, Section 3.3",
        shows="log test loss over layers; n = 14 and 6",
        settings=figure_2,
    ),
    _matrices(
        name="cheng-fig3",
        place="Figure 3, Section 4.5",
        shows="dist(M, I) over training; exp labels, softmax attention",
        settings=partial(matrix_models, [("exp", "softmax")], [False, True]),
    ),
    _losses(
        name="cheng-fig4",
        place="Figure 4, App. D",
        shows="log test loss over layers; one head or two; n = 14",
        settings=figure_4,
    ),
    _matrices(
        name="cheng-fig5",
        place="Figure 5, App. H.2",
        shows="dist(M, I) over training with A = 0; 3 x 3 kernels",
        settings=partial(matrix_models, PAIRS, [False]),
    ),
    _matrices(
        name="cheng-fig6",
        place="Figure 6, App. H.3",
        shows="dist(M, I) over training with A free; 3 x 3 kernels",
        settings=partial(matrix_models, PAIRS, [True]),
    ),
    _losses(
        name="cheng-losses",
        place="a control of Figure 1",
        shows="Figure 1, each panel trained on the other loss",
        settings=on_the_other_loss,
    ),
)
