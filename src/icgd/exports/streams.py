"""Residual streams in the shape that other tools expect."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, SettingError


def as_batch(stream: Tensor, width: int, dtype: torch.dtype) -> Float[Tensor, "task token d_model"]:
    """Add an axis for tasks if there is none; check width and dtype against those of the model."""
    if stream.dtype != dtype:
        raise SettingError(f"stream must be of type {dtype}, got {stream.dtype}.")
    if stream.ndim not in (2, 3) or stream.shape[-1] != width:
        raise DataError(
            f"stream has shape {tuple(stream.shape)}; expected (tokens, {width}) or (tasks, "
            f"tokens, {width})."
        )
    return stream.reshape(-1, *stream.shape[-2:])
