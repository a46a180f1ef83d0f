"""Errors of tolerances that cannot be proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icgd.errors.base import IcgdError, listed


class ToleranceError(IcgdError, ValueError):
    """No number of pieces or registers proves the tolerance.

    `tolerance` is given in words, such as "tolerance=1e-06 of the final weights".
    """

    @classmethod
    def unreachable(cls, tolerance: str, best: float, finest: str, reason: str) -> ToleranceError:
        return cls(
            f"{tolerance} cannot be proved: the smallest bound is {best:.3g}, with {finest}. "
            f"{reason}"
        )

    @classmethod
    def of_estimates(cls, tolerance: str, kernels: Sequence[str]) -> ToleranceError:
        names = ", ".join(map(repr, kernels))
        return cls(
            f"{tolerance} cannot be proved: no Lipschitz constant was stated of the "
            f"kernel {names}. Register it with icgd.register_kernel(..., lipschitz=...)."
        )

    @classmethod
    def no_room(cls, tolerance: str, construction: str, room: float) -> ToleranceError:
        return cls(f"{tolerance} takes {construction} more than {room:,.0f} weights.")

    @classmethod
    def by_all(cls, tolerance: str, refusals: Mapping[str, object]) -> ToleranceError:
        return cls(
            f"{tolerance} cannot be proved by any construction that serves this "
            f"problem. {listed(refusals)}"
        )
