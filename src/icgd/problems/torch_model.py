r"""Read the forward of a PyTorch model as the layers of an `MLP`.

torch.fx traces the model into operations: linear maps, layer norms, activations and sums. A layer
of an `MLP` has at most one of each, in this order:

    p_j = r(norm(V_j p_{j-1} + b_j)) + p_i + ...

An operation out of this order starts a new layer with a fixed matrix: the identity for an
activation or a norm, and for the gain of a layer norm a diagonal matrix whose diagonal and bias are
trained. A `Box` with equal ends fixes weights, so constructions need no special case. Frozen
parameters and missing biases are fixed in the same way.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from icgd.errors import quoted
from icgd.problems.functions import LEAK
from icgd.problems.mlp import LEAST_EPS, MLP, NORM_EPS
from icgd.problems.piecewise import Function
from icgd.problems.sets import Box, WeightSet

Refuse = Callable[[str], None]
"""Takes the message of one obstacle: what it is, where, and the remedy."""

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
SKIPPED = (nn.Flatten, nn.Identity, *DROPOUTS)
"""Modules that pass values on; dropout is refused where it drops anything."""

REMEDIES: dict[type[nn.Module], str] = {
    nn.BatchNorm1d: "Its statistics couple the examples of a batch. Use LayerNorm",
    nn.Softmax: "CrossEntropyLoss takes the scores. Leave it out",
    nn.LogSoftmax: "CrossEntropyLoss takes the scores. Leave it out, and use that loss",
    nn.Conv1d: "A convolution shares its weights. Train it as a Linear, or leave it outside",
    nn.Conv2d: "A convolution shares its weights. Train it as a Linear, or leave it outside",
    nn.PReLU: "Its slope is trained. Use LeakyReLU",
    nn.RMSNorm: "It does not subtract the mean. Use LayerNorm",
}
"""Remedies for common modules that no layer computes."""

WIDE = 1e6
"""Activations with unusual options become functions on [-WIDE, WIDE]."""


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
    names = {(-1.0, 1.0): "hardtanh", (0.0, 6.0): "relu6"}
    return names.get(ends) or _defined("hardtanh", ends, repr(ends[0]), "x", repr(ends[1]))


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
"""The name of each activation module here, and the options that are required."""

SAME_SHAPE: dict[Any, type[nn.Module]] = {
    functional.dropout: nn.Dropout,
    functional.relu: nn.ReLU,
    functional.leaky_relu: nn.LeakyReLU,
    functional.gelu: nn.GELU,
    functional.silu: nn.SiLU,
    functional.softplus: nn.Softplus,
    functional.mish: nn.Mish,
    functional.relu6: nn.ReLU6,
    functional.hardtanh: nn.Hardtanh,
    functional.hardswish: nn.Hardswish,
    functional.elu: nn.ELU,
    functional.selu: nn.SELU,
    functional.celu: nn.CELU,
    functional.softsign: nn.Softsign,
    functional.softmax: nn.Softmax,
    functional.log_softmax: nn.LogSoftmax,
    torch.relu: nn.ReLU,
    torch.selu: nn.SELU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
"""The module that is equivalent to each function or method, with the same options."""

ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
IN_PLACE = (operator.iadd, "add_")
IN_PLACE_OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
RESHAPES = (torch.flatten, torch.reshape, "flatten", "view", "reshape")

READABLE = (nn.Linear, nn.LayerNorm, *ACTIVATIONS, *SKIPPED)


@dataclass
class Layer:
    """A layer of the network, with the model's parameters.

    `weight` is a matrix, or the diagonal of a matrix whose other entries are fixed at 0. Without a
    weight the matrix is the identity, fixed.
    """

    place: str
    width: int
    weight: Tensor | None = None
    bias: Tensor | None = None
    activation: str = "identity"
    eps: float | None = None
    sources: list[int] = field(default_factory=list)

    def matrix(
        self, n_inputs: int, frozen: Collection[int], *, biases: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the matrix, with the bias as its last column, and the mask of trained entries.

        Parameters that require no gradient and those whose ids are `frozen` are not trained.
        """

        def trains(parameter: Tensor) -> bool:
            return parameter.requires_grad and id(parameter) not in frozen

        if self.weight is None:
            matrix = torch.eye(self.width, dtype=torch.float64)
            trained = torch.zeros(self.width, self.width, dtype=torch.bool)
        elif self.weight.ndim == 1:
            matrix = torch.diag(self.weight.detach().double())
            trained = torch.eye(self.width, dtype=torch.bool) & trains(self.weight)
        else:
            matrix = self.weight.detach().double()
            trained = torch.full((self.width, n_inputs), trains(self.weight))
        if biases:
            zero = torch.zeros(self.width, dtype=torch.float64)
            column = zero if self.bias is None else self.bias.detach().double()
            learns = torch.full((self.width,), self.bias is not None and trains(self.bias))
            matrix = torch.hstack([matrix, column[:, None]])
            trained = torch.hstack([trained, learns[:, None]])
        return matrix, trained

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        kind = "gain" if self.weight is not None and self.weight.ndim == 1 else "weight"
        for name, parameter in ((kind, self.weight), ("bias", self.bias)):
            if parameter is not None:
                yield f"{name} of {self.place}", parameter


