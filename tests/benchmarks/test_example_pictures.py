import struct
from pathlib import Path

import pytest

from benchmarks.example_pictures import NOTEBOOKS, SCRIPTS, _of_script

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


def size_of(path: Path) -> tuple[int, int]:
    """Width and height, which a PNG file tells in its first bytes."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    return struct.unpack(">II", content[16:24])


def test_every_example_with_a_picture_of_its_own_is_drawn():
    named = {f"example_{name}.png" for name in (*SCRIPTS, *NOTEBOOKS)}
    assert {path.name for path in IMAGES.glob("example_*")} == named
    endings = {".py": SCRIPTS, ".ipynb": NOTEBOOKS}
    for ending, names in endings.items():
        assert all((ROOT / "examples" / f"{name}{ending}").exists() for name in names)


@pytest.mark.parametrize("name", ["own_table", "known_algorithm"])
def test_the_committed_picture_is_that_of_the_script(name, tmp_path):
    """If this fails, run `python -m benchmarks.figures examples`."""
    drawn = _of_script(tmp_path, name)
    assert size_of(drawn) == size_of(IMAGES / drawn.name)
