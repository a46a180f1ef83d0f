import pytest

from icgd.errors import FileError
from icgd.pictures import plotting
from icgd.pictures.picture import Picture, saved


@pytest.fixture
def picture() -> Picture:
    figure, [panel] = plotting.new_figure(3.0, 2.0, 1)
    plotting.describe(panel, "Hello", "x", "y")
    return Picture("hello", figure)


def test_it_becomes_the_file_that_the_ending_names(picture, tmp_path):
    picture.save(tmp_path / "a.svg")
    picture.save(str(tmp_path / "a.PNG"))
    assert (tmp_path / "a.svg").read_bytes() == plotting.svg(picture.figure)
    assert (tmp_path / "a.PNG").read_bytes() == plotting.png(picture.figure)


def test_another_ending_is_refused(picture, tmp_path):
    with pytest.raises(FileError, match=r"must end in .svg or .png, but .*a.gif does not"):
        picture.save(tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_shows_the_picture_itself(picture):
    assert picture._repr_png_() == plotting.png(picture.figure)
    assert repr(picture) == "Picture(title: hello; inches: 3.0 x 2.0)"


def test_it_is_saved_where_it_is_asked_for(picture, tmp_path):
    assert saved(picture, None) is picture
    assert saved(picture, tmp_path / "b.svg") is picture
    assert (tmp_path / "b.svg").exists()
