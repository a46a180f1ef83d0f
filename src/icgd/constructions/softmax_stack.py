r"""softmax-stack: a plain softmax transformer with explicit weights trains an N-layer network.

The transformer has softmax attention, ReLU MLPs and a residual stream, but no normalisation and no
product layer. Registers in front of the examples form a softmax lattice (`program/layout.py`): a
head over them returns a smooth function of the dot product in its score. Products of slots are
differences of two squares. So the steps of backpropagation, those of `relu_stack.py`, take these
layers for smooth bounded activations, a linear output and a squared or logistic loss:

    N        attention  p_j = r(V_j p_{j-1}) and r'(V_j p_{j-1}), from the same heads
    N - 1    attention  s_j = r'_j * (V_{j+1}^T s_{j+1}), two squares for each unit
    1        attention  L_g V_j -= L_g (step_size / 2n) sum_t s_{t,j} p_{t,j-1}^T in register g
    1        MLP        clip the weights to the box, wipe all scratch

These are 2N + 1 layers. The slope u of these losses is linear in slots, 2p - 2y or sigmoid(p) - y,
so it needs no layer. At most 3N + 4 layers suffice, since more are needed only for

- an output activation: one layer for s_N = r'_N * u, and one for the logistic loss slope;
- a kinked activation: an MLP layer for r in every layer that has it, and one for all r';
- gelu, silu and softplus: an attention layer in each, for r(z) = z gate(z) + rest(z);
- the huber loss: an MLP layer, shared with the r'.

For the prediction, N layers run the forward pass and an MLP copies its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log, log2
from typing import ClassVar

import torch

from icgd.approximation import lattice
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction, checked_kink_width, valid_dtype
from icgd.constructions.network import (
    LARGEST_ARGUMENT,
    ROUNDING_ROOM,
    Ranges,
    UpdateLayers,
    activations_of,
    backward_ranges,
    bias_slot,
    domain_objection,
    factor_of,
    has_kink,
    is_composed,
    jump_offsets,
    largest_argument,
    largest_loss_argument,
    later_slopes,
    look_up_functions,
    loss_argument,
    loss_terms,
    map_everywhere,
    needed_functions,
    network_layout,
    ranges_on_domain,
    separate_positive_slots,
    units_slot,
)
from icgd.errors import ConstructionError, SettingError
from icgd.problems.functions import IDENTITY_FUNCTION
from icgd.problems.optimisers import WEIGHTS
from icgd.problems.problem import Problem
from icgd.problems.settings import count, positive, require_between, set_fields
from icgd.program.functions import Function, LatticeFunction
from icgd.program.instructions import (
    AddGradient,
    AddProduct,
    Argument,
    Combination,
    Instruction,
    LookUp,
    MapSlots,
    Project,
    Summand,
    WipeSlots,
)
from icgd.program.layout import (
    IS_EXAMPLE,
    IS_QUERY,
    IS_REGISTER,
    LOG_EXAMPLES,
    MASKED,
    ONE,
    REGISTER_SLOTS,
    SCALE,
    SCALE_SIZE,
    Layout,
    value_slot,
)
from icgd.program.network_instructions import ShareClasses, class_slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

FEWEST_REGISTERS = 32
"""The registers of a lattice of 15 points on either side, on which lines have full accuracy."""

LARGEST_SCORE = MASKED / 4
"""The largest class score at which masked tokens still have a softmax weight of exactly 0."""

SHARES = "shares"

SMALLEST_ARGUMENT = 2.0**-500
"""The smallest reach of a lattice: its square is used, and smaller squares underflow."""

PROBE = {"float64": 2.0**-5, "float32": 2.0**-2}
"""The score of the largest slope in a gradient head. The truncation error is its sixth power, and
the rounding error is that of a softmax weight divided by it."""


@dataclass(frozen=True)
class SoftmaxStack(AbstractConstruction):
    """2N + 1 to 3N + 4 layers of a standard transformer per step.

    Args:
        registers: the number of registers, which are the look-up table of smooth functions; by
            default enough for full accuracy in `dtype`.
        kink_width: the width of the ramp that approximates a step, a power of two; the default is
            so narrow that hardly any argument lies on the ramp.
        dtype: the arithmetic for which accuracy is optimised.

    Raises:
        SettingError: if a number is out of range.
        UnknownNameError: if there is no dtype of this name.

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
    refined_by: ClassVar[str] = "registers"
    coarsest: ClassVar[int] = FEWEST_REGISTERS
    finest: ClassVar[int] = lattice.MOST_POINTS
    takes_biases: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    takes_averages: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = True
    takes_sets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.registers is not None:
            least, most = float(FEWEST_REGISTERS), float(lattice.MOST_POINTS)
            set_fields(self, registers=count("registers", self.registers))
            require_between("registers", self.registers, least, most)
        set_fields(
            self, kink_width=checked_kink_width(self.kink_width), dtype=valid_dtype(self.dtype)
        )

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        # The error falls exponentially with the number of registers.
        return ceil(setting * (1 + 0.05 * log(excess)))

    def objection(self, problem: Problem) -> str | None:
        if is_composed(problem):
            return (
                "each of its look-ups is a function of one combination of prediction and label, "
                f"and the slope of the loss {problem.loss} is not a sum of such functions; use "
                "relu-stack."
            )
        values = [activation.value for activation in activations_of(problem.network)]
        if lines := [r for r in values if r != IDENTITY_FUNCTION and factor_of(r) is not None]:
            return f"its only linear activation is identity, not {lines[0]}; use relu-stack."
        for function in (*values, *(term.function for term in loss_terms(problem))):
            if function.kind == "pieces":
                return (
                    f"its look-ups are accurate for analytic functions only, and {function} has "
                    f"curved pieces that meet at "
                    f"{', '.join(f'{knot:g}' for knot in function.knots)}; use relu-stack."
                )
            at_zero = float(function(torch.zeros(1, 1, dtype=torch.float64)))
            if function.kind == "kinked" and at_zero != 0.0:
                return (
                    f"an MLP also evaluates {function} at 0, in registers, whose slots must stay "
                    f"0, but its value there is {at_zero:g}; use relu-stack."
                )
        for term in loss_terms(problem):
            if term.function.kind == "step" and term.function.knots:
                return (
                    f"the slope of the {problem.loss} loss jumps at {term.function.knots[0]:g}, "
                    "and there is no MLP that could evaluate the jump without rounding errors; use "
                    "relu-stack, or a loss whose slope is continuous, such as huber."
                )
        try:
            reason = domain_objection(problem, gated=True)
        except SettingError as error:  # z gate(z) + rest(z) has no proved range for rest
            return f"{error} Or use relu-stack."
        if reason:
            return reason
        ranges = ranges_on_domain(problem, 0.0, gated=True)
        arguments = (*ranges.preactivations, *backward_ranges(problem, ranges, 0.0).deltas)
        smallest, largest = min(*arguments, *ranges.outputs), max(arguments)
        if smallest < SMALLEST_ARGUMENT:
            return (
                "its heads divide by the largest preactivation, output or slope of each layer, "
                f"and one is at most {smallest:.3g} on the domain, too small for float64; use a "
                "larger box or domain, or fewer layers."
            )
        if not largest <= LARGEST_ARGUMENT:
            return (
                f"its preactivations or slopes can reach {largest:.3g} on the domain, where "
                "float64 has too few digits to look them up; use a smaller box or domain."
            )
        if problem.loss_function.is_softmax and ranges.outputs[-1] > LARGEST_SCORE:
            return (
                f"the scores of its classes can reach {ranges.outputs[-1]:.3g} on the domain, and "
                f"a mask hides other tokens only up to {LARGEST_SCORE:g}; use a smaller box or "
                "domain."
            )
        return None

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        builder, target = _Builder(problem, self), problem.network
        # Register g holds the weights times L_g, so clips read their bounds times |L_g|.
        update = UpdateLayers(target, problem.gradient_step, SCALE_SIZE, SCALE)
        block = [
            *builder.forward_pass(WEIGHTS),
            *builder.loss_slope_layers(),
            *builder.backward_pass(),
        ]
        scratch = _written(block)
        # The heads of the gradient have multiples of probe * delta in their scores. The largest
        # delta gets the score PROBE, for which truncation and rounding errors balance.
        gradient = (
            AddGradient(
                left=builder.delta(layer),
                right=units_slot(layer - 1),
                scale=update.gradient_scale,
                probe=PROBE[self.dtype] / builder.backward.deltas[layer - 1],
                write=f"{update.gradient}_{layer}",
                bias=builder.bias and IS_EXAMPLE,  # 0 in the memory, whose value must be 0
            )
            for layer in range(1, target.depth + 1)
        )
        block += [Layer("gradient step", tuple(gradient)), *update.end(0, scratch)]
        # The prediction: a forward pass, and a copy into y at the queries only, by a gate that
        # exceeds every output.
        forward = builder.forward_pass(update.predicting)
        copied = Summand(Combination.of(units_slot(target.depth)), IDENTITY_FUNCTION.name)
        gate = 2.0 ** (1 + ceil(log2(builder.forward.outputs[-1])))
        copy = MapSlots((copied,), IS_QUERY, (IS_EXAMPLE, IS_REGISTER), gate, "y")
        wipe = WipeSlots(_written(forward))
        prediction = [*forward, Layer("copy prediction", (copy, wipe))]
        layers = (*block, *prediction)
        functions = builder.functions(layers)
        return StackProgram(
            construction=self.name,
            layout=builder.layout(layers, functions, update),
            functions=functions,
            block=tuple(block),
            n_steps=n_steps,
            prediction=tuple(prediction),
            made_for=self.dtype,
            schedule=update.schedule(n_steps, scratch),
        )


