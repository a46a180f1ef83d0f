import pytest
import torch

from icgd.backends.run import AbstractBackend, Run


def test_a_run_is_without_a_trace_unless_one_is_asked_for():
    run = Run(torch.zeros(2, 3), torch.zeros(1, 1))
    assert run.trace == {}
    assert Run(torch.zeros(2, 3), torch.zeros(1, 1)).trace is not run.trace


def test_a_backend_must_say_how_it_runs():
    class Idle(AbstractBackend):
        name = "idle"

    with pytest.raises(TypeError, match=r"abstract method '?run'?"):
        Idle()
