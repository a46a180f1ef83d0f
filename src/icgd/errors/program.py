"""Errors in programs and in the layouts of their streams."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.errors.base import IcgdError, brief, did_you_mean


class LayoutError(IcgdError, ValueError):
    """A slot is missing or duplicated."""

    @classmethod
    def unknown_slot(cls, name: object, *, known: Sequence[str]) -> LayoutError:
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        return cls(f"Layout has no slot {brief(name)}; it has {', '.join(known)}.{hint}")

    @classmethod
    def duplicate_slot(cls, name: str) -> LayoutError:
        return cls(f"Layout names slot {brief(name)} twice; slot names must be unique.")

    @classmethod
    def no_coordinate(cls, coordinate: int, width: int) -> LayoutError:
        return cls(f"The residual stream has coordinates 0 to {width - 1}, got {coordinate}.")


class ProgramError(IcgdError, ValueError):
    """A program breaks one of the rules of `program/check.py`."""

    @classmethod
    def broken(cls, where: str, rule: str) -> ProgramError:
        return cls(f"{where}: {rule}")

    @classmethod
    def not_a_stack(cls, kind: str) -> ProgramError:
        return cls(
            f"A causal mask needs a program of type StackProgram, got one of type {kind}. Give "
            "compiled.stack of a run that was compiled with construction='softmax-stack'."
        )

    @classmethod
    def not_masked(cls, construction: str) -> ProgramError:
        return cls(
            f"A mask needs softmax attention alone; {construction} has other attention too. "
            "Compile with construction='softmax-stack'."
        )
