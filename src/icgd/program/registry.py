"""All kinds of program; a file's data are read by the one that wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icgd.errors import ProgramError
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram

PROGRAMS: dict[str, type[AbstractProgram]] = {"block": StackProgram, "rows": ChainProgram}
"""Each kind by a key that the data of no other kind have."""


def from_data(data: Mapping[str, Any]) -> AbstractProgram:
    """The program whose `to_data` these are."""
    for key, kind in PROGRAMS.items():
        if key in data:
            return kind.from_data(data)
    raise ProgramError.broken("data of a program", f"lack a key of {', '.join(PROGRAMS)}")
