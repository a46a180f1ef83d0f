"""Units in which parameters are learnt, because Adam moves all numbers at the same speed."""

from __future__ import annotations

from torch import Tensor, nn


class Units(nn.Module):
    """A parameter as a multiple of `units`, which broadcast against its trailing axes."""

    units: Tensor

    def __init__(self, units: Tensor) -> None:
        super().__init__()
        self.register_buffer("units", units.double(), persistent=False)

    def forward(self, multiple: Tensor) -> Tensor:
        return multiple * self.units

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return the multiple that gives `value`."""
        return value / self.units
