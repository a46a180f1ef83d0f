"""ONNX: a compiled transformer as a file that onnxruntime and other tools run.

The graph maps `stream` [tasks, tokens, width] to `final_stream` of the same shape, for any number
of tasks and tokens. The repeated block is spelt out once for each step, but its weights are stored
once, with the names and shapes that they have in `compiled.transformer()`. The metadata hold the
layout of the stream, the problem and the program as JSON.

The graph uses only operations that onnxruntime has in float64. All heads of a layer run at once,
so that memory grows with heads x tokens^2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce, singledispatch
from math import inf, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from icgd.compiled import Compiled
from icgd.errors import ExportError, FileError, MissingExtraError, ProgramError, brief
from icgd.exports.streams import as_batch
from icgd.layers import (
    ActivationAttention,
    Headed,
    Itself,
    KernelAttention,
    MLPLayer,
    ProductLayer,
    SequenceAttention,
    SoftmaxAttention,
)
from icgd.problems.data import DTYPES, dtype_named
from icgd.problems.kernel_machine import SHAPES
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Stream
from icgd.weights.files import FORMAT, whole_file

try:
    import onnx
except ImportError:  # the extra `onnx` is not installed
    onnx = None


@dataclass
class Graph:
    """A graph in the making: nodes in running order, and constants by name."""

    activation: Callable[[Graph, str], str]
    dtype: torch.dtype
    place: str = ""
    """What the next nodes are called after."""
    layer: Layer | None = None
    """The layer of the program that they spell out."""
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def constant(self, name: str, value: Tensor) -> str:
        self.constants[name] = onnx.numpy_helper.from_array(value.numpy(), name)
        return name

    def axes(self, *axes: int) -> str:
        """A list of axes, which some operations take as an input."""
        return self.constant(f"axes {axes}", torch.tensor(axes))

    def index(self, place: int) -> str:
        """A place along an axis, which is removed."""
        return self.constant(f"index {place}", torch.tensor(place))

    def number(self, value: float) -> str:
        return self.constant(f"number {value!r}", torch.tensor(value, dtype=self.dtype))

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node; its result is called `output`, by default after its place."""
        name = f"{self.place}/{operation} {len(self.nodes)}"
        output = output or name
        self.nodes.append(onnx.helper.make_node(operation, inputs, [output], name, **attributes))
        return output

    def proto(self, width: int) -> Any:
        """The whole graph, from `stream` to `final_stream`."""
        number = tensor_type(self.dtype)
        ends = [
            onnx.helper.make_tensor_value_info(name, number, ["tasks", "tokens", width])
            for name in ("stream", "final_stream")
        ]
        constants = list(self.constants.values())
        return onnx.helper.make_graph(self.nodes, "icgd", ends[:1], ends[1:], constants)


def tensor_type(dtype: torch.dtype) -> int:
    """ONNX's number for a type."""
    names = {torch.float64: "DOUBLE", torch.float32: "FLOAT"}
    return int(onnx.TensorProto.DataType.Value(names[dtype]))


# Kernel attention in ONNX: every kernel of icgd, written with operations that exist in float64.


Pattern = Callable[[Graph, str, str, str, float], str]
"""From a graph, queries, keys, the examples' mask and the kernel's shape to its matrix."""


def require_known_kernels(program: StackProgram) -> None:
    """Raise `ExportError` if a kernel is a function of the user's own."""
    for layer in program.block:
        for part in layer.instructions:
            names = [term.kernel for term in getattr(part, "terms", ())]
            if own := [name for name in names if name not in PATTERNS]:
                raise ExportError(
                    f"ONNX cannot hold the kernel {brief(own[0])}, which is a function of your "
                    f"own. It has {', '.join(PATTERNS)}. Use compiled.transformer(), a torch "
                    "module."
                )


def append_kernels(layer: KernelAttention, graph: Graph, name: str, stream: str) -> str:
    """Append every head of the layer called `name`, and return what they add to the stream."""
    place = graph.axes(layer.example_feature)
    is_example = graph.add("Greater", graph.add("Gather", stream, place, axis=2), graph.number(0.5))
    heads = enumerate(_terms(graph))
    updates = [_head(graph, name, stream, is_example, head, term) for head, term in heads]
    return reduce(partial(graph.add, "Add"), updates)


