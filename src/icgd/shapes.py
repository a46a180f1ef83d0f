"""Tensor types with named axes, used in all signatures.

`*tasks` is empty for a single task, and one axis for a batch of tasks.
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
"""Factors of the gradients of the examples."""

Queries = Float[Tensor, "*tasks query input_width"]
"""Inputs of the queries."""

Predictions = Float[Tensor, "*tasks query output_width"]
"""Predictions at the queries."""

Stream = Float[Tensor, "*tasks token width"]
"""The residual stream: a row of features for each token."""

Columns = Float[Tensor, "*tasks column width"]
"""Tokens that others attend to; their number may differ from that of the attending tokens."""

Matrix = Float[Tensor, "*tasks row column"]
"""A weight matrix of the target network, one for each task."""

Parameters = Float[Tensor, "*tasks parameter"]
"""The trained parameters as one vector: all weights, layer by layer and row by row, or
coefficients; then the state of the optimiser, such as momentum."""

History = Float[Tensor, "*tasks step parameter"]
"""The parameter vector before the first step and after every step."""

Points = Float[Tensor, "*tasks left input_width"]
"""Points of the input space."""

OtherPoints = Float[Tensor, "*tasks right input_width"]
"""The second points of pairs, such as of a kernel."""

KernelMatrix = Float[Tensor, "*tasks left right"]
"""Kernel values of all pairs of points."""

Values = Float[Tensor, "..."]
"""Arguments of a function of one variable that is applied entry by entry."""

Activation = Callable[[Tensor], Tensor]
"""The activation of heads and hidden units, applied entry by entry."""
