r"""Read a PyTorch training script (model, loss, optimiser) as a `Problem`.

    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain.of(X, y))

Conventions are torch's. icgd minimises half the mean over examples of losses summed over outputs,
so the gradient is multiplied by the factor that torch's reduction implies: 2 / d for a mean over d
outputs. All obstacles are collected and reported in one message, each with a remedy.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from icgd.errors import SettingError, UnreadableError, quoted
from icgd.problems.data import Domain
from icgd.problems.losses import POISSON, smooth_l1
from icgd.problems.optimisers import (
    CHECKS,
    AbstractGradientStep,
    AdamStep,
    GradientStep,
    MomentumStep,
    RmspropStep,
    Schedule,
)
from icgd.problems.preprocessing import Preprocessing
from icgd.problems.problem import Problem
from icgd.problems.settings import count
from icgd.problems.torch_model import Network, Refuse, called, read_model, require_options

LEAST_BOX = 4.0
"""The smallest default box; large initial weights make it twice the largest of them."""

IGNORED = ("foreach", "fused", "capturable", "differentiable")
"""Options of optimisers that change how a step is computed, but not its result."""

OF_GROUPS = ("lr", "weight_decay")
"""The options in which parameter groups may differ."""

PERIODS = ("batch", "epoch")
"""The periods after which a script may step its scheduler."""


def from_torch(
    model: nn.Module,
    loss: nn.Module | Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    domain: Domain,
    scheduler: Any = None,
    scheduler_per: str | None = None,
    n_steps: int | None = None,
    batch_size: int | None = None,
    n_examples: int | None = None,
    epochs: int | None = None,
    generator: torch.Generator | None = None,
    box: float | None = None,
    average: float | None = None,
) -> Problem:
    """Turn a model, a loss and an optimiser of torch into a problem that starts at its weights.

    The arguments are not changed: a scheduler is stepped on a copy. `box` bounds every weight,
    which torch does not: choose it so large that no weight reaches it (default: twice the largest
    initial weight, and at least 4).

    With `epochs`, steps take the batches of a `DataLoader` of `batch_size`: in the order of the
    data, or shuffled by a `generator`, which is used as the DataLoader would. The problem remembers
    the order, and runs take the X and y of the script.

    Args:
        model: An `nn.Sequential`, or a module of your own, that computes a chain of layers of
            Linear, LayerNorm and activations, with sums of earlier values as shortcuts. Frozen
            parameters stay fixed. Weights in float32 are converted to float64.
        loss: MSELoss, BCEWithLogitsLoss, HuberLoss, SmoothL1Loss, L1Loss, PoissonNLLLoss or
            CrossEntropyLoss, or the function of `torch.nn.functional` of one of them, also with
            options by `functools.partial`.
        optimizer: SGD, Adam, AdamW or RMSprop over all parameters of the model, before its first
            step. Its groups may differ in lr and weight_decay.
        domain: Bounds on inputs and labels.
        scheduler: A scheduler of `torch.optim.lr_scheduler` that does not depend on the loss.
        scheduler_per: "batch" or "epoch": how often the script calls `scheduler.step()`. Required
            with epochs of several batches; otherwise it is called after every step.
        n_steps: The number of steps, for a scheduler without epochs.
        batch_size: How many examples a step takes; by default all.
        n_examples: The number of examples, for epochs, and for a loss with `reduction="sum"`
            without batches.
        epochs: The number of passes through the data in batches of `batch_size`, the last of
            which may be smaller.
        generator: The generator that shuffles the data before every epoch, in its state before
            the first.
        box: The largest size of a weight. PoissonNLLLoss requires it.
        average: The decay of an exponential moving average of the weights, which then predicts, as
            `AveragedModel` with `get_ema_avg_fn(average)` does if it is updated after every step.

    Returns:
        The problem; its `initial` are the model's weights.

    Raises:
        UnreadableError: If the script cannot be read; the message lists all obstacles.
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
    obstacles: list[str] = []
    refuse = obstacles.append
    network = read_model(model, refuse)
    batches = _batches(epochs, generator, n_examples, batch_size, refuse)
    if batches:
        if n_steps not in (None, len(batches)):
            refuse(
                f"n_steps={n_steps}, where {epochs} epochs are {len(batches)} batches. Leave "
                "n_steps out."
            )
        batch_size, n_steps = len(batches[0]), len(batches)
    n_outputs = network.layers[-1].width if network else None
    name, factor, preprocessing = _loss(loss, n_outputs, batch_size or n_examples, refuse)
    if name == POISSON.name and box is None:
        refuse(
            "PoissonNLLLoss needs box=...: its slope, exp(prediction), is approximated for all "
            "predictions that the box allows, and the default box leaves no accurate digit of it. "
            "Pass a box little larger than the weights get, and compile with many pieces."
        )
    options = _options(optimizer, network, refuse)
    n_between = _steps_between(scheduler, scheduler_per, batches, epochs, refuse)
    if n_steps is None and epochs is not None:
        n_steps = 1  # the epochs were refused; look for what is wrong with the scheduler itself
    sizes = _step_sizes(optimizer, scheduler, n_steps, n_between, refuse)
    if network is None or obstacles:
        raise UnreadableError(_together(obstacles))
    initial, target = network.initial(), network.target()
    if box is None:
        largest = 2 * float(initial.abs().max())
        box = max(LEAST_BOX, 2.0 ** ceil(log2(largest)) if largest else LEAST_BOX)
    update = _update(optimizer, options, sizes, network, box, batch_size, factor)
    update = replace(update, average=average)
    preprocessing = replace(preprocessing, batches=batches, flatten=network.flattens)
    if preprocessing.reduction == "sum" and batch_size is None:
        preprocessing = replace(preprocessing, n_summed=n_examples or 0)
    if preprocessing.largest_rate is not None:
        domain = replace(domain, rate=(domain.rate or 1.0) * preprocessing.largest_rate)
    return Problem(
        target,
        name,
        update,
        domain,
        initial=tuple(initial.tolist()),
        preprocessing=None if preprocessing == Preprocessing() else preprocessing,
    )


