"""A study of cot-fig2: what stands beside the losses, the chain, and going on after a stop."""

import re
from dataclasses import asdict, replace
from importlib import import_module

import numpy as np
import pytest
import torch

from icgd.errors import SettingError, SizeError, UnknownNameError
from icgd_papers.figures.cot_operator_training import (
    ARCHITECTURES,
    Budget,
    Study,
    chained,
    constructed_weights,
    simple_losses,
    trained,
)
from icgd_papers.training.chain_blocks import weights_after_rounds
from icgd_papers.training.tasks import generator_of
from tests import machines

TRAINING = import_module("icgd_papers.figures.cot_operator_training")

BUDGET = Budget(
    n_epochs=2, batch_size=4, n_validation_teachers=2, n_chains=3, n_rounds=3, n_seeds=1
)
STUDY = Study("products, steep slopes", 3, 2, 2, seed=0, budget=BUDGET)


def test_pairs_that_do_not_fit_are_refused_when_they_are_asked_for(monkeypatch):
    n_bytes = 2 * 3 * 2 * 3 * 3 * 11 * 4  # 3 teachers, 2 layers, 3 rounds; 3 blocks of 11 rows
    machines.of_memory(monkeypatch, n_bytes)
    STUDY.require("cpu")
    machines.of_memory(monkeypatch, n_bytes - 1)
    with pytest.raises(SizeError, match="Drawing 18 pairs of blocks of 11 rows takes about"):
        STUDY.require("cpu")


def test_the_mean_block_and_the_linear_map_are_fitted_on_training_and_tried_on_validation():
    numbers = np.random.default_rng(0)
    stacked, new = numbers.normal(size=(60, 4)), numbers.normal(size=(20, 4))
    stacked[:, 3] = stacked[:, 0]  # many maps fit: the shortest is taken
    blocks, wanted = numbers.normal(size=(60, 3)) + 2, numbers.normal(size=(20, 3))
    found = simple_losses(
        5, *((torch.tensor(x), torch.tensor(y)) for x, y in ((stacked, blocks), (new, wanted)))
    )
    with_one = [np.c_[x, np.ones(len(x))] for x in (stacked, new)]
    linear = with_one[1] @ np.linalg.lstsq(with_one[0], blocks, rcond=None)[0]
    expected = [
        5 * np.square(wanted - answer).sum(1).mean()
        for answer in (wanted.mean(0), blocks.mean(0), linear)
    ]
    assert found == pytest.approx(expected, rel=1e-9)


def test_exact_operators_make_the_chain_of_descent_and_the_construction_agrees():
    found = chained(replace(STUDY, width=3, depth=3), replace(STUDY, width=3).teachers.exact)
    assert found.learnt == (0.0,) * 4
    assert found.constructed[0] == 0.0
    assert max(found.constructed) < 1e-22
    assert found.unmoved[0] == 0.0
    assert found.unmoved[-1] > 1e-4


def test_distances_are_means_over_chains_of_squared_frobenius_norms():
    teachers = STUDY.teachers
    students = teachers.students(3, generator_of(0, TRAINING.CHAIN_TEACHERS))
    data = students.start, students.x, students.y
    real = weights_after_rounds(teachers.rows, teachers.exact, *data)
    found = chained(STUDY, replace(teachers, step_size=0.04).exact)
    double = weights_after_rounds(teachers.rows, replace(teachers, step_size=0.04).exact, *data)
    per_chain = [sum(float((m**2).sum()) for m in double[k, 2] - real[k, 2]) for k in range(3)]
    assert found.learnt[2] == pytest.approx(sum(per_chain) / 3)
    assert found.learnt_median[2] == pytest.approx(sorted(per_chain)[1])
    moved = [sum(float((m**2).sum()) for m in real[k, 3] - real[k, 0]) for k in range(3)]
    assert found.unmoved[3] == pytest.approx(sum(moved) / 3)


def test_the_constructed_chain_takes_the_papers_step():
    teachers = replace(STUDY.teachers, step_size=0.1)
    of = teachers.students(2, generator_of(1, 0))
    real = weights_after_rounds(teachers.rows, teachers.exact, of.start, of.x, of.y)
    got = constructed_weights(teachers, of.start, of.x, of.y, largest=float(real.abs().max()))
    assert torch.allclose(got, real, atol=1e-11)
    assert (real[:, -1] - real[:, 0]).abs().max() > 1e-2


def test_a_study_tells_losses_by_epoch_and_all_that_is_beside_them():
    steps = []
    found = trained(STUDY, None, TRAINING.Conduct(on_step=lambda *told: steps.append(told)))
    assert STUDY.n_steps == 2 * 2 * (3 * 2 * 3 // 4)
    assert [told[0] for told in steps] == list(range(1, STUDY.n_steps + 1))
    for learnt in (found.forward, found.backward):
        assert [row["epoch"] for row in learnt.curve] == [0.0, 1.0, 2.0]
        assert learnt.mean_loss >= learnt.variance > 0
    task, model = STUDY.task("forward"), STUDY.model("forward")
    first = found.forward.curve[0]
    batch = task.validation(task.n_validation, seed=0).to("cpu", torch.float32)
    assert first["validation_loss"] == pytest.approx(task.loss(model, batch).item(), rel=1e-5)
    batch = task.training_part(task.n_validation)
    assert first["training_loss"] == pytest.approx(task.loss(model, batch).item(), rel=1e-5)
    assert found.forward.n_parameters == sum(p.numel() for p in model.parameters())
    assert STUDY.outcome_of(asdict(found)) == found


class Killed(BaseException):
    """A stop that no code may catch."""


@pytest.mark.parametrize("step", [5, 13])
def test_a_study_that_was_stopped_goes_on_with_the_same_bits(step, tmp_path):
    whole = trained(STUDY, tmp_path / "whole")

    def stop(done, total, loss):
        if done == step:
            raise Killed

    with pytest.raises(Killed):
        trained(STUDY, tmp_path / "stopped", TRAINING.Conduct(on_step=stop))
    again = trained(STUDY, tmp_path / "stopped")
    assert replace(again, seconds=0.0) == replace(whole, seconds=0.0)


def test_forward_and_backward_start_from_weights_of_their_own():
    forward, backward = STUDY.model("forward"), STUDY.model("backward")
    assert forward.steep is not None
    assert backward.steep is None
    assert not torch.equal(forward.embed.weight, backward.embed.weight)
    other = replace(STUDY, seed=1).model("forward")
    assert not torch.equal(backward.embed.weight, other.embed.weight)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_makes_blocks_for_every_width(name):
    for width in (1, 2, 7):
        model = replace(STUDY, architecture=name, width=width).model("forward")
        rows = width**2 + 3 * width + 1
        assert model(torch.zeros(2, 2 * rows)).shape[::2] == (2, rows)


def test_the_time_of_a_step_is_measured():
    assert 0 < STUDY.step_seconds("cpu") < 10


def test_studies_without_seeds_teachers_or_names_are_refused():
    with pytest.raises(SettingError, match=re.escape("n_seeds must be a whole number of at least")):
        replace(BUDGET, n_seeds=0)
    with pytest.raises(SettingError, match="n_teachers must be a whole number of at least 1"):
        replace(STUDY, n_teachers=0)
    with pytest.raises(SettingError, match="batch_size must be at most 18"):
        replace(STUDY, budget=replace(BUDGET, batch_size=19))
    with pytest.raises(UnknownNameError, match="Unknown architecture 'product'"):
        replace(STUDY, architecture="product")
