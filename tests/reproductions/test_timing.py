import torch

from icgd.environment import one_thread
from icgd.reproductions import timing


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
