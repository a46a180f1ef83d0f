r"""Prompts, decoders and baselines of App. G of wu, which its figures and the studies share.

Pretraining draws inputs from N(-2, I) and teachers with weights N(0, I). Tests draw inputs from
w_1 N(-2, I) + w_2 N(2, I), or teachers with weights N(mean, I). A test prompt has 1.5 times as many
examples as one of pretraining, and the query is asked after each of `lengths` examples.

The paper does not give the width, the activation and the scale of its teachers, the learning rates,
the batches of direct training, the normalisation of ReLU attention, or its formula for R^2. They
are chosen here, in `training/labels.py` and in `training/decoder.py`.

The last token of a prompt is its query. No predictor reads the label of the query, and each returns
one prediction per prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import pi, sqrt
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam

from icgd.compiled import Compiled
from icgd.constructions.relu_stack import ReluStack
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Job, six_digits
from icgd_papers.training.covariates import ShiftedMixture, normal
from icgd_papers.training.decoder import COPIES, Decoder
from icgd_papers.training.devices import torch_device
from icgd_papers.training.labels import Teachers
from icgd_papers.training.loop import train
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import Batch, CausalTask, InContextTask, generator_of

Inputs = Float[Tensor, "task token input_width"]
TokenLabels = Float[Tensor, "task token"]
Predictions = Float[Tensor, "task"]
EpochPredictions = Float[Tensor, "epoch task"]

LEARNT = "learnt decoder"
DIRECT, BEST = "direct, last epoch", "direct, best epoch"
MEAN, RIDGE, ARC_COSINE = "label mean", "ridge", "arc-cosine"


def constructed_line(n_steps: int) -> str:
    """Name the line of the constructed transformer of `n_steps` steps."""
    return f"constructed, {n_steps} steps"


FIRST_TEST, FIRST_CHOICE = 2**31, 2**31 + 2**30
"""Indices of the first test batch, and of the first batch on which baselines are tuned."""

PROMPTS_AT_ONCE = 64
"""Prompts that are drawn, trained directly or given to a decoder together; more leave the cache."""

DESCENTS_AT_ONCE = 256
"""Prompts that the constructed transformer reads together; it holds a network for each."""

CHECKPOINT_EVERY = 100
"""Steps between checkpoints: an interruption costs a few seconds of the laptop presets."""


@dataclass(frozen=True)
class Law:
    """The law of test prompts: the mixture of the inputs, and the mean of the teachers' weights."""

    mixture: tuple[float, float] = (1.0, 0.0)
    mean: float = 0.0

    @property
    def inputs(self) -> str:
        return "({:g}, {:g})".format(*self.mixture)

    @property
    def teachers(self) -> str:
        return f"N({self.mean:g}, I)"


PRETRAINING = Law()


@dataclass(frozen=True)
class Baselines:
    """How direct training, the constructed transformers and ridge regression are tuned.

    Of the learning rates, step sizes and penalties the best on `n_choice` other prompts is taken.
    """

    direct_width: int
    n_epochs: int = 100
    learning_rates: tuple[float, ...] = (0.003, 0.01)
    step_counts: tuple[int, ...] = (10, 100, 1000)
    step_sizes: tuple[float, ...] = (0.0125, 0.025, 0.05)
    penalties: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    n_choice: int = 32


