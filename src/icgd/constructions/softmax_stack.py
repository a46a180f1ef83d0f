r"""softmax-stack: a plain softmax transformer, weights written down, trains an N-layer network.

Softmax attention, ReLU MLPs, a residual stream; no normalisation and no product layer. Registers
in front of the examples form a softmax lattice (`program/registers.py`): a head over them returns
any smooth function of a dot product, or a square, from which products are made. One gradient
step for smooth bounded activations, a linear output and a squared or logistic loss:

    N        attention  p_j = r(V_j p_{j-1}) and r'(V_j p_{j-1}), from the same heads
    N - 1    attention  s_j = r'_j * (V_{j+1}^T s_{j+1}), two squares for each unit
    1        attention  L_g V_j -= L_g (step_size / 2n) sum_t s_{t,j} p_{t,j-1}^T in register g
    1        MLP        clip the weights to the box, wipe all scratch

That is 2N + 1 layers. What needs more:

- an output activation: one layer for s_N = r'_N * u, and one for the logistic loss slope;
- a kinked activation: an MLP layer in every layer that has it, for r, and one for all r';
- gelu, silu and softplus: an attention layer there, for r(z) = z gate(z) + rest(z);
- the huber loss: an MLP layer, the same as that of r'.

At most 3N + 4 in all. The loss slope u is linear in slots (2p - 2y, sigmoid(p) - y), so that no
layer is spent on it. A block of N layers predicts, and an MLP copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log, log2
from typing import ClassVar

from icgd.approximation import lattice
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction, given_kink_width, name_dtype
from icgd.constructions.parts import network as sizes
from icgd.constructions.parts.network import (
    LARGEST_ARGUMENT,
    ROUNDING_ROOM,
    UpdateLayers,
    bias_slot,
    has_kink,
    largest_output,
    later_slopes,
    layer_slots,
    looked_up,
    loss_argument,
    needed_functions,
    network_layout,
    overshoot,
    positive_slot,
    units_slot,
)
from icgd.errors import ConstructionError
from icgd.problems import activations
from icgd.problems.activations import RELU, Activation
from icgd.problems.functions import KinkedFunction, SmoothFunction
from icgd.problems.losses import SlopePart
from icgd.problems.optimisers import WEIGHTS
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive, settle, within
from icgd.program import instructions as verbs
from icgd.program.functions import Function, LatticeFunction, ReluSum
from icgd.program.instructions import IS_EXAMPLE, IS_QUERY, ONE, Argument, Combination, Summand
from icgd.program.layout import Layout
from icgd.program.network_instructions import ShareClasses, class_slot
from icgd.program.program import Layer
from icgd.program.registers import (
    IS_REGISTER,
    LOG_EXAMPLES,
    MASKED,
    REGISTER_SLOTS,
    SCALE_SIZE,
    value_slot,
)
from icgd.program.stack import StackProgram

FEWEST_REGISTERS = 32
"""With 15 lattice points on either side lines and squares have full accuracy."""

LARGEST_SCORE = MASKED / 4
"""Scores of classes up to this size are so much above the masked ones that those have no weight."""

SHARES = "shares"

SMALLEST_ARGUMENT = 2.0**-500
"""Lattices are scaled by what they reach: the squares of smaller numbers underflow."""

PROBE = {"float64": 2.0**-5, "float32": 2.0**-2}
"""Scores by which the gradient heads see a slope, for the largest slope on the domain. Its sixth
power is lost, and the rounding of a softmax weight divided by it."""


@dataclass(frozen=True)
class SoftmaxStack(AbstractConstruction):
    """2N + 1 to 3N + 4 layers a step, all of a standard transformer.

    Args:
        registers: the number of registers that smooth functions are looked up in; the default is as
            many as give full accuracy in `dtype`.
        kink_width: the width of the ramp that stands in for a step, a power of two; by default the
            ramp is so narrow that hardly any argument lies on it.
        dtype: the arithmetic that it is made for.

    Raises:
        SettingError: if a number is out of its range.
        UnknownNameError: if no dtype has this name.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, icgd.SoftmaxStack(), n_steps=2)
        >>> sorted({layer.kind.value for layer in compiled.program.block})
        ['mlp', 'softmax']
    """

    registers: int | None = None
    kink_width: float | None = None
    dtype: str = "float64"

    name: ClassVar[str] = "softmax-stack"
    setting: ClassVar[str] = "registers"
    coarsest: ClassVar[int] = FEWEST_REGISTERS
    finest: ClassVar[int] = lattice.MOST_POINTS
    takes_biases: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    takes_averages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.registers is not None:
            least, most = float(FEWEST_REGISTERS), float(lattice.MOST_POINTS)
            settle(self, registers=count("registers", self.registers))
            within("registers", self.registers, least, most)
        settle(self, kink_width=given_kink_width(self.kink_width))
        name_dtype(self)

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        return ceil(setting * (1 + 0.05 * log(excess)))  # the error falls exponentially

    def objection(self, problem: Problem) -> str | None:
        ranges = sizes.ranges_on_domain(problem, 0.0, largest_output)
        looked_up = (*ranges.preactivations, *sizes.backward_ranges(problem, ranges, 0.0).deltas)
        smallest, largest = min(*looked_up, *ranges.outputs), max(looked_up)
        if smallest < SMALLEST_ARGUMENT:
            return (
                f"a layer's preactivations, outputs or slopes reach no more than {smallest:.3g} on "
                "the domain, and what it divides by them would leave float64; use a larger box or "
                "domain, or fewer layers."
            )
        if not largest <= LARGEST_ARGUMENT:
            return (
                f"its preactivations or slopes can reach {largest:.3g} on the domain, where "
                "float64 leaves no digits to look them up; use a smaller box or domain."
            )
        if problem.loss_function.is_softmax and ranges.outputs[-1] > LARGEST_SCORE:
            return (
                f"the scores of its classes can reach {ranges.outputs[-1]:.3g} on the domain, and "
                f"beyond {LARGEST_SCORE:g} no mask hides other tokens; use a smaller box or domain."
            )
        return None

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        return _Builder.of(problem, self).program(self.name, n_steps)


def fewest_registers(problem: Problem) -> int:
    """As many as lines and squares need, and one for each class besides the memory."""
    n_classes = problem.network.output_width if problem.loss_function.is_softmax else 0
    return max(FEWEST_REGISTERS, 2 * ceil((n_classes + 2) / 2))


def _is_linear(activation: Activation) -> bool:
    return activation.value == activations.IDENTITY_FUNCTION


@dataclass(frozen=True)
class _Builder:
    """Everything that the layers of one program are made from."""

    problem: Problem
    settings: SoftmaxStack
    look_ups: tuple[LatticeFunction, ...]
    forward: sizes.Ranges
    backward: sizes.BackwardRanges

    @classmethod
    def of(cls, problem: Problem, settings: SoftmaxStack) -> _Builder:
        """Fit the look-ups on ranges that allow for their own errors, which they widen."""
        margin = 0.0
        while True:
            forward = _roomy(sizes.ranges_on_domain(problem, margin, largest_output))
            look_ups = _fitted(problem, forward, settings)
            excess = overshoot(problem, forward, look_ups)
            if excess <= margin:
                backward = sizes.backward_ranges(problem, forward, margin)
                return cls(problem, settings, look_ups, forward, backward)
            margin = 1.25 * excess
            if not margin <= LARGEST_ARGUMENT:
                raise ConstructionError(
                    f"registers={len(look_ups[0].values) + 1} is too few for these ranges: the "
                    "error of a look-up exceeds what it looks up. Give more registers, or use a "
                    "smaller box or domain."
                )

    @property
    def depth(self) -> int:
        return self.problem.network.depth

    @property
    def half(self) -> int:
        if self.look_ups:
            return self.look_ups[0].half
        return (self.settings.registers or fewest_registers(self.problem)) // 2 - 1

    def activation(self, layer: int) -> Activation:
        return self.problem.network.layer_activation(layer)

    def program(self, name: str, n_steps: int) -> StackProgram:
        forward = self.forward_pass()
        block = [*forward, *self.loss_slope_layers(), *self.backward_pass()]
        scratch = _written(block)
        block += [self.gradient_step(), *self.update.end(0, scratch)]
        forward = self.forward_pass(self.update.predicting)
        prediction = [*forward, self.copy_prediction(forward)]
        layers = (*block, *prediction)
        functions = self.functions(layers)
        return StackProgram(
            construction=name,
            layout=self.layout(layers, functions),
            functions=functions,
            block=tuple(block),
            n_steps=n_steps,
            prediction=tuple(prediction),
            made_for=self.settings.dtype,
            schedule=self.update.schedule(n_steps, scratch),
        )

    @cached_property
    def update(self) -> UpdateLayers:
        return UpdateLayers(self.problem.network, self.problem.gradient_step, SCALE_SIZE)

    def preactivation(self, layer: int, weights: str) -> Argument:
        inputs = Combination.of(units_slot(layer - 1))
        return Argument(inputs, f"{weights}_{layer}", bias=self.bias)

    @property
    def bias(self) -> str | None:
        return bias_slot(self.problem.network)

    def forward_pass(self, weights: str = WEIGHTS) -> list[Layer]:
        layers = []
        for layer in range(1, self.depth + 1):
            z = self.preactivation(layer, weights)
            first, *others = self.units(layer, z)
            if layer == self.depth and _is_linear(self.activation(layer)):
                first += self.loss_look_ups(z, on_weights=True)
            layers += [Layer(f"forward {layer}", instructions) for instructions in (first, *others)]
        return layers

    def units(self, layer: int, z: Argument) -> list[tuple[verbs.Instruction, ...]]:
        """The layers that compute p_j = r(z) and r'(z) from z = V_j p_{j-1}."""
        activation = self.activation(layer)
        value, derivative = activation.value.name, activation.derivative.name
        units, slope = units_slot(layer), f"slope_{layer}"
        reach = self.forward.preactivations[layer - 1]
        if _is_linear(activation):
            return [(verbs.Project(z, reach, units),)]
        if has_kink(activation):
            preactivation = f"preactivation_{layer}"
            argument = Combination.of(preactivation)
            maps = {units: value, positive_slot(self.problem.network, layer): RELU.name}
            mapped = [_map_everywhere(argument, name, write) for write, name in maps.items()]
            return [(verbs.Project(z, reach, preactivation),), tuple(mapped)]
        if activation.gate is None:
            return [(verbs.LookUp(z, (value, derivative), (units, slope)),)]
        errors = {function.name: function.error for function in self.look_ups}
        gate, bound = f"gate_{layer}", ROUNDING_ROOM + errors[activation.gate.name]
        looked_up = {gate: activation.gate.name, slope: derivative}
        if activation.rest is not None:
            looked_up[units] = activation.rest.name
        look_up = verbs.LookUp(z, tuple(looked_up.values()), tuple(looked_up))
        return [(look_up,), (verbs.AddProduct(z, reach, gate, bound, units),)]

    @property
    def loss_parts(self) -> tuple[SlopePart, ...]:
        return sizes.loss_parts(self.problem)

    def loss_argument(self, part: SlopePart) -> Combination:
        return loss_argument(part, units_slot(self.depth))

    def loss_look_ups(self, z: Argument, *, on_weights: bool) -> tuple[verbs.LookUp, ...]:
        """Smooth parts of the loss slope: of the linear output z itself, or of p_N and y."""
        look_ups = []
        for number, part in enumerate(self.loss_parts, start=1):
            of_prediction = part.prediction == 1.0 and part.label == 0.0
            if isinstance(part.function, SmoothFunction) and of_prediction is on_weights:
                argument = z if on_weights else Argument(self.loss_argument(part))
                look_ups.append(
                    verbs.LookUp(argument, (part.function.name,), (f"loss_part_{number}",))
                )
        return tuple(look_ups)

    def loss_slope_layers(self) -> list[Layer]:
        """Layers for the parts of u which are not linear, unless the last unit did, and for kinks.

        The slopes of kinked activations are made of relu(z_j) in the one MLP.
        """
        z = Argument(Combination.of(units_slot(self.depth)))
        if self.problem.loss_function.is_softmax:
            kinks = later_slopes(self.problem.network)
            return [Layer("shares", (self.shares,)), *([Layer("slopes", kinks)] if kinks else [])]
        look_ups = self.loss_look_ups(z, on_weights=False)
        if not _is_linear(self.activation(self.depth)):
            look_ups += self.loss_look_ups(z, on_weights=True)
        maps = tuple(
            _map_everywhere(self.loss_argument(part), part.function.name, f"loss_part_{number}")
            for number, part in enumerate(self.loss_parts, start=1)
            if isinstance(part.function, KinkedFunction) and part.function.knots
        )
        maps += later_slopes(self.problem.network)
        return [Layer("loss slope", part) for part in (look_ups, maps) if part]

    @property
    def shares(self) -> ShareClasses:
        classes = range(1, self.problem.network.output_width + 1)
        return ShareClasses(units_slot(self.depth), tuple(map(class_slot, classes)), SHARES)

    @cached_property
    def loss_slope(self) -> Combination:
        """u(p_N, y) as a combination of slots."""
        if self.problem.loss_function.is_softmax:
            return Combination((SHARES, "y"), (1.0, -1.0))
        factors: dict[str, float] = {}
        for number, part in enumerate(self.loss_parts, start=1):
            function = part.function
            if isinstance(function, KinkedFunction) and not function.knots:
                for slot, factor in self.loss_argument(part).terms():
                    factors[slot] = factors.get(slot, 0.0) + function.slopes[0] * factor
            else:
                factors[f"loss_part_{number}"] = 1.0
        return Combination(tuple(factors), tuple(factors.values()))

    def delta(self, layer: int) -> Combination:
        """s_j: a slot, or, of a linear output, the loss slope itself."""
        if layer == self.depth and _is_linear(self.activation(layer)):
            return self.loss_slope
        return Combination.of(f"delta_{layer}")

    def backward_pass(self) -> list[Layer]:
        layers = []
        if not _is_linear(self.activation(self.depth)):
            layers.append(self.times_slope(self.depth, Argument(self.loss_slope)))
        for layer in range(self.depth - 1, 0, -1):
            above = f"weights_{layer + 1}"
            upstream = Argument(self.delta(layer + 1), above, transposed=True, bias=self.bias)
            layers.append(self.times_slope(layer, upstream))
        return layers

    def times_slope(self, layer: int, pulled_back: Argument) -> Layer:
        reach = ROUNDING_ROOM * self.backward.pulled_back[layer - 1]
        write = f"delta_{layer}"
        if _is_linear(self.activation(layer)):
            return Layer(f"backward {layer}", (verbs.Project(pulled_back, reach, write),))
        slope = ROUNDING_ROOM * self.backward.slopes[layer - 1]
        product = verbs.AddProduct(pulled_back, reach, f"slope_{layer}", slope, write)
        return Layer(f"backward {layer}", (product,))

    def gradient_step(self) -> Layer:
        instructions = [
            verbs.AddGradient(
                left=self.delta(layer),
                right=units_slot(layer - 1),
                scale=self.update.gradient_scale,
                probe=PROBE[self.settings.dtype] / self.backward.deltas[layer - 1],
                write=self.update.gradient_slot(layer),
                bias=self.bias and IS_EXAMPLE,  # which is 0 in the memory, as its value must be
            )
            for layer in range(1, self.depth + 1)
        ]
        return Layer("gradient step", tuple(instructions))

    def copy_prediction(self, forward: Iterable[Layer]) -> Layer:
        copied = Summand(Combination.of(units_slot(self.depth)), activations.IDENTITY_FUNCTION.name)
        gate = 2.0 ** (1 + ceil(log2(self.forward.outputs[-1])))
        others = (IS_EXAMPLE, IS_REGISTER)
        copy = verbs.MapSlots((copied,), IS_QUERY, others, gate, "y")
        return Layer("copy prediction", (copy, verbs.WipeSlots(_written(forward))))

    def functions(self, layers: Iterable[Layer]) -> tuple[Function, ...]:
        """Lines and squares over the registers, look-ups, and what MLPs evaluate."""
        instructions = [part for layer in layers for part in layer.instructions]
        lines: list[LatticeFunction] = []
        if any(isinstance(part, verbs.Project) for part in instructions):
            lines.append(lattice.identity(lattice.line_lattice(1.0, self.half)))
        if any(isinstance(part, verbs.AddProduct) for part in instructions):
            lines.append(lattice.square(lattice.line_lattice(2.0, self.half)))
        maps = [part for part in instructions if isinstance(part, verbs.MapSlots)]
        names = dict.fromkeys(name for part in maps for name in part.functions())
        return (*lines, *self.look_ups, *(self.relu_sum(name) for name in names))

    def relu_sum(self, name: str) -> ReluSum:
        """A function that an MLP evaluates: piecewise linear, or a step."""
        function = needed_functions(self.problem)[name]
        reach = ROUNDING_ROOM * sizes.largest_argument(self.problem, self.forward)
        return fit_relu_sum(function, -reach, reach, kink_width=self.settings.kink_width)

    def layout(self, layers: Iterable[Layer], functions: Iterable[Function]) -> Layout:
        """The slots that the layers write, and what registers and MLPs need."""
        target, written = self.problem.network, _written(layers)
        kinds = ("preactivation", "gate", "units", "positive", "slope", "delta")
        scratch = [slot for kind in kinds for slot in layer_slots(target, kind)]
        for number in range(1, len(self.loss_parts) + 1):
            scratch.append((f"loss_part_{number}", (target.output_width,)))
        scratch.append((SHARES, (target.output_width,)))
        values = [value_slot(f.name) for f in functions if isinstance(f, LatticeFunction)]
        own = (ONE, IS_EXAMPLE, IS_QUERY, LOG_EXAMPLES, *REGISTER_SLOTS)
        classes = self.shares.classes if self.problem.loss_function.is_softmax else ()
        constants = (*own, *self.update.constants, *classes, *values)
        kept = [slot for slot in scratch if slot[0] in written]
        return network_layout(target, kept, constants, self.update.slots())


