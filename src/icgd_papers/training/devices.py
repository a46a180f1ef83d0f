"""Devices by name, and what they can compute in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import torch
import torch.distributed as dist

from icgd.errors import SettingError, brief
from icgd.problems.data import device_of


@dataclass(frozen=True)
class Device:
    """Where a model computes, and whether it does so in bfloat16 where torch deems it safe."""

    place: torch.device
    uses_bfloat16: bool = False

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """A block in which the model computes.

        Torch keeps what it rounded until the outermost block ends, which may be the caller's, and
        would not see that a step has moved the weights.
        """
        torch.clear_autocast_cache()
        with torch.autocast(self.place.type, torch.bfloat16, enabled=self.uses_bfloat16):
            yield


def device_named(name: str, dtype: str = "float32", *, autocast: bool = False) -> Device:
    """The device called "cpu", "cuda", "cuda:1", "mps", or "auto", which takes what there is.

    Raises `SettingError` if it is not there, or if it lacks the precision.
    """
    place = _place(name)
    if place.type == "mps" and dtype == "float64":
        raise SettingError(
            f"device={brief(name)} does not compute in float64. Use dtype='float32'."
        )
    if autocast and not _has_bfloat16(place):
        raise SettingError(
            f"device={brief(name)} does not compute in bfloat16. Use autocast=False."
        )
    return Device(place, autocast)


def _place(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cuda", "mps"):
        return device_of(kind)
    if kind == "mps" and _has_mps():
        return torch.device(kind)
    chosen = _own_card() if not number else int(number) if number.isdecimal() else inf
    if kind == "mps" or chosen >= torch.cuda.device_count():
        raise SettingError(
            f"device={brief(name)} is not there: torch finds {', '.join(_there())}. Use one of "
            "these, or 'auto' to take what there is."
        )
    return torch.device("cuda", int(chosen))


def _own_card() -> int:
    """The graphics card of this process: under torchrun each process of a machine has its own."""
    under_torchrun = dist.is_available() and dist.is_torchelastic_launched()
    return dist.get_node_local_rank() if under_torchrun else 0


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


def _has_bfloat16(place: torch.device) -> bool:
    if place.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.amp.is_autocast_available(place.type))


def _there() -> list[str]:
    """The names of all devices that are there."""
    cards = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return ["cpu", *cards, *(["mps"] if _has_mps() else [])]
