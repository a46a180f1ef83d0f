import torch

from icgd.backends.run import PLAIN, Run, RunOptions
from icgd.errors import OverflowedRunError


def test_a_run_is_without_a_trace_unless_one_is_asked_for():
    run = Run(torch.zeros(2, 3), torch.zeros(1, 1))
    assert run.trace == {}
    assert Run(torch.zeros(2, 3), torch.zeros(1, 1)).trace is not run.trace


def test_a_plain_run_has_its_history_and_takes_all_steps():
    assert RunOptions((), True, None, None, OverflowedRunError.of) == PLAIN
    assert str(PLAIN.overflow("float32")) == (
        "The run leaves the range of float32: a step is too large for these data. Use a "
        "smaller step size."
    )
