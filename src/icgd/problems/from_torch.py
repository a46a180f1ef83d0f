r"""A training run as people write it in PyTorch, as a problem: model, loss, optimiser.

    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain.of(X, y))

Conventions are torch's. A risk here is half the mean over examples of losses summed over outputs,
so that the gradient is multiplied by what torch's reduction makes of that: by 2 / d for a mean over
d outputs. What is not read is named, with what can be read instead.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from icgd.errors import UnreadableError, brief
from icgd.problems.data import Domain
from icgd.problems.functions import LEAK
from icgd.problems.losses import smooth_l1
from icgd.problems.mlp import MLP, NORM_EPS
from icgd.problems.optimisers import (
    AbstractGradientStep,
    AdamStep,
    GradientStep,
    MomentumStep,
    RmspropStep,
)
from icgd.problems.piecewise import Function
from icgd.problems.problem import Problem
from icgd.problems.settings import count

LEAST_BOX = 4.0
"""The box of weights that are all small; others have twice their largest."""

SKIPPED = (nn.Flatten, nn.Identity)
WIDE = 1e6
"""Activations that options of a module define are defined on [-WIDE, WIDE]."""


def _defined(name: str, knots: tuple[float, ...], *of: str) -> str:
    return Function.pieces(knots, of, name, low=-WIDE, high=WIDE).name


def _elu(module: nn.ELU) -> str:
    alpha = float(module.alpha)
    return "elu" if alpha == 1.0 else _defined("elu", (0.0,), f"{alpha!r}*(exp(x) - 1)", "x")


def _celu(module: nn.CELU) -> str:
    alpha = float(module.alpha)
    if alpha == 1.0:
        return "elu"
    return _defined("celu", (0.0,), f"{alpha!r}*(exp(x/{alpha!r}) - 1)", "x")


def _hardtanh(module: nn.Hardtanh) -> str:
    ends = float(module.min_val), float(module.max_val)
    known = {(-1.0, 1.0): "hardtanh", (0.0, 6.0): "relu6"}
    return known.get(ends) or _defined("hardtanh", ends, repr(ends[0]), "x", repr(ends[1]))


def _leaky(module: nn.LeakyReLU) -> str:
    slope = float(module.negative_slope)
    return "leaky_relu" if slope == LEAK else _defined("leaky_relu", (0.0,), f"{slope!r}*x", "x")


def _softplus(module: nn.Softplus) -> str:
    beta = float(module.beta)
    return "softplus" if beta == 1.0 else _defined("softplus", (), f"softplus({beta!r}*x)/{beta!r}")


ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Any], str], dict[str, Any]]] = {
    nn.ReLU: (lambda module: "relu", {}),
    nn.LeakyReLU: (_leaky, {}),
    nn.Tanh: (lambda module: "tanh", {}),
    nn.Sigmoid: (lambda module: "sigmoid", {}),
    nn.GELU: (lambda module: "gelu_tanh" if module.approximate == "tanh" else "gelu", {}),
    nn.SiLU: (lambda module: "silu", {}),
    nn.Softplus: (_softplus, {"threshold": 20.0}),
    nn.Mish: (lambda module: "mish", {}),
    nn.ReLU6: (lambda module: "relu6", {}),
    nn.Hardtanh: (_hardtanh, {}),
    nn.Hardswish: (lambda module: "hardswish", {}),
    nn.ELU: (_elu, {}),
    nn.SELU: (lambda module: "selu", {}),
    nn.CELU: (_celu, {}),
    nn.Softsign: (lambda module: "softsign", {}),
}
"""The name of each module that is an activation, and the options that it must have."""

IGNORED = ("foreach", "fused", "capturable", "differentiable")
"""Options of optimisers that change how a step is computed, and not what it is."""


def from_torch(
    model: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    domain: Domain,
    scheduler: Any = None,
    n_steps: int | None = None,
    batch_size: int | None = None,
    n_examples: int | None = None,
    box: float | None = None,
    average: float | None = None,
) -> Problem:
    """Turn a model, a loss and an optimiser of torch into a problem that starts at its weights.

    The arguments are not changed. A scheduler is stepped once after every step, `n_steps` times,
    on a copy. `box` bounds every weight, which torch does not: choose it so large that no weight
    reaches it (default: twice the largest initial weight, and at least 4).

    Args:
        model: An `nn.Sequential` of Linear, Flatten and Identity, with the same activation in all
            hidden layers. LayerNorm with `elementwise_affine=False` may stand right after a Linear.
            Weights in float32 are taken as they are, in float64.
        loss: MSELoss, BCEWithLogitsLoss, HuberLoss, SmoothL1Loss or CrossEntropyLoss.
        optimizer: SGD, Adam, AdamW or RMSprop over all parameters of the model, before its first
            step.
        domain: How large inputs and labels may be.
        scheduler: A scheduler of `torch.optim.lr_scheduler` that does not look at the loss.
        n_steps: The number of steps, for a scheduler.
        batch_size: How many examples a step takes; by default all.
        n_examples: The number of examples, for a loss with `reduction="sum"` without batches.
        box: The largest size of a weight.
        average: The decay of an exponential moving average of the weights, which then predicts, as
            `AveragedModel` with `get_ema_avg_fn(average)` does if it is updated after every step.

    Returns:
        The problem; its `initial` are the model's weights.

    Raises:
        UnreadableError: If a part cannot be read, or would change the result.
        SettingError: If a number is not positive.

    Example:
        >>> import icgd, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> loss = torch.nn.MSELoss()
        >>> problem = icgd.from_torch(model, loss, optimizer, domain=icgd.Domain(1.0, 1.0))
        >>> problem.update.in_words()
        'momentum steps (0.9) of 0.1, box 4'
    """
    layers = _Layers.of(model)
    target = layers.target()
    name, factor = _loss(loss, target.output_width, batch_size or n_examples)
    options = _options(optimizer, layers)
    sizes = _step_sizes(optimizer, scheduler, n_steps)
    initial = layers.initial()
    if box is None:
        largest = 2 * float(initial.abs().max())
        box = max(LEAST_BOX, 2.0 ** ceil(log2(largest)) if largest else LEAST_BOX)
    update = _update(optimizer, options, sizes, box, batch_size, factor)
    update = replace(update, average=average)
    return Problem(target, name, update, domain, initial=tuple(initial.tolist()))


@dataclass(frozen=True)
class _Layers:
    """The linear layers of a model, the activation after each, and the norms with their eps."""

    linear: tuple[nn.Linear, ...]
    activations: tuple[str, ...]
    norms: dict[int, float]

    @classmethod
    def of(cls, model: nn.Module) -> _Layers:
        linear: list[nn.Linear] = []
        activations: list[str] = []
        norms: dict[int, float] = {}
        for place, module in _leaves(model):
            _require_own_forward(place, module)
            where = f"{place} ({_named(module)})"
            is_activation, is_norm = type(module) in ACTIVATIONS, isinstance(module, nn.LayerNorm)
            follows_linear = bool(linear) and activations[-1] == "identity"
            if is_norm and len(linear) in norms:
                follows_linear = False
            if (is_activation or is_norm) and not follows_linear:
                raise UnreadableError(
                    f"{place} is {_named(module)}, but no linear layer stands right before it. "
                    "Every activation and every norm belongs to the Linear before it."
                )
            if isinstance(module, nn.Linear):
                linear.append(module)
                activations.append("identity")
            elif is_activation:
                name_of, options = ACTIVATIONS[type(module)]
                _require_options(where, vars(module), options)
                activations[-1] = name_of(module)
            elif isinstance(module, nn.LayerNorm):
                width = linear[-1].out_features
                expected = {"elementwise_affine": False, "normalized_shape": (width,)}
                if norms:  # all norms add the same to variances
                    expected["eps"] = next(iter(norms.values()))
                _require_options(where, vars(module), expected)
                norms[len(linear)] = module.eps
            elif not isinstance(module, SKIPPED):
                readable: list[type] = [nn.Linear, nn.LayerNorm, *ACTIVATIONS, *SKIPPED]
                known = [kind.__name__ for kind in readable]
                raise UnreadableError(
                    f"{place} is {_named(module)}, which is not read. It may be {', '.join(known)}."
                )
        if not linear:
            raise UnreadableError(
                f"The model is {_named(model)} without any Linear. Give an nn.Sequential of Linear "
                "layers and activations."
            )
        if len({id(layer.weight) for layer in linear}) < len(linear):
            raise UnreadableError(
                "The model uses the same weights in two layers. Give every layer weights of its "
                "own."
            )
        if len({layer.bias is None for layer in linear}) > 1:
            found = ["without" if layer.bias is None else "with" for layer in linear]
            raise UnreadableError(
                f"The layers of the model are {', '.join(found)} bias, in this order. Give all of "
                "them a bias, or none."
            )
        if len(set(activations[:-1])) > 1:
            raise UnreadableError(
                f"The hidden layers have the activations {', '.join(activations[:-1])}. Give all "
                "of them the same; the last layer may have another."
            )
        layers = cls(tuple(linear), tuple(activations), norms)
        for name, weights in layers.parameters():
            _require_plain(name, weights)
        return layers

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for number, layer in enumerate(self.linear, start=1):
            yield f"weight of layer {number}", layer.weight
            if layer.bias is not None:
                yield f"bias of layer {number}", layer.bias

    def target(self) -> MLP:
        widths = (self.linear[0].in_features, *(layer.out_features for layer in self.linear))
        hidden = self.activations[0] if len(self.linear) > 1 else "identity"
        return MLP(
            widths,
            hidden,
            self.activations[-1],
            biases=self.linear[0].bias is not None,
            norms=tuple(self.norms),
            norm_eps=next(iter(self.norms.values()), NORM_EPS),
        )

    def initial(self) -> Tensor:
        """Return all weights in one vector; a bias is the last column of its layer's matrix."""
        matrices = [
            layer.weight
            if layer.bias is None
            else torch.hstack([layer.weight, layer.bias[:, None]])
            for layer in self.linear
        ]
        return torch.cat([matrix.detach().double().flatten() for matrix in matrices])


