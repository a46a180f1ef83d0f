"""A problem: what is trained, on what loss, by which update, for data within which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from icgd.errors import SettingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.losses import Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.settings import instance, positive
from icgd.problems.updates import FunctionalStep, GradientStep


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
    """One training problem; plain data, comparable and savable.

    A network's weights are trained by gradient steps on any loss, a kernel machine's function by
    functional steps on the squared loss.
    """

    target: MLP | KernelMachine
    loss: str
    update: GradientStep | FunctionalStep
    domain: Domain

    def __post_init__(self) -> None:
        loss_named(self.loss)
        if not isinstance(self.target, MLP | KernelMachine):
            raise SettingError.wrong_kind("target", self.target, "MLP or KernelMachine")
        instance("domain", self.domain, Domain)
        if not self.trains_function:
            return instance("update", self.update, GradientStep)
        instance("update", self.update, FunctionalStep)
        if self.loss != "squared":
            raise SettingError.not_one_of("loss of a kernel machine", self.loss, ("squared",))
        self.functional_step.require_width(self.machine.input_width)

    @property
    def trains_function(self) -> bool:
        """Whether the target is a kernel machine: a function without weights."""
        return isinstance(self.target, KernelMachine)

    @property
    def network(self) -> MLP:
        """The target, if it is a network."""
        if not isinstance(self.target, MLP):
            raise SettingError.wrong_kind("target", self.target, "MLP")
        return self.target

    @property
    def machine(self) -> KernelMachine:
        """The target, if it is a kernel machine."""
        if not isinstance(self.target, KernelMachine):
            raise SettingError.wrong_kind("target", self.target, "KernelMachine")
        return self.target

    @property
    def gradient_step(self) -> GradientStep:
        """The update of a network."""
        if not isinstance(self.update, GradientStep):
            raise SettingError.wrong_kind("update", self.update, "GradientStep")
        return self.update

    @property
    def functional_step(self) -> FunctionalStep:
        """The update of a kernel machine."""
        if not isinstance(self.update, FunctionalStep):
            raise SettingError.wrong_kind("update", self.update, "FunctionalStep")
        return self.update

    @property
    def loss_function(self) -> Loss:
        return loss_named(self.loss)

    def to_data(self) -> dict[str, Any]:
        """This problem as JSON-ready data; it has no batch size or biases if it does without."""
        data = asdict(self)
        if not data["target"].get("biases"):
            data["target"].pop("biases", None)
        if data["update"].get("batch_size") is None:
            data["update"].pop("batch_size", None)
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


def _target(data: Mapping[str, Any]) -> MLP | KernelMachine:
    if "widths" in data:
        return MLP(**{**data, "widths": tuple(data["widths"])})
    return KernelMachine(**{**data, "heads": tuple(KernelHead(**head) for head in data["heads"])})


def _update(data: Mapping[str, Any]) -> GradientStep | FunctionalStep:
    return GradientStep(**data) if "box" in data else FunctionalStep(**data)
