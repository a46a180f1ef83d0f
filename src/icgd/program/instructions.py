r"""Instructions: operations on named slots of the residual stream.

An instruction declares what it computes at every token, which slots it reads and writes, and in
which kind of layer it runs. All instructions of a layer read the stream as it was before the layer.
`meaning` defines the computation, from which runs, bounds and shapes follow; `wires` returns the
heads or hidden units that perform it, from which weights, sizes and labels follow.

The types of an instruction's fields declare its use of slots and functions: a field `left: Read`
holds the name of a slot that is read, `into: tuple[Written, ...]` holds the names of slots that are
written, and a field whose type is not annotated with a use names nothing. Fields that hold
dataclasses are searched recursively.

This file has the instructions of the stacks with ReLUs and with softmax. The other files
`*_instructions.py` have those of linear models, of classes, norms and optimisers, of convex sets,
of kernels, of sums of units, and of chains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast, get_args, get_type_hints

from icgd.errors import ProgramError
from icgd.program.functions import LatticeFunction, joint_terms
from icgd.program.layout import (
    IS_EXAMPLE,
    IS_MEMORY,
    IS_QUERY,
    IS_REGISTER,
    LOG_EXAMPLES,
    MASKED,
    OFFSET,
    ONE,
    OUT_OF_BATCH,
    SCALE,
    SCALE_SIGN,
    SHARE,
    SINK,
    TOKENS_PER_EXAMPLE,
    Layout,
    value_slot,
)
from icgd.program.meaning import AnyDomain, StackDomain, Value
from icgd.program.wires import (
    SIGN,
    AxisFactor,
    Factor,
    Heads,
    Units,
    Wire,
    Wiring,
    by_slot,
    relu_pairs,
)

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram


class Use(Enum):
    """The use that an instruction makes of the slot or function named by a field."""

    READ = "uses the values of the slot"
    FLAG = "acts only where the flag in the slot is 0, or where it is 1"
    WRITE = "sets the slot, which is empty before"
    ADD = "adds to the values of the scratch slot"
    ACCUMULATE = "adds a sum over the examples to the weights in the slot"
    CHANGE = "reads the slot and replaces its values"
    EVALUATE = "evaluates the function"

    __hash__ = object.__hash__  # faster than an enum's own, and `names_used` is called often


Read = Annotated[str, Use.READ]
Flag = Annotated[str, Use.FLAG]
Written = Annotated[str, Use.WRITE]
Added = Annotated[str, Use.ADD]
Accumulated = Annotated[str, Use.ACCUMULATE]
Changed = Annotated[str, Use.CHANGE]
Evaluated = Annotated[str, Use.EVALUATE]


def names_used(holder: Any, *uses: Use) -> tuple[str, ...]:
    """Return the names that a dataclass holds for these uses, in the order of its fields.

    Class variables count as fields, such as `constants` of an instruction, which may be a property.
    """
    names: list[str] = []
    for field, is_name in _fields_for(holder.__class__, uses):
        value = getattr(holder, field)
        values = value if isinstance(value, tuple) else (value,)
        if is_name:
            names += [name for name in values if name is not None]
        else:
            names += [name for inner in values for name in names_used(inner, *uses)]
    return tuple(names)


@lru_cache
def _fields_for(kind: Any, uses: tuple[Use, ...]) -> tuple[tuple[str, bool], ...]:
    """Return the fields that hold names for these uses, and whether each holds them directly.

    The others hold dataclasses that do.
    """
    hints = get_type_hints(kind, include_extras=True).items()
    annotated = ((name, use) for name, hint in hints for use in _uses_in(hint))
    fields = (
        (name, isinstance(use, Use))
        for name, use in annotated
        if (use in uses if isinstance(use, Use) else _fields_for(use, uses))
    )
    return tuple(dict.fromkeys(fields))  # a field may hold one of several dataclasses


def _uses_in(hint: Any) -> Iterator[Any]:
    """Yield the uses and the dataclasses in the type of a field."""
    if isinstance(hint, Use) or is_dataclass(hint):
        yield hint
    else:
        for argument in get_args(hint):
            yield from _uses_in(argument)


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
    MIRROR = "mirror"


class Instruction(ABC):
    """The base class of instructions, whose field types declare what they read and write.

    An instruction runs in layers of its `kind`, and always reads the slots in `constants`.
    """

    kind: ClassVar[LayerKind]
    constants: ClassVar[tuple[Read, ...]] = ()

    @abstractmethod
    def meaning(self, slots: Mapping[str, Value], domain: Any) -> dict[str, Value]:
        """Return the new values of the slots it writes, from the values of all slots before.

        The domain is a `StackDomain` in stacks, a `FunctionDomain` for a step in function space,
        and a `BlockDomain` in chains. Where heads only approximate a value, the meaning passes it
        through `domain.as_read(self, value, *inputs)`. The instruction then needs a method
        `own_error(bounds, value, *inputs)`, which returns the enclosure of the approximation.
        """

    @abstractmethod
    def wires(self, program: AbstractProgram) -> Wiring:
        """Return the heads or hidden units that perform the instruction."""

    @abstractmethod
    def formula(self) -> str:
        """Return the instruction as one line of a listing."""

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        """Return the error of the heads' mean(left right^T), or None if the sum is exact."""
        return None

    def reads(self) -> tuple[str, ...]:
        """Return the names of the slots whose values it uses."""
        return names_used(self, Use.READ, Use.FLAG, Use.CHANGE)

    def writes(self) -> tuple[str, ...]:
        """Return the names of the slots that it changes."""
        names = names_used(self, Use.WRITE, Use.ADD, Use.ACCUMULATE, Use.CHANGE)
        return tuple(dict.fromkeys(names))  # two fields may name the same slot

    def functions(self) -> tuple[str, ...]:
        """Return the names of the program's functions that it evaluates."""
        return names_used(self, Use.EVALUATE)


