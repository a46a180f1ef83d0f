r"""Instructions of a step on a linear model: its means, its gradient, its penalties and momentum.

The tokens of a head of grid attention are multiples of the first column: points[g] times the column
for the keys and values[g] times the column for the values, with an offset for each. A column whose
query holds its own x has the scores points[g] <w, x> + offsets[g], and gets the mean of values[g],
which is a function of <w, x>. Then attention with ReLUs sums (mean_i - y_i) x_i over the examples.

No weight depends on the number of examples or queries: a constant slot of the prompt holds these
numbers, and a flag excludes queries. A mean over the examples needs no such slot: mirrored heads
compute it by a softmax over all columns and their negatives. If the residual of a label is linear
in the weights, their scores hold it, and no layer has to look up means before.

Alternatively every example has a head of its own, whose tokens are multiples of its column, and the
query holds w: the head returns a function of <w, x_i> and y_i, times x_i, and the heads of a layer
sum to the gradient. The weights of such a layer are made for one number of examples.

With momentum, a slot of velocities beside the weights w holds their last change v. The first layer
subtracts the old v, and every layer adds the same to v as to w. So v is the change of w again when
the step ends, also through a soft threshold and a clip.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import cos, prod, sinh
from typing import TYPE_CHECKING, Any

from icgd.errors import ProgramError
from icgd.program.instructions import (
    IDENTITY,
    Accumulated,
    Changed,
    Evaluated,
    Instruction,
    LayerKind,
    Read,
    Written,
)
from icgd.program.layout import (
    IS_EXAMPLE,
    IS_FIRST,
    IS_QUERY,
    MASKED,
    N_TOKENS,
    ONE,
    TOKENS_PER_EXAMPLE,
    Layout,
)
from icgd.program.meaning import StackDomain, Value
from icgd.program.wires import (
    SIGN,
    AxisFactor,
    Factor,
    Grid,
    Heads,
    Wire,
    Wiring,
    factors_in,
    relu_pairs,
)
from icgd.reprs import counted

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram

FIRST_COLUMN = Grid((0.0,), (0.0,), (1.0,))
"""The grid of a head that attends to the first column itself."""


def side_by_side(slots: tuple[str, ...], layout: Layout, *factors: Factor) -> tuple[Wire, ...]:
    """Return wires of slots with consecutive features, with one factor or a factor for each."""
    wires, start = [], 0
    for number, slot in enumerate(slots):
        factor = factors[number % len(factors)] if factors else 1.0
        wires.append(Wire(slot, ("entry",), "entry", factor, start))
        start += layout.width_of(slot)
    return tuple(wires)


class Descent(Instruction):
    """A gradient step: `scale` times a sum over examples, each times its share."""

    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    scale: float

    @abstractmethod
    def share(self, n_examples: int) -> float:
        """Return the factor of each example in the sum."""

    def descended(
        self,
        left: Value,
        slots: Mapping[str, Value],
        domain: StackDomain[Value],
        *,
        mean: bool = True,
    ) -> dict[str, Value]:
        """Return all weights after the step, where `left` are the residuals."""
        written = {}
        for weights, inputs in zip(self.weights, self.inputs, strict=True):
            zero = domain.zero(slots[weights])
            change = domain.accumulate(zero, left, slots[inputs], self.scale, self, mean=mean)
            written[weights] = domain.add(slots[weights], change)
        return written

    def require_pairs(self) -> None:
        """Raise `ProgramError` unless there are weights, with inputs for each."""
        if not len(self.weights) == len(self.inputs) > 0:
            raise ProgramError(
                f"{type(self).__name__}: has {len(self.weights)} weights for {len(self.inputs)} "
                "inputs, expected as many of both, at least one."
            )


class Scored(Instruction):
    """An instruction on scores <w, x>: a run stops if a checked score exceeds `reach`."""

    reach: float

    @abstractmethod
    def products(self) -> tuple[tuple[str, str, float], ...]:
        """Return the products of the score: weights, inputs and factor."""

    def score(self, slots: Mapping[str, Value], domain: StackDomain[Value], checked: str) -> Value:
        """Return the score of every token, checked at the tokens with the flag `checked`."""
        weights_of: dict[str, list[tuple[float, Value]]] = {}
        for weights, inputs, factor in self.products():
            weights_of.setdefault(inputs, []).append((factor, slots[weights]))
        terms = [domain.matmul(domain.combine(w), slots[x]) for x, w in weights_of.items()]
        return domain.guard(domain.add(*terms), self.reach, checked)

    def score_formula(self, number: str = "") -> str:
        """Return the score in words, such as "<w, x_i> + b"."""
        terms = []
        for weights, inputs, factor in self.products():
            product = weights if inputs == ONE else f"<{weights}, {inputs}{number}>"
            terms.append(product if factor == 1 else f"{factor:g} {product}")
        return " + ".join(terms)


@dataclass(frozen=True)
class DescendExamples(Descent):
    """Add `scale * share * sum_i (mean_i - label_i) inputs_i` to the `weights`.

    Attention averages over all tokens, so the slot `tokens` holds n_tokens times the share of an
    example: it is `tokens_per_example` for the mean over examples, and `n_tokens` for their sum.

    Two heads multiply the inputs, their values, by relu(s) - relu(-s) = s, where
    s = tokens * (mean - label). On queries s and -s are lowered by `gate`, which is larger than any
    mean minus any label, so that both relus are 0.
    """

    mean: Read
    label: Read
    inputs: tuple[Read, ...]
    weights: tuple[Accumulated, ...]
    tokens: Read
    gate: float
    scale: float
    kind = LayerKind.ATTENTION
    constants = (IS_QUERY,)

    def __post_init__(self) -> None:
        self.require_pairs()
        if self.tokens not in (TOKENS_PER_EXAMPLE, N_TOKENS):
            raise ProgramError(
                f"DescendExamples: reads the share of an example in {self.tokens!r}, expected "
                f"{TOKENS_PER_EXAMPLE} or {N_TOKENS}."
            )

    def share(self, n_examples: int) -> float:
        """Return 1 for a sum, or 1 / n_examples for a mean."""
        return 1.0 if self.tokens == N_TOKENS else 1 / n_examples

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        left = domain.combine([(1.0, slots[self.mean]), (-1.0, slots[self.label])])
        return self.descended(left, slots, domain, mean=self.tokens != N_TOKENS)

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query tokens, key +-(mean - label) - gate * is_query, value inputs."""
        layout = program.layout
        return Heads(
            axes={"sign": 2},
            query=(Wire(self.tokens),),
            key=(
                Wire(self.mean, factor=SIGN),
                Wire(self.label, factor=(-1.0, SIGN)),
                Wire(IS_QUERY, factor=-self.gate),
            ),
            value=side_by_side(self.inputs, layout),
            output=side_by_side(self.weights, layout, (self.scale, SIGN)),
            label=f"the gradient in {', '.join(self.weights)}, where {{sign}}({self.mean} - "
            f"{self.label}) > 0",
        )

    def formula(self) -> str:
        inputs = ", ".join(f"{name}_i" if name != ONE else "1" for name in self.inputs)
        scale = f"{self.scale:g}" if self.tokens == N_TOKENS else f"{self.scale:g} / n"
        left = f"({self.mean}_i - {self.label}_i) ({inputs})"
        return f"{', '.join(self.weights)} += {scale} * sum_i {left}"