def _leaves(model: nn.Module, place: str = "model") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of nested sequences with their places."""
    if not isinstance(model, nn.Sequential):
        yield place, model
        return
    _require_own_forward(place, model)
    for number, module in enumerate(model):
        yield from _leaves(module, f"{place}[{number}]")


def _require_own_forward(place: str, module: nn.Module) -> None:
    """Raise `UnreadableError` if a layer computes anything but what its class documents."""
    where = f"{place} ({_named(module)})"
    if isinstance(module, nn.Linear) and is_lazy(module.weight):
        raise UnreadableError(
            f"{where} has no weights before it sees a batch. Run the model on one batch first."
        )
    for kind in (nn.Sequential, nn.Linear, nn.LayerNorm, *SKIPPED):
        if isinstance(module, kind) and type(module).forward is not kind.forward:
            raise UnreadableError(
                f"{where} has a forward of its own, expected that of {kind.__name__}, which is the "
                "one that would be compiled."
            )
    names = ("_forward_hooks", "_forward_pre_hooks") if isinstance(module, nn.Module) else ()
    hooks = [getattr(module, name, ()) for name in names]
    _require_options(where, {"forward hooks": sum(map(len, hooks))}, {"forward hooks": 0})
    if isinstance(module, nn.Flatten):
        _require_options(where, vars(module), {"start_dim": 1, "end_dim": -1})


def _named(module: object) -> str:
    if isinstance(module, type):
        return f"the class {module.__name__}"
    return type(module).__name__


def _require_options(where: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for option, value in expected.items():
        if found.get(option, value) != value:
            raise UnreadableError(
                f"{where} has {option} = {brief(found[option])}, expected {brief(value)}. Another "
                "value would give another training run than the one that is compiled."
            )


def _require_plain(name: str, weights: Tensor) -> None:
    """Require weights on the CPU, in single or double precision, trained and finite."""
    if weights.device.type != "cpu":
        raise UnreadableError(
            f"{name} is on device {weights.device}, expected cpu. Move the model there: "
            "model.cpu()."
        )
    if weights.dtype not in (torch.float32, torch.float64):
        raise UnreadableError(
            f"{name} has dtype {weights.dtype}, expected float32 or float64. Convert the model, "
            "such as model.double()."
        )
    _require_options(name, {"requires_grad": weights.requires_grad}, {"requires_grad": True})
    if not bool(weights.isfinite().all()):
        raise UnreadableError(f"{name} has an entry that is not finite. Start from finite weights.")


def _loss(loss: nn.Module, n_outputs: int, n_examples: int | None) -> tuple[str, float]:
    """Return the name of the loss and the factor of the gradient of half its mean."""
    if type(loss) not in LOSSES:
        known = [kind.__name__ for kind in LOSSES]
        raise UnreadableError(
            f"loss is {_named(loss)}, which is not read. It may be {', '.join(known)}."
        )
    name, own_factor = LOSSES[type(loss)](loss)
    expected = {"weight": None, "pos_weight": None, "label_smoothing": 0.0, "ignore_index": -100}
    expected |= {"log_input": True, "full": False}  # of PoissonNLLLoss
    _require_options(f"loss ({_named(loss)})", vars(loss), expected)
    _require_options(f"loss ({_named(loss)})", loss._buffers, expected)
    n_means = 1 if isinstance(loss, nn.CrossEntropyLoss) else n_outputs
    reduction = getattr(loss, "reduction", "mean")
    if reduction == "mean":
        return name, 2 * own_factor / n_means
    if reduction != "sum":
        raise UnreadableError(
            f"loss has reduction = {brief(reduction)}, expected 'mean' or 'sum': a gradient needs "
            "one number."
        )
    if n_examples is None:
        raise UnreadableError(
            'The loss has reduction="sum", whose gradient grows with the number of examples. '
            "Pass n_examples or batch_size."
        )
    return name, 2 * own_factor * count("n_examples", n_examples)


LOSSES: dict[type[nn.Module], Callable[[Any], tuple[str, float]]] = {
    nn.MSELoss: lambda loss: ("squared", 1.0),
    nn.BCEWithLogitsLoss: lambda loss: ("logistic", 1.0),
    # huber is delta times smooth l1 of that width
    nn.HuberLoss: lambda loss: (smooth_l1(loss.delta).name, loss.delta),
    nn.SmoothL1Loss: lambda loss: (smooth_l1(loss.beta).name, 1.0),
    nn.CrossEntropyLoss: lambda loss: ("cross_entropy", 1.0),
    nn.L1Loss: lambda loss: ("l1", 1.0),
    nn.PoissonNLLLoss: lambda loss: ("poisson", 1.0),
}
"""How losses are called here, and how many times as large torch's are."""


