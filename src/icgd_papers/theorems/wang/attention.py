r"""Appendix A: which token a head reads, in the forward layers and in the gradient layer.

Definition 1 adds to token i the mean over tokens j of sigma(<Q h_i, K h_j>) V h_j. What belongs to
token i must be in the query, and what is summed over tokens must be in the key.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from icgd.layers import ActivationAttention
from icgd_papers.theorems.statement import Comparison, Finding, Statement

EXACT = 1e-12
"""What rounding may change of numbers of order 1."""

N_EXAMPLES, UNITS = 4, 3
FIRST, SECOND, WRITE, ONE = range(UNITS), range(UNITS, 2 * UNITS), 2 * UNITS, 2 * UNITS + 1
"""The coordinates of a token: units or g, weights or the Jacobian, what is written, and 1."""


def _attend(
    stream: Tensor,
    heads: list[tuple[dict[int, float], dict[int, float], dict[int, float]]],
    activation: Callable[[Tensor], Tensor],
) -> Tensor:
    """What an attention layer writes: each head has the coordinates of query, key and value.

    The query's numbers are entries of one vector, and the key's entries stand in the same order.
    """
    size, n_heads = stream.shape[-1], len(heads)
    width = max(len(head[0]) for head in heads)
    query, key = (torch.zeros(n_heads, size, width, dtype=torch.float64) for _ in range(2))
    value = torch.zeros(n_heads, size, 1, dtype=torch.float64)
    output = torch.zeros(n_heads, 1, size, dtype=torch.float64)
    output[:, 0, WRITE] = 1.0
    for number, (asked, offered, carried) in enumerate(heads):
        for entry, (place, weight) in enumerate(asked.items()):
            query[number, place, entry] = weight
        for entry, (place, weight) in enumerate(offered.items()):
            key[number, place, entry] = weight
        for place, weight in carried.items():
            value[number, place, 0] = weight
    layer = ActivationAttention(query, key, value, output, activation=activation)
    return layer.forward(stream)[:, WRITE].detach()


def _stream(seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    stream = torch.randn(N_EXAMPLES + 1, ONE + 1, generator=source, dtype=torch.float64)
    stream[:, WRITE], stream[:, ONE] = 0.0, 1.0
    return stream


def forward_layers(seed: int) -> Finding:
    """One unit of the next layer, sum_k V[k] relu(z[k]), with a head for each k."""
    stream = _stream(seed)
    stream[:, list(SECOND)] = stream[0, list(SECOND)]  # all tokens hold the same weights
    wanted = (torch.relu(stream[:, list(FIRST)]) * stream[:, list(SECOND)]).sum(1)
    pairs = list(zip(FIRST, SECOND, strict=True))
    right = [({unit: 1.0}, {ONE: 1.0}, {weight: 1.0}) for unit, weight in pairs]
    printed = [({ONE: 1.0}, {unit: 1.0}, {weight: 1.0}) for unit, weight in pairs]
    case = "3 relu units, 4 examples and a query"
    return Finding(
        right=(_gap(f"{case}, unit in the query", _attend(stream, right, torch.relu), wanted),),
        printed=(_gap(f"{case}, unit in the key", _attend(stream, printed, torch.relu), wanted),),
    )


def gradient_layer(seed: int) -> Finding:
    """The mean of g_t J_t, with a b = ((a + b)^2 - (a - b)^2) / 4 for Q and sigma(t) = t^2."""
    stream = _stream(seed)
    g, jacobian = FIRST[0], SECOND[0]
    wanted = (stream[:, g] * stream[:, jacobian]).mean().expand(N_EXAMPLES + 1)

    def heads(
        is_printed: bool,
    ) -> list[tuple[dict[int, float], dict[int, float], dict[int, float]]]:
        found = []
        for sign in (1.0, -1.0):
            asked = {g: 1.0, ONE: sign} if is_printed else {ONE: 1.0}
            offered = {ONE: 1.0, jacobian: 1.0} if is_printed else {g: 1.0}
            found.append((asked, offered, {ONE: sign / 4}))
        return found

    printed = _attend(stream, heads(is_printed=True), torch.square)
    right = _both_in_the_key(stream, g, jacobian)
    case = "4 examples and a query, one weight"
    return Finding(
        right=(_gap(f"{case}, g and Jacobian in the key", right, wanted),),
        printed=(_gap(f"{case}, g in the query, Jacobian in the key", printed, wanted),),
    )


def _both_in_the_key(stream: Tensor, g: int, jacobian: int) -> Tensor:
    """The score g_t +- J_t of the key token t, with a constant query."""
    size = stream.shape[-1]
    query, key, value = (torch.zeros(2, size, 1, dtype=torch.float64) for _ in range(3))
    output = torch.zeros(2, 1, size, dtype=torch.float64)
    query[:, ONE, 0], output[:, 0, WRITE] = 1.0, 1.0
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    key[:, g, 0], key[:, jacobian, 0], value[:, ONE, 0] = 1.0, signs, signs / 4
    layer = ActivationAttention(query, key, value, output, activation=torch.square)
    return layer.forward(stream)[:, WRITE].detach()


def _gap(case: str, found: Tensor, wanted: Tensor) -> Comparison:
    off = float((found - wanted).abs().max())
    return Comparison(case, off, EXACT, "largest difference, at any token")


FORWARD_LAYERS = Statement(
    paper="wang",
    label="Appendix A, forward layers",
    claim=(
        "Attention with a constant query and the token's own unit in the key computes the next"
        " layer of the network at every token."
    ),
    formula="Q h_i = [a_1; a_2], K h_j = [pred_k(x_j); 1], V h_j = beta v[k] e",
    check=forward_layers,
    correction=(
        "The mean over key tokens averages the units of all tokens. The token's unit belongs in"
        " the query, Q h_i = [a_1 pred_k(x_i); a_2], and K h_j = [1; 1]."
    ),
)

GRADIENT_LAYER = Statement(
    paper="wang",
    label="Appendix A, gradient layer",
    claim=(
        "Attention with the loss slope in the query and the Jacobian in the key computes the mean"
        " of their products over examples."
    ),
    formula="Q h_i = [a_1 g_i; a_2; a_3], K h_j = [1; v_j; 1], V h_j = -eta (N+1)/N beta e",
    check=gradient_layer,
    correction=(
        "It multiplies the slope of token i by the Jacobians of all tokens. Both belong in the"
        " key: Q h_i = [a_1; a_2; a_3], K h_j = [g_j; v_j; 1]."
    ),
)
