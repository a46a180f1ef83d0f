import re
from pathlib import Path

import pytest

from icgd_papers.training.config import read_config
from icgd_papers.training.run_config import train_config

PAGE = Path(__file__).parents[3] / "docs" / "training" / "own.md"


@pytest.fixture(scope="module")
def blocks() -> dict[str, list[str]]:
    """The code of the page, by language."""
    found = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    return {language: [code for name, code in found if name == language] for language, _ in found}


def test_an_own_kernel_on_own_data_needs_one_config_file(blocks, tmp_path):
    [config], [code, _] = blocks["toml"], blocks["python"]
    (tmp_path / "run.toml").write_text(config)
    (tmp_path / "mine.py").write_text(code)
    log = train_config(tmp_path / "run.toml").log
    assert log.rows[-1]["validation_loss"] < 0.8 * log.rows[0]["validation_loss"]
    assert read_config(tmp_path / "run" / "config.toml").model.kernels == ("own",)


def test_an_own_kernel_own_data_and_a_plot_are_at_most_25_lines_of_python(
    blocks, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    code = blocks["python"][1]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 25
    (tmp_path / "example.py").write_text(code)
    exec(compile(code, str(tmp_path / "example.py"), "exec"), {})
    first, last = map(float, capsys.readouterr().out.split())
    assert last < 0.8 * first
    assert (tmp_path / "sines.png").read_bytes().startswith(b"\x89PNG")
