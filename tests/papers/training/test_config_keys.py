import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from icgd.errors import SettingError
from icgd_papers.training.config_keys import SECTIONS, TRAINING, Key
from icgd_papers.training.settings import Settings


def test_every_setting_of_training_is_a_key_with_the_same_default():
    own = {field.name: field.default for field in fields(Settings)}
    assert TRAINING.keys() == own.keys()
    required = {name for name, default in own.items() if default is MISSING}
    assert required == {"n_steps", "batch_size", "learning_rate"}
    for name in own.keys() - required:
        assert TRAINING[name].default == own[name], name


def test_no_name_stands_in_two_sections():
    names = [name for keys in SECTIONS.values() for name in keys]
    assert len(names) == len(set(names))
    assert all(
        key.help.endswith((".", "...")) for keys in SECTIONS.values() for key in keys.values()
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (Key("a", float, None, ""), 3, 3.0),
        (Key("a", int, None, ""), 3, 3),
        (Key("a", str, [], "", is_list=True), "x,y", ["x", "y"]),
        (Key("a", float, [], "", is_list=True), "1,2.5", [1.0, 2.5]),
        (Key("a", float, [], "", is_list=True), [1, 2.5], [1.0, 2.5]),
        (Key("a", float, [], "", is_list=True), "", []),
    ],
)
def test_values_of_the_right_kind_are_taken(key, value, expected):
    assert key.checked(value) == expected
    assert type(key.checked(value)) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (Key("a", int, None, ""), 3.0, "a must be a whole number, got 3.0"),
        (Key("a", int, None, ""), True, "a must be a whole number, got True"),
        (Key("a", bool, None, ""), "yes", "a must be a truth value (true or false), got 'yes'"),
        (Key("a", str, None, ""), 3, "a must be a text, got 3"),
        (Key("a", str, [], "", is_list=True), 3, "a must be a list, each a text, got 3"),
        (Key("a", float, [], "", is_list=True), "1,x", "a must be a number, got 'x'"),
        (Key("a", float, [], "", is_list=True), "1,,2", "a must be a number, got ''"),
        (
            Key("a", int, None, ""),
            2**63,
            "a must be at most 9223372036854775807, got 9223372036854",
        ),
        (Key("a", str, None, ""), "b\0", r"a must be a text that can be written, got 'b\x00'"),
        (Key("a", str, None, ""), "\udcff", r"a must be a text that can be written, got '\udcff'"),
    ],
)
def test_values_of_another_kind_are_refused(key, value, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        key.checked(value)


def test_files_move_with_the_config_and_modules_do_not():
    file, code = (Key("a", str, None, "", names=names) for names in ("file", "code"))
    origin, target = Path("/a/b"), Path("/a/c/d")
    assert file.moved("tasks", origin, target) == "../../b/tasks"
    assert code.moved("mine.py:draw", origin, target) == "../../b/mine.py:draw"
    assert code.moved("package.mine:draw", origin, target) == "package.mine:draw"
    assert file.moved(None, origin, target) is None
    many = Key("a", str, [], "", is_list=True, names="code")
    assert many.moved(["mine.py", "math"], origin, target) == ["../../b/mine.py", "math"]


def test_a_module_whose_name_has_a_part_that_begins_with_py_is_no_file():
    key = Key("a", str, None, "", names="code")
    assert (
        key.moved("package.pyramids:draw", Path("here"), Path("there")) == "package.pyramids:draw"
    )
    assert key.moved("mine.py", Path("here"), Path("there")) == "../here/mine.py"


def test_a_place_is_found_from_a_folder_that_is_a_link(tmp_path):
    """The parent of a linked folder is the parent of what it links to."""
    (tmp_path / "project").mkdir()
    (tmp_path / "far" / "store").mkdir(parents=True)
    link = tmp_path / "project" / "run"
    link.symlink_to(tmp_path / "far" / "store")
    moved = Key("a", str, None, "", names="file").moved("t.csv", tmp_path / "project", link)
    (tmp_path / "project" / "t.csv").write_text("here")
    assert (link / moved).read_text() == "here"
