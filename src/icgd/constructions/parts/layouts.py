"""The residual stream of constructions that train a network."""

from __future__ import annotations

from collections.abc import Iterable

from icgd.constructions.parts.backward_pass import upstream_layers
from icgd.constructions.parts.forward_pass import (
    activated_slot,
    positive_layers,
    positive_slot,
    units_slot,
)
from icgd.problems.mlp import MLP
from icgd.program.layout import Layout, Role, Slot


def network_layout(
    target: MLP,
    scratch: Iterable[tuple[str, tuple[int, ...]]],
    constants: Iterable[str],
    update: Iterable[Slot] = (),
    rates: Iterable[Slot] = (),
) -> Layout:
    """Every token holds its example, all weights, scratch slots of these shapes and constants.

    After the labels stand rates, if there are any, and after the weights the slots that an update
    needs.
    """
    return Layout(
        (
            Slot("x", (target.input_width,), Role.INPUT),
            Slot("y", (target.output_width,), Role.LABEL),
            *rates,
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


Scratch = tuple[str, tuple[int, ...]]
"""The name and the shape of a scratch slot."""


def network_scratch(target: MLP, of_loss: Iterable[Scratch]) -> list[Scratch]:
    """What a forward and a backward pass write, with the slots of the loss between them."""
    layers, norms = range(1, target.depth + 1), target.norms
    forward = {units_slot(j): j for j in layers if activated_slot(target, j) == units_slot(j)}
    forward |= {positive_slot(target, j): j for j in positive_layers(target)}
    forward |= {f"sum_{j}": j for j in layers if target.sources(j)}
    forward |= {f"{kind}_{j}": j for kind in ("linear", "normed") for j in norms}
    backward = {f"passed_{j}": j for j in norms}
    backward |= {f"upstream_{j}": j for j in upstream_layers(target)}
    backward |= {f"delta_{j}": j for j in reversed(layers)}
    return [
        *((name, (target.widths[j],)) for name, j in forward.items()),
        *((f"{kind}_{j}", (1,)) for kind in ("variance", "scale", "shared") for j in norms),
        *layer_slots(target, "slope"),
        *of_loss,
        *((name, (target.widths[j],)) for name, j in backward.items()),
    ]
