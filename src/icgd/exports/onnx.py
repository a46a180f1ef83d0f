"""Export a compiled transformer to ONNX, for onnxruntime and other tools.

The graph maps `stream` [tasks, tokens, width] to `final_stream` of the same shape, for any number
of tasks and tokens. The repeated block is unrolled, with nodes for every step, but its weights are
stored once, and only their nonzero entries: heads gather the coordinates that they read. The
metadata contain the layout of the stream, the problem and the program as JSON.

The graph uses only operations that onnxruntime implements in float64. Heads run in groups, because
a group takes memory of heads x tokens^2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, singledispatch
from itertools import pairwise
from math import inf, prod, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from icgd.backends.dense import warn_of_precision
from icgd.compiled import Compiled
from icgd.errors import ExportError, FileError, MissingExtraError, ProgramError, quoted
from icgd.exports.streams import as_batch
from icgd.layers import (
    ActivationAttention,
    Headed,
    Itself,
    KernelAttention,
    MirrorAttention,
    MLPLayer,
    ProductLayer,
    SequenceAttention,
    SoftmaxAttention,
    SparseWeights,
)
from icgd.problems.data import DTYPES, dtype_named
from icgd.problems.kernel_machine import SHAPES
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Stream
from icgd.weights.files import FORMAT, whole_file
from icgd.weights.lowering import lower_program

try:
    import onnx
    import onnxruntime
except ImportError:  # the extra `onnx` is not installed
    onnx = onnxruntime = None


@dataclass
class Graph:
    """A graph under construction: nodes in running order, and constants by name."""

    activation: Callable[[Graph, str], str]
    dtype: torch.dtype
    place: str = ""
    """The prefix of the names of new nodes."""
    layer: Layer | None = None
    """The layer of the program that new nodes implement."""
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def constant(self, name: str, value: Tensor) -> str:
        if name not in self.constants:
            self.constants[name] = onnx.numpy_helper.from_array(value.contiguous().numpy(), name)
        return name

    def axes(self, *axes: int) -> str:
        """Return a constant list of axes, which some operations take as an input."""
        return self.constant(f"axes {axes}", torch.tensor(axes))

    def index(self, place: int) -> str:
        """Return a constant scalar index, which removes the axis that it indexes."""
        return self.constant(f"index {place}", torch.tensor(place))

    def number(self, value: float) -> str:
        return self.constant(f"number {value!r}", torch.tensor(value, dtype=self.dtype))

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node and return the name of its result, by default derived from `place`."""
        name = f"{self.place}/{operation} {len(self.nodes)}"
        output = output or name
        self.nodes.append(onnx.helper.make_node(operation, inputs, [output], name, **attributes))
        return output

    def proto(self, width: int) -> Any:
        """Return the whole graph, from `stream` to `final_stream`."""
        number = tensor_type(self.dtype)
        ends = [
            onnx.helper.make_tensor_value_info(name, number, ["tasks", "tokens", width])
            for name in ("stream", "final_stream")
        ]
        constants = list(self.constants.values())
        return onnx.helper.make_graph(self.nodes, "icgd", ends[:1], ends[1:], constants)


def tensor_type(dtype: torch.dtype) -> int:
    """Return ONNX's code of a dtype."""
    names = {torch.float64: "DOUBLE", torch.float32: "FLOAT"}
    return int(onnx.TensorProto.DataType.Value(names[dtype]))


# Kernel attention: every kernel of icgd, by operations that exist in float64.


Pattern = Callable[[Graph, str, str, str, float], str]
"""A function of graph, queries, keys, mask of the examples and kernel shape: the kernel matrix."""


def require_known_kernels(program: StackProgram) -> None:
    """Raise `ExportError` if a kernel is user-defined."""
    for layer in program.block:
        for instruction in layer.instructions:
            names = [term.kernel for term in getattr(instruction, "terms", ())]
            if unknown := [name for name in names if name not in PATTERNS]:
                raise ExportError(
                    f"The kernel {quoted(unknown[0])} is a Python function, which cannot be "
                    f"exported to ONNX. Use one of {', '.join(PATTERNS)}, or "
                    "compiled.transformer(), a torch module."
                )


