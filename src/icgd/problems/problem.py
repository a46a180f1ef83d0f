"""A problem: what is trained, on what loss, by which update, for data within which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from icgd.errors import SettingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.losses import Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.settings import instance, positive
from icgd.problems.updates import FunctionalStep, GradientStep

Target = MLP | KernelMachine | LinearModel
Update = GradientStep | FunctionalStep | ProximalStep

MATCHING = "matching"
"""The loss of a linear model: the one that its link matches."""


@dataclass(frozen=True)
class Domain:
    """Bounds on every entry: |x| <= `x` and |y| <= `y`. Certificates rely on them.

    For a linear model |<w, x>| <= `score` may be smaller than what x and the box allow; a run that
    leaves it is stopped.
    """

    x: float
    y: float
    score: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", positive("domain.x", self.x))
        object.__setattr__(self, "y", positive("domain.y", self.y))
        if self.score is not None:
            object.__setattr__(self, "score", positive("domain.score", self.score))


@dataclass(frozen=True)
class Problem:
    """One training problem; plain data, comparable and savable.

    A network's weights are trained by gradient steps on any loss, a kernel machine's function by
    functional steps on the squared loss, a linear model's coefficients by proximal steps on the
    loss that matches its link.
    """

    target: Target
    loss: str
    update: Update
    domain: Domain

    def __post_init__(self) -> None:
        instance("domain", self.domain, Domain)
        match self.target:
            case LinearModel():
                instance("update", self.update, ProximalStep)
                self._require_loss(MATCHING, "a linear model")
            case KernelMachine():
                instance("update", self.update, FunctionalStep)
                self._require_loss("squared", "a kernel machine")
                self.functional_step.require_width(self.machine.input_width)
            case MLP():
                loss_named(self.loss)
                instance("update", self.update, GradientStep)
            case _:
                kinds = "MLP, KernelMachine or LinearModel"
                raise SettingError.wrong_kind("target", self.target, kinds)
        if self.domain.score is not None and not self.trains_coefficients:
            raise SettingError.without("domain.score", "a linear model")

    def _require_loss(self, only: str, target: str) -> None:
        if self.loss != only:
            raise SettingError.not_one_of(f"loss of {target}", self.loss, (only,))

    @property
    def trains_function(self) -> bool:
        """Whether the target is a kernel machine: a function without weights."""
        return isinstance(self.target, KernelMachine)

    @property
    def trains_coefficients(self) -> bool:
        """Whether the target is a linear model."""
        return isinstance(self.target, LinearModel)

    @property
    def network(self) -> MLP:
        """The target, if it is a network."""
        return _of_kind("target", self.target, MLP)

    @property
    def machine(self) -> KernelMachine:
        """The target, if it is a kernel machine."""
        return _of_kind("target", self.target, KernelMachine)

    @property
    def model(self) -> LinearModel:
        """The target, if it is a linear model."""
        return _of_kind("target", self.target, LinearModel)

    @property
    def gradient_step(self) -> GradientStep:
        """The update of a network."""
        return _of_kind("update", self.update, GradientStep)

    @property
    def functional_step(self) -> FunctionalStep:
        """The update of a kernel machine."""
        return _of_kind("update", self.update, FunctionalStep)

    @property
    def proximal_step(self) -> ProximalStep:
        """The update of a linear model."""
        return _of_kind("update", self.update, ProximalStep)

    @property
    def box(self) -> float | None:
        """Largest size of a weight, if there are weights and they are clipped."""
        return None if isinstance(self.update, FunctionalStep) else self.update.box

    @property
    def loss_function(self) -> Loss:
        return loss_named(self.loss)

    def to_data(self) -> dict[str, Any]:
        """This problem as JSON-ready data; what is not set is left out."""
        data = asdict(self)
        if not data["target"].get("biases"):
            data["target"].pop("biases", None)
        for part in ("update", "domain"):
            data[part] = {name: value for name, value in data[part].items() if value is not None}
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Problem:
        """The problem that `to_data` described."""
        return cls(
            target=_target(data["target"]),
            loss=data["loss"],
            update=_update(data["update"]),
            domain=Domain(**data["domain"]),
        )


Kind = TypeVar("Kind")


def _of_kind(name: str, part: object, kind: type[Kind]) -> Kind:
    if not isinstance(part, kind):
        raise SettingError.wrong_kind(name, part, kind.__name__)
    return part


def _target(data: Mapping[str, Any]) -> Target:
    if "widths" in data:
        return MLP(**{**data, "widths": tuple(data["widths"])})
    if "link" in data:
        return LinearModel(**data)
    return KernelMachine(**{**data, "heads": tuple(KernelHead(**head) for head in data["heads"])})


def _update(data: Mapping[str, Any]) -> Update:
    if "l2" in data:
        return ProximalStep(**data)
    return GradientStep(**data) if "box" in data else FunctionalStep(**data)
