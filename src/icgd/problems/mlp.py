"""The target network: what the transformer trains in its forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from icgd.environment import own_modes, require_memory
from icgd.errors import DataError, SettingError, quoted
from icgd.problems.functions import Activation, activation_named
from icgd.problems.piecewise import Function
from icgd.problems.settings import (
    as_row,
    count,
    entries,
    flag,
    is_row,
    positive,
    require_between,
    set_fields,
)
from icgd.shapes import Matrix, Parameters, Values

MOST_NAMED_LAYERS = 8
"""In words, a deeper network has only its first and last widths."""

NORM_EPS = 1e-5
"""What norms add to variances unless something else is said, as in torch."""

LEAST_EPS, LARGEST_EPS = 1e-30, 1e30
"""Norms add at least and at most so much to variances."""


@dataclass(frozen=True)
class MLP:
    """A network of `depth` layers: p_j = r(V_j p_{j-1}), p_0 = x.

    With shortcuts (i, j) and norms it is p_j = r(norm(V_j p_{j-1})) + the sum of all p_i, where
    norm(z) = (z - mean z) / sqrt(var z + norm_eps), as nn.LayerNorm has it without weights of its
    own.

    Args:
        widths: the widths of the layers, from the input to the output.
        activation: the name of r in hidden layers, such as "tanh" or "relu", or an
            `icgd.Function`, whose name is kept; or a row of them, one for each hidden layer.
        output_activation: the activation of the last layer.
        biases: whether every V_j has one more column, its last, which multiplies a constant 1 below
            p_{j-1}.
        shortcuts: pairs (i, j) of layers of one width, i < j: the outputs of layer i are added to
            those of layer j. Layer 0 is the input.
        norms: the layers, counted from 1, whose preactivations are normalised.
        norm_eps: what norms add to variances.

    Raises:
        UnknownNameError: if no activation has this name.
        SettingError: if there are fewer than two widths, or one is no positive whole number; if a
            shortcut joins layers of two widths, or a norm has only one number.

    Example:
        >>> import icgd
        >>> network = icgd.MLP((3, 4, 1), "relu")
        >>> network.depth, network.n_parameters, network.matrix_shapes
        (2, 16, ((4, 3), (1, 4)))
    """

    widths: tuple[int, ...]
    activation: Any = "tanh"  # a name, also of a function that was given, or a name a layer
    output_activation: Any = "identity"
    biases: bool = False
    shortcuts: tuple[tuple[int, int], ...] = ()
    norms: tuple[int, ...] = ()
    norm_eps: float = NORM_EPS

    def __post_init__(self) -> None:
        given = enumerate(as_row(self.widths))
        widths = tuple(count(f"widths[{place}]", width) for place, width in given)
        set_fields(self, widths=widths, biases=flag("biases", self.biases))
        if len(widths) < 2:
            raise SettingError(
                "widths must name the input and at least one layer, such as (4, 16, 1), got "
                f"{widths}."
            )
        hidden, output = self._names(self.activation), self._names(self.output_activation)
        if is_row(self.activation) and len(hidden) != self.depth - 1:
            raise SettingError(
                f"activation has {len(hidden)} entries; expected {self.depth - 1}, one for each "
                "hidden layer, or one name for all of them."
            )
        # One activation has one spelling, so that equal networks are equal.
        is_one = len(set(hidden)) == 1
        set_fields(self, activation=hidden[0] if is_one else hidden or "tanh")
        set_fields(self, output_activation=output[0])
        shortcuts = sorted(
            self._checked_shortcut(pair) for pair in self._row("shortcuts", self.shortcuts)
        )
        norms = sorted(
            count("a layer in norms", layer, most=self.depth)
            for layer in self._row("norms", self.norms)
        )
        for layer in norms:
            if widths[layer] == 1:
                raise SettingError(
                    f"norms has layer {layer}, whose width is 1: a number less its own mean is 0. "
                    "Norms need layers of width 2 or more."
                )
        for name, layers in (("shortcuts", shortcuts), ("norms", norms)):
            for entry, following in pairwise(layers):
                if entry == following:
                    raise SettingError(f"{name} has {entry!r} twice; name it once.")
            set_fields(self, **{name: tuple(layers)})
        set_fields(self, norm_eps=positive("norm_eps", self.norm_eps))
        require_between("norm_eps", self.norm_eps, LEAST_EPS, LARGEST_EPS)
        if self.norm_eps != NORM_EPS and not norms:
            raise SettingError("norm_eps has no effect without norms; give both or neither.")

    def _names(self, given: Any) -> tuple[str, ...]:
        """Return the names of one activation or of a row of them."""
        rows = entries(given) if is_row(given) else [given]
        names = tuple(part.name if isinstance(part, Function) else part for part in rows)
        for name in names:
            activation_named(name)
        return names

    def _row(self, name: str, value: object) -> list[Any]:
        if not is_row(value):
            example = "pairs of layers, such as ((0, 2),)"
            example = example if name == "shortcuts" else "layers, such as (2,)"
            raise SettingError(f"{name} must be a row of {example}, got {quoted(value)}.")
        return entries(value)

    def _checked_shortcut(self, pair: object) -> tuple[int, int]:
        ends = self._row("shortcuts", pair)
        if len(ends) != 2:
            raise SettingError(f"a shortcut has {len(ends)} entries; expected 2, such as (0, 2).")
        last = count("the end of a shortcut", ends[1], most=self.depth)
        first = count("the start of a shortcut", ends[0], least=0, most=last - 1)
        if self.widths[first] != self.widths[last]:
            raise SettingError(
                f"shortcut {(first, last)} adds the {self.widths[first]} outputs of layer {first} "
                f"to the {self.widths[last]} of layer {last}; both must have one width. widths are "
                f"{self.widths}."
            )
        return first, last

    def in_words(self) -> str:
        """Return the network in a few words, such as "3-4-1 tanh network with biases".

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.MLP((3, 4, 1)).in_words()
            '3-4-1 tanh network'
        """
        first, *hidden, last = self.widths
        is_deep = self.depth > MOST_NAMED_LAYERS
        inner = [*hidden[:2], "…"] if is_deep else hidden
        deep = f" of {self.depth:,} layers" if is_deep else ""
        output = self.output_activation
        end = "" if output == "identity" else f", {output} at the output"
        name = "-".join(map(str, (first, *inner, last)))
        end += "".join(f", shortcut {first} to {last}" for first, last in self.shortcuts)
        end += f", layer norm in {', '.join(map(str, self.norms))}" if self.norms else ""
        names = self.activation if isinstance(self.activation, str) else "/".join(self.activation)
        return f"{name} {names} network{deep}{' with biases' * self.biases}{end}"

    @property
    def is_chain(self) -> bool:
        """Whether every layer reads the one before it and nothing else, and no layer has a norm."""
        return not self.shortcuts and not self.norms

    def sources(self, layer: int) -> tuple[int, ...]:
        """Return the layers that a shortcut to `layer` starts from.

        Args:
            layer: the number of the layer.

        Returns:
            Their numbers, 0 for the input.

        Example:
            >>> import icgd
            >>> icgd.MLP((3, 4, 3), shortcuts=((0, 2),)).sources(2)
            (0,)
        """
        return tuple(first for first, last in self.shortcuts if last == layer)

    def ends(self, layer: int) -> tuple[int, ...]:
        """Return the layers that a shortcut from `layer` ends in.

        Args:
            layer: the number of the layer, 0 for the input.

        Returns:
            Their numbers.

        Example:
            >>> import icgd
            >>> icgd.MLP((3, 4, 3), shortcuts=((0, 2),)).ends(0)
            (2,)
        """
        return tuple(last for first, last in self.shortcuts if first == layer)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.widths) - 1

    @property
    def input_width(self) -> int:
        """The number of inputs."""
        return self.widths[0]

    @property
    def output_width(self) -> int:
        """The number of labels."""
        return self.widths[-1]

    @cached_property
    def matrix_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape (outputs, inputs) of every layer's matrix, the constant 1 counted as an input."""
        inputs = (width + self.biases for width in self.widths[:-1])
        return tuple(zip(self.widths[1:], inputs, strict=True))

    @cached_property
    def n_parameters(self) -> int:
        """The number of weights."""
        return sum(rows * columns for rows, columns in self.matrix_shapes)

    def layer_activation(self, layer: int) -> Activation:
        """Return the activation of `layer`, counted from 1 as in the papers.

        Args:
            layer: the number of the layer.

        Returns:
            The activation, with its name, its value and its slope.

        Example:
            >>> import icgd
            >>> icgd.MLP((3, 4, 1)).layer_activation(2).name
            'identity'
        """
        if layer == self.depth:
            return activation_named(self.output_activation)
        alike = isinstance(self.activation, str)
        return activation_named(self.activation if alike else self.activation[layer - 1])

    def matrices(self, parameters: Parameters) -> list[Matrix]:
        """View the parameter vector as one matrix a layer.

        Args:
            parameters: the weights (..., n_parameters).

        Returns:
            The matrices, the first layer's first.

        Example:
            >>> import icgd, torch
            >>> [tuple(matrix.shape) for matrix in icgd.MLP((3, 4, 1)).matrices(torch.zeros(16))]
            [(4, 3), (1, 4)]
        """
        sizes = [rows * columns for rows, columns in self.matrix_shapes]
        if parameters.shape[-1] != sum(sizes):
            raise DataError(
                f"parameters has shape {tuple(parameters.shape)}; expected (..., {sum(sizes)})."
            )
        parts: tuple[Tensor, ...] = parameters.split(sizes, dim=-1)
        return [
            part.unflatten(-1, shape) for part, shape in zip(parts, self.matrix_shapes, strict=True)
        ]

    def layer_inputs(self, outputs: Values) -> Values:
        """Return the inputs of a layer's matrix: the outputs before it, and a 1 for biases.

        Args:
            outputs: the outputs of the layer before (..., width).

        Returns:
            The inputs of the layer.

        Example:
            >>> import icgd, torch
            >>> icgd.MLP((2, 1), biases=True).layer_inputs(torch.zeros(1, 2))
            tensor([[0., 0., 1.]])
        """
        return functional.pad(outputs, (0, 1), value=1.0) if self.biases else outputs

    def initial_parameters(self, seed: int, box: float, tasks: tuple[int, ...] = ()) -> Parameters:
        """Draw normal weights of variance 1 / fan-in, clipped to the box; repeatable from `seed`.

        Biases start at 0, so that the weights are those of the network without them.

        Args:
            seed: what the weights are drawn from.
            box: the largest size of a weight.
            tasks: the number of tasks, () for one task.

        Returns:
            The weights (..., n_parameters).

        Example:
            >>> import icgd
            >>> icgd.MLP((3, 4, 1)).initial_parameters(seed=0, box=2.0).shape
            torch.Size([16])
        """
        n_weights = self.n_parameters * prod(count("tasks", number) for number in tasks)
        require_memory(f"{n_weights:,} initial weights", 8 * n_weights, "Give smaller widths.")
        box, seed = positive("box", box), count("seed", seed, least=0)
        draw = _drawn_before if n_weights <= MOST_REMEMBERED else _drawn
        return draw(self.widths, self.biases, seed, tuple(tasks)).clamp(-box, box)


@own_modes()
def _drawn(widths: tuple[int, ...], biases: bool, seed: int, tasks: tuple[int, ...]) -> Parameters:
    """Draw normal weights of variance 1 / fan-in, and biases of 0."""
    generator = torch.Generator().manual_seed(seed)
    matrices = [
        torch.randn(*tasks, rows, columns, generator=generator, dtype=torch.float64) / columns**0.5
        for rows, columns in zip(widths[1:], widths[:-1], strict=True)
    ]
    if biases:
        matrices = [functional.pad(matrix, (0, 1)) for matrix in matrices]
    return torch.cat([matrix.flatten(-2) for matrix in matrices], dim=-1)


MOST_REMEMBERED = 2**14
"""Up to so many weights are remembered by their seed: runs on small tasks start from them often."""

_drawn_before = lru_cache(maxsize=16)(_drawn)