def append_kernels(layer: KernelAttention, graph: Graph, name: str, x: str) -> str:
    """Append all heads of the layer `name`, and return the stream after it."""
    place = graph.axes(layer.example_feature)
    is_example = graph.add("Greater", graph.add("Gather", x, place, axis=0), graph.number(0.5))
    mask = graph.add("Transpose", is_example, perm=[1, 0, 2])
    read = [
        _head(layer, graph, name, x, (is_example, mask), slice(head, head + 1), term)
        for head, term in enumerate(_terms(graph))
    ]
    return _written(graph, f"{name}.W_O", x, read, layer.W_O)


def _terms(graph: Graph) -> list[KernelTerm | Itself]:
    """Return the kernel of every head, or which tokens attend to themselves in it."""
    steps = [] if graph.layer is None else graph.layer.instructions
    terms: list[KernelTerm | Itself] = []
    for step in steps:
        if isinstance(step, DescendFunction):
            terms += [*step.terms, *[Itself.EXAMPLES] * (step.noise > 0)]
            terms += [Itself.TOKENS] * (step.velocity is not None)
    return terms


def _head(
    layer: KernelAttention,
    graph: Graph,
    name: str,
    x: str,
    masks: tuple[str, str],
    head: slice,
    term: KernelTerm | Itself,
) -> str:
    """Return the output of a head, [1, feature, task, token].

    The masks of the examples are [1, task, token] and [task, 1, token].
    """
    value = _read(graph, f"{name}.W_V", x, layer.W_V, head)
    if term is Itself.TOKENS:
        return value
    if not isinstance(term, KernelTerm):
        return graph.add("Where", masks[0], value, graph.number(0.0))
    query, key = (
        graph.add(
            "Einsum", _read(graph, f"{name}.{matrix}", x, weights, head), equation="hdbi->bid"
        )
        for matrix, weights in (("W_Q", layer.W_Q), ("W_K", layer.W_K))
    )
    shape = SHAPES.get(term.kernel, 0.0) if term.shape is None else term.shape
    pattern = PATTERNS[term.kernel](graph, query, key, masks[1], shape)
    return graph.add("Einsum", pattern, value, equation="bij,hebj->hebi")


def _products(graph: Graph, query: str, key: str) -> str:
    """Return the scores <query, key>, by Einsum for the reason given at `SCORES`."""
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
    """Set the columns of queries to 0, where a kernel may be infinite."""
    return graph.add("Where", mask, values, graph.number(0.0))


def _decay(graph: Graph, factor: float, size: str) -> str:
    """Return exp(-factor * size)."""
    return graph.add("Exp", graph.add("Mul", graph.number(-factor), size))


def _matern(graph: Graph, square: str, shape: float) -> str:
    """Return the polynomial of scaled = sqrt(2 nu) |u - w| by Horner's rule, times exp(-scaled)."""
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
"""Kernels of distances, as functions of the sum of squared or absolute differences."""

PATTERNS: dict[str, Pattern] = {
    **{name: partial(_of_scores, kernel=name) for name in ("linear", "relu", "exp", "polynomial")},
    "softmax": _softmax,
    **{name: partial(_of_distances, kernel=name) for name in DECAYS},
}
"""All kernels of icgd by name."""


OPSET, IR_VERSION = 17, 8
"""Versions of 2022, which have all operations needed here and are read by old runtimes."""

LARGEST_FILE = 2**31
"""The largest file of protobuf, in bytes."""

ROOM = 2**26
"""The bytes reserved for nodes and metadata."""

INDEX = torch.int32
"""The dtype of indices into the stream."""

HEADS_AT_ONCE = 128
"""The largest number of heads in a group, which takes memory of heads x tokens^2."""


def export_onnx(
    compiled: Compiled, path: str | os.PathLike[str], *, dtype: str | torch.dtype = "float64"
) -> None:
    """Write the transformer as an ONNX file, atomically.

    Args:
        compiled: the compiled run.
        path: the file.
        dtype: the precision of the weights, "float64" or "float32".

    Raises:
        MissingExtraError: if the extra `onnx` is not installed.
        ExportError: if an activation or kernel cannot be exported, or if the file is too large.
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
            f"Units with the activation {compiled.stack.activation} cannot be exported to ONNX. "
            f"Compile with unit_activation set to one of {', '.join(ACTIVATIONS)}, or use "
            "compiled.transformer(), a torch module."
        )
    float_type = dtype_named(dtype)
    _require_size(compiled.summary().nonzeros * (INDEX.itemsize + float_type.itemsize))
    content = _model(compiled, float_type).SerializeToString(deterministic=True)
    with whole_file(Path(path)) as temporary:
        temporary.write_bytes(content)


def run_onnx(path: str | os.PathLike[str], stream: Stream) -> Stream:
    """Return the residual stream after the last layer, computed by onnxruntime on the CPU.

    Args:
        path: the file that `export_onnx` wrote.
        stream: the residual stream of a prompt, (tokens, width) or (tasks, tokens, width).

    Returns:
        The stream after the last layer, of the same shape.

    Raises:
        MissingExtraError: if the extra `onnx` is not installed.
        FileError: if the file does not exist, or is not an ONNX file of icgd.

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


