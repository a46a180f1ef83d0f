"""What the errors of all stages share, and those that any stage may raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches


class IcgdError(Exception):
    """Base of every error that icgd raises on purpose."""


LONGEST = 500
"""The most characters of a value that a message shows."""


def brief(value: object) -> str:
    """The value as a program would write it, in one line and cut short if it is long."""
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split("\n"))
    except Exception:  # a value of any class may be wrong in any way
        return f"an object of type {type(value).__name__}"
    return cut(text)


def cut(text: str) -> str:
    """A long text without its middle."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 30]} ... {text[-20:]}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A question that names the known name nearest to `name`; empty if none is near."""
    closest = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {closest[0]!r}?" if closest else ""


def listed(reasons: Mapping[str, object]) -> str:
    """Each reason once, after the names that share it."""
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
        """`kind` says what was looked up, such as "activation", and `where` such as " in a.csv"."""
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        return cls(f"Unknown {kind} {brief(name)}{where}; known are {', '.join(known)}.{hint}")


class SizeError(IcgdError, MemoryError):
    """Something takes more memory than may be used."""

    @classmethod
    def too_large(
        cls, what: str, needed: int, available: int, limit: str, remedy: str
    ) -> SizeError:
        return cls(
            f"{what} takes about {needed / 2**30:,.1f} GiB; {available / 2**30:,.1f} GiB may be "
            f"used, {limit}. {remedy}"
        )


class MissingExtraError(IcgdError, ImportError):
    """An optional package is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        return cls(f"{purpose} needs {package}. Install it with: pip install 'icgd[{extra}]'")