def _terms(graph: Graph) -> list[KernelTerm | Itself]:
    """The kernel of every head, or who reads itself in it."""
    steps = [] if graph.layer is None else graph.layer.instructions
    found: list[KernelTerm | Itself] = []
    for step in steps:
        if isinstance(step, DescendFunction):
            found += [*step.terms, *[Itself.EXAMPLES] * (step.noise > 0)]
            found += [Itself.TOKENS] * (step.velocity is not None)
    return found


def _head(
    graph: Graph, name: str, stream: str, is_example: str, head: int, term: KernelTerm | Itself
) -> str:
    query, key, value, output = (
        graph.add("Gather", f"{name}.{weight}", graph.index(head), axis=0)
        for weight in ("W_Q", "W_K", "W_V", "W_O")
    )
    written = graph.add("MatMul", graph.add("MatMul", stream, value), output)
    if term is Itself.TOKENS:
        return written
    if not isinstance(term, KernelTerm):
        return graph.add("Where", is_example, written, graph.number(0.0))
    mask = graph.add("Transpose", is_example, perm=[0, 2, 1])
    ends = graph.add("MatMul", stream, query), graph.add("MatMul", stream, key)
    shape = SHAPES.get(term.kernel, 0.0) if term.shape is None else term.shape
    pattern = PATTERNS[term.kernel](graph, *ends, mask, shape)
    return graph.add("MatMul", pattern, written)


def _products(graph: Graph, query: str, key: str) -> str:
    """The scores <query, key>; as in every layer, not a product with transposed keys."""
    return graph.add("Einsum", query, key, equation="bid,bjd->bij")


def _of_scores(graph: Graph, query: str, key: str, mask: str, shape: float, *, kernel: str) -> str:
    scores = _products(graph, query, key)
    if kernel == "polynomial":
        base = graph.add("Add", scores, graph.number(1.0))
        scores = graph.add("Pow", base, graph.number(shape))
    elif kernel != "linear":
        scores = graph.add({"relu": "Relu", "exp": "Exp"}[kernel], scores)
    return _of_examples(graph, mask, scores)


def _softmax(graph: Graph, query: str, key: str, mask: str, shape: float) -> str:
    scores = graph.add("Where", mask, _products(graph, query, key), graph.number(-inf))
    return graph.add("Softmax", scores, axis=-1)


def _of_distances(
    graph: Graph, query: str, key: str, mask: str, shape: float, *, kernel: str
) -> str:
    left, right = (
        graph.add("Unsqueeze", query, graph.axes(2)),
        graph.add("Unsqueeze", key, graph.axes(1)),
    )
    between = graph.add("Sub", left, right)
    sizes = graph.add("Abs", between) if kernel == "laplace" else graph.add("Mul", between, between)
    sums = graph.add("ReduceSum", sizes, graph.axes(3), keepdims=0)
    return _of_examples(graph, mask, DECAYS[kernel](graph, sums, shape))


def _of_examples(graph: Graph, mask: str, values: str) -> str:
    """The columns of the examples: where queries are, a kernel may be infinite."""
    return graph.add("Where", mask, values, graph.number(0.0))


def _decay(graph: Graph, factor: float, size: str) -> str:
    """The exponential of -factor * size."""
    return graph.add("Exp", graph.add("Mul", graph.number(-factor), size))


def _matern(graph: Graph, square: str, shape: float) -> str:
    """The polynomial of scaled = sqrt(2 nu) |u - w| by Horner's rule, times exp(-scaled)."""
    scaled = graph.add("Mul", graph.number(sqrt(2 * shape)), graph.add("Sqrt", square))
    factor = graph.number(1.0)
    for coefficient in {0.5: (), 1.5: (1.0,), 2.5: (1 / 3, 1.0)}[shape]:
        product = graph.add("Mul", graph.number(coefficient), graph.add("Mul", scaled, factor))
        factor = graph.add("Add", graph.number(1.0), product)
    return graph.add("Mul", factor, _decay(graph, 1.0, scaled))


