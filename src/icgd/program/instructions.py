r"""Instructions: verbs on slots, at the level of meaning.

An instruction says what it computes at every token, which slots it reads and writes, and in which
kind of layer it runs. All instructions of a layer read the stream as it was before the layer.
`weights/lowering.py` spells an instruction out as heads or hidden units, `backends/fused.py`
runs it directly, and `certificates/bounds.py` bounds its error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from icgd.errors import ProgramError
from icgd.program import uses
from icgd.program.layout import Layout
from icgd.program.uses import Accumulated, Added, Changed, Evaluated, Flag, Read, Use, Written

ONE = "one"
"""The slot that holds 1 in every token."""

IS_EXAMPLE, IS_QUERY = "is_example", "is_query"
"""The flags of the two kinds of token that carry data."""

TOKENS_PER_EXAMPLE = "tokens_per_example"
"""The slot that holds n_tokens / n_examples in every token."""

RATES = "rates"
"""The slot that holds the rate of an example, in as many coordinates as there are outputs."""

N_TOKENS = "n_tokens"
"""The slot that holds the number of tokens in every token."""

IDENTITY, SQUARE = "identity", "square"
"""The functions that `Project` and `AddProduct` look up."""


class LayerKind(Enum):
    """The kinds of layer that a stack program uses."""

    ATTENTION = "attention"
    SOFTMAX = "softmax"
    MLP = "mlp"
    PRODUCT = "product"
    KERNEL = "kernel"
    GRID = "grid"


class Instruction(ABC):
    """What every instruction says of itself. The types of its fields say what it reads and writes.

    It runs in layers of the `kind`, and always reads the slots in `constants`.
    """

    kind: ClassVar[LayerKind]
    constants: ClassVar[tuple[Read, ...]] = ()

    @abstractmethod
    def formula(self) -> str:
        """The instruction as one line of a listing."""

    def reads(self) -> tuple[str, ...]:
        """Names of the slots whose values it uses."""
        return uses.names(self, Use.READ, Use.FLAG, Use.CHANGE)

    def writes(self) -> tuple[str, ...]:
        """Names of the slots that it changes."""
        return uses.names(self, Use.WRITE, Use.ADD, Use.ACCUMULATE, Use.CHANGE)

    def functions(self) -> tuple[str, ...]:
        """Names of the program's functions that it evaluates."""
        return uses.names(self, Use.EVALUATE)


def stacked(inputs: str, bias: str | None) -> tuple[str, ...]:
    """The slots that the columns of a matrix multiply: inputs, and a constant if there is one."""
    return (inputs,) if bias is None else (inputs, bias)


def below(inputs: str, bias: str | None) -> str:
    """Inputs, and the constant below them if there is one, in a formula."""
    return inputs if bias is None else f"({inputs}, {bias})"


@dataclass(frozen=True)
class ApplyUnits(Instruction):
    """Set `write[k] = function(<weights[k, :], inputs>)`: one layer of units at every token.

    The weights are equal in all tokens, so that attention's mean over tokens is exact. The only
    error is that of `function`. The last column of the weights multiplies the slot `bias`, if there
    is one.
    """

    weights: Read
    inputs: Read
    function: Evaluated
    write: Written
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.weights} @ {below(self.inputs, self.bias)})"

    @property
    def argument(self) -> Argument:
        """What the function is applied to."""
        return Argument(Combination.of(self.inputs), self.weights, bias=self.bias)


@dataclass(frozen=True)
class AccumulateOuterProduct(Instruction):
    """Add `scale * (1 / n_examples) sum_tokens left right^T` to the matrix slot `write`.

    `left` must be zero on queries. The sum is exact, because relu(s) - relu(-s) = s. Attention
    divides by the number of tokens, and slot `tokens_per_example` in the query undoes that, so that
    one set of weights serves prompts of every length. With a `bias`, that slot stands below
    `right`.
    """

    left: Read
    right: Read
    scale: float
    write: Accumulated
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (TOKENS_PER_EXAMPLE,)

    def formula(self) -> str:
        right = below(self.right, self.bias)
        return f"{self.write} += {self.scale:g} * mean({self.left} (x) {right})"


