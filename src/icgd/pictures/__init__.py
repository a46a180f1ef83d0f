"""Pictures of programs, runs and reports, each drawn by matplotlib.

matplotlib takes long to import, and most who import icgd draw nothing. Therefore the modules of
this folder, and matplotlib with them, are imported when they are first asked for, such as by
`pictures.plotting`: others import the folder at the top of their files, as they import any stage.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and the order of imports see
    from icgd.pictures import picture as picture
    from icgd.pictures import plotting as plotting
    from icgd.pictures import program_picture as program_picture
    from icgd.pictures import report_picture as report_picture
    from icgd.pictures import run_picture as run_picture
    from icgd.pictures import stream_picture as stream_picture


def __getattr__(name: str) -> Any:
    """Return the module of this name, imported now."""
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
