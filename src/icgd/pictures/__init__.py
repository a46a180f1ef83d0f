"""Pictures of programs, runs and reports, drawn with matplotlib.

matplotlib is slow to import, and most users of icgd draw nothing. So the modules of this folder,
and matplotlib with them, are imported on first access, such as `pictures.plotting`. Other modules
import the folder at the top of their files like any other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and import-linter
    from icgd.pictures import picture as picture
    from icgd.pictures import plotting as plotting
    from icgd.pictures import program_picture as program_picture
    from icgd.pictures import report_picture as report_picture
    from icgd.pictures import run_picture as run_picture
    from icgd.pictures import stream_picture as stream_picture


def __getattr__(name: str) -> Any:
    """Import the module of this name."""
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