DECAYS: dict[str, Callable[[Graph, str, float], str]] = {
    "rbf": lambda graph, square, shape: _decay(graph, 0.5, square),
    "laplace": lambda graph, total, shape: _decay(graph, 1.0, total),
    "matern": _matern,
}
"""Kernels of distances, from the sum of the squares of differences, or of their sizes."""

PATTERNS: dict[str, Pattern] = {
    **{name: partial(_of_scores, kernel=name) for name in ("linear", "relu", "exp", "polynomial")},
    "softmax": _softmax,
    **{name: partial(_of_distances, kernel=name) for name in DECAYS},
}
"""Every kernel of icgd."""


try:
    import onnx
    import onnxruntime
except ImportError:  # the extra `onnx` is not installed
    onnx = onnxruntime = None

OPSET, IR_VERSION = 17, 8
"""Versions of 2022: they have everything that is needed, and old runtimes read them."""

LARGEST_FILE = 2**31
"""The number of bytes that protobuf can write."""

ROOM = 2**26
"""The bytes that are reserved for nodes and metadata."""


def export_onnx(
    compiled: Compiled, path: str | os.PathLike[str], *, dtype: str | torch.dtype = "float64"
) -> None:
    """Write the dense transformer as an ONNX file, which appears whole or not at all.

    Args:
        compiled: the compiled run.
        path: the file.
        dtype: the precision of the weights, "float64" or "float32".

    Raises:
        MissingExtraError: without the extra `onnx`.
        ExportError: if onnxruntime has no such activation or kernel, or if the file is too large.
        SettingError: if the program is a chain.
        FileError: if the file cannot be written.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from icgd.exports.onnx import export_onnx
        >>> with TemporaryDirectory() as folder:
        ...     export_onnx(compiled, Path(folder) / "run.onnx")
    """
    _require_packages()
    require_known_kernels(compiled.stack)
    if compiled.stack.activation not in ACTIVATIONS:
        raise ExportError(
            f"ONNX cannot hold {compiled.stack.activation} units. Compile with unit_activation=... "
            f"one of {', '.join(ACTIVATIONS)}, or use compiled.transformer(), a torch module."
        )
    needed = compiled.summary().parameters * dtype_named(dtype).itemsize + ROOM
    if needed > LARGEST_FILE:
        raise ExportError(
            f"The ONNX file would take {needed / 2**30:.1f} GiB; such a file can hold "
            f"{LARGEST_FILE / 2**30:.0f} GiB. Export with dtype='float32', or compile a smaller "
            "transformer: fewer pieces, or a smaller network."
        )
    content = _model(compiled, dtype_named(dtype)).SerializeToString(deterministic=True)
    with whole_file(Path(path)) as temporary:
        temporary.write_bytes(content)


def run_onnx(path: str | os.PathLike[str], stream: Stream) -> Stream:
    """The residual stream after the last layer, computed by onnxruntime on the processor.

    Args:
        path: the file that `export_onnx` wrote.
        stream: the residual stream of a prompt, (tokens, width) or (tasks, tokens, width).

    Returns:
        The stream after the last layer, of the same shape.

    Raises:
        MissingExtraError: without the extra `onnx`.
        FileError: if there is no such file, or if it is of another program.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from icgd.backends.prompt import encode
        >>> from icgd.exports.onnx import export_onnx, run_onnx
        >>> stream = encode(compiled.program, compiled.task([[0.5, 1.0]], [1.0]))
        >>> with TemporaryDirectory() as folder:
        ...     export_onnx(compiled, Path(folder) / "run.onnx")
        ...     run_onnx(Path(folder) / "run.onnx", stream).shape == stream.shape
        True
    """
    _require_packages()
    session = _session(Path(path))
    [source] = session.get_inputs()
    dtype = DTYPES["float64" if source.type == "tensor(double)" else "float32"]
    batch = as_batch(stream, source.shape[-1], dtype).detach().cpu().numpy()
    [result] = session.run(None, {source.name: batch})
    return torch.from_numpy(result).view_as(stream)


def _require_packages() -> None:
    if onnx is None:
        raise MissingExtraError(
            "An ONNX file needs onnx and onnxruntime. Install them with: pip install 'icgd[onnx]'"
        )


