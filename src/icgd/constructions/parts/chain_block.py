"""The layers of the block that writes a chain, and the rows of what it writes.

What a network does not need is left out: without smooth activations there is no slope to look up
and no layer that multiplies by it, and without look-ups and biases no unit has to be closed. The
shares of classes are read from z, so they too take the second attention layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from icgd.problems.activations import Activation
from icgd.problems.optimisers import GRADIENT, WEIGHTS, Rule, Sum
from icgd.program import chain
from icgd.program import chain_instructions as verbs
from icgd.program.chain import FAR, KINKED, LINEAR, NEAR, OUT, bit_slots, row_of
from icgd.program.chain_instructions import CopyWhere, MultiplyEntries, MultiplyMatrices
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import IDENTITY, ONE, Combination, Instruction
from icgd.program.layout import Layout, Role, Slot
from icgd.program.network_instructions import class_slot
from icgd.program.program import Layer
from icgd.program.registers import OFFSET, value_slot

NEAR_FORWARD, NEAR_BACKWARD = row_of(NEAR, chain.IS_FORWARD), row_of(NEAR, chain.IS_BACKWARD)
FAR_FORWARD, FAR_BACKWARD = row_of(FAR, chain.IS_FORWARD), row_of(FAR, chain.IS_BACKWARD)
FAR_DATA = row_of(FAR, chain.IS_DATA)

FORWARD = (NEAR_BACKWARD, FAR_DATA)
BACKWARD = (NEAR_FORWARD, FAR_DATA)
FROM_X = (NEAR_FORWARD, FAR_FORWARD, FAR_BACKWARD)
FROM_Y = (NEAR_BACKWARD, FAR_FORWARD, FAR_BACKWARD)
"""The flags that close what is meant for one kind of step: all are 0 on [F; B], [B; F], [B; X] and
[F; Y] in turn, and one is 1 on each of the other three."""

SHARES = "shares"
"""The slot of softmax(z), the shares of classes."""


@dataclass(frozen=True)
class LossSlope:
    """u = clip(prediction * row - label * y), where the row is o_N or taken from z_N.

    What is taken from z_N is a `function` of it, or the shares of `n_classes` classes.
    """

    prediction: float
    label: float
    function: str | None = None
    bound: float | None = None
    n_classes: int = 0

    @property
    def row(self) -> str:
        """The row of F_N that it is taken from."""
        return "part" if self.part else "first"

    @property
    def part(self) -> str | None:
        """The slot of what is taken from z_N."""
        if self.n_classes:
            return SHARES
        return of_z(self.function) if self.function else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The constant slots of the classes."""
        return tuple(class_slot(number) for number in range(1, self.n_classes + 1))


@dataclass(frozen=True)
class Reaches:
    """Largest sizes that grids cover: of z = W o, of delta, of W^T delta and of delta o^T."""

    forward: float
    delta: float
    backward: float
    gradient: float