def _require_size(n_bytes: int) -> None:
    if n_bytes + ROOM > LARGEST_FILE:
        raise ExportError(
            f"The ONNX file would have {(n_bytes + ROOM) / 2**30:.1f} GiB; the format allows at "
            f"most {LARGEST_FILE / 2**30:.0f} GiB. Export with dtype='float32', or compile a "
            "smaller transformer: fewer pieces, or a smaller network."
        )


def _model(compiled: Compiled, dtype: torch.dtype) -> Any:
    program = compiled.stack
    warn_of_precision(program, dtype)
    transformer = lower_program(program, dtype, is_sparse=True)
    graph = Graph(ACTIVATIONS[program.activation], dtype)
    graph.add("Shape", "stream", output="tasks and tokens", start=0, end=2)
    stream = "stream"
    modules = {module: name for name, module in transformer.named_modules()}
    unrolled = zip(_places(program), program.unrolled(), transformer.unrolled(), strict=True)
    for graph.place, graph.layer, layer in unrolled:
        # Layers gather and scatter few coordinates: with the model axis first, each is contiguous.
        columns = graph.add("Transpose", stream, perm=[2, 0, 1])
        columns = append(layer, graph, modules[layer], columns)
        stream = graph.add("Transpose", columns, perm=[1, 2, 0], output=f"{graph.place}/stream")
    graph.add("Identity", stream, output="final_stream")
    _require_size(sum(len(constant.raw_data) for constant in graph.constants.values()))
    return _with_metadata(graph.proto(program.layout.width), compiled)


def _places(program: StackProgram) -> Iterator[str]:
    """Yield a name for every layer, in running order, such as "step 2/10 clip and wipe"."""
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
    """Return every slot with its coordinates start .. stop - 1 of the stream, in row order."""
    places = [(slot, layout.range_of(slot.name)) for slot in layout.slots]
    return [
        {"name": slot.name, "start": place.start, "stop": place.stop}
        | {"shape": list(slot.shape), "role": slot.role.name}
        for slot, place in places
    ]


def _softplus(graph: Graph, z: str) -> str:
    """Return max(z, 0) + log(1 + exp(-|z|)), as onnxruntime has no softplus in float64."""
    decay = graph.add("Exp", graph.add("Neg", graph.add("Abs", z)))
    positive = graph.add("Relu", z)
    return graph.add("Add", positive, graph.add("Log", graph.add("Add", graph.number(1.0), decay)))


def _elu(graph: Graph, z: str) -> str:
    """Return max(z, 0) + exp(min(z, 0)) - 1, where min(z, 0) = z - max(z, 0)."""
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
"""The activations of heads and hidden units; gelu is missing, as there is no erf in float64."""


@singledispatch
def append(layer: nn.Module, graph: Graph, name: str, x: str) -> str:
    """Append the layer `name`, and return the stream after it, [model, tasks, tokens]."""
    raise ProgramError(f"{type(layer).__name__} has no rule in exports/onnx.py")


@append.register
def _append_mlp_layer(layer: MLPLayer, graph: Graph, name: str, x: str) -> str:
    w_in, w_out = layer.W_in, layer.W_out
    entries = w_in.rows, w_in.columns, w_in.values
    read = _sums(graph, f"{name}.W_in", x, entries, (len(w_in), 1))
    shift = graph.constant(f"{name}.b_in", layer.b_in.detach()[:, None, None, None])
    hidden = graph.activation(graph, graph.add("Add", read, shift))
    return _written(graph, f"{name}.W_out", x, [hidden], w_out)


@append.register
def _append_activation_attention(
    layer: ActivationAttention, graph: Graph, name: str, x: str
) -> str:
    def attend(query: str, key: str, value: str) -> str:
        pattern = graph.activation(graph, graph.add("Einsum", query, key, equation=SCORES))
        return graph.add("Einsum", pattern, value, equation=READ)

    tokens = graph.add("Cast", graph.add("Shape", x, start=2, end=3), to=tensor_type(graph.dtype))
    return _attended(layer, graph, name, x, attend, divisor=tokens)


