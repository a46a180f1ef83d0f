from dataclasses import replace
from importlib import import_module

from icgd_papers.estimates import Estimate, estimate
from icgd_papers.figures.cheng_matrices import FIGURE_3
from icgd_papers.studies.cot_cost import COST

ESTIMATES = import_module("icgd_papers.estimates")


def test_times_of_all_steps_are_added(monkeypatch):
    """A clock that counts how often it is asked: every step takes one second, and so does drawing.

    A step then takes 1 + 1/resample_every seconds on the timed tasks.
    """
    ticks = iter(range(1000))
    monkeypatch.setattr(ESTIMATES, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(ESTIMATES, "TIMED_TASKS", 2)
    studies = FIGURE_3.studies("smoke", 0)  # 4 and 10 steps of 4 tasks, a new batch every 2
    both = [*studies, *(replace(study, seed=1) for study in studies)]
    found = estimate(both)
    assert found == Estimate(4, 28, 28 * 1.5 * 4 / 2, "cpu")
    assert next(ticks) == 2 * 6  # two kinds: a start, the drawing, four steps


def test_the_words_have_two_digits():
    assert Estimate(288, 5_760_000, 4_321_000.0, "cpu").text == (
        "288 studies with 5,760,000 steps in all, about 1,200 core-hours"
    )
    assert Estimate(6, 60, 1234.0, "cuda").text == (
        "6 studies with 60 steps in all, about 0.34 hours"
    )


def test_what_does_not_train_has_no_estimate():
    found = estimate(COST.studies("smoke", 0))
    assert found.seconds is None
    assert found.text == f"{len(COST.studies('smoke', 0))} studies"
