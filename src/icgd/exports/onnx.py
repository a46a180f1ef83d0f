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
from functools import singledispatch
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn

from icgd.compiled import Compiled
from icgd.errors import ExportError, FileError, MissingExtraError, ProgramError
from icgd.exports.onnx_graph import Graph, tensor_type
from icgd.exports.onnx_kernels import append_kernels, require_known_kernels
from icgd.exports.streams import as_batch
from icgd.layers import (
    ActivationAttention,
    Headed,
    KernelAttention,
    MLPLayer,
    ProductLayer,
    SequenceAttention,
    SoftmaxAttention,
)
from icgd.problems.data import DTYPES, dtype_named
from icgd.program.layout import Layout
from icgd.program.stack import StackProgram
from icgd.shapes import Stream
from icgd.weights.files import FORMAT, whole_file

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
