"""The 32 cars of the 1974 Motor Trend road tests (Henderson and Velleman 1981, "mtcars").

Weight is in 1000 lb, the quarter mile in seconds, displacement in cubic inches.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

INPUTS = ("weight", "horsepower", "quarter_mile")
LABEL = "mpg"


@dataclass(frozen=True)
class Cars:
    """Some cars: their names, one row of inputs for each, and their miles per gallon."""

    names: tuple[str, ...]
    inputs: NDArray[np.float64]
    mpg: NDArray[np.float64]

    def at(self, positions: Sequence[int] | NDArray[np.int64]) -> Cars:
        """Return the cars at these positions, in this order."""
        names = tuple(self.names[position] for position in positions)
        return Cars(names, self.inputs[positions], self.mpg[positions])


def read_cars() -> Cars:
    """All cars, in the order of the publication."""
    text = files("icgd.cli").joinpath("cars.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return Cars(
        names=tuple(row["car"] for row in rows),
        inputs=np.array([[float(row[name]) for name in INPUTS] for row in rows]),
        mpg=np.array([float(row[LABEL]) for row in rows]),
    )


def split_cars(cars: Cars, n_held_out: int, seed: int) -> tuple[Cars, Cars]:
    """Cars to train on, and `n_held_out` others drawn from `seed`."""
    order = np.random.default_rng(seed).permutation(len(cars.names))
    cut = len(order) - n_held_out
    return cars.at(order[:cut]), cars.at(order[cut:])


@dataclass(frozen=True)
class Scaling:
    """Standardises inputs and labels by the mean and the deviation of the training cars."""

    input_mean: NDArray[np.float64]
    input_deviation: NDArray[np.float64]
    mpg_mean: float
    mpg_deviation: float

    @classmethod
    def of(cls, cars: Cars) -> Scaling:
        return cls(
            input_mean=cars.inputs.mean(axis=0),
            input_deviation=cars.inputs.std(axis=0),
            mpg_mean=float(cars.mpg.mean()),
            mpg_deviation=float(cars.mpg.std()),
        )

    def inputs(self, cars: Cars) -> NDArray[np.float64]:
        """Standardised inputs and a last column of ones, which makes a bias of its weights."""
        scaled = (cars.inputs - self.input_mean) / self.input_deviation
        return np.column_stack([scaled, np.ones(len(cars.names))])

    def labels(self, cars: Cars) -> NDArray[np.float64]:
        labels: NDArray[np.float64] = (cars.mpg - self.mpg_mean) / self.mpg_deviation
        return labels

    def mpg(self, labels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Labels back in miles per gallon."""
        return self.mpg_mean + self.mpg_deviation * labels
