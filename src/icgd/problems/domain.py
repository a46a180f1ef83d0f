"""The domain: bounds on the data, which certificates rely on."""

from __future__ import annotations

from dataclasses import dataclass

from icgd.problems.settings import positive, settle


@dataclass(frozen=True)
class Domain:
    """Bounds on every entry: |x| <= `x` and |y| <= `y`. Certificates rely on them.

    For a linear model, `score` bounds |<w, x>|; it may be smaller than what `x` and the box allow.
    A run that leaves this bound is stopped.
    """

    x: float
    y: float
    score: float | None = None

    def in_words(self) -> str:
        """The bounds, such as "|x| <= 2, |y| <= 1"."""
        bounds = {"x": self.x, "y": self.y, "<w, x>": self.score}
        return ", ".join(f"|{name}| <= {b:g}" for name, b in bounds.items() if b is not None)

    def __post_init__(self) -> None:
        settle(self, x=positive("domain.x", self.x), y=positive("domain.y", self.y))
        if self.score is not None:
            settle(self, score=positive("domain.score", self.score))
