"""The target network: what the transformer trains in its forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import SettingError
from icgd.problems.activations import Activation, activation_named
from icgd.problems.settings import count, instance, is_sequence, settle
from icgd.shapes import Matrix, Parameters, Values

MOST_NAMED_LAYERS = 8
"""In words, a deeper network has only its first and last widths."""


@dataclass(frozen=True)
class MLP:
    """A network of `depth` layers: p_j = r(V_j p_{j-1}), p_0 = x.

    `widths` runs from the input to the output. The last layer applies `output_activation`. With
    `biases` every V_j has one more column, its last, which multiplies a constant 1 below p_{j-1}.
    """

    widths: tuple[int, ...]
    activation: str = "tanh"
    output_activation: str = "identity"
    biases: bool = False

    def __post_init__(self) -> None:
        widths = self.widths if is_sequence(self.widths) else (self.widths,)
        settle(self, widths=tuple(count(f"widths[{i}]", width) for i, width in enumerate(widths)))
        if len(self.widths) < 2:
            raise SettingError.too_few_widths(self.widths)
        activation_named(self.activation)
        activation_named(self.output_activation)
        instance("biases", self.biases, bool)

    def in_words(self) -> str:
        """The network in a few words, such as "3-4-1 tanh network with biases"."""
        first, *hidden, last = self.widths
        is_deep = self.depth > MOST_NAMED_LAYERS
        inner = [*hidden[:2], "…"] if is_deep else hidden
        deep = f" of {self.depth:,} layers" if is_deep else ""
        output = self.output_activation
        end = "" if output == "identity" else f", {output} at the output"
        name = "-".join(map(str, (first, *inner, last)))
        return f"{name} {self.activation} network{deep}{' with biases' * self.biases}{end}"

    @property
    def depth(self) -> int:
        return len(self.widths) - 1

    @property
    def input_width(self) -> int:
        return self.widths[0]

    @property
    def output_width(self) -> int:
        return self.widths[-1]

    @property
    def matrix_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape (outputs, inputs) of every layer's matrix, the constant 1 counted as an input."""
        inputs = (width + self.biases for width in self.widths[:-1])
        return tuple(zip(self.widths[1:], inputs, strict=True))

    @property
    def n_parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.matrix_shapes)

    def layer_activation(self, layer: int) -> Activation:
        """The activation of `layer`, counted from 1 as in the papers."""
        is_last = layer == self.depth
        return activation_named(self.output_activation if is_last else self.activation)

    def matrices(self, parameters: Parameters) -> list[Matrix]:
        """Views of the parameter vector as one matrix a layer."""
        sizes = [rows * columns for rows, columns in self.matrix_shapes]
        parts: tuple[Tensor, ...] = parameters.split(sizes, dim=-1)
        return [
            part.unflatten(-1, shape) for part, shape in zip(parts, self.matrix_shapes, strict=True)
        ]

    def layer_inputs(self, outputs: Values) -> Values:
        """What a layer's matrix multiplies: the outputs before it, and the constant 1 if needed."""
        return functional.pad(outputs, (0, 1), value=1.0) if self.biases else outputs

    def initial_parameters(self, seed: int, box: float, tasks: tuple[int, ...] = ()) -> Parameters:
        """Normal weights of variance 1 / fan-in, clipped to the box; repeatable from `seed`.

        Biases start at 0, so that the weights are those of the network without them.
        """
        generator = torch.Generator().manual_seed(seed)
        matrices = [
            torch.randn(*tasks, rows, columns, generator=generator, dtype=torch.float64)
            / columns**0.5
            for rows, columns in zip(self.widths[1:], self.widths[:-1], strict=True)
        ]
        with_biases = [functional.pad(matrix, (0, int(self.biases))) for matrix in matrices]
        return torch.cat([matrix.flatten(-2) for matrix in with_biases], dim=-1).clamp(-box, box)
