"""What a run is asked for, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from icgd.errors import OverflowedRunError
from icgd.shapes import History, Predictions

OnProgress = Callable[[int, int], None]
"""A function that is called with the number of training steps done and the number in all."""


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for.

    `trace` names the slots to record after every layer. Without `history` only the initial and the
    final weights are kept. `on_progress` is called after every step. With `stop_below` the run
    stops after the first step that moves no weight by more; with batches, after a whole pass of
    such steps over the examples. `overflow` takes the name of a dtype and makes the error of a run
    that leaves its range: it says what to blame.
    """

    trace: tuple[str, ...] = ()
    history: bool = True
    on_progress: OnProgress | None = None
    stop_below: float | None = None
    overflow: Callable[[str], OverflowedRunError] = OverflowedRunError.of


PLAIN = RunOptions()
"""A run with its history and no trace, all of whose steps are taken."""


@dataclass(frozen=True)
class Run:
    """A transformer's forward pass, read out.

    `parameters` holds the trained weights before the first step and after every step; a run without
    history has the first and the last ones. `predictions` holds the labels that it gives to the
    queries. `trace` holds the traced slots, of shape (layer, token, width): entry 0 is the prompt,
    and entry i is the stream after layer i. A batch of tasks adds an axis in front. `stopped_after`
    is the step after which a run stopped because its weights moved no more.
    """

    parameters: History
    predictions: Predictions
    trace: Mapping[str, Tensor] = field(default_factory=dict)
    stopped_after: int | None = None
