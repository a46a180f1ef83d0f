r"""Instructions of networks with classes, layer norms or optimisers, and of tables of prompts.

Classes with the scores z have the probabilities softmax(z), here called shares. A softmax head over
one token for each class computes them exactly. A layer of ReLUs computes them from differences: the
share of class k is

    1 / sum_j exp(z_j - z_k),

which takes an exponential for each pair of classes and a reciprocal for each class.

A layer norm multiplies features of the same token, which may be centred. With h = c (z - mean z)
and c = 1 / sqrt(var z + eps), the gradient g is pulled back through the norm as

    c (g - mean g - h mean(g h)),

and mean(g h) is the covariance of g and h over their coordinates, because the mean of h is 0.

A step of an optimiser is linear in weights, gradient and state, except for squares and roots, which
have instructions of their own. An MLP layer computes the linear part exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from icgd.errors import ProgramError
from icgd.program.functions import joint_terms
from icgd.program.instructions import (
    Changed,
    Columns,
    Combination,
    Evaluated,
    Instruction,
    LayerKind,
    Read,
    Written,
    flat_factor,
)
from icgd.program.layout import IS_EXAMPLE, IS_MEMORY, IS_QUERY, IS_REGISTER, MASKED, ONE
from icgd.program.meaning import NOWHERE, StackDomain, Value
from icgd.program.wires import (
    SIGN,
    AxisFactor,
    Heads,
    Rows,
    Units,
    Wire,
    Wiring,
    by_slot,
    relu_pairs,
)

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram

LARGEST_COUNT = 2.0**20
"""An upper bound on the examples of a prompt; float32 holds integers up to 16 times as large."""


def class_slot(number: int) -> str:
    """Return the constant slot that is 1 in the token of a class, counted from 1."""
    return f"class_{number}"


@dataclass(frozen=True)
class ShareClasses(Instruction):
    """Set `write = softmax(scores)` at every token, exactly, with one head.

    The head attends to the tokens of the classes: slot `classes[k]` is 1 in the token of class k
    and 0 in all others. Other tokens are masked. The memory attends to itself, and gets 0.
    """

    scores: Read
    classes: tuple[Read, ...]
    write: Written
    kind = LayerKind.SOFTMAX
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {self.write: domain.softmax(slots[self.scores])}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query [scores; 1], key [class; 0 at a class, -MASKED elsewhere], value the class.

        The memory attends to itself, and has the value 0.
        """
        others, memory = len(self.classes), len(self.classes) + 1
        classes = tuple(Wire(name, feature=n) for n, name in enumerate(self.classes))
        return Heads(
            axes={},
            query=(
                Wire(self.scores, ("class",), "class"),
                Wire(ONE, feature=others),
                Wire(IS_MEMORY, feature=memory, factor=3 * MASKED),
            ),
            key=(
                *classes,
                Wire(ONE, feature=others, factor=-MASKED),
                *(Wire(name, feature=others, factor=MASKED) for name in self.classes),
                Wire(IS_MEMORY, feature=memory),
            ),
            value=classes,
            output=(Wire(self.write, ("class",), "class"),),
            label=f"{self.write}, the shares of all classes",
        )

    def formula(self) -> str:
        return f"{self.write} = softmax({self.scores})"


