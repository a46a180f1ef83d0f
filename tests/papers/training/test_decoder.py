"""The decoder beside its formula in numpy, what it may read, and what it refuses."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from icgd.errors import CheckpointError, DataError, SettingError, SizeError, UnknownNameError
from icgd_papers.training.covariates import ShiftedMixture
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.labels import Teachers
from icgd_papers.training.loading import load
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import CausalTask, Curriculum, InContextTask
from tests import machines
from tests.papers.training.toy import files_of

SIZES = {"input_width": 3, "n_blocks": 2, "width": 8, "n_heads": 2, "seed": 4}
KINDS = [(a, t) for a in ("softmax", "relu") for t in ("joint", "interleaved")]
TASK = CausalTask(
    InContextTask(ShiftedMixture.of_width(3), Teachers(2, 4), n_examples=5), Curriculum(2, 3, 4)
)
SETTINGS = Settings(
    n_steps=6, batch_size=8, learning_rate=0.01, clip_norm=1.0, log_every=2, checkpoint_every=2
)


def made(attention="softmax", tokens="joint", **settings):
    """A decoder whose norms and biases are not at their plain first values."""
    model = Decoder(**{**SIZES, "attention": attention, "tokens": tokens, **settings})
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += 0.3 * noise
    return model


def prompts(n_tokens=5, *, output=()):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, n_tokens, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(2, n_tokens, *output, generator=generator, dtype=torch.float64)


def normed(vector, weight, bias):
    return (vector - vector.mean()) / math.sqrt(vector.var() + 1e-5) * weight + bias


def gelu(vector):
    return np.array([z * (1 + math.erf(z / math.sqrt(2))) / 2 for z in vector])


def heads_of(model, block, stream, reader):
    """What attention gathers at one place, by loops over heads and places."""
    width, size = model["width"], model["width"] // model["n_heads"]
    norm, bias = block["norms"][0], block["norm_biases"][0]
    qkv = [block["qkv"] @ normed(place, norm, bias) for place in stream[: reader + 1]]
    gathered = []
    for head in range(model["n_heads"]):
        own = slice(head * size, (head + 1) * size)
        query = qkv[reader][:width][own]
        scores = [query @ each[width : 2 * width][own] / math.sqrt(size) for each in qkv]
        if model["attention"] == "softmax":
            weights = [math.exp(s) / sum(map(math.exp, scores)) for s in scores]
        else:
            weights = [max(s, 0) / (reader + 1) for s in scores]
        values = [each[2 * width :][own] for each in qkv]
        gathered.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    return np.concatenate(gathered)


def written_out(model, x, y):
    """The streams and the predictions of one prompt, place by place."""
    own = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    rows = [np.concatenate([x[0], np.zeros(4)])]
    rows += [np.concatenate([b, a, label]) for a, b, label in zip(x, x[1:], y, strict=False)]
    if model.tokens == "interleaved":
        pairs = [([*a, 0, 0], [0, 0, 0, *label, 1]) for a, label in zip(x, y, strict=True)]
        rows = [np.array(row) for pair in pairs for row in pair][:-1]
    stream = [own["read_in"] @ row + own["read_in_bias"] for row in rows]
    if model.n_positions:
        stream = [row + own["positions"][i] for i, row in enumerate(stream)]
    names = ("qkv", "mix", "hidden", "out", "norms", "norm_biases")
    streams = []
    for number in range(model.n_blocks):
        block = {name: own[name][number] for name in names}
        gathered = [heads_of(model.description(), block, stream, i) for i in range(len(stream))]
        stream = [old + block["mix"] @ new for old, new in zip(stream, gathered, strict=True)]
        inside = [normed(row, block["norms"][1], block["norm_biases"][1]) for row in stream]
        stream = [
            old + block["out"] @ gelu(block["hidden"] @ row)
            for old, row in zip(stream, inside, strict=True)
        ]
        streams.append(stream[:: 1 if model.tokens == "joint" else 2])
    ends = [normed(row, own["last_norm"], own["last_norm_bias"]) for row in streams[-1]]
    return streams, [own["read_out"] @ row + own["read_out_bias"] for row in ends]


@pytest.mark.parametrize(("attention", "tokens"), KINDS)
@pytest.mark.parametrize("n_positions", [None, 12])
def test_streams_and_predictions_are_those_of_the_formula(attention, tokens, n_positions):
    model, (x, y) = made(attention, tokens, n_positions=n_positions), prompts()
    streams, predictions = model.streams(x, y), model.predictions(x, y)
    for task in range(2):
        expected, last = written_out(model, x[task].numpy(), y[task, :, None].numpy())
        assert_close(predictions[task], torch.tensor(np.array(last))[:, 0], rtol=0, atol=1e-12)
        for ours, theirs in zip(streams, expected, strict=True):
            assert_close(ours[task], torch.tensor(np.array(theirs)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("attention", "tokens"), KINDS)
def test_a_prediction_reads_its_input_and_the_examples_before_it_only(attention, tokens):
    model, (x, y) = made(attention, tokens), prompts()
    before = model.predictions(x, y)
    later_x, later_y = x.clone(), y.clone()
    later_x[:, 3:], later_y[:, 2:] = 9.0, -9.0
    after = model.predictions(later_x, later_y)
    assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-14)
    assert ((after[:, 3:] - before[:, 3:]).abs() > 1e-3).all()
    later_y[:, 2:] = y[:, 2:]
    later_y[:, 1] += 1.0
    assert ((model.predictions(x, later_y) - before)[:, 2:].abs() > 1e-4).all()


@pytest.mark.parametrize(("attention", "tokens"), KINDS)
def test_the_query_is_predicted_as_the_last_token_is_and_its_label_is_not_read(attention, tokens):
    model, (x, y) = made(attention, tokens), prompts()
    query = model(x, y)
    assert_close(query, model.predictions(x, y)[:, -1], rtol=0, atol=1e-14)
    y[:, -1] = torch.nan
    assert torch.equal(model(x, y), query)


def test_a_label_may_be_a_vector():
    model, (x, y) = made(output_width=2), prompts(output=(2,))
    assert model.predictions(x, y).shape == y.shape
    assert_close(model(x, y), model.predictions(x, y)[:, -1], rtol=0, atol=1e-14)
    single, (x, y) = made(), prompts(output=(1,))
    assert torch.equal(single.predictions(x, y)[..., 0], single.predictions(x, y[..., 0]))


def test_first_numbers_follow_from_the_seed_alone():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = Decoder(**SIZES).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    again, other = Decoder(**SIZES).state_dict(), Decoder(**{**SIZES, "seed": 5}).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["qkv"], other["qkv"])
    assert first["qkv"].std().item() == pytest.approx(8**-0.5, rel=0.1)
    assert first["out"].std().item() == pytest.approx((32 * 4) ** -0.5, rel=0.1)


def test_autocast_keeps_the_stream_in_float32():
    model, (x, y) = made().float(), [part.float() for part in prompts()]
    exact = model.predictions(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        streams, rough = model.streams(x, y), model.predictions(x, y)
    assert all(stream.dtype == torch.float32 for stream in streams)
    assert 0 < (rough.float() - exact).abs().max() < 0.05


@pytest.mark.parametrize(("attention", "tokens"), KINDS)
def test_a_training_that_is_stopped_ends_with_the_same_bits_and_is_loaded(
    tmp_path, attention, tokens
):
    def stop(step, _n_steps, _loss):
        if step == 3:
            raise KeyboardInterrupt

    def trained(folder, **options):
        model = Decoder(**SIZES, attention=attention, tokens=tokens, n_positions=11)
        train(model, TASK, SETTINGS, folder=tmp_path / folder, **options)
        return model

    whole = trained("whole")
    with pytest.raises(KeyboardInterrupt):
        trained("stopped", on_step=stop)
    trained("stopped")
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")
    found = load(tmp_path / "stopped")
    x, y = [part.float() for part in prompts()]
    assert torch.equal(found.predictions(x, y), whole.predictions(x, y))
    assert found.description() == whole.description()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    train(Decoder(**SIZES), TASK, replace(SETTINGS, n_steps=1), folder=tmp_path)
    other = Decoder(**{**SIZES, "attention": "relu"})
    where = r"checkpoint-000000001\.safetensors"
    with pytest.raises(CheckpointError, match=where + ".* its model.attention is 'softmax', here"):
        train(other, TASK, replace(SETTINGS, n_steps=1), folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"attention is 'softmax', here it is 'relu'"):
        load(tmp_path, model=other)
    kernels = KernelTransformer(3, 1, ("exp",), transforms_covariates=False, seed=0)
    with pytest.raises(CheckpointError, match="holds another model: for 'hidden' it has shape"):
        load(tmp_path, model=kernels)
    with pytest.raises(CheckpointError, match=r"for 'hidden' it has shape .2, 32, 8., the"):
        load(tmp_path, model=Decoder(**{**SIZES, "width": 16}))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_heads": 3}, SettingError, "width=8 is not a multiple of n_heads=3"),
        (
            {"attention": "sofmax"},
            UnknownNameError,
            "Unknown attention 'sofmax'; known are softmax, relu. Did you mean 'softmax'?",
        ),
        (
            {"tokens": "interleave"},
            UnknownNameError,
            "Unknown layout of tokens 'interleave'; known are joint, interleaved. "
            "Did you mean 'interleaved'?",
        ),
        ({"n_blocks": 0}, SettingError, "n_blocks must be a whole number of at least 1, got 0"),
        ({"mlp_width": 0}, SettingError, "mlp_width must be a whole number of at least 1, got 0"),
        ({"n_positions": 0}, SettingError, "n_positions must be a whole number of at least 1"),
        ({"seed": -1}, SettingError, "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_settings_that_make_no_decoder_are_refused(change, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Decoder(**{**SIZES, **change})


def test_a_prompt_longer_than_the_positions_is_refused_before_training(tmp_path):
    message = "A prompt of 5 examples and a query takes 11 places; the decoder has n_positions=10."
    model = Decoder(**SIZES, tokens="interleaved", n_positions=10)
    with pytest.raises(DataError, match=re.escape(message)):
        model.predictions(*prompts(6))
    with pytest.raises(DataError, match=re.escape(message)):  # the curriculum begins with 3
        train(model, TASK, SETTINGS, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    model.double().predictions(*prompts(5))


def test_inputs_and_labels_of_other_widths_are_refused():
    x, y = prompts()
    with pytest.raises(DataError, match=re.escape("x has shape (2, 5, 3); expected (task, token,")):
        made(input_width=4).predictions(x, y)
    with pytest.raises(DataError, match=re.escape("y has shape (2, 5); expected (task, token, 2)")):
        made(output_width=2)(x, y)


def test_sizes_beyond_memory_are_refused_before_anything_is_made(tmp_path, monkeypatch):
    huge = {**SIZES, "width": 2**20, "n_heads": 1}
    with pytest.raises(SizeError, match=r"A decoder of 26,388,[0-9,]+ weights takes about 196,"):
        Decoder(**huge)
    model = Decoder(**SIZES)
    machines.of_memory(monkeypatch, 2**20, "60% of a small machine")
    train(model, TASK, SETTINGS)
    message = "Training a decoder of [0-9,]+ weights on 4,000 prompts of 6 places at a time takes"
    with pytest.raises(SizeError, match=message + ".* 0.0 GiB may be used, 60% of a small"):
        train(model, TASK, replace(SETTINGS, batch_size=4000), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(model, TASK, replace(SETTINGS, n_steps=1, batch_size=4000, accumulate=50))


def test_the_example_of_the_page_learns(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[3] / "docs" / "training" / "decoder.md"
    [code] = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), {})
    first, some, most = json.loads(capsys.readouterr().out)
    assert first < 0.2 < 0.6 < min(some, most)


def test_teachers_that_overflow_are_refused_before_training(tmp_path):
    labels = Teachers(40, 20, mean=5.0)
    inputs = ShiftedMixture.of_width(3, (0.0, 1.0))  # with negative ones, all units are dead
    task = CausalTask(InContextTask(inputs, labels, n_examples=5))
    with pytest.raises(ValueError, match=r"Labels of Teachers, 40 layers, N\(5, I\) overflow: the"):
        train(Decoder(**SIZES), task, SETTINGS, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
