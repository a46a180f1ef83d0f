import re

from benchmarks.chain_mask import draw, measure
from icgd.pictures.plotting import png


def test_cells_are_named_by_what_they_read():
    picture = measure(depth=2, n_rounds=1)
    assert picture.rows == ("F_1^{(1)}", "F_2^{(1)}", "B_2^{(1)}", "B_1^{(1)}")
    assert picture.columns[:4] == ("X^{(1)}", "Y^{(1)}", "B_2^{(0)}", "B_1^{(0)}")
    assert picture.columns[4:] == picture.rows

    def pairs(cells):
        names = [(picture.rows[row], picture.columns[column]) for row, column in cells]
        return [tuple(re.sub("[_^{}()]", "", name) for name in pair) for pair in names]

    assert pairs(picture.near) == [
        ("F11", "B10"), ("F21", "F11"), ("B21", "F21"), ("B11", "B21")
    ]  # fmt: skip
    assert pairs(picture.far) == [("F21", "B20"), ("B11", "F11")]
    assert pairs(picture.data) == [("F11", "X1"), ("B21", "Y1")]


def test_no_name_of_a_tick_stands_twice():
    picture = measure(depth=3, n_rounds=2)
    assert len(set(picture.columns)) == len(picture.columns) == 4 + 3 + 12
    names = [tick.get_text() for tick in draw(picture).axes[0].get_xticklabels()]
    assert names == [f"${name}$" for name in picture.columns]


def test_it_can_be_drawn():
    assert png(draw(measure())).startswith(b"\x89PNG")
    assert png(draw(measure(depth=1, n_rounds=1))).startswith(b"\x89PNG")
