"""Explain exceptions of the user's own code, and of a lack of memory, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb

import icgd
import icgd_papers
from icgd.errors import IcgdError, OwnCodeError, TrainingError
from icgd_papers.training.config import Config

LIBRARIES = (
    *(str(Path(package.__file__ or "").parent) for package in (icgd, icgd_papers)),
    *(get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
"""The folders of code that is not the user's own."""

TOO_LARGE = ("alloc", "too big", "overflow", "maximum allowed dimension", "invalid shape dimension")
"""What numpy and torch say, beside MemoryError, about arrays that do not fit into memory."""


@contextmanager
def explained_errors(config: Config) -> Iterator[None]:
    """Turn exceptions of a training with the user's own code into errors of icgd."""
    try:
        yield
    except IcgdError:
        raise
    except Exception as problem:
        names_size = any(words in str(problem).lower() for words in TOO_LARGE)
        is_number_error = isinstance(problem, RuntimeError | ValueError | OverflowError)
        if isinstance(problem, MemoryError) or (is_number_error and names_size):
            raise TrainingError(
                f"The tasks or the model do not fit into memory ({problem}). Give smaller sizes, "
                "or compute the gradient in parts (accumulate)."
            ) from problem
        if not (
            config.imports or config.callbacks or config.data.generator or config.model.factory
        ):
            raise
        lines = [
            line
            for line in extract_tb(problem.__traceback__)
            if Path(line.filename).is_file() and not line.filename.startswith(LIBRARIES)
        ]
        place = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
        raise OwnCodeError(
            f"Your own code raised {type(problem).__name__}: {problem}{place}."
        ) from problem
