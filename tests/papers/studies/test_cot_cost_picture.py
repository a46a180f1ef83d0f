"""What is drawn, from rows made by hand."""

import pytest

from icgd_papers.studies.cot_cost_picture import CHAINS, CONSTRUCTIONS, draw

SIZES = (2, 4, 8, 16)


def row(axis, size, name, backend, exponent, factor):
    cost = factor * size**exponent
    return {
        "axis": axis,
        "size": size,
        "name": name,
        "backend": backend,
        "depth": 4,
        "width": 8,
        "seconds": 1e-6 * cost if size < 16 else None,
        "flops_counted": cost,
        "flops_measured": cost if size < 16 else None,
        "bytes_counted": 8 * cost,
        "bytes_measured": 8 * cost if size < 16 else None,
    }


@pytest.fixture(scope="module")
def panels():
    rows = [
        row(axis, size, name, backend, 2 if name == "relu-stack" else 1, place + 1)
        for axis in ("depth", "width")
        for place, name in enumerate(CONSTRUCTIONS)
        for backend in ("dense", "fused")
        for size in SIZES
    ]
    rows += [
        row("length", size, name, "fused" if "memory" in name else "dense", 1, 1)
        for name in CHAINS
        for size in SIZES
    ]
    return draw(rows).axes


def test_every_panel_has_axes_with_units(panels):
    assert len(panels) == 9
    assert panels[0].get_xlabel() == "layers N of the network, width 8"
    assert panels[3].get_xlabel() == "width d of the network, 4 layers"
    assert panels[6].get_xlabel() == "blocks T of the chain so far"
    heights = [panel.get_ylabel() for panel in panels[:3]]
    assert heights == ["seconds of one processor", "FLOPs", "bytes"]
    assert [panel.get_title(loc="left") for panel in panels[6:]] == [
        "Time of a block",
        "FLOPs of a block",
        "Memory of a chain",
    ]


def test_dense_flops_are_drawn_for_all_sizes_and_dots_where_they_were_measured(panels):
    relu, dots = panels[1].lines[:2]
    assert list(relu.get_xdata()) == list(SIZES)
    assert list(relu.get_ydata()) == [4.0, 16.0, 64.0, 256.0]
    assert list(dots.get_xdata()) == [2, 4, 8]
    assert relu.get_linestyle() == "-"
    fused, hollow = panels[1].lines[2:4]
    assert fused.get_linestyle() == "--"
    assert hollow.get_markerfacecolor() == "white"


def test_exponents_and_the_crossing_are_named(panels):
    names = [text.get_text() for text in panels[1].texts]
    assert "$N^{2.0}$" in names
    assert "$N^{1.0}$" in names
    assert "equal at N = 3  " in names  # N^2 = 3 N
    assert all("equal" not in text.get_text() for text in panels[4].texts)


def test_memory_of_a_chain_has_its_two_memories_alone(panels):
    labels = [text.get_text() for text in panels[8].get_legend().get_texts()]
    assert labels == ["short memory", "whole memory"]
    labels = [text.get_text() for text in panels[6].get_legend().get_texts()]
    assert labels == list(CHAINS)
