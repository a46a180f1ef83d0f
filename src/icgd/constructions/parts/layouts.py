"""The residual stream of constructions that train a network."""

from __future__ import annotations

from collections.abc import Iterable

from icgd.problems.mlp import MLP
from icgd.program.layout import Layout, Role, Slot


def network_layout(
    target: MLP,
    scratch: Iterable[tuple[str, tuple[int, ...]]],
    constants: Iterable[str],
    update: Iterable[Slot] = (),
) -> Layout:
    """Every token holds its example, all weights, scratch slots of these shapes and constants.

    After the weights stand the slots that an update needs.
    """
    return Layout(
        (
            Slot("x", (target.input_width,), Role.INPUT),
            Slot("y", (target.output_width,), Role.LABEL),
            *(
                Slot(f"weights_{layer}", shape, Role.PARAMETER)
                for layer, shape in enumerate(target.matrix_shapes, start=1)
            ),
            *update,
            *(Slot(name, shape, Role.SCRATCH) for name, shape in scratch),
            *(Slot(name, (1,), Role.CONSTANT) for name in constants),
        )
    )


def layer_slots(target: MLP, kind: str) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the slots `kind_1 .. kind_N`, which are as wide as the layers."""
    return [(f"{kind}_{layer}", (width,)) for layer, width in enumerate(target.widths[1:], start=1)]
