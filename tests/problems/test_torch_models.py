"""Models of PyTorch as people write them: each is trained as torch's own loop trains it."""

import copy
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import icgd
from icgd.errors import DataError, IcgdError, SettingError, UnreadableError
from icgd.problems.from_torch import load_weights

ROUNDING = 1e-12
"""How far torch's own loop may be from the oracle's: norms divide by small numbers."""
N_STEPS = 8


class Residual(nn.Module):
    """x + r(V x), the pattern of the tutorial."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Activated(Residual):
    """An activation of the sum."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


class Feed(nn.Module):
    """The feed-forward part of a transformer: the norm first, the shortcut around all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh")).add(x)


class Written(nn.Module):
    """Layers as functions of parameters, and an output without its last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.zeros(5))
        self.gain, self.shift = nn.Parameter(torch.ones(5)), nn.Parameter(torch.zeros(5))
        self.last = nn.Linear(5, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.linear(x.view(x.size(0), -1), self.weight, self.bias)
        hidden = functional.leaky_relu(hidden, 0.2)
        hidden = functional.layer_norm(hidden, (5,), self.gain, bias=self.shift, eps=1e-3)
        hidden = functional.dropout(hidden, 0.0, self.training)
        return self.last(hidden).squeeze(-1)


class Skipping(nn.Sequential):
    """A sequence with a shortcut around it."""

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


def frozen(model: nn.Sequential, *names: str) -> nn.Sequential:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


plain = partial(nn.LayerNorm, elementwise_affine=False)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "an ordinary one": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.GELU(), nn.LayerNorm(6), nn.Dropout(0.0), nn.Linear(6, 2)
    ),
    "a norm with gain and bias": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)
    ),
    "a norm with a gain": lambda: nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.LayerNorm(4, bias=False), nn.Linear(4, 2, bias=False)
    ),
    "a norm after an activation": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), plain(4), nn.Linear(4, 2)
    ),
    "norms at both ends": lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2), nn.LayerNorm(2)),
    "two norms in a row": lambda: nn.Sequential(nn.Linear(3, 4), plain(4), plain(4), nn.ReLU()),
    "first an activation": lambda: nn.Sequential(nn.Tanh(), nn.Linear(3, 2)),
    "two activations in a row": lambda: nn.Sequential(nn.Linear(3, 2), nn.SiLU(), nn.Sigmoid()),
    "mixed activations": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.Sigmoid()
    ),
    "some biases": lambda: nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 3), nn.Linear(3, 2, bias=False)
    ),
    "dropout in eval mode": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2)
    ).eval(),
    "a frozen layer": lambda: frozen(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), "0.weight", "0.bias"
    ),
    "frozen parts": lambda: frozen(
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "1.weight", "2.bias"
    ),
    "a shortcut": lambda: nn.Sequential(
        nn.Linear(3, 4), Residual(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)
    ),
    "shortcuts in shortcuts": lambda: nn.Sequential(
        Skipping(nn.Linear(3, 3), nn.Tanh(), Residual(nn.Linear(3, 3), nn.SiLU())), nn.Linear(3, 2)
    ),
    "an activated sum": lambda: nn.Sequential(
        nn.Linear(3, 4), Activated(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Linear(4, 2)
    ),
    "a value added twice": lambda: Calling(lambda linear, x: (torch.tanh(linear(x)) + x) + x),
    "feed-forward blocks": lambda: nn.Sequential(nn.Linear(3, 4), Feed(), Feed(), nn.Linear(4, 2)),
    "functions": Written,
    "two functions of one name": lambda: Calling(
        lambda linear, x, first, second: functional.linear(
            functional.linear(linear(x), first), second
        ),
        torch.eye(3)[:, :2].T.contiguous(),
        torch.eye(2),
    ),
    "a sum in place": lambda: Calling(lambda linear, x: added_in_place(linear(x), x)),
}


def added_in_place(hidden: Tensor, x: Tensor) -> Tensor:
    hidden += x
    return hidden


class Calling(nn.Module):
    """A forward that is a function."""

    def __init__(self, function: Callable[..., Tensor], *parameters: Tensor) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(3, 3), function
        self.parts = nn.ParameterList(parameters)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear, x, *self.parts)


