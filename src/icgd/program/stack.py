"""Stack programs: a block of layers, repeated for every step, then layers that predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, log
from typing import Any, final

from icgd.errors import ConstructionError
from icgd.program import render
from icgd.program.functions import Function, LatticeFunction, RidgeSum
from icgd.program.instructions import AccumulateOuterProduct, AddGradient
from icgd.program.layout import (
    IS_MEMORY,
    IS_REGISTER,
    MASKED,
    OFFSET,
    SCALE,
    SCALE_SIGN,
    SCALE_SIZE,
    SHARE,
    SINK,
    Layout,
    Role,
    value_slot,
)
from icgd.program.linear_instructions import DescendByExample, Descent, PredictMean
from icgd.program.network_instructions import LookUpStep, ShareClasses, TakeTurns
from icgd.program.program import AbstractProgram, Layer
from icgd.reprs import counted, used, with_repr


@final
@with_repr
@dataclass(frozen=True)
class StackProgram(AbstractProgram):
    """A block of layers, repeated, that performs the training steps, and layers that predict.

    A block performs one step, or `steps_per_block` steps if they differ from each other. A program
    with look-ups has `n_registers` tokens in front of the examples. Attention without a softmax,
    and hidden units, apply the `activation`. If the paper uses more layers for a step,
    `paper_layers` is their number, each of attention and an MLP. If the numbers in the heads are
    chosen for the rounding of one dtype, the program is `made_for` that dtype.

    If steps differ, `schedule` has the last layers of every step, which replace those of the block;
    all other layers are the same in every step.
    """

    construction: str
    layout: Layout
    functions: tuple[Function, ...]
    block: tuple[Layer, ...]
    n_steps: int
    prediction: tuple[Layer, ...]
    steps_per_block: int = 1
    activation: str = "relu"
    paper_layers: int | None = None
    made_for: str | None = None
    schedule: tuple[tuple[Layer, ...], ...] = ()

    def facts(self) -> dict[str, str]:
        return {
            "construction": self.construction,
            "steps": f"{self.n_steps:,}",
            "layers": self.layers_in_words,
            "d_model": f"{self.layout.width:,} in {counted(len(self.layout.slots), 'slot')}",
        }

    @property
    def layers(self) -> tuple[Layer, ...]:  # type: ignore[override]
        return (*self.block, *self.prediction)

    @property
    def layers_in_words(self) -> str:
        phrases = [used(len(self.common), self.n_repeats)]
        if self.schedule:
            phrases.append(f"{len(self.schedule[0])} for each step")
        if self.prediction:
            phrases.append(f"{len(self.prediction)} to predict")
        return ", ".join(phrases)

    @property
    def common(self) -> tuple[Layer, ...]:
        """The layers of the block that all steps share."""
        n_ends = len(self.schedule[0]) if self.schedule else 0
        return self.block[: len(self.block) - n_ends]

    def block_of(self, step: int) -> tuple[Layer, ...]:
        """Return the layers of a step, counted from 0; without a schedule, the block itself."""
        return (*self.common, *self.schedule[step]) if self.schedule else self.block

    def steps_of_block(self) -> tuple[tuple[Layer, ...], ...]:
        """Return the layers of each step of the block; with a schedule, of the first step only."""
        if self.schedule:
            return (self.block_of(0),)
        length = self.layers_per_step
        starts = range(0, len(self.block), length)
        return tuple(self.block[start : start + length] for start in starts)

    def unrolled(self) -> Iterator[Layer]:
        """Yield all layers in the order in which they run."""
        for step in range(self.n_repeats):
            yield from self.block_of(step)
        yield from self.prediction

    @property
    def n_repeats(self) -> int:
        """The number of repetitions of the block."""
        return self.n_steps // self.steps_per_block

    @property
    def layers_per_step(self) -> int:
        return len(self.block) // self.steps_per_block

    @property
    def n_layers(self) -> int:
        """The number of layers of the whole transformer, with all repetitions."""
        return len(self.block) * self.n_repeats + len(self.prediction)

    @property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(slot.shape for slot in self.layout.having(Role.PARAMETER))

    @cached_property
    def trains_function(self) -> bool:
        """Whether the stream holds the residuals of a function instead of weights."""
        return bool(self.layout.having(Role.RESIDUAL))

    @property
    def traceable(self) -> tuple[str, ...]:
        return self.layout.names

    @property
    def can_go_on(self) -> bool:
        is_uniform = not self.schedule and self.steps_per_block == 1
        return is_uniform and bool(self.weight_shapes)  # a function always starts from 0

    @cached_property
    def batch_size(self) -> int | None:
        """The number of examples in a step, or None if every step uses all."""
        turns = self.first(TakeTurns)
        return None if turns is None else turns.batch_size

    def steps_of_pass(self, n_examples: int) -> int:
        """Return the number of steps in a pass over `n_examples` examples."""
        return 1 if self.batch_size is None else ceil(n_examples / self.batch_size)

    def next_example(self, n_steps: int, n_examples: int) -> int | None:
        return None if self.batch_size is None else n_steps * self.batch_size % n_examples

    @cached_property
    def step_table(self) -> LookUpStep | None:
        """The instruction that looks up whole steps, or None."""
        return self.first(LookUpStep)

    @property
    def n_examples(self) -> int | None:
        instruction = self.step_table or self.first(DescendByExample)
        return None if instruction is None else instruction.n_examples

    @property
    def descent(self) -> Descent | None:
        """The gradient step on a linear model, or None."""
        return self.first(Descent)  # type: ignore[type-abstract]

    @property
    def score_reach(self) -> float | None:
        """The largest allowed score, or None in a program that trains no linear model."""
        predict = self.first(PredictMean)
        return None if predict is None else predict.reach

    @property
    def lattice_functions(self) -> tuple[LatticeFunction, ...]:
        """The functions that are looked up."""
        return tuple(f for f in self.functions if isinstance(f, LatticeFunction))

    @property
    def n_registers(self) -> int:
        """The number of registers: one for each lattice point, and the memory."""
        return 2 * max((f.half for f in self.lattice_functions), default=-1) + 2

    def registers(self) -> dict[str, tuple[float, ...]]:
        """Return the constants of the registers by slot: a value for each register."""
        if not self.n_registers:
            return {}
        half = self.n_registers // 2 - 1
        points = range(-half, half + 1)
        scales = (1.0, *(g / half for g in points))  # the first register is the memory
        constants: dict[str, tuple[float, ...]] = {
            IS_REGISTER: (1.0,) * len(scales),
            IS_MEMORY: (1.0,) + (0.0,) * len(points),
            SCALE: scales,
            SCALE_SIZE: tuple(map(abs, scales)),
            SCALE_SIGN: tuple(float((scale > 0) - (scale < 0)) for scale in scales),
            OFFSET: (-MASKED - half * half / 2, *(-g * g / 2 for g in points)),
            SINK: tuple(-log(SHARE * abs(scale)) if scale else MASKED for scale in scales),
        }
        for function in self.lattice_functions:
            constants[value_slot(function.name)] = (0.0, *function.values)
        classes = self.first(ShareClasses)
        for place, name in enumerate(() if classes is None else classes.classes, start=1):
            constants[name] = tuple(float(place == number) for number in range(len(scales)))
        return constants

    @property
    def has_kinks(self) -> bool:
        return any(function.is_ramp and not function.is_exact for function in self.functions)

    def ramps(
        self, derivative: str, jumps: Mapping[str, float] | None = None
    ) -> tuple[tuple[float, float], ...]:
        """Return the ends of the ramps of a sum of ReLUs, or of the bands of a sum of units.

        Units evaluate the step function times a number, never on its own.
        """
        if by_units := [fit for fit in self.functions if isinstance(fit, RidgeSum)]:
            products = [fit for fit in by_units if fit.slope == derivative]
            return tuple((band.low, band.high) for fit in products for band in fit.bands)
        places = {derivative: 0.0} if jumps is None else jumps
        knots = [place + k for name, place in places.items() for k in self.relu_sum(name).knots]
        return tuple(zip(knots[::2], knots[1::2], strict=True))

    def listing(self) -> str:
        size = f"{self.layers_in_words}, d_model {self.layout.width}"
        title = f"program {self.construction}, {size}"
        if self.n_registers:
            title += f", {self.n_registers} registers"
        if self.activation != "relu":
            title += f", {self.activation} units"
        block = f"block, {self.n_repeats} times"
        stages = {block: self.block, "prediction": self.prediction}
        return render.listing(self, title, stages)

    def to_data(self) -> dict[str, Any]:
        return render.program_data(self)


SCALED = (AccumulateOuterProduct, AddGradient)
"""The instructions whose update is proportional to their scale: of relu-stack, softmax-stack."""


def step_layer(program: AbstractProgram) -> int:
    """Return the index, in the block, of the layer whose W_O is proportional to the step size.

    Its instructions are `weights += scale * mean(...)` with scale = -step_size / 2, a factor of
    every entry of this W_O and of no other tensor. So transformers of different step sizes differ
    only in this tensor: W_O(step_size) = step_size * W_O(1).

    Raises `ConstructionError` for a program without such a layer.
    """
    places = [
        place
        for place, layer in enumerate(program.layers)
        if all(isinstance(instruction, SCALED) for instruction in layer.instructions)
    ]
    if len(places) != 1:
        raise ConstructionError(
            f"In {program.construction} the step size is not a factor of one layer and of nothing "
            "else, so it cannot be learnt. Compile with relu-stack, which is exact for "
            "piecewise-linear networks, or with softmax-stack."
        )
    return places[0]


def of_unit_step(program: StackProgram, step_size: float) -> StackProgram:
    """Rescale a program that was built for `step_size` to a step size of 1."""
    place = step_layer(program)
    layer = program.block[place]
    unit = tuple(
        replace(instruction, scale=instruction.scale / step_size)
        for instruction in layer.instructions
        if isinstance(instruction, SCALED)
    )
    block = (*program.block[:place], Layer(layer.title, unit), *program.block[place + 1 :])
    return replace(program, block=block)
