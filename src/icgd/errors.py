"""The exceptions and warnings of icgd, and the little that their messages share.

A message is written where it is raised: what is wrong, where, the value, what was expected, and
what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches


class IcgdError(Exception):
    """Base of every error that icgd raises on purpose."""


LONGEST = 500
"""The most characters of a value that a message shows."""


def quoted(value: object) -> str:
    """Return the repr of a value in one line, cut short if it is long."""
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
    """Return the place of an entry in an array, such as [2, 0], and its column if `columns` has
    names.
    """
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
        return cls(f"Unknown {kind} {quoted(name)}{where}; known are {', '.join(known)}.{hint}")


class SizeError(IcgdError, MemoryError):
    """Something takes more memory than may be used."""


class MissingExtraError(IcgdError, ImportError):
    """An optional package is not installed."""


class SettingError(IcgdError, ValueError):
    """A setting (a width, a step size, a count, ...) has an impossible value."""


class ConstructionError(SettingError):
    """A construction cannot be built with these settings, or is not the one that was meant."""


class DataError(IcgdError, ValueError):
    """Data cannot be used: not numbers, not finite, of the wrong shape or type."""


class DataTypeError(DataError, TypeError):
    """Data are of a type that holds no numbers."""


class DomainError(IcgdError, ValueError):
    """Data or weights lie outside the bounds that the certificate relies on."""


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


class OverflowedRunError(IcgdError, ArithmeticError):
    """A run left the range of its floating-point numbers."""


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


class LongRunWarning(UserWarning):
    """A run was asked for that takes minutes."""


class PrecisionWarning(UserWarning):
    """Weights that were chosen for float64 are written in float32."""
