import pytest
import torch

from icgd.errors import SettingError, UnknownNameError
from icgd.pictures import stream_picture
from tests.pictures import drawn
from tests.pictures.test_run_picture import QUERIES, X, Y


def test_a_row_is_a_slot_and_a_column_a_layer(tmp_path):
    compiled = drawn.compiled("relu-stack")
    run = compiled.run(X, Y, queries=QUERIES, trace=True)
    panel = run.plot_stream(path=tmp_path / "stream.svg").figure.axes[0]
    shown = torch.tensor(panel.images[0].get_array().filled(0.0))
    assert shown.shape == (len(compiled.program.layout.slots), 1 + compiled.program.n_layers)
    names = [tick.get_text() for tick in panel.get_yticklabels()]
    assert tuple(names) == compiled.program.layout.names
    units = run.trace["units_1"].square().mean((-2, -1)).sqrt()
    assert torch.allclose(shown[names.index("units_1")], units)
    assert units[0] == 0
    assert units[1] > 0
    assert (tmp_path / "stream.svg").exists()


def test_the_tokens_of_one_slot():
    run = drawn.compiled("relu-stack").run(X, Y, queries=QUERIES, trace=["y"])
    panel = run.plot_stream("y").figure.axes[0]
    shown = torch.tensor(panel.images[0].get_array().filled(0.0))
    assert torch.equal(shown, run.trace["y"][..., 0].abs().mT)
    assert [tick.get_text() for tick in panel.get_yticklabels()] == [
        f"token {number}" for number in range(5)
    ]


def test_lines_divide_the_steps():
    stack, chain = drawn.compiled("relu-stack").program, drawn.compiled("cot-network").program
    assert list(stream_picture.step_starts(stack, 28)) == [1, 7, 13, 19, 25]
    assert list(stream_picture.step_starts(chain, 18)) == [2, 6, 10, 14]
    run = drawn.compiled("cot-network").run(X, Y, trace=True)
    panel = run.plot_stream().figure.axes[0]
    assert [line.get_xdata()[0] for line in panel.lines] == [1.5, 5.5, 9.5, 13.5]


def test_tasks_of_a_batch_are_averaged():
    trace = {"a": torch.tensor([[[[3.0]]], [[[4.0]]]])}  # two tasks, a layer, a token, a number
    assert stream_picture.by_slot(trace).tolist() == [[pytest.approx(12.5**0.5)]]


def test_what_was_not_recorded_is_refused():
    run = drawn.compiled("relu-stack").run(X, Y)
    with pytest.raises(SettingError, match="The run recorded no slot"):
        run.plot_stream()
    run = drawn.compiled("relu-stack").run(X, Y, trace=["units_1"])
    with pytest.raises(UnknownNameError, match="Unknown traced slot 'units_2'; known are units_1"):
        run.plot_stream("units_2")