def overwriting(linear: nn.Module, x: Tensor) -> Tensor:
    hidden = linear(x)
    return functional.relu(hidden, inplace=True) + hidden


RESHAPES = {
    "view": lambda linear, x: linear(x.view(-1, 3)),
    "reshape": lambda linear, x: linear(x.reshape((x.shape[0], -1))),
    "flatten": lambda linear, x: linear(torch.flatten(x, 1)),
    "a method": lambda linear, x: linear(x.flatten(start_dim=1)),
}
UNREAD = {
    "a product": (lambda linear, x: linear(x) * 2, "mul() in model is not read"),
    "a constant": (lambda linear, x: linear(x) + 1.0, "add() in model is not read"),
    "columns": (lambda linear, x: linear(x) + x[:, :1], "getitem() in model is not read"),
    "a factor of a sum": (
        lambda linear, x: torch.add(linear(x), x, alpha=2),
        "add() in model is not read",
    ),
    "shares": (
        lambda linear, x: functional.log_softmax(linear(x), dim=-1),
        "CrossEntropyLoss takes the scores. Leave it out",
    ),
    "twice": (lambda linear, x: (lambda h: h + h)(linear(x)), "adds a layer to itself"),
    "overwritten": (overwriting, "relu() in model overwrites a value that is read elsewhere"),
    "other axes": (lambda linear, x: linear(x.view(x.size(1), -1)), "view() in model is not read"),
    "another result": (lambda linear, x: (linear(x), x), "something other than one tensor"),
}


