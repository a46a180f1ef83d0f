r"""linear-stack: a block of two or three layers trains a linear model on any number of examples.

Every column holds [x_i; y_i; w; b; 1]. The block replaces w and b in every column by one step of
(proximal) gradient descent, and is repeated once per step.

    grid        mean_i = mu(<w, x_i> + b) in every column, and w -= step_size * l2 * w
    attention   w -= step_size * share * sum_i (mean_i - y_i) x_i, and b likewise
    MLP         soft threshold at step_size * l1, and the box

The first head reads tokens that a linear map makes from the first column, one token per possible
label of the model (`approximation/lattice.py`). Its softmax weights are the model's probabilities
of these labels, so the head returns the expected label mu. The share of an example, 1 / n for a
mean and 1 for a sum, stands in the prompt, so one transformer serves prompts of every length.
cot's Theorems 3.1 to 3.3 descend the same risks by one layer with a separate head per example.

The attention layer uses ReLUs. Pure softmax attention with fixed weights cannot return a sum over
n examples for every n, because a softmax average never exceeds the largest value, but it can
return their mean. Mirrored heads do so: they have mean_i - y_i in their scores and read all
columns and their negatives. For least squares the score holds <w, x_i> + b - y_i itself, and one
layer of softmax attention is the whole gradient step:

    mirror      w -= step_size * (mean over i of (<w, x_i> + b - y_i) x_i + l2 * w), and b likewise
    MLP         soft threshold at step_size * l1, and the box

At the queries the head of the first layer returns the prediction mu(<w, x> + b).

Momentum m adds slots v, the changes of w and b in the last step, but no layer:

    grid        mean_i = mu(<w, x_i> + b), for Nesterov at w + m v; one more head sets
                v = m v - step_size * l2 * w, for Nesterov at w + m v, and w += v
    attention   adds the gradient to w and to v
    MLP         soft threshold and box, applied to w, with the same change of v

so that afterwards v is again the change of w. If momenta differ from step to step, as in FISTA,
every step has its own first layer; otherwise one block serves all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log2
from typing import ClassVar

import torch

from icgd.approximation.lattice import mean_of_link
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.constructions.base import AbstractConstruction, require_few_steps
from icgd.constructions.network import ROUNDING_ROOM
from icgd.problems.functions import IDENTITY_FUNCTION
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.problems.settings import count, set_fields
from icgd.program.instructions import (
    ClipSlots,
    Combination,
    Instruction,
    MapSlots,
    Summand,
    WipeSlots,
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
    Role,
    Slot,
)
from icgd.program.linear_instructions import (
    DecaySlot,
    DescendExamples,
    DescendMirrored,
    DescendSquares,
    MoveByVelocity,
    PredictMean,
    ShrinkMoved,
    ShrinkSlot,
)
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

FARTHEST = 2.0**1000
"""Scores must stay below this so that heads can compare them with larger numbers; scores and step
sizes below its reciprocal are subnormal or close to it."""

FARTHEST_MIRRORED = 2.0**900
"""The limit for mirrored heads, whose factors and gates are up to a billion times larger."""

MOST_DIFFERENT = 3 * 10**4
"""The largest number of steps with separate layers; more take minutes and gigabytes."""

COEFFICIENTS, INTERCEPT, MEAN = "w", "b", "mean"
"""Slots of the coefficients, of the intercept, and of the expected label."""

LARGEST_SCORES = (1e-5, 1e-3, 7e-3, 1.7e-2)
"""The largest score of the first head, for 1 to 4 mirrored heads. It is a compromise: larger scores
increase the truncation error of the mean, smaller ones amplify the rounding of softmax weights. A
third of these values is best if residuals reach their bound, three times if all are far smaller."""

TOKENS = {"mean": TOKENS_PER_EXAMPLE, "sum": N_TOKENS}
"""The slot that holds n_tokens times the share of an example, for each reduction of the loss."""


@dataclass(frozen=True)
class LinearStack(AbstractConstruction):
    """A block of three layers per step, for every link and penalty.

    Args:
        mirrored_heads: 0 for attention with ReLUs in the second layer, or 1 to 4 heads of pure
            softmax attention, each of which raises the order of the error by one. They need a mean
            over the examples, and make a step of least squares one attention layer and an MLP.

    Raises:
        SettingError: if `mirrored_heads` is not between 0 and 4.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2, "logistic"), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.LinearStack(), n_steps=4).summary().layers_per_step
        3
    """

    name: ClassVar[str] = "linear-stack"
    target: ClassVar[type] = LinearModel
    mirrored_heads: int = 0

    def __post_init__(self) -> None:
        most = len(LARGEST_SCORES)
        set_fields(
            self, mirrored_heads=count("mirrored_heads", self.mirrored_heads, least=0, most=most)
        )

    def objection(self, problem: Problem) -> str | None:
        if self.mirrored_heads and problem.model.reduction != "mean":
            return (
                "mirrored_heads are softmax attention, which returns a mean over the examples, not "
                "a sum; give mirrored_heads=0, for attention with ReLUs, which can sum, or "
                "LinearModel(reduction='mean')."
            )
        if problem.proximal_step.step_size is not None and problem.box is None:
            return "its heads read grids that cover what a box allows; give ProximalStep(box=...)."
        if objection := numbers_objection(problem):
            return objection
        farthest = max(allowed_score(problem), problem.domain.y)
        if self.mirrored_heads and not farthest < FARTHEST_MIRRORED:
            return (
                f"mirrored_heads compute large multiples of scores and labels, which reach "
                f"{farthest:g} here, so they overflow float64; give a smaller box or domain, or "
                "mirrored_heads=0."
            )
        return None

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        model, update, box = problem.model, problem.proximal_step, problem.box or inf
        update.require_steps(n_steps)
        require_few_steps(update, n_steps, MOST_DIFFERENT)
        step_size, reach = update.step_size or 1.0, score_reach(problem)
        width, tokens = model.input_width, TOKENS[model.reduction]
        n_weights = 1 + model.intercept
        weights, inputs = (COEFFICIENTS, INTERCEPT)[:n_weights], ("x", ONE)[:n_weights]
        shapes = ((1, width), (1, 1))[:n_weights]
        has_momentum = update.momentum is not None
        velocities = tuple(f"velocity_{name}" for name in weights if has_momentum)
        # The gate, a power of two, exceeds the largest |mean - y|.
        mean = mean_of_link(model.link, reach)
        largest = max(map(abs, mean.values)) + ROUNDING_ROOM * problem.domain.y
        gate = 2.0 ** (1 + max(0, ceil(log2(1 + largest))))

        # The soft threshold includes the box; weights without a threshold are only clipped.
        shrinks: list[Instruction] = []
        threshold, decay = step_size * update.l1, step_size * update.l2
        if has_momentum:
            pairs = zip(weights, velocities, (threshold, 0.0), strict=False)
            shrinks += [ShrinkMoved(slot, velocity, by, box) for slot, velocity, by in pairs]
        else:
            if update.l1:
                shrinks.append(ShrinkSlot(COEFFICIENTS, threshold, box))
            if clipped := weights[1:] if update.l1 else weights:
                shrinks.append(ClipSlots(clipped, box, ONE))
        # With momentum, the heads of the gradient write the same change to weights and velocities.
        moved = (*weights, *velocities)
        read = inputs * (1 + has_momentum)
        wipe = WipeSlots((MEAN,))
        descend: Instruction = DescendExamples(MEAN, "y", read, moved, tokens, gate, -step_size)
        if n_heads := self.mirrored_heads:
            # Mirrored heads have probe * (mean - y) in their scores, which must stay small. Means
            # increase with the score, so the largest residual occurs at an end of the range.
            ends = torch.tensor([-reach, reach], dtype=torch.float64)
            residual = float(model.link_function.mean(ends).abs().max()) + problem.domain.y
            probe = LARGEST_SCORES[n_heads - 1] / residual
            # Queries are not examples: their scores are bounded by box and domain only.
            closed = MASKED / probe + 2 * max(gate, allowed_score(problem))
            descend = DescendMirrored(MEAN, "y", read, moved, n_heads, probe, closed, -step_size)
        # For least squares the score itself contains the residual, so no layer computes the mean.
        in_one_layer = bool(n_heads) and model.link == "identity"

        def step_layers(step: int) -> list[Layer]:
            """Return the layers of a step, counted from 0."""
            look = PredictMean(model.link, weights, inputs, reach, IS_EXAMPLE, MEAN)
            momentum, ahead = update.momentum_of(step), update.lookahead_of(step)
            factors = (1.0,) * n_weights + (ahead,) * len(velocities)
            if ahead:  # Nesterov evaluates the mean at w + ahead * v
                look = replace(look, weights=moved, inputs=read, factors=factors)
            # The decay by the l2 penalty, and the share of the last change that momentum keeps.
            moves: list[DecaySlot | MoveByVelocity] = []
            if has_momentum:
                pairs = zip(weights, velocities, (decay, 0.0), strict=False)
                moves += [
                    MoveByVelocity(slot, velocity, momentum, ahead, by)
                    for slot, velocity, by in pairs
                ]
            elif decay:
                moves.append(DecaySlot(COEFFICIENTS, -decay))
            if in_one_layer:
                heads, by = (n_heads, probe, closed), (reach, -step_size, tuple(moves))
                squares = DescendSquares("y", read, moved, factors, *heads, *by)
                return [Layer("gradient step", (squares,)), Layer("penalty", (*shrinks,))]
            return [
                Layer("expected labels", (look, *moves)),
                Layer("gradient step", (descend,)),
                Layer("penalty", (*shrinks, wipe)),
            ]

        # The prediction: the mean at the queries, copied into y.
        predict = PredictMean(model.link, weights, inputs, reach, IS_QUERY, MEAN)
        copied = Summand(Combination.of(MEAN), IDENTITY_FUNCTION.name)
        copy = MapSlots((copied,), IS_QUERY, (IS_EXAMPLE,), gate, "y")
        constants = [ONE, IS_EXAMPLE, IS_QUERY]
        if not n_heads:
            constants.append(tokens)
        if in_one_layer and (decay or has_momentum):
            constants.append(IS_FIRST)
        layout = Layout(
            (
                Slot("x", (width,), Role.INPUT),
                Slot("y", (1,), Role.LABEL),
                *(Slot(*slot, Role.PARAMETER) for slot in zip(weights, shapes, strict=True)),
                *(Slot(*slot, Role.VELOCITY) for slot in zip(velocities, shapes, strict=False)),
                Slot(MEAN, (1,), Role.SCRATCH),
                *(Slot(name, (1,), Role.CONSTANT) for name in constants),
            )
        )
        are_equal = update.is_constant or n_steps == 0
        steps = range(1) if are_equal else range(n_steps)
        return StackProgram(
            construction=self.name,
            layout=layout,
            functions=(mean, fit_relu_sum(IDENTITY_FUNCTION, -gate, gate)),
            block=tuple(layer for step in steps for layer in step_layers(step)),
            n_steps=n_steps,
            steps_per_block=1 if are_equal else n_steps,
            prediction=(
                Layer("expected label", (predict,)),
                Layer("copy prediction", (copy, wipe)),
            ),
        )


def numbers_objection(problem: Problem) -> str | None:
    """Return why the weights of the heads would leave the range of float64, or None."""
    update, reach = problem.proximal_step, score_reach(problem)
    if update.step_size is None:
        return (
            "its weights contain the step size; give one, or use icgd.sized_problem(problem, X), "
            "which chooses it from the curvature of the data."
        )
    if update.step_size < 1 / FARTHEST:
        return (
            f"step_size={update.step_size:g} is so small that it loses digits when it is divided "
            f"by the number of examples; give at least {1 / FARTHEST:.2g}."
        )
    if not (farthest := max(reach, problem.domain.y)) < FARTHEST:
        return (
            f"its heads compare all scores and labels, which reach {farthest:g} here, too large "
            "for float64; give a smaller box or domain, or Domain(score=...)."
        )
    if not reach > 1 / FARTHEST:
        return (
            f"its heads read grids that cover all scores, which reach only {reach:g} here, too "
            "small for float64; give a larger box or domain."
        )
    return None


def score_reach(problem: Problem) -> float:
    """Return the largest score that the program's grids cover, with room for rounding."""
    return ROUNDING_ROOM * min(allowed_score(problem), problem.domain.score or inf)


def allowed_score(problem: Problem) -> float:
    """Return the largest score of inputs in the domain and weights in the box."""
    model, reach = problem.model, (problem.box or inf) * problem.proximal_step.overshoot
    return reach * (model.input_width * problem.domain.x + model.intercept)