@dataclass(frozen=True)
class Setup:
    """The sizes of prompts, teachers, decoders, their training, and the test."""

    input_width: int
    hidden_width: int
    """Width of the teachers, and of the networks that constructed transformers train."""
    n_examples: int
    n_blocks: int
    width: int
    n_heads: int
    mlp_width: int
    n_steps: int
    batch_size: int
    learning_rate: float
    lengths: tuple[int, ...]
    n_test: int
    n_seeds: int
    baselines: Baselines
    tokens: str = "joint"
    warmup_steps: int = 0
    clip_norm: float = 1.0

    @property
    def longest(self) -> int:
        """The examples of a test prompt."""
        return 3 * self.n_examples // 2

    def n_places(self, n_examples: int) -> int:
        """Return the places of a prompt with its query, whose label has a place too."""
        return (2 if self.tokens == "interleaved" else 1) * (n_examples + 1)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row that say what the decoder was, and how it was trained."""
        return {
            "input_width": self.input_width,
            "hidden_width": self.hidden_width,
            "pretraining_length": self.n_examples,
            "width": self.width,
            "tokens": self.tokens,
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "n_test": self.n_test,
        }

    def task(self, n_layers: int, law: Law, n_examples: int) -> InContextTask:
        """Return prompts of a law with teachers of `n_layers` layers."""
        inputs = ShiftedMixture.of_width(self.input_width, law.mixture)
        return InContextTask(inputs, Teachers(n_layers, self.hidden_width, law.mean), n_examples)

    def decoder(self, attention: str, seed: int) -> Decoder:
        """Return a new decoder, with a learnt position for every place of a test prompt."""
        return Decoder(
            input_width=self.input_width,
            n_blocks=self.n_blocks,
            width=self.width,
            n_heads=self.n_heads,
            mlp_width=self.mlp_width,
            attention=attention,
            tokens=self.tokens,
            n_positions=self.n_places(self.longest),
            seed=seed,
        )

    def test(self, n_layers: int, law: Law, seed: int) -> Batch:
        """Draw test prompts of the full length, which training never sees."""
        return _drawn(self.task(n_layers, law, self.longest), self.n_test, seed, FIRST_TEST)

    def choice(self, n_layers: int, seed: int) -> Batch:
        """Draw prompts of pretraining on which baselines are tuned.

        Tuning on shifted prompts would assume that the shift is known.
        """
        task = self.task(n_layers, PRETRAINING, self.n_examples)
        return _drawn(task, self.baselines.n_choice, seed, FIRST_CHOICE)


def _drawn(task: InContextTask, n_tasks: int, seed: int, first_index: int) -> Batch:
    """Draw prompts in batches of 64: all teachers of the paper's tests would take gigabytes."""
    batches = [
        task.sample(min(PROMPTS_AT_ONCE, n_tasks - start), seed=seed, index=first_index + number)
        for number, start in enumerate(range(0, n_tasks, PROMPTS_AT_ONCE))
    ]
    return Batch(torch.cat([batch.x for batch in batches]), torch.cat([b.y for b in batches]))


# Decoders