class StraightThrough(torch.autograd.Function):
    """A function whose backward is not the derivative of its forward, and which adds no node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def without_gradients(linear: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = linear(x)
    return hidden + x


def in_autocast(linear: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linear(x)


def with_result_unused(overwrite: Callable[[Tensor], Any]) -> Callable[..., Tensor]:
    def forward(linear: nn.Module, x: Tensor) -> Tensor:
        hidden = linear(x)
        overwrite(hidden)
        return hidden

    return forward


def adding_to_an_alias(linear: nn.Module, x: Tensor) -> Tensor:
    hidden = linear(x)
    alias = hidden
    alias += x
    return torch.tanh(alias) + hidden


def scaling_an_alias(linear: nn.Module, x: Tensor) -> Tensor:
    hidden = linear(x)
    alias = hidden
    alias *= 2
    return hidden


UNUSED = "and does not use the result"
UNREAD |= {
    "no gradients": (without_gradients, "computes _0_linear without gradients"),
    "autocast": (in_autocast, "in the low precision of torch.autocast"),
    "a backward of its own": (
        lambda linear, x: StraightThrough.apply(linear(x)),
        "StraightThrough is a torch.autograd.Function",
    ),
    "an alias added to": (adding_to_an_alias, "overwrites a value that is read elsewhere"),
    "an alias scaled": (scaling_an_alias, UNUSED),
    "overwritten by a method": (with_result_unused(lambda h: h.relu_()), UNUSED),
    "overwritten by a function": (
        with_result_unused(partial(functional.relu, inplace=True)),
        UNUSED,
    ),
    "overwritten by position": (with_result_unused(lambda h: functional.relu(h, True)), UNUSED),
    "overwritten by out": (with_result_unused(lambda h: torch.tanh(h, out=h)), UNUSED),
    "a weight of one axis": (
        lambda linear, x: functional.linear(linear(x), linear.bias),
        "linear() in model has parameters of the shapes [(3,)]",
    ),
    "a computed shape": (
        lambda linear, x: functional.layer_norm(linear(x), x.shape[-1:]),
        "normalises a shape that is computed",
    ),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_a_forward_may_flatten_in_any_way(name):
    model = Calling(RESHAPES[name]).double()
    optimizer = SGD(model.parameters(), lr=0.1)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0))
    assert problem.network == icgd.MLP((3, 3), biases=True)
    x, y = torch.rand(4, 1, 3), torch.rand(4, 3)
    assert icgd.as_task(problem, x, y).x.shape == (4, 3)


@pytest.mark.parametrize("name", UNREAD)
def test_what_a_forward_computes_is_never_left_out(name):
    function, message = UNREAD[name]
    model = Calling(function)
    with pytest.raises(UnreadableError, match=re.escape(message)):
        icgd.from_torch(
            model, nn.MSELoss(), SGD(model.parameters(), lr=1), domain=icgd.Domain(1.0, 1.0)
        )


def shared_memory(model: nn.Sequential) -> None:
    model[2].weight.data = model[0].weight.data


HOOKED: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "a gradient": (
        lambda model, loss, optimizer: model[0].weight.register_hook(lambda g: g.clamp(-1, 1)),
        "weight of model[0] has a hook",
    ),
    "an accumulated gradient": (
        lambda model, loss, optimizer: model[2].bias.register_post_accumulate_grad_hook(print),
        "bias of model[2] has a hook",
    ),
    "a backward": (
        lambda model, loss, optimizer: model[1].register_full_backward_hook(print),
        "model[1] (Tanh) has 1 backward hook",
    ),
    "before a backward": (
        lambda model, loss, optimizer: model[1].register_full_backward_pre_hook(print),
        "model[1] (Tanh) has 1 backward hook",
    ),
    "a step": (
        lambda model, loss, optimizer: optimizer.register_step_pre_hook(print),
        "optimizer (SGD) has step hooks",
    ),
    "a loss": (
        lambda model, loss, optimizer: loss.register_forward_hook(print),
        "loss (MSELoss) has hooks",
    ),
    "a forward of a loss": (
        lambda model, loss, optimizer: setattr(loss, "forward", functional.l1_loss),
        "a forward of its own",
    ),
    "a scheduler": (
        lambda model, loss, optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "has a scheduler, which from_torch was not given",
    ),
    "memory": (
        lambda model, loss, optimizer: shared_memory(model),
        "uses the same weights in two layers",
    ),
}


@pytest.mark.parametrize("name", HOOKED)
def test_what_changes_training_from_outside_is_refused(name):
    change, message = HOOKED[name]
    model, loss = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), nn.MSELoss()
    optimizer = SGD(model.parameters(), lr=0.1)
    icgd.from_torch(model, loss, optimizer, domain=icgd.Domain(1.0, 1.0))
    change(model, loss, optimizer)
    with pytest.raises(UnreadableError, match=re.escape(message)):
        icgd.from_torch(model, loss, optimizer, domain=icgd.Domain(1.0, 1.0))


class Ignoring(nn.Sequential):
    """A forward that relies on a module to overwrite its input."""

    def forward(self, input: Tensor) -> Tensor:
        hidden = self[0](input)
        self[1](hidden)
        return hidden


def test_a_module_whose_result_is_ignored_may_not_overwrite():
    model = Ignoring(nn.Linear(3, 2), nn.ReLU(inplace=True))
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnreadableError, match=UNUSED):
        icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0))


def test_weights_that_are_computed_are_refused():
    model = Calling(
        lambda linear, x, weight, bias: functional.linear(linear(x), weight, 2 * bias),
        torch.ones(2, 3),
        torch.ones(2),
    )
    with pytest.raises(UnreadableError, match="The bias of linear is computed from other"):
        icgd.from_torch(
            model, nn.MSELoss(), SGD(model.parameters(), lr=1), domain=icgd.Domain(1.0, 1.0)
        )


def made(name: str) -> nn.Module:
    torch.manual_seed(4)
    return MODELS[name]().double()


def data(n_examples: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n_examples, 3, generator=generator, dtype=torch.float64).clamp(-2, 2)
    return x, torch.rand(n_examples, 2, generator=generator, dtype=torch.float64)


def trained(
    model: nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    scheduler: Any = None,
    every: int = 1,
) -> list[list[Tensor]]:
    """The parameters before the first step and after every step of torch's own loop."""
    history = [[part.detach().clone() for part in model.parameters()]]
    for number, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        if scheduler is not None and number % every == 0:
            scheduler.step()
        history.append([part.detach().clone() for part in model.parameters()])
    return history


def distance(
    model: nn.Module, problem: icgd.Problem, task: icgd.Task, history: Tensor, real: list[Any]
) -> float:
    """The largest distance of any parameter after any step, written back into a model."""
    own, largest = copy.deepcopy(model), 0.0
    for weights, parts in zip(history, real, strict=True):
        load_weights(own, problem.oracle.by_name(task, weights))
        gaps = [(a.detach() - b).abs().max() for a, b in zip(own.parameters(), parts, strict=True)]
        largest = max(largest, float(max(gaps)))
    return largest


