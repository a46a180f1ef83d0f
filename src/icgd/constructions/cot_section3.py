r"""cot-ridge, cot-lasso, cot-glm: one softmax attention layer per step (cot, Theorems 3.1 to 3.3).

The prompt has a column [x_i; y_i; w; 1] for each of the n examples, and one for each query. A step
subtracts the gradient from w in every column, by heads of softmax attention over tokens

    T = sum_j P_j G Q_j + R,

a linear image of the n columns G: the map A of the paper. Head i depends on column i only. Its
token g has the key points[g] [x_i; y_i] + offsets[g] and the value values[g] x_i, and w is part of
every column's query. So its scores depend on s = <w, x_i> - y_i, its softmax weights are a discrete
Gaussian around s, and the head returns a function of s times x_i (`approximation/lattice.py`).

    cot-ridge   w -= step_size (1/n sum_i (<w, x_i> - y_i) x_i + l2 w)   n heads, one more for l2
    cot-lasso   the same, then the soft threshold, an MLP without biases  4d units
    cot-glm     w -= step_size sum_i (mu(<w, x_i>) - y_i) x_i            2n heads

In cot-glm the second head of an example returns y_i x_i. No head writes to x, y and 1, so these
are copied exactly. One more head predicts: the queries' columns ask with x, and the tokens hold w,
which gives mu(<w, x>) (the paper's Remark 3.2, which also subtracts the query's label, 0 here).

A box, which the theorems do not have, takes 2 hidden units per coefficient. Without a box,
`Domain(score=...)` must bound the scores, and a step without an l1 penalty is one attention layer
and nothing else.

`icgd.decode` runs the layer as a growing chain: it reads the last n columns and writes the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from icgd.approximation.lattice import line, mean_of_function, mean_of_link
from icgd.approximation.product_grid import mean_of_slope
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.linear_stack import (
    COEFFICIENTS,
    INTERCEPT,
    numbers_objection,
    score_reach,
)
from icgd.constructions.network import ROUNDING_ROOM, factor_of, loss_terms
from icgd.errors import ConstructionError
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.piecewise import Function
from icgd.problems.problem import Problem
from icgd.problems.scalar import ScalarFunction
from icgd.problems.sets import sets_in_words
from icgd.problems.settings import count, set_fields
from icgd.problems.steps import ProximalStep
from icgd.program.functions import GridMean
from icgd.program.instructions import ClipSlots, Instruction
from icgd.program.layout import IS_QUERY, ONE, Layout, Role, Slot
from icgd.program.linear_instructions import (
    DescendByExample,
    LookUp,
    PredictMean,
    ShrinkSlot,
)
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

LINE = "identity"
"""The function of a head that returns <w, x_i> - y_i, or y_i, itself."""


@dataclass(frozen=True)
class AbstractOneLayer(AbstractConstruction):
    """One layer of softmax attention per step; subclasses choose the models that they train.

    Args:
        n_examples: the number of examples in every prompt, which must be given.
    """

    n_examples: int | None = None

    target: ClassVar[type] = LinearModel
    is_last_resort: ClassVar[bool] = True
    joins_label: ClassVar[bool] = True
    """Whether one head returns score minus label, or labels have separate heads."""

    def __post_init__(self) -> None:
        if self.n_examples is not None:
            set_fields(self, n_examples=count("n_examples", self.n_examples))

    def objection(self, problem: Problem) -> str | None:
        model, update = problem.model, problem.proximal_step
        if update.momentum is not None:
            return "its columns have no slot for the last change of w, which momentum needs."
        if update.box is None and problem.domain.score is None:
            return (
                "its heads read grids that cover all scores; give ProximalStep(box=...), or "
                "Domain(score=...) for a step without a box."
            )
        if self.joins_label and model.link != LINE:
            return f"it fits least squares, not the {model.link} link; use cot-glm."
        return self.other_model(model, update) or numbers_objection(problem)

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        """Return why the construction does not train a model with these penalties, or None.

        Args:
            model: the linear model.
            update: its update.

        Returns:
            The reason or None.

        Example:
            >>> import icgd
            >>> icgd.CotRidge().other_model(icgd.LinearModel(2), icgd.ProximalStep(l1=0.1))
            'it has no soft threshold for l1; use cot-lasso.'
        """
        return None

    def _require_n_examples(self) -> int:
        """Return the number of examples, or raise `ConstructionError` if it was not given."""
        if self.n_examples is None:
            raise ConstructionError(
                f"{self.name} has heads for each example, so it needs the number of examples. "
                f'Give it: icgd.compile(problem, "{self.name}", n_steps=..., n_examples=...).'
            )
        return self.n_examples

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        n_examples = self._require_n_examples()
        model, update, reach = problem.model, problem.proximal_step, score_reach(problem)
        label_reach = ROUNDING_ROOM * problem.domain.y
        # Least squares needs <w, x> - y, a single score. With a link, mu(<w, x>) and y are looked
        # up by separate heads, because mu is not linear.
        if self.joins_label:
            functions: tuple[GridMean, ...] = (line(LINE, reach + label_reach),)
            look_ups: tuple[LookUp, ...] = (LookUp(LINE, score=1.0, label=-1.0),)
        else:
            functions = (line(LINE, max(reach, label_reach)),)
            if model.link != LINE:
                functions = (mean_of_link(model.link, reach), line(LINE, label_reach))
            look_ups = (
                LookUp(model.link, score=1.0, label=0.0),
                LookUp(LINE, score=0.0, label=1.0, factor=-1.0),
            )
        # The MLP: a soft threshold that includes the box, or the box alone.
        step_size, shrinks, box = update.step_size or 1.0, list[Instruction](), update.box
        names = (COEFFICIENTS, INTERCEPT)[: 1 + model.intercept]
        if update.l1:
            shrinks.append(ShrinkSlot(COEFFICIENTS, step_size * update.l1, box))
        if box is not None and (clipped := names[1:] if update.l1 else names):
            shrinks.append(ClipSlots(clipped, box, ONE))
        return one_layer(
            self.name,
            n_steps,
            functions,
            DescendByExample(
                look_ups,
                "y",
                ("x", ONE)[: len(names)],
                names,
                n_examples,
                reach,
                scale=-step_size * model.loss_scale(n_examples),
                decay=-step_size * update.l2,
            ),
            shrinks,
            model.link,
            model.input_width,
        )


def one_layer(
    name: str,
    n_steps: int,
    functions: tuple[GridMean, ...],
    descend: DescendByExample,
    shrinks: Sequence[Instruction],
    mean: str,
    width: int,
) -> StackProgram:
    """Return the program whose step is the layer `descend`, and an MLP if there are `shrinks`."""
    weights, shapes = descend.weights, ((1, width), (1, 1))
    slots = (Slot(w, shape, Role.PARAMETER) for w, shape in zip(weights, shapes, strict=False))
    predict = PredictMean(
        mean, weights, descend.inputs, descend.reach, IS_QUERY, "y", n_examples=descend.n_examples
    )
    example = (Slot("x", (width,), Role.INPUT), Slot("y", (1,), Role.LABEL))
    penalty = (Layer("penalty", tuple(shrinks)),) if shrinks else ()
    return StackProgram(
        construction=name,
        layout=Layout((*example, *slots, Slot(ONE, (1,), Role.CONSTANT))),
        functions=functions,
        block=(Layer("gradient step", (descend,)), *penalty),
        n_steps=n_steps,
        prediction=(Layer("expected label", (predict,)),),
    )


@dataclass(frozen=True)
class CotRidge(AbstractOneLayer):
    """Least squares with an optional l2 penalty: one head per example (cot, Theorem 3.2).

    Args:
        n_examples: the number of examples in every prompt, which must be given.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.CotRidge(n_examples=8), n_steps=4).summary().max_heads
        8
    """

    name: ClassVar[str] = "cot-ridge"

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        return "it has no soft threshold for l1; use cot-lasso." if update.l1 else None


@dataclass(frozen=True)
class CotLasso(AbstractOneLayer):
    """Least squares with an l1 penalty and an optional l2 penalty (cot, Theorem 3.3).

    Args:
        n_examples: the number of examples in every prompt, which must be given.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, l1=0.1)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0, score=3.0))
        >>> icgd.compile(problem, icgd.CotLasso(n_examples=8), n_steps=4).summary().d_mlp
        8
    """

    name: ClassVar[str] = "cot-lasso"

    def other_model(self, model: LinearModel, update: ProximalStep) -> str | None:
        return None if update.l1 else "it has a soft threshold, and l1 is 0; use cot-ridge."


@dataclass(frozen=True)
class CotGlm(AbstractOneLayer):
    """Any link with any penalty: two heads per example (cot, Theorem 3.1).

    It also trains linear networks `MLP((d, 1))` with any loss (Lemma 3.1). If the slope of the loss
    is a sum of functions, each of one combination of prediction and label, every example has one
    head per function. Any other analytic slope takes one head per example, which looks the slope up
    on a two-dimensional grid of prediction and label.

    Args:
        n_examples: the number of examples in every prompt, which must be given.
        grid_tokens: the number of tokens of a head whose function has a kink; the error is
            proportional to 1 / grid_tokens.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2, "logistic"), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.CotGlm(n_examples=8), n_steps=4).summary().max_heads
        16
    """

    grid_tokens: int = 256

    name: ClassVar[str] = "cot-glm"
    joins_label: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, grid_tokens=count("grid_tokens", self.grid_tokens, least=2))

    def trains(self, problem: Problem) -> bool:
        return isinstance(problem.target, LinearModel | MLP)

    def objection(self, problem: Problem) -> str | None:
        if isinstance(problem.target, LinearModel):
            return super().objection(problem)
        network, update = problem.network, problem.gradient_step
        is_linear = network.depth == network.output_width == 1 and not network.biases
        if not is_linear or network.output_activation != LINE or not network.is_chain:
            return (
                "the only networks that it trains are linear ones with one output and no bias, "
                f"icgd.MLP(({network.input_width}, 1))."
            )
        if not update.is_plain or update.batch_size is not None or problem.domain.rate is not None:
            return f"it takes plain gradient steps on all examples, not {update.in_words()}."
        if problem.network_oracle.sets.bound is None:
            return f"it projects all weights onto one box, not onto {sets_in_words(update.box)}."
        if problem.loss_function.is_softmax:
            return "the slope of the cross-entropy couples all outputs."
        for term in loss_terms(problem):
            function = term.function
            if isinstance(function, Function) and any(function.jumps):
                return (
                    f"the slope of the {problem.loss} loss jumps at {function.knots[0]:g}, and a "
                    "mean over tokens is continuous; use relu-stack."
                )
        return None

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        if isinstance(problem.target, LinearModel):
            return super().build(problem, n_steps)
        n_examples = self._require_n_examples()
        network, update, domain = problem.network, problem.gradient_step, problem.domain
        reach = ROUNDING_ROOM * update.reach * network.input_width * domain.x
        # The look-ups of each term of the slope, and the largest argument of each function.
        look_ups, reaches = [], {LINE: reach}  # LINE also returns predictions
        kinds: dict[str, ScalarFunction] = {}
        slopes: tuple[GridMean, ...] = ()
        if (loss := problem.loss_function).slope_terms is None:
            slopes = (mean_of_slope(loss, reach, ROUNDING_ROOM * domain.y),)
            look_ups.append(LookUp(loss.name, score=1.0, label=1.0, is_slope=True))
        for term in loss.slope_terms or ():
            name, factor = term.function.name, 1.0
            if (slope := factor_of(term.function)) is not None:
                name, factor = LINE, slope
            look_ups.append(LookUp(name, term.prediction, term.label, factor))
            size = abs(term.prediction) * reach + abs(term.label) * ROUNDING_ROOM * domain.y
            reaches[name], kinds[name] = max(size, reaches.get(name, 0.0)), term.function
        functions = tuple(
            line(LINE, size)
            if name == LINE
            else mean_of_function(kinds[name], size, self.grid_tokens)
            for name, size in reaches.items()
        )
        functions += slopes
        weights = "weights_1"
        scale = -update.size_of(0) / (2 * n_examples)
        descend = DescendByExample(
            tuple(look_ups), "y", ("x",), (weights,), n_examples, reach, scale
        )
        clip = ClipSlots((weights,), update.reach, ONE)
        return one_layer(self.name, n_steps, functions, descend, [clip], LINE, network.input_width)
