"""Training steps of the decoder against those of transformers' GPT2Model in the same loop.

Both take the steps of `icgd_papers.training.train` on the same prompts, with the same Adam, in
float32, on one thread: a batch is drawn, its gradient found and clipped, the weights updated. Steps
take turns, and medians of processor time are compared. GPT2Model has no dropout, as
the decoder, its own attention (sdpa) and its own GELU (gelu_new, by tanh). It always has
interleaved tokens, which are those of the paper.
"""

from collections.abc import Callable
from itertools import product
from statistics import median
from time import process_time

from torch import nn

from benchmarks.gpt2 import Gpt2
from icgd.environment import one_thread
from icgd.timing import interleaved_seconds
from icgd_papers.training import (
    CausalTask,
    Decoder,
    InContextTask,
    Settings,
    ShiftedMixture,
    Teachers,
)
from icgd_papers.training.loop import TrainingRun

SIZES = ((4, 64, 20), (8, 128, 40))  # blocks, width, examples
N_HEADS, BATCH, INPUT_WIDTH, ROUNDS = 4, 64, 5, 25
LIMITS = {"interleaved": 1 / 1.5, "joint": 1 / 3.0}  # our time over that of GPT2Model


def rows() -> list[dict[str, object]]:
    with one_thread():
        return [row for sizes in SIZES for row in _rows(*sizes)]


def prompts(n_examples: int) -> CausalTask:
    law = InContextTask(ShiftedMixture.of_width(INPUT_WIDTH), Teachers(3, 20), n_examples)
    return CausalTask(law)


def _rows(n_blocks: int, width: int, n_examples: int) -> list[dict[str, object]]:
    kinds = list(product(LIMITS, ("softmax", "relu")))
    sizes = {"input_width": INPUT_WIDTH, "n_blocks": n_blocks, "width": width, "n_heads": N_HEADS}
    n_positions = 2 * n_examples + 1
    models = {
        (tokens, attention): Decoder(
            **sizes, attention=attention, tokens=tokens, n_positions=n_positions, seed=0
        )
        for tokens, attention in kinds
    }
    task = prompts(n_examples)
    models["gpt2"] = Gpt2(models["interleaved", "softmax"], n_positions)
    jobs = {kind: steps(model, task) for kind, model in models.items()}
    turns = interleaved_seconds(jobs, ROUNDS, process_time)
    seconds = {kind: median(turn[kind] for turn in turns) for kind in jobs}
    return [
        {
            "blocks": n_blocks,
            "width": width,
            "examples": n_examples,
            "tokens": tokens,
            "attention": attention,
            "steps/s": 1 / seconds[tokens, attention],
            "GPT2Model steps/s": 1 / seconds["gpt2"],
            "ratio": seconds[tokens, attention] / seconds["gpt2"],
            "limit": LIMITS[tokens],
        }
        for tokens, attention in kinds
    ]


def steps(model: nn.Module, task: CausalTask) -> Callable[[], None]:
    """A function that takes the next step of the loop."""
    settings = Settings(n_steps=10**6, batch_size=BATCH, learning_rate=1e-4, clip_norm=1.0)
    run = TrainingRun(model, task, settings, None)

    def step() -> None:
        run.evaluate()
        run.update()

    return step
