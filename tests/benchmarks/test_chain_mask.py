from benchmarks.chain_mask import draw, measure
from icgd.reproductions.plotting import png


def test_cells_are_named_by_what_they_read():
    picture = measure(depth=2, n_rounds=1)
    assert picture.rows == ("F1", "F2", "B2", "B1")
    assert picture.columns == ("X1", "Y1", "B2", "B1", "F1", "F2", "B2", "B1")

    def pairs(cells):
        return [(picture.rows[row], picture.columns[column]) for row, column in cells]

    assert pairs(picture.near) == [("F1", "B1"), ("F2", "F1"), ("B2", "F2"), ("B1", "B2")]
    assert pairs(picture.far) == [("F2", "B2"), ("B1", "F1")]
    assert pairs(picture.data) == [("F1", "X1"), ("B2", "Y1")]


def test_it_can_be_drawn():
    assert png(draw(measure())).startswith(b"\x89PNG")
    assert png(draw(measure(depth=1, n_rounds=1))).startswith(b"\x89PNG")
