import inspect
import pickle

import pytest

from icgd import errors
from icgd.errors import IcgdError, InterruptedRunError, UnknownNameError, at, did_you_mean, quoted

CLASSES = {
    name: member
    for name, member in vars(errors).items()
    if inspect.isclass(member) and issubclass(member, BaseException)
}
BUILTINS = {
    "CheckpointError": ValueError,
    "ConstructionError": ValueError,
    "DataError": ValueError,
    "DataTypeError": TypeError,
    "DistributionError": ValueError,
    "DomainError": ValueError,
    "ExportError": ValueError,
    "FileError": ValueError,
    "InterruptedRunError": KeyboardInterrupt,
    "InterruptedStudiesError": KeyboardInterrupt,
    "InterruptedTrainingError": KeyboardInterrupt,
    "KernelError": ValueError,
    "LayoutError": ValueError,
    "MissingExtraError": ImportError,
    "OverflowedRunError": ArithmeticError,
    "OwnCodeError": ImportError,
    "ProgramError": ValueError,
    "ProofError": ArithmeticError,
    "RunFolderError": RuntimeError,
    "SeparableDataError": ValueError,
    "SettingError": ValueError,
    "SizeError": MemoryError,
    "ToleranceError": ValueError,
    "TrainingError": RuntimeError,
    "UnknownNameError": ValueError,
    "UnreadableError": ValueError,
    "UnsupportedActivationError": ValueError,
    "UnsupportedProblemError": ValueError,
    "WorkerError": RuntimeError,
}
WARNINGS = {
    "BoxWarning",
    "DivergenceWarning",
    "EstimateWarning",
    "LongRunWarning",
    "PrecisionWarning",
}


def test_every_class_has_a_documented_base():
    assert CLASSES.keys() == BUILTINS.keys() | WARNINGS | {"IcgdError"}


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items())
def test_an_error_is_also_caught_as_the_builtin_that_it_resembles(name, builtin):
    assert issubclass(CLASSES[name], builtin)
    assert issubclass(CLASSES[name], IcgdError)


@pytest.mark.parametrize("name", sorted(WARNINGS))
def test_a_warning_is_shown_by_default(name):
    assert issubclass(CLASSES[name], UserWarning)


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"InterruptedRunError"}))
def test_an_error_travels_between_processes(name):
    error = CLASSES[name]("X[2, 0] is nan.")
    travelled = pickle.loads(pickle.dumps(error))  # noqa: S301 - as workers send it
    assert (type(travelled), str(travelled)) == (type(error), "X[2, 0] is nan.")


def test_an_interrupted_run_travels_with_its_weights():
    error = InterruptedRunError("after 1 of 2 steps", [1.0])
    travelled = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(travelled), travelled.partial) == ("after 1 of 2 steps", [1.0])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sqared", "Unknown loss 'sqared'; known are squared, huber. Did you mean 'squared'?"),
        ("mse", "Unknown loss 'mse'; known are squared, huber."),
        (3, "Unknown loss 3; known are squared, huber."),
    ],
)
def test_an_unknown_name_comes_with_the_known_ones(name, text):
    assert str(UnknownNameError.of("loss", name, known=["squared", "huber"])) == text


def test_did_you_mean_names_the_nearest_only():
    assert did_you_mean("rel", ["relu", "gelu", "tanh"]) == " Did you mean 'relu'?"
    assert did_you_mean("cosine", ["relu", "gelu"]) == ""


def test_a_place_is_an_index_with_the_name_of_its_column():
    assert at((2, 0)) == "[2, 0]"
    assert at((2, 0), ["age", "height"]) == "[2, 0] (column 'age')"


def test_a_message_shows_a_value_in_one_line_and_cuts_a_long_one():
    class Silent:
        def __repr__(self):
            raise RuntimeError

    assert quoted("a\nb") == "'a\\nb'"
    assert quoted([[1.0], [2.0]]) == "[[1.0], [2.0]]"
    assert quoted(Silent()) == "an object of type Silent"
    assert quoted(-(10**5000)) == "a whole number of 16610 bits"
    long = quoted("a" * 10**5)
    assert len(long) == errors.LONGEST - 5
    assert long.startswith("'aaa")
    assert long.endswith("aaa'")
    assert " ... " in long
