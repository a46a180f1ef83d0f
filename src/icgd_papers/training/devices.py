"""Devices, precision and processes, by Lightning Fabric."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from icgd.errors import MissingExtraError, SettingError, quoted


def new_fabric(device: str, precision: str = "32-true") -> Any:
    """Return Lightning Fabric for "cpu", "cuda", "cuda:1", "mps", or "auto", which takes the best.

    Under torchrun it joins the processes, each with a card of its own.
    """
    try:
        # Not at the top: it loads torch's compiler, which takes a second. So does any optimizer.
        lightning_fabric = import_module("lightning_fabric")
    except ImportError:
        raise MissingExtraError(
            "Training needs Lightning Fabric. Install it with: pip install 'icgd[train]'"
        ) from None
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces its choices
    accelerator, _, card = device.partition(":")
    n_here, n_nodes = 1, 1
    if dist.is_available() and dist.is_torchelastic_launched():
        n_here = int(os.environ["LOCAL_WORLD_SIZE"])
        n_nodes = int(os.environ["WORLD_SIZE"]) // n_here
    try:
        fabric = lightning_fabric.Fabric(
            accelerator=accelerator,
            devices=[int(card)] if card else n_here,
            num_nodes=n_nodes,
            strategy="ddp" if n_here * n_nodes > 1 else "auto",
            precision=precision,
        )
    except Exception as problem:  # Fabric has an exception for each way in which this fails
        raise SettingError(f"device={quoted(device)} cannot be used here: {problem}") from None
    if fabric.device.type == "mps" and precision == "64-true":
        raise SettingError(
            f"device={quoted(device)} does not compute in float64. Use dtype='float32'."
        )
    fabric.launch()
    return fabric


def torch_device(name: str) -> torch.device:
    """Return the torch device called "cpu", "cuda", "cuda:1", "mps" or "auto"."""
    device: torch.device = new_fabric(name).device
    return device
