"""A picture that is displayed in notebooks and can be saved to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from icgd.errors import FileError
from icgd.pictures import plotting
from icgd.pictures.plotting import Figure
from icgd.reprs import line
from icgd.weights.files import whole_file

WRITERS: dict[str, Callable[[Figure], bytes]] = {".svg": plotting.svg, ".png": plotting.png}
"""The function that encodes a figure, by the suffix of the file name."""


@dataclass(frozen=True, eq=False, repr=False)
class Picture:
    """A matplotlib figure with a title; `figure` may be changed before saving."""

    title: str
    figure: Figure

    def facts(self) -> dict[str, str]:
        width, height = self.figure.get_size_inches()
        return {"title": self.title, "inches": f"{width:.1f} x {height:.1f}"}

    def __repr__(self) -> str:
        return line(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an SVG or PNG file, by the suffix of the name; equal pictures give equal bytes."""
        writer = writer_for(Path(path))
        content = writer(self.figure)
        with whole_file(Path(path)) as temporary:
            temporary.write_bytes(content)

    def _repr_png_(self) -> bytes:
        return plotting.png(self.figure)


def writer_for(path: Path) -> Callable[[Figure], bytes]:
    """Return the encoder for this file, or raise `FileError` if its suffix is not supported."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise FileError(
            f"The name of a picture must end in {' or '.join(WRITERS)}, got {path}. Rename it."
        )
    return writer


def saved(picture: Picture, path: str | os.PathLike[str] | None) -> Picture:
    """Save the picture if there is a path, and return it."""
    if path is not None:
        picture.save(path)
    return picture
