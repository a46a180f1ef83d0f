import subprocess
import sys
from pathlib import Path

import pytest

from icgd.errors import MissingExtraError
from icgd.reproductions import plotting


def test_a_figure_becomes_a_png_of_its_size():
    figure, panels = plotting.new_figure(4.0, 2.0, n_panels=2)
    content = plotting.png(figure)
    assert len(panels) == 2
    assert content.startswith(b"\x89PNG\r\n")
    size = [int.from_bytes(content[start : start + 4], "big") for start in (16, 20)]
    assert size == [4 * plotting.DOTS_PER_INCH, 2 * plotting.DOTS_PER_INCH]


def test_equal_figures_give_equal_bytes():
    def drawn() -> bytes:
        figure, [panel] = plotting.new_figure(3.0, 2.0, n_panels=1)
        plotting.describe(panel, "A message", "x", "y")
        plotting.note(panel, "note", (0.5, 0.5), plotting.BLUE)
        plotting.tag(panel, "tag", (0.2, 0.2))
        return plotting.png(figure)

    assert drawn() == drawn()


def test_a_missing_matplotlib_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(plotting, "Figure", None)
    with pytest.raises(MissingExtraError) as caught:
        plotting.new_figure(3.0, 2.0, n_panels=1)
    assert str(caught.value) == (
        "Drawing the figure needs matplotlib. Install it with: pip install 'icgd[plots]'"
    )


def test_the_command_line_starts_without_matplotlib():
    script = "import sys; sys.modules['matplotlib'] = None; import icgd.cli.app"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_global_state_of_pyplot_is_used():
    assert "pyplot" not in Path(plotting.__file__).read_text()
