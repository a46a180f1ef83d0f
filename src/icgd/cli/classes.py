"""Labels that are classes, as texts or numbers: encoded for training, decoded in predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from icgd.errors import DataError, did_you_mean, quoted
from icgd.problems.losses import LOGISTIC
from icgd.problems.problem import Problem
from icgd.problems.tables import Numbers


@dataclass(frozen=True)
class Classes:
    """The names of all classes, sorted: one output for two of them, or one for each."""

    names: tuple[str, ...]
    n_outputs: int
    threshold: float
    """With one output: the second class is predicted above it."""

    @classmethod
    def of(cls, path: Path, column: str, cells: Sequence[str], problem: Problem) -> Classes:
        """Return the classes of a column; `DataError` if the outputs cannot tell them apart."""
        names, n_outputs = tuple(sorted(set(cells))), problem.target.output_width
        if len(names) < 2:
            raise DataError(
                f"{path}, column {quoted(column)} has only the class {quoted(names[0])}; two are "
                "needed. Name another column with --target."
            )
        if n_outputs != len(names) and (n_outputs, len(names)) != (1, 2):
            shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
            raise DataError(
                f"{path}, column {quoted(column)} has {len(names)} classes ({shown}), but the "
                f"model has {n_outputs} output{'s' * (n_outputs > 1)}. Compile for this table with "
                "--data, which counts them."
            )
        # A network with the logistic loss returns a score; all others return the label itself.
        return cls(names, n_outputs, 0.0 if problem.loss == LOGISTIC.name else 0.5)

    @classmethod
    def numbered(cls, path: Path, column: str, cells: Sequence[str], problem: Problem) -> Classes:
        """Return classes counted from 0, one for each output; `DataError` for any other cell."""
        n_outputs = problem.target.output_width
        names = tuple(map(str, range(n_outputs)))
        for cell in cells:
            if cell not in names:
                raise DataError(
                    f"{path}, column {quoted(column)} has the class {cell}; the cross_entropy loss "
                    f"of {n_outputs} outputs needs classes from 0 to {n_outputs - 1}."
                )
        return cls(names, n_outputs, threshold=0.5)

    def encoded(self, path: Path, column: str, cells: Sequence[str]) -> Numbers:
        """Return a row of labels for each cell: 0 or 1, or a 1 in the place of its class."""
        for cell in cells:
            if cell not in self.names:
                raise DataError(
                    f"{path}, column {quoted(column)} has the class {quoted(cell)}, which the "
                    "examples lack; known are "
                    f"{', '.join(self.names)}.{did_you_mean(cell, self.names)}"
                )
        places = np.array([self.names.index(cell) for cell in cells])
        one_hot: Numbers = np.eye(len(self.names))[places]
        return one_hot if self.n_outputs > 1 else one_hot[:, 1:]

    def decoded(self, predictions: Numbers) -> list[str]:
        """Return the class of every row of predictions."""
        is_second = predictions[:, 0] > self.threshold
        places = predictions.argmax(1) if self.n_outputs > 1 else is_second.astype(int)
        return [self.names[place] for place in places]
