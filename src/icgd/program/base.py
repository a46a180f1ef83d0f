"""What instructions may ask of their program: its slots, and its functions by name."""

from __future__ import annotations

from icgd.errors import UnknownNameError
from icgd.program.functions import (
    AnyFunction,
    Function,
    GridMean,
    LatticeFunction,
    ReluSum,
    RidgeSum,
)
from icgd.program.layout import Layout


class ProgramBase:
    """The slots in `layout`, and the `functions` that layers evaluate."""

    layout: Layout
    functions: tuple[Function, ...]

    def relu_sum(self, name: str) -> ReluSum:
        """The program's sum of ReLUs for the function called `name`."""
        return self.function(name, ReluSum)

    def look_up(self, name: str) -> LatticeFunction:
        """The program's look-up of the function called `name`."""
        return self.function(name, LatticeFunction)

    def grid_mean(self, name: str) -> GridMean:
        """The program's mean over tokens for the function called `name`."""
        return self.function(name, GridMean)

    def ridge_sum(self, name: str) -> RidgeSum:
        """The program's sum of units for the function called `name`."""
        return self.function(name, RidgeSum)

    def function(self, name: str, kind: type[AnyFunction]) -> AnyFunction:
        """The program's function of a kind that is called `name`."""
        candidates = [function for function in self.functions if isinstance(function, kind)]
        for function in candidates:
            if function.name == name:
                return function
        known = [function.name for function in candidates]
        raise UnknownNameError.of("function of the program", name, known=known)
