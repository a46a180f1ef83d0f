r"""Instructions of layer norms. A token multiplies features of its own, and these may be centred.

With h = c (z - mean z) and c = 1 / sqrt(var z + eps), what is pulled back through a norm is

    c (g - mean g - h mean(g h)),

and mean(g h) is the covariance of g and h over their coordinates, because the mean of h is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from icgd.program.instructions import ONE, Instruction, LayerKind
from icgd.program.uses import Read, Written


@dataclass(frozen=True)
class Covary(Instruction):
    """Set the number `write = mean((left - mean left) (right - mean right))` at every token.

    The means are over coordinates. One head does it, exactly.
    """

    left: Read
    right: Read
    write: Written
    kind = LayerKind.PRODUCT
    constants = (ONE,)

    def formula(self) -> str:
        return f"{self.write} = cov({self.left}, {self.right})"


@dataclass(frozen=True)
class ScaleCentred(Instruction):
    """Set `write[k] = scale * (source[k] - mean source - share * along[k])`, exactly.

    `scale` and `share` are one number a token. Without `along` and `share` nothing more is taken
    away than the mean. Where the scale is the reciprocal of the source's own deviation, what is
    written is at most `reach` in size, but for rounding.
    """

    source: Read
    scale: Read
    write: Written
    along: Read | None = None
    share: Read | None = None
    reach: float | None = None
    kind = LayerKind.PRODUCT
    constants = (ONE,)

    def formula(self) -> str:
        more = "" if self.along is None else f" - {self.share} * {self.along}"
        return f"{self.write} = {self.scale} * ({self.source} - mean({self.source}){more})"
