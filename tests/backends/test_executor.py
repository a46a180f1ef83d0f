import pytest
import torch

from icgd.backends.run import AbstractExecutor


class Idle(AbstractExecutor[None]):
    def step(self):
        return None

    def read(self, reached, write):
        return None

    def predictions(self, reached):
        return None


def test_an_executor_records_nothing_unless_it_says_so():
    assert Idle().trace() == Idle().trace(3) == {}
    assert Idle.still_steps == 1
    assert Idle().at_hand(3, None) == (3, None)


def test_a_trace_ends_with_a_step_or_with_all_that_was_recorded():
    """Two entries of the prompt, three of each step, and one of the predictions."""
    idle = Idle()
    idle.recorded = {"x": [torch.full((1, 2), float(entry)) for entry in range(9)]}
    idle.n_of_prompt, idle.n_per_step = 2, 3
    assert [len(idle.trace(n_steps)["x"]) for n_steps in (0, 1, 2)] == [2, 5, 8]
    assert idle.trace()["x"][:, 0, 1].tolist() == list(range(9))


@pytest.mark.parametrize("method", ["step", "read", "predictions"])
def test_an_executor_must_say_how_it_steps_reads_and_predicts(method):
    lacking = type("Lacking", (Idle,), {method: getattr(AbstractExecutor, method)})
    with pytest.raises(TypeError, match=f"abstract method '?{method}'?"):
        lacking()
