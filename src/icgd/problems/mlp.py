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
"""The largest depth at which a description names all widths."""

NORM_EPS = 1e-5
"""The default number that norms add to variances, as in torch."""

LEAST_EPS, LARGEST_EPS = 1e-30, 1e30
"""The range of numbers that norms may add to variances."""


@dataclass(frozen=True)
class MLP:
    """A network of `depth` layers: p_j = r(V_j p_{j-1}), p_0 = x.

    With shortcuts (i, j) and norms it is p_j = r(norm(V_j p_{j-1})) + the sum of all p_i, where
    norm(z) = (z - mean z) / sqrt(var z + norm_eps), as nn.LayerNorm without its affine weights.

    Args:
        widths: the widths of the layers, from the input to the output.
        activation: the name of r in hidden layers, such as "tanh" or "relu", or an
            `icgd.Function`, whose name is stored; or a sequence with one for each hidden layer.
        output_activation: the activation of the last layer.
        biases: whether every V_j has a last column for biases, which multiplies a constant 1
            appended to p_{j-1}.
        shortcuts: pairs (i, j) of layers of equal width, i < j: the outputs of layer i are added
            to those of layer j. Layer 0 is the input.
        norms: the layers, counted from 1, whose preactivations are normalised.
        norm_eps: the number that norms add to variances.

    Raises:
        UnknownNameError: if no activation has this name.
        SettingError: if there are fewer than two widths, if a width is not a positive integer, if a
            shortcut connects layers of different widths, or if a layer with a norm has width 1.

    Example:
        >>> import icgd
        >>> network = icgd.MLP((3, 4, 1), "relu")
        >>> network.depth, network.n_parameters, network.matrix_shapes
        (2, 16, ((4, 3), (1, 4)))
    """

    widths: tuple[int, ...]
    activation: Any = "tanh"  # converted to a name, or to one name per hidden layer
    output_activation: Any = "identity"
    biases: bool = False
    shortcuts: tuple[tuple[int, int], ...] = ()
    norms: tuple[int, ...] = ()
    norm_eps: float = NORM_EPS

    def __post_init__(self) -> None:
        widths = tuple(
            count(f"widths[{layer}]", width) for layer, width in enumerate(as_row(self.widths))
        )
        set_fields(self, widths=widths, biases=flag("biases", self.biases))
        if len(widths) < 2:
            raise SettingError(
                "widths must have an input width and at least one layer width, such as (4, 16, 1), "
                f"got {widths}."
            )
        hidden, output = self._names(self.activation), self._names(self.output_activation)
        if is_row(self.activation) and len(hidden) != self.depth - 1:
            raise SettingError(
                f"activation has {len(hidden)} entries; expected {self.depth - 1}, one for each "
                "hidden layer, or one name for all of them."
            )
        if len(output) != 1:
            raise SettingError(
                f"output_activation has {len(output)} entries; expected one name, for all outputs."
            )
        # Store one name if all are equal, so that equal networks compare equal.
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
                    f"norms has layer {layer}, whose width is 1, so its normalised value would "
                    "always be 0. Norms need layers of width 2 or more."
                )
        for name, layers in (("shortcuts", shortcuts), ("norms", norms)):
            for entry, following in pairwise(layers):
                if entry == following:
                    raise SettingError(f"{name} has {entry!r} twice; give it once.")
            set_fields(self, **{name: tuple(layers)})
        set_fields(self, norm_eps=positive("norm_eps", self.norm_eps))
        require_between("norm_eps", self.norm_eps, LEAST_EPS, LARGEST_EPS)
        if self.norm_eps != NORM_EPS and not norms:
            raise SettingError("norm_eps has no effect without norms; give both or neither.")

    def _names(self, given: Any) -> tuple[str, ...]:
        """Validate one activation or a sequence of them, and return their names."""
        row = entries(given) if is_row(given) else [given]
        names = tuple(entry.name if isinstance(entry, Function) else entry for entry in row)
        for name in names:
            activation_named(name)
        return names

    def _row(self, name: str, value: object) -> list[Any]:
        if not is_row(value):
            example = "pairs of layers, such as ((0, 2),)"
            example = example if name == "shortcuts" else "layers, such as (2,)"
            raise SettingError(f"{name} must be a sequence of {example}, got {quoted(value)}.")
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
                f"to the {self.widths[last]} of layer {last}, which must be as many. widths is "
                f"{self.widths}."
            )
        return first, last

    def in_words(self) -> str:
        """Return a short description, such as "3-4-1 tanh network with biases".

        Returns:
            The text.

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
        """Whether every layer reads only the one before it, and no layer has a norm."""
        return not self.shortcuts and not self.norms

    def sources(self, layer: int) -> tuple[int, ...]:
        """Return the layers from which shortcuts lead to `layer`.

        Args:
            layer: the number of the layer.

        Returns:
            The layers' numbers, 0 for the input.

        Example:
            >>> import icgd
            >>> icgd.MLP((3, 4, 3), shortcuts=((0, 2),)).sources(2)
            (0,)
        """
        return tuple(first for first, last in self.shortcuts if last == layer)

    def ends(self, layer: int) -> tuple[int, ...]:
        """Return the layers to which shortcuts lead from `layer`.

        Args:
            layer: the number of the layer, 0 for the input.

        Returns:
            The layers' numbers.

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
        """The shape (outputs, inputs) of every layer's matrix; biases count as one more input."""
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
        is_shared = isinstance(self.activation, str)
        return activation_named(self.activation if is_shared else self.activation[layer - 1])

    def matrices(self, parameters: Parameters) -> list[Matrix]:
        """Return the parameter vector as one matrix per layer.

        Args:
            parameters: the weights (..., n_parameters).

        Returns:
            The matrices, in the order of the layers.

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
        blocks: tuple[Tensor, ...] = parameters.split(sizes, dim=-1)
        shapes = self.matrix_shapes
        return [block.unflatten(-1, shape) for block, shape in zip(blocks, shapes, strict=True)]

    def layer_inputs(self, outputs: Values) -> Values:
        """Return the inputs of a layer's matrix: the previous outputs, and a 1 for biases.

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
        """Draw normal weights of variance 1 / fan-in, clipped to the box, reproducibly.

        Biases are 0, so the other weights equal those of the network without biases.

        Args:
            seed: the seed.
            box: the largest absolute value of a weight.
            tasks: the batch shape: () for one task, (n_tasks,) for a batch.

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
        draw = _drawn_cached if n_weights <= MOST_CACHED else _drawn
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


MOST_CACHED = 2**14
"""The largest number of weights that are cached by seed; many runs on small tasks share them."""

_drawn_cached = lru_cache(maxsize=16)(_drawn)
