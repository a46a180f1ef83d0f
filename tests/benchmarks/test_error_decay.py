from functools import cache

from benchmarks.error_decay import Result, Sizes, draw, measure
from icgd.pictures.plotting import png


@cache
def result() -> Result:
    return measure(Sizes(lattice=(32, 64, 88), nearest=(32, 64), pieces=(16, 64)))


def test_the_lattice_falls_exponentially():
    first, second, third = result().lattice.errors
    assert second < 1e-2 * first
    assert third < 1e-2 * second
    assert third < 1e-11


def test_the_nearest_token_falls_like_one_over_the_registers():
    first, second = result().nearest.errors
    assert 1.5 < first / second < 10
    assert second > 1e-2


def test_pieces_fall_with_the_square():
    first, second = result().pieces.errors
    assert 8 < first / second < 32


def test_training_moves_the_weights_much_more():
    assert result().moved > 0.2


def test_it_can_be_drawn():
    assert png(draw(result())).startswith(b"\x89PNG")


def test_the_jump_of_the_lattice_is_cut_and_explained():
    curve = result().lattice
    assert curve.n_flat == 1  # 32 registers reach no further than where tanh is flat
    assert curve.parts() == [((32,), curve.errors[:1]), ((64, 88), curve.errors[1:])]
    panel = draw(result()).axes[0]
    assert [line.get_xdata().tolist() for line in panel.lines[:2]] == [[32], [64, 88]]
    assert "the lattice ends\nwhere tanh is flat" in [text.get_text() for text in panel.texts]


def test_no_text_touches_the_edge():
    figure = draw(result())
    png(figure)
    for text in figure.axes[0].texts:
        assert text.get_window_extent().x1 < 0.99 * figure.bbox.width, text
