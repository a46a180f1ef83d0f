"""What the user's own code raises, and what no memory holds, said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb

import icgd
from icgd.errors import IcgdError, OwnCodeError, TrainingError
from icgd_papers.training.config import Config

INSTALLED = (get_path("stdlib"), get_path("purelib"), get_path("platlib"))
LIBRARIES = (str(Path(icgd.__file__).parent), *INSTALLED)
"""The folders of code that is not the user's own."""

TOO_LARGE = ("alloc", "too big", "overflow", "maximum allowed dimension", "invalid shape dimension")
"""What numpy and torch say, beside MemoryError, of arrays that no memory holds."""


@contextmanager
def told_in_a_sentence(config: Config) -> Iterator[None]:
    """Turn what a training with own code raises into an error of icgd."""
    try:
        yield
    except IcgdError:
        raise
    except Exception as problem:
        if _is_too_large(problem):
            raise TrainingError(
                f"The tasks or the model do not fit into memory ({problem}). Give smaller sizes, "
                "or gather the gradient in parts (accumulate)."
            ) from problem
        if not _has_own_code(config):
            raise
        place = f" ({_place(problem)})" if _place(problem) else ""
        raise OwnCodeError(
            f"Your own code raised {type(problem).__name__}: {problem}{place}."
        ) from problem


def _is_too_large(problem: Exception) -> bool:
    says = any(part in str(problem).lower() for part in TOO_LARGE)
    kinds = (RuntimeError, ValueError, OverflowError)
    return isinstance(problem, MemoryError) or (isinstance(problem, kinds) and says)


def _has_own_code(config: Config) -> bool:
    named = config[""]["imports"], config["data"]["generator"], config["model"]["factory"]
    return any(named)


def _place(problem: Exception) -> str:
    """The innermost line of the user's own code; empty if it was not reached."""
    lines = [line for line in extract_tb(problem.__traceback__) if _is_own(line.filename)]
    return f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}" if lines else ""


def _is_own(file: str) -> bool:
    return Path(file).is_file() and not file.startswith(LIBRARIES)
