r"""Instructions of layer norms. A token multiplies features of its own, and these may be centred.

With h = c (z - mean z) and c = 1 / sqrt(var z + eps), what is pulled back through a norm is

    c (g - mean g - h mean(g h)),

and mean(g h) is the covariance of g and h over their coordinates, because the mean of h is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from icgd.program.base import ProgramBase
from icgd.program.instructions import ONE, Instruction, LayerKind
from icgd.program.meaning import Domain, Value
from icgd.program.uses import Read, Written
from icgd.program.wires import Heads, Over, Rows, Wire, Wiring


@lru_cache(maxsize=16)
def centring(width: int) -> Rows:
    """The matrix that takes the mean of its coordinates away from a vector."""
    mean = 1.0 / width
    return tuple(
        tuple(1.0 - mean if row == column else 0.0 - mean for column in range(width))
        for row in range(width)
    )


def centred(value: Value, width: int, domain: Domain[Value]) -> Value:
    """The coordinates of a token less their mean."""
    return domain.constant_map(centring(width), value)


def _mean(value: Value, like: str, domain: Domain[Value]) -> Value:
    """The mean of a token's coordinates, as many as slot `like` has."""
    width = domain.layout.width_of(like)
    return domain.constant_map(((1.0 / width,) * width,), value)


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

    def wires(self, program: ProgramBase) -> Wiring:
        """Query left - mean(left), key right - mean(right), value 1, output 1 / width."""
        width = program.layout.width_of(self.left)
        centre = Over(("k", "feature"), centring(width))
        return (
            Heads(
                axes={},
                query=(Wire(self.left, ("k",), "feature", centre),),
                key=(Wire(self.right, ("k",), "feature", centre),),
                value=(Wire(ONE),),
                output=(Wire(self.write, factor=1.0 / width),),
                label=f"{self.write}, the covariance of {self.left} and {self.right}",
            ),
        )

    def formula(self) -> str:
        return f"{self.write} = cov({self.left}, {self.right})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        left = centred(slots[self.left], domain.layout.width_of(self.left), domain)
        if self.left == self.right:
            squares = domain.not_negative(domain.multiply(left, left))
            return {self.write: domain.not_negative(_mean(squares, self.left, domain))}
        right = centred(slots[self.right], domain.layout.width_of(self.right), domain)
        return {self.write: _mean(domain.multiply(left, right), self.left, domain)}


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

    def wires(self, program: ProgramBase) -> Wiring:
        """Query [source[k] - mean(source); -along[k]], key [1; share], value scale."""
        width = program.layout.width_of(self.source)
        query = [Wire(self.source, ("j",), factor=Over(("k", "j"), centring(width)))]
        key = [Wire(ONE)]
        if self.along is not None and self.share is not None:
            query.append(Wire(self.along, ("k",), 1, -1.0))
            key.append(Wire(self.share, feature=1))
        return (
            Heads(
                axes={"k": width},
                query=tuple(query),
                key=tuple(key),
                value=(Wire(self.scale),),
                output=(Wire(self.write, ("k",)),),
                label=f"{self.write}[{{k}}], {self.source} centred and scaled",
            ),
        )

    def formula(self) -> str:
        more = "" if self.along is None else f" - {self.share} * {self.along}"
        return f"{self.write} = {self.scale} * ({self.source} - mean({self.source}){more})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        source, scale = slots[self.source], slots[self.scale]
        value = centred(source, domain.layout.width_of(self.source), domain)
        if self.along is not None and self.share is not None:
            along = domain.multiply(slots[self.share], slots[self.along])
            value = domain.add(value, domain.combine([(-1.0, along)]))
        return {self.write: domain.as_read(self, domain.multiply(scale, value), source, scale)}

    def own_error(self, bounds: Any, value: Any, source: Any, scale: Any) -> Any:
        """Rounding alone exceeds the reach: a norm centres twice, once for the deviation."""
        if self.reach is None:
            return value
        width = source.value.error.shape[-1]
        sizes = source.value.size @ bounds.matrix(centring(width)).abs()
        off = bounds.how.sum_of(2 * width, sizes)
        return value.within(self.reach + 2 * bounds.room * scale.value.size * off)
