"""Open a compiled softmax transformer in TransformerLens, as a model with hooks and caches.

A block of TransformerLens is an attention layer and an MLP. Each layer of the program gets a
separate block, in which the other kind is zero. So the residual stream after the layer is the
output of its block, where a patch reaches everything downstream. (The stream between attention and
MLP cannot be patched: `hook_resid_mid` is the input of the MLP, but the skip connection bypasses
it.) All blocks have the number and width of heads of the largest; padding with zeros writes
nothing. The repeated layers are unrolled, and their copies share weights.

Kernel attention with the softmax kernel attends to examples only. TransformerLens has no such mask,
so keys of examples get one more feature, and queries a bias, which raise scores by EXAMPLE_LIFT.

Everything else is disabled: positional embeddings are zero, and the unembedding is the identity, so
that `model(stream)` is the residual stream after the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from icgd.backends.prompt import encode, read_parameters, read_predictions
from icgd.compiled import Compiled
from icgd.errors import DataError, ExportError, LayoutError, MissingExtraError, UnknownNameError
from icgd.exports.streams import as_batch
from icgd.layers import KernelAttention, MLPLayer, SoftmaxAttention, Transformer
from icgd.problems.data import Task, dtype_named
from icgd.problems.settings import count
from icgd.program.instructions import LayerKind
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import IS_EXAMPLE, Layout
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.reprs import counted, with_repr
from icgd.shapes import Parameters, Predictions, Stream

try:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
except ImportError:  # the extra `lens` is not installed
    TransformerBridge = TransformerBridgeConfig = None

MAX_TOKENS = 4096
"""The default length of the longest prompt."""

SCORE_SCALE = 2.0
"""The factor of W_Q by which TransformerLens divides scores. It does not accept 1, and with a power
of two the product is exact."""

EXAMPLE_LIFT = 128.0
"""The amount by which scores of examples are raised, so queries have weights below e^-100."""

NOT_STANDARD = {
    LayerKind.ATTENTION: "attention without a softmax",
    LayerKind.PRODUCT: "product layers",
    LayerKind.MIRROR: "attention to mirror images of tokens",
    LayerKind.GRID: "attention to tokens that a map along the sequence makes",
}
"""The kinds of layers that TransformerLens does not have."""


@dataclass(frozen=True)
class LensLayer:
    """A layer of the program in the model: its block, and its number of heads or hidden units.

    `step` counts from 1; it is None for layers that predict.
    """

    step: int | None
    title: str
    kind: LayerKind
    block: int
    n_units: int

    @property
    def stream(self) -> str:
        """The name of the hook of the residual stream after this layer."""
        return f"blocks.{self.block}.hook_resid_post"


Patch = tuple[str, Callable[..., Tensor]]
"""A hook of TransformerLens: the name of an activation, and a function that changes it."""


@with_repr
@dataclass(frozen=True, eq=False)
class LensModel:
    """A model of TransformerLens, with the program that its weights implement."""

    model: TransformerBridge
    program: StackProgram
    layers: tuple[LensLayer, ...]

    def facts(self) -> dict[str, str]:
        """Return the facts shown in its repr and in notebooks."""
        config = self.model.cfg
        return {
            "construction": self.program.construction,
            "steps": f"{self.program.n_steps:,}",
            "blocks": f"{config.n_layers:,} of {counted(config.n_heads, 'head')}",
            "d_model": f"{config.d_model:,} in {counted(len(self.layout.slots), 'slot')}",
        }

    @property
    def layout(self) -> Layout:
        """The coordinates of the residual stream by name."""
        return self.program.layout

    def prompt(self, task: Task) -> Stream:
        """Return the initial residual stream of a task."""
        return encode(self.program, task)

    def run(self, stream: Stream, patches: Sequence[Patch] = ()) -> Stream:
        """Return the residual stream after the last layer, with `patches` made by `patch`."""
        with torch.no_grad():
            batch = self._batch(stream)
            result: Tensor = self.model.run_with_hooks(batch, fwd_hooks=list(patches))
        return result.view_as(stream)

    def patch(self, layer: LensLayer, slot: str, values: Tensor | float) -> Patch:
        """Return a hook that sets a slot of the residual stream after a layer.

        Pass it to `run`, or to `model.run_with_hooks` of TransformerLens. `values` have a row for
        each token, or are the same for all tokens.
        """
        where = self.coordinates(slot)
        width, new = where.stop - where.start, torch.as_tensor(values, dtype=self.model.cfg.dtype)
        if new.ndim and new.shape[-1] != width:
            raise DataError(
                f"values have shape {tuple(new.shape)}; slot {slot!r} expects a number, "
                f"({width},), (tokens, {width}) or (tasks, tokens, {width})."
            )

        def overwrite(stream: Tensor, hook: Any) -> Tensor:
            patched = stream.clone()
            patched[..., where] = new
            return patched

        return layer.stream, overwrite

    def run_with_cache(self, stream: Stream, **options: Any) -> tuple[Stream, Any]:
        """Return the stream as `run` does, and the cache of activations, with an axis of tasks.

        `options` are those of TransformerLens, such as `names_filter`.
        """
        with torch.no_grad():
            result, cache = self.model.run_with_cache(self._batch(stream), **options)
        return result.view_as(stream), cache

    def parameters(self, stream: Stream) -> Parameters:
        """Return the weights of the network in training, read from a residual stream."""
        return read_parameters(self.layout, stream)

    def predictions(self, stream: Stream, n_examples: int | None = None) -> Predictions:
        """Return the predicted labels of the queries, read from a residual stream.

        The stream marks its examples; give `n_examples` only if a patch has changed these marks.
        """
        if n_examples is None:
            first = stream.reshape(-1, *stream.shape[-2:])[0]
            n_examples = int(first[:, self.coordinates(IS_EXAMPLE)].sum().round())
        return read_predictions(self.program, stream, n_examples)

    def layers_titled(self, title: str, step: int | None = None) -> tuple[LensLayer, ...]:
        """Return the layers with a title in a step, counted from 1, or among those that predict."""
        if step is not None:
            count("step", step, most=self.program.n_steps)
        candidates = [layer for layer in self.layers if layer.step == step]
        if layers := tuple(layer for layer in candidates if layer.title == title):
            return layers
        titles = dict.fromkeys(layer.title for layer in candidates)
        raise UnknownNameError.of("layer", title, known=list(titles))

    def coordinates(self, slot: str) -> slice:
        """Return the coordinates of a slot, for use as `stream[..., lens.coordinates(slot)]`."""
        return self.layout.range_of(slot)

    def slot_of(self, coordinate: int) -> str:
        """Return the slot to which a coordinate of the residual stream belongs."""
        for name in self.layout.names:
            if 0 <= coordinate < self.layout.range_of(name).stop:
                return name
        raise LayoutError(
            f"The residual stream has coordinates 0 to {self.layout.width - 1}, got {coordinate}."
        )

    def label(self, coordinate: int) -> str:
        """Return the name of a coordinate of the residual stream, such as "weights_2[3, 1]"."""
        slot = self.layout.slot(self.slot_of(coordinate))
        within = torch.tensor(coordinate - self.layout.range_of(slot.name).start)
        return f"{slot.name}{[int(place) for place in torch.unravel_index(within, slot.shape)]}"

    def _batch(self, stream: Stream) -> Tensor:
        config = self.model.cfg
        batch = as_batch(stream, config.d_model, config.dtype)
        count("number of tokens", stream.shape[-2], most=config.n_ctx)
        return batch


def open_in_transformer_lens(
    compiled: Compiled, *, dtype: str | torch.dtype = "float64", max_tokens: int = MAX_TOKENS
) -> LensModel:
    """Return the compiled transformer as a model of TransformerLens.

    The transformer may have softmax attention and MLPs only: compile with `softmax-stack`, or
    compile a kernel machine with the softmax kernel.

    Args:
        compiled: the compiled run.
        dtype: the precision of the weights, "float64" or "float32".
        max_tokens: the length of the longest prompt.

    Returns:
        The model, with the meaning of its weights and coordinates.

    Raises:
        MissingExtraError: if the extra `lens` is not installed.
        ExportError: if TransformerLens does not have a kind of layer or kernel.
        SettingError: if the program is a chain.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> from icgd.exports.transformer_lens import open_in_transformer_lens
        >>> compiled = icgd.compile(problem, "softmax-stack", n_steps=1)
        >>> lens = open_in_transformer_lens(compiled)
        >>> prompt = lens.prompt(compiled.task([[0.5, 1.0]], [1.0]))
        >>> lens.run(prompt).shape == prompt.shape
        True
    """
    program = compiled.stack
    kinds = {layer.kind for layer in program.unrolled()}
    if foreign := next((name for name in map(_foreign_kernel, program.block) if name), None):
        raise ExportError(
            f"TransformerLens has softmax attention only; this functional descent also has "
            f"{foreign}. Use the softmax kernel without noise and momentum, or "
            "icgd.exports.onnx, or compiled.transformer(), a torch module."
        )
    if foreign_layers := [name for kind, name in NOT_STANDARD.items() if kind in kinds]:
        raise ExportError(
            "TransformerLens has softmax attention and MLP layers only; the transformer of "
            f"{program.construction} also has {' and '.join(foreign_layers)}. Compile with "
            "construction='softmax-stack', or use icgd.exports.onnx, which writes every layer."
        )
    if TransformerBridge is None:
        raise MissingExtraError(
            "Opening a model in TransformerLens needs transformer-lens. Install it with: pip "
            "install 'icgd[lens]'"
        )
    transformer = compiled.transformer(dtype)
    blocks = [*_repeated(transformer), *map(_block, transformer.final)]
    config = _config(blocks, program.layout.width, max_tokens, dtype_named(dtype))
    # Create the model without memory (on the meta device), then assign the weights, which copies
    # of a block share.
    with torch.device("meta"):
        model = TransformerBridge.boot_native(config, dtype=config.dtype)
    model.load_state_dict(_state(model, blocks), assign=True)
    model.cfg.device = "cpu"
    _set_masks(model, blocks)
    return LensModel(model, program, _places(program, blocks))


def _foreign_kernel(layer: Layer) -> str | None:
    """Return a feature of functional descent that TransformerLens does not have, or None."""
    for step in layer.instructions:
        if isinstance(step, DescendFunction):
            names = [f"{term.kernel} attention" for term in step.terms if term.kernel != "softmax"]
            names += ["noise"] * (step.noise > 0) + ["momentum"] * (step.velocity is not None)
            return names[0] if names else None
    return None


@dataclass(frozen=True, eq=False)
class _Block:
    """A block of TransformerLens with one layer of the program: attention or an MLP."""

    layer: nn.Module
    query_bias: Tensor | None = None
    """The bias of the queries of every head."""

    @property
    def attention(self) -> SoftmaxAttention | None:
        return self.layer if isinstance(self.layer, SoftmaxAttention) else None

    @property
    def mlp(self) -> MLPLayer | None:
        return self.layer if isinstance(self.layer, MLPLayer) else None

    @property
    def n_units(self) -> int:
        return len(self.mlp.b_in if self.mlp else self.attention.W_Q if self.attention else ())


def _repeated(transformer: Transformer) -> list[_Block]:
    """Return the blocks of all steps; equal blocks are the same object, to share weights."""
    if not transformer.ends:
        return [*map(_block, transformer.block)] * transformer.n_repeats
    steps = map(transformer.repetition, range(transformer.n_repeats))
    return [_block(layer) for step in steps for layer in step]


def _block(layer: nn.Module) -> _Block:
    return _reading_examples(layer) if isinstance(layer, KernelAttention) else _Block(layer)


def _reading_examples(layer: KernelAttention) -> _Block:
    """Return softmax attention with one more feature, which raises the scores of examples.

    It is 1 in keys of examples, and a bias in queries.
    """
    query, key = (pad(weights.detach(), (0, 1)) for weights in (layer.W_Q, layer.W_K))
    key[:, layer.example_feature, -1] = 1.0
    bias = query.new_zeros(query.shape[0], query.shape[2])
    bias[:, -1] = EXAMPLE_LIFT
    return _Block(SoftmaxAttention(query, key, layer.W_V.detach(), layer.W_O.detach()), bias)


def _places(program: StackProgram, blocks: Sequence[_Block]) -> tuple[LensLayer, ...]:
    per_step = range(program.layers_per_step)
    steps: list[int | None] = [s for s in range(1, program.n_steps + 1) for _ in per_step]
    steps += [None] * len(program.prediction)
    layers = zip(steps, program.unrolled(), blocks, strict=True)
    return tuple(
        LensLayer(step, layer.title, layer.kind, number, block.n_units)
        for number, (step, layer, block) in enumerate(layers)
    )


def _config(
    blocks: Sequence[_Block], width: int, max_tokens: int, dtype: torch.dtype
) -> TransformerBridgeConfig:
    """Return the configuration with the sizes of the largest layers, at least 1 of each kind."""
    attentions = [block.attention for block in blocks if block.attention is not None]
    mlps = [block.mlp for block in blocks if block.mlp is not None]
    return TransformerBridgeConfig(
        n_layers=len(blocks),
        n_ctx=count("max_tokens", max_tokens),
        d_model=width,
        n_heads=max((len(layer.W_Q) for layer in attentions), default=1),
        d_head=max((w.shape[2] for a in attentions for w in (a.W_Q, a.W_V)), default=1),
        d_mlp=max((len(layer.b_in) for layer in mlps), default=1),
        d_vocab=1,
        d_vocab_out=width,
        act_fn="relu",
        normalization_type=None,
        attention_dir="bidirectional",
        attn_scale=SCORE_SCALE,
        init_weights=False,
        dtype=dtype,
    )


def _state(model: TransformerBridge, blocks: Sequence[_Block]) -> dict[str, Tensor]:
    """Return all weights by the names of TransformerLens."""
    config = model.cfg
    outside = [item for item in model.state_dict().items() if not item[0].startswith("blocks.")]
    state = {name: torch.zeros(weight.shape, dtype=config.dtype) for name, weight in outside}
    state["unembed.weight"] = torch.eye(config.d_model, dtype=config.dtype)
    weights = {block: _weights(block, config) for block in dict.fromkeys(blocks)}
    for number, block in enumerate(blocks):
        state |= {f"blocks.{number}.{name}": weight for name, weight in weights[block].items()}
    return state


def _weights(block: _Block, config: TransformerBridgeConfig) -> dict[str, Tensor]:
    """Return a block's weights in the orientation of `nn.Linear`, padded with zeros."""
    n_heads, d_head, d_model, d_mlp = config.n_heads, config.d_head, config.d_model, config.d_mlp
    attention = block.attention or _no_heads(d_model, config.dtype)
    mlp = block.mlp or _no_units(d_model, config.dtype)
    rows, columns = (n_heads, d_head, d_model), (d_model, n_heads, d_head)
    bias = mlp.b_in.new_zeros(0, 0) if block.query_bias is None else block.query_bias
    return {
        "attn.q.weight": _padded(SCORE_SCALE * attention.W_Q.mT, rows).flatten(0, 1),
        "attn.k.weight": _padded(attention.W_K.mT, rows).flatten(0, 1),
        "attn.v.weight": _padded(attention.W_V.mT, rows).flatten(0, 1),
        "attn.o.weight": _padded(attention.W_O.permute(2, 0, 1), columns).flatten(1, 2),
        "attn.q.bias": _padded(SCORE_SCALE * bias, (n_heads, d_head)).flatten(),
        **{f"attn.{name}.bias": mlp.b_in.new_zeros(n_heads * d_head) for name in "kv"},
        "attn.o.bias": mlp.b_in.new_zeros(d_model),
        "mlp.in.weight": _padded(mlp.W_in.T, (d_mlp, d_model)),
        "mlp.in.bias": _padded(mlp.b_in, (d_mlp,)),
        "mlp.out.weight": _padded(mlp.W_out.T, (d_model, d_mlp)),
        "mlp.out.bias": mlp.b_in.new_zeros(d_model),
    }


def _no_heads(d_model: int, dtype: torch.dtype) -> SoftmaxAttention:
    reads, writes = torch.zeros(0, d_model, 0, dtype=dtype), torch.zeros(0, 0, d_model, dtype=dtype)
    return SoftmaxAttention(reads, reads, reads, writes)


def _no_units(d_model: int, dtype: torch.dtype) -> MLPLayer:
    weights = torch.zeros(d_model, 0, dtype=dtype)
    return MLPLayer(weights, torch.zeros(0, dtype=dtype), weights.T)


def _padded(weights: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the weights padded with zeros at the end of every axis."""
    result = torch.zeros(shape, dtype=weights.dtype)
    result[tuple(slice(size) for size in weights.shape)] = weights.detach()
    return result


def _set_masks(model: TransformerBridge, blocks: Sequence[_Block]) -> None:
    """Replace the causal masks of TransformerLens by the masks of the layers, if there are any."""
    for lens_block, block in zip(model.blocks, blocks, strict=True):
        mask = None if block.attention is None else block.attention.mask
        attention = lens_block.attn.original_component
        attention.causal = mask is not None
        attention.causal_mask = torch.zeros(0, 0, dtype=torch.bool) if mask is None else ~mask
