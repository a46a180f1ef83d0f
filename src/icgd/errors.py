"""Exceptions and warnings of icgd, and helpers for their messages.

Messages are written where they are raised: what is wrong, where, the value, what was expected, and
what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches


class IcgdError(Exception):
    """Base of every error that icgd raises on purpose."""


LONGEST = 500
"""The number of characters of a value that a message shows at most."""


def quoted(value: object) -> str:
    """Return the repr of a value on one line, shortened if it is long."""
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split("\n"))
    except Exception:  # a user's class may raise anything in its __repr__
        return f"an object of type {type(value).__name__}"
    return cut(text)


def cut(text: str) -> str:
    """Shorten a long text by omitting its middle."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 30]} ... {text[-20:]}"


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Return a question that suggests the known name closest to `name`, or "" if none is close."""
    closest = get_close_matches(name, known, n=1, cutoff=0.5) if isinstance(name, str) else []
    return f" Did you mean {closest[0]!r}?" if closest else ""


def listed(reasons: Mapping[str, object]) -> str:
    """Return the distinct reasons, each after the names that share it."""
    texts = dict.fromkeys(map(str, reasons.values()))
    names = {text: [name for name in reasons if str(reasons[name]) == text] for text in texts}
    return " ".join(f"{', '.join(names[text])}: {text}" for text in texts)


def at(index: Sequence[int], columns: Sequence[str] = ()) -> str:
    """Return an index as text, such as "[2, 0]", with its column's name if `columns` is given."""
    text = f"[{', '.join(str(i) for i in index)}]"
    return f"{text} (column {columns[index[-1]]!r})" if columns else text


class UnknownNameError(IcgdError, ValueError):
    """A name (activation, loss, construction, backend, ...) is not in its registry."""

    @classmethod
    def of(
        cls, kind: str, name: object, *, known: Sequence[str], where: str = ""
    ) -> UnknownNameError:
        """Return the error "Unknown {kind} {name}{where}; known are ..."."""
        hint = did_you_mean(name, known)
        return cls(f"Unknown {kind} {quoted(name)}{where}; known are {', '.join(known)}.{hint}")


class SizeError(IcgdError, MemoryError):
    """A computation needs more memory than may be used."""


class MissingExtraError(IcgdError, ImportError):
    """An optional package is not installed."""


class SettingError(IcgdError, ValueError):
    """A setting (a width, a step size, a count, ...) has an impossible value."""


class ConstructionError(SettingError):
    """A construction cannot be built with these settings, or does not support the operation."""


class DataError(IcgdError, ValueError):
    """Data cannot be used: not numbers, not finite, of the wrong shape or type."""


class DataTypeError(DataError, TypeError):
    """Data have a type that cannot hold numbers."""


class DomainError(IcgdError, ValueError):
    """Data or weights lie outside the bounds that the certificate relies on."""


class UnsupportedActivationError(IcgdError, ValueError):
    """An activation cannot approximate all functions, so no construction can use it."""


class KernelError(IcgdError, ValueError):
    """A kernel cannot be used, or returned invalid values."""


class UnsupportedProblemError(IcgdError, ValueError):
    """The chosen construction, or every construction, cannot compile this problem."""


class UnreadableError(IcgdError, ValueError):
    """A PyTorch training script has a part that icgd cannot read, or that changes the result."""


class SeparableDataError(IcgdError, ValueError):
    """A linear model has no minimiser: its coefficients would grow without bound."""


class ToleranceError(IcgdError, ValueError):
    """No setting of the construction proves the tolerance."""


class LayoutError(IcgdError, ValueError):
    """A slot is missing or duplicated."""


class ProgramError(IcgdError, ValueError):
    """A program breaks one of the rules of `program/check.py`."""


class OverflowedRunError(IcgdError, ArithmeticError):
    """A run left the range of its floating-point numbers."""


class InterruptedRunError(IcgdError, KeyboardInterrupt):
    """The user stopped a run; `partial` is the run up to the last complete step."""

    def __init__(self, message: str, partial: object) -> None:
        super().__init__(message)
        self.partial = partial

    def __reduce__(self) -> tuple[type[InterruptedRunError], tuple[str, object]]:
        """Pickle the message and `partial`, so the error can cross process boundaries."""
        return type(self), (str(self), self.partial)


class ProofError(IcgdError, ArithmeticError):
    """A run cannot be certified."""


class FileError(IcgdError, ValueError):
    """A file cannot be read or written."""


class ExportError(IcgdError, ValueError):
    """A compiled transformer cannot be exported to another tool."""


class DistributionError(IcgdError, ValueError):
    """A distribution of tasks cannot be sampled."""


class OwnCodeError(IcgdError, ImportError):
    """A user's own function cannot be used."""


class CheckpointError(IcgdError, ValueError):
    """A checkpoint cannot be used to resume this run."""


class RunFolderError(IcgdError, RuntimeError):
    """The folder of a run is in use or cannot be used."""


class TrainingError(IcgdError, RuntimeError):
    """A model cannot be trained, or not any further."""


class InterruptedTrainingError(IcgdError, KeyboardInterrupt):
    """The user stopped a training; the model has the weights of the last complete step."""


class WorkerError(IcgdError, RuntimeError):
    """A worker process died."""


class InterruptedStudiesError(IcgdError, KeyboardInterrupt):
    """Ctrl-C stopped the studies of a figure; results so far are kept."""


class DivergenceWarning(UserWarning):
    """The step size is so large that the error on the examples grows."""


class BoxWarning(UserWarning):
    """The box limited the training."""


class EstimateWarning(UserWarning):
    """A bound uses estimated constants of a kernel, so it proves nothing."""


class LongRunWarning(UserWarning):
    """The requested run takes minutes."""


class PrecisionWarning(UserWarning):
    """Weights chosen for float64 are exported in float32."""
