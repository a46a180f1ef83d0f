r"""universal: whole gradient steps of one weight, looked up in a table.

wu, Lemma 16 and Theorem 6, literally, at the sizes that fit in float64. A step is 4 layers:

    1  MLP        x, y and w, each divided by its range, rounded to one of `levels` levels
    2  attention  context = sum_t p_t v_t over the examples, with p = softmax(s), where s and v
                  are linear in the levels: a number that identifies the multiset of examples
    3  MLP        w = table(key), where the key is the context and the level of w
    4  MLP        clip the weight to the box, wipe all scratch

The lemma takes weights for layer 2 that tell contexts apart by exp(-(levels^2 + 1)^4 ...), which
no float64 holds. The head here has the same form (rank 1, softmax), with weights found by trying
some and keeping those that tell the finitely many contexts apart best. Keys are then scaled so
that any two are 1 apart at least, and a change of the level of w is a change of the key by 1.

The table is a staircase: constant within 7/32 of every key, so that it returns the answers
themselves although keys are rounded. Between neighbouring levels of w it runs from one answer to
the next, so a weight may lie anywhere. An x or y on the ramp between two levels has no context,
and is refused before a run. Predictions come from a table too, of levels^2 entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import ceil, lgamma, log, log2, log10
from typing import ClassVar

import torch
from torch import Tensor

from icgd.constructions.base import AbstractConstruction
from icgd.constructions.network import (
    ROUNDING_ROOM,
    backward_ranges,
    map_everywhere,
    network_layout,
    ranges_on_domain,
)
from icgd.errors import ConstructionError
from icgd.problems.functions import KinkedFunction
from icgd.problems.oracles import gradient, predict
from icgd.problems.problem import Problem
from icgd.problems.settings import LARGEST_COUNT, count, positive, power_of_two, settle, within
from icgd.program.functions import ReluSum
from icgd.program.instructions import IDENTITY, ClipSlots, Combination, MapSlots, Summand, WipeSlots
from icgd.program.layout import IS_EXAMPLE, IS_QUERY, ONE
from icgd.program.network_instructions import AverageExamples, LookUpStep
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

STEP_TABLE, PREDICTION_TABLE = "steps", "predictions"

LEVEL_SLOTS = ("level_x", "level_y", "level_w")
WEIGHT, CONTEXT = "weights_1", "context"

LARGEST_ANSWER = 1e12
"""Beyond this the rounding of the table is as large as the weights."""

MOST_ENTRIES = 2**16
"""The most entries of a table: those of 10 levels with 2 examples, or of 6 with 3."""

LARGEST_KEY = 2.0**27
"""Beyond this the rounding of keys is no longer small beside their distance."""

KINK_WIDTH = 2.0**-13
"""Default width of the ramps between levels."""

NARROWEST, WIDEST = 2.0**-30, 2.0**-6
"""Widths of the ramps between levels: rounding is divided by them, and levels are to be wider."""

TRIED_HEADS = 256
"""How many weights of the head in layer 2 are tried; more find little better ones."""


@dataclass(frozen=True)
class Universal(AbstractConstruction):
    """4 layers a step, for one weight and a fixed number of examples.

    Args:
        levels: the number of levels that every entry is put on.
        n_examples: the number of examples of the prompts that the table is for.
        kink_width: the width of the ramps between levels, as a share of half a range, a power of
            two.

    Raises:
        SettingError: if a number is out of its range.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((1, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.Universal(levels=3), n_steps=2).summary().layers_per_step
        4
    """

    levels: int = 4
    n_examples: int = 2
    kink_width: float = KINK_WIDTH

    name: ClassVar[str] = "universal"
    refined_by: ClassVar[str] = "levels"
    coarsest: ClassVar[int] = 2
    finest: ClassVar[int] = 6
    why_no_finer: ClassVar[str] = "The error falls like 1 / levels, and larger tables do not fit."
    is_last_resort: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(
            self,
            levels=count("levels", self.levels, least=2),
            n_examples=count("n_examples", self.n_examples),
            kink_width=power_of_two("kink_width", self.kink_width),
        )
        within("kink_width", self.kink_width, NARROWEST, WIDEST)

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        return ceil(min(setting * excess, float(LARGEST_COUNT)))  # the error falls as they grow

    def objection(self, problem: Problem) -> str | None:
        target = problem.network
        if target.n_parameters > 1:
            size = table_size(problem, self.n_examples, self.levels)
            return (
                "it looks whole steps up in a table, and is built for one weight only, widths "
                f"(1, 1). For widths {target.widths} with {size.n_examples} examples and "
                f"{size.levels} levels the table would need {size.levels}^({size.numbers} * "
                f"{size.n_examples}) = {size.paper_entries} entries ({size.entries} without "
                "repetitions)."
            )
        if problem.loss_function.slope_parts is None:
            return f"the slope of the {problem.loss} loss of a single output is 0."
        activation = target.layer_activation(1).value
        if isinstance(activation, KinkedFunction) and activation.knots:
            return (
                f"the gradient of {target.output_activation} jumps, so it has no Lipschitz "
                "constant, without which nothing is known between the levels of a table."
            )
        deltas = backward_ranges(problem, ranges_on_domain(problem, 0.0), 0.0).deltas
        update = problem.gradient_step  # a bound on |w - step_size * gradient|:
        largest = update.box + update.size_of(0) / 2 * deltas[0] * problem.domain.x
        if not largest <= LARGEST_ANSWER:
            return (
                f"a step can lead to {largest:.3g}, where float64 leaves no digits for the table; "
                "use a smaller step size, box or domain."
            )
        return None

    def may_be_accurate(self, problem: Problem) -> bool:
        return False

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        levels, n_examples, box = self.levels, self.n_examples, problem.gradient_step.box
        size = table_size(problem, n_examples, levels)
        if not log2(10) * size.log10_entries <= log2(MOST_ENTRIES):
            raise ConstructionError(
                f"levels={levels} with n_examples={n_examples} needs a table of {size.entries} "
                f"entries; at most {MOST_ENTRIES:,} fit. Give fewer levels or examples."
            )
        head = context_head(levels, n_examples)
        if head.largest_key > LARGEST_KEY:
            raise ConstructionError(
                f"levels={levels} with n_examples={n_examples} needs keys that are too close for "
                "float64 to tell apart. Give fewer levels or examples."
            )
        ranges = (problem.domain.x, problem.domain.y, box)
        to_levels = [
            map_everywhere(Combination((read,), (1 / reach,)), IDENTITY, write)
            for read, write, reach in zip(("x", "y", WEIGHT), LEVEL_SLOTS, ranges, strict=True)
        ]
        level_x, level_y, level_w = LEVEL_SLOTS
        score, value = (
            Combination((level_x, level_y), factors) for factors in (head.score, head.value)
        )
        look_up = LookUpStep(
            # The context and the level of w, whose neighbours are 1 apart.
            key=Combination((CONTEXT, level_w), (1.0, levels / 2)),
            table=STEP_TABLE,
            levels=LEVEL_SLOTS,
            ranges=ranges,
            activation=problem.network.output_activation,
            loss=problem.loss,
            scale=-problem.gradient_step.size_of(0) / 2,
            bound=2 * box,
            n_examples=n_examples,
            write=WEIGHT,
        )
        clip, wipe = ClipSlots((WEIGHT,), box, ONE), WipeSlots((*LEVEL_SLOTS, CONTEXT))
        # A prediction rounds x and w to levels again, and is looked up at queries.
        key = Combination((level_x, level_w), (levels / 2, levels**2 / 2))
        gate = 2.0 ** ceil(log2(levels**2 + 2))
        summands = (Summand(key, PREDICTION_TABLE),)
        predict = MapSlots(summands, IS_QUERY, (IS_EXAMPLE,), gate, "y")
        scratch = [(name, (1,)) for name in (*LEVEL_SLOTS, CONTEXT)]
        return StackProgram(
            construction=self.name,
            layout=network_layout(problem.network, scratch, (ONE, IS_EXAMPLE, IS_QUERY)),
            functions=(
                levels_of(levels, self.kink_width),
                _steps(problem, head),
                _predictions(problem, levels),
            ),
            block=(
                Layer("quantise", tuple(to_levels)),
                Layer("context", (AverageExamples(score, value, CONTEXT),)),
                Layer("look up", (look_up,)),
                Layer("project", (clip, wipe)),
            ),
            n_steps=n_steps,
            prediction=(
                Layer("quantise", (to_levels[0], to_levels[2])),
                Layer("look up prediction", (predict, WipeSlots((level_x, level_w)))),
            ),
        )


def level_values(levels: int) -> Tensor:
    """Return the levels: centres of as many equal cells of [-1, 1]."""
    return (2 * torch.arange(levels, dtype=torch.float64) + 1) / levels - 1


def levels_of(levels: int, width: float) -> ReluSum:
    """Return the staircase that rounds to a level, as a stand-in for the identity on [-1, 1].

    Its ramps begin at the edges of the cells, which are put on multiples of their width.
    """
    values = level_values(levels)
    edges = torch.round((values[1:] - 1 / levels) / width) * width
    knots = torch.stack([edges, edges + width], dim=-1).flatten()
    slopes = torch.stack([torch.zeros_like(edges), values.diff() / width], dim=-1).flatten()
    # Largest distance to the level on every flat piece, and to both levels on every ramp.
    reach = torch.tensor([ROUNDING_ROOM], dtype=torch.float64)
    ends = torch.cat([-reach, knots, reach])
    lower = values.repeat_interleave(2)[:-1]
    upper = torch.cat([values[:1], values[1:].repeat_interleave(2)])
    distances = [(end - value).abs() for end in (ends[:-1], ends[1:]) for value in (lower, upper)]
    return ReluSum(
        name=IDENTITY,
        low=-ROUNDING_ROOM,
        high=ROUNDING_ROOM,
        knot_unit=width,
        knots=tuple(knots.tolist()),
        slopes=(*slopes.tolist(), 0.0),
        anchor=float(values[levels // 2]),
        anchor_value=float(values[levels // 2]),
        errors=tuple(torch.stack(distances).amax(0).tolist()),
    )


@dataclass(frozen=True)
class ContextHead:
    """Coefficients of the levels of x and y in the scores and in the values of layer 2.

    `contexts` has a row for every multiset of examples, numbered x * levels + y, and `codes` what
    the head returns for it. Codes are `levels` apart at least, to leave room for those of w.
    """

    levels: int
    score: tuple[float, float]
    value: tuple[float, float]
    contexts: Tensor
    codes: Tensor

    @property
    def largest_key(self) -> float:
        return float(self.codes.abs().max()) + self.levels / 2


@lru_cache(maxsize=64)
def context_head(levels: int, n_examples: int) -> ContextHead:
    """Choose the head that tells contexts apart best, relative to the range of its codes."""
    value = level_values(levels)
    x, y = value.repeat_interleave(levels), value.repeat(levels)
    multisets = combinations_with_replacement(range(levels**2), n_examples)
    contexts = torch.tensor(list(multisets))

    def codes(a: float, b: float, c: float) -> Tensor:
        share = torch.softmax((a * x + b * y)[contexts], dim=-1)
        return (share * (x + c * y)[contexts]).sum(-1)

    def distance(head: tuple[float, float, float]) -> float:
        ordered = codes(*head).sort().values
        return float(ordered.diff().min() / (ordered[-1] - ordered[0]))

    # Points spread evenly over [-4, 4] x [-4, 4] x [1/4, 4]: multiples of powers of 1 / g.
    g = 1.2207440846057596  # g^4 = g + 1
    numbers = torch.arange(1, TRIED_HEADS + 1, dtype=torch.float64)
    shares = torch.stack([(numbers / g**power) % 1 for power in (1, 2, 3)], dim=-1)
    heads = [(8 * a - 4, 8 * b - 4, 0.25 + 3.75 * c) for a, b, c in shares.tolist()]
    a, b, c = max(heads, key=distance)
    raw = codes(a, b, c)
    scale = (1 + 2.0**-20) * levels / float(raw.sort().values.diff().min())
    return ContextHead(levels, (a, b), (scale, c * scale), contexts, scale * raw)


def _table(name: str, keys: Tensor, answers: Tensor) -> ReluSum:
    """Return a staircase that is constant within 7/32 of every key.

    Answers are rounded to a power of two so coarse that every sum of jumps times knots is exact.
    """
    size = float(answers.abs().max() * keys.abs().max()) or 1.0
    resolution = 2.0 ** (ceil(log2(size)) - 47)
    order = keys.argsort()
    keys, answers = keys[order], torch.round(answers[order] / resolution) * resolution
    middle = torch.round(8 * (keys[1:] + keys[:-1])) / 16
    knots = torch.stack([middle - 0.25, middle + 0.25], dim=-1).flatten()
    jumps = answers.diff()
    slopes = torch.stack([torch.zeros_like(jumps), 2 * jumps], dim=-1).flatten()
    home = len(keys) // 2
    return ReluSum(
        name=name,
        low=float(keys[0]),
        high=float(keys[-1]),
        knot_unit=1 / 16,
        knots=tuple(knots.tolist()),
        slopes=(*slopes.tolist(), 0.0),
        anchor=float(keys[home]),
        anchor_value=float(answers[home]),
        errors=(resolution / 2,) * (len(slopes) + 1),
    )


def _steps(problem: Problem, head: ContextHead) -> ReluSum:
    """Tabulate w - step_size * gradient for every context and every level of w.

    Those far outside the box are brought nearer: layer 4 makes the same of them.
    """
    levels, domain, update = level_values(head.levels), problem.domain, problem.gradient_step
    n_contexts, n_levels = len(head.contexts), head.levels
    x, y = (levels[head.contexts // n_levels], levels[head.contexts % n_levels])
    data = [
        part.unsqueeze(-1).repeat_interleave(n_levels, dim=0)
        for part in (domain.x * x, domain.y * y)
    ]
    w = update.box * levels.repeat(n_contexts).unsqueeze(-1)
    moved = w - update.size_of(0) * gradient(problem.network, problem.loss_function, w, *data)
    answers = moved.clamp(-2 * update.box, 2 * update.box)
    steps = torch.arange(n_levels, dtype=torch.float64) - (n_levels - 1) / 2
    keys = head.codes.repeat_interleave(n_levels) + steps.repeat(n_contexts)
    return _table(STEP_TABLE, keys, answers.squeeze(-1))


def _predictions(problem: Problem, levels: int) -> ReluSum:
    """Tabulate r(w x) for every level of w and of x, the x of a weight side by side."""
    value = level_values(levels)
    w = problem.gradient_step.box * value.repeat_interleave(levels).unsqueeze(-1)
    x = problem.domain.x * value.repeat(levels)[:, None, None]
    keys = torch.arange(levels**2, dtype=torch.float64) - (levels**2 - 1) / 2
    return _table(PREDICTION_TABLE, keys, predict(problem.network, w, x).flatten())


EXACT_DIGITS = 12
"""Counts with more digits are given as powers of ten."""

SUMMED = 10_000
"""The most examples for which logarithms are summed one by one."""


@dataclass(frozen=True)
class TableSize:
    """Counts of one table, astronomic for all but the smallest problems, so given as logarithms.

    The paper's table has an entry for every way to put d n numbers on `levels` levels each, where a
    token has d = d_x + d_y + |w| numbers. Without repetitions it is smaller: the weights are equal
    in all tokens, and the order of the examples does not matter, which leaves

        levels^|w| * C(levels^(d_x + d_y) + n - 1, n)

    entries, each with two hidden units in the MLP that looks them up.
    """

    levels: int
    n_examples: int
    numbers: int
    """d, the numbers in a token."""
    log10_entries: float

    @property
    def log10_paper_entries(self) -> float:
        return self.numbers * self.n_examples * log10(self.levels)

    @property
    def log10_hidden_units(self) -> float:
        return log10(2) + self.log10_entries

    @property
    def paper_entries(self) -> str:
        """levels^(d n), in words."""
        return in_words(self.log10_paper_entries)

    @property
    def entries(self) -> str:
        """Entries without repetitions, in words."""
        return in_words(self.log10_entries)

    @property
    def hidden_units(self) -> str:
        """Hidden units of the MLP that looks them up, in words."""
        return in_words(self.log10_hidden_units)

    @property
    def bytes(self) -> str:
        """Memory of its float64 weights, in words."""
        d_model = 2 * self.numbers + 4  # the token, its levels, the context, three constants
        return in_words(self.log10_hidden_units + log10(8 * (2 * d_model + 1)))


def in_words(log10_count: float) -> str:
    """Return a count by its decimal logarithm: 1,234 or 5.6e+78 or 10^9,012."""
    if log10_count < EXACT_DIGITS:
        return f"{round(10**log10_count):,}"
    return f"{10**log10_count:.2g}" if log10_count < 300 else f"10^{log10_count:,.0f}"


def table_size(problem: Problem, n_examples: int, levels: int) -> TableSize:
    """Return the table that would perform steps of `problem` on `n_examples` examples."""
    n = count("n_examples", n_examples)
    count("levels", levels, least=2)
    target = problem.network
    n_data, n_weights = target.input_width + target.output_width, target.n_parameters
    # log10 of the multisets of n examples, C(levels^n_data + n - 1, n).
    log_kinds = n_data * log10(levels)
    if log_kinds > 300:  # n - 1 more are nothing beside so many
        ordered = n * log_kinds
    elif n <= SUMMED:
        ordered = sum(log10(levels**n_data + i) for i in range(n))
    elif log_kinds > 6 + log10(n):  # the n factors are nearly equal
        ordered = n * log10(levels**n_data + (n - 1) / 2)
    else:
        kinds = float(levels**n_data)
        ordered = (lgamma(kinds + n) - lgamma(kinds)) / log(10)
    multisets = ordered - lgamma(n + 1) / log(10)
    return TableSize(levels, n, n_data + n_weights, n_weights * log10(levels) + multisets)