def _map_everywhere(argument: Combination, function: str, write: str) -> verbs.MapSlots:
    return verbs.MapSlots((Summand(argument, function),), ONE, (), 0.0, write)


def _written(layers: Iterable[Layer]) -> tuple[str, ...]:
    """Slots that the layers write, in order, each once."""
    instructions = [part for layer in layers for part in layer.instructions]
    return tuple(dict.fromkeys(name for part in instructions for name in part.writes()))


def _roomy(ranges: sizes.Ranges) -> sizes.Ranges:
    return sizes.Ranges(
        tuple(ROUNDING_ROOM * size for size in ranges.preactivations),
        tuple(ROUNDING_ROOM * size for size in ranges.outputs),
        tuple(ROUNDING_ROOM * size for size in ranges.linear),
    )


def _fitted(
    problem: Problem, forward: sizes.Ranges, settings: SoftmaxStack
) -> tuple[LatticeFunction, ...]:
    functions = looked_up(problem)
    registers = settings.registers
    if not functions:
        return ()
    arguments = [
        sizes.largest_loss_argument(problem, part, forward.outputs[-1])
        for part in sizes.loss_parts(problem)
    ]
    reach = max([*forward.preactivations, *arguments])
    if registers is not None:
        return lattice.fit_on_lattice(functions, reach, registers // 2 - 1)
    fewest = fewest_registers(problem) // 2 - 1
    return lattice.fit_to_accuracy(functions, reach, lattice.ACCURACY[settings.dtype], fewest)
