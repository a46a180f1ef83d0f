"""What the studies of wu's figures find: the R^2 of each line after so many examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from icgd_papers.figures.wu_references import r_squared, r_squared_within
from icgd_papers.figures.wu_setting import Law
from icgd_papers.reproduction import Row, six_digits

LEARNT = "learnt decoder"
DIRECT, BEST = "direct, last epoch", "direct, best epoch"
MEAN, RIDGE, ARC_COSINE = "label mean", "ridge", "arc-cosine"


def constructed(n_steps: int) -> str:
    """The name of the line of a constructed transformer."""
    return f"constructed, {n_steps} steps"


@dataclass(frozen=True)
class Point:
    """How well one line predicts the queries after `n_examples` examples."""

    inputs: str
    teacher_weights: str
    line: str
    n_examples: int
    r_squared: float
    """1 - mean squared error / variance of the queries' labels, both over the test prompts."""
    r_squared_within: float
    """The same with the mean variance of labels within a prompt."""
    setting: float | None = None
    """The learning rate, step size or penalty that was chosen on other prompts."""

    @classmethod
    def of(
        cls,
        law: Law,
        line: str,
        predictions: Tensor,
        y: Tensor,
        setting: float | None = None,
    ) -> Point:
        """Compare predictions with the last of the labels `y` of each prompt."""
        errors, labels = predictions.double() - y[:, -1], y[:, -1]
        found = r_squared(errors, labels), r_squared_within(errors, y)
        return cls(law.inputs, law.teachers, line, y.shape[1] - 1, *found, setting)

    @property
    def columns(self) -> Row:
        return {
            "inputs": self.inputs,
            "teacher_weights": self.teacher_weights,
            "line": self.line,
            "n_examples": self.n_examples,
            "r_squared": six_digits(self.r_squared),
            "r_squared_within": six_digits(self.r_squared_within),
            "setting": self.setting,
        }


@dataclass(frozen=True)
class Outcome:
    """All points of a study. A decoder also has the loss of its last batch."""

    points: tuple[Point, ...]
    seconds: float
    loss: float | None = None


def outcome_of(data: Mapping[str, Any]) -> Outcome:
    """The outcome whose fields were read from JSON."""
    return Outcome(**{**data, "points": tuple(Point(**point) for point in data["points"])})