def _together(obstacles: Sequence[str]) -> str:
    """Return one message that lists all obstacles."""
    if len(obstacles) == 1:
        return obstacles[0]
    lines = (f"  {number}. {obstacle}" for number, obstacle in enumerate(obstacles, start=1))
    return "\n".join((f"This script has {len(obstacles)} obstacles:", *lines))


def _batches(
    epochs: int | None,
    generator: torch.Generator | None,
    n_examples: int | None,
    batch_size: int | None,
    refuse: Refuse,
) -> tuple[tuple[int, ...], ...]:
    """Return the examples of every step, or an empty tuple without epochs."""
    if epochs is None:
        if generator is not None:
            refuse("generator shuffles epochs, and there are none. Pass epochs, or leave it out.")
        return ()
    missing = {"n_examples": n_examples, "batch_size": batch_size}
    if names := [name for name, value in missing.items() if value is None]:
        refuse(
            f"epochs needs {' and '.join(names)}, which say what a batch is. Pass the number of "
            "examples of the data and the batch_size of the DataLoader."
        )
        return ()
    size, rows = count("batch_size", batch_size), range(count("n_examples", n_examples))
    options: dict[str, Any] = {"shuffle": generator is not None}
    if generator is not None:
        # A real DataLoader, because it also draws a seed for its workers from the generator.
        options["generator"] = torch.Generator().set_state(generator.get_state())
    data: Any = rows  # which a DataLoader indexes like any list
    loader: Any = DataLoader(data, size, collate_fn=tuple, **options)
    return tuple(batch for _ in range(count("epochs", epochs)) for batch in loader)


def _steps_between(
    scheduler: Any,
    per: str | None,
    batches: Sequence[Sequence[int]],
    epochs: int | None,
    refuse: Refuse,
) -> int:
    """Return the number of steps after which the script steps its scheduler."""
    if per is not None and per not in PERIODS:
        refuse(f"scheduler_per is {quoted(per)}, expected 'batch' or 'epoch'.")
        return 1
    if per == "epoch" and not batches:
        refuse("scheduler_per='epoch' needs epochs. Pass epochs, n_examples and batch_size.")
        return 1
    n_batches = len(batches) // (epochs or 1)
    if scheduler is not None and per is None and n_batches > 1:
        refuse(
            f"The scheduler {called(scheduler)} may be stepped after each of the {n_batches} "
            "batches of an epoch or after the last one, which no script object tells. Pass "
            "scheduler_per='batch' or scheduler_per='epoch', as the script calls scheduler.step()."
        )
    return n_batches if per == "epoch" else 1


