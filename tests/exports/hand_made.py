"""Transformers of random softmax attention and MLP layers, in any order, with a program."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor, nn

from icgd.compiled import Compiled
from icgd.layers import MLPLayer, SoftmaxAttention, Transformer
from icgd.problems.data import dtype_named
from icgd.program.instructions import Instruction, LayerKind
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.program.wires import Wiring
from tests import cases

LAYOUT = Layout(
    (
        Slot("x", (2,), Role.INPUT),
        Slot("y", (1,), Role.LABEL),
        Slot("weights_1", (3, 2), Role.PARAMETER),
        Slot("one", (1,), Role.CONSTANT),
    )
)


@dataclass(frozen=True)
class Attend(Instruction):
    """Stands for an attention layer."""

    kind: ClassVar[LayerKind] = LayerKind.SOFTMAX

    def reads(self) -> tuple[str, ...]:
        return ()

    def writes(self) -> tuple[str, ...]:
        return ()

    def wires(self, program: StackProgram) -> Wiring:
        return ()

    def meaning(self, slots, domain):
        return {}

    def formula(self) -> str:
        return "attend"


@dataclass(frozen=True)
class Think(Attend):
    """Stands for an MLP layer."""

    kind: ClassVar[LayerKind] = LayerKind.MLP


@dataclass(frozen=True, kw_only=True)
class HandMade(Compiled):
    """A compiled run whose weights are given."""

    weights: Transformer

    def transformer(self, dtype: str | torch.dtype = "float64") -> Transformer:
        return self.weights.to(dtype_named(dtype))

    def summary(self, n_tokens: int = 1) -> SimpleNamespace:
        return SimpleNamespace(parameters=sum(w.numel() for w in self.weights.parameters()))


def hand_made(block: str, n_repeats: int, final: str) -> HandMade:
    """`block` and `final` spell layers: "A" attention, "M" an MLP; no two have the same size."""
    generator = torch.Generator().manual_seed(0)
    sizes = iter(range(1, 100))
    weights = [[_layer(kind, next(sizes), generator) for kind in part] for part in (block, final)]
    program = StackProgram(
        construction="hand-made",
        layout=LAYOUT,
        functions=(),
        block=_titled(block),
        n_steps=n_repeats,
        prediction=_titled(final),
    )
    transformer = Transformer(weights[0], n_repeats, weights[1])
    return HandMade(cases.FEW[0].problem, program, weights=transformer)


def _titled(kinds: str) -> tuple[Layer, ...]:
    verbs = {"A": Attend(), "M": Think()}
    return tuple(Layer(f"layer {number}", (verbs[kind],)) for number, kind in enumerate(kinds))


def _layer(kind: str, size: int, generator: torch.Generator) -> nn.Module:
    def some(*shape: int) -> Tensor:
        return 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    width = LAYOUT.width
    if kind == "M":
        return MLPLayer(some(width, size), some(size), some(size, width))
    features, values = 1 + size % 3, 1 + size % 4
    return SoftmaxAttention(
        some(size, width, features),
        some(size, width, features),
        some(size, width, values),
        some(size, values, width) / size,
    )


def some_stream(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, LAYOUT.width, generator=generator, dtype=torch.float64)


def run(compiled: Compiled, stream: Tensor, dtype: str = "float64") -> Tensor:
    """What the transformer makes of the stream."""
    with torch.no_grad():
        return compiled.transformer(dtype)(stream)


def streams(compiled: Compiled, stream: Tensor) -> list[Tensor]:
    """The stream after every layer of the transformer."""
    found = []
    with torch.no_grad():
        for layer in compiled.transformer("float64").unrolled():
            stream = layer(stream)
            found.append(stream)
    return found
