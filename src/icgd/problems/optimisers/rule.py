r"""A rule is one step of an optimiser as data: sums of quantities, a root and a product.

Entry by entry, a step reads the weights w, the gradient g and the optimiser's state s, and gives

    g  <- g + decay * w
    s' <- sum of coefficient * quantity        of w, g, s and g^2, for each part of the state
    d  <- m / (sqrt(v) + eps)                  of one of them and of a sum v, if there is a root
    w' <- clip(sum of coefficient * quantity)  of w, g, s' and d

The reference algorithm evaluates this in float64, and constructions turn the same data into layers.
So both do the same by construction, and a new optimiser is a new table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from icgd.shapes import Parameters

WEIGHTS, GRADIENT, SQUARE, SCALED = "weights", "gradient", "square", "scaled"
"""The quantities besides the state: w, g, g^2 and d."""

Sum = Mapping[str, float]
"""Quantities with their coefficients."""


@dataclass(frozen=True)
class Root:
    """d = `factor` / (sqrt(`argument`) + `eps`)."""

    factor: str
    argument: Sum
    eps: float


@dataclass(frozen=True)
class Rule:
    """One step of an optimiser, entry by entry."""

    weights: Sum
    state: Mapping[str, Sum] = field(default_factory=dict)
    decay: float = 0.0
    root: Root | None = None

    def applied(
        self, weights: Parameters, gradient: Parameters, state: Mapping[str, Parameters]
    ) -> tuple[Parameters, dict[str, Parameters]]:
        """The weights after the step, before they are clipped, and the new state."""
        gradient = gradient + self.decay * weights if self.decay else gradient
        known: dict[str, Tensor] = {WEIGHTS: weights, GRADIENT: gradient, **state}
        if self.root is not None:
            known[SQUARE] = gradient * gradient
        moved = {name: evaluated(terms, known) for name, terms in self.state.items()}
        if self.root is not None:
            spread = evaluated(self.root.argument, known).clamp_min(0.0).sqrt() + self.root.eps
            known[SCALED] = (known | moved)[self.root.factor] / spread
        return evaluated(self.weights, known | moved), moved

    @property
    def linear(self) -> dict[str, Sum]:
        """New weights and state as sums of old quantities, of a rule without a root.

        Weight decay is part of the gradient, and the new state is put into the weights. What is
        named does not depend on numbers: a coefficient may be 0 in one step and not in the next.
        """
        state = {name: self._with_decay(terms) for name, terms in self.state.items()}
        weights: dict[str, float] = {}
        for quantity, factor in self._with_decay(self.weights).items():
            for inner, share in state.get(quantity, {quantity: 1.0}).items():
                weights[inner] = weights.get(inner, 0.0) + factor * share
        return {WEIGHTS: weights, **state}

    def _with_decay(self, terms: Sum) -> dict[str, float]:
        if not self.decay or GRADIENT not in terms:
            return dict(terms)
        return {**terms, WEIGHTS: terms.get(WEIGHTS, 0.0) + self.decay * terms[GRADIENT]}


def evaluated(terms: Sum, known: Mapping[str, Tensor]) -> Tensor:
    """The sum of coefficients times quantities."""
    total = torch.zeros_like(known[WEIGHTS])
    for name, factor in terms.items():
        total = total + factor * known[name]
    return total