@dataclass(frozen=True)
class Network:
    """The layers of a model, the number of its inputs, and whether it flattens them."""

    layers: tuple[Layer, ...]
    n_inputs: int
    flattens: bool

    @property
    def biases(self) -> bool:
        return any(layer.bias is not None for layer in self.layers)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for layer in self.layers:
            yield from layer.parameters()

    def target(self) -> MLP:
        numbered = list(enumerate(self.layers, start=1))
        *hidden, output = (layer.activation for layer in self.layers)
        return MLP(
            (self.n_inputs, *(layer.width for layer in self.layers)),
            tuple(hidden),
            output,
            biases=self.biases,
            shortcuts=tuple((source, j) for j, layer in numbered for source in layer.sources),
            norms=tuple(j for j, layer in numbered if layer.eps is not None),
            norm_eps=next((layer.eps for layer in self.layers if layer.eps is not None), NORM_EPS),
        )

    def _matrices(self, frozen: Collection[int] = ()) -> list[tuple[Tensor, Tensor]]:
        widths = (self.n_inputs, *(layer.width for layer in self.layers))
        pairs = zip(self.layers, widths, strict=False)
        return [layer.matrix(n_inputs, frozen, biases=self.biases) for layer, n_inputs in pairs]

    def initial(self) -> Tensor:
        """Return all weights in one vector; a bias is the last column of its layer's matrix."""
        return torch.cat([matrix.flatten() for matrix, _ in self._matrices()])

    def sets(self, box: float, frozen: Collection[int] = ()) -> float | tuple[WeightSet, ...]:
        """Return the box of all weights, with equal ends for those that are fixed.

        These are the entries that no parameter has, and parameters that are not trained: those
        that require no gradient, and those whose ids are `frozen`.
        """
        matrices = self._matrices(frozen)
        if all(bool(trained.all()) for _, trained in matrices):
            return box
        return tuple(
            box
            if bool(trained.all())
            else Box(
                torch.where(trained, -box, matrix).tolist(),
                torch.where(trained, box, matrix).tolist(),
            )
            for matrix, trained in matrices
        )


# From the model to operations.


@dataclass(frozen=True)
class Operation:
    """One operation on the values of earlier ones; 0 is the input of the model."""

    kind: str  # "linear", "norm", "activation", "sum", or "unread"
    place: str
    inputs: tuple[int, ...]
    weight: Tensor | None = None
    bias: Tensor | None = None
    width: int | None = None  # where it is not that of its input
    n_inputs: int | None = None
    activation: str = "identity"
    eps: float = NORM_EPS
    in_place: bool = False


class _Value(fx.Proxy):
    """A traced value that records x += y as in-place; fx would record x = x + y."""

    def _in_place(self, function: Any, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.itruediv, other)


