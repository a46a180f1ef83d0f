"""One theorem per file: each turns a problem into a program."""

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction
from icgd.problems.optimisers import AbstractGradientStep, Root, Rule

__all__ = ["AbstractConstruction", "AbstractGradientStep", "Root", "Rule", "fit_relu_sum"]