def _written(layers: Iterable[Layer]) -> tuple[str, ...]:
    """Return the slots that the layers write, in order, without repetitions."""
    writes = (i.writes() for layer in layers for i in layer.instructions)
    return tuple(dict.fromkeys(name for names in writes for name in names))


class _Builder:
    """The layers of one program, and the fits and ranges that they depend on."""

    def __init__(self, problem: Problem, settings: SoftmaxStack) -> None:
        self.problem, self.settings, self.target = problem, settings, problem.network
        self.bias, self.depth = bias_slot(self.target), self.target.depth
        self.activations = dict(enumerate(activations_of(self.target), start=1))
        self.is_linear = {j: r.value == IDENTITY_FUNCTION for j, r in self.activations.items()}
        self.loss_terms = loss_terms(problem)
        self.is_softmax = problem.loss_function.is_softmax
        n_classes = self.target.output_width if self.is_softmax else 0
        self.classes = tuple(class_slot(number) for number in range(1, n_classes + 1))
        # Lines and squares need a number of registers, and each class one besides the memory.
        fewest = max(FEWEST_REGISTERS, 2 * ceil((n_classes + 2) / 2))
        # The errors of look-ups widen the ranges on which they must hold: widen the ranges by a
        # margin until it covers these errors.
        margin = 0.0
        while True:
            ranges = ranges_on_domain(problem, margin, gated=True)
            forward = Ranges(
                tuple(ROUNDING_ROOM * size for size in ranges.preactivations),
                tuple(ROUNDING_ROOM * size for size in ranges.outputs),
                tuple(ROUNDING_ROOM * size for size in ranges.linear),
            )
            look_ups = _fitted(problem, forward, settings, fewest)
            errors = {function.name: function.error for function in look_ups}
            excess = self._overshoot(forward, errors)
            if excess <= margin:
                break
            margin = 1.25 * excess
            if reason := domain_objection(problem, margin, gated=True):
                raise ConstructionError(f"With the errors of its look-ups {reason}")
            if not margin <= LARGEST_ARGUMENT:
                raise ConstructionError(
                    f"registers={len(look_ups[0].values) + 1} is too few for these ranges: the "
                    "error of a look-up exceeds the values themselves. Give more registers, or use "
                    "a smaller box or domain."
                )
        self.forward, self.backward = forward, backward_ranges(problem, forward, margin)
        self.look_ups, self.errors = look_ups, errors
        registers = settings.registers or fewest
        self.half = look_ups[0].half if look_ups else registers // 2 - 1
        self.loss_slope = self._loss_slope()

    def _overshoot(self, forward: Ranges, errors: dict[str, float]) -> float:
        """Bound the errors of activations and slopes by those of their look-ups."""
        largest = 0.0
        for layer, activation in self.activations.items():
            if activation.value.kind == "smooth":
                gate, rest = activation.gate, activation.rest
                reach = forward.preactivations[layer - 1]
                value = errors[gate.name] * reach if gate else errors[activation.value.name]
                value += errors[rest.name] if rest else 0.0
                largest = max(largest, value, errors[activation.derivative.name])
        return max(largest, sum(errors.get(term.function.name, 0.0) for term in self.loss_terms))

    def _loss_slope(self) -> Combination:
        """Return u(p_N, y) as a combination of slots."""
        if self.is_softmax:
            return Combination((SHARES, "y"), (1.0, -1.0))
        factors: dict[str, float] = {}
        for number, term in enumerate(self.loss_terms, start=1):
            function = term.function
            if (steepness := factor_of(function)) is not None:
                for slot, factor in loss_argument(term, units_slot(self.depth)).terms():
                    factors[slot] = factors.get(slot, 0.0) + steepness * factor
            else:
                factors[f"loss_part_{number}"] = 1.0
        return Combination(tuple(factors), tuple(factors.values()))

    def forward_pass(self, weights: str) -> list[Layer]:
        """Write p_j = r(z) and r'(z) from z = V_j p_{j-1}, layer by layer."""
        layers = []
        for j, activation in self.activations.items():
            z = Argument(Combination.of(units_slot(j - 1)), f"{weights}_{j}", bias=self.bias)
            value, derivative = activation.value.name, activation.derivative.name
            units, slope, reach = units_slot(j), f"slope_{j}", self.forward.preactivations[j - 1]
            first: tuple[Instruction, ...]
            second: tuple[Instruction, ...] = ()
            if self.is_linear[j]:
                first = (Project(z, reach, units),)
                if j == self.depth:
                    first += self.loss_look_ups(z, of_prediction=True)
            elif has_kink(activation):
                preactivation = f"preactivation_{j}"
                first = (Project(z, reach, preactivation),)
                maps = {units: value}
                maps |= {
                    slot: f.name for slot, f in separate_positive_slots(self.target, j).items()
                }
                read = Combination.of(preactivation)
                second = tuple(map_everywhere(read, name, write) for write, name in maps.items())
            elif activation.gate is None:
                first = (LookUp(z, (value, derivative), (units, slope)),)
            else:  # z gate(z) + rest(z)
                gate, bound = f"gate_{j}", ROUNDING_ROOM + self.errors[activation.gate.name]
                names = {gate: activation.gate.name, slope: derivative}
                if activation.rest is not None:
                    names[units] = activation.rest.name
                first = (LookUp(z, tuple(names.values()), tuple(names)),)
                second = (AddProduct(z, reach, gate, bound, units),)
            stages = (first, second)
            layers += [
                Layer(f"forward {j}", instructions) for instructions in stages if instructions
            ]
        return layers

    def loss_look_ups(self, z: Argument, *, of_prediction: bool) -> tuple[LookUp, ...]:
        """Return look-ups of the smooth terms of the loss slope, of z = p_N or of p_N and y."""
        look_ups = []
        for number, term in enumerate(self.loss_terms, start=1):
            is_of_prediction = term.prediction == 1.0 and term.label == 0.0
            if term.function.kind == "smooth" and is_of_prediction is of_prediction:
                both = Argument(loss_argument(term, units_slot(self.depth)))
                argument, write = z if of_prediction else both, f"loss_part_{number}"
                look_ups.append(LookUp(argument, (term.function.name,), (write,)))
        return tuple(look_ups)

    def loss_slope_layers(self) -> list[Layer]:
        """Evaluate the nonlinear terms of u that the last layer did not look up, and jumps of r'.

        One MLP evaluates kinked terms of u, and the slopes of kinked activations from relu(z_j).
        """
        output, kinks = units_slot(self.depth), later_slopes(self.target)
        if self.is_softmax:
            shares = Layer("shares", (ShareClasses(output, self.classes, SHARES),))
            return [shares, Layer("slopes", kinks)] if kinks else [shares]
        z = Argument(Combination.of(output))
        look_ups = self.loss_look_ups(z, of_prediction=False)
        if not self.is_linear[self.depth]:
            look_ups += self.loss_look_ups(z, of_prediction=True)
        maps = tuple(
            map_everywhere(loss_argument(term, output), term.function.name, f"loss_part_{number}")
            for number, term in enumerate(self.loss_terms, start=1)
            if term.function.kind == "kinked" and factor_of(term.function) is None
        )
        stages = (look_ups, maps + kinks)
        return [Layer("loss slope", instructions) for instructions in stages if instructions]

    def delta(self, layer: int) -> Combination:
        """Return s_j: its slot, or the loss slope itself for a linear output."""
        is_loss_slope = layer == self.depth and self.is_linear[layer]
        return self.loss_slope if is_loss_slope else Combination.of(f"delta_{layer}")

    def backward_pass(self) -> list[Layer]:
        """Write s_N = r'_N * u, except for a linear output, and s_j = r'_j * V_{j+1}^T s_{j+1}."""
        layers = []
        for j in range(self.depth - self.is_linear[self.depth], 0, -1):
            if j == self.depth:
                pulled_back = Argument(self.loss_slope)
            else:
                above, weights = self.delta(j + 1), f"weights_{j + 1}"
                pulled_back = Argument(above, weights, transposed=True, bias=self.bias)
            reach, write = ROUNDING_ROOM * self.backward.pulled_back[j - 1], f"delta_{j}"
            slope = ROUNDING_ROOM * self.backward.slopes[j - 1]
            product: Instruction = AddProduct(pulled_back, reach, f"slope_{j}", slope, write)
            if self.is_linear[j]:
                product = Project(pulled_back, reach, write)
            layers.append(Layer(f"backward {j}", (product,)))
        return layers

    def functions(self, layers: Iterable[Layer]) -> tuple[Function, ...]:
        """Return lines and squares on the registers, the look-ups, and the functions of MLPs."""
        instructions = [i for layer in layers for i in layer.instructions]
        lines: list[LatticeFunction] = []
        if any(isinstance(i, Project) for i in instructions):
            lines.append(lattice.identity(lattice.line_lattice(1.0, self.half)))
        if any(isinstance(i, AddProduct) for i in instructions):
            lines.append(lattice.square(lattice.line_lattice(2.0, self.half)))
        maps = [i for i in instructions if isinstance(i, MapSlots)]
        names = dict.fromkeys(name for one_map in maps for name in one_map.functions())
        needed, width = needed_functions(self.problem), self.settings.kink_width
        reach = ROUNDING_ROOM * largest_argument(self.problem, self.forward)
        beyond = jump_offsets(self.problem)
        ends = {name: reach + beyond.get(name, 0.0) for name in names}
        sums = (fit_relu_sum(needed[n], -end, end, kink_width=width) for n, end in ends.items())
        return (*lines, *self.look_ups, *sums)

    def layout(
        self, layers: Iterable[Layer], functions: Iterable[Function], update: UpdateLayers
    ) -> Layout:
        """Lay out the slots that the layers write, and the constants of registers and MLPs."""
        target, written = self.target, _written(layers)
        outputs, widths = (target.output_width,), list(enumerate(target.widths[1:], start=1))
        kinds = ("preactivation", "gate", "units")
        scratch = {f"{kind}_{j}": (width,) for kind in kinds for j, width in widths}
        scratch |= {
            slot: (width,) for j, width in widths for slot in separate_positive_slots(target, j)
        }
        scratch |= {f"{kind}_{j}": (width,) for kind in ("slope", "delta") for j, width in widths}
        scratch |= {f"loss_part_{number}": outputs for number in range(1, len(self.loss_terms) + 1)}
        scratch[SHARES] = outputs
        values = [value_slot(f.name) for f in functions if isinstance(f, LatticeFunction)]
        flags = (ONE, IS_EXAMPLE, IS_QUERY, LOG_EXAMPLES, *REGISTER_SLOTS)
        constants = (*flags, *update.constants, *self.classes, *values)
        used = [(name, shape) for name, shape in scratch.items() if name in written]
        return network_layout(target, used, constants, update.slots)


def _fitted(
    problem: Problem, forward: Ranges, settings: SoftmaxStack, fewest: int
) -> tuple[LatticeFunction, ...]:
    """Fit the smooth functions on one lattice that covers all their arguments."""
    functions = look_up_functions(problem)
    if not functions:
        return ()
    sizes = zip(activations_of(problem.network), forward.preactivations, strict=True)
    arguments = [size for r, size in sizes if r.value.kind == "smooth"]
    arguments += [
        largest_loss_argument(problem, term, forward.outputs[-1])
        for term in loss_terms(problem)
        if term.function.kind == "smooth"
    ]
    reach = max(arguments)
    if settings.registers is not None:
        return lattice.fit_on_lattice(functions, reach, settings.registers // 2 - 1)
    accuracy = lattice.ACCURACY[settings.dtype]
    return lattice.fit_to_accuracy(functions, reach, accuracy, fewest // 2 - 1)