def _options(optimizer: torch.optim.Optimizer, layers: _Layers) -> dict[str, Any]:
    """Return the options of an optimiser, which are the same for all parameters of the model."""
    if type(optimizer) not in OPTIMISERS:
        known = [kind.__name__ for kind in OPTIMISERS]
        raise UnreadableError(
            f"optimizer is {_named(optimizer)}, which is not read. It may be {', '.join(known)}."
        )
    if optimizer.state:
        raise UnreadableError(
            f"The optimizer {_named(optimizer)} has already taken steps, and remembers them. Give "
            "a new one, made from the model as it is now."
        )
    first, *others = [_plain(group) for group in optimizer.param_groups]
    for group in others:
        _require_options("optimizer.param_groups", group, first)
    trained = {id(part) for group in optimizer.param_groups for part in group["params"]}
    missing = [name for name, part in layers.parameters() if id(part) not in trained]
    if missing or len(trained) > len(list(layers.parameters())):
        fault = f"does not train the {', '.join(missing)}"
        fault = fault if missing else "trains other parameters too"
        raise UnreadableError(
            f"The optimizer {fault}. Give it exactly the parameters of the model."
        )
    where = f"optimizer ({_named(optimizer)})"
    unused = {"maximize": False, "amsgrad": False, "centered": False}
    _require_options(where, first, unused)
    if isinstance(optimizer, torch.optim.RMSprop):
        _require_options(where, first, {"momentum": 0})
    return first


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group that determine a step."""
    left_out = ("params", "initial_lr", *IGNORED)
    return {name: value for name, value in group.items() if name not in left_out}


def _step_sizes(
    optimizer: torch.optim.Optimizer, scheduler: Any, n_steps: int | None
) -> float | tuple[float, ...]:
    """Return the step size, or that of every step if there is a scheduler."""
    if scheduler is None:
        return float(optimizer.param_groups[0]["lr"])
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UnreadableError(
            f"The scheduler {_named(scheduler)} looks at the loss, which a compiled run cannot. "
            "Use one whose step sizes are known beforehand, such as CosineAnnealingLR."
        )
    is_one = isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    if not is_one or scheduler.optimizer is not optimizer:
        raise UnreadableError(
            "The scheduler does not belong to this optimizer, so its step sizes would not be used. "
            "Make it from the optimizer that you pass."
        )
    if n_steps is None:
        raise UnreadableError(
            f"The scheduler {_named(scheduler)} needs n_steps: it gives a step size for each step."
        )
    sizes, others = [], []
    copied = copy.deepcopy(scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimiser was not stepped before
        for _ in range(count("n_steps", n_steps)):
            group = _plain(copied.optimizer.param_groups[0])
            sizes.append(float(group.pop("lr")))
            others.append(group)
            copied.step()
    for group in others:
        _require_options(f"scheduler ({_named(scheduler)})", group, others[0])
    return tuple(sizes)


def _update(
    optimizer: torch.optim.Optimizer,
    options: Mapping[str, Any],
    sizes: float | tuple[float, ...],
    box: float,
    batch_size: int | None,
    factor: float,
) -> AbstractGradientStep:
    kind, names = OPTIMISERS[type(optimizer)]
    own = {name: _number(options[name]) for name in names if name in options}
    if isinstance(optimizer, torch.optim.SGD) and not own["momentum"] and not own["weight_decay"]:
        if isinstance(sizes, tuple):
            return GradientStep(tuple(factor * size for size in sizes), box, batch_size)
        return GradientStep(factor * sizes, box, batch_size)
    if isinstance(optimizer, torch.optim.AdamW) or options.get("decoupled_weight_decay"):
        own["decoupled"] = True
    update: AbstractGradientStep = kind(sizes, box, batch_size, gradient_scale=factor, **own)
    return update


def _number(value: Any) -> Any:
    """Return an option as a plain number, a flag or a tuple of numbers."""
    if isinstance(value, tuple | list):
        return tuple(map(float, value))
    return value if isinstance(value, bool) else float(value)


OPTIMISERS: dict[type[torch.optim.Optimizer], tuple[Callable[..., Any], Sequence[str]]] = {
    torch.optim.SGD: (MomentumStep, ("momentum", "dampening", "nesterov", "weight_decay")),
    torch.optim.Adam: (AdamStep, ("betas", "eps", "weight_decay")),
    torch.optim.AdamW: (AdamStep, ("betas", "eps", "weight_decay")),
    torch.optim.RMSprop: (RmspropStep, ("alpha", "eps", "weight_decay")),
}
"""What optimisers are here, and which of their options say what a step does."""


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write named weights of a network (weights_1, bias_1, ...) into a model of its shape."""
    layers = _Layers.of(model)
    named = dict(weights)
    with torch.no_grad():
        pairs = [
            (part, named.get(f"{kind}_{number}"), f"{kind}_{number}")
            for number, layer in enumerate(layers.linear, start=1)
            for kind, part in (("weights", layer.weight), ("bias", layer.bias))
            if part is not None
        ]
        for part, value, name in pairs:
            shape = None if value is None else tuple(value.shape)
            if shape != tuple(part.shape):
                found = "is not there" if shape is None else f"has shape {shape}"
                raise UnreadableError(
                    f"{name} of the run {found}, where the model expects {tuple(part.shape)}. Load "
                    "into a model of the shape that was compiled; of a batch of tasks, load one "
                    "task."
                )
        own = {name for *_, name in pairs}
        for name, value in named.items():
            if name.startswith(("weights_", "bias_")) and name not in own:
                raise UnreadableError(
                    f"{name} of the run has shape {tuple(value.shape)}, where the model has no "
                    "such weights. Load into a model of the shape that was compiled."
                )
        for part, value, _ in pairs:
            part.copy_(part if value is None else value)
