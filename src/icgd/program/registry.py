"""All kinds of program. The kind that wrote a file's data reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icgd.errors import ProgramError
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram

PROGRAMS: dict[str, type[AbstractProgram]] = {"block": StackProgram, "rows": ChainProgram}
"""The kinds, each under a key that only its own data have."""


def from_data(data: Mapping[str, Any]) -> AbstractProgram:
    """The program whose `to_data` these are."""
    for key, kind in PROGRAMS.items():
        if key in data:
            return kind.from_data(data)
    raise ProgramError(f"The data of a program lack a key of {', '.join(PROGRAMS)}.")
