"""Numbers do not depend on what a program has set for torch around a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch

NOTHING: AbstractContextManager[None] = nullcontext()

EXACT = "highest"
"""What torch calls products of float32 that are not rounded to shorter numbers first."""

CAST = ("cpu", "cuda", "mps", "xpu")
"""The kinds of devices whose autocast is switched off."""


def usual_surroundings() -> AbstractContextManager[object]:
    """The usual place, and every operation in the precision of its data.

    Autocast of the caller's would compute float32 in bfloat16, and so would a lower precision of
    products (`torch.set_float32_matmul_precision`), where a processor can.
    """
    if torch._C._is_any_autocast_enabled() or _precision() != EXACT:
        return _precise()
    return usual_place()


def usual_place() -> AbstractContextManager[object]:
    """New tensors are on the processor, and may be used in gradients later.

    A default device of the caller's would take over what icgd computes for itself. What it keeps in
    caches would be of no use outside the caller's inference mode. Data stay where they are.
    """
    is_elsewhere, is_inference = _has_other_device(), torch.is_inference_mode_enabled()
    if not is_elsewhere and not is_inference:
        return NOTHING
    return _placed(is_elsewhere, is_inference)


@contextmanager
def _precise() -> Iterator[None]:
    with ExitStack() as usual:
        usual.enter_context(usual_place())
        usual.enter_context(without_autocast())
        if (before := _precision()) != EXACT:
            usual.callback(torch.set_float32_matmul_precision, before)
            torch.set_float32_matmul_precision(EXACT)
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """A block without autocast, whatever the caller has switched on."""
    with ExitStack() as usual:
        for kind in filter(torch.is_autocast_enabled, CAST):
            usual.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def _placed(is_elsewhere: bool, is_inference: bool) -> Iterator[None]:
    with ExitStack() as usual:
        if is_elsewhere:
            usual.enter_context(torch.device("cpu"))
        if is_inference:
            usual.enter_context(torch.inference_mode(False))
        yield


def _precision() -> str:
    """The precision of products; it is left as it is where torch has no one name for it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # each library of products was given a precision of its own
        return EXACT


def _has_other_device() -> bool:
    try:
        return not torch.empty(0).is_cpu
    except Exception:  # a device that is not there, in the words of its own library
        return True