class _Tracer(fx.Tracer):
    """Keeps readable modules as leaves, and records the modes that a graph does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.without_gradients: list[str] = []
        self.in_autocast: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _kind_of(m) is not None or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if node.op in ("call_module", "call_function", "call_method"):
            if not torch.is_grad_enabled():
                self.without_gradients.append(node.name)
            if torch.is_autocast_enabled("cpu"):
                self.in_autocast.append(node.name)
        return node

    def trace(self, root: Any, concrete_args: Any = None) -> fx.Graph:
        # A Function whose forward returns its input leaves no node, yet its backward counts.
        apply = torch.autograd.Function.__dict__["apply"]
        setattr(torch.autograd.Function, "apply", classmethod(_refuse_function))  # noqa: B010
        try:
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                return super().trace(root, concrete_args)
        finally:
            setattr(torch.autograd.Function, "apply", apply)  # noqa: B010


CONTAINERS = (list, dict, set)


@contextmanager
def _restored(root: nn.Module) -> Iterator[None]:
    """Undo what a forward does to attributes and buffers of its modules while it is traced.

    Lists, dictionaries and sets among the attributes get back what they held: a forward may append
    its activations to a list.
    """
    attributes = [vars(module) for module in root.modules()]
    values = [value for of_module in attributes for value in of_module.values()]
    held = [(part, part.copy()) for part in (*attributes, *values) if isinstance(part, CONTAINERS)]
    buffers = [(buffer, buffer.clone()) for buffer in root.buffers()]
    try:
        yield
    finally:
        for current, before in held:
            current.clear()
            if isinstance(current, list):
                current.extend(before)
            else:
                current.update(before)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _refuse_function(function: type, *args: Any, **kwargs: Any) -> None:
    raise TypeError(f"{function.__name__} is a torch.autograd.Function with a backward of its own")


def _overwrites(node: fx.Node, root: nn.Module) -> bool:
    """Return whether an operation writes into its input."""
    target: Any = node.target
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(target), "inplace", False))
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if target in (*IN_PLACE_OPERATORS, "__setitem__") or (
        name.endswith("_") and not name.endswith("__")
    ):
        return True
    if isinstance(target, str):
        return False
    try:
        arguments = inspect.signature(target).bind_partial(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):  # built-in functions have no signature
        arguments = dict(node.kwargs)
    return bool(arguments.get("inplace")) or arguments.get("out") is not None


def _kind_of(module: nn.Module) -> Any:
    """Return the readable class of a module whose forward is that of the class, or None."""
    for kind in READABLE:
        actual: Any = type(module)
        if isinstance(module, kind) and actual.forward is kind.forward:  # type: ignore[attr-defined]
            return kind
    return None


def _module_of(node: fx.Node) -> nn.Module:
    """Return the module that is equivalent to a function call, with the options of the call."""
    target: Any = node.target
    kind = SAME_SHAPE[target]
    if kind in (nn.Softmax, nn.LogSoftmax):  # which are refused with any options
        return kind()
    if kind is not nn.Dropout:
        return kind(*node.args[1:], **node.kwargs)
    names = ("input", "p", "training", "inplace")
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return nn.Dropout(arguments.get("p", 0.5)).train(bool(arguments.get("training", True)))


def place_of(name: str) -> str:
    """Return the path of a module, such as model[2].norm, from its name in the traced wrapper."""
    parts = name.split(".")[1:]
    return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)


def called(thing: object) -> str:
    """Return the name of an object's class, for messages."""
    return f"the class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__


