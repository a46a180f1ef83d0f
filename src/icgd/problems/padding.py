r"""A network embedded in a wider one, whose additional units have zero weights.

Inputs and weights, biases included, are padded with zeros. A padded unit of layer j has z = 0, and

    its output              r_j(z) = r_j(0), which is 0 for relu, leaky_relu, tanh, gelu, silu
    its s_j                 r_j'(0) * (V_{j+1}^T s_{j+1}) = 0: its outgoing weights are 0
    gradient of V_j         s_j p_{j-1}^T = 0 in its row, bias included
    gradient of V_{j+1}     s_{j+1} r_j(0) in its column

So if r_j(0) = 0, the weights of a padded unit stay 0 and do not affect other units: gradient
descent on the wide network equals that on the narrow one, padded with zeros. The same holds for
Adam, momentum and weight decay, because their rules have no constant term: a weight of 0 with a
gradient and state of 0 stays 0.

If r_j(0) != 0, as for sigmoid and softplus, the last line is not 0 and the unit learns. No other
initial weights help: these functions are positive everywhere, so on any example the gradient of an
outgoing weight is 0 only where s_{j+1} is.

A padded output is r_N(0), and stays there if the loss is stationary at its label: r_N(0) itself for
losses of the difference, 1/2 for the logistic loss at 0. Losses are sums over outputs, so
additional outputs change nothing else. A softmax, in contrast, couples all classes.
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
    """Return the problem with a network of these widths, none larger than before.

    Raise `ConstructionError` if the depth differs, if a layer is wider, or if there are fewer
    classes.
    """
    wide = problem.network
    narrow = replace(wide, widths=tuple(as_row(widths)))
    if narrow.depth != wide.depth:
        raise ConstructionError(
            f"widths={narrow.widths} has {narrow.depth} layers, but the transformer was compiled "
            f"for {wide.depth}: widths={wide.widths}. Give {len(wide.widths)} widths, or change "
            "the depth with for_depth of cot-network."
        )
    for layer, (width, most) in enumerate(zip(narrow.widths, wide.widths, strict=True)):
        if width > most:
            raise ConstructionError(
                f"widths[{layer}] is {width}, wider than the {most} that the transformer was "
                f"compiled for: widths={wide.widths}. Compile with the largest widths of all "
                "networks."
            )
    if problem.loss_function.is_softmax and narrow.output_width < wide.output_width:
        raise ConstructionError(
            f"widths has {narrow.output_width} classes instead of {wide.output_width}: the other "
            "classes would keep a share of every softmax. Compile for this number of classes."
        )
    if any(layer_set.bound is None for layer_set in problem.network_oracle.sets.layers):
        raise ConstructionError(
            f"The box of the compiled problem, {sets_in_words(problem.gradient_step.box)}, is made "
            "for its widths, and padded weights need not stay 0 in it. Compile with a box of one "
            "number for each layer, or for the narrower network."
        )
    # Initial weights of the problem, if any, are those of the wide network.
    return replace(problem, target=narrow, initial=None)


@dataclass(frozen=True)
class Padding:
    """The embedding of the problem `narrow` in the problem `wide`.

    Raises `ConstructionError` if padded units would not stay 0.
    """

    wide: Problem
    narrow: Problem

    def __post_init__(self) -> None:
        small, large = self.narrow.network, self.wide.network
        for layer in range(1, large.depth + 1):
            if small.widths[layer] == large.widths[layer]:
                continue
            refused = f"widths[{layer}] must be {large.widths[layer]}, not {small.widths[layer]}"
            if layer in large.norms:
                raise ConstructionError(
                    f"{refused}: the norm of layer {layer} uses the mean and the variance of all "
                    "its units. Keep this width, or compile for the narrower network."
                )
            activation, value = large.layer_activation(layer).name, self._at_zero(layer)
            if layer < large.depth and value != 0:
                raise ConstructionError(
                    f"{refused}: {activation}(0) = {value:.3g}, so padded units would act as "
                    "biases and learn. Keep this width, use an activation with r(0) = 0, such as "
                    "tanh, or compile with cot-network, whose block masks padded units."
                )
        if small.output_width < large.output_width and self.label is None:
            raise ConstructionError(
                f"widths[{large.depth}] must be {large.output_width}, not {small.output_width}: "
                f"no label within {self.wide.domain.y:g} keeps a padded output at "
                f"{activation}(0) = {value:.3g} under the {self.wide.loss} loss. Keep this width."
            )

    def _at_zero(self, layer: int) -> float:
        """Return r(0) of a layer."""
        zero = torch.zeros((), dtype=torch.float64)
        return float(self.wide.network.layer_activation(layer).value(zero))

    @cached_property
    def label(self) -> float | None:
        """The label at which the loss of padded outputs is stationary, or None.

        Only 0 and 1/2 are considered, which are exact: with a rounded label the outputs would move.
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
        """The indices in the wide network's parameters of the narrow network's parameters.

        The parameters are the weights, followed by the state of the optimiser.
        """
        small, large, masks = self.narrow.network, self.wide.network, []
        for layer, (rows, _) in enumerate(small.matrix_shapes):
            matrix = torch.zeros(large.matrix_shapes[layer], dtype=torch.bool)
            matrix[:rows, : small.widths[layer]] = True
            if small.biases:
                matrix[:rows, -1] = True
            masks.append(matrix.flatten())
        n_copies = 1 + len(self.wide.gradient_step.remembered)
        return torch.cat(masks * n_copies).nonzero().squeeze(-1)

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
        """Select the parameters of the narrow network from those of the wide one."""
        return trained[..., self.places.to(trained.device)]

    def labels(self, predictions: Tensor) -> Tensor:
        """Select the outputs of the narrow network."""
        return predictions[..., : self.narrow.network.output_width]
