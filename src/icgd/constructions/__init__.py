"""One theorem a file: from a problem to a program."""

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction

__all__ = ["AbstractConstruction", "fit_relu_sum"]
