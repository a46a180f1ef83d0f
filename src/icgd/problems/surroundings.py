"""Numbers do not depend on what a program has set for torch around a call."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

NOTHING: AbstractContextManager[None] = nullcontext()


def usual_surroundings() -> AbstractContextManager[object]:
    """New tensors are on the processor, and may be used in gradients later.

    A default device of the caller's would take over what icgd computes for itself. What it keeps in
    caches would be of no use outside the caller's inference mode. Data stay where they are.
    """
    is_elsewhere, is_inference = _has_other_device(), torch.is_inference_mode_enabled()
    if not is_elsewhere and not is_inference:
        return NOTHING
    usual = ExitStack()
    if is_elsewhere:
        usual.enter_context(torch.device("cpu"))
    if is_inference:
        usual.enter_context(torch.inference_mode(False))
    return usual


def _has_other_device() -> bool:
    try:
        return not torch.empty(0).is_cpu
    except Exception:  # a device that is not there, in the words of its own library
        return True
