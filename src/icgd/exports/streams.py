"""Residual streams in the form in which other tools take them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, SettingError


def as_batch(stream: Tensor, width: int, dtype: torch.dtype) -> Float[Tensor, "task token d_model"]:
    """The stream with an axis for tasks; its width and its type must be those of the model."""
    if stream.dtype != dtype:
        raise SettingError.wrong_kind("stream", stream.dtype, str(dtype))
    if stream.ndim not in (2, 3) or stream.shape[-1] != width:
        expected = f"(tokens, {width}) or (tasks, tokens, {width})"
        raise DataError.wrong_shape("stream", stream.shape, expected)
    return stream.reshape(-1, *stream.shape[-2:])