@append.register
def _append_softmax_attention(layer: SoftmaxAttention, graph: Graph, name: str, x: str) -> str:
    def attend(query: str, key: str, value: str) -> str:
        scores = graph.add("Einsum", query, key, equation=SCORES)
        pattern = graph.add("Softmax", scores, axis=-1)
        return graph.add("Einsum", pattern, value, equation=READ)

    return _attended(layer, graph, name, x, attend)


@append.register
def _append_mirror_attention(layer: MirrorAttention, graph: Graph, name: str, x: str) -> str:
    # The softmax is over all tokens and their mirror images. Images have negated values, so
    # subtract their weights from those of the tokens before applying both to the values.
    mirror = graph.constant(f"{name}.J", layer.J.detach()[:, None, None])
    images, read = graph.add("Mul", x, mirror), list[str]()
    ends = graph.axes(0), graph.add("Shape", x, start=2, end=3), graph.axes(MAX_COLUMNS)
    for heads in _groups(layer.W_Q):
        query, value = (
            _read(graph, f"{name}.{matrix}", x, weights, heads)
            for matrix, weights in (("W_Q", layer.W_Q), ("W_V", layer.W_V))
        )
        keys = [_read(graph, f"{name}.W_K", tokens, layer.W_K, heads) for tokens in (x, images)]
        key = graph.add("Concat", *keys, axis=-1)
        scores = graph.add("Einsum", query, key, equation=SCORES)
        pattern = graph.add("Softmax", scores, axis=-1)
        weights = [graph.add("Slice", pattern, *end, graph.axes(3)) for end in pairwise(ends)]
        read.append(graph.add("Einsum", graph.add("Sub", *weights), value, equation=READ))
    return _written(graph, f"{name}.W_O", x, read, layer.W_O)


@append.register
def _append_product_layer(layer: ProductLayer, graph: Graph, name: str, x: str) -> str:
    def attend(query: str, key: str, value: str) -> str:
        products = graph.add("Mul", query, key)
        score = graph.add("ReduceSum", products, graph.axes(1), keepdims=1)
        return graph.add("Mul", score, value)

    return _attended(layer, graph, name, x, attend)


@append.register
def _append_sequence_attention(layer: SequenceAttention, graph: Graph, name: str, x: str) -> str:
    # Keys and values are maps along the sequence, of its first columns.
    def columns_of(stream: str, first: int, end: int, axis: int = 2) -> str:
        """Return the slice first .. end - 1 along an axis."""
        return graph.add("Slice", stream, graph.axes(first), graph.axes(end), graph.axes(axis))

    columns, read = columns_of(x, 0, layer.A_K.shape[-1]), list[str]()
    for heads in _groups(layer.W_Q):
        suffix = f"[{heads.start}:{heads.stop}]"
        key_map, value_map, codes = (
            graph.constant(f"{name}.{matrix}{suffix}", weights.detach()[heads])
            for matrix, weights in (
                ("A_K", layer.A_K),
                ("A_V", layer.A_V),
                ("P", layer.P.mT.unsqueeze(2)),
            )
        )
        query = _read(graph, f"{name}.W_Q", x, layer.W_Q, heads)
        keys, values = (
            _read(graph, f"{name}.{matrix}", columns, weights, heads)
            for matrix, weights in (("W_K", layer.W_K), ("W_V", layer.W_V))
        )
        key = graph.add("Einsum", key_map, keys, equation=MAPPED)
        value = graph.add("Einsum", value_map, values, equation=MAPPED)
        if layer.A_L is not None:  # the last feature has a separate map
            label_map = graph.constant(f"{name}.A_L{suffix}", layer.A_L.detach()[heads])
            labels = graph.add("Einsum", label_map, keys, equation=MAPPED)
            last = layer.W_K.shape[-1] - 1
            features = columns_of(key, 0, last, axis=1), columns_of(labels, last, last + 1, axis=1)
            key = graph.add("Concat", *features, axis=1)
        scores = graph.add("Einsum", query, graph.add("Add", key, codes), equation=SCORES)
        pattern = graph.add("Softmax", scores, axis=-1)
        read.append(graph.add("Einsum", pattern, value, equation=READ))
    written = _written(graph, f"{name}.W_O", x, read, layer.W_O)
    if not layer.first:
        return written
    # The first columns are not changed.
    halves = columns_of(x, 0, layer.first), columns_of(written, layer.first, MAX_COLUMNS)
    return graph.add("Concat", *halves, axis=2)


