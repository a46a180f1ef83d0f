import torch

import icgd
from icgd import timing
from icgd.environment import one_thread
from icgd.problems.mlp import MLP
from icgd.timing import descend
from tests.cases import FEW, Case, batch_of, make_case, over

BIASED = make_case(MLP((3, 4, 2), "tanh", biases=True), "squared")


def test_jobs_take_turns_after_a_warm_up_and_medians_are_returned(monkeypatch):
    clock = iter([0.0, 1.0, 0.0, 10.0, 0.0, 5.0, 0.0, 30.0, 0.0, 2.0, 0.0, 20.0])
    monkeypatch.setattr(timing, "perf_counter", lambda: next(clock))
    calls: list[str] = []
    medians = timing.interleaved_medians(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3
    )
    assert calls == ["a", "b"] * 4
    assert medians == {"a": 2.0, "b": 20.0}


def test_one_thread_is_one_thread_and_gives_back_what_there_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_no_further_round_starts_once_patience_is_over():
    clock = iter([0.0, 3.0, 0.0, 3.0])
    turns = timing.interleaved_seconds({"a": lambda: None}, 5, lambda: next(clock), patience=5.0)
    assert turns == [{"a": 3.0}, {"a": 3.0}]


@over((*FEW, BIASED))
def test_it_is_the_reference_algorithm_in_other_words(case: Case):
    for task in (case.task(), batch_of(case, 3).task()):
        real = case.problem.oracle.train(task, 4)[..., -1, :]
        torch.testing.assert_close(descend(case.problem, task, 4), real, rtol=1e-11, atol=1e-13)


def test_coefficients_are_those_of_the_proximal_reference():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 2, generator=generator, dtype=torch.float64).clamp(-2, 2)
    y = (x[:, :1] > 0).double()
    problem = icgd.Problem(
        icgd.LinearModel(2, "logistic", intercept=True, reduction="sum"),
        "matching",
        icgd.ProximalStep(step_size=0.5, l2=0.3, l1=0.2, box=0.8),
        icgd.Domain(2.0, 1.0),
    )
    task = icgd.as_task(problem, x, y)
    real = problem.oracle.train(task, 4)
    assert real[-1, 0] == 0.8
    torch.testing.assert_close(descend(problem, task, 4), real[-1], rtol=1e-13, atol=1e-15)
