r"""A causal transformer like GPT-2 that learns to predict labels in context.

A prompt becomes tokens (`TokenLayout`), which a linear map reads into a stream; learnt positions
may be added. A block reads the stream through layer norm and adds to it twice:

    stream <- stream + mix attention(norm stream),    stream <- stream + W_2 gelu(W_1 norm stream).

A last norm and a linear map read the prediction of each input's label at its place. Attention is
causal. With d the width of a head and i the number of places that a reader sees, it is

    softmax:  sum_{j <= i} softmax_j(<q_i, k_j> / sqrt(d)) v_j,
    relu:     (1 / i) sum_{j <= i} relu(<q_i, k_j> / sqrt(d)) v_j.

Without 1 / i, the output of relu attention would grow with the prompt. GELU is x Phi(x), with the
exact normal distribution: torch computes it faster than the approximation by tanh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from icgd.environment import require_memory
from icgd.errors import DataError, SettingError
from icgd.problems.settings import count, described, named
from icgd_papers.training.tasks import Batch

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
        """Return the entries of a token."""

    @abstractmethod
    def n_places(self, n_tokens: int) -> int:
        """Return the places that a prompt of `n_tokens` inputs takes, the query among them."""

    @abstractmethod
    def tokens(self, x: Inputs, y: Labels) -> Tokens:
        """Return the tokens of each task."""


@final
class Joint(TokenLayout):
    """Place i holds (x_i, x_{i-1}, y_{i-1}); the first has zeros for what is before it."""

    stride = 1

    def width(self, input_width: int, output_width: int) -> int:
        return 2 * input_width + output_width

    def n_places(self, n_tokens: int) -> int:
        return n_tokens

    def tokens(self, x: Inputs, y: Labels) -> Tokens:
        """Return the inputs beside the example before them."""
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
        """Return the inputs, each with its label behind it; the query's label is left out."""
        inputs = functional.pad(x, (0, y.shape[-1] + 1))
        labels = functional.pad(functional.pad(y, (x.shape[-1], 0)), (0, 1), value=1.0)
        return torch.stack([inputs, labels], dim=2).flatten(1, 2)[:, :-1]


TOKEN_LAYOUTS: dict[str, TokenLayout] = {"joint": Joint(), "interleaved": Interleaved()}
"""The layouts by name."""


REMEDY = "Give smaller sizes or shorter prompts, or compute the gradient in parts (accumulate)."

COPIES = 4
"""A weight, its gradient and two moments of Adam."""

Heads = Float[Tensor, "task head place head_width"]
"""The queries, keys, values or outputs of all heads."""

Stream = Float[Tensor, "task place width"]
"""What the places hold between blocks."""

POSITION_SCALE = 0.1
"""The standard deviation of the first positions, which are small beside a token."""


