"""Instructions by sums of units: what layers do that apply any one activation.

An instruction evaluates a `RidgeSum`, with one head or hidden unit for each of its units. In
attention the query holds the token's own numbers. The value holds the weights, which are equal in
all tokens, so that the mean over tokens is exact. Gradients have the numbers in the key, because
their sum is over examples. They leave queries out by a value that is zero there. With activations
that bend like relu, and so can be switched off, they do it by a score far below zero.

Units wipe a slot only up to their error, which stays in the slot.

Where there is a slot `bias`, the last column of a matrix of weights multiplies that constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from icgd.program import instructions
from icgd.program.instructions import (
    IS_QUERY,
    ONE,
    Argument,
    HeadError,
    Instruction,
    LayerKind,
    below,
)
from icgd.program.meaning import Domain, Value
from icgd.program.uses import Accumulated, Changed, Evaluated, Read, Written

EXAMPLE_SHARE = "example_share"
"""The slot that holds n_tokens / n_examples in every example and 0 in every query."""

OFF_RELU = 1.0
"""No unit activation that bends like relu is farther from it: elu is that far, relu not at all."""


class ByUnits(Instruction):
    """An instruction that evaluates one sum of units."""

    function: Evaluated


@dataclass(frozen=True)
class ActivateUnits(ByUnits):
    """Set `write = reach * function(argument / reach)`, coordinate by coordinate."""

    argument: Argument
    function: Evaluated
    reach: float
    write: Written
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.argument.formula()})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        argument = self.argument.value(slots, domain)
        exact = domain.evaluate(self.function, argument)
        value = domain.by_units(self.function, exact, [(argument, self.reach)])
        return {self.write: domain.written_over(slots[self.write], value)}


@dataclass(frozen=True)
class PassOn(ByUnits):
    """Set `write = weights @ function(argument)`: what units pass on to the next layer.

    There is a head for each coordinate of the argument and each unit. Its value is a column of
    weights. One more head, whose score is 1, has the column of the `bias`.
    """

    weights: Read
    argument: Argument
    function: Evaluated
    write: Written
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (ONE,)

    def formula(self) -> str:
        passed_on = below(f"{self.function}({self.argument.formula()})", self.bias)
        return f"{self.write} = {self.weights} @ {passed_on}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        argument = self.argument.value(slots, domain)
        exact = domain.evaluate(self.function, argument)
        width = self.argument.width(domain.layout)
        passed_on = domain.by_units(self.function, exact, [(argument, 1.0)], n_sums=width)
        passed_on = passed_on if self.bias is None else domain.above_one(passed_on)
        value = domain.matmul(slots[self.weights], passed_on)
        value = value if self.bias is None else domain.as_read(self, value, slots[self.weights])
        return {self.write: domain.written_over(slots[self.write], value)}

    def own_error(self, bounds: Any, value: Any, weights: Any) -> Any:
        """The rounding of the head of the bias."""
        return value.moved(bounds.how.sum_of(bounds.how.n_tokens, weights.value.size[..., -1:].mT))


@dataclass(frozen=True)
class StartJacobian(ByUnits):
    """Set `write[:, (k, l)] = weights[:, k] * inputs[l] * r'(argument[k])`.

    That is the derivative of weights @ r(argument) with respect to the weights of the layer below,
    which makes the argument from `inputs`, and from the `bias` after them. Here r is the
    `activation`, and `function` is s r'(t) for |s| <= 1, which is evaluated at s = inputs[l] /
    reach.
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

    def formula(self) -> str:
        slope = f"{self.activation}'({self.argument.formula()})"
        inputs = below(self.inputs, self.bias)
        return f"{self.write} = {self.weights} * ({slope} (x) {inputs})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        inputs = slots[self.inputs] if self.bias is None else domain.above_one(slots[self.inputs])
        products = times_slope(self, domain.unflatten(inputs, 1), slots, domain)
        value = domain.scale_rows(slots[self.weights], products)
        return {self.write: domain.written_over(slots[self.write], value)}


def times_slope(
    jacobian: StartJacobian | PushJacobian,
    factor: Value,
    slots: Mapping[str, Value],
    domain: Domain[Value],
    n_sums: int = 1,
) -> Value:
    """`factor[k, p] * r'(argument[k])`, in which units make the product."""
    argument = jacobian.argument.value(slots, domain)
    t = domain.unflatten(argument, jacobian.argument.width(domain.layout))
    exact = domain.multiply(factor, domain.evaluate(f"{jacobian.activation}'", t))
    arguments = [(factor, jacobian.reach), (t, 1.0)]
    return domain.by_units(jacobian.function, exact, arguments, n_sums)


