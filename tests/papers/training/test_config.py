import re
import tomllib
from math import inf, isnan, nan
from pathlib import Path

import pytest

from icgd.errors import DataError, IcgdError, SettingError
from icgd_papers.training.config import read_config
from icgd_papers.training.config_keys import SECTIONS

TEXT = """
folder = "results/first"
[data]
labels = "exp"
n_examples = 14
spectrum = [1, 0.25]
[training]
n_steps = 5
learning_rate = 1
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("sub/run.toml")
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def test_a_file_gives_its_values_and_defaults_the_rest(path):
    config = read_config(path)
    assert config["data"]["labels"] == "exp"
    assert config["data"]["spectrum"] == [1.0, 0.25]
    assert config["training"]["learning_rate"] == 1.0
    assert config["training"]["batch_size"] == 256
    assert config["model"]["kernels"] == ["linear"]
    assert config.run_folder == Path("sub/results/first")


def test_options_replace_what_the_file_says(path):
    options = {"n_steps": 9, "kernels": "exp,relu", "labels": None, "folder": "elsewhere"}
    config = read_config(path, options)
    assert config["training"]["n_steps"] == 9
    assert config["model"]["kernels"] == ["exp", "relu"]
    assert config["data"]["labels"] == "exp"
    assert config.run_folder.resolve() == Path("elsewhere").resolve()


def test_the_text_reads_back_and_explains_every_key(path):
    config = read_config(path)
    again = Path("sub/again.toml")
    again.write_text(config.text())
    assert read_config(again) == config
    for keys in SECTIONS.values():
        for name, key in keys.items():
            assert re.search(rf"^# {re.escape(key.help)}\n(# )?{name} =", config.text(), re.M), name
    assert tomllib.loads(config.text())["training"]["learning_rate"] == 1.0


def test_a_config_moves_with_its_run(path):
    config = read_config(path, {"tasks": "tasks.csv", "generator": "mine.py:draw"})
    moved = config.moved_to(config.run_folder)
    assert moved[""]["folder"] == "."
    assert moved["data"]["tasks"] == "../../../tasks.csv"
    assert moved["data"]["generator"] == "../../../mine.py:draw"
    assert moved.run_folder == config.run_folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[training]\nn_stepz = 3\n",
            "Unknown key 'n_stepz' in run.toml [training]; known are n_st",
        ),
        ("[training]\nn_stepz = 3\n", "Did you mean 'n_steps'?"),
        (
            "folders = 'a'\n",
            "Unknown key 'folders' in run.toml; known are folder, imports, loggers.",
        ),
        ("[trainning]\n", "Unknown section '[trainning]' in run.toml; known are [data], [model]"),
        ("[training]\nn_steps = '3'\n", "n_steps must be a whole number, got '3'"),
        (
            "[training]\nautocast = 'yes'\n",
            "autocast must be a truth value (true or false), got 'yes'",
        ),
        ("[training\n", "Cannot read run.toml: Expected ']'"),
        (f"a = {'[' * 5000}", "Cannot read run.toml: it is nested too deeply"),
        ("folder = ''\n", "folder must be a folder's name, got ''"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(text)
    with pytest.raises(IcgdError, match=re.escape(message)):
        read_config("run.toml").run_folder  # noqa: B018  asking is enough


def test_a_missing_file_and_an_unknown_option_are_named():
    with pytest.raises(DataError, match=r"Cannot read none\.toml: No such file"):
        read_config("none.toml")
    with pytest.raises(IcgdError, match=r"Unknown key 'steps'; .*Did you mean 'n_steps'\?"):
        read_config(None, {"steps": 3})
    with pytest.raises(SettingError, match="n_steps must be a whole number"):
        read_config(None, {"n_steps": 2.5})


def test_texts_and_numbers_of_every_kind_read_back(path):
    strange = "caf\u00e9 \U0001f600 \x7f \t \"'\\ run"
    config = read_config(path, {"labels": strange, "spectrum": [inf, -inf, 1e300, 0.1, 5e-324]})
    again = Path("sub/again.toml")
    again.write_text(config.text(), encoding="utf-8")
    assert read_config(again) == config
    again.write_text(read_config(path, {"learning_rate": nan}).text())
    assert isnan(read_config(again)["training"]["learning_rate"])


def test_a_file_that_begins_with_a_byte_order_mark_is_read(path):
    expected = read_config(path)
    path.write_text(TEXT, encoding="utf-8-sig")
    assert read_config(path) == expected


def test_a_device_is_no_config():
    with pytest.raises(DataError, match="Cannot read /dev/null: it is a device or a pipe; a file"):
        read_config("/dev/null")
