from pathlib import Path

import pytest

import icgd
from tests.cli.files import compiled_run


@pytest.fixture
def draw(command, tmp_path):
    compiled_run().save(tmp_path / "run.safetensors")
    return lambda *options: command("draw", "run.safetensors", *options)


def test_the_picture_is_that_of_the_library(draw):
    expected = icgd.load("run.safetensors").draw("expected.svg")
    assert draw().stdout == "Saved run.svg\n"
    assert Path("run.svg").read_bytes() == Path("expected.svg").read_bytes()
    assert draw("-o", "a.png").stdout == "Saved a.png\n"
    assert Path("a.png").read_bytes() == expected._repr_png_()


def test_another_ending_is_refused_before_the_file_is_read(command):
    assert command("draw", "none.safetensors", "--out", "a.pdf").refusal() == (
        "The name of a picture must end in .svg or .png, got a.pdf. Rename it."
    )
    assert command("draw", "none.safetensors").refusal() == "There is no file none.safetensors."
