"""What the options of a linear model mean: ridge, lasso, generalised linear models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from icgd.errors import SettingError
from icgd.problems.data import Domain
from icgd.problems.linear_model import LinearModel
from icgd.problems.oracles import MATCHING
from icgd.problems.piecewise import Function
from icgd.problems.problem import Problem
from icgd.problems.steps import ProximalStep


@dataclass(frozen=True)
class LinearOptions:
    """The options that only a linear model has; None, or no intercept, if one was not given."""

    intercept: bool = False
    l2: float | None = None
    l1: float | None = None
    reduction: str | None = None
    score_bound: float | None = None

    def refuse(self) -> None:
        """Raise `SettingError` if one was given although no linear model is trained."""
        for name, value in vars(self).items():
            if value is not None and value is not False:
                raise SettingError(
                    f"--{name.replace('_', '-')} has no effect without --link; give both or "
                    "neither."
                )

    def problem(
        self,
        link: str | Function,
        widths: tuple[int, ...],
        step_size: float | None,
        box: float,
        domain: Domain,
    ) -> Problem:
        """The problem of a linear model; without a step size one must be chosen for it."""
        if len(widths) != 2 or widths[1] != 1:
            raise SettingError(
                "widths of a linear model are its inputs and one output, such as 4,1, got "
                f"{','.join(map(str, widths))}."
            )
        model = LinearModel(widths[0], link, self.intercept, self.reduction or "mean")
        update = ProximalStep(step_size, self.l2 or 0.0, self.l1 or 0.0, box)
        return Problem(model, MATCHING, update, replace(domain, score=self.score_bound))


def refuse_beside(chosen: str, others: Mapping[str, object]) -> None:
    """Raise `SettingError` if an option was given that makes no sense beside `chosen`."""
    for name, value in others.items():
        if value is not None:
            raise SettingError(f"Give either {name} or {chosen}, not both.")
