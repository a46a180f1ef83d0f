import polars as pl
import pytest
import torch

import icgd
from icgd.errors import DataError
from icgd.pictures import plotting, run_picture
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
    run = drawn.compiled("linear-stack").run(x, Y)
    [losses] = run.plot().figure.axes
    assert lines_of(losses) == [run.loss_curve.tolist(), run.objective_curve.tolist()]
    assert [text.get_text() for text in losses.texts] == ["loss", "loss plus penalties"]
    assert losses.get_yscale() == "linear"  # this loss is negative


@pytest.mark.parametrize("history", [False, 3])
def test_losses_stand_at_the_steps_that_were_kept(history):
    compiled = drawn.compiled("relu-stack")
    run = compiled.run(X, Y, history=history)
    [losses] = run.plot().figure.axes
    assert lines_of(losses) == [run.loss_curve.tolist()]
    [line] = losses.get_lines()
    n_steps = compiled.program.n_steps
    expected = [0, *(range(3, n_steps, 3) if history else []), n_steps]
    assert line.get_xdata().tolist() == list(run.steps) == expected


def test_a_batch_has_a_curve_for_each_task(tmp_path):
    run = drawn.compiled("relu-stack").run(
        X.expand(2, -1, -1), torch.stack([Y, -Y]), queries=QUERIES.expand(2, -1, -1)
    )
    [losses] = run.plot(tmp_path / "run.svg").figure.axes
    assert lines_of(losses) == run.loss_curve.tolist()
    assert (tmp_path / "run.svg").read_bytes().startswith(b"<?xml")


def test_named_coefficients_are_bars_in_the_order_of_their_size():
    compiled = drawn.compiled("linear-stack")
    rows = [[0.5, -1.0, 0.25], [1.0, 0.25, -0.5], [-1.0, 0.5, 1.0]]
    frame = pl.DataFrame(rows, schema=["age", "in $", "c" * 40], orient="row")
    run = compiled.run(frame, Y)
    _, panel = run.plot().figure.axes
    bars = [bar.get_width() for bar in panel.patches]
    assert bars == sorted(run.coefficients.values(), key=abs)
    names = {label.get_text() for label in panel.get_yticklabels()}
    assert names == {"age", r"in \$", "(intercept)", "c" * 21 + "..."}
    assert len(compiled.run(rows, Y).plot().figure.axes) == 1


def test_of_many_coefficients_the_largest_are_drawn():
    _, panels = plotting.new_figure(5.0, 4.0, 1)
    run_picture._draw_coefficients(panels[0], {f"c{i}": float(i) for i in range(40)})
    assert [bar.get_width() for bar in panels[0].patches] == [float(i) for i in range(25, 40)]
    assert panels[0].get_title(loc="left") == "The 15 largest of 40 trained coefficients"


def test_one_named_input_is_the_name_of_its_axis():
    problem = icgd.Problem(
        icgd.KernelMachine(1, "rbf"), "squared", icgd.FunctionalStep(0.2), drawn.DOMAIN
    )
    frame = pl.DataFrame({"age": X[:, 0].tolist()})
    run = icgd.compile(problem, n_steps=2).run(frame, Y, queries=frame[:2])
    assert run.plot().figure.axes[1].get_xlabel() == "age"


def test_classes_are_drawn_beside_one_another_and_named_below_the_panel():
    run = drawn.network("relu-stack", (2, 3, 2)).run(X, Y.expand(3, 2), queries=X)
    labels = pl.DataFrame({"good": [0.0, 1.0, 1.0], "bad": [1.0, 0.0, 0.0]})
    _, panel = run.plot(labels=labels).figure.axes
    good, bad = panel.lines  # no diagonal
    assert good.get_xdata().tolist() == pytest.approx([-0.1, 0.9, 0.9])
    assert bad.get_xdata().tolist() == pytest.approx([1.1, 0.1, 0.1])
    assert bad.get_ydata().tolist() == run.predictions[:, 1].tolist()
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["0", "1"]
    assert len(panel.texts) == 0  # nothing covers the dots
    names = [text.get_text() for text in panel.get_legend().get_texts()]
    assert names == ["good", "bad"]


def test_scores_are_not_compared_with_labels_by_a_diagonal():
    step = icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1)), "logistic", step, drawn.DOMAIN)
    run = icgd.compile(problem, "relu-stack", n_steps=1).run(X, [0.0, 1.0, 1.0], queries=X)
    _, panel = run.plot(labels=[0.0, 1.0, 1.0]).figure.axes
    scores, half = panel.lines
    assert list(scores.get_xdata()) == [0.0, 1.0, 1.0]
    assert list(half.get_ydata()) == [0, 0]  # a score of 0 is a probability of 1/2
    assert panel.get_ylabel() == "score"


def test_outputs_without_names_are_numbered():
    run = drawn.network("relu-stack", (2, 3, 2)).run(X, Y.expand(3, 2), queries=X)
    _, panel = run.plot(labels=[[0.5, 1.0], [0.25, 0.0], [1.0, 2.0]]).figure.axes
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["output 1", "output 2"]
    assert panel.lines[0].get_xdata().tolist() == [0.5, 0.25, 1.0]
    assert len(panel.lines) == 3  # with the diagonal


def test_classes_may_be_given_by_their_numbers():
    network, step = icgd.MLP((2, 3), "tanh"), icgd.GradientStep(0.1, box=2.0)
    problem = icgd.Problem(network, "cross_entropy", step, icgd.Domain(x=1.0, y=1.0))
    run = icgd.compile(problem, "softmax-stack", n_steps=2).run(
        [[0.5, 1.0], [1.0, 0.0]], [0, 2], queries=[[0.5, 0.5], [0.0, 1.0]]
    )
    by_number, by_label = (run.plot(labels=labels) for labels in ([2, 0], [[0, 0, 1], [1, 0, 0]]))
    dots = [lines_of(picture.figure.axes[1]) for picture in (by_number, by_label)]
    assert dots[0] == dots[1] != []
