"""Steps with momentum: they need where a run was one step earlier, besides where it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from icgd.shapes import History, Parameters

ResumedStep = Callable[[Parameters, Parameters, int], Parameters]
"""From what was learnt before a step, what was one step earlier, and its number to what is after.

A run begins at rest: before its first step both are the same.
"""


def trained(step: ResumedStep, start: Parameters, n_steps: int) -> History:
    """What is learnt before the first step and after every step."""
    history = [start]
    for number in range(n_steps):
        history.append(step(history[-1], history[max(0, number - 1)], number))
    return torch.stack(history, dim=-2)


def stepped(step: ResumedStep, history: History) -> Tensor:
    """One step from each entry of a run but its last, with the entry before for the momentum."""
    now = history[..., :-1, :].double()
    earlier = torch.cat([now[..., :1, :], now[..., :-1, :]], dim=-2)
    pairs = enumerate(zip(now.unbind(-2), earlier.unbind(-2), strict=True))
    after = [step(here, before, number) for number, (here, before) in pairs]
    return torch.stack(after, dim=-2) if after else now