def labels_of(name: str, y: Tensor) -> Tensor:
    """The labels that a model has: some have one output, and some four."""
    if name == "functions":
        return y[:, 0]
    if name in ("a value added twice", "a sum in place"):
        return torch.cat([y, y[:, :1]], dim=-1)
    return torch.cat([y, y], dim=-1) if name == "two norms in a row" else y


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_in_torch(name):
    model, (x, y) = made(name), data()
    y = labels_of(name, y)
    optimizer = AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(2.0, 1.0))
    task = icgd.as_task(problem, x, y, queries=x)
    before = model(x).detach()
    torch.testing.assert_close(
        problem.oracle.predict(task, task.initial).view_as(before), before, rtol=0, atol=1e-12
    )
    start = copy.deepcopy(model)
    real = trained(model, nn.MSELoss(), optimizer, [(x, y)] * N_STEPS)
    history = problem.oracle.train(task, N_STEPS)
    assert distance(start, problem, task, history, real) < ROUNDING
    assert max(float((a - b).abs().max()) for a, b in zip(real[0], real[-1], strict=True)) > 0.05


def test_learnable_runs_refuse_what_they_would_leave_out():
    problem = shuffled_problem()
    compiled = icgd.compile(problem, "relu-stack")
    with pytest.raises(SettingError, match="4 batches of 6 examples, and gradients cannot pass"):
        icgd.LearnableRun(compiled)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("an ordinary one", 1e-3),
        ("an activated sum", 1e-9),
        ("some biases", 1e-11),
        ("frozen parts", 1e-3),
        ("mixed activations", 1e-3),
    ],
)
def test_relu_stack_trains_it_within_what_is_proved(name, most):
    model, (x, y) = made(name), data()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(2.0, 1.0))
    compiled = icgd.compile(problem, "relu-stack", n_steps=3)
    report = icgd.verify(compiled, x, y, backend="fused")
    start = copy.deepcopy(model)
    real = trained(model, nn.MSELoss(), optimizer, [(x, y)] * 3)
    run, task = compiled.run(x, y), compiled.task(x, y)
    gap = distance(start, problem, task, run.parameters, real)
    assert report.verdict.holds
    assert gap <= float(report.trajectory_bounds.max()) + ROUNDING
    assert gap < most


def test_the_transformer_itself_does_what_the_fused_run_does():
    model, (x, y) = made("an ordinary one"), data(3)
    optimizer = SGD(model.parameters(), lr=0.1)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(2.0, 1.0), box=2.0)
    compiled = icgd.compile(problem, "relu-stack", n_steps=1, pieces=16)
    fused, literal = (compiled.run(x, y, backend=name) for name in ("fused", "literal"))
    torch.testing.assert_close(literal.parameters, fused.parameters, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["mixed activations", "some biases", "a frozen layer"])
def test_softmax_stack_trains_it(name):
    model, (x, y) = made(name), data()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(2.0, 1.0))
    start = copy.deepcopy(model)
    real = trained(model, nn.MSELoss(), optimizer, [(x, y)] * N_STEPS)
    compiled = icgd.compile(problem, "softmax-stack", n_steps=N_STEPS)
    run = compiled.run(x, y)
    assert distance(start, problem, compiled.task(x, y), run.parameters, real) < 1e-9
    run.load_into(start)
    torch.testing.assert_close(start(x), model(x), rtol=0, atol=1e-8)


def test_recursion_refuses_mixed_activations():
    model = made("mixed activations")
    optimizer = SGD(model.parameters(), lr=0.1)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(2.0, 1.0))
    reason = icgd.Recursion().why_not(problem)
    assert reason is not None
    assert "all its hidden layers have one activation, not gelu, tanh" in reason


def target_of(name: str) -> icgd.MLP:
    model = made(name)
    optimizer = SGD(model.parameters(), lr=0.1)
    return icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0)).network