# The loss.


def _loss(
    loss: Any, n_outputs: int | None, n_examples: int | None, refuse: Refuse
) -> tuple[str, float, Preprocessing]:
    """Return the loss's name, the factor of the gradient of half its mean, and label preprocessing.

    A loss that is refused is replaced by the squared loss, so that other obstacles are found too.
    """
    module, fallback = _loss_module(loss, refuse), ("squared", 1.0, Preprocessing())
    if module is None:
        return fallback
    name, multiple = LOSSES[type(module)](module)
    where, options = f"loss ({called(module)})", {**vars(module), **module._buffers}
    expected = {"pos_weight": None, "ignore_index": -100}
    expected |= {"log_input": True, "full": False}  # of PoissonNLLLoss
    is_softmax = isinstance(module, nn.CrossEntropyLoss)
    if not is_softmax:
        expected["weight"] = None
    require_options(where, options, expected, refuse)
    reduction = getattr(module, "reduction", "mean")
    if reduction not in ("mean", "sum"):
        refuse(
            f"loss has reduction = {quoted(reduction)}, expected 'mean' or 'sum': a gradient needs "
            "one number. Choose the reduction that the script applies to it."
        )
        return fallback
    preprocessing = Preprocessing(reduction=reduction) if reduction == "sum" else Preprocessing()
    if is_softmax:
        weights = () if module.weight is None else tuple(module.weight.tolist())
        if n_outputs is not None and weights and len(weights) != n_outputs:
            refuse(
                f"{where} has {len(weights)} class weights, expected {n_outputs}, one for each "
                "output of the model. Give one for each class."
            )
        smoothing = float(module.label_smoothing)
        if not all(0 < weight < torch.inf for weight in weights) or not 0 <= smoothing < 1:
            refuse(
                f"{where} has weight = {list(weights)} and label_smoothing = {smoothing:g}, "
                "expected positive weights and a smoothing below 1. Leave out the examples of a "
                "class of weight 0."
            )
        else:
            preprocessing = replace(preprocessing, class_weights=weights, label_smoothing=smoothing)
    if reduction == "mean":
        n_means = 1 if is_softmax else n_outputs or 1
        return name, 2 * multiple / n_means, preprocessing
    if n_examples is None:
        refuse(
            'The loss has reduction="sum", whose gradient grows with the number of examples. '
            "Pass n_examples or batch_size."
        )
        return fallback
    return name, 2 * multiple * count("n_examples", n_examples), preprocessing


def _loss_module(loss: Any, refuse: Refuse) -> Any:
    """Return the module of a loss, which may be given as a function."""
    if type(loss) in LOSSES:
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(vars(loss)[kind] for kind in kinds) or "forward" in vars(loss):
            refuse(
                f"loss ({called(loss)}) has hooks or a forward of its own, which are not read. "
                "Remove them."
            )
        return loss
    function, options = loss, {}
    if isinstance(loss, functools.partial) and not loss.args:
        function, options = loss.func, loss.keywords
    if callable(function) and not isinstance(function, nn.Module) and function in LOSS_FUNCTIONS:
        kind = LOSS_FUNCTIONS[function]
        known_options = inspect.signature(kind).parameters
        for option in (name for name in options if name not in known_options):
            refuse(
                f"loss is {function.__name__} with {option}, which {kind.__name__} does not take. "
                "Leave it out."
            )
        return kind(**{name: value for name, value in options.items() if name in known_options})
    readable = ", ".join(kind.__name__ for kind in LOSSES)
    if isinstance(loss, nn.Module | type) or not callable(loss):
        what = called(loss)
    else:
        what = f"the function {getattr(function, '__name__', quoted(function))}"
    refuse(
        f"loss is {what}, which is not read. It may be {readable}, or their function of "
        "torch.nn.functional; another one is written as icgd.Loss(slope=...) in an icgd.Problem."
    )
    return None


