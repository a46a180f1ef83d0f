r"""A causal transformer like GPT-2 that learns to predict labels in context.

A prompt becomes tokens (`token_layouts.py`), which a linear map reads into a stream; learnt
positions may be added. A block reads the stream through layer norm and adds to it twice:

    stream <- stream + mix attention(norm stream),    stream <- stream + W_2 gelu(W_1 norm stream).

A last norm and a linear map read the prediction of each input's label at its place. Attention is
causal. With d the width of a head and i the number of places that a reader sees, it is

    softmax:  sum_{j <= i} softmax_j(<q_i, k_j> / sqrt(d)) v_j,
    relu:     (1 / i) sum_{j <= i} relu(<q_i, k_j> / sqrt(d)) v_j.

Without 1 / i, the output of relu attention would grow with the prompt. GELU is x Phi(x), with the
exact normal distribution: torch computes it faster than the approximation by tanh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from icgd.errors import DataError, SettingError
from icgd.problems.settings import count, described, named
from icgd_papers.training.decoder_memory import DecoderMemory
from icgd_papers.training.fast_blocks import Block, FastBlocks, shares_of_places
from icgd_papers.training.tasks import Batch
from icgd_papers.training.token_layouts import TOKEN_LAYOUTS, Inputs

Heads = Float[Tensor, "task head place head_width"]
"""The queries, keys, values or outputs of all heads."""

Stream = Float[Tensor, "task place width"]
"""What the places hold between blocks."""

POSITION_SCALE = 0.1
"""The standard deviation of the first positions, which are small beside a token."""


class Decoder(nn.Module):
    """A GPT-2 like transformer of `n_blocks` blocks; see the head of this file.

    `mlp_width` is the hidden width of the MLPs (default 4 * width, as in GPT-2). `attention` is
    "softmax" or "relu"; `tokens` is "joint", an example at each place, or "interleaved", inputs and
    labels in turn. `n_positions` is the number of places that have learnt positions, which no
    prompt may exceed; without it there are none. The first numbers follow from `seed` alone. They
    are float64; training converts them.
    """

    def __init__(
        self,
        *,
        input_width: int,
        n_blocks: int,
        width: int,
        n_heads: int,
        seed: int,
        mlp_width: int | None = None,
        attention: str = "softmax",
        tokens: str = "joint",
        n_positions: int | None = None,
        output_width: int = 1,
    ) -> None:
        super().__init__()
        self.input_width = count("input_width", input_width)
        self.n_blocks = count("n_blocks", n_blocks)
        self.width, self.n_heads = count("width", width), count("n_heads", n_heads)
        if self.width % self.n_heads:
            raise SettingError(
                f"width={self.width} is not a multiple of n_heads={self.n_heads}, and heads share "
                "it equally. Give a width that is a multiple of the number of heads."
            )
        self.mlp_width = count("mlp_width", 4 * self.width if mlp_width is None else mlp_width)
        self.attention, self.tokens = attention, tokens
        self._attend = named("attention", attention, ATTENTIONS)
        self._layout = named("layout of tokens", tokens, TOKEN_LAYOUTS)
        self.n_positions = None if n_positions is None else count("n_positions", n_positions)
        self.output_width = count("output_width", output_width)
        self.seed = count("seed", seed, least=0)
        self.memory.require_weights()
        self._draw(np.random.default_rng(self.seed))

    def _draw(self, generator: np.random.Generator) -> None:
        """Draw matrices of variance 1 / inputs; what adds to the stream is divided by its depth."""

        def gaussian(scale: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(scale * torch.from_numpy(generator.standard_normal(shape)))

        def constant(value: int, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.full(shape, float(value), dtype=torch.float64))

        n, width, hidden = self.n_blocks, self.width, self.mlp_width
        token_width = self._layout.width(self.input_width, self.output_width)
        added = (2 * n) ** -0.5
        self.read_in = gaussian(token_width**-0.5, width, token_width)
        self.read_in_bias = constant(0, width)
        self.qkv = gaussian(width**-0.5, n, 3 * width, width)
        self.mix = gaussian(added * width**-0.5, n, width, width)
        self.hidden = gaussian(width**-0.5, n, hidden, width)
        self.out = gaussian(added * hidden**-0.5, n, width, hidden)
        self.norms, self.norm_biases = constant(1, n, 2, width), constant(0, n, 2, width)
        self.last_norm, self.last_norm_bias = constant(1, width), constant(0, width)
        self.read_out = gaussian(width**-0.5, self.output_width, width)
        self.read_out_bias = constant(0, self.output_width)
        positions = self.n_positions
        self.positions = gaussian(POSITION_SCALE, positions, width) if positions else None

    @property
    def memory(self) -> DecoderMemory:
        """What this model takes in memory."""
        return DecoderMemory(
            n_blocks=self.n_blocks,
            width=self.width,
            mlp_width=self.mlp_width,
            n_heads=self.n_heads,
            token_width=self._layout.width(self.input_width, self.output_width),
            n_positions=self.n_positions or 0,
            output_width=self.output_width,
            attention=self.attention,
        )

    def require(self, batch: Batch, n_tasks: int) -> None:
        """Raise an error unless the model can be trained on `n_tasks` prompts like these at a time.

        The loop asks before training begins. A graphics card has a memory of its own, of which it
        tells only when it is full.
        """
        self._tokens(batch.x[:1], batch.y[:1])
        self.require_room(batch.x.shape[1], n_tasks)

    def require_room(self, n_tokens: int, n_tasks: int) -> None:
        """Raise `SizeError` if so many prompts of so many tokens take too much memory."""
        if self.read_in.device.type == "cpu":
            n_places = self._layout.n_places(n_tokens)
            self.memory.require_training(n_tasks, n_places, self.read_in.element_size())

    @classmethod
    def of_description(cls, data: Mapping[str, Any]) -> Decoder:
        """The model that `description` told of, with its first numbers."""
        with described("decoder"):
            return cls(**{name: value for name, value in data.items() if name != "kind"})

    def description(self) -> dict[str, Any]:
        """Plain data that identifies this model before training; checkpoints hold it."""
        return {
            "kind": "decoder",
            "input_width": self.input_width,
            "n_blocks": self.n_blocks,
            "width": self.width,
            "n_heads": self.n_heads,
            "mlp_width": self.mlp_width,
            "attention": self.attention,
            "tokens": self.tokens,
            "n_positions": self.n_positions,
            "output_width": self.output_width,
            "seed": self.seed,
        }

    def forward(
        self,
        x: Float[Tensor, "task token input_width"],
        y: Float[Tensor, "task token *output_width"],
    ) -> Float[Tensor, "task *output_width"]:
        """The prediction at the query, which is the last token; its own label is not read."""
        stream = self._last_stream(x, y, slice(-1, None))
        return self._read(stream).reshape(y[:, -1].shape)

    def predictions(
        self,
        x: Float[Tensor, "task token input_width"],
        y: Float[Tensor, "task token *output_width"],
    ) -> Float[Tensor, "task token *output_width"]:
        """The prediction of every token's label from the examples before it."""
        stream = self._last_stream(x, y, self._layout.predicting)
        return self._read(stream).reshape(y.shape)

    def streams(
        self,
        x: Float[Tensor, "task token input_width"],
        y: Float[Tensor, "task token *output_width"],
    ) -> list[Float[Tensor, "task token width"]]:
        """The stream after each block, at the places that predict: block by block, for read-outs.

        The last one, through the last norm and the read-out, gives `predictions`.
        """
        *inner, last = self._streams(self._begin(x, y), self._layout.predicting)
        return [*(stream[:, self._layout.predicting] for stream in inner), last]

    def _read(self, stream: Stream) -> Tensor:
        normed = layer_norm(stream, (self.width,), self.last_norm, self.last_norm_bias)
        return linear(normed, self.read_out, self.read_out_bias)

    def _begin(self, x: Inputs, y: Tensor) -> Stream:
        """The stream before the first block."""
        stream = linear(self._tokens(x, y), self.read_in, self.read_in_bias).to(self.read_in.dtype)
        return stream if self.positions is None else stream + self.positions[: stream.shape[1]]

    def _last_stream(self, x: Inputs, y: Tensor, kept: slice) -> Stream:
        """The stream after the last block at the places that are kept, by the fastest way."""
        stream = self._begin(x, y)
        if stream.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return self._streams(stream, kept)[-1]
        how = self.n_heads, self.attention, kept
        last: Tensor = FastBlocks.apply(stream, *how, *self._blocks)  # type: ignore[no-untyped-call]
        return last

    def _streams(self, stream: Tensor, kept: slice) -> list[Tensor]:
        """The streams after the blocks; the last one has only the places that are kept."""
        streams = []
        for number, block in enumerate(self._blocks.unbound(), start=1):
            stream = self._attended(stream, block)
            stream = stream[:, kept] if number == self.n_blocks else stream
            stream = self._thought(stream, block)
            streams.append(stream)
        return streams

    def _tokens(self, x: Inputs, y: Tensor) -> Tensor:
        """The tokens of a prompt, if the model can read it."""
        if x.shape[-1] != self.input_width:
            raise DataError(
                f"x has shape {tuple(x.shape)}; expected (task, token, {self.input_width})."
            )
        labels = y[..., None] if y.ndim == 2 else y
        if labels.shape[-1] != self.output_width:
            raise DataError(
                f"y has shape {tuple(y.shape)}; expected (task, token, {self.output_width})."
            )
        self.require_length(x.shape[1])
        return self._layout.tokens(x, labels)

    def require_length(self, n_tokens: int) -> None:
        """Raise `DataError` unless prompts of `n_tokens`, with the query, have positions."""
        n_places = self._layout.n_places(n_tokens)
        if self.n_positions is not None and n_places > self.n_positions:
            raise DataError(
                f"A prompt of {n_tokens - 1} examples and a query takes {n_places} places; the "
                f"decoder has n_positions={self.n_positions}. Give shorter prompts, or make a "
                f"decoder with n_positions={n_places}, or without positions (n_positions=None)."
            )

    @property
    def _blocks(self) -> Block:
        """The numbers of all blocks."""
        stacks = self.qkv, self.mix, self.hidden, self.out, self.norms, self.norm_biases
        return Block(*stacks)

    def _attended(self, stream: Stream, block: Block) -> Stream:
        """The stream after attention."""
        normed = layer_norm(stream, (self.width,), block.norms[0], block.norm_biases[0])
        parts = linear(normed, block.qkv).split(self.width, dim=-1)
        query, key, value = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts
        )
        gathered = self._attend(query, key, value).transpose(1, 2).flatten(2)
        return _added(stream, gathered, block.mix)

    def _thought(self, stream: Stream, block: Block) -> Stream:
        """The stream after the MLP."""
        normed = layer_norm(stream, (self.width,), block.norms[1], block.norm_biases[1])
        return _added(stream, gelu(linear(normed, block.hidden)), block.out)


def _added(stream: Stream, signal: Tensor, matrix: Tensor) -> Stream:
    """The stream plus the matrix times a signal, as one operation if both have one precision.

    Under autocast the signal is in bfloat16, and the stream keeps its precision.
    """
    if signal.dtype != stream.dtype:
        return stream + linear(signal, matrix)
    flat = torch.addmm(stream.flatten(0, 1), signal.flatten(0, 1), matrix.mT)
    return flat.view_as(stream)


def softmax_attention(query: Heads, key: Heads, value: Heads) -> Heads:
    """Each place reads itself and those before it, by a softmax of the scores."""
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def relu_attention(query: Heads, key: Heads, value: Heads) -> Heads:
    """The same by relu of the scores over the number of places that are read."""
    shares = shares_of_places(query.shape[-2], query.shape[-1], query)
    gathered: Tensor = (torch.relu(query @ key.mT) * shares) @ value
    return gathered


ATTENTIONS: dict[str, Callable[[Heads, Heads, Heads], Heads]] = {
    "softmax": softmax_attention,
    "relu": relu_attention,
}
"""The kinds of attention by name."""
