r"""Instructions: verbs on slots, at the level of meaning.

Each says what it computes at every token, which slots it reads and writes, and in which kind
of layer it runs. Every instruction of a layer reads the stream as it was before the layer.
`weights/lowering.py` spells an instruction out as heads or hidden units, `backends/fused.py`
runs it directly, and `certificates/bounds.py` bounds its error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class LayerKind(Enum):
    """The kinds of layer that a stack program uses."""

    ATTENTION = "attention"
    MLP = "mlp"
    PRODUCT = "product"


class Instruction(ABC):
    """What every instruction knows about itself."""

    kind: ClassVar[LayerKind]

    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """Names of the slots whose values it uses."""

    @abstractmethod
    def writes(self) -> tuple[str, ...]:
        """Names of the slots that it changes."""

    @abstractmethod
    def formula(self) -> str:
        """The instruction as one line of a listing."""

    def functions(self) -> tuple[str, ...]:
        """Names of the program's functions that it evaluates."""
        return ()


@dataclass(frozen=True)
class ApplyUnits(Instruction):
    """Set `write[k] = function(<weights[k, :], inputs>)`: one layer of units at every token.

    The weights are equal in all tokens, so the mean over tokens in attention is exact; the only
    error is that of `function`.
    """

    weights: str
    inputs: str
    function: str
    write: str
    kind: ClassVar[LayerKind] = LayerKind.ATTENTION

    def reads(self) -> tuple[str, ...]:
        return (self.weights, self.inputs, ONE)

    def writes(self) -> tuple[str, ...]:
        return (self.write,)

    def functions(self) -> tuple[str, ...]:
        return (self.function,)

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.weights} @ {self.inputs})"


@dataclass(frozen=True)
class AccumulateOuterProduct(Instruction):
    """Add `scale * (1 / n_examples) sum_tokens left right^T` to the matrix slot `write`.

    `left` must be zero on queries. Exact, because relu(s) - relu(-s) = s. Attention divides by
    the number of tokens; slot `tokens_per_example` in the query undoes that, so that one set of
    weights serves prompts of every length.
    """

    left: str
    right: str
    scale: float
    write: str
    kind: ClassVar[LayerKind] = LayerKind.ATTENTION

    def reads(self) -> tuple[str, ...]:
        return (self.left, self.right, TOKENS_PER_EXAMPLE)

    def writes(self) -> tuple[str, ...]:
        return (self.write,)

    def formula(self) -> str:
        return f"{self.write} += {self.scale:g} * mean({self.left} (x) {self.right})"


@dataclass(frozen=True)
class MultiplySlots(Instruction):
    """Set `write[k] = left[k] * right[k]` at every token. Exact."""

    left: str
    right: str
    write: str
    kind: ClassVar[LayerKind] = LayerKind.PRODUCT

    def reads(self) -> tuple[str, ...]:
        return (self.left, self.right, ONE)

    def writes(self) -> tuple[str, ...]:
        return (self.write,)

    def formula(self) -> str:
        return f"{self.write} = {self.left} * {self.right}"


@dataclass(frozen=True)
class PullBack(Instruction):
    """Set `write[k] = slope[k] * <weights[:, k], upstream>` at every token. Exact."""

    weights: str
    upstream: str
    slope: str
    write: str
    kind: ClassVar[LayerKind] = LayerKind.PRODUCT

    def reads(self) -> tuple[str, ...]:
        return (self.weights, self.upstream, self.slope)

    def writes(self) -> tuple[str, ...]:
        return (self.write,)

    def formula(self) -> str:
        return f"{self.write} = {self.slope} * ({self.weights}^T @ {self.upstream})"


@dataclass(frozen=True)
class Summand:
    """`function(sum_i coefficients[i] * slots[i])`, coordinate by coordinate."""

    slots: tuple[str, ...]
    coefficients: tuple[float, ...]
    function: str

    def formula(self) -> str:
        parts = [
            f"{coefficient:+g} {slot}"
            for slot, coefficient in zip(self.slots, self.coefficients, strict=True)
        ]
        return f"{self.function}({' '.join(parts)})"


@dataclass(frozen=True)
class MapSlots(Instruction):
    """Set `write = sum of summands` at the tokens where flag `only_where` is 1, not elsewhere.

    Elsewhere flag `never_where` is 1 and each ReLU's argument is lowered by `gate`, which is
    larger than any argument on the domain: the ReLU is then exactly 0. Where the flag is 0 the
    gate adds exactly nothing.
    """

    summands: tuple[Summand, ...]
    only_where: str
    never_where: str
    gate: float
    write: str
    kind: ClassVar[LayerKind] = LayerKind.MLP

    def reads(self) -> tuple[str, ...]:
        slots = [slot for summand in self.summands for slot in summand.slots]
        return (*slots, self.never_where)

    def writes(self) -> tuple[str, ...]:
        return (self.write,)

    def functions(self) -> tuple[str, ...]:
        return tuple(summand.function for summand in self.summands)

    def formula(self) -> str:
        total = " + ".join(summand.formula() for summand in self.summands)
        return f"{self.write} = {total} where {self.only_where}"


@dataclass(frozen=True)
class ClipSlots(Instruction):
    """Clip every coordinate of `slots` to [-bound, bound]: w - relu(w - b) + relu(-w - b)."""

    slots: tuple[str, ...]
    bound: float
    kind: ClassVar[LayerKind] = LayerKind.MLP

    def reads(self) -> tuple[str, ...]:
        return self.slots

    def writes(self) -> tuple[str, ...]:
        return self.slots

    def formula(self) -> str:
        return f"clip {', '.join(self.slots)} to [-{self.bound:g}, {self.bound:g}]"


@dataclass(frozen=True)
class WipeSlots(Instruction):
    """Set every coordinate of `slots` to exactly 0: h - relu(h) + relu(-h)."""

    slots: tuple[str, ...]
    kind: ClassVar[LayerKind] = LayerKind.MLP

    def reads(self) -> tuple[str, ...]:
        return self.slots

    def writes(self) -> tuple[str, ...]:
        return self.slots

    def formula(self) -> str:
        return f"wipe {', '.join(self.slots)}"


ONE = "one"
"""The slot that holds 1 in every token."""

IS_EXAMPLE, IS_QUERY = "is_example", "is_query"
"""The flags of the two kinds of token; they sum to `one`."""

TOKENS_PER_EXAMPLE = "tokens_per_example"
"""The slot that holds n_tokens / n_examples in every token."""