@dataclass(frozen=True)
class ChainBlock:
    """Everything that the layers are made from."""

    width: int
    batch_size: int
    rules: tuple[Rule, ...]
    gradient_factor: float
    box: float
    leak: float
    kink_width: float
    smooth: tuple[Activation, ...]
    look_ups: tuple[LatticeFunction, ...]
    loss: LossSlope
    has_biases: bool
    reaches: Reaches
    gate: float

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The flags that say what the units of a layer do."""
        return (LINEAR, KINKED, *(activation.name for activation in self.smooth))

    @cached_property
    def padding(self) -> tuple[str, ...]:
        """The rows that tell padded units from others, if those would not stay 0."""
        constant = (chain.CONSTANT,) * self.has_biases
        return (chain.PADDING, *constant) if self.look_ups or self.has_biases else ()

    @cached_property
    def state(self) -> tuple[str, ...]:
        """What the optimiser remembers, a row for each."""
        return tuple(self.rules[0].state)

    @cached_property
    def bits(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The flags of the bits of a rule's number; none if there is one rule only."""
        return bit_slots((len(self.rules) - 1).bit_length())

    @property
    def code(self) -> tuple[str, ...]:
        return (*self.bits[0], *self.bits[1])

    def rows(self) -> Layout:
        """The rows of every block."""
        return Layout(self._block(""))

    def layout(self) -> Layout:
        """The stream of one step: the blocks that it reads, what it computes, what it writes."""
        matrices = [("inputs", self._data), ("carried", self._data)]
        matrices += [(name, self._square) for name in (WEIGHTS, *self.state)]
        if self.smooth:
            matrices += [("up", self._data), ("slope", self._data)]
        matrices += [("delta", self._data), ("z", self._data), (chain.BACK, self._data)]
        matrices += [("outer", self._square)]
        matrices += [(name, self._data) for name in self._looked_up()]
        matrices += [(SHARES, self._data)] * bool(self.loss.n_classes)
        matrices += [(name, (self.width, 1)) for name in self.padding]
        flags = (*self.kinds, "forward", "backward", *self.code)
        values = (value_slot(name) for name in (IDENTITY, *(fit.name for fit in self.look_ups)))
        classes = (*self.loss.classes, verbs.NO_CLASS) if self.loss.n_classes else ()
        return Layout(
            (
                *self._block(f"{NEAR}."),
                *self._block(f"{FAR}."),
                *(Slot(name, shape, Role.SCRATCH) for name, shape in matrices),
                *(Slot(name, (1,), Role.SCRATCH) for name in flags),
                *self._block(f"{OUT}."),
                *(Slot(name, (1,), Role.CONSTANT) for name in (ONE, OFFSET, *values, *classes)),
            )
        )

    @property
    def _data(self) -> tuple[int, int]:
        return (self.width, self.batch_size)

    @property
    def _square(self) -> tuple[int, int]:
        return (self.width, self.width)

    def _looked_up(self) -> Iterable[str]:
        gated = [of_z(activation.name) for activation in self.smooth if activation.gate]
        return dict.fromkeys([*(of_z(fit.name) for fit in self.look_ups), *gated])

    def _block(self, prefix: str) -> tuple[Slot, ...]:
        flags = (*self.kinds, chain.IS_FORWARD, chain.IS_BACKWARD, chain.IS_DATA, *self.code)
        data = ["first", "second", "flat"]
        data += ["slope"] * bool(self.smooth) + ["part"] * bool(self.loss.part)
        return (
            *(Slot(prefix + name, self._data, Role.SCRATCH) for name in data),
            *(Slot(prefix + name, self._square, Role.PARAMETER) for name in (WEIGHTS, *self.state)),
            *(Slot(prefix + name, (self.width, 1), Role.SCRATCH) for name in self.padding),
            *(Slot(prefix + name, (1,), Role.SCRATCH) for name in flags),
        )

    def layers(self) -> tuple[Layer, ...]:
        """The layers of the block: three, or four with slopes that are looked up, or classes."""
        units, products = self.units(), self.products()
        middle = (
            [Layer("units", units), Layer("products", products)]
            if self.smooth or self.loss.n_classes
            else [Layer("products", (*units, *products))]
        )
        return (Layer("router", self.router()), *middle, Layer("next block", self.next_block()))

    def router(self) -> tuple[Instruction, ...]:
        """What the layer of units is given: by the flags of the two blocks."""
        opposite, ends = (FAR_DATA,), (FAR_FORWARD, FAR_BACKWARD)
        return (
            self.copy(row_of(NEAR, "first"), FORWARD, "inputs"),
            self.copy(row_of(FAR, "first"), FROM_X, "inputs"),
            self.copy(row_of(FAR, "second"), BACKWARD, "carried"),
            self.copy(row_of(NEAR, "second"), FROM_Y, "carried"),
            *(
                self.copy(row_of(block, name), closed_by, name)
                for name in (WEIGHTS, *self.state, *self.padding, *self.kinds)
                for block, closed_by in ((FAR, opposite), (NEAR, ends))
            ),
            *(
                self.copy(row_of(block, name), closed_by, name)
                for name in self.code
                for block, closed_by in ((NEAR, BACKWARD), (FAR, FROM_Y))
            ),
            *self.slopes(),
            self.copy(ONE, FORWARD, "forward"),
            self.copy(ONE, FROM_X, "forward"),
            self.copy(ONE, BACKWARD, "backward"),
            self.copy(ONE, FROM_Y, "backward"),
        )

    def slopes(self) -> tuple[Instruction, ...]:
        """What is passed back, times the slope of kinked units; and the slope of smooth ones."""
        loss = self.loss
        label = Combination(
            (row_of(NEAR, loss.row), row_of(FAR, "first")), (loss.prediction, -loss.label)
        )
        steps: list[Instruction] = [
            self.pass_back(Combination.of(row_of(NEAR, "second")), FAR, BACKWARD, None),
            self.pass_back(label, NEAR, FROM_Y, loss.bound),
        ]
        if self.smooth:
            steps += [
                self.copy(row_of(FAR, "slope"), BACKWARD, "slope"),
                self.copy(row_of(NEAR, "slope"), FROM_Y, "slope"),
            ]
        return tuple(steps)

    def units(self) -> tuple[Instruction, ...]:
        """z = W o and what is looked up of it; delta = r' * up."""
        reach = self.reaches.forward
        steps: list[Instruction] = [MultiplyMatrices("weights", "inputs", reach, "z")]
        steps += [
            verbs.LookUpProduct("weights", "inputs", reach, "z", fit.name, of_z(fit.name))
            for fit in self.look_ups
        ]
        if self.smooth:
            steps.append(MultiplyEntries("up", "slope", self.reaches.delta, "delta"))
        return tuple(steps)

    def products(self) -> tuple[Instruction, ...]:
        """delta o^T and W^T delta; z gate(z) for activations that grow like a line; shares of z."""
        reaches = self.reaches
        gated = [
            MultiplyEntries("z", of_z(activation.gate.name), reaches.forward, of_z(activation.name))
            for activation in self.smooth
            if activation.gate
        ]
        shares = [verbs.ShareColumns("z", self.loss.classes, SHARES)] * bool(self.loss.n_classes)
        return (
            MultiplyMatrices("delta", "carried", reaches.gradient, "outer", right_transposed=True),
            MultiplyMatrices(
                "weights", "delta", reaches.backward, chain.BACK, left_transposed=True
            ),
            *gated,
            *shares,
        )

    def next_block(self) -> tuple[Instruction, ...]:
        """The rows of the block that the step writes."""
        out = {name: row_of(OUT, name) for name in self.rows().names}
        no_forward, no_backward = ("forward",), ("backward",)
        smooth = self.others(LINEAR, KINKED)
        return (
            verbs.ActivateWhere(
                "z",
                KINKED,
                (*no_backward, *smooth, *self.padding[:1]),
                self.leak,
                self.gate,
                out["first"],
            ),
            *self.smooth_values(out),
            self.copy("delta", no_forward, out["first"]),
            self.copy("inputs", no_backward, out["second"]),
            self.copy(chain.BACK, no_forward, out["second"]),
            verbs.MarkFlat(
                "z", LINEAR, (*no_backward, *smooth), self.kink_width, self.gate, out["flat"]
            ),
            *self.looked_up_rows(out),
            *(self.copy(name, no_backward, out[name]) for name in (WEIGHTS, *self.state)),
            *self.updates(out),
            *(self.copy(name, (), out[name]) for name in (*self.padding, *self.kinds)),
            self.copy("forward", (), out[chain.IS_FORWARD]),
            self.copy("backward", (), out[chain.IS_BACKWARD]),
            *(self.copy(name, (), out[name]) for name in self.code),
        )

    def updates(self, out: dict[str, str]) -> tuple[Instruction, ...]:
        """New weights, clipped, and new state, by the one rule or by that of the round."""
        bounds = {WEIGHTS: self.box}
        return tuple(
            self.selected(
                tuple(self.moved(rule.linear[name]) for rule in self.rules),
                out[name],
                bounds.get(name),
            )
            for name in (WEIGHTS, *self.state)
        )

    def selected(
        self, sums: tuple[Combination, ...], write: str, bound: float | None
    ) -> Instruction:
        """The sum of the round's rule, which may be the same for all rules."""
        if len(set(sums)) == 1:
            return CopyWhere(sums[0], ("forward",), self.gate, write, bound)
        return verbs.SelectWhere(sums, *self.bits, ("forward",), self.gate, write, bound)

    def moved(self, terms: Sum) -> Combination:
        """A sum of weights, state and gradient, which is a multiple of delta o^T."""
        factors = dict(terms)
        gradient = factors.pop(GRADIENT) * self.gradient_factor
        factors["outer"] = gradient / (2 * self.batch_size)
        return Combination(tuple(factors), tuple(factors.values()))

    def smooth_values(self, out: dict[str, str]) -> tuple[Instruction, ...]:
        """o = r(z) of smooth layers, and the constant 1 that biases multiply."""
        steps = []
        for activation in self.smooth:
            parts = [of_z(part.name) for part in (activation.value, activation.rest) if part]
            source = Combination(tuple(parts), (1.0,) * len(parts))
            closed_by = ("backward", *self.others(activation.name), *self.padding[:1])
            steps.append(CopyWhere(source, closed_by, self.gate, out["first"]))
        if self.has_biases:
            steps.append(self.copy(chain.CONSTANT, ("backward",), out["first"]))
        return tuple(steps)

    def looked_up_rows(self, out: dict[str, str]) -> tuple[Instruction, ...]:
        """The slopes of smooth layers, 1 for others, and what the loss slope takes from z_N."""
        steps = [
            self.copy(
                of_z(activation.derivative.name),
                ("backward", *self.others(activation.name)),
                out["slope"],
            )
            for activation in self.smooth
        ]
        if self.smooth:
            steps.append(self.copy(ONE, ("backward", *self.others(LINEAR, KINKED)), out["slope"]))
        if self.loss.part:
            closed_by = ("backward", *self.others(LINEAR), *self.padding[:1])
            steps.append(self.copy(self.loss.part, closed_by, out["part"]))
        return tuple(steps)

    def others(self, *kinds: str) -> tuple[str, ...]:
        """The flags of all other kinds of layers, which close what is meant for these."""
        return tuple(kind for kind in self.kinds if kind not in kinds)

    def copy(self, source: str, closed_by: Sequence[str], write: str) -> CopyWhere:
        return CopyWhere(Combination.of(source), tuple(closed_by), self.gate, write)

    def pass_back(
        self, upstream: Combination, block: str, closed_by: Sequence[str], bound: float | None
    ) -> verbs.PassBack:
        flags = (*closed_by, *(row_of(block, name) for name in self.padding[:1]))
        write, flat = "up" if self.smooth else "delta", row_of(block, "flat")
        return verbs.PassBack(upstream, flat, flags, self.leak, self.gate, write, bound)


def of_z(function: str) -> str:
    """The slot of a function of z."""
    return f"{function} of z"