@dataclass(frozen=True)
class MultiplySlots(Instruction):
    """Set `write[k] = left[k] * right[k]` at every token, exactly."""

    left: Read
    right: Read
    write: Written
    kind = LayerKind.PRODUCT
    constants = (ONE,)

    def formula(self) -> str:
        return f"{self.write} = {self.left} * {self.right}"


@dataclass(frozen=True)
class PullBack(Instruction):
    """Set `write[k] = slope[k] * (<weights[:, k], upstream> + sum of plus[k])`, exactly.

    The slope may be slot `one`. If the weights have one column more, which multiplies a constant,
    nothing is passed back to it.
    """

    weights: Read
    upstream: Read
    slope: Read
    write: Written
    plus: tuple[Read, ...] | None = None
    kind = LayerKind.PRODUCT

    @property
    def constants(self) -> tuple[str, ...]:  # type: ignore[override]
        """What is added is multiplied by 1."""
        return (ONE,) if self.plus else ()

    @property
    def added(self) -> tuple[str, ...]:
        """The slots that are added to what is pulled back."""
        return self.plus or ()

    def formula(self) -> str:
        pulled_back = " + ".join((f"{self.weights}^T @ {self.upstream}", *self.added))
        return f"{self.write} = {self.slope} * ({pulled_back})"


@dataclass(frozen=True)
class Combination:
    """`sum_i coefficients[i] * slots[i]`, coordinate by coordinate."""

    slots: tuple[Read, ...]
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.slots) == len(self.coefficients) > 0:
            raise ProgramError(
                f"Combination: has {len(self.coefficients)} coefficients for {len(self.slots)} "
                "slots, expected one for each of them"
            )

    @classmethod
    def of(cls, slot: str) -> Combination:
        """The combination that is one slot."""
        return cls((slot,), (1.0,))

    def terms(self) -> tuple[tuple[str, float], ...]:
        """The slots with their coefficients."""
        return tuple(zip(self.slots, self.coefficients, strict=True))

    @property
    def n_nonzero(self) -> int:
        """How many slots count."""
        return sum(coefficient != 0.0 for coefficient in self.coefficients)

    def formula(self) -> str:
        if self.coefficients == (1.0,):
            return self.slots[0]
        return " ".join(f"{coefficient:+g} {slot}" for slot, coefficient in self.terms())


@dataclass(frozen=True)
class Summand:
    """`function(argument)`, coordinate by coordinate."""

    argument: Combination
    function: Evaluated

    def formula(self) -> str:
        return f"{self.function}({self.argument.formula()})"


@dataclass(frozen=True)
class MapSlots(Instruction):
    """Set `write = sum of summands` at the tokens where flag `only_where` is 1, and only there.

    At other tokens a flag of `never_where` is 1, which lowers each ReLU's argument by `gate`. That
    is larger than any argument on the domain, so that the ReLU is exactly 0. Where these flags are
    0 the gate changes nothing.
    """

    summands: tuple[Summand, ...]
    only_where: str
    never_where: tuple[Flag, ...]
    gate: float
    write: Written
    kind = LayerKind.MLP

    def formula(self) -> str:
        total = " + ".join(summand.formula() for summand in self.summands)
        where = f" where {self.only_where}" if self.never_where else ""
        return f"{self.write} = {total}{where}"


@dataclass(frozen=True)
class ClipSlots(Instruction):
    """Clip every coordinate of `slots` to [-b, b], where b = bound times slot `unit`.

    That is w - relu(w - b) + relu(-w - b).
    """

    slots: tuple[Changed, ...]
    bound: float
    unit: Read
    kind = LayerKind.MLP

    def formula(self) -> str:
        unit = "" if self.unit == ONE else f" {self.unit}"
        return f"clip {', '.join(self.slots)} to [-{self.bound:g}, {self.bound:g}]{unit}"


@dataclass(frozen=True)
class WipeSlots(Instruction):
    """Set every coordinate of `slots` to exactly 0: h - relu(h) + relu(-h)."""

    slots: tuple[Changed, ...]
    kind = LayerKind.MLP

    def formula(self) -> str:
        return f"wipe {', '.join(self.slots)}"