class Mirrored(Descent):
    r"""A step by softmax attention alone, in which every example has a share of 1 / n.

    Every column has a mirror image, in which all numbers that a head reads are negated. A head
    whose score is z_i at example i, and so -z_i at its mirror image, returns

        sum_i sinh(z_i) inputs_i / sum_i cosh(z_i)

    With z_i = k left_i this is an odd function F of k, whose slope at 0 is the mean of left_i
    inputs_i. Heads m = 1 .. n_heads have k = m * probe, and factors a_m with
    sum_m a_m m^(2j+1) = [j = 0] / probe, which cancel all powers below probe^(2 n_heads).

    On queries and their mirror images left_i is lowered by `gate`, which is so large that softmax
    gives them weights of exactly 0.
    """

    label: str
    n_heads: int
    probe: float
    gate: float
    kind = LayerKind.MIRROR
    constants = (ONE, IS_QUERY)

    def __post_init__(self) -> None:
        self.require_pairs()
        if self.n_heads < 1 or not self.probe > 0:
            raise ProgramError(
                f"{type(self).__name__}: has {self.n_heads} heads with a probe of {self.probe:g}; "
                "expected at least one head and a positive probe."
            )

    def share(self, n_examples: int) -> float:
        return 1 / n_examples

    @property
    def gains(self) -> tuple[float, ...]:
        """The factor a_m of each head: Lagrange's at 0 for the nodes m^2, over m * probe."""
        heads = range(1, self.n_heads + 1)
        return tuple(
            prod(j * j / (j * j - m * m) for j in heads if j != m) / (m * self.probe) for m in heads
        )

    @property
    def spread(self) -> float:
        """A bound on the ratio of the sizes of the heads' terms to those of the mean's terms."""
        shares = (m * self.probe * abs(gain) for m, gain in enumerate(self.gains, start=1))
        return sinh(RADIUS) / RADIUS * sum(shares)

    def truncation(self, largest: Any) -> Any:
        """Bound the error as a share of the mean of |left_i inputs_i|, where |left_i| <= `largest`.

        For complex k with |k| largest <= r < pi / 2 the real part of cosh(k left_i) is at least
        cos(r), and |sinh(k left_i)| <= sinh(r) |left_i| / largest. So by Cauchy's estimate the
        coefficient of k^(2j+1) in F is at most (largest / r)^(2j) sinh(r) / (r cos(r)) times that
        mean. The heads multiply it by sum_m a_m m^(2j+1) probe^(2j+1), which for j >= n_heads is,
        up to its sign, a complete symmetric polynomial of all (m probe)^2 times their product; the
        generating function of these polynomials sums over all j.
        """
        total = sinh(RADIUS) / (RADIUS * cos(RADIUS))
        for m in range(1, self.n_heads + 1):
            square = (m * self.probe / RADIUS * largest) ** 2
            total = total * square / (1 - square).clamp(min=0.0)
        return total

    def heads(
        self, layout: Layout, query: tuple[Wire, ...], key: tuple[Wire, ...], of: str
    ) -> Heads:
        """Return heads with the scores m * probe * (query . key - label)."""
        multiples = tuple(m * self.probe for m in range(1, self.n_heads + 1))
        gains, probes = (AxisFactor(("multiple",), numbers) for numbers in (self.gains, multiples))
        read = (*(wire.slot for wire in key), self.label, *self.inputs)
        return Heads(
            axes={"multiple": self.n_heads},
            query=(
                *(replace(wire, factor=(*factors_in(wire.factor), probes)) for wire in query),
                Wire(ONE, feature=-1, factor=probes),
            ),
            key=(
                *key,
                Wire(self.label, feature=-1, factor=-1.0),
                Wire(IS_QUERY, feature=-1, factor=-self.gate),
            ),
            value=side_by_side(self.inputs, layout),
            output=side_by_side(self.weights, layout, (self.scale, gains)),
            label=f"the gradient in {', '.join(self.weights)}, from {{multiple}} times {of}",
            mirrored=tuple(dict.fromkeys(read)),
        )

    def descent_formula(self, left: str) -> str:
        """Return the step as text, with `left` for the residuals, and its number of heads."""
        inputs = ", ".join(f"{name}_i" if name != ONE else "1" for name in self.inputs)
        step = f"{', '.join(self.weights)} += {self.scale:g} / n * sum_i ({left}) ({inputs})"
        return f"{step}, by {counted(self.n_heads, 'mirrored head')}"


