"""What every construction owes: a theorem turned into a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from icgd.approximation.relu_sum import DEFAULT_KINK_WIDTH
from icgd.approximation.ridge_sum import FEWEST_UNITS
from icgd.errors import SettingError
from icgd.problems.arrays import dtype_named
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.settings import count, power_of_two
from icgd.problems.unit_activations import unit_activation_named
from icgd.problems.updates import GradientStep
from icgd.program.program import AbstractProgram


@dataclass(frozen=True)
class Precision:
    """How finely a construction approximates.

    `pieces` of a smooth function by sums of ReLUs; `registers` of a softmax lattice, or None for
    as many as give full accuracy in `dtype`, the arithmetic that it is made for; `levels` of every
    entry in a table of whole steps, which is made for prompts of `n_examples` examples; `units` of
    the `unit_activation` for every function, or of the one that suits the target best; width of the
    ramp that stands in for a step.
    """

    pieces: int = 64
    registers: int | None = None
    levels: int = 4
    n_examples: int = 2
    units: int = 200
    unit_activation: str | None = None
    kink_width: float = DEFAULT_KINK_WIDTH
    dtype: str = "float64"

    def __post_init__(self) -> None:
        count("pieces", self.pieces)
        if self.registers is not None:
            count("registers", self.registers)
        count("levels", self.levels, least=2)
        count("n_examples", self.n_examples)
        count("units", self.units, least=FEWEST_UNITS)
        if self.unit_activation is not None:
            unit_activation_named(self.unit_activation)
        dtype_named(self.dtype)
        power_of_two("kink_width", self.kink_width)
        if not 2.0**-60 <= self.kink_width <= 1.0:
            raise SettingError.out_of_range("kink_width", self.kink_width, least=2.0**-60, most=1.0)


TRAINED = {
    MLP: "the weights of a network",
    KernelMachine: "the function of a kernel",
    LinearModel: "the coefficients of a linear model",
}
"""What is trained of a target, in words."""


class AbstractConstruction(ABC):
    """One theorem: from a problem to a program. Subclasses are final and hold no state."""

    name: ClassVar[str]
    target: ClassVar[type] = MLP
    """What it trains."""
    setting: ClassVar[str | None] = None
    """The setting of `Precision` that makes it finer, a whole number; none if it is exact."""
    coarsest: ClassVar[int] = 1
    finest: ClassVar[int] = 1
    """Values of that setting between which a tolerance chooses."""
    fixes_examples: ClassVar[bool] = False
    """Whether it is made for prompts of `Precision.n_examples` examples only."""
    takes_activation: ClassVar[bool] = False
    """Whether heads and hidden units apply `Precision.unit_activation`."""
    takes_batches: ClassVar[bool] = False
    """Whether a step may use some of the examples only."""
    takes_biases: ClassVar[bool] = False
    """Whether it trains networks with biases."""

    def why_not(self, problem: Problem) -> str | None:
        """The reason why this construction cannot serve `problem`, or None if it can."""
        if not isinstance(problem.target, self.target):
            return f"it trains {TRAINED[self.target]}, not {TRAINED[type(problem.target)]}."
        size = problem.update.batch_size if isinstance(problem.update, GradientStep) else None
        if size is not None and not self.takes_batches:
            return (
                "its attention averages over all examples of the prompt in every step, and takes "
                f"no batch_size, got {size}."
            )
        if isinstance(problem.target, MLP) and problem.target.biases and not self.takes_biases:
            return (
                "its layers have no biases; give X a constant-1 feature, which is a bias of the "
                "first layer, or use cot-network with a batch_size."
            )
        return self.objection(problem)

    @abstractmethod
    def objection(self, problem: Problem) -> str | None:
        """The reason why it cannot serve `problem`, whose target it can train, or None."""

    def finer(self, setting: int, excess: float) -> int:
        """The setting that about divides the error by `excess`."""
        return setting

    @abstractmethod
    def build(self, problem: Problem, *, n_steps: int, precision: Precision) -> AbstractProgram:
        """The program that performs `n_steps` updates of `problem` and then predicts."""
