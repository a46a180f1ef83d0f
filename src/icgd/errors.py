"""The exceptions and warnings of icgd, and the little that their messages share.

A message is written where it is raised: what is wrong, where, the value, what was expected, and
what to do about it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches


class IcgdError(Exception):
    """Base of every error that icgd raises on purpose."""


LONGEST = 500
"""The most characters of a value that a message shows."""


def brief(value: object) -> str:
    """The repr of a value in one line, cut short if it is long."""
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split("\n"))
    except Exception:  # a value of any class may be wrong in any way
        return f"an object of type {type(value).__name__}"
    return cut(text)


def cut(text: str) -> str:
    """Leave out the middle of a long text."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 30]} ... {text[-20:]}"


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Ask for the known name nearest to `name`; empty if none is near."""
    closest = get_close_matches(name, known, n=1, cutoff=0.5) if isinstance(name, str) else []
    return f" Did you mean {closest[0]!r}?" if closest else ""


def listed(reasons: Mapping[str, object]) -> str:
    """List each reason once, after the names that share it."""
    texts = dict.fromkeys(map(str, reasons.values()))
    names = {text: [name for name in reasons if str(reasons[name]) == text] for text in texts}
    return " ".join(f"{', '.join(names[text])}: {text}" for text in texts)


def at(index: Sequence[int], columns: Sequence[str] = ()) -> str:
    """The place of an entry in an array, such as [2, 0], and its column if `columns` has names."""
    place = f"[{', '.join(str(i) for i in index)}]"
    return f"{place} (column {columns[index[-1]]!r})" if columns else place


class UnknownNameError(IcgdError, ValueError):
    """A name (activation, loss, construction, backend, ...) is not in its registry."""

    @classmethod
    def of(
        cls, kind: str, name: object, *, known: Sequence[str], where: str = ""
    ) -> UnknownNameError:
        """Name the known ones: "Unknown {kind} {name}{where}; known are ..."."""
        hint = did_you_mean(name, known)
        return cls(f"Unknown {kind} {brief(name)}{where}; known are {', '.join(known)}.{hint}")


class SizeError(IcgdError, MemoryError):
    """Something takes more memory than may be used."""


class MissingExtraError(IcgdError, ImportError):
    """An optional package is not installed."""


class SettingError(IcgdError, ValueError):
    """A setting (a width, a step size, a count, ...) has an impossible value."""

    # Messages for modules that are about to be replaced.

    @classmethod
    def not_positive(cls, name: str, value: object) -> SettingError:
        return cls(f"{name} must be a positive finite number, got {brief(value)}.")

    @classmethod
    def unbounded_slope(cls, link: str) -> SettingError:
        return cls(
            f"The {link} link has no largest slope, so no step size is safe for all coefficients. "
            "Give a step_size, or bound the scores by a box or by Domain(score=...)."
        )

    @classmethod
    def wrong_kind(cls, name: str, value: object, expected: str) -> SettingError:
        """`expected` is a type, or a phrase such as "a finite number"."""
        kind = expected if expected.startswith("a ") else f"of type {expected}"
        return cls(f"{name} must be {kind}, got {brief(value)}.")

    @classmethod
    def not_count(cls, name: str, value: object, *, least: int) -> SettingError:
        return cls(f"{name} must be a whole number of at least {least}, got {brief(value)}.")

    @classmethod
    def too_large(cls, name: str, value: object, *, most: int) -> SettingError:
        return cls(f"{name} must be at most {most}, got {brief(value)}.")

    @classmethod
    def out_of_range(
        cls, name: str, value: object, *, least: float | int, most: float | int
    ) -> SettingError:
        return cls(f"{name} must lie between {least:g} and {most:g}, got {brief(value)}.")

    @classmethod
    def wrong_length(cls, name: str, got: int, expected: str) -> SettingError:
        return cls(f"{name} has {got} entries; expected {expected}.")

    @classmethod
    def too_many(cls, name: str, got: int, *, most: int) -> SettingError:
        return cls(f"{name} has {got:,} entries; at most {most:,} are read. Give fewer.")

    @classmethod
    def unreadable_row(cls, name: str, problem: str) -> SettingError:
        return cls(f"{name} cannot be read as a row ({problem}). Give a list or an array.")

    @classmethod
    def without(cls, given: str, missing: str) -> SettingError:
        return cls(f"{given} has no effect without {missing}; give both or neither.")

    @classmethod
    def not_power_of_two(cls, name: str, value: object) -> SettingError:
        return cls(
            f"{name} must be a power of two, such as 2**-13, so that dividing by it is exact, "
            f"got {brief(value)}."
        )

    @classmethod
    def not_described(cls, what: str, problem: str) -> SettingError:
        return cls(
            f"data does not describe a {what}: {problem}. Give what the {what} told of itself."
        )


class ConstructionError(SettingError):
    """A construction cannot be built with these settings, or is not the one that was meant."""


class DataError(IcgdError, ValueError):
    """Data cannot be used: not numbers, not finite, of the wrong shape or type."""

    # Messages for modules that are about to be replaced.

    @classmethod
    def not_finite(
        cls, name: str, index: Sequence[int], value: float, columns: Sequence[str] = ()
    ) -> DataError:
        """`columns` has the names of all columns, if they are known."""
        return cls(
            f"{name}{at(index, columns)} is {value}; every entry must be finite. "
            "Drop or fill such rows first."
        )

    @classmethod
    def no_number(
        cls, name: str, index: Sequence[int], value: object, columns: Sequence[str]
    ) -> DataError:
        return cls(
            f"{name}{at(index, columns)} is {brief(value)}, which is not a number. Remove the "
            "column or encode it as numbers; drop or fill what is missing."
        )

    @classmethod
    def negative_rate(cls, index: Sequence[int], value: float) -> DataError:
        return cls(
            f"rates{at(index)} is {value:.12g}; a rate is a number from 0 to domain.rate, by which "
            "the gradient of an example is multiplied."
        )

    @classmethod
    def other_columns(cls, name: str, columns: Sequence[str], expected: Sequence[str]) -> DataError:
        return cls(
            f"{name} has the columns {', '.join(columns)}, but X has {', '.join(expected)}. Give "
            "the same columns in the same order."
        )

    @classmethod
    def overflows(
        cls,
        name: str,
        index: Sequence[int],
        value: float,
        dtype: str,
        columns: Sequence[str] = (),
    ) -> DataError:
        return cls(
            f"{name}{at(index, columns)} is {value:.12g}, too large for {dtype}. "
            "Rescale the data, or run in float64."
        )

    @classmethod
    def not_an_array(cls, name: str, problem: str) -> DataError:
        return cls(
            f"{name} is not a rectangular array of numbers ({problem}). "
            "Every row must have the same length."
        )

    @classmethod
    def transformed(cls, name: str) -> DataError:
        return cls(
            f"{name} is inside a transform of torch.func, such as grad, jvp or vmap. A run records "
            "no gradients, so they would be 0. Use icgd.training.LearnableRun, which has gradients "
            "(torch.autograd), and a leading axis of tasks in place of vmap."
        )

    @classmethod
    def empty(cls, name: str, shape: Sequence[int]) -> DataError:
        return cls(f"{name} is empty: its shape is {tuple(shape)}. Give at least one row.")

    @classmethod
    def too_large_whole(cls, name: str, value: int, most: int) -> DataError:
        return cls(
            f"{name} holds the whole number {value}, beyond {most}, which float64 would round. "
            "Rescale the data, or convert them to float64 yourself."
        )

    @classmethod
    def wrong_dtype(cls, name: str, dtype: object) -> DataError:
        return cls(
            f"{name} has dtype {dtype}; float64, float32, integers or bool are expected. "
            "Convert it explicitly to one of them."
        )

    @classmethod
    def wrong_shape(cls, name: str, shape: Sequence[int], expected: str) -> DataError:
        return cls(f"{name} has shape {tuple(shape)}; expected {expected}.")

    @classmethod
    def other_precision(cls, name: str, dtype: object, expected: object) -> DataError:
        found, other = (str(kind).removeprefix("torch.") for kind in (dtype, expected))
        return cls(f"{name} has dtype {found}, and the other data {other}. Convert one of them.")

    @classmethod
    def text_cell(cls, path: object, line: int, column: str, cell: str) -> DataError:
        return cls(
            f"{path}, line {line}, column {brief(column)}: {brief(cell)} is not a number. Remove "
            "the column or encode it as numbers. `icgd run` can leave it out: --ignore "
            f"{shlex.quote(column)}."
        )

    @classmethod
    def not_finite_cell(cls, path: object, line: int, column: str, value: float) -> DataError:
        return cls(
            f"{path}, line {line}, column {brief(column)} is {value}; every number must be finite. "
            "Correct the cell, or remove the line."
        )

    @classmethod
    def missing_value(
        cls, path: object, line: int, columns: Sequence[str], total: int, remedy: str = ""
    ) -> DataError:
        """The first one is in `line` of the first of `columns`; there are `total` of them.

        `remedy` is what else would help, such as ", or give --missing drop".
        """
        rest = f" ({total:,} are missing, in {', '.join(columns)})" if total > 1 else ""
        return cls(
            f"{path}, line {line} has no value in column {columns[0]!r}{rest}. Fill it, or remove "
            f"the line{remedy}."
        )

    @classmethod
    def nothing_there(cls, path: object, column: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} has no value at all, so nothing can fill it. Leave it "
            f"out: --ignore {shlex.quote(column)}."
        )

    @classmethod
    def no_whole_row(cls, path: object) -> DataError:
        return cls(
            f"Every row of {path} lacks a value, so --missing drop leaves none. Use --missing mean "
            "or median, or leave the columns with gaps out (--ignore)."
        )

    @classmethod
    def other_type(cls, path: object, column: str, kind: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} holds {kind}; numbers are expected. Remove the column "
            "or encode it as numbers."
        )

    @classmethod
    def row_numbers(cls, path: object) -> DataError:
        return cls(
            f"The first column of {path} has no name and only counts the rows. Remove it, or give "
            "it a name if it is an input."
        )

    @classmethod
    def long_line(cls, path: object, delimiter: str) -> DataError:
        return cls(
            f"Cannot read {path}: a line has more cells than the first one, with "
            f"{brief(delimiter)} between cells. Mend the line, or give --delimiter."
        )

    @classmethod
    def unclear_header(cls, path: object, cells: Sequence[str]) -> DataError:
        shown = ", ".join(cells[:4]) + ", ..." * (len(cells) > 4)
        return cls(
            f"The first line of {path} ({shown}) may be a header or an example. Give --header or "
            "--no-header (header=True or False in Python)."
        )

    @classmethod
    def nothing_left(cls, path: object, ignored: Sequence[str]) -> DataError:
        return cls(
            f"{path} has no column beside those that are ignored: {', '.join(ignored)}. Ignore "
            "fewer of them."
        )

    @classmethod
    def unreadable(cls, path: object, problem: str) -> DataError:
        return cls(f"Cannot read {path}: {problem}.")

    @classmethod
    def repeated_column(cls, path: object, name: str) -> DataError:
        return cls(f"{path} has two columns called {brief(name)}; column names must be unique.")


class DataTypeError(DataError, TypeError):
    """Data are of a type that holds no numbers."""


class DomainError(IcgdError, ValueError):
    """Data or weights lie outside the bounds that the certificate relies on."""

    # Messages for modules that are about to be replaced.

    @classmethod
    def outside(
        cls,
        name: str,
        index: Sequence[int],
        value: float,
        bound: float,
        setting: str,
        columns: Sequence[str] = (),
    ) -> DomainError:
        return cls(
            f"{name}{at(index, columns)} is {value:.12g}, outside [-{bound:g}, {bound:g}]. "
            f"Rescale the data or compile with a larger {setting}."
        )


class UnsupportedActivationError(IcgdError, ValueError):
    """An activation cannot approximate all functions, so no construction can use it."""


class KernelError(IcgdError, ValueError):
    """A kernel cannot be used, or returned what no kernel may return."""


class UnsupportedProblemError(IcgdError, ValueError):
    """The chosen construction cannot serve this problem."""


class UnreadableError(IcgdError, ValueError):
    """A PyTorch training run has a part that is not read, or that would change the result."""


class SeparableDataError(IcgdError, ValueError):
    """A linear model has no minimiser: its coefficients would grow for ever."""


class ToleranceError(IcgdError, ValueError):
    """No number of pieces or registers proves the tolerance."""


class LayoutError(IcgdError, ValueError):
    """A slot is missing or duplicated."""


class ProgramError(IcgdError, ValueError):
    """A program breaks one of the rules of `program/check.py`."""

    # Messages for modules that are about to be replaced.

    @classmethod
    def broken(cls, where: str, rule: str) -> ProgramError:
        return cls(f"{where}: {rule}")


class OverflowedRunError(IcgdError, ArithmeticError):
    """A run left the range of its floating-point numbers."""

    # Messages for modules that are about to be replaced.

    @classmethod
    def constant(cls, name: str, value: float, dtype: str) -> OverflowedRunError:
        return cls(
            f"The program's {name} is {value:g}, outside the range of {dtype}. "
            "Run in float64, or change the problem."
        )


class InterruptedRunError(IcgdError, KeyboardInterrupt):
    """The user stopped a run; `partial` is the run up to the last whole step."""

    def __init__(self, message: str, partial: object) -> None:
        super().__init__(message)
        self.partial = partial

    def __reduce__(self) -> tuple[type[InterruptedRunError], tuple[str, object]]:
        """Pickle the message and `partial`, to travel between processes."""
        return type(self), (str(self), self.partial)


class ProofError(IcgdError, ArithmeticError):
    """A run cannot be certified."""


class FileError(IcgdError, ValueError):
    """A file cannot be read as a compiled training run, or not be written."""

    # Messages for modules that are about to be replaced.

    @classmethod
    def missing(cls, path: object) -> FileError:
        return cls(f"There is no file {path}.")

    @classmethod
    def folder(cls, path: object) -> FileError:
        return cls(f"{path} is a folder; a file that icgd wrote is expected.")

    @classmethod
    def damaged(cls, path: object, problem: str) -> FileError:
        return cls(f"{path} is damaged or not a safetensors file ({problem}). Compile it again.")

    @classmethod
    def other_training(cls, path: object, problem: str) -> FileError:
        return cls(
            f"{path} holds a program that does not train its problem: {problem}. "
            "It was altered; compile it again."
        )

    @classmethod
    def unfit(cls, path: object, problem: Exception) -> FileError:
        kind = type(problem).__name__
        return cls(
            f"{path} holds a program whose parts do not fit each other ({kind}: {problem}). "
            "It was altered; compile it again."
        )

    @classmethod
    def unknown_name(cls, path: object, problem: str) -> FileError:
        return cls(
            f"{path} needs what is not known here: {problem} Register kernels of your own with "
            "icgd.register_kernel, and state their constants again, before loading."
        )

    @classmethod
    def foreign(cls, path: object) -> FileError:
        return cls(
            f"{path} is a safetensors file, but not one that icgd wrote: "
            "its metadata has no 'icgd' entry."
        )

    @classmethod
    def other_format(cls, path: object, version: str, known: Sequence[str]) -> FileError:
        return cls(
            f"{path} has file format {version}; this version of icgd reads formats "
            f"{' and '.join(known)}. Compile it again, or load it with the icgd that wrote it."
        )

    @classmethod
    def one_length(cls, path: object, construction: str, version: str, known: int) -> FileError:
        return cls(
            f"{path} has file format {version}, in which {construction} was made for one number of "
            f"examples; this version of icgd writes format {known}, in which it takes any. Compile "
            "it again, or load it with the icgd that wrote it."
        )

    @classmethod
    def unwritable(cls, path: object, problem: str) -> FileError:
        return cls(f"Cannot write {path}: {problem}.")


class ExportError(IcgdError, ValueError):
    """A compiled transformer does not fit another tool."""


class DistributionError(IcgdError, ValueError):
    """A law of tasks that nothing can be drawn from."""


class OwnCodeError(IcgdError, ImportError):
    """A function of the user's own cannot be used."""


class CheckpointError(IcgdError, ValueError):
    """A checkpoint cannot be used to go on with this run."""


class RunFolderError(IcgdError, RuntimeError):
    """The folder of a run cannot be used now."""


class TrainingError(IcgdError, RuntimeError):
    """A model cannot be trained, or no further."""


class InterruptedTrainingError(IcgdError, KeyboardInterrupt):
    """The user stopped a training; the model holds its last whole step."""


class SweepError(IcgdError, RuntimeError):
    """A configuration of a sweep failed."""


class WorkerError(IcgdError, RuntimeError):
    """A process that does part of the work is gone."""


class InterruptedStudiesError(IcgdError, KeyboardInterrupt):
    """Ctrl-C ended the studies of a figure; what they found so far is kept."""


class DivergenceWarning(UserWarning):
    """Step sizes let the error on the examples grow."""


class BoxWarning(UserWarning):
    """Training was held back by its box."""


class EstimateWarning(UserWarning):
    """A bound rests on constants of a kernel that are estimated."""


class PrecisionWarning(UserWarning):
    """Weights that were chosen for float64 are written in float32."""
