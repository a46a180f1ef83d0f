from icgd.pictures import plotting as general
from icgd.reproductions import plotting


def test_its_names_are_those_of_the_pictures():
    own = {name: value for name, value in vars(plotting).items() if not name.startswith("__")}
    assert {"BLUE", "Axes", "Figure", "band", "describe", "legend", "new_panels", "png"} <= set(own)
    assert all(value is getattr(general, name) for name, value in own.items())
