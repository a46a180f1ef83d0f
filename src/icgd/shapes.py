"""Names of tensor axes, used in every signature: a shape is written in words.

`*tasks` is empty for one task and one axis for a batch of tasks.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

Inputs = Float[Tensor, "*tasks example input_width"]
"""Inputs of the examples."""

Labels = Float[Tensor, "*tasks example output_width"]
"""Labels of the examples, or predictions at them."""

Rates = Float[Tensor, "*tasks example 1"]
"""By what gradients of the examples are multiplied."""

Queries = Float[Tensor, "*tasks query input_width"]
"""Inputs of the queries."""

Predictions = Float[Tensor, "*tasks query output_width"]
"""Predictions at the queries."""

Stream = Float[Tensor, "*tasks token width"]
"""The residual stream: a row of features for each token."""

Columns = Float[Tensor, "*tasks column width"]
"""Tokens of the residual stream that others read, which need not be as many."""

Matrix = Float[Tensor, "*tasks row column"]
"""A weight matrix of the target network, one for each task."""

Parameters = Float[Tensor, "*tasks parameter"]
"""What a run trains, in one vector: all weights, layer by layer and row by row, or coefficients;
then what the optimiser remembers of them, such as momentum."""

History = Float[Tensor, "*tasks step parameter"]
"""The parameter vector before the first step and after every step."""

Points = Float[Tensor, "*tasks left input_width"]
"""Points of the input space."""

OtherPoints = Float[Tensor, "*tasks right input_width"]
"""Points that the first ones are compared with."""

KernelMatrix = Float[Tensor, "*tasks left right"]
"""The kernel of every pair of points."""

Values = Float[Tensor, "..."]
"""Numbers that a function of one variable is applied to, entry by entry."""

Activation = Callable[[Tensor], Tensor]
"""What heads and hidden units apply, entry by entry."""
