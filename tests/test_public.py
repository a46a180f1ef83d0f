"""What `import icgd` offers."""

import doctest
import functools
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import NoneType

import pytest

import icgd
import icgd.errors
from icgd import estimators
from icgd.problems.kernel_machine import KERNELS
from icgd_papers import training


def test_every_public_name_is_that_of_its_home():
    assert set(icgd.__all__) == set(icgd._HOME_OF)
    for name, home in icgd._HOME_OF.items():
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


def is_from_icgd(part: object) -> bool:
    return getattr(part, "__module__", "").startswith(("icgd.", "icgd_papers."))


def methods_of(kind: type) -> dict[str, object]:
    """Public methods by name, those of bases in icgd included."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    raw = {name: inspect.getattr_static(kind, name) for name in names}
    plain = {name: getattr(part, "__func__", part) for name, part in raw.items()}
    return {name: f for name, f in plain.items() if inspect.isfunction(f) and is_from_icgd(f)}


def properties_of(kind: type) -> dict[str, object]:
    """Public properties by name, those of bases in icgd included."""
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind)}
    kinds = (property, functools.cached_property)
    return {
        name: part
        for name, part in found.items()
        if isinstance(part, kinds)
        and not name.startswith("_")
        and is_from_icgd(getattr(part, "fget", None) or part.func)
    }


def documented(name: str) -> dict[str, object]:
    """A public name and, if it is a class, its methods, by what a user calls them."""
    home, _, last = name.rpartition(".")
    part = getattr(import_module(home), last)
    methods = methods_of(part) if inspect.isclass(part) else {}
    return {name: part} | {f"{name}.{method}": getattr(part, method) for method in methods}


def section(text: str, *titles: str) -> str:
    """What stands below one of these titles, or nothing."""
    found = re.search(rf"^(?:{'|'.join(titles)}):\n((?:    .*\n|\n)+)", f"{text}\n", re.MULTILINE)
    return found[1] if found else ""


def named_in(part: str) -> set[str]:
    """The names that a section explains."""
    return {name.strip("*") for name in re.findall(r"^    ([*\w]+): ", part, re.MULTILINE)}


def wanted_names(part: object) -> set[str]:
    """The arguments of a function, or of a class that is no enum and is made of something."""
    if inspect.isclass(part) and issubclass(part, Enum):
        return set()
    return set(inspect.signature(part).parameters) - {"self", "cls"}


def gaps_of(part: object) -> Iterator[str]:
    """What a docstring lacks, in words."""
    text = inspect.getdoc(part) or ""
    if not text.split("\n\n")[0]:
        yield "a summary"
    explained = named_in(section(text, "Args", "Attributes"))
    yield from sorted(wanted_names(part) - explained)
    returned = inspect.signature(part).return_annotation if inspect.isroutine(part) else None
    if returned not in (None, "None", NoneType, inspect.Signature.empty) and not section(
        text, "Returns"
    ):
        yield "Returns"
    if ">>> " not in section(text, "Example"):
        yield "Example"
    for error in sorted(named_in(section(text, "Raises"))):
        if not issubclass(getattr(icgd.errors, error, object), icgd.errors.IcgdError):
            yield f"{error}, which is no error of icgd"


FUNCTIONS = [
    *(f"icgd_papers.training.{name}" for name in training.__all__ if name[0].islower()),
    "icgd.exports.onnx.export_onnx",
    "icgd.exports.onnx.run_onnx",
    "icgd.exports.transformer_lens.open_in_transformer_lens",
]
NAMES = [
    *(f"icgd.{name}" for name in icgd.__all__),
    *(f"icgd.estimators.{name}" for name in estimators.__all__),
    *FUNCTIONS,
]
"""Everything that is explained with sections and examples."""

EXTRAS = {"icgd.exports.transformer_lens.open_in_transformer_lens": "transformer_lens"}
"""Examples that need a package which the tests do without."""


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_explains_arguments_results_and_errors(name):
    parts = documented(name)
    assert {called: gaps for called, part in parts.items() if (gaps := list(gaps_of(part)))} == {}
    if inspect.isclass(parts[name]):
        properties = properties_of(parts[name])
        assert [own for own, part in properties.items() if not inspect.getdoc(part)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_a_docstring_run(name, tmp_path, monkeypatch):
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "icgd.problems.kernel_machine.KERNELS", dict(KERNELS)
    )  # one example adds one
    report, runner = io.StringIO(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for called, part in documented(name).items():
        text = inspect.getdoc(part) or ""
        example = doctest.DocTestParser().get_doctest(text, {}, called, None, 0)
        runner.run(example, out=report.write, clear_globs=True)
    assert runner.tries > 0
    assert runner.failures == 0, report.getvalue()
