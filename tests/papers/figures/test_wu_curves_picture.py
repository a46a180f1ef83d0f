import pytest

from icgd_papers.figures.wu_curves_picture import draw, law_of


def rows(panels="ab"):
    base = {"n_layers": 3, "teacher_weights": "N(0, I)", "pretraining_length": 4}
    return [
        {**base, "panel": panel, "inputs": inputs, "line": line, "n_examples": n, "seed": seed}
        | {"r_squared": value - 0.01 * seed}
        for panel, inputs in zip(panels, ("(1, 0)", "(0.5, 0.5)"), strict=False)
        for line, value in (
            ("learnt decoder", 0.9),
            ("constructed, 10 steps", -3.0),
            ("ridge", 0.5),
        )
        for n in (2, 4, 6)
        for seed in (0, 1)
    ]


def test_panels_have_a_line_for_each_method_and_one_at_the_pretraining_length():
    figure = draw(rows())
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "a: 3 layers, mixture (1, 0)",
        "b: 3 layers, mixture (0.5, 0.5)",
    ]
    lines = figure.axes[0].lines
    assert len(lines) == 3 + 1
    assert lines[-1].get_xdata()[0] == 4
    learnt = lines[2]  # the decoder is drawn last, on top
    assert learnt.get_ydata().tolist() == pytest.approx([(0.1 * 0.11) ** 0.5] * 3)


def test_the_axis_rises_with_r_squared_and_names_it():
    ax = draw(rows()).axes[0]
    bottom, top = ax.get_ylim()
    assert bottom == 1.0 > top  # 1 - R^2
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:4] == ["0", "0.5", "0.8", "0.9"]


def test_what_is_shifted_is_named():
    row = rows()[0]
    assert law_of(row) == "mixture (1, 0)"
    assert law_of({**row, "teacher_weights": "N(0.5, I)"}) == "teachers N(0.5, I)"
