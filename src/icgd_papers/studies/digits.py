"""1797 handwritten digits of 8 x 8 pixels, and their principal components.

The test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998, UCI Machine
Learning Repository, CC BY 4.0), which is scikit-learn's `load_digits`. In digits.csv a character
from 0 to g is the ink of a pixel, 0 to 16, row by row.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from icgd.problems.settings import count

SIDE = 8
INK = "0123456789abcdefg"

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Digits:
    """Images, one row of 64 pixels between 0 and 16 for each, and the digit that each shows."""

    pixels: Numbers
    digits: NDArray[np.int64]


def read_digits() -> Digits:
    """All images, in the order of the publication."""
    text = files("icgd_papers.studies").joinpath("digits.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return Digits(
        pixels=np.array([[float(INK.index(ink)) for ink in row["pixels"]] for row in rows]),
        digits=np.array([int(row["digit"]) for row in rows]),
    )


@dataclass(frozen=True)
class Components:
    """The first principal components: images become few numbers of variance 1, and come back."""

    mean: Numbers
    directions: Numbers
    deviations: Numbers

    @classmethod
    def of(cls, pixels: Numbers, dimension: int) -> Components:
        """The directions of most variance; the largest entry of each is positive."""
        count("dimension", dimension, most=pixels.shape[1])
        mean = pixels.mean(axis=0)
        directions = np.linalg.svd(pixels - mean, full_matrices=False)[2][:dimension]
        largest = np.abs(directions).argmax(axis=1)
        directions = directions * np.sign(directions[np.arange(dimension), largest])[:, None]
        return cls(mean, directions, ((pixels - mean) @ directions.T).std(axis=0))

    def coordinates(self, pixels: Numbers) -> Numbers:
        """The coordinates of images, of mean 0 and variance 1 over those that it was made of."""
        found: Numbers = (pixels - self.mean) @ self.directions.T / self.deviations
        return found

    def images(self, coordinates: Numbers) -> Numbers:
        """The images with these coordinates, each of 8 x 8 pixels."""
        pixels = self.mean + (coordinates * self.deviations) @ self.directions
        return pixels.reshape(-1, SIDE, SIDE)
