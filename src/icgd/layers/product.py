"""The product layer: each token multiplies features of its own."""

from __future__ import annotations

from icgd.layers.attention import Headed, features, written
from icgd.shapes import Stream


class ProductLayer(Headed):
    """x[i] + sum_head <W_Q x[i], W_K x[i]> W_O W_V x[i]: attention of a token to itself."""

    def forward(self, x: Stream) -> Stream:
        score = (features(x, self.W_Q) * features(x, self.W_K)).sum(-1, keepdim=True)
        return x + written(score * features(x, self.W_V), self.W_O)