def trained_decoder(case: Case, job: Job) -> tuple[Decoder, float]:
    """Train a decoder on prompts of pretraining; return it and the loss of its last batch."""
    setup = case.setup
    model = setup.decoder(str(case.attention), case.seed)
    settings = Settings(
        n_steps=setup.n_steps,
        batch_size=setup.batch_size,
        learning_rate=setup.learning_rate,
        final_learning_rate=setup.learning_rate / 100,
        warmup_steps=setup.warmup_steps,
        clip_norm=setup.clip_norm,
        seed=case.seed,
        device=job.device,
        log_every=max(1, setup.n_steps // 20),
        checkpoint_every=CHECKPOINT_EVERY,
    )
    log = train(
        model,
        CausalTask(setup.task(case.n_layers, PRETRAINING, setup.n_examples)),
        settings,
        folder=job.folder and job.folder / "model",
        on_step=job.on_step,
    )
    return model.cpu().eval(), float(log.rows[-1]["loss"])


@torch.no_grad()
def decoder_predictions(model: Decoder, test: Batch) -> Float[Tensor, "task token"]:
    """Predict the label of every token from the examples before it."""
    batches = test.to("cpu", next(model.parameters()).dtype).split(PROMPTS_AT_ONCE)
    return torch.cat([model.predictions(batch.x, batch.y) for batch in batches]).double()


# Baselines


def label_mean(y: TokenLabels) -> Predictions:
    """Predict the mean of the examples' labels."""
    return y[:, :-1].double().mean(1)


def ridge(x: Inputs, y: TokenLabels, penalty: float) -> Predictions:
    """Predict by least squares with the penalty `penalty` |w|^2 and an intercept without one."""
    examples, labels = x[:, :-1].double(), y[:, :-1].double()
    centre, level = examples.mean(1, keepdim=True), labels.mean(1)
    centred = examples - centre
    normal_matrix = centred.mT @ centred + penalty * torch.eye(x.shape[-1], dtype=torch.float64)
    slope = torch.linalg.solve(normal_matrix, centred.mT @ (labels - level[:, None])[..., None])
    predicted: Tensor = level + ((x[:, -1:].double() - centre) @ slope)[:, 0, 0]
    return predicted


def arc_cosine(x: Inputs, y: TokenLabels, n_layers: int) -> Predictions:
    """Predict by the Gaussian process that wide teachers of `n_layers` layers become.

    Labels have no noise, so the kernel's diagonal gets only a jitter of 1e-10 of its mean.
    """
    kernel = arc_cosine_kernel(x.double(), n_layers)
    gram, to_query = kernel[:, :-1, :-1], kernel[:, -1, None, :-1]
    size = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    jittered = gram + 1e-10 * size * torch.eye(gram.shape[-1], dtype=torch.float64)
    predicted: Tensor = (to_query @ torch.linalg.solve(jittered, y[:, :-1, None].double()))[:, 0, 0]
    return predicted


def arc_cosine_kernel(x: Inputs, n_layers: int) -> Float[Tensor, "task token token"]:
    r"""Return the covariance of the labels of wide ReLU teachers without biases.

    It begins with the inner product. With cos t = K(u, v) / sqrt(K(u, u) K(v, v)), a ReLU layer
    turns K into

        K'(u, v) = sqrt(K(u, u) K(v, v)) (sin t + (pi - t) cos t) / pi,

    twice the mean of relu(a) relu(b) for normal a, b with covariance K (the arc-cosine kernel of
    degree 1). The factor 2 keeps K(u, u), and no factor changes the prediction k^T K^-1 y.
    """
    kernel: Tensor = x @ x.mT / x.shape[-1]
    for _ in range(n_layers - 1):
        size = kernel.diagonal(dim1=-2, dim2=-1).sqrt()
        scale = size[..., None] * size[..., None, :]
        cosine = (kernel / scale).clamp(-1, 1)
        kernel = scale * ((1 - cosine**2).sqrt() + (pi - cosine.acos()) * cosine) / pi
    return kernel


@dataclass(frozen=True)
class DirectTraining:
    """Train a network without biases on the examples of each prompt.

    An epoch is one step of Adam on the mean squared error of all examples. Labels are divided by
    their root mean square in the prompt, so that one learning rate suits all laws. First weights
    are normal with variance 2 / fan-in, and a tenth of that in size in the last layer: 100 epochs
    are too few to forget the first outputs where no example is near.
    """

    n_layers: int
    hidden_width: int
    n_epochs: int
    learning_rate: float
    seed: int = 0
    device: str = "cpu"

    def predictions(self, x: Inputs, y: TokenLabels) -> EpochPredictions:
        """Predict the query after every epoch."""
        size, place = label_size(y), torch_device(self.device)
        inputs, labels = x.to(place, torch.float32), (y / size).to(place, torch.float32)
        batches = zip(inputs.split(PROMPTS_AT_ONCE), labels.split(PROMPTS_AT_ONCE), strict=True)
        epochs = [self._epochs(*batch, index) for index, batch in enumerate(batches)]
        return torch.cat(epochs, dim=1) * size[:, 0]

    def _epochs(self, x: Tensor, y: Tensor, index: int) -> Tensor:
        """Train one batch of prompts together; each has matrices of its own."""
        first = self.first_weights(len(x), x.shape[-1], index)
        weights = [matrix.to(x.device).requires_grad_() for matrix in first]
        adam = Adam(weights, lr=self.learning_rate, fused=True)
        predictions = []
        for _ in range(self.n_epochs):
            errors = network_outputs(weights, x[:, :-1]) - y[:, :-1]
            gradients = torch.autograd.grad(errors.square().mean(1).sum(), weights)
            for matrix, gradient in zip(weights, gradients, strict=True):
                matrix.grad = gradient
            adam.step()
            with torch.no_grad():
                predictions.append(network_outputs(weights, x[:, -1:])[:, 0].cpu().double())
        return torch.stack(predictions)

    def first_weights(self, n_tasks: int, input_width: int, index: int) -> list[Tensor]:
        """Draw the first matrices of batch `index` of prompts."""
        generator = generator_of(self.seed, index)
        widths = (input_width, *[self.hidden_width] * (self.n_layers - 1), 1)
        scales = [sqrt(2 / fan_in) for fan_in in widths[:-1]]
        scales[-1] *= 0.1
        return [
            scale * normal(generator, n_tasks, *shape).float()
            for scale, shape in zip(scales, pairwise(widths), strict=True)
        ]


def network_outputs(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Apply the network of each prompt to the prompt's tokens."""
    for matrix in weights[:-1]:
        x = torch.relu(x @ matrix)
    return (x @ weights[-1])[..., 0]


def best_epochs(predictions: EpochPredictions, labels: Predictions) -> Predictions:
    """Return for each prompt the epoch's prediction that is nearest to the label, as printed.

    The epoch is chosen by the answer, so no user could do so.
    """
    best = (predictions - labels).abs().argmin(0, keepdim=True)
    return predictions.gather(0, best)[0]


@dataclass(frozen=True)
class Constructed:
    """The constructed transformer relu-stack, compiled for networks of the teacher's shape.

    Its forward pass trains a network on the examples of each prompt by gradient descent, from
    random weights that stand in the prompt, and predicts the query. Labels are divided by their
    root mean square in the prompt; then none of k labels is beyond sqrt(k), the compiled domain.
    Inputs are normal around -2 and 2, and none of them is 8 deviations away.
    """

    n_layers: int
    hidden_width: int
    step_size: float
    seed: int = 0

    def box(self, input_width: int) -> float:
        """Return the box onto which weights are projected.

        Outputs stay below 5e11 for all weights in it, since float64 needs its digits: so the box is
        smaller than 4 for deep and wide networks. First weights have variance 1 / fan-in.
        """
        outputs_of_ones = 10.0 * input_width * self.hidden_width ** (self.n_layers - 1)
        return min(4.0, float((5e11 / outputs_of_ones) ** (1 / self.n_layers)))

    def compiled(self, input_width: int, n_examples: int, n_steps: int) -> Compiled:
        """Compile the transformer of `n_steps` steps."""
        widths = (input_width, *[self.hidden_width] * (self.n_layers - 1), 1)
        domain = Domain(10.0, 1.01 * sqrt(n_examples))
        step = GradientStep(self.step_size, self.box(input_width))
        problem = Problem(MLP(widths, "relu"), "squared", step, domain)
        return compile(problem, ReluStack(), n_steps=n_steps)

    def path(self, x: Inputs, y: TokenLabels, steps: Sequence[int]) -> list[Predictions]:
        """Predict the queries after each of these numbers of steps, which must increase.

        All blocks are the same, so a transformer continues where a shorter one ended.
        """
        batches = zip(x.split(DESCENTS_AT_ONCE), y.split(DESCENTS_AT_ONCE), strict=True)
        # One seed for each batch and start; the first batch, the only one on a laptop, has `seed`.
        paths = [
            self._path(*batch, steps, self.seed + 1000 * index)
            for index, batch in enumerate(batches)
        ]
        return [torch.cat(stages) for stages in zip(*paths, strict=True)]

    def _path(self, x: Tensor, y: Tensor, steps: Sequence[int], seed: int) -> list[Predictions]:
        x, size, n_examples, input_width = x.double(), label_size(y), x.shape[1] - 1, x.shape[2]
        labels = (y[:, :-1].double() / size)[..., None]
        network = self.compiled(input_width, n_examples, 0).problem.network
        weights = network.initial_parameters(seed, self.box(input_width), (len(x),))
        predictions = []
        for start, stop in pairwise((0, *steps)):
            compiled = self.compiled(input_width, n_examples, stop - start)
            run = compiled.run(x[:, :-1], labels, queries=x[:, -1:], initial=weights, history=False)
            weights = run.parameters[..., -1, :]
            predictions.append(torch.as_tensor(run.predictions)[:, 0, 0] * size[:, 0])
        return predictions


def label_size(y: TokenLabels) -> Float[Tensor, "task 1"]:
    """Return the root mean square of the examples' labels; 1 if all are 0."""
    size = y[:, :-1].double().square().mean(1, keepdim=True).sqrt()
    return torch.where(size > 0, size, 1.0)


def relative_error(predictions: Predictions, y: TokenLabels) -> float:
    """Return the mean squared error in units of each prompt's labels, so that all count alike."""
    return float(((predictions - y[:, -1]) / label_size(y)[:, 0]).square().mean())


def r_squared(errors: Predictions, labels: Predictions) -> float:
    """Return 1 - (mean of squared errors) / (variance of the queries' labels), over all prompts."""
    return 1 - float(errors.square().mean() / labels.double().var(correction=0))


def r_squared_within(errors: Predictions, y: TokenLabels) -> float:
    """Return the same with the mean variance of the labels within a prompt as denominator."""
    return 1 - float(errors.square().mean() / y.double().var(1, correction=0).mean())


# Jobs


@dataclass(frozen=True)
class Case:
    """One decoder, or all baselines if there is no `attention`, on prompts of some laws.

    Attributes:
        n_layers: the layers of the teachers.
        laws: the laws of the test prompts.
        seed: the seed of training and of all prompts.
        setup: the sizes.
        attention: the decoder's attention, "relu" or "softmax".
        panel: the letters of the panels, one for each law.
    """

    n_layers: int
    laws: tuple[Law, ...]
    seed: int
    setup: Setup
    attention: str | None = None
    panel: str = ""

    def direct(self, learning_rate: float, device: str) -> DirectTraining:
        """Return the direct training with this learning rate."""
        plan = self.setup.baselines
        return DirectTraining(
            self.n_layers, plan.direct_width, plan.n_epochs, learning_rate, self.seed, device
        )

    def constructed(self, step_size: float) -> Constructed:
        """Return the constructed transformer with this step size."""
        return Constructed(self.n_layers, self.setup.hidden_width, step_size, self.seed)

    def row(
        self, law: Law, line: str, predictions: Tensor, y: Tensor, tuned: float | None = None
    ) -> dict[str, Any]:
        """Compare predictions with the last of the labels `y` of each prompt."""
        labels = y[:, -1]
        errors = predictions.double() - labels
        return {
            **({"panel": self.panel[self.laws.index(law)]} if self.panel else {}),
            "n_layers": self.n_layers,
            "inputs": law.inputs,
            "teacher_weights": law.teachers,
            "line": line,
            "n_examples": y.shape[1] - 1,
            "r_squared": six_digits(r_squared(errors, labels)),
            "r_squared_within": six_digits(r_squared_within(errors, y)),
            "setting": tuned,
            "attention": self.attention,
            "seed": self.seed,
            **self.setup.columns,
        }


def run(case: Case, job: Job) -> pl.DataFrame:
    """Return the R^2 of the decoder or of all baselines after each number of examples."""
    if case.attention is None:
        return baseline_rows(case, job)
    model, _ = trained_decoder(case, job)
    return decoder_rows(case, model)


def decoder_rows(case: Case, model: Decoder) -> pl.DataFrame:
    """Test a trained decoder on all laws and lengths."""
    rows = []
    for law in case.laws:
        prompts = case.setup.test(case.n_layers, law, case.seed)
        predictions = decoder_predictions(model, prompts)
        rows += [
            case.row(law, LEARNT, predictions[:, n], prompts.y[:, : n + 1])
            for n in case.setup.lengths
        ]
    return pl.DataFrame(rows, infer_schema_length=None)


def baseline_rows(case: Case, job: Job) -> pl.DataFrame:
    """Test all baselines on a law; finished lengths survive an interruption."""
    [law] = case.laws
    lengths = case.setup.lengths
    tuned = job.cached("choice", lambda: tuned_settings(case, job.device))
    prompts = case.setup.test(case.n_layers, law, case.seed)
    rows: list[dict[str, Any]] = []
    for step, n in enumerate(lengths, start=2):  # tuning was the first step
        x, y = prompts.x[:, : n + 1], prompts.y[:, : n + 1]
        rows += job.cached(f"length-{n}", partial(rows_of_length, case, x, y, tuned, job.device))
        if job.on_step:
            job.on_step(step, len(lengths) + 1, 1 - (rows[-1]["r_squared"] or 0.0))
    return pl.DataFrame(rows, infer_schema_length=None)


def rows_of_length(
    case: Case, x: Tensor, y: Tensor, tuned: dict[str, float], device: str
) -> list[dict[str, Any]]:
    """Predict the queries of prompts by every baseline."""
    epochs = case.direct(tuned[DIRECT], device).predictions(x, y)
    predictions = {
        DIRECT: epochs[-1],
        BEST: best_epochs(epochs, y[:, -1]),
        MEAN: label_mean(y),
        RIDGE: ridge(x, y, tuned[RIDGE]),
        ARC_COSINE: arc_cosine(x, y, case.n_layers),
    }
    for n_steps in case.setup.baselines.step_counts:
        line = constructed_line(n_steps)
        [predictions[line]] = case.constructed(tuned[line]).path(x, y, [n_steps])
    return [
        case.row(case.laws[0], line, values, y, tuned.get(DIRECT if line == BEST else line))
        for line, values in predictions.items()
    ]


def tuned_settings(case: Case, device: str) -> dict[str, float]:
    """Choose each baseline's one free number, by its relative error on other prompts.

    It is the learning rate of direct training, the penalty of ridge regression, or the step size of
    a constructed transformer, for each number of steps.
    """
    plan = case.setup.baselines
    prompts = case.setup.choice(case.n_layers, case.seed)
    x, y = prompts.x, prompts.y

    def best(predictions: dict[float, Tensor]) -> float:
        return min(predictions, key=lambda value: relative_error(predictions[value], y))

    tuned = {
        DIRECT: best(
            {r: case.direct(r, device).predictions(x, y)[-1] for r in plan.learning_rates}
        ),
        RIDGE: best({penalty: ridge(x, y, penalty) for penalty in plan.penalties}),
    }
    paths = {size: case.constructed(size).path(x, y, plan.step_counts) for size in plan.step_sizes}
    for i, n_steps in enumerate(plan.step_counts):
        tuned[constructed_line(n_steps)] = best({size: path[i] for size, path in paths.items()})
    return tuned


def work(case: Case) -> float:
    """Estimate the floating-point operations of a job: 6 for each weight, token and step.

    Baselines of small networks mostly wait for calls of torch; a layer's call is worth 1e7.
    """
    setup, plan = case.setup, case.setup.baselines
    if case.attention is not None:
        n_weights = setup.n_blocks * setup.width * (4 * setup.width + 2 * setup.mlp_width)
        return 6.0 * setup.n_steps * setup.batch_size * setup.n_places(setup.n_examples) * n_weights
    n_tested, n_tuned = setup.n_test * sum(setup.lengths), plan.n_choice * setup.n_examples
    n_sizes, n_steps = len(plan.step_sizes), sum(plan.step_counts)
    epochs = plan.n_epochs * (n_tested + len(plan.learning_rates) * n_tuned)
    steps = n_steps * n_tested + n_sizes * max(plan.step_counts) * n_tuned
    calls = case.n_layers * (n_steps * len(setup.lengths) + n_sizes * max(plan.step_counts))
    direct_weights = _network_weights(case, plan.direct_width)
    descent_weights = _network_weights(case, setup.hidden_width)
    return 6.0 * (epochs * direct_weights + steps * descent_weights) + 1e7 * calls


def memory(case: Case) -> float:
    """Estimate the bytes that training a decoder, or running the constructed transformer, takes."""
    setup = case.setup
    if case.attention is None:
        n_networks = min(DESCENTS_AT_ONCE, setup.n_test)
        return 40.0 * n_networks * _network_weights(case, setup.hidden_width)  # as measured
    model = setup.decoder(case.attention, case.seed)
    activations = model.n_activations(setup.batch_size, setup.n_places(setup.n_examples))
    return 4.0 * (COPIES * model.n_weights + activations)


def _network_weights(case: Case, hidden_width: int) -> int:
    widths = (case.setup.input_width, *[hidden_width] * (case.n_layers - 1), 1)
    return sum(n_in * n_out for n_in, n_out in pairwise(widths))
