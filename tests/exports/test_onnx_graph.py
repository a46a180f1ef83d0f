"""Graphs of ONNX: constants that are stored once, and nodes that are called after their place."""

import pytest
import torch

from icgd.exports.onnx import Graph, tensor_type

onnx = pytest.importorskip("onnx")


def test_a_graph_holds_its_nodes_in_order_and_each_constant_once():
    graph = Graph(lambda graph, z: graph.add("Relu", z), torch.float64, place="step 1/1 here")
    twice = graph.add("Mul", "stream", graph.number(2.0))
    graph.add("Add", twice, graph.number(2.0), output="final_stream")
    proto = graph.proto(width=3)
    assert [node.op_type for node in proto.node] == ["Mul", "Add"]
    assert [node.name for node in proto.node] == ["step 1/1 here/Mul 0", "step 1/1 here/Add 1"]
    assert [constant.name for constant in proto.initializer] == ["number 2.0"]
    assert onnx.numpy_helper.to_array(proto.initializer[0]) == 2.0
    assert proto.input[0].type.tensor_type.elem_type == tensor_type(torch.float64) == 11


def test_places_and_axes_are_whole_numbers():
    graph = Graph(lambda graph, z: z, torch.float32)
    names = graph.index(4), graph.axes(1, 2)
    values = [onnx.numpy_helper.to_array(graph.constants[name]) for name in names]
    assert values[0].shape == ()
    assert [value.tolist() for value in values] == [4, [1, 2]]
