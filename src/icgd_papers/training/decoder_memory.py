"""The memory of a decoder, from its sizes, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from icgd.environment import require_memory
from icgd_papers.training.fast_blocks import keeping_scores

REMEDY = "Give smaller sizes or shorter prompts, or compute the gradient in parts (accumulate)."

COPIES = 4
"""A weight, its gradient and two moments of Adam."""


@dataclass(frozen=True)
class DecoderMemory:
    """The sizes that decide how much memory a decoder takes."""

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
        """Count the numbers that training changes."""
        block = 4 * self.width**2 + 2 * self.width * self.mlp_width + 4 * self.width
        ends = self.token_width + 1 + self.n_positions + 2 + self.output_width
        return self.n_blocks * block + self.width * ends + self.output_width

    def activations(self, n_tasks: int, n_places: int) -> int:
        """Count the numbers that a forward pass keeps for the backward pass, but for small ones.

        At a place, a block keeps the stream and its norm twice, queries, keys, values, the output
        of attention, and the hidden units before and after GELU. Attention also keeps a score of
        each head for every place that is read, unless it is softmax over many places.
        """
        is_long = keeping_scores(self.attention, n_places) == "softmax"
        scores = 0 if is_long else self.n_heads * n_places
        return n_tasks * n_places * self.n_blocks * (8 * self.width + 2 * self.mlp_width + scores)

    def require_weights(self) -> None:
        """Raise `SizeError` unless the initial weights, in float64, fit into memory."""
        require_memory(f"A decoder of {self.n_weights:,} weights", 8 * self.n_weights, REMEDY)

    def require_training(self, n_tasks: int, n_places: int, n_bytes: int) -> None:
        """Raise `SizeError` unless training, with numbers of `n_bytes` bytes, fits into memory."""
        numbers = COPIES * self.n_weights + self.activations(n_tasks, n_places)
        what = f"Training a decoder of {self.n_weights:,} weights on {n_tasks:,} prompts of "
        require_memory(f"{what}{n_places:,} places at a time", n_bytes * numbers, REMEDY)
