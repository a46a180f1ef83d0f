"""The domain: bounds on the data, which certificates rely on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from icgd.problems.data import checked_array
from icgd.problems.settings import positive, settle

ROOM = 1.25
"""How much larger than the data the bounds of `Domain.of` are: queries may lie a little outside."""


@dataclass(frozen=True)
class Domain:
    """Bounds on every entry: |x| <= `x` and |y| <= `y`. Certificates rely on them.

    Args:
        x: the bound of inputs.
        y: the bound of labels.
        score: for a linear model, a bound of |<w, x>|; it may be smaller than what `x` and the box
            allow. A run that leaves this bound is stopped.
        rate: for a network, the largest rate of an example, if examples have rates: numbers from 0
            on by which their gradients are multiplied.

    Raises:
        SettingError: if a bound is no positive number.

    Example:
        >>> import icgd
        >>> icgd.Domain(x=2.0, y=1.0).in_words()
        '|x| <= 2, |y| <= 1'
    """

    x: float
    y: float
    score: float | None = None
    rate: float | None = None

    def in_words(self) -> str:
        """The bounds, such as "|x| <= 2, |y| <= 1".

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.Domain(x=2.0, y=1.0, score=3.0).in_words()
            '|x| <= 2, |y| <= 1, |<w, x>| <= 3'
        """
        bounds = {"x": self.x, "y": self.y, "<w, x>": self.score}
        words = [f"|{name}| <= {b:g}" for name, b in bounds.items() if b is not None]
        words += [] if self.rate is None else [f"rates <= {self.rate:g}"]
        return ", ".join(words)

    def __post_init__(self) -> None:
        settle(self, x=positive("domain.x", self.x), y=positive("domain.y", self.y))
        if self.score is not None:
            settle(self, score=positive("domain.score", self.score))
        if self.rate is not None:
            settle(self, rate=positive("domain.rate", self.rate))

    @classmethod
    def of(cls, X: Any, y: Any, *, room: float = ROOM) -> Domain:
        """The domain of these data, larger by the factor `room`; 1 where all of them are 0.

        Args:
            X: The inputs, of one task or of many.
            y: The labels.
            room: How much larger than the data the bounds are, for queries.

        Returns:
            The bounds of inputs and labels.

        Raises:
            DataError: if the data are no arrays of finite numbers.
            SettingError: if `room` is no positive number.

        Example:
            >>> import icgd
            >>> icgd.Domain.of([[1.0, -2.0]], [4.0])
            Domain(x=2.5, y=5.0, score=None, rate=None)
        """
        factor = positive("room", room)
        bounds = [factor * float(checked_array(n, a).abs().max()) for n, a in (("X", X), ("y", y))]
        return cls(*(bound or 1.0 for bound in bounds))