RADIUS = 1.25
"""The radius r in `Mirrored.truncation`, below pi / 2."""


@dataclass(frozen=True)
class DescendMirrored(Mirrored):
    """Add `scale / n * sum_i (mean_i - label_i) inputs_i` to the `weights`, by mirror attention."""

    mean: Read
    label: Read
    inputs: tuple[Read, ...]
    weights: tuple[Accumulated, ...]
    n_heads: int
    probe: float
    gate: float
    scale: float

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        left = domain.combine([(1.0, slots[self.mean]), (-1.0, slots[self.label])])
        return self.descended(left, slots, domain)

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query m * probe, key mean - label - gate * is_query, value inputs."""
        mean = (Wire(self.mean, feature=-1),)
        return self.heads(program.layout, (), mean, f"{self.mean} - {self.label}")

    def formula(self) -> str:
        return self.descent_formula(f"{self.mean}_i - {self.label}_i")


@dataclass(frozen=True)
class DecaySlot(Instruction):
    """Add `decay` times the first column's `slot` to the slot of every column.

    One head with one token, which is that column, computes it.
    """

    slot: Changed
    decay: float
    kind = LayerKind.GRID
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {self.slot: domain.combine([(1 + self.decay, slots[self.slot])])}

    def wires(self, program: AbstractProgram) -> Heads:
        """Return a head with one token, which is the first column itself."""
        entries = Wire(self.slot, ("entry",), "entry")
        return Heads(
            axes={},
            query=(Wire(ONE, feature=-1),),
            key=(),
            value=(entries,),
            output=(replace(entries, factor=self.decay),),
            label=f"{self.slot}, {self.decay:g} times itself",
            grid=FIRST_COLUMN,
        )

    def formula(self) -> str:
        return f"{self.slot} += {self.decay:g} * {self.slot}"


@dataclass(frozen=True)
class LookUp:
    """factor * function(score * <w, x_i> + label * y_i), which a head of example i returns.

    If `is_slope`, it is instead the slope of a loss that is no function of one such number: the
    `function` has the name of the loss, and two arguments, <w, x_i> and y_i.
    """

    function: Evaluated
    score: float
    label: float
    factor: float = 1.0
    is_slope: bool = False

    def value(self, score: Value, label: Value, domain: StackDomain[Value]) -> Value:
        """Return the function's value at every token, without the factor."""
        if self.is_slope:
            return domain.loss_slope(self.function, score, label)
        argument = domain.combine([(self.score, score), (self.label, label)])
        return domain.apply(self.function, argument, by="grid")

    def formula(self, score: str, label: str) -> str:
        """Return the function of its argument as text, without the factor."""
        if self.is_slope:
            return f"u({score}, {label}_i), u(t, y) = {self.function}"
        terms = [
            {1.0: f"+ {name}", -1.0: f"- {name}"}.get(factor, f"{factor:+g} {name}")
            for factor, name in ((self.score, score), (self.label, f"{label}_i"))
            if factor
        ]
        argument = " ".join(terms).removeprefix("+ ")
        return argument if self.function == IDENTITY else f"{self.function}({argument})"


