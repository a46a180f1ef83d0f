"""A certificate says what is promised, and a report what was found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from math import inf, nan

import torch
from torch import Tensor

from icgd import pictures
from icgd.certificates.near_kinks import NearKinks
from icgd.certificates.prediction_bounds import at_end
from icgd.certificates.rigorous import Trajectory
from icgd.facts import number, shown


class Verdict(Enum):
    """The outcome of a comparison; the value says it in words."""

    PROMISED = "bounds proved, nothing measured yet"
    HOLDS = "every measured error is within its proved bounds"
    HOLDS_EMPTY = "every measured error is within its bounds, but a bound says nothing"
    HOLDS_ESTIMATED = (
        "every measured error is within its bounds, but bounds are estimates and prove nothing"
    )
    BROKEN = "a measured error exceeds a proved bound: the construction or its lowering is wrong"
    IN_DOUBT = (
        "a measured error exceeds a bound that rests on what was stated or estimated of a kernel: "
        "that is wrong, or the construction or its lowering is"
    )

    @property
    def holds(self) -> bool:
        """Whether something was measured and no bound is broken."""
        return self in (Verdict.HOLDS, Verdict.HOLDS_EMPTY, Verdict.HOLDS_ESTIMATED)


@shown
@dataclass(frozen=True)
class Certificate:
    """What is proved for every task in the domain, before any run.

    All are bounds on the error of any single weight. Bound (a) carries intervals through the
    program: `domain_step` for one step, `domain_trajectory` for the whole run. Bound (c),
    `paper_step`, is the paper's closed form, if it has one. They include the rounding of this
    `backend` and `dtype` for prompts of up to `n_tokens` tokens. A bound of `widest` or more says
    nothing: clipping alone keeps weights that close together, and nothing is known of what is not
    clipped. If there is a `condition`, (a) holds under it only.
    `domain_predictions` is (a) for predictions after the run, infinite where nothing is proved.
    `stated` names the kernels of the user's own whose constants every bound takes for granted, and
    `estimated` those whose constants were not stated: of them nothing is proved, and bounds of a
    run are estimates.
    """

    domain_step: float
    domain_trajectory: float
    paper_step: float | None
    n_tokens: int
    widest: float = inf
    condition: str | None = None
    stated: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    backend: str = "dense"
    dtype: str = "float64"
    domain_predictions: float = inf

    def facts(self) -> dict[str, str]:
        return {
            "error of a step": f"at most {self._told(self.domain_step)}",
            "error of the run": f"at most {self._told(self.domain_trajectory)}",
            "holds for": f"{self.backend} runs in {self.dtype}, {self.n_tokens:,} tokens or fewer",
            **({"if": self.condition} if self.condition else {}),
        }

    def _told(self, bound: float) -> str:
        return f"{number(bound)}{', which says nothing' * self.says_nothing(bound)}"

    def says_nothing(self, bound: float) -> bool:
        """Whether a bound is no smaller than what is known without it."""
        return not bound < self.widest

    def told(self, bound: float) -> float | None:
        """The bound, or None if it says nothing."""
        return None if self.says_nothing(bound) else bound

    @property
    def empty(self) -> tuple[str, ...]:
        """The names of the bounds that say nothing."""
        names = ("domain_step", "domain_trajectory")
        return tuple(name for name in names if self.says_nothing(getattr(self, name)))

    @property
    def verdict(self) -> Verdict:
        return Verdict.PROMISED


@shown
@dataclass(frozen=True)
class Report:
    """Measured errors of a run beside their bounds, with an entry for each task and step.

    `step_errors` are |w_l - step(w_{l-1})|, what the theorems bound; `trajectory_errors` the
    distance to real gradient descent. `step_bounds` and `trajectory_bounds` (b) are proved for
    this run, those of `certificate` (a) for every run. Each is the largest over all weights.
    `paper_trajectory` (c) is the paper's line for the whole run, if it has one. It takes for
    granted that no step expands distances, so that a run may exceed it, and no verdict depends on
    it. `rigorous` is the proved distance of the whole run from exact descent, if it was asked for.
    `prediction_errors` and `prediction_bounds` are the distances of predictions at the queries from
    those of real gradient descent, measured and proved for this run.
    """

    certificate: Certificate
    step_errors: Tensor
    step_bounds: Tensor
    trajectory_errors: Tensor
    trajectory_bounds: Tensor
    near_kinks: NearKinks
    backend: str
    dtype: str
    paper_trajectory: Tensor | None = None
    rigorous: Trajectory | None = None
    prediction_errors: Tensor | None = None
    prediction_bounds: Tensor | None = None

    def facts(self) -> dict[str, str]:
        return {
            "verdict": self.verdict.value,
            "steps": f"{self.step_errors.shape[-1]:,}",
            "error of a step": self._largest("step_errors", "step_bounds"),
            "distance from real descent": self._largest("trajectory_errors", "trajectory_bounds"),
            **self._predictions_in_words(),
        }

    def _predictions_in_words(self) -> dict[str, str]:
        if self.prediction_errors is None or not self.prediction_errors.numel():
            return {}
        return {"error of predictions": self._largest("prediction_errors", "prediction_bounds")}

    def _largest(self, errors: str, bounds: str) -> str:
        """The largest measured error, and what is proved of it."""
        if not getattr(self, errors).numel():
            return "no step was taken"
        measured, proved = float(getattr(self, errors).max()), self.told[bounds]
        what = "says nothing" if proved.isnan().any() else f"is {number(float(proved.max()))}"
        return f"{number(measured)}, the bound of the run {what}"

    def plot(self, path: str | os.PathLike[str] | None = None) -> pictures.picture.Picture:
        """The measured errors beside their bounds over the steps, on logarithmic axes.

        Of a batch of tasks the largest are drawn. Where a bound says nothing, the legend says so.
        With a `path` the picture is also written, as SVG or PNG by the ending of the name.
        """
        panels = {"Error of one step": self._curves("step")}
        panels["Distance from real descent"] = self._curves("trajectory")
        return pictures.report_picture.draw(panels, self.verdict.value, path)

    def _curves(self, which: str) -> dict[str, list[float]]:
        """The measured errors and their bounds by name, with NaN where a bound says nothing."""
        errors = getattr(self, f"{which}_errors")
        everywhere = self.certificate.told(getattr(self.certificate, f"domain_{which}"))
        found = {
            "measured": errors,
            "proved for this run (b)": self.told[f"{which}_bounds"],
            "proved for every run (a)": torch.full_like(errors, everywhere or nan),
        }
        if which == "trajectory" and self.paper_trajectory is not None:
            found["the paper's line (c)"] = self.paper_trajectory
        if which == "trajectory" and self.rigorous is not None:
            found["proved by balls"] = self.rigorous.distances
        return {name: _over_tasks(part) for name, part in found.items()}

    @property
    def beyond_paper(self) -> int | None:
        """The first step, counted from 1, that leaves a run beyond the paper's line, or None."""
        if self.paper_trajectory is None:
            return None
        is_beyond = self.trajectory_errors > self.paper_trajectory
        steps = is_beyond.flatten(0, -2).any(0) if is_beyond.ndim > 1 else is_beyond
        return int(steps.nonzero()[0]) + 1 if steps.any() else None

    @property
    def verdict(self) -> Verdict:
        """A NaN anywhere counts as broken; a bound that is infinite is never broken."""
        within = [
            self.step_errors <= self.step_bounds,
            self.step_errors <= self.certificate.domain_step,
            self.trajectory_errors <= self.trajectory_bounds,
            self.trajectory_errors <= self.certificate.domain_trajectory,
        ]
        if self.rigorous is not None:
            within.append(self.rigorous.least <= self.trajectory_bounds)
        if self.prediction_errors is not None and self.prediction_bounds is not None:
            within.append(self.prediction_errors <= self.prediction_bounds)
            within.append(self.prediction_errors <= self.certificate.domain_predictions)
        proved, is_within = self.certificate, all(bool(part.all()) for part in within)
        if not is_within:
            return Verdict.IN_DOUBT if proved.stated or proved.estimated else Verdict.BROKEN
        if proved.estimated:
            return Verdict.HOLDS_ESTIMATED
        return Verdict.HOLDS_EMPTY if self.empty else Verdict.HOLDS

    @property
    def empty(self) -> tuple[str, ...]:
        """The names of the bounds that say nothing, for a step of the run or for any run."""
        found = [name for name, part in self.told.items() if bool(part.isnan().any())]
        return (*found, *self.certificate.empty)

    @property
    def told(self) -> dict[str, Tensor]:
        """The bounds of this run by name, NaN where they say nothing.

        Those of predictions say nothing where weights may end anywhere in the box.
        """
        widest = self.certificate.widest
        known = {"step_bounds": self.step_bounds, "trajectory_bounds": self.trajectory_bounds}
        told = {name: bounds.where(bounds < widest, nan) for name, bounds in known.items()}
        if (bounds := self.prediction_bounds) is not None:
            ends = at_end(self.trajectory_bounds).unsqueeze(-1)
            told["prediction_bounds"] = bounds.where((ends < widest) & (bounds < inf), nan)
        return told


def _over_tasks(part: Tensor) -> list[float]:
    """The largest number of all tasks, for each step."""
    largest: list[float] = part.reshape(-1, part.shape[-1]).amax(0).tolist()
    return largest