def _session(path: Path) -> Any:
    if not path.is_file():
        raise FileError(f"There is no file {path}.")
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime's exceptions have no other common base
        raise FileError(
            f"{path} cannot be run as an ONNX file of icgd: {problem}. Export it again."
        ) from None
    if "icgd" not in session.get_modelmeta().custom_metadata_map:
        raise FileError(
            f"{path} cannot be run as an ONNX file of icgd: its metadata have no 'icgd' entry. "
            "Export it again."
        )
    return session


def _model(compiled: Compiled, dtype: torch.dtype) -> Any:
    transformer, program = compiled.transformer(dtype), compiled.stack
    graph = Graph(ACTIVATIONS[program.activation], dtype)
    for name, weight in transformer.named_parameters():
        graph.constant(name, weight.detach())
    stream = "stream"
    modules = {module: name for name, module in transformer.named_modules()}
    spelt_out = zip(_places(program), program.unrolled(), transformer.unrolled(), strict=True)
    for graph.place, graph.layer, layer in spelt_out:
        update = append(layer, graph, modules[layer], stream)
        stream = graph.add("Add", stream, update, output=f"{graph.place}/stream")
    graph.add("Identity", stream, output="final_stream")
    return _with_metadata(graph.proto(program.layout.width), compiled)


def _places(program: StackProgram) -> Iterator[str]:
    """A name for every layer, in running order, such as "step 2/10 clip and wipe"."""
    for number, layer in enumerate(program.block * program.n_repeats):
        step, place = divmod(number, program.layers_per_step)
        yield f"step {step + 1}/{place + 1} {layer.title}"
    for number, layer in enumerate(program.prediction, 1):
        yield f"prediction/{number} {layer.title}"


def _with_metadata(graph: Any, compiled: Compiled) -> Any:
    model = onnx.helper.make_model(
        graph,
        producer_name="icgd",
        ir_version=IR_VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    metadata = {
        "icgd": str(FORMAT),
        "layout": json.dumps(_layout_data(compiled.stack.layout)),
        "problem": json.dumps(compiled.problem.to_data()),
        "program": json.dumps(compiled.stack.to_data()),
    }
    onnx.helper.set_model_props(model, metadata)
    return model


def _layout_data(layout: Layout) -> list[dict[str, Any]]:
    """Every slot with its coordinates start .. stop - 1 of the stream, row by row."""
    places = [(slot, layout.range_of(slot.name)) for slot in layout.slots]
    return [
        {"name": slot.name, "start": place.start, "stop": place.stop}
        | {"shape": list(slot.shape), "role": slot.role.name}
        for slot, place in places
    ]


def _softplus(graph: Graph, z: str) -> str:
    """max(z, 0) + log(1 + exp(-|z|)): onnxruntime has no softplus in float64."""
    decay = graph.add("Exp", graph.add("Neg", graph.add("Abs", z)))
    positive = graph.add("Relu", z)
    return graph.add("Add", positive, graph.add("Log", graph.add("Add", graph.number(1.0), decay)))


def _elu(graph: Graph, z: str) -> str:
    """max(z, 0) + exp(min(z, 0)) - 1, where min(z, 0) = z - max(z, 0)."""
    positive = graph.add("Relu", z)
    left = graph.add("Sub", graph.add("Exp", graph.add("Sub", z, positive)), graph.number(1.0))
    return graph.add("Add", positive, left)


ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "relu": lambda graph, z: graph.add("Relu", z),
    "sigmoid": lambda graph, z: graph.add("Sigmoid", z),
    "tanh": lambda graph, z: graph.add("Tanh", z),
    "softplus": _softplus,
    "silu": lambda graph, z: graph.add("Mul", z, graph.add("Sigmoid", z)),
    "elu": _elu,
    "cos": lambda graph, z: graph.add("Cos", z),
}
"""The activations of heads and hidden units; gelu needs an error function in float64."""


@singledispatch
def append(layer: nn.Module, graph: Graph, name: str, stream: str) -> str:
    """Append the layer called `name`, and return what it adds to the stream."""
    raise ProgramError(f"{type(layer).__name__} has no rule in exports/onnx.py")


