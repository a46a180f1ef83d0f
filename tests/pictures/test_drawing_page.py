"""What docs/drawing.md shows works as shown."""

import re
from pathlib import Path

from icgd.pictures.diagram import diagram
from tests.pictures import drawn

PAGE = Path(__file__).parents[2] / "docs" / "drawing.md"


def test_its_example_runs_and_writes_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["report.svg", "run.svg", "stream.png", "transformer.svg"]
    printed = capsys.readouterr().out
    assert printed.startswith("half the mean squared loss of all examples tensor(")
    assert "{'weights_1': (4, 3), 'weights_2': (1, 4)}" in printed
    assert names["run"].loss_curve[-1] < names["run"].loss_curve[0]


def test_its_pictures_are_there():
    paths = re.findall(r"!\[.*?\]\((.*?)\)", PAGE.read_text("utf-8"))
    assert len(paths) == 3
    assert all((PAGE.parent / path).exists() for path in paths)


def test_its_numbers_of_a_deep_network_are_right():
    program = drawn.network("relu-stack", (3, *(2,) * 159, 1), pieces=4, n_steps=2).program
    found = diagram(program)
    n_rows = sum(len(section.rows) for section in found.sections)
    said = (
        f"a network of 160 layers, whose transformer has {len(program.block)} layers a step and "
        f"{len(program.layout.slots)} slots, is a picture of {n_rows} rows and "
        f"{len(found.columns)} columns"
    )
    assert said in PAGE.read_text("utf-8")
