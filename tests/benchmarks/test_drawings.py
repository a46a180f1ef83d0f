import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.drawings import DRAWN, FRONT, files
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.pictures import plotting

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def texts_and_marks(content: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", content) + re.findall(r'id="(layer-[^"]+)"', content)


def test_every_construction_is_drawn():
    assert set(DRAWN) == set(CONSTRUCTIONS)
    assert [path.name for path in files(IMAGES, FRONT)] == [
        "drawing_relu_stack.svg", "drawing_relu_stack.png"
    ]  # fmt: skip


@pytest.mark.parametrize("construction", DRAWN)
def test_the_committed_drawing_is_that_of_the_program(construction):
    """If this fails, run `make figures`, or `python -m benchmarks.figures drawings`."""
    drawn = plotting.svg(DRAWN[construction]().draw().figure).decode()
    committed = files(IMAGES, construction)[0].read_text()
    assert ElementTree.fromstring(committed).tag.endswith("svg")
    assert texts_and_marks(drawn) == texts_and_marks(committed)
    assert len(texts_and_marks(committed)) > 20
