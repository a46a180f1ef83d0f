"""How much memory a decoder takes, known from its sizes before anything is made."""

from __future__ import annotations

from dataclasses import dataclass

from icgd.environment import require_memory
from icgd_papers.training.fast_blocks import keeping_scores

FIRST_NUMBERS = 8
"""Bytes of a weight in float64, in which the first ones are drawn."""

REMEDY = "Give smaller sizes or shorter prompts, or gather the gradient in parts (accumulate)."

COPIES = 4
"""A weight, its gradient and two moments of Adam."""


@dataclass(frozen=True)
class DecoderMemory:
    """The sizes that decide how much a decoder takes."""

    n_blocks: int
    width: int
    mlp_width: int
    n_heads: int
    token_width: int
    n_positions: int
    output_width: int
    attention: str

    @property
    def n_weights(self) -> int:
        """All numbers that training changes."""
        block = 4 * self.width**2 + 2 * self.width * self.mlp_width + 4 * self.width
        ends = self.token_width + 1 + self.n_positions + 2 + self.output_width
        return self.n_blocks * block + self.width * ends + self.output_width

    def activations(self, n_tasks: int, n_places: int) -> int:
        """The numbers that a forward pass keeps for the backward pass, but for small ones.

        At a place, a block keeps the stream and its norm twice, queries, keys, values, what was
        gathered, and the hidden units before and after GELU; attention keeps a weight of each
        head for every place that is read, but for softmax over many places.
        """
        is_long = keeping_scores(self.attention, n_places) == "softmax"
        scores = 0 if is_long else self.n_heads * n_places
        return n_tasks * n_places * self.n_blocks * (8 * self.width + 2 * self.mlp_width + scores)

    def require_weights(self) -> None:
        """Raise `SizeError` unless the first numbers can be drawn."""
        what = f"A decoder of {self.n_weights:,} weights"
        require_memory(what, FIRST_NUMBERS * self.n_weights, REMEDY)

    def require_training(self, n_tasks: int, n_places: int, n_bytes: int) -> None:
        """Raise `SizeError` unless it can be trained, with numbers of `n_bytes` bytes."""
        numbers = COPIES * self.n_weights + self.activations(n_tasks, n_places)
        what = f"Training a decoder of {self.n_weights:,} weights on {n_tasks:,} prompts of "
        require_memory(f"{what}{n_places:,} places at a time", n_bytes * numbers, REMEDY)
