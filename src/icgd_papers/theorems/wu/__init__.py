"""The checks of wu's statements; importing the modules registers them."""

from icgd_papers.theorems.wu import (
    approximation,
    descent,
    experiments,
    score,
    softmax,
    transformers,
)

__all__ = ["approximation", "descent", "experiments", "score", "softmax", "transformers"]