@append.register
def _append_mlp_layer(layer: MLPLayer, graph: Graph, name: str, stream: str) -> str:
    read = graph.add("MatMul", stream, f"{name}.W_in")
    hidden = graph.activation(graph, graph.add("Add", read, f"{name}.b_in"))
    return graph.add("MatMul", hidden, f"{name}.W_out")


@append.register
def _append_activation_attention(
    layer: ActivationAttention, graph: Graph, name: str, stream: str
) -> str:
    query, key, value = _projections(graph, name, stream)
    tokens = graph.add("Shape", stream, start=1, end=2)
    n_tokens = graph.add("Cast", tokens, to=tensor_type(layer.W_Q.dtype))
    pattern = graph.add("Div", graph.activation(graph, _scores(graph, query, key)), n_tokens)
    return _output(layer, graph, name, graph.add("MatMul", pattern, value))


@append.register
def _append_softmax_attention(layer: SoftmaxAttention, graph: Graph, name: str, stream: str) -> str:
    query, key, value = _projections(graph, name, stream)
    scores = _scores(graph, query, key)
    if layer.mask is not None:
        mask = graph.constant(f"{name}.mask", layer.mask)
        never = graph.constant("never", torch.tensor(-inf, dtype=layer.W_Q.dtype))
        scores = graph.add("Where", mask, scores, never)
    pattern = graph.add("Softmax", scores, axis=-1)
    return _output(layer, graph, name, graph.add("MatMul", pattern, value))


@append.register
def _append_sequence_attention(
    layer: SequenceAttention, graph: Graph, name: str, stream: str
) -> str:
    """Keys and values are mapped along the sequence, from its first columns."""
    query, *projected = _projections(graph, name, stream)
    ends = [graph.constant(f"{name}.{at}", torch.tensor([at])) for at in (0, layer.A_K.shape[-1])]
    columns = [graph.add("Slice", part, *ends, graph.axes(2)) for part in projected]
    keys, values = (
        graph.add("MatMul", f"{name}.{weights}", part)
        for weights, part in zip(("A_K", "A_V"), columns, strict=True)
    )
    scores = _scores(graph, query, graph.add("Add", keys, f"{name}.P"))
    pattern = graph.add("Softmax", scores, axis=-1)
    return _output(layer, graph, name, graph.add("MatMul", pattern, values))


@append.register
def _append_kernel_attention(layer: KernelAttention, graph: Graph, name: str, stream: str) -> str:
    return append_kernels(layer, graph, name, stream)


@append.register
def _append_product_layer(layer: ProductLayer, graph: Graph, name: str, stream: str) -> str:
    query, key, value = _projections(graph, name, stream)
    products = graph.add("Mul", query, key)
    score = graph.add("ReduceSum", products, graph.axes(3), keepdims=1)
    return _output(layer, graph, name, graph.add("Mul", score, value))


def _projections(graph: Graph, name: str, stream: str) -> list[str]:
    """The queries, keys and values, each [tasks, head, token, feature]."""
    tokens = graph.add("Unsqueeze", stream, graph.axes(1))
    return [graph.add("MatMul", tokens, f"{name}.{weight}") for weight in ("W_Q", "W_K", "W_V")]


def _scores(graph: Graph, query: str, key: str) -> str:
    """The scores <query, key>: [tasks, head, token, token].

    A product with transposed keys would not do: older versions of onnxruntime fuse the two into an
    operation that they lack in float64.
    """
    return graph.add("Einsum", query, key, equation="bhid,bhjd->bhij")


def _output(layer: Headed, graph: Graph, name: str, heads: str) -> str:
    """The sum of W_O times what every head read, as one product with all heads side by side."""
    n_heads, d_value, d_model = layer.W_O.shape
    by_token = graph.add("Transpose", heads, perm=[0, 2, 1, 3])
    joined = graph.add("Reshape", by_token, graph.axes(0, 0, n_heads * d_value))
    weights = graph.add("Reshape", f"{name}.W_O", graph.axes(n_heads * d_value, d_model))
    return graph.add("MatMul", joined, weights)
