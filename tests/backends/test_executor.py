import pytest

from icgd.backends.executor import AbstractExecutor


class Idle(AbstractExecutor[None]):
    def step(self, write):
        return None

    def predictions(self, reached):
        return None


def test_an_executor_records_nothing_and_uses_all_examples_unless_it_says_so():
    assert Idle().trace() == Idle().trace(3) == {}
    assert Idle().next_example(3) is None
    assert Idle.still_steps == 1


@pytest.mark.parametrize("method", ["step", "predictions"])
def test_an_executor_must_say_how_it_steps_and_predicts(method):
    lacking = type("Lacking", (Idle,), {method: getattr(AbstractExecutor, method)})
    with pytest.raises(TypeError, match=f"abstract method '?{method}'?"):
        lacking()