@append.register
def _append_kernel_attention(layer: KernelAttention, graph: Graph, name: str, x: str) -> str:
    return append_kernels(layer, graph, name, x)


MAX_COLUMNS = 2**31 - 1
"""The end of an unbounded slice."""

SCORES, READ, MAPPED = "hdbi,hdbj->bhij", "bhij,hebj->hebi", "hgc,hebc->hebg"
"""Equations of the scores of queries and keys, of attention to values, and of maps of tokens.

Einsum replaces a product with transposed keys, because older versions of onnxruntime fuse these
two into an operation that they do not implement in float64.
"""


def _attended(
    layer: Headed,
    graph: Graph,
    name: str,
    x: str,
    attend: Callable[[str, str, str], str],
    divisor: str | None = None,
) -> str:
    """Return the stream after a layer whose heads compute `attend(query, key, value)`."""
    matrices = {"W_Q": layer.W_Q, "W_K": layer.W_K, "W_V": layer.W_V}
    read = [
        attend(*(_read(graph, f"{name}.{matrix}", x, w, heads) for matrix, w in matrices.items()))
        for heads in _groups(layer.W_Q)
    ]
    return _written(graph, f"{name}.W_O", x, read, layer.W_O, divisor)


def _groups(weights: SparseWeights) -> Iterator[slice]:
    """Yield groups of heads, each within one family."""
    for first, size, *_ in weights.families:
        for start in range(first, first + size, HEADS_AT_ONCE):
            yield slice(start, min(start + HEADS_AT_ONCE, first + size))


def _read(graph: Graph, name: str, x: str, weights: SparseWeights, heads: slice) -> str:
    """Return the features that heads of one family read: [head, feature, task, token]."""
    selected = weights[heads]
    entries = selected.rows, selected.columns, selected.values.squeeze(-1)
    shape = selected.size, selected.family.width
    return _sums(graph, f"{name}[{heads.start}:{heads.stop}]", x, entries, shape)


def _written(
    graph: Graph,
    name: str,
    x: str,
    read: list[str],
    weights: SparseWeights,
    divisor: str | None = None,
) -> str:
    """Return the stream after all heads have written, given the outputs of each group."""
    shape = graph.add("Concat", graph.axes(-1), "tasks and tokens", axis=0)
    rows = [graph.add("Reshape", group, shape) for group in read]
    features = rows[0] if len(rows) == 1 else graph.add("Concat", *rows, axis=0)
    coordinates, place = weights.columns.unique(return_inverse=True)
    entries = place, weights.rows, weights.values
    update = _sums(graph, name, features, entries, (len(coordinates),))
    if divisor is not None:
        update = graph.add("Div", update, divisor)
    places = graph.constant(f"{name}.coordinates", coordinates.long()[:, None])
    before = graph.add("GatherND", x, places)
    return graph.add("ScatterND", x, places, graph.add("Add", before, update))


def _sums(
    graph: Graph,
    name: str,
    source: str,
    entries: tuple[Tensor, Tensor, Tensor],
    shape: tuple[int, ...],
) -> str:
    """Return a sparse matrix times the source; `entries` are its rows, columns and values.

    Rows are numbered along `shape`. Each is padded with zeros to the length of the longest. Then
    entries are gathered and summed, because a scattered sum would have no fixed order.
    """
    if f"{name}.columns" not in graph.constants:
        rows, order = entries[0].long().sort(stable=True)
        place = torch.arange(len(rows)) - torch.searchsorted(rows, rows)
        depth = int(place.max()) + 1 if len(rows) else 1
        columns = torch.zeros(depth, prod(shape), dtype=INDEX)
        values = torch.zeros(depth, prod(shape), dtype=graph.dtype)
        columns[place, rows], values[place, rows] = entries[1][order], entries[2][order]
        # Padding reads a column that the row reads anyway: another could hold an infinity.
        columns = columns.where(values != 0.0, columns[0])
        padded = shape if depth == 1 else (depth, *shape)
        graph.constant(f"{name}.columns", columns.view(padded))
        graph.constant(f"{name}.values", values.view(*padded, 1, 1))
    gathered = graph.add("Gather", source, f"{name}.columns", axis=0)
    products = graph.add("Mul", gathered, f"{name}.values")
    if len(graph.constants[f"{name}.columns"].dims) == len(shape):
        return products
    return graph.add("ReduceSum", products, graph.axes(0), keepdims=0)
