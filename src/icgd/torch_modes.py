"""Modes of torch that a caller may have set, and that must not change what icgd computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

DEVICES = ("cpu", "cuda", "mps", "xpu")
"""The kinds of devices whose autocast is switched off."""


@contextmanager
def own_modes(*, exact_products: bool = True) -> Iterator[None]:
    """Compute in the precision of the data, with new tensors on the processor.

    A caller's autocast, or a lower precision of products (`torch.set_float32_matmul_precision`),
    would round float32 to bfloat16 unnoticed. Training keeps the latter, which speeds it up on
    purpose: `exact_products=False`. A default device would mix devices, and what icgd caches inside
    a caller's inference mode could not be used outside of it.
    """
    with ExitStack() as modes:
        for device in filter(torch.is_autocast_enabled, DEVICES):
            modes.enter_context(torch.autocast(device, enabled=False))
        if exact_products and (precision := _product_precision()) != "highest":
            modes.callback(torch.set_float32_matmul_precision, precision)
            torch.set_float32_matmul_precision("highest")
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        yield


def _product_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set for each library on its own, by torch.backends: left as it is
        return "highest"
