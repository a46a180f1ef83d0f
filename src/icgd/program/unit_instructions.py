"""Instructions by sums of units, for layers with any one activation.

An instruction evaluates a `RidgeSum`, with one head or hidden unit for each of its units. In
attention the query holds the token's own numbers, and the value the weights, which are equal in all
tokens, so that the mean over tokens is exact. Gradients have the numbers in the key, because their
sum is over examples. A value that is zero at queries excludes these. With activations that behave
like relu, and so vanish for low scores, a score far below zero excludes queries instead.

Units wipe a slot only up to their error, which remains in the slot.

If there is a slot `bias`, the last column of a matrix of weights multiplies that constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from icgd.program.functions import ACTIVATIONS_AT_ONE, RidgeSum
from icgd.program.instructions import (
    Accumulated,
    AddsOuterProduct,
    Argument,
    Changed,
    Evaluated,
    HeadError,
    Instruction,
    LayerKind,
    Read,
    Written,
    below,
    extended,
    row_wires,
)
from icgd.program.layout import EXAMPLE_SHARE, IS_QUERY, ONE, TOKENS_PER_EXAMPLE, Layout
from icgd.program.meaning import StackDomain, Value
from icgd.program.wires import SIGN, AxisFactor, Heads, Units, Wire, Wiring, by_slot

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram

OFF_RELU = 1.0
"""The largest distance from relu of the unit activations that behave like it: that of elu."""


class ByUnits(Instruction):
    """An instruction that evaluates one sum of units."""

    function: Evaluated


def argument_scores(
    argument: Argument, scale: AxisFactor, layout: Layout
) -> tuple[list[Wire], list[Wire], int]:
    """Return query and key of the scores scale * argument[k], and the feature for added terms.

    That feature has the key 1. Without weights it is the only feature.
    """
    terms = by_slot(argument.inputs.terms()).items()
    if argument.weights is None:
        query = [Wire(slot, ("k",), factor=(factor, scale)) for slot, factor in terms]
        return query, [Wire(ONE)], 0
    last = argument.features(layout)
    query = [Wire(slot, ("entry",), "entry", (factor, scale)) for slot, factor in terms]
    if argument.bias is not None:
        query.append(Wire(argument.bias, feature=last - 1, factor=scale))
    return query, [Wire(argument.weights, ("k", "entry"), "entry"), Wire(ONE, feature=last)], last


def offsets(
    fit: RidgeSum, slope: AxisFactor, axis: tuple[str, int], bias: str | None, feature: int = 0
) -> Wire:
    """Return the wire of every unit's offset.

    With a bias, the last place of the axis has the argument 1 instead of a coordinate, so that
    there the argument's slope is added to the offset.
    """
    if bias is None:
        return Wire(ONE, feature=feature, factor=fit.offset)
    name, size = axis
    last = tuple(a + b for a, b in zip(fit.offset.numbers, slope.numbers, strict=True))  # type: ignore[operator]
    rows = (*(fit.offset.numbers,) * (size - 1), last)
    return Wire(ONE, feature=feature, factor=AxisFactor((name, "term"), rows))  # type: ignore[arg-type]


def ridge_units(
    fit: RidgeSum, layout: Layout, reads: tuple[tuple[str, tuple[str, ...]], ...], write: str
) -> Units:
    """Return the units of `fit` for every coordinate k of `write`.

    Argument i is the slot of reads[i], at the axes given there.
    """
    pairs = zip(reads, fit.directions, strict=True)
    return Units(
        axes={"k": layout.width_of(write), "term": fit.n_units},
        reads=tuple(Wire(slot, at, factor=direction) for (slot, at), direction in pairs),
        shift=fit.offset,
        writes=(Wire(write, ("k",), factor=fit.coefficient),),
        label=f"{write}[{{k}}], unit {{term}} of {fit.name}",
    )


@dataclass(frozen=True)
class ActivateUnits(ByUnits):
    """Set `write = reach * function(argument / reach)`, coordinate by coordinate."""

    argument: Argument
    function: Evaluated
    reach: float
    write: Written
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        argument = self.argument.value(slots, domain)
        exact = domain.evaluate(self.function, argument)
        value = domain.by_units(self.function, exact, [(argument, self.reach)])
        return {self.write: domain.written_over(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query [scale * inputs; offset], key [weights[k, :]; 1], value 1."""
        layout, fit = program.layout, program.ridge_sum(self.function)
        query, key, last = argument_scores(self.argument, fit.directions[0] / self.reach, layout)
        return Heads(
            axes={"k": self.argument.width(layout), "term": fit.n_units},
            query=(*query, Wire(ONE, feature=last, factor=fit.offset)),
            key=tuple(key),
            value=(Wire(ONE),),
            output=(Wire(self.write, ("k",), factor=(self.reach, fit.coefficient)),),
            label=f"{self.write}[{{k}}], unit {{term}} of {self.function}",
        )

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.argument.formula()})"


