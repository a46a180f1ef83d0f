"""A study of wu-score: what it measures, against formulas of its own, and how it goes on."""

import json
from dataclasses import asdict, replace
from math import sqrt

import pytest
import torch

from icgd.errors import SettingError, UnknownNameError
from icgd_papers.reproduction import Conduct
from icgd_papers.studies import wu_score_study
from icgd_papers.studies.wu_score import SMOKE
from icgd_papers.studies.wu_score_laws import decay, spread
from icgd_papers.studies.wu_score_study import (
    CHOICE,
    DIRECT,
    EXACT,
    IN_CONTEXT,
    NORMAL,
    PROMPT,
    Bench,
    Study,
)
from icgd_papers.studies.wu_score_training import largest_curvature

STUDY = Study("ring", 2, "exact", seed=3, budget=SMOKE)


@pytest.fixture(scope="module")
def found():
    return STUDY.train()


def test_a_study_measures_what_the_paper_leaves_open(found):
    assert found.times == pytest.approx([5.0, sqrt(0.1), 0.02])
    assert found.signal == pytest.approx(found.label_power)  # labels are exact
    assert found.weight_difference < 1e-11
    assert found.sample_difference < 1e-10
    assert found.step_error <= found.step_bound < 1e-8
    assert 0 < found.proved < 1e-9
    assert set(found.score_errors) == {IN_CONTEXT, DIRECT, "Adam", NORMAL}
    assert found.score_errors[IN_CONTEXT] == pytest.approx(found.score_errors[DIRECT], rel=1e-9)
    curve = found.curves[IN_CONTEXT]
    assert [point["step"] for point in curve] == [0, 2, 4]
    assert curve[0]["loss"] > curve[1]["loss"] > curve[2]["loss"]
    assert [len(text.split(";")) for text in found.points[EXACT]] == [4, 4, 4]
    assert found.points[EXACT][0] == found.points[IN_CONTEXT][0]  # the same noise to begin with
    assert STUDY.outcome_of(json.loads(json.dumps(asdict(found)))) == found


def test_the_error_of_the_normal_score_is_that_of_the_law(found):
    """E |score + x|^2, by many more points."""
    mixture = Bench(STUDY).data.mixture
    x0 = mixture.sample(20_000, wu_score_study.generator_of(9, 9))
    for place, time in ((1, found.times[1]), (2, found.times[2])):
        at = torch.full((len(x0),), time, dtype=torch.float64)
        x = decay(at)[:, None] * x0 + spread(at)[:, None] * torch.randn(x0.shape)
        expected = (mixture.score(x, at) + x).square().sum(-1).mean().sqrt()
        assert found.score_errors[NORMAL][place] == pytest.approx(float(expected), rel=0.3)
        size = mixture.score(x, at).square().sum(-1).mean().sqrt()
        assert found.score_sizes[place] == pytest.approx(float(size), rel=0.3)


def test_the_step_size_comes_from_another_prompt_than_the_one_learnt_from():
    bench = Bench(STUDY)
    other = bench._task(bench.problem, CHOICE)
    curvature = largest_curvature(bench.problem, other, STUDY.seed)
    assert bench.problem.gradient_step.step_size == pytest.approx(0.25 / curvature)
    assert not torch.equal(other.x, bench.task.x)
    assert torch.equal(other.initial, bench.task.initial)
    assert torch.equal(bench.task.x, bench.examples(PROMPT, 16).x)


def test_a_study_that_was_stopped_goes_on_with_the_same_numbers(found, tmp_path):
    steps = []

    def stop(step, total, loss):
        steps.append((step, total))
        if step == 10:  # in the middle of Adam
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        STUDY.train_with(Conduct(on_step=stop), tmp_path)
    assert steps == [(step, 12) for step in (2, 4, 6, 8, 10)]
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert kept == ["adam", "direct", "in-context"]
    again = STUDY.train_with(Conduct(), tmp_path)
    assert replace(again, seconds=0.0) == replace(found, seconds=0.0)


def test_data_are_compared_with_data_that_were_not_learnt_from():
    bench = Bench(Study("digits", 3, "denoising", 0, SMOKE))
    clean = bench.data.fresh(24, wu_score_study.generator_of(0, wu_score_study.DATA))
    assert all((bench.data.held_out == point).all(1).any() for point in clean)
    last = bench.compared(wu_score_study.DATA)[-1]
    assert float((last - clean).abs().max()) < 5 * 0.15  # 0.14 is the noise at T_0


def test_steps_are_counted_and_timed():
    assert STUDY.n_steps == 12
    assert STUDY.work == 12 * 16
    assert STUDY.step_seconds("cpu") > 0


def test_what_cannot_be_studied_is_refused_before_the_work():
    with pytest.raises(SettingError, match=r"^n_seeds must be a whole number of at least 1, got 0"):
        replace(SMOKE, n_seeds=0)
    with pytest.raises(SettingError, match=r"^step_share must be a positive finite number, got 0"):
        replace(SMOKE, step_share=0.0)
    with pytest.raises(SettingError, match=r"^n_times must be a whole number of at least 2, got 1"):
        replace(SMOKE, n_times=1)
    with pytest.raises(SettingError, match=r"^dimension must be at most 2, got 3\.$"):
        Study("ring", 3, "exact", 0, SMOKE)
    many = Study("digits", 2, "exact", 0, replace(SMOKE, n_samples=899))
    with pytest.raises(SettingError, match=r"^n_samples must be at most 898, got 899\.$"):
        many.train()
    with pytest.raises(UnknownNameError, match=r"^Unknown targets 'noise'; known are exact, den"):
        Study("ring", 2, "noise", 0, SMOKE)