@dataclass(frozen=True)
class DescendByExample(Descent, Scored):
    """Add `scale * sum_i left_i inputs_i` to the `weights`, left_i the sum of the `look_ups`.

    Also add `decay` times the first of the weights to itself, by a head that attends to one column.
    Each look-up has a head for each of `n_examples` examples: the tokens of head i are multiples of
    column i, the query of every column holds its own weights, and the values hold inputs_i.
    """

    look_ups: tuple[LookUp, ...]
    label: Read
    inputs: tuple[Read, ...]
    weights: tuple[Changed, ...]
    n_examples: int
    reach: float
    scale: float
    decay: float = 0.0
    kind = LayerKind.GRID
    constants = (ONE,)

    def __post_init__(self) -> None:
        self.require_pairs()
        if self.n_examples < 1:
            raise ProgramError(
                f"DescendByExample: has heads for {self.n_examples} examples, expected at least 1."
            )

    def share(self, n_examples: int) -> float:
        """Return 1: the scale includes the number of examples."""
        return 1.0

    def products(self) -> tuple[tuple[str, str, float], ...]:
        return tuple((w, x, 1.0) for w, x in zip(self.weights, self.inputs, strict=True))

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        score, label = self.score(slots, domain, IS_EXAMPLE), slots[self.label]
        left = domain.combine(
            [(look_up.factor, look_up.value(score, label, domain)) for look_up in self.look_ups]
        )
        left = domain.as_read(self, left, score, label)
        first = self.weights[0]
        decayed = domain.combine([(1 + self.decay, slots[first])])
        return self.descended(left, {**slots, first: decayed}, domain, mean=False)

    def own_error(self, bounds: Any, value: Any, score: Any, label: Any) -> Any:
        """Add the rounding of the scores and of the sums over tokens."""
        for look_up in self.look_ups:
            sizes, labels = abs(look_up.score) * score.sizes, abs(look_up.label) * label.sizes
            terms = (sizes, labels) if look_up.is_slope else (sizes + labels,)
            error = bounds.grid_error(look_up.function, score.n_terms + 2, *terms)
            value = value.perturbed(abs(look_up.factor) * error)
        return value

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query [score * w; 1], keys points[g] [x_i; label * y_i] + offsets[g], values of x_i."""
        layout, heads = program.layout, list[Heads]()
        for look_up in self.look_ups:
            fit, one = program.grid_mean(look_up.function), Wire(ONE, feature=-1)
            label = (Wire(self.label, feature=-1, factor=look_up.label),) * bool(look_up.label)
            query = side_by_side(self.weights, layout, look_up.score) if look_up.score else ()
            key = side_by_side(self.inputs, layout) if look_up.score else ()
            heads.append(
                Heads(
                    axes={"example": self.n_examples},
                    query=(*query, one),
                    key=(*key, *label),
                    value=side_by_side(self.inputs, layout),
                    output=side_by_side(self.weights, layout, look_up.factor * self.scale),
                    label=f"example {{example}}, {look_up.formula(self.score_formula('_i'), 'y')}",
                    grid=Grid(
                        fit.points,
                        fit.offsets,
                        fit.values,
                        own_column=True,
                        label_points=fit.label_points,
                    ),
                )
            )
        if self.decay:
            heads.append(DecaySlot(self.weights[0], self.decay).wires(program))
        return heads

    def formula(self) -> str:
        inputs = ", ".join(f"{name}_i" if name != ONE else "1" for name in self.inputs)
        score = self.score_formula("_i")
        terms = [
            f"{'-' if look_up.factor < 0 else '+'} {look_up.formula(score, self.label)}"
            for look_up in self.look_ups
        ]
        left = " ".join(terms).removeprefix("+ ")
        decay = f"; {self.weights[0]} += {self.decay:g} * {self.weights[0]}" if self.decay else ""
        return f"{', '.join(self.weights)} += {self.scale:g} * sum_i ({left}) ({inputs}){decay}"


@dataclass(frozen=True)
class PredictMean(Scored):
    """Set `write = mean(<weights, inputs>)` at every token; the head's grid holds the weights.

    The `factors`, if given, multiply the products: with momentum the score is that of the weights
    plus a share of their velocity. A run stops if a score exceeds `reach` at a token with the flag
    `checked`. With `n_examples` the columns of the examples are left out: only queries are written
    to.
    """

    mean: Evaluated
    weights: tuple[Read, ...]
    inputs: tuple[Read, ...]
    reach: float
    checked: str
    write: Written
    factors: tuple[float, ...] = ()
    n_examples: int = 0
    kind = LayerKind.GRID
    constants = (ONE,)

    @property
    def only_where(self) -> str | None:
        """The flag of the tokens that it writes to, or None if it writes to all."""
        return IS_QUERY if self.n_examples else None

    def __post_init__(self) -> None:
        n_factors = len(self.factors or self.weights)
        if not len(self.weights) == len(self.inputs) == n_factors:
            raise ProgramError(
                f"PredictMean: has {len(self.weights)} weights, {len(self.inputs)} inputs and "
                f"{n_factors} factors, expected as many of each."
            )

    def products(self) -> tuple[tuple[str, str, float], ...]:
        factors = self.factors or (1.0,) * len(self.weights)
        return tuple(zip(self.weights, self.inputs, factors, strict=True))

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        score = self.score(slots, domain, self.checked)
        mean = domain.as_read(self, domain.apply(self.mean, score, by="grid"), score)
        if self.n_examples:
            mean = domain.where(IS_QUERY, (IS_EXAMPLE,), mean, slots[self.write])
        return {self.write: mean}

    def own_error(self, bounds: Any, value: Any, score: Any) -> Any:
        """Add the rounding of the scores and of the sums over tokens."""
        return value.perturbed(bounds.grid_error(self.mean, score.n_terms + 1, score.sizes))

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query the column's own inputs, keys the weights in the first column."""
        layout, mean = program.layout, program.grid_mean(self.mean)
        factors = [factor for _, _, factor in self.products()]
        return Heads(
            axes={},
            query=(*side_by_side(self.inputs, layout), Wire(ONE, feature=-1)),
            key=side_by_side(self.weights, layout, *factors),
            value=(Wire(ONE),),
            output=(Wire(self.write),),
            label=f"{self.write}, the mean {self.mean}",
            grid=Grid(mean.points, mean.offsets, mean.values, first=self.n_examples),
        )

    def formula(self) -> str:
        where = f" from column {self.n_examples + 1} on" if self.n_examples else ""
        return f"{self.write} = {self.mean}({self.score_formula()}){where}"


