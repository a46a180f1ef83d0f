r"""cot-network: one softmax block, reused, trains an N-layer network by chain of thought.

The block is MLP - softmax attention - MLP, the same weights for all layers and both passes, so
that it does not grow with N. It is shown two blocks of the chain (`program/chain.py`) and writes
the next one. Blocks have the rows

              first      second         flat               weights                   flags
    F_i       o_i        o_{i-1}        relu(c - z_i) / c  W_i                       is_forward
    B_i       delta_i    W_i^T delta_i  0                  W_i - eta/2b delta o^T    is_backward
    X, Y      x or y     0              0                  0                         is_data

with a column of `first`, `second` and `flat` for each of the b examples of the round, and flags
that travel with the weights: whether the layer is linear, has a kink, or which smooth activation.

    MLP         by the flags: inputs o_{i-1} or x, the weights, the outputs o_{i-1} that the
                gradient needs, and delta_i = r'(z_i) * W_{i+1}^T delta_{i+1}, or r' * 2 (o_N - y)
    attention   z = W o, delta o^T and W^T delta, one head for each entry, over a grid of tokens
                that a linear map along the sequence makes
    MLP         o = r(z), where r is flat, the clipped weights, and the flags of the new block

The paper treats ReLU. Beyond it (`parts/chain_block.py`):

- smooth activations: the grid holds values of r and r' too, so that heads return r(z) and r'(z).
  F carries the slope, and delta = slope * up is a product of two rows: an attention layer of its
  own, MLP - attention - attention - MLP. A softplus, gelu or silu is z gate(z) + rest(z), and the
  second attention multiplies; so all that is looked up is bounded, and no table limits z.
- the logistic loss: F carries sigmoid(z), so that its slope is a difference too. The slope of the
  huber loss is a clip, which an MLP does exactly.
- classes: F carries softmax(z), and the slope is a difference again. A head whose keys are one
  token for each class, with the scores z, returns the shares themselves. It reads z, so it stands
  in the second attention layer, which a kinked network then has too.
- momentum and weight decay: what an optimiser remembers travels beside the weights, and the last
  MLP combines it with them. Where rounds differ, as in a schedule, that MLP has the combination of
  every rule, and the prompt has the number of the round's rule beside its labels, in bits that
  close all others.
- biases: a padded unit is the constant 1, and the last column of the weights multiplies it.

All widths are padded with zeros to the largest one. Where a padded unit would not stay 0, a row
that travels with the weights names it, and gates close it, exactly. MLPs are exact, so that only
the grid errs, by rounding and by 1e-11 in what is looked up, and a unit on a kink: z in (0, c).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, floor, log2
from typing import ClassVar

from icgd.approximation import lattice
from icgd.constructions.base import AbstractConstruction, given_kink_width, name_dtype
from icgd.constructions.parts import network as sizes
from icgd.constructions.parts.chain_block import ChainBlock, LossSlope, Reaches
from icgd.constructions.parts.network import (
    LARGEST_ARGUMENT,
    ROUNDING_ROOM,
    activations_of,
    largest_output,
    looked_up,
    require_few_ends,
)
from icgd.errors import ConstructionError
from icgd.problems.activations import IDENTITY_FUNCTION, Activation
from icgd.problems.functions import KinkedFunction, SmoothFunction
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GRADIENT, WEIGHTS, AbstractGradientStep, Rule
from icgd.problems.problem import Problem
from icgd.problems.settings import settle
from icgd.program.chain import KINKED, LARGEST_STATE, LINEAR, ChainProgram
from icgd.program.functions import LatticeFunction

LARGEST_REACH = 2.0**12
"""Largest entry of a product that a grid covers: a run that leaves it is stopped. A head loses
about 1e-15 of the reach to rounding, and what a domain allows grows like its N-th power."""

SMALLEST_REACH = 2.0**-60
"""No grid, and no look-up, covers less. A head loses about 1e-15 of this to rounding, and its
inverse times the largest argument is still a number of float32."""

LARGEST_MOVE = 2.0**900
"""Gates are powers of two that are larger still, and their sums are numbers of float64."""

KINK_SHARE = 2.0**-40
"""Width of a kink as a share of the largest preactivation that a grid covers. A narrow one loses no
digits here; it is 1000 times what a head loses, so that a unit at 0, behind units that are all
flat, is flat too."""

GRID_HALF = 15
"""With 31 grid tokens lines have full accuracy; what is looked up may need more."""


@dataclass(frozen=True)
class CotNetwork(AbstractConstruction):
    """2N blocks a round, all by the same three layers, or four.

    Smooth activations and classes take the fourth.

    Args:
        kink_width: the width of kinks, a power of two; the default is 2^-40 of the largest
            preactivation.
        dtype: the precision in which what is looked up has full accuracy.

    Raises:
        SettingError: if `kink_width` is no power of two from 2^-60 to 1.
        UnknownNameError: if no dtype has this name.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 2, 1), "relu"), icgd.GradientStep(0.1, 1.0, batch_size=1)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, icgd.CotNetwork(), n_steps=2)
        >>> compiled.run([[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5]).parameters.shape
        torch.Size([3, 6])
    """

    kink_width: float | None = None
    dtype: str = "float64"

    name: ClassVar[str] = "cot-network"
    takes_batches: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = True
    takes_biases: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, kink_width=given_kink_width(self.kink_width))
        name_dtype(self)

    def objection(self, problem: Problem) -> str | None:
        if problem.gradient_step.batch_size is None:
            return (
                "its blocks have a column for each example of a round; give batch_size=1 for one "
                "example a round, or the number of all examples for all of them."
            )
        return _loss_problem(problem) or _activation_problem(problem) or _size_problem(problem)

    def build(self, problem: Problem, n_steps: int) -> ChainProgram:
        problem.gradient_step.require_steps(n_steps)
        rules, numbers = _numbered(_rules(problem.gradient_step, n_steps))
        block = _block(problem, self, rules)
        return ChainProgram(
            construction=self.name,
            rows=block.rows(),
            layout=block.layout(),
            functions=(lattice.identity(_line(block.look_ups)), *block.look_ups),
            layers=block.layers(),
            shapes=problem.network.matrix_shapes,
            kinds=tuple(_kind(activation) for activation in activations_of(problem.network)),
            batch_size=block.batch_size,
            n_steps=n_steps,
            rules=numbers if len(rules) > 1 else (),
        )


def for_depth(problem: Problem, program: ChainProgram, depth: int) -> tuple[Problem, ChainProgram]:
    """The problem with a target of `depth` layers, and the program that trains it by this block.

    Input, output and hidden layers keep their widths; without a hidden layer, hidden layers get
    the input's. The mask, the widths and the kinds of layers belong to the depth; the layers of
    the block, their grids and their gates stay as they are. A run that leaves a grid is stopped.
    """
    target = problem.network
    deeper = replace(target, widths=_widths_at(target.widths, depth))
    known = {activation.name for activation in activations_of(target)}
    if missing := [a.name for a in activations_of(deeper) if a.name not in known]:
        raise ConstructionError(
            f"A network of depth={depth} has layers with the activation {missing[0]}, which the "
            "block was not compiled for. Compile a target that has a hidden layer."
        )
    kinds = tuple(_kind(activation) for activation in activations_of(deeper))
    program = replace(program, shapes=deeper.matrix_shapes, kinds=kinds)
    return replace(problem, target=deeper), program


def _widths_at(widths: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """The widths of a target of `depth` layers, whose hidden layers are all alike."""
    if depth == len(widths) - 1:
        return widths
    hidden = widths[1:-1] or widths[:1]
    if len(set(hidden)) > 1:
        raise ConstructionError(
            f"depth={depth} does not say how wide the hidden layers are, because those of "
            f"widths={tuple(widths)} differ. Compile a target whose hidden layers all have one "
            "width."
        )
    return (widths[0], *hidden[:1] * (depth - 1), widths[-1])


def _line(look_ups: tuple[LatticeFunction, ...]) -> lattice.Lattice:
    """The grid of products, with as many tokens as that of the look-ups."""
    return lattice.line_lattice(1.0, look_ups[0].half if look_ups else GRID_HALF)


def _kind(activation: Activation) -> str:
    """The flag of layers with this activation."""
    if activation.value == IDENTITY_FUNCTION:
        return LINEAR
    return KINKED if isinstance(activation.value, KinkedFunction) else activation.name


def _kinked(target: MLP) -> dict[str, KinkedFunction]:
    """The activations with a kink, each once."""
    values = (activation.value for activation in activations_of(target))
    return {v.name: v for v in values if isinstance(v, KinkedFunction) and v.knots}


def _loss_problem(problem: Problem) -> str | None:
    output = activations_of(problem.network)[-1]
    if _loss_slope(problem).part and _kind(output) != LINEAR:
        return (
            f"the slope of the {problem.loss} loss is taken from z_N, which is the prediction "
            f"of a linear output only, not of {output.name}; use output_activation='identity'."
        )
    return None


def _activation_problem(problem: Problem) -> str | None:
    names = list(_kinked(problem.network))
    reason = f"all layers share a block with one kinked activation, not {' and '.join(names)}."
    return reason if len(names) > 1 else None


def _size_problem(problem: Problem) -> str | None:
    largest = max(problem.domain.x, problem.domain.y, problem.gradient_step.box)
    if largest > LARGEST_ARGUMENT:
        return (
            f"its inputs, labels or weights can reach {largest:.3g}, where float64 leaves no "
            "digits beside them; use a smaller box or domain."
        )
    update = problem.gradient_step
    n_steps = len(update.step_size) if isinstance(update.step_size, tuple) else 2
    moved = _largest_move(problem, _rules(update, n_steps), _reaches(problem).gradient)
    if moved <= LARGEST_MOVE:
        return None
    return (
        f"a step can make weights or what is remembered as large as {moved:.3g} before they are "
        "clipped, and no gate closes that; use a smaller step size, momentum or weight decay."
    )


def _loss_slope(problem: Problem) -> LossSlope:
    """u(p, y), whose parts are straight lines, a clipped one, or a function of p alone.

    That of classes is softmax(p) - y.
    """
    if problem.loss_function.is_softmax:
        return LossSlope(1.0, 1.0, n_classes=problem.network.output_width)
    prediction = label = 0.0
    function = bound = None
    for part in sizes.loss_parts(problem):
        if isinstance(part.function, KinkedFunction):
            steepest = max(part.function.slopes, key=abs)
            prediction += steepest * part.prediction
            label -= steepest * part.label
            bound = max(part.function.knots, default=None)
        else:
            prediction, function = 1.0, part.function.name
    return LossSlope(prediction, label, function, bound)


def _block(problem: Problem, settings: CotNetwork, rules: tuple[Rule, ...]) -> ChainBlock:
    update, target = problem.gradient_step, problem.network
    reaches = _reaches(problem)
    moved = _largest_move(problem, rules, reaches.gradient)
    up = 2 * (problem.domain.y + reaches.forward)
    look_ups = _tables(problem, reaches.forward, settings.dtype)
    line = _line(look_ups)
    # B_1 may leave its grid (`backends/chain.py`): heads return up to its last token.
    backward = line.half * line.spacing * reaches.backward
    largest = max(problem.domain.x, up, backward, moved, 1.0)
    smooth = {a.name: a for a in activations_of(target) if isinstance(a.value, SmoothFunction)}
    leaks = [value.slopes[0] for value in _kinked(target).values()]
    return ChainBlock(
        width=max(size for shape in target.matrix_shapes for size in shape),
        batch_size=update.batch_size or 1,
        rules=rules,
        gradient_factor=update.gradient_factor,
        box=update.box,
        leak=leaks[0] if leaks else 0.0,
        kink_width=settings.kink_width or KINK_SHARE * 2.0 ** floor(log2(reaches.forward)),
        smooth=tuple(smooth.values()),
        look_ups=look_ups,
        loss=_loss_slope(problem),
        has_biases=target.biases,
        reaches=reaches,
        gate=2.0 ** (2 + ceil(log2(largest))),
    )


def _rules(update: AbstractGradientStep, n_steps: int) -> list[Rule]:
    """The rule of every step, or the one that all of them have."""
    require_few_ends(update, n_steps, n_sums=1)
    return [update.rule(step) for step in range(1 if update.is_constant else max(n_steps, 1))]


def _numbered(steps: list[Rule]) -> tuple[tuple[Rule, ...], tuple[int, ...]]:
    """The rules, each once, and for every step the number of its rule."""
    rules = {repr(rule): rule for rule in steps}
    numbers = {name: number for number, name in enumerate(rules)}
    return tuple(rules.values()), tuple(numbers[repr(rule)] for rule in steps)


def _largest_move(problem: Problem, rules: Iterable[Rule], gradient: float) -> float:
    """The largest size of new weights, before they are clipped, and of what is remembered."""
    update = problem.gradient_step
    largest = {WEIGHTS: update.box, GRADIENT: update.gradient_factor * gradient}
    largest |= dict.fromkeys(update.state, LARGEST_STATE)
    sums = (terms for rule in rules for terms in rule.linear.values())
    return max(sum(abs(factor) * largest[name] for name, factor in terms.items()) for terms in sums)


def _reaches(problem: Problem) -> Reaches:
    """The sizes that grids must cover on the domain, or the largest that they can."""
    update, target = problem.gradient_step, problem.network
    ranges = sizes.ranges_on_domain(problem, 0.0, largest_output)
    backward = sizes.backward_ranges(problem, ranges, 0.0)
    pulled_back = max(
        width * update.box * delta
        for width, delta in zip(target.widths[1:], backward.deltas, strict=True)
    )
    gradient = (update.batch_size or 1) * max(backward.deltas) * max(*ranges.outputs, 1.0)
    return Reaches(
        forward=_reach(max(ranges.preactivations)),
        delta=_reach(max(backward.deltas)),
        backward=_reach(pulled_back),
        gradient=_reach(gradient),
    )


def _reach(size: float) -> float:
    """The size with some room, or the largest reach, also where the size is not a number."""
    roomy = max(ROUNDING_ROOM * size, SMALLEST_REACH)
    return roomy if roomy < LARGEST_REACH else LARGEST_REACH


def _tables(problem: Problem, reach: float, dtype: str) -> tuple[LatticeFunction, ...]:
    """The look-ups, all with as many tokens as the worst needs, each with a spacing of its own.

    What is looked up is bounded, so that few tokens serve any reach.
    """
    functions, accuracy = looked_up(problem), lattice.ACCURACY[dtype]
    roomy = ROUNDING_ROOM * reach  # heads of the product are off by less than that
    halves = [GRID_HALF]
    while True:
        fits = [lattice.fit_to_accuracy((f,), roomy, accuracy, max(halves))[0] for f in functions]
        halves = [fit.half for fit in fits]
        if len(set(halves)) <= 1:
            return tuple(fits)
