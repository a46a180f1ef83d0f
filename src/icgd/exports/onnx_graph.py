"""A graph of ONNX in the making."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from icgd.program.program import Layer

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