@dataclass(frozen=True)
class MoveByVelocity(Instruction):
    """Move `slot` by `momentum` times its `velocity`, minus weight decay at the look-ahead point.

    velocity = momentum * velocity - decay * (slot + ahead * velocity)
    slot    += velocity

    One head with one token, which is the first column, computes it.
    """

    slot: Changed
    velocity: Changed
    momentum: float
    ahead: float
    decay: float
    kind = LayerKind.GRID
    constants = (ONE,)

    @property
    def velocity_factor(self) -> float:
        """The factor of the velocity in the change of the slot."""
        return self.momentum - self.decay * self.ahead

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        slot, terms = slots[self.slot], [(self.velocity_factor, slots[self.velocity])]
        velocity = domain.combine([*terms, (-self.decay, slot)] if self.decay else terms)
        return {self.velocity: velocity, self.slot: domain.add(slot, velocity)}

    def wires(self, program: AbstractProgram) -> Heads:
        """Return a head that reads weights and velocity of the first column, and adds to both."""
        width, factor, decay = program.layout.width_of(self.slot), self.velocity_factor, self.decay
        return Heads(
            axes={},
            query=(Wire(ONE, feature=-1),),
            key=(),
            value=side_by_side((self.slot, self.velocity), program.layout),
            output=(
                Wire(self.slot, ("entry",), "entry", -decay),
                Wire(self.velocity, ("entry",), "entry", -decay),
                Wire(self.slot, ("entry",), "entry", factor, width),
                Wire(self.velocity, ("entry",), "entry", factor - 1, width),
            ),
            label=f"{self.slot} and {self.velocity}, moved on",
            grid=FIRST_COLUMN,
        )

    def formula(self) -> str:
        decay = f" - {self.decay:g} {self.slot}" if self.decay else ""
        moved = f"{self.velocity} = {self.velocity_factor:g} {self.velocity}{decay}"
        return f"{moved}; {self.slot} += {self.velocity}"


