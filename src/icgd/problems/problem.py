"""A problem: what is trained, on what loss, by which update, for data within which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

from icgd.errors import SettingError
from icgd.problems.domain import Domain
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.losses import Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.oracles.function import FunctionOracle
from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.oracles.network import NetworkOracle
from icgd.problems.oracles.oracle import AbstractOracle
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.settings import instance
from icgd.problems.updates import FunctionalStep, GradientStep

Target = MLP | KernelMachine | LinearModel
Update = GradientStep | FunctionalStep | ProximalStep

ORACLES: dict[type, Any] = {
    MLP: NetworkOracle,
    KernelMachine: FunctionOracle,
    LinearModel: LinearOracle,
}
"""How each kind of target is really trained."""


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
        if type(self.target) not in ORACLES:
            names = [kind.__name__ for kind in ORACLES]
            kinds = f"{', '.join(names[:-1])} or {names[-1]}"
            raise SettingError.wrong_kind("target", self.target, kinds)
        self.oracle  # noqa: B018 - it checks that its parts suit each other

    @cached_property
    def oracle(self) -> AbstractOracle:
        """The real training of this target, in float64."""
        kind = ORACLES[type(self.target)]
        oracle: AbstractOracle = kind(self.target, self.loss, self.update, self.domain)
        return oracle

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
    def linear_oracle(self) -> LinearOracle:
        """The oracle, if the target is a linear model."""
        return _of_kind("oracle", self.oracle, LinearOracle)

    @property
    def function_oracle(self) -> FunctionOracle:
        """The oracle, if the target is a kernel machine."""
        return _of_kind("oracle", self.oracle, FunctionOracle)

    @property
    def network_oracle(self) -> NetworkOracle:
        """The oracle, if the target is a network."""
        return _of_kind("oracle", self.oracle, NetworkOracle)

    @property
    def box(self) -> float | None:
        """Largest size of a weight, if there are weights and they are clipped."""
        return self.oracle.box

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
