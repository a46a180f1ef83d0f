"""Data parallel training: torchrun starts processes, each of which takes a share of every batch.

Without torchrun there is one process, and everything here does nothing.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from icgd.errors import SettingError


@dataclass(frozen=True)
class Processes:
    """The processes that train one model together; `rank` is the number of this one."""

    rank: int = 0
    count: int = 1

    def share_of(self, batch_size: int) -> int:
        """How many tasks of a batch this process draws."""
        if batch_size % self.count:
            raise SettingError(
                f"batch_size={batch_size} cannot be shared evenly by {self.count} processes. Give "
                f"a multiple of {self.count}."
            )
        return batch_size // self.count

    def part_of(self, share: int, n_parts: int) -> int:
        """How many tasks of its share a process takes at a time, in `n_parts` equal parts."""
        if share % n_parts:
            raise SettingError(
                f"accumulate={n_parts} does not divide the {share} tasks that a process takes in a "
                "step. Give a batch_size that is a multiple of it for each process."
            )
        return share // n_parts

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the processes; every process gets the same bits.

        The tensors travel as one vector, so that a step needs one message.
        """
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = (flat / self.count).split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Give every process the first one's tensors."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Wait until every process has come here."""
        if self.count > 1:
            dist.barrier()


def joined(device: torch.device) -> Processes:
    """The processes that run this program; under torchrun the first call joins them."""
    if not dist.is_available():
        return Processes()
    if dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    if not dist.is_initialized():
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())