def test_what_fits_into_a_layer_takes_no_other():
    assert target_of("a shortcut") == icgd.MLP(
        (3, 4, 4, 2), ("identity", "tanh"), biases=True, shortcuts=((1, 2),)
    )
    assert target_of("a norm after an activation") == icgd.MLP(
        (3, 4, 4, 2), ("tanh", "identity"), biases=True, norms=(2,)
    )
    assert target_of("an ordinary one") == icgd.MLP(
        (3, 6, 6, 6, 2), ("gelu", "identity", "identity"), biases=True, norms=(2,)
    )
    assert target_of("mixed activations") == icgd.MLP(
        (3, 4, 3, 2), ("gelu", "tanh"), "sigmoid", biases=True
    )


def test_fixed_weights_are_no_reason_to_warn(recwarn):
    model, (x, y) = made("an ordinary one"), data()
    optimizer = SGD(model.parameters(), lr=0.1)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(2.0, 1.0))
    icgd.compile(problem, "relu-stack", n_steps=1).run(x, y)
    assert not [str(warning.message) for warning in recwarn if "box" in str(warning.message)]


def test_images_are_flattened():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x = torch.rand(5, 1, 3, 4, dtype=torch.float64)
    y = torch.rand(5, 3, dtype=torch.float64)
    optimizer, loss = SGD(model.parameters(), lr=0.2), functional.mse_loss
    problem = icgd.from_torch(model, loss, optimizer, domain=icgd.Domain.of(x, y))
    run = icgd.compile(problem, "relu-stack", n_steps=4).run(x, y, queries=x[:2])
    trained(model, loss, optimizer, [(x, y)] * 4)
    torch.testing.assert_close(run.predictions, model(x[:2]).detach(), rtol=0, atol=1e-9)
    flat = icgd.as_task(problem, x.flatten(1), y)
    assert torch.equal(flat.x, icgd.as_task(problem, x, y).x)


# Losses.

WEIGHTS = torch.tensor([0.5, 2.0, 1.25], dtype=torch.float64)
CLASSES = torch.tensor([0, 1, 2, 1, 1, 0])
LOSSES: dict[str, tuple[Any, Any]] = {
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.2), {}),
    "class weights": (nn.CrossEntropyLoss(WEIGHTS), {}),
    "both": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2), {}),
    "both in batches": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2), {"batch_size": 3}),
    "a sum": (
        nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2, reduction="sum"),
        {"n_examples": 6},
    ),
    "a function": (partial(functional.cross_entropy, weight=WEIGHTS, label_smoothing=0.1), {}),
}


def classifier() -> nn.Sequential:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