class _Reader:
    """Reads one model; reading continues after an obstacle, so that all are found."""

    def __init__(self, model: nn.Module, refuse: Refuse) -> None:
        model = getattr(model, "_orig_mod", model)  # the model inside a torch.compile wrapper
        self.root, self.refuse = nn.Sequential(model), refuse
        self.operations: list[Operation] = []
        self.values: dict[fx.Node, int] = {}
        self.flattens = False

    def read(self) -> int | None:
        """Fill `operations`, and return the number of the value that the model returns."""
        for name, module in self.root.named_modules():
            self._check(place_of(name), module)
        tracer = _Tracer()
        try:
            with _restored(self.root), torch.random.fork_rng(devices=()):
                graph = tracer.trace(self.root)
                again = _Tracer().trace(nn.Sequential(self.root[0]))
        except Exception as error:  # of any kind: the forward is the user's own code
            self.refuse(
                f"The forward of {called(self.root[0])} cannot be traced: "
                f"{str(error).splitlines()[0] if str(error) else called(error)}. It may not branch "
                "on values; give each branch a model of its own."
            )
            return None
        if str(again) != str(graph):
            self.refuse(
                f"The forward of {called(self.root[0])} computes something else when it is called "
                "again, as if it counted its calls or drew a random number. Make it compute the "
                "same in every step."
            )
        if tracer.without_gradients:
            self.refuse(
                f"The forward of {called(self.root[0])} computes "
                f"{', '.join(tracer.without_gradients)} without gradients, as under "
                "torch.no_grad(). Freeze those parameters by requires_grad_(False) instead."
            )
        if tracer.in_autocast:
            self.refuse(
                f"The forward of {called(self.root[0])} computes {', '.join(tracer.in_autocast)} "
                "in the low precision of torch.autocast. Leave it out."
            )
        needed = set[fx.Node]()  # the nodes that the output depends on
        for node in reversed(graph.nodes):
            if node.op == "output" or any(user in needed for user in node.users):
                needed.add(node)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        for number, node in enumerate(inputs):
            self.values[node] = 0
            if number and node in needed:
                self.refuse(
                    f"The forward of the model takes a second input, {node.name}. Put both into "
                    "one row of X."
                )
        for node in graph.nodes:
            if node.op not in ("call_module", "call_function", "call_method"):
                continue
            if node in needed:
                self._read(node)
            elif _overwrites(node, self.root):
                self.refuse(
                    f"The forward of {called(self.root[0])} overwrites a value by {node.name} and "
                    "does not use the result, so that a trace does not show what the value "
                    "becomes. Assign the result: h = relu(h)."
                )
        (result,) = next(iter(reversed(graph.nodes))).args
        if not isinstance(result, fx.Node) or result not in self.values:
            self.refuse("The model returns something other than one tensor. Return its prediction.")
            return None
        return self.values[result]

    def _check(self, place: str, module: nn.Module) -> None:
        """Refuse hooks, parametrizations and lazy weights, which no trace shows."""
        where = f"{place} ({called(module)})"
        n_hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        if n_hooks:
            self.refuse(
                f"{where} has {n_hooks} forward hook{'s' * (n_hooks > 1)}, which no trace shows. "
                "Remove them, or put what they compute into forward."
            )
        n_hooks = len(module._backward_hooks) + len(module._backward_pre_hooks)
        if n_hooks:
            self.refuse(
                f"{where} has {n_hooks} backward hook{'s' * (n_hooks > 1)}, which may change "
                "gradients. Remove them."
            )
        if is_parametrized(module):
            self.refuse(
                f"{where} is parametrized: its weights are computed from others. Call "
                "torch.nn.utils.parametrize.remove_parametrizations first."
            )
        if isinstance(module, nn.Linear) and is_lazy(module.weight):
            self.refuse(
                f"{where} has no weights before it sees a batch. Run the model on one batch first."
            )

    def _read(self, node: fx.Node) -> None:
        """Read one node of the trace; an unreadable one adds an "unread" operation."""
        sources = tuple(
            self.values[source] for source in node.all_input_nodes if source in self.values
        )
        if not sources:  # a parameter, or the shape of a value
            return
        target: Any = node.target
        if node.op == "call_module":
            module = self.root.get_submodule(target)
            self.values[node] = self._module(place_of(target), module, sources)
            return
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        scope = next(iter(reversed((node.meta.get("nn_module_stack") or {"": ("0",)}).values())))
        place = f"{name}() in {place_of(scope[0])}"
        if name in ("size", "dim") or (name == "getattr" and node.args[1] == "shape"):
            return  # only reshapes read shapes
        has_numbers = not any(isinstance(option, fx.Node) for option in self._options(node))
        if target in SAME_SHAPE and has_numbers:
            self.values[node] = self._module(place, _module_of(node), sources)
        elif (
            target in ADDITIONS
            and len(node.args) == 2
            and not node.kwargs
            and all(term in self.values for term in node.args)
        ):
            terms = tuple(self.values[term] for term in node.args if isinstance(term, fx.Node))
            in_place = target in IN_PLACE
            self.values[node] = self._add(Operation("sum", place, terms, in_place=in_place))
        elif target in RESHAPES and self._flattens(node, sources[0]):
            self.flattens, self.values[node] = True, sources[0]
        elif target is functional.linear:
            arguments = self._parameters(node, ("input", "weight", "bias"))
            self.values[node] = self._linear(place, sources, arguments["weight"], arguments["bias"])
        elif target is functional.layer_norm:
            names = ("input", "normalized_shape", "weight", "bias", "eps")
            arguments = self._parameters(node, names)
            shape = arguments["normalized_shape"]
            if not isinstance(shape, tuple | list) or not all(
                isinstance(size, int) for size in shape
            ):
                self.refuse(
                    f"{place} normalises a shape that is computed. Write its width as a number."
                )
                self.values[node] = self._add(Operation("unread", place, sources[:1]))
                return
            eps = NORM_EPS if arguments["eps"] is None else arguments["eps"]
            module = nn.LayerNorm(shape, eps, elementwise_affine=False)
            module.weight, module.bias = arguments["weight"], arguments["bias"]
            self.values[node] = self._norm(place, sources, tuple(shape), module)
        elif name == "squeeze" and self._last_width(sources[0]) == 1 and self._is_last(node):
            self.values[node] = sources[0]
        else:
            self.refuse(
                f"{place} is not read. A forward may use Linear, LayerNorm, activations, sums of "
                "two values, flatten and dropout that drops nothing. Scale inputs before the model."
            )
            self.values[node] = self._add(Operation("unread", place, sources[:1]))

    def _options(self, node: fx.Node) -> list[Any]:
        """Return the arguments of a function after its input."""
        return [*node.args[1:], *node.kwargs.values()]

    def _flattens(self, node: fx.Node, source: int) -> bool:
        """Return whether a reshape leaves one axis for each example."""
        options = self._options(node)
        if node.target in (torch.flatten, "flatten"):
            return any(options == flat for flat in ([1], [1, -1]))
        if len(options) == 1 and isinstance(options[0], list | tuple):
            options = list(options[0])
        if len(options) != 2:
            return False
        first, second = options
        if isinstance(first, fx.Node):  # x.size(0) or x.shape[0]
            return bool(first.args[-1] == 0 and second == -1)
        width = self._last_width(source)
        return bool(first == -1 and isinstance(second, int) and second == (width or second))

    def _is_last(self, node: fx.Node) -> bool:
        """Return whether a squeeze drops the axis of the single output from the result."""
        axes = self._options(node)
        ends = {user.op for user in node.users} == {"output"}
        return ends and any(axes == [axis] for axis in (-1, 1))

    def _last_width(self, value: int) -> int | None:
        while value:
            operation = self.operations[value - 1]
            if operation.width is not None:
                return operation.width
            value = operation.inputs[0]
        return None

    def _parameters(self, node: fx.Node, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the arguments of a function by name, with parameters in place of their nodes."""
        arguments: dict[str, Any] = dict.fromkeys(names)
        arguments |= {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        for name in names[1:]:
            argument = arguments[name]
            if not isinstance(argument, fx.Node) or name == "normalized_shape":
                continue
            if argument.op != "get_attr":
                self.refuse(
                    f"The {name} of {node.name} is computed from other parameters. Train it as a "
                    "parameter of its own."
                )
                arguments[name] = None
                continue
            path, _, attribute = str(argument.target).rpartition(".")
            arguments[name] = getattr(self.root.get_submodule(path), attribute)
        return arguments

    def _add(self, operation: Operation) -> int:
        self.operations.append(operation)
        return len(self.operations)

    def _module(self, place: str, module: Any, sources: tuple[int, ...]) -> int:
        """Add what a module computes, and return its value."""
        kind, where = _kind_of(module), f"{place} ({called(module)})"
        if "forward" in vars(module):
            self.refuse(f"{where} has a forward of its own. Write a class with this forward.")
        if kind is nn.Linear:
            return self._linear(place, sources, module.weight, module.bias)
        if kind is nn.LayerNorm:
            return self._norm(place, sources, tuple(module.normalized_shape), module)
        if kind in ACTIVATIONS:
            name_of, options = ACTIVATIONS[kind]
            require_options(where, vars(module), options, self.refuse)
            name, in_place = name_of(module), bool(getattr(module, "inplace", False))
            return self._add(
                Operation("activation", place, sources, activation=name, in_place=in_place)
            )
        if kind is nn.Flatten:
            self.flattens = True
            require_options(where, vars(module), {"start_dim": 1, "end_dim": -1}, self.refuse)
            return sources[0]
        if kind is nn.Identity:
            return sources[0]
        if kind in DROPOUTS:
            if module.p and module.training:
                self.refuse(
                    f"{where} has p={module.p:g} in training mode: a compiled run draws no masks. "
                    "Set p=0, or call model.eval() before if the script trains without dropout."
                )
            return sources[0]
        remedies = [remedy for unread, remedy in REMEDIES.items() if isinstance(module, unread)]
        readable = ", ".join(kind.__name__ for kind in READABLE if kind not in DROPOUTS[1:])
        remedy = remedies[0] if remedies else f"It may be {readable}"
        self.refuse(f"{place} is {called(module)}, which is not read. {remedy}.")
        return self._add(Operation("unread", place, sources[:1]))

    def _linear(
        self,
        place: str,
        sources: tuple[int, ...],
        weight: Tensor | None,
        bias: Tensor | None = None,
    ) -> int:
        if weight is None or is_lazy(weight):
            if weight is None:
                self.refuse(f"{place} has weights that are no parameters. Use nn.Linear.")
            return self._add(Operation("unread", place, sources[:1]))
        if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            shapes = [
                tuple(parameter.shape) for parameter in (weight, bias) if parameter is not None
            ]
            self.refuse(
                f"{place} has parameters of the shapes {shapes}, expected a matrix and a bias for "
                "each of its rows. Use nn.Linear."
            )
            return self._add(Operation("unread", place, sources[:1]))
        width, n_inputs = weight.shape
        return self._add(Operation("linear", place, sources, weight, bias, width, n_inputs))

    def _norm(
        self, place: str, sources: tuple[int, ...], shape: tuple[int, ...], norm: nn.LayerNorm
    ) -> int:
        if len(shape) != 1 or shape == (1,):
            self.refuse(
                f"{place} (LayerNorm) has normalized_shape = {shape}, expected one axis of at "
                "least 2 entries. Give it the width of the layer before it."
            )
            return self._add(Operation("unread", place, sources))
        if norm.eps < LEAST_EPS:
            self.refuse(
                f"{place} (LayerNorm) has eps = {norm.eps:g}, expected at least {LEAST_EPS:g}: "
                "equal numbers would be divided by 0. Give it the default, 1e-5."
            )
        return self._add(
            Operation(
                "norm", place, sources, norm.weight, norm.bias, shape[0], shape[0], eps=norm.eps
            )
        )


# From operations to layers.


class _Arrangement:
    """Packs operations into a chain of layers, each of which reads the previous one."""

    def __init__(self, operations: Sequence[Operation], result: int, refuse: Refuse) -> None:
        self.operations, self.refuse = operations, refuse
        self.n_uses = [0] * (1 + len(operations))
        for operation in operations:
            for source in operation.inputs:
                self.n_uses[source] += 1
        self.n_uses[result] += 1
        sizes = (operation.n_inputs for operation in operations)
        self.n_inputs = next((size for size in sizes if size is not None), 0)
        self.layers: list[Layer] = []
        self.layer_of = {0: 0}  # the layer that computes each value, or part of it

    def arranged(self) -> list[Layer]:
        for number, operation in enumerate(self.operations, start=1):
            self._require_unchanged(operation)
            getattr(self, operation.kind)(operation)
            self.layer_of[number] = len(self.layers)
        return self.layers

    @property
    def width(self) -> int:
        return self.layers[-1].width if self.layers else self.n_inputs

    def _require_unchanged(self, operation: Operation) -> None:
        """Refuse to overwrite a value that is read elsewhere: a trace does not show it."""
        if operation.in_place and any(
            self.n_uses[source] > 1 or source == 0 for source in operation.inputs[:1]
        ):
            self.refuse(
                f"{operation.place} overwrites a value that is read elsewhere. Leave out "
                "inplace=True, or write x = x + y for x += y."
            )

    def _require_last(self, operation: Operation, source: int) -> None:
        if self.layer_of[source] != len(self.layers):
            self.refuse(
                f"{operation.place} reads a value from before {self.layers[-1].place} again: two "
                "branches, where layers stand in one row. Only sums join an earlier value."
            )

    def _open_to(self, operation: Operation, source: int) -> Layer:
        """Return the last layer if nothing else reads it yet, or else a new identity layer."""
        self._require_last(operation, source)
        if not self.layers or self.n_uses[source] > 1:
            return self._copy(operation)
        return self.layers[-1]

    def _copy(self, operation: Operation) -> Layer:
        self.layers.append(Layer(operation.place, self.width))
        return self.layers[-1]

    def _require_width(self, operation: Operation) -> None:
        if operation.n_inputs != self.width and not self._has_unread:
            self.refuse(
                f"{operation.place} takes {operation.n_inputs} inputs and gets {self.width}. Give "
                "it as many inputs as the layer before has outputs."
            )

    @property
    def _has_unread(self) -> bool:
        return any(operation.kind == "unread" for operation in self.operations)

    def unread(self, operation: Operation) -> None:
        self._copy(operation)

    def linear(self, operation: Operation) -> None:
        self._require_last(operation, operation.inputs[0])
        self._require_width(operation)
        width = operation.width or 0
        self.layers.append(Layer(operation.place, width, operation.weight, operation.bias))

    def norm(self, operation: Operation) -> None:
        layer = self._open_to(operation, operation.inputs[0])
        self._require_width(operation)
        if layer.eps is not None or layer.activation != "identity" or layer.sources:
            layer = self._copy(operation)
        layer.eps = float(operation.eps)
        others = {other.eps for other in self.layers if other.eps not in (None, layer.eps)}
        if others:
            self.refuse(
                f"{operation.place} (LayerNorm) has eps = {layer.eps:g}, expected "
                f"{others.pop():g}, as an earlier one has: all norms of a network add the same to "
                "variances. Give all of them one eps."
            )
        if operation.weight is not None or operation.bias is not None:
            gain = operation.weight
            if gain is None:
                gain = torch.ones(self.width, dtype=torch.float64)
            self.layers.append(Layer(operation.place, self.width, gain, operation.bias))

    def activation(self, operation: Operation) -> None:
        layer = self._open_to(operation, operation.inputs[0])
        if layer.activation != "identity" or layer.sources:
            layer = self._copy(operation)
        layer.activation = operation.activation

    def sum(self, operation: Operation) -> None:
        first, last = sorted(operation.inputs, key=self.layer_of.__getitem__)
        source = self.layer_of[first]
        if source == self.layer_of[last]:
            self.refuse(
                f"{operation.place} adds a layer to itself. Multiply its weights by 2 instead."
            )
            return
        layer = self._open_to(operation, last)
        if source in layer.sources:
            layer = self._copy(operation)
        width = self.layers[source - 1].width if source else self.n_inputs
        if width != layer.width and not self._has_unread:
            self.refuse(
                f"{operation.place} adds {width} numbers to {layer.width}; a shortcut joins layers "
                "of one width. Give both the same."
            )
        layer.sources.append(source)


def read_model(model: nn.Module, refuse: Refuse) -> Network | None:
    """Read a model, or pass every obstacle to `refuse` and return None."""
    obstacles: list[str] = []
    reader = _Reader(model, obstacles.append)
    result = reader.read()
    layers: list[Layer] = []
    n_inputs = 0
    if result is not None:
        arrangement = _Arrangement(reader.operations, result, obstacles.append)
        layers, n_inputs = arrangement.arranged(), arrangement.n_inputs
        if arrangement.layer_of[result] != len(layers):
            obstacles.append(
                f"The model returns a value from before {layers[-1].place}. Return the last one."
            )
    if (
        not any(operation.kind in ("linear", "unread") for operation in reader.operations)
        and not obstacles
    ):
        obstacles.append(
            f"The model is {called(model)} without any Linear. Give an nn.Sequential of Linear "
            "layers and activations."
        )
    network = Network(tuple(layers), n_inputs, reader.flattens)
    weights = [parameter for _, parameter in network.parameters()]
    # Two parameters may share their memory, as after b.weight.data = a.weight.data.
    if len({parameter.data_ptr() or id(parameter) for parameter in weights}) < len(weights):
        obstacles.append(
            "The model uses the same weights in two layers. Give every layer weights of its own."
        )
    for name, parameter in network.parameters():
        _require_plain(name, parameter, obstacles.append)
    for obstacle in obstacles:
        refuse(obstacle)
    return None if obstacles else network


def require_options(
    where: str, options: Mapping[str, Any], expected: Mapping[str, Any], refuse: Refuse
) -> None:
    """Refuse options whose values no layer can compute."""
    for option, value in expected.items():
        if options.get(option, value) != value:
            refuse(
                f"{where} has {option} = {quoted(options[option])}, expected {quoted(value)}: no "
                "layer computes it otherwise. Change it in the script too."
            )


def _require_plain(name: str, weights: Tensor, refuse: Refuse) -> None:
    """Require weights on the CPU, in single or double precision, finite, and without hooks."""
    if weights._backward_hooks or getattr(weights, "_post_accumulate_grad_hooks", None):
        refuse(f"{name} has a hook, which may change its gradient. Remove it.")
    if weights.device.type != "cpu":
        refuse(
            f"{name} is on device {weights.device}, expected cpu. Move the model there: "
            "model.cpu()."
        )
    elif weights.dtype not in (torch.float32, torch.float64):
        refuse(
            f"{name} has dtype {weights.dtype}, expected float32 or float64. Convert the model, "
            "such as model.double()."
        )
    elif not bool(weights.isfinite().all()):
        refuse(f"{name} has an entry that is not finite. Start from finite weights.")