@dataclass(frozen=True)
class MapDifferences(Instruction):
    """Set `write[k, j] = function(source[j] - source[k])` at every token."""

    source: Read
    function: Evaluated
    write: Written
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        n_classes, source = domain.layout.width_of(self.source), slots[self.source]
        pairs = [(k, j) for k in range(n_classes) for j in range(n_classes)]
        # Take both scores as 0 where k = j, so that enclosures of the difference are exactly 0.
        own = domain.take(source, [k if k != j else NOWHERE for k, j in pairs])
        other = domain.take(source, [j if k != j else NOWHERE for k, j in pairs])
        differences = domain.combine([(1.0, other), (-1.0, own)])
        value = domain.apply(self.function, differences, by="mlp")
        return {self.write: domain.as_read(self, value, differences)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return relu(scale * (source[other] - source[class]) + shift) for each pair and term."""
        n = program.layout.width_of(self.source)
        scale, shift, coefficient = program.relu_sum(self.function).term_factors
        rows = tuple(tuple(float(row != column) for column in range(n)) for row in range(n))
        differ = AxisFactor(("class", "other"), rows)  # 0 where a score is compared with itself
        return Units(
            axes={"class": n, "other": n, "term": len(scale.numbers)},
            reads=(
                Wire(self.source, ("other",), factor=(differ, scale)),
                Wire(self.source, ("class",), factor=(-1.0, differ, scale)),
            ),
            shift=shift,
            writes=(Wire(self.write, (("class", "other"),), factor=coefficient),),
            label=f"{self.write}[{{class}}, {{other}}], term {{term}} of {self.function}",
        )

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.source}_j - {self.source}_k)"

    def own_error(self, bounds: Any, value: Any, differences: Any) -> Any:
        """Bound the value below by its rounding: the function and its fit are not negative."""
        return value.at_least(-bounds.mlp_rounding(self.function, differences))


@dataclass(frozen=True)
class MapRowSums(Instruction):
    """Set `write[k] = function(sum_j source[k, j])` at every token.

    If entries of the source are capped, `missed` bounds the resulting error.
    """

    source: Read
    function: Evaluated
    write: Written
    missed: float
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        n_classes, source = domain.layout.width_of(self.write), slots[self.source]
        columns = [
            domain.take(source, [k * n_classes + j for k in range(n_classes)])
            for j in range(n_classes)
        ]
        total = domain.combine([(1.0, column) for column in columns])
        return {self.write: domain.as_read(self, domain.apply(self.function, total, by="mlp"))}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return relu(scale * sum_j source[class, j] + shift) for every class and term."""
        n = program.layout.width_of(self.write)
        scale, shift, coefficient = program.relu_sum(self.function).term_factors
        all_others = AxisFactor(("other",), (1.0,) * n)
        return Units(
            axes={"class": n, "term": len(scale.numbers)},
            reads=(Wire(self.source, (("class", "other"),), factor=(all_others, scale)),),
            shift=shift,
            writes=(Wire(self.write, ("class",), factor=coefficient),),
            label=f"{self.write}[{{class}}], term {{term}} of {self.function}",
        )

    def formula(self) -> str:
        return f"{self.write} = {self.function}(sum_j {self.source}_kj)"

    def own_error(self, bounds: Any, value: Any) -> Any:
        """Add the error of a cap on the source: without it shares would be smaller."""
        return value.lowered(self.missed)


@lru_cache(maxsize=16)
def centring(width: int) -> Rows:
    """Return the matrix that subtracts from a vector the mean of its coordinates."""
    mean = 1.0 / width
    return tuple(
        tuple(1.0 - mean if row == column else 0.0 - mean for column in range(width))
        for row in range(width)
    )


@dataclass(frozen=True)
class Covary(Instruction):
    """Set the number `write = mean((left - mean left) (right - mean right))` at every token.

    The means are over coordinates. One head computes it exactly.
    """

    left: Read
    right: Read
    write: Written
    kind = LayerKind.PRODUCT
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        width, right_width = (domain.layout.width_of(name) for name in (self.left, self.right))
        mean = ((1.0 / width,) * width,)
        left = domain.constant_map(centring(width), slots[self.left])
        if self.left == self.right:
            squares = domain.not_negative(domain.multiply(left, left))
            return {self.write: domain.not_negative(domain.constant_map(mean, squares))}
        right = domain.constant_map(centring(right_width), slots[self.right])
        return {self.write: domain.constant_map(mean, domain.multiply(left, right))}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query left - mean(left), key right - mean(right), value 1, output 1 / width."""
        width = program.layout.width_of(self.left)
        centre = AxisFactor(("k", "feature"), centring(width))
        return Heads(
            axes={},
            query=(Wire(self.left, ("k",), "feature", centre),),
            key=(Wire(self.right, ("k",), "feature", centre),),
            value=(Wire(ONE),),
            output=(Wire(self.write, factor=1.0 / width),),
            label=f"{self.write}, the covariance of {self.left} and {self.right}",
        )

    def formula(self) -> str:
        return f"{self.write} = cov({self.left}, {self.right})"


@dataclass(frozen=True)
class ScaleCentred(Instruction):
    """Set `write[k] = scale * (source[k] - mean source - share * along[k])`, exactly.

    `scale` and `share` are one number a token. Without `along` and `share` only the mean is
    subtracted. Where the scale is the reciprocal of the source's own deviation, `reach` bounds the
    size of the result, up to rounding.
    """

    source: Read
    scale: Read
    write: Written
    along: Read | None = None
    share: Read | None = None
    reach: float | None = None
    kind = LayerKind.PRODUCT
    constants = (ONE,)

    def __post_init__(self) -> None:
        if (self.along is None) != (self.share is None):
            raise ProgramError(
                f"ScaleCentred: has along={self.along!r} and share={self.share!r}, expected both "
                "or neither."
            )
        if self.reach is not None and (self.share is not None or self.reach <= 0):
            raise ProgramError(
                f"ScaleCentred: has reach={self.reach:g} and share={self.share!r}; a reach must "
                "be positive, and needs a layer norm, which has no `share`."
            )

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        source, scale = slots[self.source], slots[self.scale]
        value = domain.constant_map(centring(domain.layout.width_of(self.source)), source)
        if self.along is not None and self.share is not None:
            along = domain.scale(slots[self.share], slots[self.along])
            value = domain.add(value, domain.combine([(-1.0, along)]))
        return {self.write: domain.as_read(self, domain.scale(scale, value), source, scale)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query [source[k] - mean(source); -along[k]], key [1; share], value scale."""
        width = program.layout.width_of(self.source)
        query = [Wire(self.source, ("j",), factor=AxisFactor(("k", "j"), centring(width)))]
        key = [Wire(ONE)]
        if self.along is not None and self.share is not None:
            query.append(Wire(self.along, ("k",), 1, -1.0))
            key.append(Wire(self.share, feature=1))
        return Heads(
            axes={"k": width},
            query=tuple(query),
            key=tuple(key),
            value=(Wire(self.scale),),
            output=(Wire(self.write, ("k",)),),
            label=f"{self.write}[{{k}}], {self.source} centred and scaled",
        )

    def formula(self) -> str:
        more = "" if self.along is None else f" - {self.share} * {self.along}"
        return f"{self.write} = {self.scale} * ({self.source} - mean({self.source}){more})"

    def own_error(self, bounds: Any, value: Any, source: Any, scale: Any) -> Any:
        """Bound the result of a norm by its reach plus rounding.

        A norm centres the source twice: here, and to compute the deviation.
        """
        if self.reach is None:
            return value
        width = source.value.error.shape[-1]
        sizes = source.value.size @ bounds.matrix(centring(width)).abs()
        rounding = bounds.arithmetic.sum_of(2 * width, sizes)
        return value.intersected(self.reach + 2 * bounds.room * scale.value.size * rounding)


@dataclass(frozen=True)
class Assignment:
    """`write = value`, clipped to [-bound, bound] if there is a bound.

    With an `average`, that slot becomes `keeps` times its value plus (1 - keeps) times the new
    `write`.
    """

    value: Combination
    write: Changed
    bound: float | None = None
    average: Changed | None = None
    keeps: float = 0.0

    def formula(self) -> str:
        value = self.value.formula()
        if self.bound is not None:
            value = f"clip({value}, {self.bound:g})"
        text = f"{self.write} = {value}"
        if self.average is not None:
            mean = Combination((self.average, self.write), (self.keeps, 1.0 - self.keeps))
            text = f"{text}, {self.average} = {mean.formula()}"
        return text

    @property
    def shares(self) -> dict[str, float]:
        """The slots that change, and the share of the new value in each."""
        shares = {self.write: 1.0}
        return shares if self.average is None else shares | {self.average: 1.0 - self.keeps}

    def change(self, write: str) -> dict[str, Columns]:
        """Return the nonzero coefficients of the change of a slot, before clipping."""
        share, terms = self.shares[write], self.value.column_terms()
        changed = {slot: (share * factor, share * last) for slot, (factor, last) in terms.items()}
        factor, last = changed.get(write, (0.0, 0.0))
        changed[write] = (factor - share, last - share)
        return {slot: factors for slot, factors in changed.items() if factors != (0.0, 0.0)}


@dataclass(frozen=True)
class Recombine(Instruction):
    """Set slots to combinations of their values and others, all at once and exactly.

    With d = value - write, the new value is write + relu(d) - relu(-d). A bound b, times slot
    `unit`, adds - relu(value - b) + relu(-value - b). An average moves by its share of this.
    """

    assignments: tuple[Assignment, ...]
    unit: Read
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        written: dict[str, Value] = {}
        for assignment in self.assignments:
            value = assignment.value.value(slots, domain)
            written[assignment.write] = after = domain.replace(
                slots[assignment.write], value, assignment.bound
            )
            if assignment.average is not None:
                written[assignment.average] = domain.mix(
                    slots[assignment.average], after, assignment.keeps
                )
        return written

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return +-relu(+-d), then -+relu(+-value - bound * unit), for every coordinate."""
        families = []
        for assignment in self.assignments:
            for write, share in assignment.shares.items():
                unit_kinds: list[tuple[str, dict[str, Columns], float, tuple[Wire, ...]]] = []
                if change := assignment.change(write):
                    unit_kinds.append(("change", change, 1.0, ()))
                if assignment.bound is not None:
                    bound = Wire(self.unit, factor=-assignment.bound)
                    unit_kinds.append(("clip", assignment.value.column_terms(), -share, (bound,)))
                for kind, terms, gain, lowered_by in unit_kinds:
                    read = (
                        Wire(slot, ("k",), factor=(flat_factor(program.layout, slot, of), SIGN))
                        for slot, of in terms.items()
                    )
                    families.append(
                        Units(
                            axes={"sign": 2, "k": program.layout.width_of(write)},
                            reads=(*read, *lowered_by),
                            shift=0.0,
                            writes=(Wire(write, ("k",), factor=(gain, SIGN)),),
                            label=f"{kind} {write}[{{k}}], relu({{sign}} d)",
                        )
                    )
        return families

    def formula(self) -> str:
        unit = "" if self.unit == ONE else f", bounds times {self.unit}"
        return f"{', '.join(assignment.formula() for assignment in self.assignments)}{unit}"


@dataclass(frozen=True)
class TakeTurns(Instruction):
    r"""Advance to the next batch: the next `batch_size` of n examples, modulo n.

    With b = `batch_size`, an example at place r is in the batch if r < b. Its next place is r - b,
    or r - b + n if it was in the batch. The next batch has the examples with b <= r < 2b and those
    with r < 2b - n. For integers [r < c] = relu(c - r) - relu(c - 1 - r), so that nothing is
    rounded. Other tokens keep their zeros.
    """

    batch_size: int
    place: Changed
    waits: Changed
    n_examples: Read
    kind = LayerKind.MLP
    constants = (ONE, IS_EXAMPLE)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return domain.take_turns(self, slots)

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of one number each, which a gate closes at tokens that are not examples."""
        place, waits, n, example = self.place, self.waits, self.n_examples, IS_EXAMPLE
        size, gate = float(self.batch_size), LARGEST_COUNT
        units: list[tuple[str, dict[str, float], str, float]] = [
            ("a batch further", {example: 1.0}, place, -size),
            ("round again", {n: 1.0, ONE: -gate, example: gate, waits: -gate}, place, 1.0),
            ("waits", {example: 1.0}, waits, 1.0),
            ("waited", {waits: 1.0}, waits, -1.0),
        ]
        brackets = {
            f"{place} < 2 b": (2 * size, 0.0, -1.0),
            f"{place} < b": (size, 0.0, 1.0),
            f"{place} < 2 b - n": (2 * size, -1.0, -1.0),
        }
        for label, (end, of_n, gain) in brackets.items():
            for below, sign in ((0.0, gain), (1.0, -gain)):
                read = {place: -1.0, ONE: end - below - gate, example: gate, n: of_n}
                units.append((f"{label}, relu of the end less {below:g}", read, waits, sign))
        return tuple(
            Units(
                axes={},
                reads=tuple(Wire(slot, factor=factor) for slot, factor in read.items()),
                shift=0.0,
                writes=(Wire(write, factor=gain),),
                label=f"{write}: {label}",
            )
            for label, read, write, gain in units
        )

    def formula(self) -> str:
        return f"{self.place} -= {self.batch_size}, modulo {self.n_examples}"


@dataclass(frozen=True)
class AverageExamples(Instruction):
    """Set `write = sum_t p_t value_t` at every token, where p = softmax(score) over the examples.

    One head computes it and masks other tokens. The order of the examples does not matter.
    """

    score: Combination
    value: Combination
    write: Written
    kind = LayerKind.SOFTMAX

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        score, value = self.score.value(slots, domain), self.value.value(slots, domain)
        return {self.write: domain.average_examples(score, value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query 1, key the score, which is lowered at other tokens, value every coordinate."""
        score, value = by_slot(self.score.terms()), by_slot(self.value.terms())
        others = [flag for flag in (IS_QUERY, IS_REGISTER) if flag in program.layout.names]
        return Heads(
            axes={},
            query=(Wire(ONE),),
            key=(
                *(Wire(slot, factor=factor) for slot, factor in score.items()),
                *(Wire(flag, factor=-MASKED) for flag in others),
            ),
            value=tuple(Wire(s, ("entry",), "entry", factor) for s, factor in value.items()),
            output=(Wire(self.write, ("entry",), "entry"),),
            label=f"{self.write}, the mean of {self.value.formula()}",
        )

    def formula(self) -> str:
        weights = f"softmax({self.score.formula()})"
        return f"{self.write} = mean({self.value.formula()}) weighted by {weights}"


@dataclass(frozen=True)
class QuantiseEntries(Instruction):
    """Set the number `write[i] = staircase(factor * source[i] + offset)` at every token."""

    source: Read
    factor: float
    offset: float
    staircase: Evaluated
    write: tuple[Written, ...]
    kind = LayerKind.MLP
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        written = {}
        for place, name in enumerate(self.write):
            entry = domain.take(slots[self.source], [place])
            argument = domain.combine([(self.factor, entry), (self.offset, slots[ONE])])
            written[name] = domain.apply(self.staircase, argument, by="mlp")
        return written

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return relu(scale * (factor * source[i] + offset) + shift) for every entry and term."""
        scale, shift, coefficient = program.relu_sum(self.staircase).term_factors
        return [
            Units(
                axes={"term": len(scale.numbers)},
                reads=(
                    Wire(self.source, (place,), factor=(self.factor, scale)),
                    *([Wire(ONE, factor=(self.offset, scale))] if self.offset else []),
                ),
                shift=shift,
                writes=(Wire(name, factor=coefficient),),
                label=f"{name}, term {{term}} of {self.staircase}",
            )
            for place, name in enumerate(self.write)
        ]

    def formula(self) -> str:
        offset = f" {self.offset:+g}" if self.offset else ""
        names = ", ".join(self.write)
        return f"{names} = {self.staircase}({self.factor:g} {self.source}{offset})"


def table_units(
    key: Combination, tables: tuple[str, ...], write: str, program: AbstractProgram
) -> Wiring:
    """Return units that wipe the slot `write` and set it to the answers of the tables at the key.

    The tables share their ReLUs.
    """
    scale, shift, coefficients = joint_terms([program.relu_sum(name) for name in tables])
    wiped = relu_pairs(program.layout, (write,), "wipe")
    if not scale.numbers:  # all answers are 0
        return wiped
    rows = cast("Rows", tuple(factor.numbers for factor in coefficients))
    label = f"{write}, term {{term}} of {', '.join(tables)}({key.formula()})"
    units = Units(
        axes={"term": len(scale.numbers)},
        reads=tuple(Wire(slot, factor=(c, scale)) for slot, c in by_slot(key.terms()).items()),
        shift=shift,
        writes=(Wire(write, ("entry",), factor=AxisFactor(("entry", "term"), rows)),),
        label=label,
    )
    return (units, *wiped)


@dataclass(frozen=True)
class LookUpFunction(Instruction):
    """Set `write[i] = tables[i](key)`: a function of all tokens, looked up in tables.

    The key encodes the token and the multiset of all `n_tokens`, whose numbers lie in [low, high]
    and are rounded to levels. The tables hold the function's value for every key. Its Lipschitz
    constant `lipschitz`, as stated by the user, bounds the effect of rounding to levels.
    """

    key: Combination
    tables: tuple[Evaluated, ...]
    low: float
    high: float
    lipschitz: float
    n_tokens: int
    write: Changed
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        key = self.key.value(slots, domain)
        rows = []
        for place, table in enumerate(self.tables):
            column = tuple((float(place == i),) for i in range(len(self.tables)))
            rows.append(domain.constant_map(column, domain.apply(table, key, by="mlp")))
        return {self.write: domain.add(*rows)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return the tables' units, and two units for each entry that wipe its old value."""
        return table_units(self.key, self.tables, self.write, program)

    def formula(self) -> str:
        tables = ", ".join(self.tables)
        return f"{self.write} = {tables} at {self.key.formula()}, of {self.n_tokens} tokens"


@dataclass(frozen=True)
class LookUpStep(Instruction):
    """Set the weight `write` to `table(key)`: one gradient step, looked up in a table.

    The key encodes the weight w and `n_examples` examples (x, y), each divided by its entry of
    `ranges` and rounded to a level; slots `levels` hold the rounded numbers. For every key the
    table holds w + scale * mean(s x), clipped to +-bound, with s = r'(w x) u(r(w x), y), where r is
    the `activation` and u the slope of the `loss`. A step is exact for the levels, so its error
    comes from rounding to them.
    """

    key: Combination
    table: Evaluated
    levels: tuple[str, str, str]
    ranges: tuple[float, float, float]
    activation: str
    loss: str
    scale: float
    bound: float
    n_examples: int
    write: Changed
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        key = self.key.value(slots, domain)
        return {self.write: domain.step_from_table(self, key, slots)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return the table's units, and two units that wipe the old weight."""
        return table_units(self.key, (self.table,), self.write, program)

    def formula(self) -> str:
        return f"{self.write} = {self.table}({self.key.formula()}), of {self.n_examples} examples"
