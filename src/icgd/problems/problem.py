"""A problem: what is trained, on what loss, by which update, for data within which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from icgd.problems.losses import Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.settings import instance, positive


@dataclass(frozen=True)
class GradientStep:
    """w <- clip(w - step_size * grad L(w), -box, box)."""

    step_size: float
    box: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", positive("step_size", self.step_size))
        object.__setattr__(self, "box", positive("box", self.box))


@dataclass(frozen=True)
class Domain:
    """Bounds on every entry: |x| <= `x` and |y| <= `y`. Certificates rely on them."""

    x: float
    y: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", positive("domain.x", self.x))
        object.__setattr__(self, "y", positive("domain.y", self.y))


@dataclass(frozen=True)
class Problem:
    """One training problem; plain data, comparable and savable."""

    target: MLP
    loss: str
    update: GradientStep
    domain: Domain

    def __post_init__(self) -> None:
        loss_named(self.loss)
        instance("target", self.target, MLP)
        instance("update", self.update, GradientStep)
        instance("domain", self.domain, Domain)

    @property
    def loss_function(self) -> Loss:
        return loss_named(self.loss)

    def to_data(self) -> dict[str, Any]:
        """This problem as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Problem:
        """The problem that `to_data` described."""
        target = {**data["target"], "widths": tuple(data["target"]["widths"])}
        return cls(
            target=MLP(**target),
            loss=data["loss"],
            update=GradientStep(**data["update"]),
            domain=Domain(**data["domain"]),
        )
