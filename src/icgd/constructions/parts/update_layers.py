r"""The end of a step: what an optimiser makes of the gradient, in every stack.

Plain descent adds the gradient to the weights at once, and clips them. All other rules
(`problems/optimisers/rule.py`) keep it in slots of its own, and one MLP layer sets weights and
state to their combinations:

    MLP   weights = clip(sum of coefficient * slot), state = sum of coefficient * slot, wipe

A rule with a root takes three layers more:

    product   square = gradient * gradient
    MLP       root = 1 / (sqrt(sum) + eps), a sum of ReLUs; state = sum of coefficient * slot
    product   scaled = factor * root

The average of the weights, if there is one, moves in the last layer too, and costs no layer.

Only these layers may differ from step to step. In a step on a batch the last layer also counts on
to the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from icgd.constructions.base import require_few_steps
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.mlp import MLP
from icgd.problems.optimisers.gradient_step import AVERAGE, AbstractGradientStep
from icgd.problems.optimisers.rule import GRADIENT, SCALED, SQUARE, WEIGHTS, Root, Rule, Sum
from icgd.problems.roots import reciprocal_root
from icgd.program import instructions as verbs
from icgd.program.instructions import ONE, Combination, Summand
from icgd.program.layout import Role, Slot
from icgd.program.program import Layer
from icgd.program.update_instructions import (
    N_EXAMPLES,
    OUT_OF_BATCH,
    PLACE,
    Assignment,
    Recombine,
    TakeTurns,
)

ROOT = "root"

MOST_SUMS = 10**5
"""The most sums that the ends of all steps are made of; more take minutes and gigabytes."""


@dataclass(frozen=True)
class UpdateLayers:
    """The layers after the backward pass; bounds of weights are multiplied by slot `unit`."""

    target: MLP
    update: AbstractGradientStep
    unit: str = ONE

    @property
    def is_plain(self) -> bool:
        """Whether the gradient may be added to the weights at once."""
        return self.update.is_plain

    @property
    def predicting(self) -> str:
        """Which weights predict: their average, if there is one."""
        return WEIGHTS if self.update.average is None else AVERAGE

    @property
    def has_root(self) -> bool:
        return self.update.has_root

    def gradient_slot(self, layer: int) -> str:
        """Where the gradient of a layer's weights goes."""
        return f"{WEIGHTS if self.is_plain else GRADIENT}_{layer}"

    @property
    def gradient_scale(self) -> float:
        """What the mean of slope times input is multiplied by."""
        return (-self.update.size_of(0) if self.is_plain else self.update.gradient_factor) / 2

    def slots(self) -> tuple[Slot, ...]:
        """The state, what is computed on the way, and whose turn it is."""
        shared = [] if self.is_plain else [GRADIENT]
        shared += [SQUARE, ROOT, SCALED] if self.has_root else []
        turns = () if self.update.batch_size is None else (PLACE, OUT_OF_BATCH)
        return (
            *self._matrices(self.update.remembered, Role.PARAMETER),
            *self._matrices(shared, Role.SHARED),
            *(Slot(name, (1,), Role.TURN) for name in turns),
        )

    def _matrices(self, kinds: Iterable[str], role: Role) -> list[Slot]:
        shapes = list(enumerate(self.target.matrix_shapes, start=1))
        return [Slot(f"{kind}_{layer}", shape, role) for kind in kinds for layer, shape in shapes]

    @property
    def constants(self) -> tuple[str, ...]:
        """The constant slots that it reads besides those of all constructions."""
        return () if self.update.batch_size is None else (N_EXAMPLES,)

    @property
    def closed_by(self) -> tuple[str, ...]:
        """The flags of examples that do not take part in a step."""
        return () if self.update.batch_size is None else (OUT_OF_BATCH,)

    def decayed(self) -> tuple[verbs.Instruction, ...]:
        """What fills the gradient with weight decay before the examples add to it.

        A linear rule has the decay among its coefficients instead.
        """
        decay = self.update.rule(0).decay
        if not self.has_root or not decay:
            return ()
        return tuple(
            _mapped(
                Combination((f"{WEIGHTS}_{layer}",), (decay,)),
                IDENTITY_FUNCTION.name,
                f"{GRADIENT}_{layer}",
            )
            for layer in self._layers
        )

    @property
    def _layers(self) -> range:
        return range(1, self.target.depth + 1)

    def schedule(self, n_steps: int, scratch: tuple[str, ...]) -> tuple[tuple[Layer, ...], ...]:
        """The ends of all steps, if they differ."""
        if self.update.is_constant:
            return ()
        self.update.require_steps(n_steps)
        require_few_ends(self.update, n_steps, self.target.depth)
        return tuple(self.end(step, scratch) for step in range(n_steps))

    def end(self, step: int, scratch: tuple[str, ...]) -> tuple[Layer, ...]:
        """The layers of a step after the gradient; the last of them wipes `scratch`."""
        wiped = (*scratch, *(slot.name for slot in self.slots() if slot.role is Role.SHARED))
        rule = self.update.rule(step)
        before: tuple[Layer, ...] = ()
        if rule.root is not None:
            before = self._root_layers(rule, rule.root, step)
        last = (*self._moved(rule, step), verbs.WipeSlots(wiped), *self._turns())
        return (*before, Layer("clip and wipe" if self.is_plain else "update", last))

    def _moved(self, rule: Rule, step: int) -> tuple[verbs.Instruction, ...]:
        if self.is_plain:
            weights = tuple(f"{WEIGHTS}_{layer}" for layer in self._layers)
            return (verbs.ClipSlots(weights, self.update.box, self.unit),)
        sums = {WEIGHTS: rule.weights} if rule.root is not None else rule.linear
        return (self._recombined(sums, step),)

    def _recombined(self, sums: dict[str, Sum], step: int) -> Recombine:
        return Recombine(
            tuple(
                self._assigned(kind, terms, layer, step)
                for layer in self._layers
                for kind, terms in sums.items()
            ),
            self.unit,
        )

    def _assigned(self, kind: str, terms: Sum, layer: int, step: int) -> Assignment:
        """A slot as a sum of others; weights are clipped, and may be averaged."""
        value, write, update = _of_layer(terms, layer), f"{kind}_{layer}", self.update
        if kind != WEIGHTS:
            return Assignment(value, write)
        if update.average is None:
            return Assignment(value, write, update.box)
        average, keeps = f"{AVERAGE}_{layer}", update.kept_of_average(step)
        return Assignment(value, write, update.box, average, keeps)

    def _root_layers(self, rule: Rule, root: Root, step: int) -> tuple[Layer, ...]:
        function = reciprocal_root(root.eps).name
        squares = [
            verbs.MultiplySlots(f"{GRADIENT}_{j}", f"{GRADIENT}_{j}", f"{SQUARE}_{j}")
            for j in self._layers
        ]
        roots = [
            _mapped(_of_layer(root.argument, j), function, f"{ROOT}_{j}") for j in self._layers
        ]
        products = [
            verbs.MultiplySlots(f"{root.factor}_{j}", f"{ROOT}_{j}", f"{SCALED}_{j}")
            for j in self._layers
        ]
        return (
            Layer("squares", tuple(squares)),
            Layer("moments", (*roots, self._recombined(dict(rule.state), step))),
            Layer("direction", tuple(products)),
        )

    def _turns(self) -> tuple[verbs.Instruction, ...]:
        size = self.update.batch_size
        return () if size is None else (TakeTurns(size, PLACE, OUT_OF_BATCH, N_EXAMPLES),)


def require_few_ends(update: AbstractGradientStep, n_steps: int, n_sums: int) -> None:
    """Raise `SettingError` if steps differ that are too many to be written down.

    There are `n_sums` sums of weights in each of them, and as many of all that is remembered.
    """
    require_few_steps(update, n_steps, MOST_SUMS // (n_sums * (1 + len(update.remembered))))


def _of_layer(terms: Sum, layer: int) -> Combination:
    """A sum of quantities as a combination of a layer's slots."""
    return Combination(tuple(f"{name}_{layer}" for name in terms), tuple(terms.values()))


def _mapped(argument: Combination, function: str, write: str) -> verbs.MapSlots:
    return verbs.MapSlots((Summand(argument, function),), ONE, (), 0.0, write)
