"""One model: its first weights, its units, its test, and what is measured of it."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from icgd.errors import TrainingError
from icgd_papers.checksummed_json import write_checksummed
from icgd_papers.figures.cheng_training import (
    FIRST_MOVE,
    LABELS,
    Budget,
    Study,
    first_model,
    train_once,
    unit,
)
from icgd_papers.training.similarity import distances_to_identity

TRAINING = import_module("icgd_papers.figures.cheng_training")

BUDGET = Budget(n_steps=3, batch_size=4, n_test=6, n_seeds=1, n_rows=1)
STUDY = Study("exp", ("softmax",), 4, 3, transforms_covariates=True, seed=0, budget=BUDGET)


def test_a_layer_starts_with_half_a_step_and_small_moves():
    model = first_model(replace(STUDY, attention=("exp", "linear"), n_examples=20))
    units = torch.tensor([1 / 20, 5 / 20])
    assert (unit("exp", 20), unit("linear", 20), unit("softmax", 20)) == (1 / 20, 1 / 4, 1.0)
    assert torch.allclose(model.r.detach().float(), -0.5 * units.expand(3, 2))
    learnt = model.parametrizations.A.original
    assert learnt.std().item() == pytest.approx(FIRST_MOVE, rel=0.3)
    assert torch.allclose(model.A.float(), learnt.float() * units[:, None, None])


def test_deep_models_start_with_smaller_steps_and_move_their_inputs_less():
    shallow, deep = (first_model(replace(STUDY, n_layers=depth)) for depth in (3, 6))
    assert torch.allclose(deep.r[0], shallow.r[0] / 2)
    assert deep.A.std().item() == pytest.approx(shallow.A.std().item() / 16, rel=0.3)
    assert deep.B.std().item() == pytest.approx(shallow.B.std().item(), rel=0.3)


def test_the_mixed_kernel_is_that_of_the_papers_definition():
    linear, exponential = LABELS["linear + exp"]
    points = torch.tensor([[1.0, 2.0, 3.0, 0.5, -1.0], [0.5, -1.0, 1.0, 2.0, 3.0]]).double()
    got = sum(head.matrix(points[:1], points[1:]) for head in (linear, exponential)).item()
    expected = 0.5 * (0.5 - 2.0) + 0.5 * torch.tensor(3.0 + 1.0 - 3.0).exp().item()
    assert got == pytest.approx(expected)


def test_training_gives_the_test_loss_beside_the_best_one():
    outcome = train_once(STUDY)
    assert 0 < outcome.bayes_loss < outcome.test_loss < 10
    assert [row["step"] for row in outcome.curve] == [0.0, 3.0]
    assert outcome.learning_rate == BUDGET.learning_rate
    again = train_once(STUDY)
    assert (again.test_loss, again.curve) == (outcome.test_loss, outcome.curve)


def test_drawn_labels_give_another_path_to_the_same_test():
    averaged, drawn = (
        train_once(STUDY),
        train_once(replace(STUDY, budget=replace(BUDGET, averages_labels=False))),
    )
    assert drawn.bayes_loss == averaged.bayes_loss
    assert drawn.test_loss != averaged.test_loss


def test_a_run_that_overflows_is_begun_again_more_slowly(monkeypatch, tmp_path):
    real, rates = TRAINING.train, []

    def overflowing(model, task, settings, **options):
        rates.append(settings.learning_rate)
        if len(rates) <= failures:
            raise TrainingError("The loss is nan at step 1")
        return real(model, task, settings, **options)

    monkeypatch.setattr(TRAINING, "train", overflowing)
    failures = 2
    assert train_once(STUDY, tmp_path).learning_rate == 0.005
    assert rates == [0.02, 0.01, 0.005]
    failures = 99
    with pytest.raises(TrainingError, match="The loss is nan at step 1"):
        train_once(STUDY)
    assert rates[3:] == [0.02, 0.01, 0.005, 0.0025]


class Killed(BaseException):
    """A stop that no code may catch."""


def killed_at(step, real):
    """A loop that is stopped after so many steps."""

    def train(model, task, settings, *, on_step, **options):
        def stopping(done, total, loss):
            on_step(done, total, loss)
            if done == step:
                raise Killed

        return real(model, task, settings, on_step=stopping, **options)

    return train


def test_a_model_that_was_stopped_goes_on_from_within(monkeypatch, tmp_path):
    study = replace(STUDY, budget=replace(BUDGET, n_steps=7, n_rows=7))
    whole = train_once(study)
    real = TRAINING.train
    monkeypatch.setattr(TRAINING, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(TRAINING, "train", killed_at(5, real))
    with pytest.raises(Killed):
        train_once(study, tmp_path)
    monkeypatch.setattr(TRAINING, "train", real)
    measured = []
    monkeypatch.setattr(
        TRAINING,
        "distances_to_identity",
        lambda *given: measured.append(1) or distances_to_identity(*given),
    )
    again = train_once(study, tmp_path)
    assert (again.test_loss, again.curve) == (whole.test_loss, whole.curve)
    assert len(measured) == 4  # steps 4 to 7; the others are in the checkpoint


def test_the_seconds_are_those_of_all_legs(tmp_path):
    write_checksummed(tmp_path / "seconds.json", 1000.0)
    outcome = train_once(STUDY, tmp_path)
    assert 1000 < outcome.seconds < 1100
    assert outcome.columns["seconds"] == round(outcome.seconds, 1)
