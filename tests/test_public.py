"""What `import icgd` offers."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import icgd


def test_every_public_name_has_a_home_and_is_typed():
    """The names that type checkers see are those that are imported when they are used."""
    tree = ast.parse(Path(icgd.__file__).read_text())
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {(part.module, name.name) for part in typed.body for name in part.names}
    assert seen == {(home, name) for home, names in icgd._HOMES.items() for name in names}
    assert sorted(name for _, name in seen) == sorted(icgd.__all__)


def test_every_public_name_is_that_of_its_home():
    for home, names in icgd._HOMES.items():
        for name in names:
            assert getattr(icgd, name) is getattr(import_module(home), name)
    assert icgd.training is import_module("icgd.training")
    assert set(icgd.__all__) < set(dir(icgd))


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'icgd' has no attribute 'compiel'"):
        icgd.compiel  # noqa: B018


def test_importing_takes_no_torch():
    code = "import sys, icgd; print('torch' in sys.modules, icgd.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"False {icgd.__version__}\n"