@dataclass(frozen=True)
class PushJacobian(ByUnits):
    """Set `write[:, p] = sum_k weights[:, k] * jacobian[k, p] * r'(argument[k])`.

    That is the derivative of weights @ r(argument) with respect to weight p, if `jacobian` is that
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

    def formula(self) -> str:
        slope = f"{self.activation}'({self.argument.formula()})"
        return f"{self.write} = {self.weights} @ ({slope} * {self.jacobian})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        n_rows, _ = domain.layout.slot(self.jacobian).shape
        jacobian = domain.unflatten(slots[self.jacobian], n_rows)
        products = times_slope(self, jacobian, slots, domain, n_sums=n_rows)
        value = domain.flatten(domain.matmul_rows(slots[self.weights], products))
        return {self.write: domain.written_over(slots[self.write], value)}


@dataclass(frozen=True)
class AddOuterProduct(ByUnits):
    """Add `scale * (1 / n_examples) sum_examples left right^T` to the weights `write`.

    `function` is the product of two numbers of at most 1, evaluated at left / reaches[0] and
    right / reaches[1]. There is a head for each entry and each unit.
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

    def formula(self) -> str:
        right = below(self.right, self.bias)
        return f"{self.write} += {self.scale:g} * mean({self.left} (x) {right})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        right = slots[self.right] if self.bias is None else domain.above_one(slots[self.right])
        after = domain.accumulate(slots[self.write], slots[self.left], right, self.scale, self)
        return {self.write: after}

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        """What units miss of every product, on the mean over the examples."""
        factors = left.value.actual.mapped(_as_column), right.value.actual.mapped(_as_row)
        return HeadError(bounds.product_by_units(self.function, self.reaches, factors).mean(-3))


def _as_column(part: Any) -> Any:
    return part.unsqueeze(-1)


def _as_row(part: Any) -> Any:
    return part.unsqueeze(-2)


@dataclass(frozen=True)
class AddJacobian(ByUnits):
    """Add `scale * (1 / n_examples) sum_examples left^T jacobian` to the weights `write`.

    Entry p of the weights gets sum_k left[k] jacobian[k, p]. Products are made as in
    `AddOuterProduct`.
    """

    left: Read
    jacobian: Read
    reaches: tuple[float, float]
    function: Evaluated
    scale: float
    write: Accumulated
    kind = LayerKind.ATTENTION
    constants = (EXAMPLE_SHARE, ONE)

    def formula(self) -> str:
        return f"{self.write} += {self.scale:g} * mean({self.left}^T @ {self.jacobian})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        n_rows, _ = domain.layout.slot(self.jacobian).shape
        jacobian = domain.unflatten(slots[self.jacobian], n_rows)
        left, before = slots[self.left], slots[self.write]
        return {self.write: domain.accumulate_rows(before, left, jacobian, self.scale, self)}

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        """What units miss of every product, on the mean over the rows of all examples."""
        factors = left.value.actual.mapped(_as_column), right.value.actual
        missed = bounds.product_by_units(self.function, self.reaches, factors)
        return HeadError(missed.mean((-3, -2)).unsqueeze(-2))


@dataclass(frozen=True)
class AddGatedProduct(Instruction):
    """Add `scale * (1 / n_examples) sum_examples left right^T` to the weights `write`.

    It serves activations that bend like relu. Two heads for each row k have `right` in the value,
    and weigh it by relu(s) - relu(-s) = s, where s = tokens_per_example * left[k]. On queries s and
    -s are lowered by `gate`, so that both relus are 0. Here relu(s) is activation(sharpness * s) /
    sharpness, and `right` is at most `reach`.
    """

    left: Read
    right: Read
    reach: float
    gate: float
    sharpness: float
    scale: float
    write: Accumulated
    bias: Read | None = None
    kind = LayerKind.ATTENTION
    constants = (instructions.TOKENS_PER_EXAMPLE, IS_QUERY)

    def formula(self) -> str:
        right = below(self.right, self.bias)
        return f"{self.write} += {self.scale:g} * mean({self.left} (x) {right})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        right = slots[self.right] if self.bias is None else domain.above_one(slots[self.right])
        after = domain.accumulate(slots[self.write], slots[self.left], right, self.scale, self)
        return {self.write: after}

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        return HeadError(missed_by_bends(self, bounds, left, right))


