"""How much memory prompts of a law take, known from a config before any is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icgd.environment import require_memory
from icgd.problems.settings import count

REMEDY = "Give narrower or fewer examples, or smaller batches."

NUMBER = 8
"""Bytes of a number: laws draw in float64."""

NETWORKS = ("relu-network", "teachers")
"""The laws of labels that draw a network of `hidden_width` units for each prompt."""


def require_prompts(data: Mapping[str, Any], batch_size: int) -> None:
    """Raise `SizeError` unless a batch and the covariance of its inputs fit in memory.

    `data` is the section [data] of a config that names a law. A batch is drawn at once, also if
    its gradient is gathered in parts.
    """
    sizes = [count(name, data[name]) for name in ("input_width", "output_width", "n_examples")]
    width, output_width, n_examples = sizes
    require_memory(f"The covariance of {width:,} inputs", NUMBER * width**2, REMEDY)
    hidden = count("hidden_width", data["hidden_width"]) if data["labels"] in NETWORKS else 0
    tokens = (n_examples + 1) * max(width + output_width, hidden)
    n_numbers = batch_size * (tokens + hidden * max(width, hidden))
    sizes_in_words = f"{n_examples:,} examples, {width:,} inputs and {output_width:,} outputs"
    what = f"Drawing {batch_size:,} prompts of {sizes_in_words}"
    require_memory(what, NUMBER * n_numbers, REMEDY)
