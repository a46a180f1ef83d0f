"""Training problems: the target, the loss, the update and the domain of the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from inspect import signature
from typing import Any, TypeVar

from icgd.errors import SettingError, UnknownNameError, quoted
from icgd.problems.data import Domain
from icgd.problems.functions import functions_in
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.losses import SQUARED, Loss, loss_named
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import (
    CHECKS,
    AbstractGradientStep,
    AdamStep,
    GradientStep,
    MomentumStep,
    RmspropStep,
)
from icgd.problems.oracles import (
    MATCHING,
    AbstractOracle,
    FunctionOracle,
    LinearOracle,
    NetworkOracle,
)
from icgd.problems.piecewise import Function, is_written
from icgd.problems.preprocessing import Preprocessing
from icgd.problems.sets import sets_data
from icgd.problems.settings import described, entries, finite, instance, is_row, named, set_fields
from icgd.problems.steps import FunctionalStep, ProximalStep
from icgd.reprs import with_repr

Target = MLP | KernelMachine | LinearModel
Update = AbstractGradientStep | FunctionalStep | ProximalStep
Made = TypeVar("Made")

ORACLES: dict[type, tuple[Any, type, str]] = {
    MLP: (
        NetworkOracle,
        AbstractGradientStep,
        "GradientStep, MomentumStep, AdamStep or RmspropStep",
    ),
    KernelMachine: (FunctionOracle, FunctionalStep, "FunctionalStep"),
    LinearModel: (LinearOracle, ProximalStep, "ProximalStep"),
}
"""The oracle and the updates of each kind of target, and the names of the updates in messages."""

OPTIMISERS: dict[str, tuple[type[AbstractGradientStep], dict[str, Any]]] = {
    "sgd": (GradientStep, {}),
    "momentum": (MomentumStep, {}),
    "nesterov": (MomentumStep, {"nesterov": True}),
    "adam": (AdamStep, {}),
    "adamw": (AdamStep, {"decoupled": True, "weight_decay": 0.01}),  # as torch.optim.AdamW
    "rmsprop": (RmspropStep, {}),
}
"""The optimisers of networks by their names in problem files, with their defaults."""

UPDATES: dict[str, type[AbstractGradientStep]] = {
    "dampening": MomentumStep,
    "betas": AdamStep,
    "alpha": RmspropStep,
    "box": GradientStep,
}
"""Updates of networks by a field that no later one has, for data without `optimiser`."""

NEEDS = {"norm_eps": "norms", "biases": "biases", "shortcuts": "shortcuts", "norms": "norms"}
"""Fields that are omitted from a target's data unless this other field is set."""


