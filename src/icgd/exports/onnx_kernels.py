"""Kernel attention in ONNX: every kernel of icgd, written with operations that exist in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from math import inf, sqrt

from icgd.errors import ExportError, brief
from icgd.exports.onnx_graph import Graph
from icgd.layers import Itself, KernelAttention
from icgd.problems.kernel_machine import SHAPES
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.stack import StackProgram

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


def _scores(graph: Graph, query: str, key: str) -> str:
    """The scores <query, key>; as in every layer, not a product with transposed keys."""
    return graph.add("Einsum", query, key, equation="bid,bjd->bij")


def _of_scores(graph: Graph, query: str, key: str, mask: str, shape: float, *, kernel: str) -> str:
    scores = _scores(graph, query, key)
    if kernel == "polynomial":
        base = graph.add("Add", scores, graph.number(1.0))
        scores = graph.add("Pow", base, graph.number(shape))
    elif kernel != "linear":
        scores = graph.add({"relu": "Relu", "exp": "Exp"}[kernel], scores)
    return _of_examples(graph, mask, scores)


def _softmax(graph: Graph, query: str, key: str, mask: str, shape: float) -> str:
    scores = graph.add("Where", mask, _scores(graph, query, key), graph.number(-inf))
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
