import pytest
import torch

import icgd
from icgd.errors import DataError
from tests.pictures import drawn

X = torch.tensor([[0.5, -1.0], [1.0, 0.25], [-1.0, 0.5]], dtype=torch.float64)
Y = torch.tensor([[0.5], [-0.25], [0.75]], dtype=torch.float64)
QUERIES = torch.tensor([[0.1, 0.2], [-0.3, 0.4]], dtype=torch.float64)


def lines_of(panel) -> list[list[float]]:
    return [line.get_ydata().tolist() for line in panel.lines]


def test_the_loss_and_the_predictions_are_drawn():
    run = drawn.compiled("relu-stack").run(X, Y, queries=QUERIES)
    losses, predictions = run.plot().figure.axes
    assert lines_of(losses) == [run.loss_curve.tolist()]
    assert losses.get_ylabel() == "half the mean squared loss of all examples"
    assert losses.get_yscale() == "log"
    assert lines_of(predictions) == [run.predictions[:, 0].tolist()]


def test_without_queries_there_is_one_panel():
    [losses] = drawn.compiled("relu-stack").run(X, Y).plot().figure.axes
    assert len(losses.lines) == 1


def test_with_labels_predictions_are_drawn_against_them():
    run = drawn.compiled("relu-stack").run(X, Y, queries=QUERIES)
    _, panel = run.plot(labels=[0.3, 0.4]).figure.axes
    assert panel.lines[0].get_xdata().tolist() == [0.3, 0.4]
    assert panel.lines[0].get_ydata().tolist() == run.predictions[:, 0].tolist()


def test_labels_of_another_number_are_refused():
    run = drawn.compiled("relu-stack").run(X, Y, queries=QUERIES)
    with pytest.raises(DataError, match=r"labels has shape \(3, 1\); expected \(2, 1\), a row for"):
        run.plot(labels=[0.3, 0.4, 0.5])


def test_one_input_is_drawn_as_a_curve_through_the_examples():
    problem = icgd.Problem(
        icgd.KernelMachine(1, "rbf"), "squared", icgd.FunctionalStep(0.2), drawn.DOMAIN
    )
    compiled = icgd.compile(problem, n_steps=2)
    run = compiled.run(X[:, :1], Y, queries=[[0.5], [-1.0]])
    examples, curve = run.plot().figure.axes[1].lines
    assert examples.get_xdata().tolist() == X[:, 0].tolist()
    assert examples.get_ydata().tolist() == Y[:, 0].tolist()
    assert curve.get_xdata().tolist() == [-1.0, 0.5]
    assert curve.get_ydata().tolist() == run.predictions[[1, 0], 0].tolist()


def test_penalties_have_a_curve_of_their_own():
    x = torch.cat([X, X[:, :1]], dim=-1)
    run = drawn.compiled("cot-ridge").run(x, Y)
    [losses] = run.plot().figure.axes
    assert lines_of(losses) == [run.loss_curve.tolist(), run.objective_curve.tolist()]
    assert [text.get_text() for text in losses.texts] == ["loss", "with penalties"]
    assert losses.get_yscale() == "linear"  # this loss is negative


def test_a_run_without_history_shows_its_ends():
    run = drawn.compiled("relu-stack").run(X, Y, history=False)
    [losses] = run.plot().figure.axes
    assert lines_of(losses) == [run.loss_curve.tolist()]
    assert [tick.get_text() for tick in losses.get_xticklabels()] == ["before", "after"]


def test_a_batch_has_a_curve_for_each_task(tmp_path):
    run = drawn.compiled("relu-stack").run(
        X.expand(2, -1, -1), torch.stack([Y, -Y]), queries=QUERIES.expand(2, -1, -1)
    )
    [losses] = run.plot(tmp_path / "run.svg").figure.axes
    assert lines_of(losses) == run.loss_curve.tolist()
    assert (tmp_path / "run.svg").read_bytes().startswith(b"<?xml")