@with_repr
@dataclass(frozen=True)
class Problem:
    """A training problem, as plain data that can be compared and saved.

    A network's weights are trained by gradient steps on any loss, a kernel machine's function by
    functional steps on the squared loss, a linear model's coefficients by proximal steps on the
    matching loss of its link.

    Args:
        target: what is trained: an `MLP`, a `KernelMachine` or a `LinearModel`.
        loss: the name of the loss, such as "squared" or "logistic", or an `icgd.Loss`; "matching"
            for a linear model.
        update: a `GradientStep` or another optimiser, a `FunctionalStep` or a `ProximalStep`.
        domain: bounds on the data, which certificates assume.
        initial: the initial weights of a network for runs that give neither weights nor a seed.
        preprocessing: the transformation of X and y before training, as in a script that
            `icgd.from_torch` read.

    Raises:
        SettingError: if the parts do not fit together.
        UnknownNameError: if no loss has this name.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> problem.update.in_words()
        'gradient steps of 0.1, box 1'
    """

    target: Target
    loss: Any  # a Loss is converted to its name
    update: Update
    domain: Domain
    initial: tuple[float, ...] | None = None
    preprocessing: Preprocessing | None = None

    def __post_init__(self) -> None:
        instance("domain", self.domain, Domain)
        if isinstance(self.loss, Loss):
            set_fields(self, loss=self.loss.name)
        if self.initial is not None:
            if not is_row(self.initial):
                raise SettingError(
                    f"initial must be a sequence of numbers, got {quoted(self.initial)}."
                )
            set_fields(self, initial=tuple(finite("initial", w) for w in entries(self.initial)))
        if type(self.target) not in ORACLES:
            raise SettingError(
                "target must be of type MLP, KernelMachine or LinearModel, got "
                f"{quoted(self.target)}."
            )
        _, kind, names = ORACLES[type(self.target)]
        if not isinstance(self.update, kind):
            raise SettingError(f"update must be of type {names}, got {quoted(self.update)}.")
        if self.preprocessing is not None:
            instance("preprocessing", self.preprocessing, Preprocessing)
            batches, size = self.preprocessing.batches, self.gradient_step.batch_size
            if batches and len(batches[0]) != size:
                raise SettingError(
                    f"preprocessing has batches of {len(batches[0])} examples, the update takes "
                    f"batch_size={size}; give both the same."
                )
        self.oracle  # noqa: B018 - raises if the parts do not fit together

    @cached_property
    def oracle(self) -> AbstractOracle:
        """Exact training of this target, in float64."""
        oracle: AbstractOracle = ORACLES[type(self.target)][0](
            self.target, self.loss, self.update, self.domain
        )
        return oracle if self.initial is None else oracle.started_from(self.initial)

    # Typed access to the parts; raises `SettingError` if the problem is of another kind.

    @property
    def network(self) -> MLP:
        """The network that is trained."""
        return instance("target", self.target, MLP)

    @property
    def machine(self) -> KernelMachine:
        """The kernel machine that is trained."""
        return instance("target", self.target, KernelMachine)

    @property
    def model(self) -> LinearModel:
        """The linear model that is trained."""
        return instance("target", self.target, LinearModel)

    @property
    def gradient_step(self) -> AbstractGradientStep:
        """The update of a network."""
        return instance("update", self.update, AbstractGradientStep)  # type: ignore[type-abstract]

    @property
    def functional_step(self) -> FunctionalStep:
        """The update of a kernel machine."""
        return instance("update", self.update, FunctionalStep)

    @property
    def proximal_step(self) -> ProximalStep:
        """The update of a linear model."""
        return instance("update", self.update, ProximalStep)

    @property
    def network_oracle(self) -> NetworkOracle:
        """The oracle of a network."""
        return instance("oracle", self.oracle, NetworkOracle)

    @property
    def function_oracle(self) -> FunctionOracle:
        """The oracle of a kernel machine."""
        return instance("oracle", self.oracle, FunctionOracle)

    @property
    def linear_oracle(self) -> LinearOracle:
        """The oracle of a linear model."""
        return instance("oracle", self.oracle, LinearOracle)

    def facts(self) -> dict[str, str]:
        """Return a summary of the problem, as shown in its repr and in notebooks.

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
            **({"data": self.preprocessing.in_words()} if self.preprocessing else {}),
        }

    @property
    def box(self) -> float | None:
        """The largest absolute value of a weight, or None if weights are not bounded."""
        update = self.update
        return update.reach if isinstance(update, AbstractGradientStep) else update.box

    @property
    def n_steps(self) -> int | None:
        """The number of steps of the schedules or the epochs, or None if any number is possible."""
        if self.preprocessing is not None and self.preprocessing.batches:
            return len(self.preprocessing.batches)
        lengths = {len(schedule) for schedule in self.update.schedules.values()}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def loss_function(self) -> Loss:
        """The loss itself."""
        return loss_named(self.loss)

    def to_data(self) -> dict[str, Any]:
        """Return this problem as JSON-ready data, without settings that are not set.

        Returns:
            A dictionary that `from_data` reads.

        Raises:
            SettingError: if the update is a rule of your own, which no data describe.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> problem.to_data()["update"]
            {'step_size': 0.1, 'box': 1.0}
        """
        known = {kind for kind, _ in OPTIMISERS.values()}
        if isinstance(self.update, AbstractGradientStep) and type(self.update) not in known:
            raise SettingError(
                f"{type(self.update).__name__} is an update rule of your own, which files cannot "
                "hold. Compile the problem again where it is needed, or share a certificate of a "
                "run, which contains the rule."
            )
        data = asdict(self)
        for name, needed in NEEDS.items():
            if not data["target"].get(needed):
                data["target"].pop(name, None)
        for part in ("update", "domain"):
            data[part] = {name: value for name, value in data[part].items() if value is not None}
        if isinstance(self.update, AbstractGradientStep):
            data["update"]["box"] = sets_data(self.update.box)
            data["update"]["groups"] = {name: dict(part) for name, part in self.update.groups}
        for name in ("heads", "nesterov", "groups"):
            if not data["update"].get(name):
                data["update"].pop(name, None)
        for name in ("initial", "preprocessing"):
            if data[name] is None:
                data.pop(name)
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Problem:
        """Return the problem described by the data of `to_data` or of a TOML file.

        Args:
            data: the dictionary. `update` may name an `optimiser` (sgd, momentum, nesterov, adam,
                adamw, rmsprop), whose coefficients then have defaults; `target` may have `kernel`
                in place of heads; `loss` may be the text of a slope u(t, y), the default is
                "squared". `functions` may define functions, by tables, that activations refer to
                by name. Other keys, such as `steps`, belong to the command line.

        Returns:
            The problem.

        Raises:
            SettingError: if `data` is not such a dictionary, or if a value in it is invalid.
            UnknownNameError: if a name in `data` is unknown.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.Problem.from_data(problem.to_data()) == problem
            True
            >>> data = problem.to_data()
            >>> data["update"] = {"optimiser": "adam", "step_size": 0.01, "box": 1.0}
            >>> icgd.Problem.from_data(data).update.in_words()
            'Adam steps (0.9, 0.999, eps 0.001) of 0.01, box 1'
        """
        with described("problem"):
            target = _target(data["target"], functions_in(data.get("functions", {})))
            return cls(
                target=target,
                loss=_loss(data.get("loss"), target),
                update=_update(data["update"], target),
                domain=_made(Domain, "[domain]", dict(data["domain"])),
                initial=_in_tuples(data.get("initial")),
                preprocessing=_preprocessing(data.get("preprocessing")),
            )


def _target(data: Mapping[str, Any], functions: Mapping[str, Function]) -> Target:
    def resolved(name: Any) -> Any:
        return functions.get(name, name) if isinstance(name, str) else name

    fields = {name: _in_tuples(value) for name, value in data.items()}
    for place in ("activation", "output_activation", "link"):
        given = fields.get(place)
        if isinstance(given, tuple):
            fields[place] = tuple(map(resolved, given))
        elif given is not None:
            fields[place] = resolved(given)
    if "widths" in fields:
        return _made(MLP, "[target]", fields)
    if "link" in fields:
        return _made(LinearModel, "[target]", fields)
    heads = fields.pop("heads", None) or ({"kernel": fields.pop("kernel", "rbf")},)
    return _made(KernelMachine, "[target]", {**fields, "heads": _heads(heads)})


def _loss(loss: Any, target: Target) -> Any:
    """Return the default loss, a loss by name, or the loss of a slope given as text in t."""
    if loss is None:
        return MATCHING if isinstance(target, LinearModel) else SQUARED.name
    is_slope = isinstance(loss, str) and re.search(r"\bt\b", loss) and not is_written(loss)
    return Loss(loss) if is_slope else loss


def _preprocessing(data: Mapping[str, Any] | None) -> Preprocessing | None:
    if data is None:
        return None
    return Preprocessing(**{name: _in_tuples(value) for name, value in data.items()})


def _update(data: Mapping[str, Any], target: Target) -> Update:
    fields = {name: _in_tuples(value) for name, value in data.items()}
    if isinstance(target, LinearModel):
        return _made(ProximalStep, "[update]", fields)
    if isinstance(target, KernelMachine):
        steps = fields.pop("heads", ())
        return _made(FunctionalStep, "[update]", {**fields, "heads": tuple(map(_heads, steps))})
    if "optimiser" in fields:
        name = fields.pop("optimiser")
        kind, defaults = named("optimiser", name, OPTIMISERS)
        groups: Any = CHECKS["groups"]("groups", fields.get("groups", ()))
        group_decays = any("weight_decay" in dict(options) for _, options in groups)
        if kind is GradientStep and fields.get("weight_decay") == 0.0 and not group_decays:
            del fields["weight_decay"]
        if kind is GradientStep and ("weight_decay" in fields or group_decays):
            kind, defaults = MomentumStep, {"momentum": 0.0}  # sgd of torch.optim has it
        return _made(kind, "[update]", {**defaults, **fields})
    kind = next((kind for field, kind in UPDATES.items() if field in fields), GradientStep)
    return _made(kind, "[update]", fields)


def _heads(data: Any) -> tuple[KernelHead, ...]:
    if not (is_row(data) and all(isinstance(head, Mapping) for head in data)):
        raise SettingError(
            f"heads must be a list of tables, such as [{{kernel = 'rbf'}}], got {quoted(data)}."
        )
    return tuple(_made(KernelHead, "heads", head) for head in data)


def _made(kind: Callable[..., Made], place: str, fields: Mapping[str, Any]) -> Made:
    """Construct `kind` from its fields; raise `UnknownNameError` for an unknown field."""
    parameters = list(signature(kind).parameters)
    for name in fields:
        if name not in parameters:
            unknown = UnknownNameError.of("key", name, known=parameters, where=f" in {place}")
            is_optimiser = any(kind is other for other, _ in OPTIMISERS.values())
            kinds = OPTIMISERS.items() if is_optimiser else ()
            owners = [other for other, (k, _) in kinds if name in signature(k).parameters]
            hint = f" {name} is a key of the optimisers {', '.join(owners)}." if owners else ""
            raise UnknownNameError(f"{unknown}{hint}")
    return kind(**fields)


def _in_tuples(value: Any) -> Any:
    """Replace the lists of JSON by the tuples of fields."""
    return tuple(map(_in_tuples, value)) if isinstance(value, list) else value
