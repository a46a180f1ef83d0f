"""The baseline of the decoder's speed, what was measured, and what the page says of it."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpt2
from benchmarks.decoder import LIMITS, SIZES, prompts
from icgd.errors import MissingExtraError
from icgd_papers.training.decoder import Decoder

ROOT = Path(__file__).parents[2]
ROWS = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))["decoder"]
DECODER = Decoder(input_width=5, n_blocks=2, width=16, n_heads=4, tokens="interleaved", seed=0)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(gpt2, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"needs transformers\. .* 'icgd\[gpt2\]'"):
        gpt2.Gpt2(DECODER, 41)


def test_the_baseline_has_the_decoders_sizes_and_predicts_causally():
    pytest.importorskip("transformers")
    model = gpt2.Gpt2(DECODER, 41)
    own = {name: p.numel() for name, p in model.backbone.named_parameters() if "bias" not in name}
    blocks = sum(size for name, size in own.items() if ".attn" in name or ".mlp" in name)
    assert blocks == sum(p.numel() for p in (DECODER.qkv, DECODER.mix, DECODER.hidden, DECODER.out))
    batch = prompts(20).sample(3, seed=0, index=0).to("cpu", torch.float32)
    before = model.predictions(batch.x, batch.y)
    batch.y[:, 10:] += 1
    after = model.predictions(batch.x, batch.y)
    torch.testing.assert_close(after[:, :11], before[:, :11])
    assert (after[:, 11:] - before[:, 11:]).abs().min() > 0


def test_every_size_was_measured():
    measured = [(row["blocks"], row["width"], row["examples"], row["tokens"]) for row in ROWS]
    assert set(measured) == {(*size, tokens) for size in SIZES for tokens in LIMITS}
