r"""A network inside a wider one, whose other units have weights of 0 on both sides.

Pad inputs and weights with zeros, biases included. A padded unit of layer j has z = 0, and

    its output              r_j(z) = r_j(0), which is 0 for relu, leaky_relu, tanh, gelu, silu
    its s_j                 r_j'(0) * (V_{j+1}^T s_{j+1}) = 0: its weights above are 0
    gradient of V_j         s_j p_{j-1}^T = 0 in its row, bias included
    gradient of V_{j+1}     s_{j+1} r_j(0) in its column

So the weights of a padded unit stay 0 if r_j(0) = 0, and do not affect other units: gradient
descent on the wide network is that on the narrow one, padded with zeros. An optimiser's rule has no
constant term, so that weights of 0 whose gradient and state are 0 stay 0 under Adam, momentum and
weight decay too.

If r_j(0) != 0, as for sigmoid and softplus, the last line is not 0, and the unit learns. No other
initial weights help: both functions are positive everywhere, so the gradient of a weight above is 0
on an example only where s_{j+1} is.

A padded output is r_N(0), and stays there if the loss is stationary at its label: r_N(0) itself for
losses of the difference, 1/2 for the logistic loss at 0. Losses are sums over outputs, so further
outputs change nothing else. Classes share one softmax, of which a further class takes a share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import ConstructionError
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.problems.sets import sets_in_words
from icgd.problems.settings import as_row


def narrowed(problem: Problem, widths: Sequence[int]) -> Problem:
    """Return the problem of a network of the same depth that is nowhere wider.

    Raise `ConstructionError` if it is deeper, shallower or wider, or has fewer classes.
    """
    wide = problem.network
    narrow = replace(wide, widths=tuple(as_row(widths)))
    if narrow.depth != wide.depth:
        raise ConstructionError(
            f"widths={narrow.widths} are those of {narrow.depth} layers, but the transformer was "
            f"compiled for {wide.depth}: widths={wide.widths}. Give {len(wide.widths)} widths; "
            "networks of every depth are what for_depth of cot-network is for."
        )
    for layer, (given, most) in enumerate(zip(narrow.widths, wide.widths, strict=True)):
        if given > most:
            raise ConstructionError(
                f"widths[{layer}] is {given}, wider than the {most} that the transformer was "
                f"compiled for: widths={wide.widths}. Compile with the largest widths of all "
                "networks."
            )
    if problem.loss_function.is_softmax and narrow.output_width < wide.output_width:
        raise ConstructionError(
            f"{narrow.output_width} of {wide.output_width} classes cannot be trained: the others "
            "have shares of every softmax. Compile for the number of classes itself."
        )
    if any(of_layer.bound is None for of_layer in problem.network_oracle.sets.layers):
        raise ConstructionError(
            f"{sets_in_words(problem.gradient_step.box)}, are sets of weights of the compiled "
            "widths, and padded weights need not stay 0 in them. Compile with a box of one number "
            "for each layer, or for the narrower network."
        )
    # The initial weights that a problem brings along are those of the wide network.
    return replace(problem, target=narrow, initial=None)


@dataclass(frozen=True)
class Padding:
    """The problem `narrow` inside the problem `wide`.

    Raises `ConstructionError` if padded units would not stay unchanged.
    """

    wide: Problem
    narrow: Problem

    def __post_init__(self) -> None:
        small, large = self.narrow.network, self.wide.network
        for layer in range(1, large.depth + 1):
            if small.widths[layer] == large.widths[layer]:
                continue
            where = f"widths[{layer}] cannot be {small.widths[layer]} of {large.widths[layer]}"
            if layer in large.norms:
                raise ConstructionError(
                    f"{where}: the norm of layer {layer} takes the mean and the variance of all "
                    "its units. Keep this width, or compile for the narrower network."
                )
            activation, value = large.layer_activation(layer).name, self._at_zero(layer)
            if layer < large.depth and value != 0:
                raise ConstructionError(
                    f"{where}: {activation}(0) = {value:.3g}, so padded units would act as biases "
                    "and learn. Keep this width, take an activation with r(0) = 0, such as tanh, "
                    "or compile with cot-network, whose block closes padded units."
                )
        if small.output_width < large.output_width and self.label is None:
            raise ConstructionError(
                f"widths[{large.depth}] cannot be {small.output_width} of {large.output_width}: no "
                f"label within {self.wide.domain.y:g} leaves a padded output where it is, at "
                f"{activation}(0) = {value:.3g}, under the {self.wide.loss} loss. Keep this width."
            )

    def _at_zero(self, layer: int) -> float:
        """Return r(0) of a layer."""
        zero = torch.zeros((), dtype=torch.float64)
        return float(self.wide.network.layer_activation(layer).value(zero))

    @cached_property
    def label(self) -> float | None:
        """The label of padded outputs, at which the loss is stationary; None if there is none.

        It is 0 or 1/2, which are exact: a rounded label would let the outputs move.
        """
        output = self._at_zero(self.wide.network.depth)
        candidates = (0.0, 0.5) if output in (0.0, 0.5) else ()
        for label in candidates:
            p, y = torch.tensor([[[output]], [[label]]], dtype=torch.float64)
            if label <= self.wide.domain.y and self.wide.loss_function.slope(p, y) == 0:
                return label
        return None

    @cached_property
    def places(self) -> Tensor:
        """The index in the wide network of each trained number.

        These are the weights, and the optimiser's state of each.
        """
        small, large, kept = self.narrow.network, self.wide.network, []
        for layer, (rows, _) in enumerate(small.matrix_shapes):
            matrix = torch.zeros(large.matrix_shapes[layer], dtype=torch.bool)
            matrix[:rows, : small.widths[layer]] = True
            if small.biases:
                matrix[:rows, -1] = True
            kept.append(matrix.flatten())
        n_copies = 1 + len(self.wide.gradient_step.remembered)
        return torch.cat(kept * n_copies).nonzero().squeeze(-1)

    def trained(self, narrow: Tensor) -> Tensor:
        """Pad weights and the optimiser's state with zeros."""
        n_wide = sum(rows * columns for rows, columns in self.wide.oracle.weight_shapes)
        wide = narrow.new_zeros(*narrow.shape[:-1], n_wide)
        wide[..., self.places.to(wide.device)] = narrow
        return wide

    def task(self, task: Task) -> Task:
        """Pad inputs with zeros, and labels with the label of padded outputs."""
        small, large = self.narrow.network, self.wide.network
        inputs = (0, large.input_width - small.input_width)
        labels = (0, large.output_width - small.output_width)
        return Task(
            functional.pad(task.x, inputs),
            functional.pad(task.y, labels, value=self.label or 0.0),
            functional.pad(task.queries, inputs),
            self.trained(task.initial),
            rates=task.rates,
        )

    def read(self, trained: Tensor) -> Tensor:
        """Select the trained numbers of the narrow network from those of the wide one."""
        return trained[..., self.places.to(trained.device)]

    def labels(self, predictions: Tensor) -> Tensor:
        """Select the outputs of the narrow network."""
        return predictions[..., : self.narrow.network.output_width]