class Block(NamedTuple):
    """The weights of one block."""

    qkv: Tensor
    mix: Tensor
    hidden: Tensor
    out: Tensor
    norms: Tensor
    norm_biases: Tensor


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
        weights = f"A decoder of {self.n_weights:,} weights"
        require_memory(weights, 8 * self.n_weights, REMEDY)  # they are drawn in float64
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
    def n_weights(self) -> int:
        """Count the weights that training changes."""
        block = 4 * self.width**2 + 2 * self.width * self.mlp_width + 4 * self.width
        token_width = self._layout.width(self.input_width, self.output_width)
        ends = token_width + 1 + (self.n_positions or 0) + 2 + self.output_width
        return self.n_blocks * block + self.width * ends + self.output_width

    def n_activations(self, n_tasks: int, n_places: int) -> int:
        """Count the numbers that a forward pass keeps for the backward pass, but for small ones.

        At a place, a block keeps the stream and its norm twice, queries, keys, values, the output
        of attention, and the hidden units before and after GELU. Relu attention keeps a score and a
        weight of each head for every place that is read; torch's softmax attention does not.
        """
        scores = 0 if self.attention == "softmax" else 2 * self.n_heads * n_places
        return n_tasks * n_places * self.n_blocks * (8 * self.width + 2 * self.mlp_width + scores)

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
            n_numbers = COPIES * self.n_weights + self.n_activations(n_tasks, n_places)
            require_memory(
                f"Training a decoder of {self.n_weights:,} weights on {n_tasks:,} prompts of "
                f"{n_places:,} places at a time",
                self.read_in.element_size() * n_numbers,
                REMEDY,
            )

    @classmethod
    def of_description(cls, data: Mapping[str, Any]) -> Decoder:
        """Build the model that `description` describes, with its initial weights."""
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
        """Return prediction at the query, which is the last token; its own label is not read."""
        stream = self._streams(self._begin(x, y), slice(-1, None))[-1]
        return self._read(stream).reshape(y[:, -1].shape)

    def predictions(
        self,
        x: Float[Tensor, "task token input_width"],
        y: Float[Tensor, "task token *output_width"],
    ) -> Float[Tensor, "task token *output_width"]:
        """Return the prediction of every token's label from the examples before it."""
        stream = self._streams(self._begin(x, y), self._layout.predicting)[-1]
        return self._read(stream).reshape(y.shape)

    def streams(
        self,
        x: Float[Tensor, "task token input_width"],
        y: Float[Tensor, "task token *output_width"],
    ) -> list[Float[Tensor, "task token width"]]:
        """Return the stream after each block, at the places that predict: block by block,
        for read-outs.

        The last one, through the last norm and the read-out, gives `predictions`.
        """
        *inner, last = self._streams(self._begin(x, y), self._layout.predicting)
        return [*(stream[:, self._layout.predicting] for stream in inner), last]

    def _read(self, stream: Stream) -> Tensor:
        normed = layer_norm(stream, (self.width,), self.last_norm, self.last_norm_bias)
        return linear(normed, self.read_out, self.read_out_bias)

    def _begin(self, x: Inputs, y: Tensor) -> Stream:
        """Return the stream before the first block."""
        stream = linear(self._tokens(x, y), self.read_in, self.read_in_bias).to(self.read_in.dtype)
        return stream if self.positions is None else stream + self.positions[: stream.shape[1]]

    def _streams(self, stream: Tensor, predicting: slice) -> list[Tensor]:
        """Return the streams after the blocks, the last one at the tokens `predicting` only."""
        streams = []
        stacks = self.qkv, self.mix, self.hidden, self.out, self.norms, self.norm_biases
        for number, tensors in enumerate(zip(*stacks, strict=True), start=1):
            block = Block(*tensors)
            stream = self._attended(stream, block)
            stream = stream[:, predicting] if number == self.n_blocks else stream
            stream = self._thought(stream, block)
            streams.append(stream)
        return streams

    def _tokens(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the tokens of a prompt, if the model can read it."""
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

    def _attended(self, stream: Stream, block: Block) -> Stream:
        """Return the stream after attention."""
        normed = layer_norm(stream, (self.width,), block.norms[0], block.norm_biases[0])
        parts = linear(normed, block.qkv).split(self.width, dim=-1)
        query, key, value = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts
        )
        gathered = self._attend(query, key, value).transpose(1, 2).flatten(2)
        return _added(stream, gathered, block.mix)

    def _thought(self, stream: Stream, block: Block) -> Stream:
        """Return the stream after the MLP."""
        normed = layer_norm(stream, (self.width,), block.norms[1], block.norm_biases[1])
        return _added(stream, gelu(linear(normed, block.hidden)), block.out)


def _added(stream: Stream, signal: Tensor, matrix: Tensor) -> Stream:
    """Return the stream plus the matrix times a signal, as one operation if both have one
    precision.

    Under autocast the signal is in bfloat16, and the stream keeps its precision.
    """
    if signal.dtype != stream.dtype:
        return stream + linear(signal, matrix)
    flat = torch.addmm(stream.flatten(0, 1), signal.flatten(0, 1), matrix.mT)
    return flat.view_as(stream)


def softmax_attention(query: Heads, key: Heads, value: Heads) -> Heads:
    """Attend from each place to itself and those before it, by a softmax of the scores."""
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def relu_attention(query: Heads, key: Heads, value: Heads) -> Heads:
    """Return the same by relu of the scores over the number of places that are read."""
    n_places, head_width = query.shape[-2:]
    n_read = torch.arange(1, n_places + 1, device=query.device, dtype=query.dtype)
    # 1 / (i sqrt(head_width)) in row i for the places up to i, and 0 for those after it.
    shares = (1 / n_read)[:, None].expand(-1, n_places).tril() * head_width**-0.5
    gathered: Tensor = (torch.relu(query @ key.mT) * shares) @ value
    return gathered


ATTENTIONS: dict[str, Callable[[Heads, Heads, Heads], Heads]] = {
    "softmax": softmax_attention,
    "relu": relu_attention,
}
"""The kinds of attention by name."""
