import inspect
import pkgutil
from importlib import import_module

import pytest

from icgd import errors
from icgd.errors import (
    CheckpointError,
    DataError,
    DomainError,
    ExportError,
    FileError,
    KernelError,
    MissingExtraError,
    OverflowedRunError,
    SeparableDataError,
    SettingError,
    SizeError,
    SweepError,
    TrainingError,
    UnknownNameError,
    base,
)
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(
            SizeError.too_large,
            "A decoder of 9 weights",
            3 * 2**40,
            2**31,
            "60% of it",
            "Give smaller sizes or shorter prompts, or gather the gradient in parts (accumulate).",
        ),
        "A decoder of 9 weights takes about 3,072.0 GiB; 2.0 GiB may be used, 60% of it. Give "
        "smaller sizes or shorter prompts, or gather the gradient in parts (accumulate).",
    ),
    (
        made(UnknownNameError.of, "loss", "sqared", known=["squared", "huber"]),
        "Unknown loss 'sqared'; known are squared, huber. Did you mean 'squared'?",
    ),
    (
        made(UnknownNameError.of, "loss", "mse", known=["squared", "huber"]),
        "Unknown loss 'mse'; known are squared, huber.",
    ),
    (
        made(UnknownNameError.of, "loss", 3, known=["squared", "huber"]),
        "Unknown loss 3; known are squared, huber.",
    ),
    (
        made(MissingExtraError.of, "onnx", "onnx", "Exporting a transformer"),
        "Exporting a transformer needs onnx. Install it with: pip install 'icgd[onnx]'",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(base)


def test_one_import_reaches_every_error():
    modules = [
        import_module(f"icgd.errors.{m.name}") for m in pkgutil.iter_modules(errors.__path__)
    ]
    defined = {
        name
        for module in modules
        for name, member in vars(module).items()
        if inspect.isclass(member) and issubclass(member, BaseException)
    }
    assert sorted(defined) == [
        name for name in errors.__all__ if name.endswith(("Error", "Warning"))
    ]
    assert defined <= vars(errors).keys()


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (UnknownNameError, ValueError),
        (SettingError, ValueError),
        (DataError, ValueError),
        (DomainError, ValueError),
        (SeparableDataError, ValueError),
        (SizeError, MemoryError),
        (OverflowedRunError, ArithmeticError),
        (FileError, ValueError),
        (CheckpointError, ValueError),
        (KernelError, ValueError),
        (TrainingError, RuntimeError),
        (SweepError, RuntimeError),
        (ExportError, ValueError),
        (MissingExtraError, ImportError),
    ],
)
def test_an_error_is_also_caught_as_the_builtin_that_it_resembles(error, builtin):
    assert issubclass(error, builtin)


def test_a_message_shows_a_value_in_one_line_and_cuts_a_long_one():
    class Silent:
        def __repr__(self):
            raise RuntimeError

    assert base.brief("a\nb") == "'a\\nb'"
    assert base.brief([[1.0], [2.0]]) == "[[1.0], [2.0]]"
    assert base.brief(Silent()) == "an object of type Silent"
    assert base.brief(-(10**5000)) == "a whole number of 16610 bits"
    long = base.brief("a" * 10**5)
    assert len(long) == base.LONGEST - 5
    assert long.startswith("'aaa")
    assert long.endswith("aaa'")
    assert " ... " in long
