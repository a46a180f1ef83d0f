"""The GPT2Model of `transformers` behind the decoder's tokens; the only import of that package."""

import torch
from torch import Tensor, nn

from icgd.errors import MissingExtraError
from icgd_papers.training.decoder import TOKEN_LAYOUTS, Decoder

try:
    import transformers
except ImportError:  # the extra `gpt2` is not installed
    transformers = None


class Gpt2(nn.Module):
    """GPT2Model without dropout, of a decoder's sizes, on its tokens; the same in every loop."""

    def __init__(self, decoder: Decoder, n_positions: int) -> None:
        super().__init__()
        if transformers is None:
            raise MissingExtraError(
                "The benchmark of the decoder needs transformers. Install it with: pip install "
                "'icgd[gpt2]'"
            )
        self.layout = TOKEN_LAYOUTS[decoder.tokens]
        token_width = self.layout.width(decoder.input_width, decoder.output_width)
        torch.manual_seed(0)
        self.read_in = nn.Linear(token_width, decoder.width)
        self.backbone = transformers.GPT2Model(_configuration(decoder, n_positions))
        self.backbone.wte = nn.Identity()  # words, which a prompt of numbers has none of
        self.read_out = nn.Linear(decoder.width, decoder.output_width)

    def predictions(self, x: Tensor, y: Tensor) -> Tensor:
        """The predictions of all labels."""
        embedded = self.read_in(self.layout.tokens(x, y[..., None]))
        stream = self.backbone(inputs_embeds=embedded).last_hidden_state
        return self.read_out(stream[:, self.layout.predicting])[..., 0]


def _configuration(decoder: Decoder, n_positions: int) -> "transformers.GPT2Config":
    return transformers.GPT2Config(
        vocab_size=1,
        bos_token_id=None,
        eos_token_id=None,
        n_positions=n_positions,
        n_embd=decoder.width,
        n_layer=decoder.n_blocks,
        n_head=decoder.n_heads,
        n_inner=decoder.mlp_width,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
