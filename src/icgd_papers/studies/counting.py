"""The work of a job, counted while it runs, without a clock: the same every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from icgd.timing import Job

_ATEN = torch.ops.aten
PRODUCTS = (_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.addmm_, _ATEN.baddbmm, _ATEN.baddbmm_)
"""Matrix products and einsum end in these operations; their last two arguments are the factors."""


@dataclass(frozen=True)
class Work:
    """The FLOPs in products of matrices, and the largest number of bytes held at a time.

    Elementwise operations are not counted, nor are tensors that the job was given.
    """

    flops: int
    peak_bytes: int


def work_of(job: Job) -> Work:
    """Do the job, and count its work."""
    watch = _Watch()
    with watch:
        job()
    return Work(watch.flops, watch.peak_bytes)


class _Watch(TorchDispatchMode):
    """Sees every operation, and every storage when it is made and when it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.peak_bytes = 0
        self._bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(options or {})
        self._meet((arguments, options), is_new=False)
        if operation.overloadpacket in PRODUCTS:
            left, right = arguments[-2:]
            self.flops += 2 * left.numel() * right.shape[-1]
        result = operation(*arguments, **options)
        self._meet(result, is_new=True)
        return result

    def _meet(self, tensors: object, *, is_new: bool) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known:
                    self._hold(storage, storage.nbytes() if is_new else 0)

    def _hold(self, storage: torch.UntypedStorage, size: int) -> None:
        self._known.add(storage._cdata)
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        finalize(storage, self._let_go, storage._cdata, size)

    def _let_go(self, name: int, size: int) -> None:
        self._known.discard(name)
        self._bytes -= size