@dataclass(frozen=True)
class HeadError:
    """The error of the heads' mean(left right^T), before it is scaled.

    `common` bounds the error that all registers share, `per_register` the error that differs from
    register to register and so makes their copies of the weights drift apart.
    """

    common: Any
    per_register: Any = 0.0


@dataclass(frozen=True)
class Combination:
    """`sum_i coefficients[i] * slots[i]`, coordinate by coordinate.

    The slots may be matrices whose last column, that of a bias, has coefficients of its own.
    """

    slots: tuple[Read, ...]
    coefficients: tuple[float, ...]
    of_bias: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for coefficients in (self.coefficients, self.of_bias or self.coefficients):
            if not len(self.slots) == len(coefficients) > 0:
                raise ProgramError(
                    f"Combination: has {len(coefficients)} coefficients for {len(self.slots)} "
                    "slots, expected one coefficient for each slot"
                )

    @classmethod
    def of(cls, slot: str) -> Combination:
        """Return the combination that is one slot itself."""
        return cls((slot,), (1.0,))

    def terms(self) -> tuple[tuple[str, float], ...]:
        """Return the slots with their coefficients, which all columns have in common."""
        if self.of_bias is not None:
            raise ProgramError(f"Combination: {self.formula()} has no common coefficients.")
        return tuple(zip(self.slots, self.coefficients, strict=True))

    def column_terms(self) -> dict[str, Columns]:
        """Return the factors of slots; a slot that occurs twice has the sum of its factors."""
        factors, of_bias = by_slot(zip(self.slots, self.coefficients, strict=True)), None
        if self.of_bias is not None:
            of_bias = by_slot(zip(self.slots, self.of_bias, strict=True))
        return {slot: (factor, (of_bias or factors)[slot]) for slot, factor in factors.items()}

    def value(self, slots: Mapping[str, Value], domain: AnyDomain[Value]) -> Value:
        """Return the combination of the slots' values."""
        if self.of_bias is None:
            return domain.combine([(factor, slots[name]) for name, factor in self.terms()])
        stack = cast("StackDomain[Value]", domain)  # no others have biases in their matrices
        return stack.combine(
            [
                (1.0, stack.scale_columns(slots[name], *factors))
                for name, factors in self.column_terms().items()
            ]
        )

    def formula(self) -> str:
        if self.coefficients == (1.0,) and self.of_bias is None:
            return self.slots[0]
        return " ".join(
            f"{factor:+g} {slot}" if factor == last else f"({factor:+g}, of bias {last:+g}) {slot}"
            for slot, factor, last in zip(
                self.slots, self.coefficients, self.of_bias or self.coefficients, strict=True
            )
        )