LOSSES: dict[type[nn.Module], Callable[[Any], tuple[str, float]]] = {
    nn.MSELoss: lambda loss: ("squared", 1.0),
    nn.BCEWithLogitsLoss: lambda loss: ("logistic", 1.0),
    # The Huber loss is delta times the smooth l1 loss of that width.
    nn.HuberLoss: lambda loss: (smooth_l1(loss.delta).name, loss.delta),
    nn.SmoothL1Loss: lambda loss: (smooth_l1(loss.beta).name if loss.beta else "l1", 1.0),
    nn.CrossEntropyLoss: lambda loss: ("cross_entropy", 1.0),
    nn.L1Loss: lambda loss: ("l1", 1.0),
    nn.PoissonNLLLoss: lambda loss: ("poisson", 1.0),
}
"""The name of each loss here, and the multiple of it that torch's loss is."""

LOSS_FUNCTIONS: dict[Any, type[nn.Module]] = {
    functional.mse_loss: nn.MSELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.huber_loss: nn.HuberLoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.l1_loss: nn.L1Loss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
}
"""The module that is equivalent to each function; both take the same options."""


# The optimiser.


def _options(
    optimizer: torch.optim.Optimizer, network: Network | None, refuse: Refuse
) -> list[dict[str, Any]]:
    """Return the options of every parameter group, which differ in lr and weight_decay at most."""
    where = f"optimizer ({called(optimizer)})"
    if type(optimizer) not in OPTIMISERS:
        readable = ", ".join(kind.__name__ for kind in OPTIMISERS)
        refuse(f"optimizer is {called(optimizer)}, which is not read. It may be {readable}.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        return []
    if type(optimizer) in OPTIMISERS and optimizer.state:  # others may begin with a state
        refuse(
            f"The optimizer {called(optimizer)} has already taken steps, and remembers them. Give "
            "a new one, made from the model as it is now."
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        refuse(
            f"{where} has step hooks, which may change gradients or weights. Give one without "
            "hooks."
        )
    groups = _plain_groups(optimizer)
    base, *others = (number for number, trains in enumerate(_trains(optimizer)) if trains)
    first = groups[base]
    for number in others:
        group = groups[number]
        for option in (o for o in group if o not in OF_GROUPS and group[o] != first[o]):
            refuse(
                f"optimizer.param_groups[{number}] has {option} = {quoted(group[option])}, "
                f"expected {quoted(first[option])} as in group {base}: groups of a compiled step "
                f"differ in {' and '.join(OF_GROUPS)} only. Give all groups the same {option}, or "
                "freeze a group by requires_grad_(False)."
            )
    if network is not None:
        named = list(network.parameters())
        in_groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        ids = set(map(id, in_groups))
        missing = [
            name
            for name, parameter in named
            if parameter.requires_grad and id(parameter) not in ids
        ]
        if missing:
            refuse(
                f"The optimizer does not train the {', '.join(missing)}. Give it all parameters of "
                "the model, or freeze those by requires_grad_(False)."
            )
        ids_of_model = {id(parameter) for _, parameter in named}
        if any(
            parameter.requires_grad and id(parameter) not in ids_of_model for parameter in in_groups
        ):
            refuse(
                "The optimizer trains other parameters too. Give it exactly the parameters of the "
                "model."
            )
    expected: dict[str, Any] = {"maximize": False, "amsgrad": False, "centered": False}
    if isinstance(optimizer, torch.optim.RMSprop):
        expected["momentum"] = 0
    require_options(where, first, expected, refuse)
    _, names = OPTIMISERS.get(type(optimizer), (None, ()))
    for name in (name for name in names if name in first):
        try:
            CHECKS[name](f"{where}: {name}", first[name])
        except SettingError as error:
            refuse(f"{error} Change it in the script too.")
    rates = [group["lr"] for group in groups if isinstance(group["lr"], Tensor)]
    imprecise = next((rate for rate in rates if rate.dtype != torch.float64), None)
    if imprecise is not None and isinstance(optimizer, torch.optim.Adam):  # also AdamW
        refuse(
            f"{where} has lr = {quoted(imprecise)} in {imprecise.dtype}, in which torch then "
            "computes the factors of a step, expected a number or a tensor of torch.float64. Pass "
            f"lr={float(imprecise):g}."
        )
    return groups


def _plain_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of every parameter group that determine a step."""
    names = [name for name in optimizer.defaults if name not in IGNORED]
    return [{name: group[name] for name in names} for group in optimizer.param_groups]


def _trains(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Return whether each parameter group has parameters that are not frozen.

    The options of a frozen group do not matter, unless nothing is trained at all.
    """
    trains = [any(p.requires_grad for p in group["params"]) for group in optimizer.param_groups]
    return trains if any(trains) else [True] * len(trains)


def _step_sizes(
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    n_steps: int | None,
    n_between: int,
    refuse: Refuse,
) -> list[Schedule]:
    """Return the step size of every parameter group, or those of all steps with a scheduler.

    The scheduler is stepped after every `n_between` steps.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        return []
    constant: list[Schedule] = [float(group["lr"]) for group in optimizer.param_groups]
    if scheduler is None:
        if getattr(optimizer.step, "_wrapped_by_lr_sched", False):
            refuse(
                f"The optimizer {called(optimizer)} has a scheduler, which from_torch was not "
                "given. Pass it as scheduler=..., or make the optimizer without it."
            )
        if not any(
            size for size, trains in zip(constant, _trains(optimizer), strict=True) if trains
        ):
            refuse("The optimizer has lr = 0, which trains nothing. Give it a positive lr.")
        return constant
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        refuse(
            f"The scheduler {called(scheduler)} looks at the loss, which a compiled run cannot. "
            "Use one whose step sizes are known beforehand, such as CosineAnnealingLR."
        )
        return constant
    is_one = isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    if not is_one or scheduler.optimizer is not optimizer:
        refuse(
            "The scheduler does not belong to this optimizer, so its step sizes would not be used. "
            "Make it from the optimizer that you pass."
        )
        return constant
    if n_steps is None:
        refuse(
            f"The scheduler {called(scheduler)} needs n_steps: it gives a step size for each step. "
            "Pass n_steps, or epochs."
        )
        return constant
    groups_of_steps = list[list[dict[str, Any]]]()
    copied = copy.deepcopy(scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimiser was not stepped before
        for step in range(1, count("n_steps", n_steps) + 1):
            groups = _plain_groups(copied.optimizer)
            # Schedulers change a tensor in place, so it must become a number now.
            groups_of_steps.append([{**group, "lr": float(group["lr"])} for group in groups])
            if step % n_between == 0:
                copied.step()
    before = groups_of_steps[0]
    for name in sorted({*before[0]} - {"lr"}):
        changes = (
            (first[name], group[name], step)
            for step, groups in enumerate(groups_of_steps, start=1)
            for group, first in zip(groups, before, strict=True)
            if group[name] != first[name]
        )
        for old, new, step in itertools.islice(changes, 1):
            refuse(
                f"The scheduler {called(scheduler)} changes {name} from {quoted(old)} to "
                f"{quoted(new)} in step {step}, but only step sizes may change. Keep it constant, "
                "such as by cycle_momentum=False."
            )
    return [tuple(group["lr"] for group in groups) for groups in zip(*groups_of_steps, strict=True)]


def _groups(
    optimizer: torch.optim.Optimizer,
    network: Network,
    base: int,
    options: Sequence[Mapping[str, Any]],
) -> dict[str, Mapping[str, Any]]:
    """Return the options in which weights differ from those of parameter group `base`, by name.

    Fixed columns take the options of their layer's others: one rule for a layer costs less.
    """
    numbers = {
        id(parameter): number
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    groups: dict[str, Mapping[str, Any]] = {}
    for number_of_layer, layer in enumerate(network.layers, start=1):
        kinds = {"weights": (layer.weight, layer.bias)}
        if network.biases:
            kinds["bias"] = (layer.bias, layer.weight)
        for kind, candidates in kinds.items():
            number = next(
                (numbers[id(parameter)] for parameter in candidates if id(parameter) in numbers),
                base,
            )
            differing = {o: v for o, v in options[number].items() if v != options[base][o]}
            if differing:
                groups[f"{kind}_{number_of_layer}"] = differing
    return groups


def _update(
    optimizer: torch.optim.Optimizer,
    options: Sequence[Mapping[str, Any]],
    sizes: Sequence[Schedule],
    network: Network,
    box: float,
    batch_size: int | None,
    factor: float,
) -> AbstractGradientStep:
    """Return the update, by the options of the first parameter group that moves its weights."""
    trains = _trains(optimizer)
    moves = [any(size) if isinstance(size, tuple) else bool(size) for size in sizes]
    is_fixed = [not (a and b) for a, b in zip(trains, moves, strict=True)]
    if all(is_fixed):  # as in a schedule of one step that warms up from 0
        is_fixed = [not is_trained for is_trained in trains]
    frozen = {
        id(parameter)
        for group, fixed in zip(optimizer.param_groups, is_fixed, strict=True)
        for parameter in group["params"]
        if fixed
    }
    sets, base = network.sets(box, frozen), is_fixed.index(False)
    kind, names = OPTIMISERS[type(optimizer)]
    settings = {name: _number(options[base][name]) for name in names if name in options[base]}
    decays = [_number(group["weight_decay"]) for group in options]
    has_decay = any(d for d, fixed in zip(decays, is_fixed, strict=True) if not fixed)
    is_plain = isinstance(optimizer, torch.optim.SGD) and not settings["momentum"] and not has_decay
    if is_plain:  # which has no factor of the gradient: the step size takes it
        sizes = [_times(factor, size) for size in sizes]
    # The sets fix these groups, so they may share the options of the base.
    numbers = [base if fixed else number for number, fixed in enumerate(is_fixed)]
    of_groups = [{"step_size": sizes[n], "weight_decay": decays[n]} for n in numbers]
    groups = _groups(optimizer, network, base, of_groups)
    if is_plain:
        return GradientStep(sizes[base], sets, batch_size, groups=groups)
    if isinstance(optimizer, torch.optim.AdamW) or options[base].get("decoupled_weight_decay"):
        settings["decoupled"] = True
    update: AbstractGradientStep = kind(
        sizes[base], sets, batch_size, gradient_scale=factor, groups=groups, **settings
    )
    return update


def _times(factor: float, size: Schedule) -> Schedule:
    return tuple(factor * s for s in size) if isinstance(size, tuple) else factor * size


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
"""The update of each optimiser, and the options that it takes over."""


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy named weights of a network (weights_1, bias_1, ...) into a model of the same shape."""
    obstacles: list[str] = []
    network = read_model(model, obstacles.append)
    if network is None:
        raise UnreadableError(_together(obstacles))
    named, names = dict(weights), set[str]()
    loaded: list[tuple[Tensor, Tensor]] = []
    sizes = (network.n_inputs, *(layer.width for layer in network.layers))
    for number, (layer, n_inputs) in enumerate(zip(network.layers, sizes, strict=False), start=1):
        shapes: dict[str, tuple[int, ...]] = {f"weights_{number}": (layer.width, n_inputs)}
        shapes |= {f"bias_{number}": (layer.width,)} if network.biases else {}
        names |= {*shapes}
        for name, expected in shapes.items():
            value = named.get(name)
            shape = None if value is None else tuple(value.shape)
            if value is None or shape != expected:
                fault = "is not there" if shape is None else f"has shape {shape}"
                raise UnreadableError(
                    f"{name} of the run {fault}, where the model expects {expected}. Load into a "
                    "model of the shape that was compiled; of a batch of tasks, load one task."
                )
            parameter = layer.bias if name.startswith("bias") else layer.weight
            if parameter is not None:
                loaded.append(
                    (parameter, value.diagonal() if parameter.ndim < value.ndim else value)
                )
    for name, value in named.items():
        if name.startswith(("weights_", "bias_")) and name not in names:
            raise UnreadableError(
                f"{name} of the run has shape {tuple(value.shape)}, where the model has no such "
                "weights. Load into a model of the shape that was compiled."
            )
    with torch.no_grad():
        for parameter, value in loaded:
            parameter.copy_(value)