def missed_by_bends(
    instruction: AddGatedProduct | AddGatedJacobian, bounds: Any, left: Any, right: Any
) -> float:
    """What the two heads of a product miss: each is as far off as the activation is from relu.

    A left factor beyond the gate would let queries in.
    """
    if not bounds.how.sums_terms:
        return 0.0
    if not bool((left.value.actual.size <= instruction.gate).all()):
        return inf
    reach = max(instruction.reach, float(right.value.actual.size.max()))
    return 2 * OFF_RELU / instruction.sharpness * reach * (instruction.sharpness > 1)


@dataclass(frozen=True)
class AddGatedJacobian(Instruction):
    """Add `scale * (1 / n_examples) sum_examples left^T jacobian` to the weights `write`.

    The heads are those of `AddGatedProduct`, with row k of the Jacobian in the value.
    """

    left: Read
    jacobian: Read
    reach: float
    gate: float
    sharpness: float
    scale: float
    write: Accumulated
    kind = LayerKind.ATTENTION
    constants = (instructions.TOKENS_PER_EXAMPLE, IS_QUERY)

    def formula(self) -> str:
        return f"{self.write} += {self.scale:g} * mean({self.left}^T @ {self.jacobian})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        n_rows, _ = domain.layout.slot(self.jacobian).shape
        jacobian = domain.unflatten(slots[self.jacobian], n_rows)
        left, before = slots[self.left], slots[self.write]
        return {self.write: domain.accumulate_rows(before, left, jacobian, self.scale, self)}

    def product_error(self, bounds: Any, left: Any, right: Any) -> HeadError | None:
        return HeadError(missed_by_bends(self, bounds, left, right))


@dataclass(frozen=True)
class SlopeOfLoss(ByUnits):
    """Set `write[k] = function(prediction[k], label[k])`, the slope of the `loss`."""

    prediction: Read
    label: Read
    loss: str
    function: Evaluated
    write: Written
    kind = LayerKind.MLP

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.prediction}, {self.label})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        prediction, label = slots[self.prediction], slots[self.label]
        exact = domain.loss_slope(self.loss, prediction, label)
        value = domain.by_units(self.function, exact, [(prediction, 1.0), (label, 1.0)])
        return {self.write: domain.written_over(slots[self.write], value)}


@dataclass(frozen=True)
class CopyToQueries(ByUnits):
    """Add `source` to `write` at the queries: `function` is source * is_query."""

    source: Read
    function: Evaluated
    write: Written
    kind = LayerKind.MLP
    constants = (IS_QUERY,)
    only_where: ClassVar[str] = IS_QUERY

    def formula(self) -> str:
        return f"{self.write} = {self.source} where {IS_QUERY}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        source, before = slots[self.source], slots[self.write]
        value = domain.by_units(self.function, source, [(source, 1.0), (slots[IS_QUERY], 1.0)])
        written = domain.written_over(before, value)
        return {self.write: domain.where(IS_QUERY, (), written, before)}


@dataclass(frozen=True)
class ClipByUnits(ByUnits):
    """Clip every coordinate w of `slots` to [-bound, bound]: `function` is clip(w) - w."""

    slots: tuple[Changed, ...]
    bound: float
    function: Evaluated
    kind = LayerKind.MLP

    def formula(self) -> str:
        return f"clip {', '.join(self.slots)} to [-{self.bound:g}, {self.bound:g}] by units"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        clipped = (domain.clip(slots[name], self.bound, by=self.function) for name in self.slots)
        return dict(zip(self.slots, clipped, strict=True))


@dataclass(frozen=True)
class WipeByUnits(ByUnits):
    """Take h away from every coordinate h of `slots`, as reach * function(h / reach)."""

    slots: tuple[Changed, ...]
    function: Evaluated
    reach: float
    kind = LayerKind.MLP

    def formula(self) -> str:
        return f"wipe {', '.join(self.slots)} by units"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        return {
            name: domain.as_read(self, domain.zero(slots[name]), slots[name]) for name in self.slots
        }

    def left_over(self, bounds: Any) -> float:
        """The most that is left in a slot of numbers up to the reach."""
        whole = bounds.units_at_one(self.function) if bounds.how.sums_terms else 0.0
        return self.reach * whole

    def own_error(self, bounds: Any, value: Any, before: Any) -> Any:
        """What is left in the slot; of numbers beyond the reach it may be anything."""
        is_beyond = before.value.actual.size > self.reach
        off = before.value.error.new_full(is_beyond.shape, self.left_over(bounds))
        return value.moved(off.masked_fill(is_beyond, inf))