@dataclass(frozen=True)
class Argument:
    """What a head takes at a token: `weights @ inputs`, or `inputs` without weights.

    With `transposed` it is `weights^T @ inputs`. A register holds the weights times its own scale,
    so that its score is linear in the scale. The last column of the weights multiplies the slot
    `bias`, if there is one; nothing is passed back to that slot by the transposed weights.
    """

    inputs: Combination
    weights: Read | None = None
    transposed: bool = False
    bias: Read | None = None

    def slots(self) -> tuple[str, ...]:
        """The slots that it is made of."""
        return self.inputs.slots if self.weights is None else (*self.inputs.slots, self.weights)

    @property
    def has_bias(self) -> bool:
        """Whether the last column of the weights multiplies a constant."""
        return self.bias is not None

    def features(self, layout: Layout) -> int:
        """How many features of query and key form one of its coordinates."""
        if self.weights is None:
            return 1
        return layout.slot(self.inputs.slots[0]).width + (self.has_bias and not self.transposed)

    def width(self, layout: Layout) -> int:
        """How many coordinates it has."""
        if self.weights is None:
            return layout.slot(self.inputs.slots[0]).width
        rows, columns = layout.slot(self.weights).shape
        return columns - self.has_bias if self.transposed else rows

    def formula(self) -> str:
        inputs = self.inputs.formula()
        if self.weights is None:
            return inputs
        inputs = inputs if self.inputs.coefficients == (1.0,) else f"({inputs})"
        if self.transposed:
            return f"{self.weights}^T @ {inputs}"
        return f"{self.weights} @ {below(inputs, self.bias)}"


@dataclass(frozen=True)
class LookUp(Instruction):
    """Set `into[i] = lookups[i](argument)`, with one head for each coordinate.

    All functions have values at the same lattice points, so that they come from the same heads.
    The argument is taken as it is: it is not divided by a `reach` as that of `Project` is.
    """

    argument: Argument
    lookups: tuple[Evaluated, ...]
    into: tuple[Written, ...]
    reach: ClassVar[float] = 1.0
    kind = LayerKind.SOFTMAX

    def formula(self) -> str:
        functions = ", ".join(self.lookups)
        return f"{', '.join(self.into)} = {functions} at {self.argument.formula()}"


@dataclass(frozen=True)
class Project(Instruction):
    """Set `write = argument`, which is at most `reach` in size, with one head a coordinate."""

    argument: Argument
    reach: float
    write: Written
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = IDENTITY

    def formula(self) -> str:
        return f"{self.write} = {self.argument.formula()}"


@dataclass(frozen=True)
class AddProduct(Instruction):
    """Add `factor * argument` to `write`, with two heads for each coordinate.

    With a = argument / reach and f = factor / factor_reach, both at most 1 in size, it is
    reach factor_reach ((a + f)^2 - (a - f)^2) / 4.
    """

    argument: Argument
    reach: float
    factor: Read
    factor_reach: float
    write: Added
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = SQUARE

    def formula(self) -> str:
        return f"{self.write} += {self.factor} * ({self.argument.formula()})"


@dataclass(frozen=True)
class AddGradient(Instruction):
    r"""Add `scale * (1 / n_examples) sum_examples left right^T` to the weights `write`.

    A register reads the examples with the scores e * left[k]. It also reads a token of value 0,
    with a score so high that this token alone makes up the denominator: the examples keep a share
    mu of 1e-12. So the register gets mu mean(exp(e left[k]) right), up to a relative error of mu.
    Rounding loses nothing, because the other value is 0. Six heads for each row k, with e = +-1,
    +-2 and +-3 probes, give mu mean(left[k] right) up to a sixth power of the probe. Both the share
    and the update are proportional to the register's scale. With a `bias`, that slot stands below
    `right`.
    """

    left: Combination
    right: Read
    scale: float
    probe: float
    write: Accumulated
    bias: Read | None = None
    kind = LayerKind.SOFTMAX

    def formula(self) -> str:
        left = self.left.formula()
        left = left if self.left.coefficients == (1.0,) else f"({left})"
        return f"{self.write} += {self.scale:g} * mean({left} (x) {below(self.right, self.bias)})"