@dataclass(frozen=True)
class PassOn(ByUnits):
    """Set `write = weights @ function(argument)`: the input of the next layer.

    There is a head for each coordinate of the argument and each unit. Its value is a column of
    weights. One more head, whose score is 1, adds the column of the `bias`.
    """

    weights: Read
    argument: Argument
    function: Evaluated
    write: Written
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        argument = self.argument.value(slots, domain)
        exact = domain.evaluate(self.function, argument)
        width = self.argument.width(domain.layout)
        passed_on = domain.by_units(self.function, exact, [(argument, 1.0)], n_sums=width)
        passed_on = passed_on if self.bias is None else domain.above_one(passed_on)
        value = domain.matmul(slots[self.weights], passed_on)
        value = value if self.bias is None else domain.as_read(self, value, slots[self.weights])
        return {self.write: domain.written_over(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query and key are those of `ActivateUnits`, the value is weights[:, k].

        The head of the bias has the score 1, and its output undoes activation(1).
        """
        layout, fit = program.layout, program.ridge_sum(self.function)
        query, key, last = argument_scores(self.argument, fit.directions[0], layout)
        heads = Heads(
            axes={"k": self.argument.width(layout), "term": fit.n_units},
            query=(*query, Wire(ONE, feature=last, factor=fit.offset)),
            key=tuple(key),
            value=(Wire(self.weights, ("row", "k"), "row"),),
            output=(Wire(self.write, ("row",), "row", fit.coefficient),),
            label=f"column {{k}} of {self.weights} into {self.write}, unit {{term}} of "
            f"{self.function}",
        )
        if self.bias is None:
            return (heads,)
        last_column = layout.slot(self.weights).shape[-1] - 1
        undo = 1 / ACTIVATIONS_AT_ONE[fit.activation]
        bias = Heads(
            axes={},
            query=(Wire(self.bias),),
            key=(Wire(ONE),),
            value=(Wire(self.weights, ("row", last_column), "row"),),
            output=(Wire(self.write, ("row",), "row", undo),),
            label=f"the biases in {self.weights} into {self.write}",
        )
        return heads, bias

    def formula(self) -> str:
        passed_on = below(f"{self.function}({self.argument.formula()})", self.bias)
        return f"{self.write} = {self.weights} @ {passed_on}"

    def own_error(self, bounds: Any, value: Any, weights: Any) -> Any:
        """Add the rounding of the head of the bias."""
        return value.perturbed(
            bounds.arithmetic.sum_of(bounds.arithmetic.n_tokens, weights.value.size[..., -1:].mT)
        )


def times_slope(
    jacobian: StartJacobian | PushJacobian,
    factor: Value,
    slots: Mapping[str, Value],
    domain: StackDomain[Value],
    n_sums: int = 1,
) -> Value:
    """Return `factor[k, p] * r'(argument[k])`, where units compute the product."""
    width = jacobian.argument.width(domain.layout)
    argument = jacobian.argument.value(slots, domain)
    slope = domain.evaluate(f"{jacobian.activation}'", argument)
    t = domain.unflatten(argument, width)
    exact = domain.multiply(factor, domain.unflatten(slope, width))
    arguments = [(factor, jacobian.reach), (t, 1.0)]
    return domain.by_units(jacobian.function, exact, arguments, n_sums)


@dataclass(frozen=True)
class StartJacobian(ByUnits):
    """Set `write[:, (k, l)] = weights[:, k] * inputs[l] * r'(argument[k])`.

    This is the derivative of weights @ r(argument) with respect to the weights of the layer below,
    which computes the argument from `inputs`, followed by the `bias`. Here r is the `activation`,
    and `function` is s r'(t) for |s| <= 1, evaluated at s = inputs[l] / reach.
    """

    weights: Read
    inputs: Read
    argument: Argument
    activation: str
    function: Evaluated
    reach: float
    write: Written
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        inputs = extended(self.inputs, self.bias, slots, domain)
        products = times_slope(self, domain.unflatten(inputs, 1), slots, domain)
        value = domain.scale_rows(slots[self.weights], products)
        return {self.write: domain.written_over(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Scores a1 inputs[input] / reach + a2 argument[k] + offset, value weights[:, k]."""
        layout, fit = program.layout, program.ridge_sum(self.function)
        n_inputs = layout.width_of(self.inputs) + (self.bias is not None)
        slope, gain = fit.directions[0] / self.reach, (self.reach, fit.coefficient)
        query, key, last = argument_scores(self.argument, fit.directions[1], layout)
        constant = offsets(fit, slope, ("input", n_inputs), self.bias, last)
        return Heads(
            axes={"k": self.argument.width(layout), "input": n_inputs, "term": fit.n_units},
            query=(*query, constant, Wire(self.inputs, ("input",), last, slope)),
            key=tuple(key),
            value=(Wire(self.weights, ("row", "k"), "row"),),
            output=(Wire(self.write, ("row", ("k", "input")), "row", gain),),
            label=f"{self.write} by weight [{{k}}, {{input}}], unit {{term}} of {self.function}",
        )

    def formula(self) -> str:
        slope = f"{self.activation}'({self.argument.formula()})"
        inputs = below(self.inputs, self.bias)
        return f"{self.write} = {self.weights} * ({slope} (x) {inputs})"


@dataclass(frozen=True)
class PushJacobian(ByUnits):
    """Set `write[:, p] = sum_k weights[:, k] * jacobian[k, p] * r'(argument[k])`.

    This is the derivative of weights @ r(argument) with respect to weight p, if `jacobian` is that
    of the argument. `function` is s r'(t) for |s| <= 1, evaluated at s = jacobian[k, p] / reach.
    """

    weights: Read
    jacobian: Read
    argument: Argument
    activation: str
    function: Evaluated
    reach: float
    write: Written
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        n_rows = domain.layout.slot(self.jacobian).shape[0]
        jacobian = domain.unflatten(slots[self.jacobian], n_rows)
        products = times_slope(self, jacobian, slots, domain, n_sums=n_rows)
        value = domain.flatten(domain.matmul_rows(slots[self.weights], products))
        return {self.write: domain.written_over(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Scores a1 jacobian[k, p] / reach + a2 argument[k] + offset, value weights[:, k]."""
        layout, fit = program.layout, program.ridge_sum(self.function)
        rows, columns = layout.slot(self.jacobian).shape
        slope = fit.directions[0] / self.reach
        query, key, last = argument_scores(self.argument, fit.directions[1], layout)
        return Heads(
            axes={"k": rows, "p": columns, "term": fit.n_units},
            query=(
                *query,
                Wire(ONE, feature=last, factor=fit.offset),
                Wire(self.jacobian, ("k", "p"), last, slope),
            ),
            key=tuple(key),
            value=(Wire(self.weights, ("row", "k"), "row"),),
            output=(Wire(self.write, ("row", "p"), "row", (self.reach, fit.coefficient)),),
            label=f"{self.write} by weight {{p}} through {{k}}, unit {{term}} of {self.function}",
        )

    def formula(self) -> str:
        slope = f"{self.activation}'({self.argument.formula()})"
        return f"{self.write} = {self.weights} @ ({slope} * {self.jacobian})"


class AddsJacobian(Instruction):
    """Add `scale * (1 / n_examples) sum_examples left^T jacobian` to the weights `write`.

    Entry p of the weights gets sum_k left[k] jacobian[k, p]. Subclasses differ in their heads.
    """

    left: Read
    jacobian: Read
    scale: float
    write: Accumulated

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        n_rows = domain.layout.slot(self.jacobian).shape[0]
        jacobian = domain.unflatten(slots[self.jacobian], n_rows)
        left, before = slots[self.left], slots[self.write]
        return {self.write: domain.accumulate_rows(before, left, jacobian, self.scale, self)}

    def formula(self) -> str:
        return f"{self.write} += {self.scale:g} * mean({self.left}^T @ {self.jacobian})"


def product_heads(
    instruction: AddOuterProduct | AddJacobian,
    fit: RidgeSum,
    shape: tuple[int, ...],
    right: tuple[Wire, ...],
    written: tuple[str, ...],
) -> Heads:
    """Return heads of the products left[k] right[k, p], with the score a1 left[k] / reach + right.

    The key holds all of the score, because the sum is over tokens; the value is `example_share`.
    """
    (rows, columns), (reach, other_reach) = shape, instruction.reaches
    gain = (instruction.scale * reach * other_reach, fit.coefficient)
    return Heads(
        axes={"k": rows, "p": columns, "term": fit.n_units},
        query=(Wire(ONE),),
        key=(Wire(instruction.left, ("k",), factor=fit.directions[0] / reach), *right),
        value=(Wire(EXAMPLE_SHARE),),
        output=(Wire(instruction.write, written, factor=gain),),
        label=f"gradient in {instruction.write}, product [{{k}}, {{p}}], unit {{term}} of "
        f"{fit.name}",
    )


@dataclass(frozen=True)
class AddOuterProduct(ByUnits, AddsOuterProduct):
    """Add the mean of `left right^T`, with a head for each entry and each unit.

    `function` is the product of two numbers of at most 1, evaluated at left / reaches[0] and
    right / reaches[1].
    """

    left: Read
    right: Read
    reaches: tuple[float, float]
    function: Evaluated
    scale: float
    write: Accumulated
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (EXAMPLE_SHARE, ONE)

    def wires(self, program: AbstractProgram) -> Wiring:
        shape, fit = program.layout.slot(self.write).shape, program.ridge_sum(self.function)
        slope = fit.directions[1] / self.reaches[1]
        right = Wire(self.right, ("p",), factor=slope)
        constant = offsets(fit, slope, ("p", shape[1]), self.bias)
        return product_heads(self, fit, shape, (constant, right), ("k", "p"))

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        """Return the error of the units in every product, averaged over the examples."""
        column = left.value.actual.mapped(lambda end: end.unsqueeze(-1))
        row = right.value.actual.mapped(lambda end: end.unsqueeze(-2))
        error = bounds.product_by_units(self.function, self.reaches, (column, row))
        return HeadError(error.mean(-3))


@dataclass(frozen=True)
class AddJacobian(ByUnits, AddsJacobian):
    """Add the mean of `left^T jacobian`, with products computed as in `AddOuterProduct`."""

    left: Read
    jacobian: Read
    reaches: tuple[float, float]
    function: Evaluated
    scale: float
    write: Accumulated
    kind = LayerKind.ATTENTION
    constants = (EXAMPLE_SHARE, ONE)

    def wires(self, program: AbstractProgram) -> Wiring:
        shape, fit = program.layout.slot(self.jacobian).shape, program.ridge_sum(self.function)
        right = Wire(self.jacobian, ("k", "p"), factor=fit.directions[1] / self.reaches[1])
        constant = Wire(ONE, factor=fit.offset)
        return product_heads(self, fit, shape, (constant, right), ("p",))

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        """Return the error of the units in every product, averaged over the rows of examples."""
        column = left.value.actual.mapped(lambda end: end.unsqueeze(-1))
        error = bounds.product_by_units(self.function, self.reaches, (column, right.value.actual))
        return HeadError(error.mean((-3, -2)).unsqueeze(-2))


class ByGatedHeads(Instruction):
    """An instruction whose heads multiply exactly, for activations that behave like relu.

    Two heads for each row k multiply their value by relu(s) - relu(-s) = s, where s =
    tokens_per_example * left[k]. On queries s and -s are lowered by `gate`, so that both relus are
    0. Here relu(s) is activation(sharpness * s) / sharpness. Values are at most `reach`.
    """

    left: Read
    reach: float
    gate: float
    sharpness: float
    scale: float
    write: Accumulated
    kind = LayerKind.ATTENTION
    constants = (TOKENS_PER_EXAMPLE, IS_QUERY)

    def heads(self, rows: int, value: tuple[Wire, ...], written: tuple[str, ...]) -> Heads:
        """Query tokens_per_example, key +-left[k] - gate * is_query, value of many entries."""
        return Heads(
            axes={"sign": 2, "k": rows},
            query=(Wire(TOKENS_PER_EXAMPLE, factor=self.sharpness),),
            key=(Wire(self.left, ("k",), factor=SIGN), Wire(IS_QUERY, factor=-self.gate)),
            value=value,
            output=(Wire(self.write, written, "entry", (self.scale / self.sharpness, SIGN)),),
            label=f"row {{k}} of {self.write}, where {{sign}}{self.left} > 0",
        )

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        """Return the error of two heads: the distance of the activation from relu, in each.

        It is infinite if the left factor may exceed the gate, which would admit queries.
        """
        if not bounds.arithmetic.sums_terms:
            return HeadError(0.0)
        if not bool((left.value.actual.size <= self.gate).all()):
            return HeadError(inf)
        reach = max(self.reach, float(right.value.actual.size.max()))
        return HeadError(2 * OFF_RELU / self.sharpness * reach * (self.sharpness > 1))


@dataclass(frozen=True)
class AddGatedProduct(ByGatedHeads, AddsOuterProduct):
    """Add the mean of `left right^T`, with `right` in the value of gated heads."""

    left: Read
    right: Read
    reach: float
    gate: float
    sharpness: float
    scale: float
    write: Accumulated
    bias: Read | None = None

    def wires(self, program: AbstractProgram) -> Wiring:
        rows, columns = program.layout.slot(self.write).shape
        value = row_wires(self.right, self.bias, columns)
        return self.heads(rows, value, ("k", "entry"))


@dataclass(frozen=True)
class AddGatedJacobian(ByGatedHeads, AddsJacobian):
    """Add the mean of `left^T jacobian`, with row k of the Jacobian in the value of gated heads."""

    left: Read
    jacobian: Read
    reach: float
    gate: float
    sharpness: float
    scale: float
    write: Accumulated

    def wires(self, program: AbstractProgram) -> Wiring:
        rows, _ = program.layout.slot(self.jacobian).shape
        value = (Wire(self.jacobian, ("k", "entry"), "entry"),)
        return self.heads(rows, value, ("entry",))


@dataclass(frozen=True)
class SlopeOfLoss(ByUnits):
    """Set `write[k] = function(prediction[k], label[k])`, the slope of the `loss`."""

    prediction: Read
    label: Read
    loss: str
    function: Evaluated
    write: Written
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        prediction, label = slots[self.prediction], slots[self.label]
        exact = domain.loss_slope(self.loss, prediction, label)
        value = domain.by_units(self.function, exact, [(prediction, 1.0), (label, 1.0)])
        return {self.write: domain.written_over(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of a1 prediction[k] + a2 label[k] + offset."""
        reads = ((self.prediction, ("k",)), (self.label, ("k",)))
        fit = program.ridge_sum(self.function)
        return ridge_units(fit, program.layout, reads, self.write)

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.prediction}, {self.label})"


@dataclass(frozen=True)
class CopyToQueries(ByUnits):
    """Add `source` to `write` at the queries: `function` is source * is_query."""

    source: Read
    function: Evaluated
    write: Written
    kind = LayerKind.MLP
    constants = (IS_QUERY,)
    only_where: ClassVar[str] = IS_QUERY

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        source, before = slots[self.source], slots[self.write]
        value = domain.by_units(self.function, source, [(source, 1.0), (slots[IS_QUERY], 1.0)])
        written = domain.written_over(before, value)
        return {self.write: domain.where(IS_QUERY, (), written, before)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of a1 source[k] + a2 is_query + offset."""
        fit, reads = program.ridge_sum(self.function), ((self.source, ("k",)), (IS_QUERY, ()))
        return ridge_units(fit, program.layout, reads, self.write)

    def formula(self) -> str:
        return f"{self.write} = {self.source} where {IS_QUERY}"


@dataclass(frozen=True)
class ClipByUnits(ByUnits):
    """Clip every coordinate w of `slots` to [-bound, bound]: `function` is clip(w) - w."""

    slots: tuple[Changed, ...]
    bound: float
    function: Evaluated
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {name: domain.clip(slots[name], self.bound, by=self.function) for name in self.slots}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of a w + offset for every coordinate w."""
        fit = program.ridge_sum(self.function)
        return [ridge_units(fit, program.layout, ((slot, ("k",)),), slot) for slot in self.slots]

    def formula(self) -> str:
        return f"clip {', '.join(self.slots)} to [-{self.bound:g}, {self.bound:g}] by units"


@dataclass(frozen=True)
class WipeByUnits(ByUnits):
    """Subtract from every coordinate h of `slots` its approximation reach * function(h / reach)."""

    slots: tuple[Changed, ...]
    function: Evaluated
    reach: float
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {
            name: domain.as_read(self, domain.zero(slots[name]), slots[name]) for name in self.slots
        }

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of a h / reach + offset for every coordinate h."""
        fit = program.ridge_sum(self.function).along((1 / self.reach,), -self.reach)
        return [ridge_units(fit, program.layout, ((slot, ("k",)),), slot) for slot in self.slots]

    def formula(self) -> str:
        return f"wipe {', '.join(self.slots)} by units"

    def residue(self, bounds: Any) -> float:
        """Bound the residue of a slot whose numbers are within the reach."""
        return self.reach * (
            bounds.units_at_one(self.function) if bounds.arithmetic.sums_terms else 0.0
        )

    def own_error(self, bounds: Any, value: Any, before: Any) -> Any:
        """Add the residue of the wipe, which has no bound for numbers beyond the reach."""
        is_beyond = before.value.actual.size > self.reach
        residue = before.value.error.new_full(is_beyond.shape, self.residue(bounds))
        return value.perturbed(residue.masked_fill(is_beyond, inf))