Columns = tuple[float, float]
"""The factor of all columns of a matrix but the last, and that of the last, which is a bias."""


def flat_factor(layout: Layout, slot: str, factors: Columns) -> float | AxisFactor:
    """Return the factors of a matrix that is taken flat, along axis k."""
    factor, last = factors
    if factor == last:
        return factor
    n_rows, n_columns = layout.slot(slot).shape
    return AxisFactor(("k",), ((factor,) * (n_columns - 1) + (last,)) * n_rows)


@dataclass(frozen=True)
class Argument:
    """The argument of a head at a token: `weights @ inputs`, or `inputs` without weights.

    With `transposed` it is `weights^T @ inputs`. A register holds the weights times its own scale,
    so that its score is linear in the scale. The last column of the weights multiplies the slot
    `bias`, if there is one; the transposed weights leave that column out.
    """

    inputs: Combination
    weights: Read | None = None
    transposed: bool = False
    bias: Read | None = None

    def features(self, layout: Layout) -> int:
        """Return the number of features of query and key whose product is one coordinate."""
        if self.weights is None:
            return 1
        has_constant = self.bias is not None and not self.transposed
        return layout.slot(self.inputs.slots[0]).width + has_constant

    def width(self, layout: Layout) -> int:
        """Return the number of coordinates of the argument."""
        if self.weights is None:
            return layout.slot(self.inputs.slots[0]).width
        shape = layout.slot(self.weights).shape
        return shape[-1] - (self.bias is not None) if self.transposed else shape[0]

    def value(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> Value:
        """Return the argument, from the slots' values."""
        inputs = self.inputs.value(slots, domain)
        if self.weights is None:
            return inputs
        weights = slots[self.weights]
        if self.transposed:
            return domain.matmul(domain.transpose(weights, self.width(domain.layout)), inputs)
        return domain.matmul(weights, inputs if self.bias is None else domain.above_one(inputs))

    def formula(self) -> str:
        inputs = self.inputs.formula()
        if self.weights is None:
            return inputs
        inputs = inputs if self.inputs.coefficients == (1.0,) else f"({inputs})"
        if self.transposed:
            return f"{self.weights}^T @ {inputs}"
        return f"{self.weights} @ {below(inputs, self.bias)}"


def row_wires(inputs: str, bias: str | None, width: int, factor: Factor = 1.0) -> tuple[Wire, ...]:
    """Return wires from the inputs to `width` features, the last of which is the bias if any."""
    row = (Wire(inputs, ("entry",), "entry", factor),)
    return row if bias is None else (*row, Wire(bias, feature=width - 1, factor=factor))


def below(inputs: str, bias: str | None) -> str:
    """Return the inputs as text, followed by the bias if there is one."""
    return inputs if bias is None else f"({inputs}, {bias})"


def extended(
    inputs: str, bias: str | None, slots: Mapping[str, Value], domain: StackDomain[Value]
) -> Value:
    """Return the inputs, followed by the constant 1 if there is a bias."""
    return slots[inputs] if bias is None else domain.above_one(slots[inputs])


@dataclass(frozen=True)
class Evaluation:
    """Another function of an argument that is already computed, and the slot for its value."""

    function: Evaluated
    write: Written


@dataclass(frozen=True)
class ApplyUnits(Instruction):
    """Set `write[k] = function(<weights[k, :], inputs>)`: one layer of units at every token.

    The weights are equal in all tokens, so that attention's mean over tokens is exact. The only
    error is that of `function`. The last column of the weights multiplies the slot `bias`, if there
    is one. `others` are evaluated at the same argument: a ReLU that several functions share is
    computed once, by a head that writes to the slots of all of them.
    """

    weights: Read
    inputs: Read
    function: Evaluated
    write: Written
    bias: Read | None = None
    others: tuple[Evaluation, ...] | None = None
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def evaluations(self) -> tuple[Evaluation, ...]:
        """Return all functions with the slots of their values."""
        return (Evaluation(self.function, self.write), *(self.others or ()))

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        inputs = extended(self.inputs, self.bias, slots, domain)
        argument = domain.matmul(slots[self.weights], inputs)
        return {
            evaluation.write: domain.apply(evaluation.function, argument, by="attention")
            for evaluation in self.evaluations()
        }

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query [scale * inputs; shift], key [weights[unit, :]; 1], value coefficient."""
        n_units, fan_in = program.layout.slot(self.weights).shape
        evaluations = self.evaluations()
        scale, shift, coefficients = joint_terms(
            tuple(program.relu_sum(evaluation.function) for evaluation in evaluations)
        )
        inputs = row_wires(self.inputs, self.bias, fan_in, scale)
        written = zip(evaluations, coefficients, strict=True)
        slots, functions = (", ".join(names) for names in (self.writes(), self.functions()))
        return Heads(
            axes={"unit": n_units, "term": len(scale.numbers)},
            query=(*inputs, Wire(ONE, feature=fan_in, factor=shift)),
            key=(Wire(self.weights, ("unit", "entry"), "entry"), Wire(ONE, feature=fan_in)),
            value=(Wire(ONE),),
            output=tuple(
                Wire(evaluation.write, ("unit",), factor=factor) for evaluation, factor in written
            ),
            label=f"unit {{unit}} of {slots}, term {{term}} of {functions}",
        )

    def formula(self) -> str:
        inputs, *others = below(self.inputs, self.bias), *(self.others or ())
        if not others:
            return f"{self.write} = {self.function}({self.weights} @ {inputs})"
        slots, functions = (", ".join(names) for names in (self.writes(), self.functions()))
        return f"{slots} = {functions} at {self.weights} @ {inputs}"


class AddsOuterProduct(Instruction):
    """Add `scale * (1 / n_examples) sum_examples left right^T` to the matrix slot `write`.

    With a `bias`, that slot is appended to `right`. Subclasses differ in their heads.
    """

    left: Read
    right: Read
    scale: float
    write: Accumulated
    bias: Read | None

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        right = extended(self.right, self.bias, slots, domain)
        after = domain.accumulate(slots[self.write], slots[self.left], right, self.scale, self)
        return {self.write: after}

    def formula(self) -> str:
        right = below(self.right, self.bias)
        return f"{self.write} += {self.scale:g} * mean({self.left} (x) {right})"


@dataclass(frozen=True)
class AccumulateOuterProduct(AddsOuterProduct):
    """Add the mean of `left right^T` by relu(s) - relu(-s) = s, exactly.

    `left` must be zero on queries. Attention divides by the number of tokens; the slot
    `tokens_per_example` in the query turns this into a division by the number of examples, so that
    one set of weights serves prompts of every length.
    """

    left: Read
    right: Read
    scale: float
    write: Accumulated
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (TOKENS_PER_EXAMPLE,)

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query +-tokens_per_example, key left[row], value right, written +-scale times."""
        rows, columns = program.layout.slot(self.write).shape
        return Heads(
            axes={"sign": 2, "row": rows},
            query=(Wire(TOKENS_PER_EXAMPLE, factor=SIGN),),
            key=(Wire(self.left, ("row",)),),
            value=row_wires(self.right, self.bias, columns),
            output=(Wire(self.write, ("row", "entry"), "entry", (self.scale, SIGN)),),
            label=f"row {{row}} of {self.write}, where {{sign}}{self.left} > 0",
        )


@dataclass(frozen=True)
class MultiplySlots(Instruction):
    """Set `write[k] = left[k] * right[k]` at every token, exactly."""

    left: Read
    right: Read
    write: Written
    kind = LayerKind.PRODUCT
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        product = domain.multiply(slots[self.left], slots[self.right])
        is_square = self.left == self.right
        return {self.write: domain.not_negative(product) if is_square else product}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query left[k], key right[k], value 1."""
        return Heads(
            axes={"k": program.layout.width_of(self.write)},
            query=(Wire(self.left, ("k",)),),
            key=(Wire(self.right, ("k",)),),
            value=(Wire(ONE),),
            output=(Wire(self.write, ("k",)),),
            label=f"{self.write}[{{k}}], the product of {self.left} and {self.right}",
        )

    def formula(self) -> str:
        return f"{self.write} = {self.left} * {self.right}"


@dataclass(frozen=True)
class PullBack(Instruction):
    """Set `write[k] = slope[k] * (<weights[:, k], upstream> + sum of plus[k])`, exactly.

    The slope may be the slot `one`. If the weights have an extra column, which multiplies a
    constant, that column is left out.
    """

    weights: Read
    upstream: Read
    slope: Read
    write: Written
    plus: tuple[Read, ...] | None = None
    kind = LayerKind.PRODUCT

    @property
    def constants(self) -> tuple[str, ...]:  # type: ignore[override]
        """The slot `one`, if there are terms to add."""
        return (ONE,) if self.plus else ()

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        weights = domain.transpose(slots[self.weights], domain.layout.width_of(self.write))
        pulled_back = domain.matmul(weights, slots[self.upstream])
        pulled_back = domain.add(pulled_back, *(slots[name] for name in self.plus or ()))
        if self.slope != ONE:
            pulled_back = domain.multiply(slots[self.slope], pulled_back)
        return {self.write: pulled_back}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query [weights[:, k]; plus[k]], key [upstream; 1], value slope[k]."""
        rows, _ = program.layout.slot(self.weights).shape
        added = [*enumerate(self.plus or (), start=rows)]
        return Heads(
            axes={"k": program.layout.width_of(self.write)},
            query=(
                Wire(self.weights, ("entry", "k"), "entry"),
                *(Wire(name, ("k",), feature) for feature, name in added),
            ),
            key=(
                Wire(self.upstream, ("entry",), "entry"),
                *(Wire(ONE, feature=feature) for feature, _ in added),
            ),
            value=(Wire(self.slope, () if self.slope == ONE else ("k",)),),
            output=(Wire(self.write, ("k",)),),
            label=f"{self.write}[{{k}}], pulled back by {self.weights}",
        )

    def formula(self) -> str:
        pulled_back = " + ".join((f"{self.weights}^T @ {self.upstream}", *(self.plus or ())))
        return f"{self.write} = {self.slope} * ({pulled_back})"


@dataclass(frozen=True)
class Summand:
    """`function(argument)`, coordinate by coordinate."""

    argument: Combination
    function: Evaluated

    def formula(self) -> str:
        return f"{self.function}({self.argument.formula()})"


@dataclass(frozen=True)
class MapSlots(Instruction):
    """Set `write = sum of summands` at the tokens where the flag `only_where` is 1.

    At all other tokens a flag in `never_where` is 1, which lowers each ReLU's argument by `gate`.
    The gate is larger than any argument on the domain, so that the ReLU is exactly 0. Where these
    flags are 0 the gate has no effect.
    """

    summands: tuple[Summand, ...]
    only_where: str
    never_where: tuple[Flag, ...]
    gate: float
    write: Written
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        values = [
            domain.apply(summand.function, summand.argument.value(slots, domain), by="mlp")
            for summand in self.summands
        ]
        total = domain.add(*values)
        closed_by, before = self.never_where, slots[self.write]
        return {self.write: domain.where(self.only_where, closed_by, total, before)}

    def wires(self, program: AbstractProgram) -> list[Units]:
        """Return relu(scale * argument[k] + shift - gate * flags) for each coordinate and term."""
        families = []
        for summand in self.summands:
            scale, shift, coefficient = program.relu_sum(summand.function).term_factors
            terms = {
                slot: flat_factor(program.layout, slot, factors)
                for slot, factors in summand.argument.column_terms().items()
            }
            families.append(
                Units(
                    axes={"k": program.layout.width_of(self.write), "term": len(scale.numbers)},
                    reads=(
                        *(Wire(slot, ("k",), factor=(c, scale)) for slot, c in terms.items()),
                        *(Wire(flag, factor=-self.gate) for flag in self.never_where),
                    ),
                    shift=shift,
                    writes=(Wire(self.write, ("k",), factor=coefficient),),
                    label=f"{self.write}[{{k}}], term {{term}} of {summand.formula()}",
                )
            )
        return families

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

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {name: domain.clip(slots[name], self.bound) for name in self.slots}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return -relu(w - bound * unit) + relu(-w - bound * unit)."""
        lowered_by = (Wire(self.unit, factor=-self.bound),)
        return relu_pairs(program.layout, self.slots, "clip", lowered_by=lowered_by)

    def formula(self) -> str:
        unit = "" if self.unit == ONE else f" {self.unit}"
        return f"clip {', '.join(self.slots)} to [-{self.bound:g}, {self.bound:g}]{unit}"


@dataclass(frozen=True)
class WipeSlots(Instruction):
    """Set every coordinate of `slots` to exactly 0: h - relu(h) + relu(-h)."""

    slots: tuple[Changed, ...]
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {name: domain.zero(slots[name]) for name in self.slots}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return -relu(h) + relu(-h)."""
        return relu_pairs(program.layout, self.slots, "wipe")

    def formula(self) -> str:
        return f"wipe {', '.join(self.slots)}"


def lattice_scores(
    argument: Argument, function: LatticeFunction, reach: float, layout: Layout
) -> tuple[tuple[Wire, ...], tuple[Wire, ...]]:
    """Return query and key of the scores (g a / spacing - g^2 / 2) / ratio^2 at register g.

    Here a = argument / reach. The features are those of the argument, then one for the offset, then
    one by which the memory attends to itself. Other tokens are masked. A register's scale is
    g / half.
    """
    n_features = argument.features(layout)
    gain = function.half / (function.spacing * function.ratio**2 * reach)
    terms = by_slot(argument.inputs.terms()).items()
    if argument.weights is None:
        query = [Wire(slot, ("k",), factor=gain * factor) for slot, factor in terms]
        key = [Wire(SCALE)]
    else:
        query = [Wire(slot, ("entry",), "entry", gain * factor) for slot, factor in terms]
        at = ("entry", "k") if argument.transposed else ("k", "entry")
        key = [Wire(argument.weights, at, "entry")]
    if argument.bias is not None and not argument.transposed:
        query.append(Wire(argument.bias, feature=n_features - 1, factor=gain))
    offset, memory = n_features, n_features + 1
    lowest = (MASKED + function.half**2 / 2) / function.ratio**2  # the memory's own offset
    query += [
        Wire(ONE, feature=offset, factor=1 / function.ratio**2),
        Wire(IS_MEMORY, feature=memory, factor=lowest + MASKED),
    ]
    key += [
        Wire(OFFSET, feature=offset),
        Wire(IS_EXAMPLE, feature=offset, factor=-MASKED),
        Wire(IS_QUERY, feature=offset, factor=-MASKED),
        Wire(IS_MEMORY, feature=memory),
    ]
    return tuple(query), tuple(key)


def look_up_heads(
    program: AbstractProgram,
    argument: Argument,
    reach: float,
    functions: tuple[tuple[str, str], ...],
) -> Heads:
    """Return heads that look up functions at every coordinate of argument / reach.

    `functions` has pairs of a function and the slot for its value.
    """
    layout, (first, _) = program.layout, functions[0]
    query, key = lattice_scores(argument, program.look_up(first), reach, layout)
    names = ", ".join(name for name, _ in functions)
    return Heads(
        axes={"k": argument.width(layout)},
        query=query,
        key=key,
        value=tuple(Wire(value_slot(name), feature=n) for n, (name, _) in enumerate(functions)),
        output=tuple(
            Wire(write, ("k",), feature=n, factor=reach) for n, (_, write) in enumerate(functions)
        ),
        label=f"{names} at coordinate {{k}} of {argument.formula()}",
    )


@dataclass(frozen=True)
class LookUp(Instruction):
    """Set `into[i] = lookups[i](argument)`, with one head for each coordinate.

    All functions have values at the same lattice points, so the same heads return all of them. The
    argument is not divided by a reach, as that of `Project` is.
    """

    argument: Argument
    lookups: tuple[Evaluated, ...]
    into: tuple[Written, ...]
    reach: ClassVar[float] = 1.0
    kind = LayerKind.SOFTMAX

    def __post_init__(self) -> None:
        if len(self.lookups) != len(self.into):
            raise ProgramError(
                f"LookUp: has {len(self.lookups)} functions and {len(self.into)} slots for their "
                "values, expected as many slots as functions."
            )

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        argument = self.argument.value(slots, domain)
        return {
            write: domain.apply(name, argument, by="lattice")
            for name, write in zip(self.lookups, self.into, strict=True)
        }

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return heads k that look up all functions at coordinate k of the argument."""
        functions = tuple(zip(self.lookups, self.into, strict=True))
        return look_up_heads(program, self.argument, self.reach, functions)

    def formula(self) -> str:
        functions = ", ".join(self.lookups)
        return f"{', '.join(self.into)} = {functions} at {self.argument.formula()}"


@dataclass(frozen=True)
class Project(Instruction):
    """Set `write = argument`, where |argument| <= `reach`, with one head for each coordinate."""

    argument: Argument
    reach: float
    write: Written
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = IDENTITY

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        argument = self.argument.value(slots, domain)
        return {self.write: domain.as_read(self, argument, argument)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return heads k that look up the identity at coordinate k of argument / reach."""
        functions = ((self.function, self.write),)
        return look_up_heads(program, self.argument, self.reach, functions)

    def formula(self) -> str:
        return f"{self.write} = {self.argument.formula()}"

    def own_error(self, bounds: Any, value: Any, argument: Any) -> Any:
        """Add the error of looking up the identity on the lattice."""
        sizes, drift = argument.sizes / self.reach, argument.drift_or_zero / self.reach
        error = bounds.lattice_error(self.function, argument.n_terms, sizes, drift)
        return value.perturbed(self.reach * error)


@dataclass(frozen=True)
class AddProduct(Instruction):
    """Add `factor * argument` to `write`, with two heads for each coordinate.

    With a = argument / reach and f = factor / factor_reach, both at most 1 in size, the product is
    reach factor_reach ((a + f)^2 - (a - f)^2) / 4, from two look-ups of the square.
    """

    argument: Argument
    reach: float
    factor: Read
    factor_reach: float
    write: Added
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = SQUARE

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        argument, factor = self.argument.value(slots, domain), slots[self.factor]
        product = domain.as_read(self, domain.multiply(argument, factor), argument, factor)
        return {self.write: domain.add(slots[self.write], product)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return heads that look up the square at argument / reach +- factor / factor_reach."""
        layout, square = program.layout, program.look_up(SQUARE)
        query, key = lattice_scores(self.argument, square, self.reach, layout)
        feature = self.argument.features(layout) + 2
        gain = square.half / (square.spacing * square.ratio**2 * self.factor_reach)
        product = self.reach * self.factor_reach / 4
        return Heads(
            axes={"sign": 2, "k": self.argument.width(layout)},
            query=(*query, Wire(self.factor, ("k",), feature, (gain, SIGN))),
            key=(*key, Wire(SCALE, feature=feature)),
            value=(Wire(value_slot(SQUARE)),),
            output=(Wire(self.write, ("k",), factor=(product, SIGN)),),
            label=f"{self.write}[{{k}}], the square of argument {{sign}} {self.factor}",
        )

    def formula(self) -> str:
        return f"{self.write} += {self.factor} * ({self.argument.formula()})"

    def own_error(self, bounds: Any, value: Any, argument: Any, factor: Any) -> Any:
        """Add the error of looking up two squares on the lattice."""
        sizes = argument.sizes / self.reach + factor.value.actual.size / self.factor_reach
        drift, n_terms = argument.drift_or_zero / self.reach, argument.n_terms + 1
        error = bounds.lattice_error(self.function, n_terms, sizes, drift)
        return value.perturbed(self.reach * self.factor_reach / 2 * error)


PROBES = ((1.0, 3 / 2), (2.0, -3 / 5), (3.0, 1 / 10))
"""Multiples k of the probe in `AddGradient` and their coefficients c: sum_k c_k sinh(k e) / k is e
up to a term of order e^7."""


@dataclass(frozen=True)
class AddGradient(Instruction):
    r"""Add `scale * (1 / n_examples) sum_examples left right^T` to the weights `write`.

    A register attends to the examples with the scores e * left[k], and to the memory, a token of
    value 0, with a score so high that it dominates the denominator: the examples keep a share mu
    of about 1e-12. So the head returns mu mean(exp(e left[k]) right), up to a relative error of mu.
    The small share costs no precision, because the memory's value is 0. Six heads for each row k,
    with e = +-1, +-2 and +-3 probes, sum up to mu mean(left[k] right) with an error of the order of
    the probe's sixth power. Both mu and the update are proportional to the register's scale. With a
    `bias`, that slot is appended to `right`.
    """

    left: Combination
    right: Read
    scale: float
    probe: float
    write: Accumulated
    bias: Read | None = None
    kind = LayerKind.SOFTMAX

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        left = self.left.value(slots, domain)
        right = extended(self.right, self.bias, slots, domain)
        return {self.write: domain.accumulate(slots[self.write], left, right, self.scale, self)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return a head for each multiple of the probe, each sign and each row.

        A register has the scores probe * left[row] at examples and log n - log(share) at the
        memory, whose value is 0. All other tokens are masked, and so are examples outside the
        batch; tokens that are not registers attend to the memory.
        """
        layout = program.layout
        rows, columns = layout.slot(self.write).shape
        probes = [(sign * k * self.probe, share) for k, share in PROBES for sign in (1.0, -1.0)]
        gains = tuple(share * self.scale / (2 * probe * SHARE) for probe, share in probes)
        waiting = [OUT_OF_BATCH] if OUT_OF_BATCH in layout.names else []
        left = by_slot(self.left.terms())
        return Heads(
            axes={"probe": len(probes), "row": rows},
            query=(
                Wire(
                    SCALE_SIGN, factor=AxisFactor(("probe",), tuple(probe for probe, _ in probes))
                ),
                Wire(LOG_EXAMPLES, feature=1),
                Wire(SINK, feature=1),
                Wire(IS_EXAMPLE, feature=2, factor=-MASKED),
                Wire(IS_QUERY, feature=2, factor=-MASKED),
                Wire(ONE, feature=3, factor=-MASKED),
            ),
            key=(
                *(Wire(slot, ("row",), factor=factor) for slot, factor in left.items()),
                Wire(IS_MEMORY, feature=1),
                Wire(IS_EXAMPLE, feature=2),
                *(Wire(flag, feature=3) for flag in (IS_QUERY, IS_REGISTER, *waiting)),
                Wire(IS_MEMORY, feature=3, factor=-1.0),
            ),
            value=row_wires(self.right, self.bias, columns),
            output=(Wire(self.write, ("row", "entry"), "entry", AxisFactor(("probe",), gains)),),
            label=f"row {{row}} of {self.write}, probe {{probe}}",
        )

    def formula(self) -> str:
        left = self.left.formula()
        left = left if self.left.coefficients == (1.0,) else f"({left})"
        return f"{self.write} += {self.scale:g} * mean({left} (x) {below(self.right, self.bias)})"

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        """Return the truncation error of the probes, and the error of each register.

        With x = probe * left, sum_k c_k sinh(k x) / k = x + R(x) and |R(x)| <= 0.0224 |x|^7
        cosh(3 x): the truncation. The examples' own share of the denominator changes the mean by at
        most 2.2 SHARE exp(6 x) times mean(|left| |right|) + mean|left| mean|right|. The rest is the
        rounding of n exponentials, each of a number below 48, divided by the probe.
        """
        if not bounds.arithmetic.sums_terms:
            return None
        left_size = left.value.actual.size
        right_mean = right.value.actual.size / right.value.error.shape[-2]
        x = self.probe * left_size
        truncation = 0.0224 * (3 * x).cosh() * x**6 * left_size
        largest = (6 * x.amax(-2, keepdim=True)).exp()
        denominator = 2.2 * SHARE * largest * (left_size + left_size.mean(-2, keepdim=True))
        exponentials = 1.84 / self.probe * (3 * x).exp()
        rounding = bounds.arithmetic.sum_of(bounds.arithmetic.n_tokens + 48, exponentials)
        return HeadError(truncation.mT @ right_mean, (denominator + rounding).mT @ right_mean)