@dataclass(frozen=True)
class DescendSquares(Mirrored, Scored):
    """Add `scale / n * sum_i (score_i - label_i) inputs_i` to the `weights`, after the `moves`.

    The score is the sum of <weights, inputs_i>, each times its factor. The heads compute it in
    their own scores, so that one layer of mirror attention is a step of least squares. A run stops
    if a score exceeds `reach`. The moves attend to the first column: see `of_first_column`.
    """

    label: Read
    inputs: tuple[Read, ...]
    weights: tuple[Changed, ...]
    factors: tuple[float, ...]
    n_heads: int
    probe: float
    gate: float
    reach: float
    scale: float
    moves: tuple[DecaySlot | MoveByVelocity, ...] = ()

    @property
    def constants(self) -> tuple[Read, ...]:  # type: ignore[override]
        return (ONE, IS_QUERY, IS_FIRST) if self.moves else (ONE, IS_QUERY)

    def products(self) -> tuple[tuple[str, str, float], ...]:
        products = zip(self.weights, self.inputs, self.factors, strict=True)
        return tuple(product for product in products if product[-1])

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        score = self.score(slots, domain, IS_EXAMPLE)
        left = domain.combine([(1.0, score), (-1.0, slots[self.label])])
        moved = dict(slots)
        for move in self.moves:
            moved |= move.meaning(slots, domain)
        return self.descended(left, moved, domain)

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query m * probe * [weights; 1], key [inputs; -label - gate * is_query], value inputs."""
        weights, inputs, factors = zip(*self.products(), strict=True)
        query = side_by_side(weights, program.layout, *factors)
        key = side_by_side(inputs, program.layout)
        left = f"{self.score_formula()} - {self.label}"
        moves = (of_first_column(move.wires(program)) for move in self.moves)
        return [self.heads(program.layout, query, key, left), *moves]

    def formula(self) -> str:
        descent = self.descent_formula(f"{self.score_formula('_i')} - {self.label}_i")
        return "; ".join([*(move.formula() for move in self.moves), descent])


def of_first_column(heads: Heads) -> Heads:
    """Return heads of mirror attention that replace heads whose grid is the first column itself.

    The column's mirror image and all other tokens have such low scores that their weights are 0.
    """
    return replace(
        heads,
        query=(Wire(ONE, feature=-1, factor=MASKED),),
        key=(Wire(IS_FIRST, feature=-1),),
        grid=None,
        mirrored=(IS_FIRST, *(wire.slot for wire in heads.value)),
    )


class Shrinks(Instruction):
    """Move every coordinate w of `slot` towards 0 by `threshold`, at most to 0, then clip it.

    With t = `threshold` and b = `bound` the result is w - clip(w, t) - relu(w - t - b) +
    relu(-w - t - b), which takes six ReLUs for each coordinate, or four without a bound.
    """

    slot: Changed
    threshold: float
    bound: float | None
    kind = LayerKind.MLP
    constants = (ONE,)

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise ProgramError(
                f"{type(self).__name__}: shrinks {self.slot} by {self.threshold:g}, expected at "
                "least 0."
            )

    def shrunk(self, value: Value, domain: StackDomain[Value]) -> Value:
        """Return the value moved towards 0, then clipped."""
        if self.threshold:
            clipped = domain.clip(value, self.threshold)
            value = domain.combine([(1.0, value), (-1.0, clipped)])
        return value if self.bound is None else domain.clip(value, self.bound)

    def pieces(self) -> tuple[tuple[float, float], ...]:
        """Return the starting point and the sign of each pair of ReLUs."""
        ends = (0.0, 1.0), (self.threshold, -1.0)
        return ends if self.bound is None else (*ends, (self.threshold + self.bound, 1.0))

    def units(self, layout: Layout, *also: str) -> Wiring:
        """Return units -sign relu(w - begin) and sign relu(-w - begin), also written to `also`."""
        return tuple(
            units
            for number, (begin, sign) in enumerate(self.pieces(), start=1)
            for units in relu_pairs(
                layout,
                (self.slot,),
                f"shrink and clip, piece {number}:",
                gain=-sign,
                lowered_by=(Wire(ONE, factor=-begin),),
                also=also,
            )
        )


@dataclass(frozen=True)
class ShrinkSlot(Shrinks):
    """Move every coordinate of `slot` towards 0 by `threshold`, at most to 0, then clip it."""

    slot: Changed
    threshold: float
    bound: float | None

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {self.slot: self.shrunk(slots[self.slot], domain)}

    def wires(self, program: AbstractProgram) -> Wiring:
        return self.units(program.layout)

    def formula(self) -> str:
        clipped = "" if self.bound is None else f", clip to [-{self.bound:g}, {self.bound:g}]"
        return f"shrink {self.slot} by {self.threshold:g}{clipped}"


@dataclass(frozen=True)
class ShrinkMoved(Shrinks):
    """Shrink every coordinate of `slot` by `threshold`, clip it, and add the change to `velocity`.

    Without a threshold it takes only two ReLUs for each coordinate.
    """

    slot: Changed
    velocity: Changed
    threshold: float
    bound: float

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        before, velocity = slots[self.slot], slots[self.velocity]
        after = self.shrunk(before, domain)
        moved = domain.combine([(1.0, after), (-1.0, before)])
        return {self.slot: after, self.velocity: domain.add(velocity, moved)}

    def pieces(self) -> tuple[tuple[float, float], ...]:
        return super().pieces() if self.threshold else ((self.bound, 1.0),)

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units that write to both slots."""
        return self.units(program.layout, self.velocity)

    def formula(self) -> str:
        shrunk = f"shrink {self.slot} by {self.threshold:g}, " if self.threshold else ""
        clipped = f"clip {self.slot} to [-{self.bound:g}, {self.bound:g}]"
        return f"{shrunk}{clipped}; {self.velocity} likewise"
