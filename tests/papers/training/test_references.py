import re

import pytest

from icgd.errors import OwnCodeError
from icgd_papers.training.references import function_named, imported


def test_a_function_is_found_in_a_file_and_in_a_module(tmp_path):
    (tmp_path / "mine.py").write_text(
        "COUNT = []\n\ndef draw():\n    COUNT.append(1)\n    return 7\n"
    )
    assert function_named("mine.py:draw", tmp_path)() == 7
    assert function_named(f"{tmp_path}/mine.py:draw", tmp_path / "elsewhere")() == 7
    assert imported("mine.py", tmp_path).COUNT == [1, 1]  # the file was run once
    assert function_named("math:sqrt", tmp_path)(9) == 3


def test_a_name_means_the_file_beside_the_config_first(tmp_path):
    (tmp_path / "math.py").write_text("def sqrt(x):\n    return -x\n")
    assert function_named("math:sqrt", tmp_path)(9) == -9
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "mine.py").write_text("def draw():\n    return 8\n")
    assert function_named("inner.mine:draw", tmp_path)() == 8


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "mine.py",
            "'mine.py' does not name a function; expected a file or a module, a colon and a name",
        ),
        ("mine.py:", "does not name a function"),
        ("mine.py:drew", "mine.py has no function called 'drew'. Did you mean 'draw'?"),
        ("none.py:draw", "none.py cannot be imported (FileNotFoundError:"),
        ("no_such_module_here:draw", "no_such_module_here cannot be imported (ModuleNotFoundError"),
        ("broken.py:draw", "broken.py cannot be imported (ZeroDivisionError: division by zero)."),
    ],
)
def test_what_cannot_be_found_is_said(tmp_path, reference, message):
    (tmp_path / "mine.py").write_text("def draw(): ...\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(OwnCodeError, match=re.escape(message)):
        function_named(reference, tmp_path)