@pytest.mark.parametrize("shares", [False, True], ids=["classes", "shares"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_classes_are_those_of_torch(name, shares):
    loss, options = LOSSES[name]
    model, x = classifier(), data()[0]
    y = torch.softmax(3 * torch.cat([x[:, 1:], x[:, :1]], 1), -1) if shares else CLASSES
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    problem = icgd.from_torch(model, loss, optimizer, domain=icgd.Domain(2.0, 1.0), **options)
    size = options.get("batch_size", 6)
    batches = [(x[rows], y[rows]) for rows in torch.arange(6).split(size)] * 4
    start = copy.deepcopy(model)
    real = trained(model, loss, optimizer, batches)
    task = icgd.as_task(problem, x, y)
    history = problem.oracle.train(task, len(batches))
    assert distance(start, problem, task, history, real) < ROUNDING
    compiled = icgd.compile(problem, "relu-stack", n_steps=2)
    report = icgd.verify(compiled, x, y, backend="fused")
    assert report.verdict.holds
    run = compiled.run(x, y)
    gap = distance(start, problem, task, run.parameters, real[:3])
    assert gap <= float(report.trajectory_bounds.max()) + ROUNDING


FUNCTIONS = {
    functional.mse_loss: nn.MSELoss(),
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss(),
    functional.l1_loss: nn.L1Loss(),
    functional.cross_entropy: nn.CrossEntropyLoss(),
    functional.poisson_nll_loss: nn.PoissonNLLLoss(),
    partial(functional.huber_loss, delta=0.5): nn.HuberLoss(delta=0.5),
    partial(functional.smooth_l1_loss, beta=0.5): nn.SmoothL1Loss(beta=0.5),
    partial(functional.smooth_l1_loss, beta=0.0): nn.L1Loss(),
}


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    "loss", [partial(functional.mse_loss, weight=torch.ones(1)), [1.0]], ids=["option", "list"]
)
def test_a_loss_that_no_module_computes_is_an_obstacle_like_others(loss):
    model = nn.Sequential(nn.Linear(3, 3), nn.Conv1d(3, 3, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnreadableError, match=r"model\[1\] is Conv1d[^\0]*loss is (mse_loss|list)"):
        icgd.from_torch(model, loss, optimizer, domain=icgd.Domain(1.0, 1.0))


@pytest.mark.parametrize(
    ("function", "module"), FUNCTIONS.items(), ids=map(str, FUNCTIONS.values())
)
def test_a_loss_may_be_a_function(function, module):
    model = classifier()
    optimizer = SGD(model.parameters(), lr=0.1)
    domain = icgd.Domain(1.0, 1.0)
    problems = [
        icgd.from_torch(model, loss, optimizer, domain=domain, box=4.0)
        for loss in (function, module)
    ]
    assert problems[0] == problems[1]


def test_groups_with_the_same_options_are_read():
    model = classifier()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    domain = icgd.Domain(1.0, 1.0)
    grouped, one = (
        icgd.from_torch(model, nn.CrossEntropyLoss(), AdamW(given, lr=0.01), domain=domain)
        for given in (groups, model.parameters())
    )
    assert grouped == one


def test_class_weights_need_batches_that_do_not_overlap():
    model, x = classifier(), data()[0]
    problem = icgd.from_torch(
        model,
        nn.CrossEntropyLoss(WEIGHTS),
        SGD(model.parameters(), lr=0.1),
        domain=icgd.Domain(2.0, 1.0),
        batch_size=4,
    )
    with pytest.raises(DataError, match="no multiple of batch_size=4"):
        icgd.as_task(problem, x, CLASSES)


# Corners, and forwards that are no functions of their input.

AT_CORNERS = (
    *((activation(), nn.MSELoss()) for activation in (nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.SELU)),
    (nn.ELU(0.5), nn.MSELoss()),
    (nn.Tanh(), nn.L1Loss()),
    (nn.Tanh(), nn.SmoothL1Loss(beta=0.0)),
)


@pytest.mark.parametrize(("activation", "loss"), AT_CORNERS, ids=str)
def test_corners_at_0_have_the_slope_of_torch(activation, loss):
    """Zero biases and rows of zeros put preactivations there, a zero output all residuals."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2)).double()
    x, y = data()
    x[:2], y[:3] = 0.0, 0.0
    with torch.no_grad():
        for part in (model[0].bias, model[2].bias):
            part.zero_()
        if not isinstance(loss, nn.MSELoss):
            model[2].weight.zero_()
    optimizer = SGD(model.parameters(), lr=0.1)
    problem = icgd.from_torch(model, loss, optimizer, domain=icgd.Domain(2.0, 1.0))
    task, start = icgd.as_task(problem, x, y), copy.deepcopy(model)
    real = trained(model, loss, optimizer, [(x, y)] * N_STEPS)
    history = problem.oracle.train(task, N_STEPS)
    assert distance(start, problem, task, history, real) < ROUNDING
    compiled = icgd.compile(problem, "relu-stack", n_steps=N_STEPS, pieces=512)
    assert distance(start, problem, task, compiled.run(x, y).parameters, real) < 1e-4


@pytest.mark.parametrize(
    ("activation", "corner", "own", "torchs"),
    [(nn.Hardtanh(), 1.0, 1.0, 0.0), (nn.ReLU6(), 6.0, 1.0, 0.0), (nn.Hardswish(), 3.0, 1.5, 1.0)],
    ids=str,
)
def test_upper_corners_have_the_slope_below(activation, corner, own, torchs):
    """As docs/tutorials/pytorch.md says: the step of such an example differs by the slopes."""
    model = nn.Sequential(nn.Linear(1, 1), activation, nn.Linear(1, 1)).double()
    with torch.no_grad():
        for part, number in zip(model.parameters(), (corner, 0.0, 0.5, 0.0), strict=True):
            part.fill_(number)
    optimizer = SGD(model.parameters(), lr=0.01)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0), box=8.0)
    x = torch.ones(1, 1, dtype=torch.float64)
    task = icgd.as_task(problem, x, 0 * x)
    moved = problem.oracle.train(task, 1)[-1][0] - corner
    nn.MSELoss()(model(x), 0 * x).backward()
    upstream = 2 * float(model(x).detach()) * 0.5
    assert float(model[0].weight.grad) == pytest.approx(torchs * upstream, abs=1e-15)
    assert float(moved) == pytest.approx(-0.01 * own * upstream, abs=1e-15)


class Counting(nn.Module):
    """A forward that counts its calls in three ways, and may depend on the count."""

    def __init__(self, depends: bool) -> None:
        super().__init__()
        self.linear, self.n_calls, self.depends = nn.Linear(3, 2), 0, depends
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("other", torch.zeros(()))
        self.last, self.seen, self.by_call = None, ["before"], {}

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        torch.rand(1)
        self.seen.append(x)
        self.by_call[self.n_calls] = x
        self.count += 1
        self.other = self.other + 1
        self.last = self.linear(x)
        return self.last.relu() if self.depends and self.n_calls > 1 else self.last


def test_a_forward_that_counts_its_calls_is_left_as_it_was():
    model = Counting(depends=False)
    optimizer, numbers = SGD(model.parameters(), lr=0.1), torch.get_rng_state()
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0))
    assert problem.target.widths == (3, 2)
    assert (model.seen, model.by_call) == (["before"], {})
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (model.n_calls, float(model.count), float(model.other), model.last) == (0, 0, 0, None)


def test_a_forward_that_changes_from_call_to_call_is_refused():
    model = Counting(depends=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnreadableError, match="computes something else when it is called again"):
        icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0))


# Epochs.


def of_loader(x: Tensor, y: Tensor, size: int, n_epochs: int, generator: Any) -> list[Any]:
    options = {} if generator is None else {"shuffle": True, "generator": generator}
    loader = DataLoader(TensorDataset(x, y), batch_size=size, **options)
    return [tuple(batch) for _ in range(n_epochs) for batch in loader]


@pytest.mark.parametrize("size", [3, 4, 10], ids=["whole", "ragged", "larger than the data"])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(WEIGHTS), nn.MSELoss()]
)
@pytest.mark.parametrize("per", ["batch", "epoch"])
def test_epochs_are_those_of_a_data_loader(size, shuffled, loss, per):
    model, (x, y) = classifier(), data()
    y = torch.cat([y, y[:, :1]], 1) if isinstance(loss, nn.MSELoss) else CLASSES
    generator = torch.Generator().manual_seed(3) if shuffled else None
    optimizer = AdamW(model.parameters(), lr=0.02)
    scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    options = {"epochs": 3, "generator": generator, "n_examples": 6, "batch_size": size}
    problem = icgd.from_torch(
        model,
        loss,
        optimizer,
        domain=icgd.Domain(2.0, 1.0),
        scheduler=scheduler,
        scheduler_per=per,
        **options,
    )
    batches = of_loader(x, y, size, 3, generator)
    start = copy.deepcopy(model)
    every = len(batches) // 3 if per == "epoch" else 1
    real = trained(model, loss, optimizer, batches, scheduler, every)
    task = icgd.as_task(problem, x, y)
    assert problem.n_steps == len(batches)
    history = problem.oracle.train(task, len(batches))
    assert distance(start, problem, task, history, real) < ROUNDING


def test_an_ordinary_script_goes_through_in_one_round(tmp_path):
    """Linear, GELU, LayerNorm, Dropout(0), Linear; AdamW; shuffled batches."""
    model, (x, y) = made("an ordinary one"), data(10)
    classes, loss = y.argmax(-1), nn.CrossEntropyLoss()
    optimizer, generator = AdamW(model.parameters(), lr=0.01), torch.Generator().manual_seed(0)
    options = {"epochs": 2, "generator": generator, "n_examples": 10, "batch_size": 4}
    domain = icgd.Domain(2.0, 1.0)
    problem = icgd.from_torch(model, loss, optimizer, domain=domain, **options)
    compiled = icgd.compile(problem)
    assert compiled.program.n_steps == 6
    compiled.save(tmp_path / "run.safetensors")
    compiled = icgd.load(tmp_path / "run.safetensors")
    assert compiled.problem == problem
    run = compiled.run(x, classes, queries=x)
    report = icgd.verify(compiled, x, classes, backend="fused")
    start = copy.deepcopy(model)
    real = trained(model, loss, optimizer, of_loader(x, classes, 4, 2, generator))
    task = compiled.task(x, classes)
    assert distance(start, problem, task, problem.oracle.train(task, 6), real) < ROUNDING
    gap = distance(start, problem, task, run.parameters, real)
    assert report.verdict.holds
    assert gap <= float(report.trajectory_bounds.max()) + ROUNDING
    assert gap < 1e-3
    run.load_into(start)
    torch.testing.assert_close(run.predictions, model(x).detach(), rtol=0, atol=1e-2)


def test_a_compiled_model_is_read_as_the_one_that_it_is():
    model, domain = classifier(), icgd.Domain(1.0, 1.0)
    loss, optimizer = nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1)
    plain, compiled = (
        icgd.from_torch(each, loss, optimizer, domain=domain)
        for each in (model, torch.compile(model))
    )
    assert plain == compiled


def shuffled_problem(generator: torch.Generator | None = None) -> icgd.Problem:
    model = classifier()
    return icgd.from_torch(
        model,
        nn.CrossEntropyLoss(),
        SGD(model.parameters(), lr=0.1),
        domain=icgd.Domain(2.0, 1.0),
        epochs=2,
        n_examples=6,
        batch_size=3,
        generator=generator or torch.Generator().manual_seed(1),
    )


def test_the_generator_is_left_as_it_was():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    problem = shuffled_problem(generator)
    assert torch.equal(generator.get_state(), before)
    assert problem == shuffled_problem()


def test_other_data_than_the_script_s_are_refused():
    with pytest.raises(DataError, match="X has 5 examples; the batches of this problem are drawn"):
        icgd.as_task(shuffled_problem(), data()[0][:5], CLASSES[:5])


def test_a_sum_is_over_as_many_examples_as_were_announced():
    model, (x, y) = classifier(), data()
    optimizer, loss = SGD(model.parameters(), lr=0.1), nn.MSELoss(reduction="sum")
    domain = icgd.Domain(2.0, 1.0)
    problem = icgd.from_torch(model, loss, optimizer, domain=domain, n_examples=5)
    with pytest.raises(
        DataError, match="X has 6 examples; the loss of this problem is a sum over 5"
    ):
        icgd.as_task(problem, x, torch.cat([y, y], -1)[:, :3])
    problem = icgd.from_torch(model, loss, optimizer, domain=domain, batch_size=3)
    assert icgd.as_task(problem, x, torch.cat([y, y], -1)[:, :3]).x.shape == (6, 3)


def test_the_epochs_say_how_many_steps_there_are():
    problem = shuffled_problem()
    assert icgd.compile(problem, "relu-stack").program.n_steps == 4
    with pytest.raises(SettingError, match="n_steps=5 is more than the 4 batches"):
        icgd.compile(problem, "relu-stack", n_steps=5)
    endless = icgd.Problem(icgd.MLP((2, 1)), "squared", icgd.GradientStep(0.1, 1.0), problem.domain)
    with pytest.raises(SettingError, match="n_steps is missing"):
        icgd.compile(endless, "relu-stack")


def test_a_task_that_is_prepared_is_not_prepared_again():
    model, x = classifier(), data()[0]
    problem = icgd.from_torch(
        model,
        nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2),
        SGD(model.parameters(), lr=0.1),
        domain=icgd.Domain(2.0, 1.0),
    )
    compiled = icgd.compile(problem, "relu-stack", n_steps=2)
    task = compiled.task(x, CLASSES)
    assert float(task.y.max()) < 1.0
    assert torch.equal(compiled.run_task(task).parameters, compiled.run(x, CLASSES).parameters)


def test_an_activation_whose_range_is_not_found_leaves_the_other_constructions(monkeypatch):
    def without_range(problem: icgd.Problem, *, gated: bool) -> str | None:
        raise SettingError("x has too many turns to find its range.")

    monkeypatch.setattr("icgd.constructions.softmax_stack.domain_objection", without_range)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0))
    assert icgd.compile(problem, n_steps=1).program.construction != "softmax-stack"
    with pytest.raises(IcgdError, match="too many turns"):
        icgd.compile(problem, "softmax-stack", n_steps=1)
