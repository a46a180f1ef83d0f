"""A decoder that is interrupted ends with the same bits; its points follow from predictions."""

from dataclasses import asdict, replace

import pytest
import torch

from icgd.errors import SizeError
from icgd_papers.figures import wu_learnt, wu_setting
from icgd_papers.figures.wu_curves import BUDGETS, MIXTURES
from icgd_papers.figures.wu_learnt import LearntStudy, predictions_of
from icgd_papers.figures.wu_setting import PRETRAINING
from icgd_papers.reproduction import Conduct
from icgd_papers.training.devices import Device
from icgd_papers.training.tasks import query_loss
from tests import machines

SMOKE = BUDGETS["smoke"]
STUDY = LearntStudy(3, "softmax", MIXTURES[:2], 0, replace(SMOKE, n_steps=6))


class StoppedError(Exception):
    pass


def stop_at(step):
    def on_step(done, _, __):
        if done == step:
            raise StoppedError

    return on_step


def test_a_decoder_is_tested_on_every_law_and_length():
    found = STUDY.train()
    about = [(point.inputs, point.n_examples) for point in found.points]
    assert about == [(law, n) for law in ("(1, 0)", "(0.9, 0.1)") for n in (2, 4, 6)]
    assert {point.line for point in found.points} == {"learnt decoder"}
    assert STUDY.outcome_of(asdict(found)) == found


def test_a_decoder_beyond_memory_is_refused_when_it_is_asked(monkeypatch):
    STUDY.require("cpu")
    machines.of_memory(monkeypatch, 15_000)
    with pytest.raises(SizeError, match="of 545 weights on 4 prompts of 5 places at a time"):
        STUDY.require("cpu")
    monkeypatch.setattr(wu_learnt, "device_named", lambda name: Device(torch.device("cuda")))
    STUDY.require("cuda")  # its memory is its own


def test_an_interrupted_study_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(wu_setting, "CHECKPOINT_EVERY", 2)
    with pytest.raises(StoppedError):
        STUDY.train_with(Conduct(on_step=stop_at(5)), tmp_path)
    assert list((tmp_path / "model").glob("checkpoint-*4.safetensors"))
    steps = []
    again = STUDY.train_with(Conduct(on_step=lambda step, *_: steps.append(step)), tmp_path)
    assert steps == [5, 6]  # it went on from the checkpoint of step 4
    assert (again.points, again.loss) == (STUDY.train().points, STUDY.train().loss)


@pytest.mark.parametrize("attention", ["relu", "softmax"])
@pytest.mark.parametrize("tokens", ["joint", "interleaved"])
def test_predictions_after_n_examples_read_no_more(attention, tokens):
    budget = replace(SMOKE, tokens=tokens, n_test=70)
    model = budget.decoder(attention, 0)
    test = budget.test(3, PRETRAINING, 0)
    predictions = predictions_of(model, test)
    assert predictions.shape == (70, 7)
    with torch.no_grad():
        alone = model(test.x[:, :5], test.y[:, :5])
    torch.testing.assert_close(predictions[:, 4], alone)


def test_training_makes_the_loss_smaller():
    budget = replace(SMOKE, n_steps=60, batch_size=32, learning_rate=0.02, width=16)
    study = replace(STUDY, budget=budget)
    batch = budget.pretraining(3).sample(256, seed=9, index=9)
    before = float(query_loss(budget.decoder("softmax", 0), batch))
    found = study.train()
    assert found.loss < 0.6 * before


def test_the_time_of_a_step_is_measured():
    warmed = replace(STUDY, budget=replace(SMOKE, n_steps=6, warmup_steps=5))
    assert 0 < warmed.step_seconds("cpu") < 5
    assert STUDY.n_steps == 6
    assert replace(STUDY, budget=replace(SMOKE, n_blocks=4)).work > STUDY.work / 6 * 2
