"""Training steps of the decoder against those of transformers' GPT2Model in the same loop.

Both train on the same prompts by `icgd.training.train`, with the same Adam, in float32, on one
thread; runs take turns, and medians of processor time are compared. GPT2Model has no dropout, as
the decoder, its own attention (sdpa) and its own GELU (gelu_new, by tanh). It always has
interleaved tokens, which are those of the paper.
"""

from itertools import product
from statistics import median
from time import process_time

from benchmarks.gpt2 import Gpt2
from icgd.reproductions.timing import interleaved_seconds, one_thread
from icgd.training import (
    CausalTask,
    Decoder,
    InContextTask,
    Settings,
    ShiftedMixture,
    Teachers,
    train,
)

SIZES = ((4, 64, 20), (8, 128, 40))  # blocks, width, examples
N_HEADS, BATCH, INPUT_WIDTH, N_STEPS, ROUNDS = 4, 64, 5, 2, 7
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
    settings = Settings(n_steps=N_STEPS, batch_size=BATCH, learning_rate=1e-4, clip_norm=1.0)
    models["gpt2"] = Gpt2(models["interleaved", "softmax"], n_positions)
    jobs = {
        kind: lambda model=model: train(model, task, settings) for kind, model in models.items()
    }
    turns = interleaved_seconds(jobs, ROUNDS, process_time)
    seconds = {kind: median(turn[kind] for turn in turns) / (N_STEPS + 1) for kind in jobs}
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
