"""How a prompt becomes tokens: an example at each, or inputs and labels in turn.

A token holds nothing but what its prediction may read. So a causal transformer predicts the label
of every input of a prompt at once, each from the examples before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Inputs = Float[Tensor, "task token input_width"]
"""The inputs of all tokens of a prompt, the query last."""

Labels = Float[Tensor, "task token output_width"]
"""Their labels; the last one is never read."""

Tokens = Float[Tensor, "task place token_width"]
"""What the places of a stream hold."""


class TokenLayout(ABC):
    """A rule that turns a prompt into tokens; every `stride`-th place predicts, from the first."""

    stride: ClassVar[int]

    @property
    def predicting(self) -> slice:
        """The places at which predictions are read."""
        return slice(None, None, self.stride)

    @abstractmethod
    def width(self, input_width: int, output_width: int) -> int:
        """The entries of a token."""

    @abstractmethod
    def n_places(self, n_tokens: int) -> int:
        """The places that a prompt of `n_tokens` inputs takes, the query among them."""

    @abstractmethod
    def tokens(self, x: Inputs, y: Labels) -> Tokens:
        """The tokens of each task."""


@final
class Joint(TokenLayout):
    """Place i holds (x_i, x_{i-1}, y_{i-1}); the first has zeros for what is before it."""

    stride = 1

    def width(self, input_width: int, output_width: int) -> int:
        return 2 * input_width + output_width

    def n_places(self, n_tokens: int) -> int:
        return n_tokens

    def tokens(self, x: Inputs, y: Labels) -> Tokens:
        """The inputs beside the example before them."""
        before = torch.cat([x, y], dim=-1)[:, :-1]
        return torch.cat([x, functional.pad(before, (0, 0, 1, 0))], dim=-1)


@final
class Interleaved(TokenLayout):
    """Places hold x_1, y_1, x_2, y_2, ... and the query: (x, 0, 0) for x, and (0, y, 1) for y.

    A linear map of these is a map of its own for inputs and another for labels, each with a bias.
    """

    stride = 2

    def width(self, input_width: int, output_width: int) -> int:
        return input_width + output_width + 1

    def n_places(self, n_tokens: int) -> int:
        return 2 * n_tokens - 1

    def tokens(self, x: Inputs, y: Labels) -> Tokens:
        """The inputs, each with its label behind it; the query's label is left out."""
        inputs = functional.pad(x, (0, y.shape[-1] + 1))
        labels = functional.pad(functional.pad(y, (x.shape[-1], 0)), (0, 1), value=1.0)
        return torch.stack([inputs, labels], dim=2).flatten(1, 2)[:, :-1]


TOKEN_LAYOUTS: dict[str, TokenLayout] = {"joint": Joint(), "interleaved": Interleaved()}
"""The layouts by name."""
