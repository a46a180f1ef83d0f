"""A problem: what is trained, on what loss, by which update, for data within which bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, Generic, TypeVar, cast

from icgd.errors import SettingError, brief
from icgd.facts import shown
from icgd.problems.domain import Domain
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.losses import Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import (
    AbstractGradientStep,
    AdamStep,
    GradientStep,
    MomentumStep,
    RmspropStep,
)
from icgd.problems.oracles.function import FunctionOracle
from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.oracles.network import NetworkOracle
from icgd.problems.oracles.oracle import AbstractOracle
from icgd.problems.settings import described, entries, finite, instance, is_row, settle
from icgd.problems.steps import FunctionalStep, ProximalStep

Target = MLP | KernelMachine | LinearModel
Update = AbstractGradientStep | FunctionalStep | ProximalStep

ORACLES: dict[type, tuple[Any, type]] = {
    MLP: (NetworkOracle, AbstractGradientStep),
    KernelMachine: (FunctionOracle, FunctionalStep),
    LinearModel: (LinearOracle, ProximalStep),
}
"""How each kind of target is really trained, and by which update."""


UPDATES_IN_WORDS: dict[type, str] = {
    AbstractGradientStep: "GradientStep, MomentumStep, AdamStep or RmspropStep",
    FunctionalStep: "FunctionalStep",
    ProximalStep: "ProximalStep",
}

NEEDS = {"norm_eps": "norms", "biases": "biases", "shortcuts": "shortcuts", "norms": "norms"}
"""Fields that the data of a target lack, unless this one is set."""

Kind = TypeVar("Kind")
Made = TypeVar("Made")


class PartOfKind(Generic[Kind]):
    """A property of `Problem`: its part of this name, if that is of this kind."""

    def __init__(self, name: str, kind: Callable[..., Kind]) -> None:
        self.name, self.kind = name, kind

    def __get__(self, problem: Problem, owner: type[Problem]) -> Kind:
        part = getattr(problem, self.name)
        instance(self.name, part, cast(type, self.kind))
        return cast(Kind, part)


@shown
@dataclass(frozen=True)
class Problem:
    """One training problem; plain data, comparable and savable.

    A network's weights are trained by gradient steps on any loss, a kernel machine's function by
    functional steps on the squared loss, a linear model's coefficients by proximal steps on the
    loss that matches its link.

    Args:
        target: what is trained: an `MLP`, a `KernelMachine` or a `LinearModel`.
        loss: the name of the loss, such as "squared" or "logistic"; "matching" for a linear model.
        update: a `GradientStep` or another optimiser, a `FunctionalStep` or a `ProximalStep`.
        domain: bounds on the data, which certificates rely on.
        initial: the weights that a network starts from if a run gives neither weights nor a seed.

    Raises:
        SettingError: if the parts do not suit each other.
        UnknownNameError: if no loss has this name.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> problem.update.in_words()
        'gradient steps of 0.1, box 1'
    """

    target: Target
    loss: str
    update: Update
    domain: Domain
    initial: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        instance("domain", self.domain, Domain)
        if self.initial is not None:
            settle(self, initial=_numbers("initial", self.initial))
        if type(self.target) not in ORACLES:
            names = [kind.__name__ for kind in ORACLES]
            kinds = f"{', '.join(names[:-1])} or {names[-1]}"
            raise SettingError(f"target must be of type {kinds}, got {brief(self.target)}.")
        if not isinstance(self.update, kind := ORACLES[type(self.target)][1]):
            raise SettingError(
                f"update must be of type {UPDATES_IN_WORDS[kind]}, got {brief(self.update)}."
            )
        self.oracle  # noqa: B018 - it checks that its parts suit each other

    @cached_property
    def oracle(self) -> AbstractOracle:
        """The real training of this target, in float64."""
        kind, _ = ORACLES[type(self.target)]
        oracle: AbstractOracle = kind(self.target, self.loss, self.update, self.domain)
        return oracle if self.initial is None else oracle.started_from(self.initial)

    network = PartOfKind("target", MLP)
    machine = PartOfKind("target", KernelMachine)
    model = PartOfKind("target", LinearModel)
    gradient_step = PartOfKind("update", AbstractGradientStep)
    functional_step = PartOfKind("update", FunctionalStep)
    proximal_step = PartOfKind("update", ProximalStep)
    network_oracle = PartOfKind("oracle", NetworkOracle)
    function_oracle = PartOfKind("oracle", FunctionOracle)
    linear_oracle = PartOfKind("oracle", LinearOracle)

    def facts(self) -> dict[str, str]:
        """What it shows of itself in a line or in a notebook.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> problem.facts()["domain"]
            '|x| <= 1, |y| <= 1'
        """
        return {
            "target": self.target.in_words(),
            "loss": self.loss.replace("_", " "),
            "update": self.update.in_words(),
            "domain": self.domain.in_words(),
        }

    @property
    def box(self) -> float | None:
        """The largest size of a weight, if there are weights and they are clipped."""
        return self.update.box

    @property
    def loss_function(self) -> Loss:
        """The loss itself."""
        return loss_named(self.loss)

    def to_data(self) -> dict[str, Any]:
        """This problem as JSON-ready data; what is not set is left out.

        Returns:
            A dictionary that `from_data` reads.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> problem.to_data()["update"]
            {'step_size': 0.1, 'box': 1.0}
        """
        data = asdict(self)
        for name, needed in NEEDS.items():
            if not data["target"].get(needed):
                data["target"].pop(name, None)
        for part in ("update", "domain"):
            data[part] = {name: value for name, value in data[part].items() if value is not None}
        for name in ("heads", "nesterov"):
            if not data["update"].get(name):
                data["update"].pop(name, None)
        if data["initial"] is None:
            data.pop("initial")
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Problem:
        """The problem that `to_data` described.

        Args:
            data: the dictionary.

        Returns:
            The problem.

        Raises:
            SettingError: if it is no such dictionary, or if a number in it does not suit its place.
            UnknownNameError: if a name in it is not known.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.Problem.from_data(problem.to_data()) == problem
            True
        """
        with described("problem"):
            return cls(
                target=_made(TARGETS, data["target"]),
                loss=data["loss"],
                update=_made(UPDATES, data["update"]),
                domain=Domain(**data["domain"]),
                initial=tuple(data["initial"]) if "initial" in data else None,
            )


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    """A row of finite numbers, whatever holds them."""
    if not is_row(values):
        raise SettingError(f"{name} must be a row of numbers, got {brief(values)}.")
    return tuple(finite(name, number) for number in entries(values))


def _network(widths: Iterable[int], **rest: Any) -> MLP:
    """A network; rows in data are lists."""
    rest["shortcuts"] = tuple(tuple(pair) for pair in rest.get("shortcuts", ()))
    rest["norms"] = tuple(rest.get("norms", ()))
    return MLP(tuple(widths), **rest)


def _machine(heads: Iterable[Mapping[str, Any]], **rest: Any) -> KernelMachine:
    return KernelMachine(heads=_heads(heads), **rest)


def _descent(kind: Callable[..., Update], **options: Any) -> Update:
    """A step on a network; numbers in a row are lists in data."""
    rows = {name: tuple(row) for name, row in options.items() if isinstance(row, list)}
    return kind(**options | rows)


def _functional(heads: Iterable[Iterable[Mapping[str, Any]]] = (), **rest: Any) -> FunctionalStep:
    return FunctionalStep(heads=tuple(map(_heads, heads)), **rest)


def _heads(data: Iterable[Mapping[str, Any]]) -> tuple[KernelHead, ...]:
    return tuple(KernelHead(**head) for head in data)


TARGETS: dict[str, Callable[..., Target]] = {
    "widths": _network,
    "link": LinearModel,
    "heads": _machine,
}
UPDATES: dict[str, Callable[..., Update]] = {
    "l2": ProximalStep,
    "dampening": partial(_descent, MomentumStep),
    "betas": partial(_descent, AdamStep),
    "alpha": partial(_descent, RmspropStep),
    "box": partial(_descent, GradientStep),
    "step_size": _functional,
}
"""What is made of data, by a key that the data of no later entry have."""


def _made(kinds: Mapping[str, Callable[..., Made]], data: Mapping[str, Any]) -> Made:
    """What `data` describe; the last kind says what is missing if they have no key of any kind."""
    *_, last = kinds
    return kinds[next((key for key in kinds if key in data), last)](**data)
