"""One theorem per file: each turns a problem into a program."""

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction

__all__ = ["AbstractConstruction", "fit_relu_sum"]
