r"""universal: three layers look up a function of the whole prompt in a table, such as a step.

wu, Lemma 16 and Theorem 6, literally, at sizes that fit in float64. Let f map d x n matrices, a
column for each token, to d x n matrices, and be permutation-equivariant: if the columns of Z are
permuted, so are those of f(Z). Three layers compute f at the centres of a grid (`three_layers`):

    1  MLP        every number, scaled to [-1, 1], is rounded to one of `levels` levels
    2  attention  context = sum_t p_t v_t over the tokens, with p = softmax(s), where s and v are
                  linear in the levels: a number that identifies the multiset of tokens
    3  MLP        f's column = table(key), where the key combines the context and the token's levels

By equivariance, column t of f(Z) depends on token t and the multiset of all tokens only, so the key
determines it.

The lemma's weights for layer 2 separate contexts by exp(-(levels^d + 1)^4 ...), which underflows in
float64. The head here has the same form (rank 1, softmax), but its weights are the best of a number
of candidates: those with the largest gap between the finitely many contexts. Keys are then scaled
such that any two are at least 1 apart, and a step from one own level to the next changes the key
by 1.

The table is a staircase that is constant within 7/32 of every key, so it returns the exact answers
although keys are rounded. Prompts with a number on the ramp between two levels have no context and
are refused before a run.

`function_program` is this transformer for a given f. In `Universal` f is the gradient step of
Theorem 6, which changes the weight w in all tokens [x; y; w]. Because w is the same in all tokens,
the context is that of x and y alone, and the token's own level is that of w. Between neighbouring
levels of w the table interpolates, so the weight may have any value. A fourth layer clips the
weight to the box and wipes all scratch. Another table, of levels^2 entries, predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import combinations_with_replacement, permutations
from math import ceil, lgamma, log, log2, log10
from operator import mul
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from icgd.constructions.base import AbstractConstruction
from icgd.constructions.network import (
    ROUNDING_ROOM,
    backward_ranges,
    map_everywhere,
    network_layout,
    ranges_on_domain,
    text_objection,
)
from icgd.errors import ConstructionError, quoted
from icgd.problems.functions import KinkedFunction
from icgd.problems.oracles import gradient, predict
from icgd.problems.problem import Problem
from icgd.problems.settings import (
    LARGEST_COUNT,
    count,
    positive,
    power_of_two,
    require_between,
    set_fields,
)
from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    IDENTITY,
    ClipSlots,
    Combination,
    Instruction,
    MapSlots,
    Summand,
    WipeSlots,
)
from icgd.program.layout import IS_EXAMPLE, IS_QUERY, ONE, Layout, Role, Slot
from icgd.program.network_instructions import (
    AverageExamples,
    LookUpFunction,
    LookUpStep,
    QuantiseEntries,
)
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

STEP_TABLE, PREDICTION_TABLE = "steps", "predictions"

LEVEL_SLOTS = ("level_x", "level_y", "level_w")
WEIGHT, CONTEXT = "weights_1", "context"

LARGEST_ANSWER = 1e12
"""Beyond this the rounding error of the table is as large as the weights."""

MOST_ENTRIES = 2**16
"""The largest size of a table, enough for 10 levels with 2 examples, or 6 with 3."""

LARGEST_KEY = 2.0**27
"""Beyond this the rounding error of keys is no longer small compared with their distance."""

KINK_WIDTH = 2.0**-13
"""Default width of the ramps between levels."""

NARROWEST, WIDEST = 2.0**-30, 2.0**-6
"""Limits on the widths of ramps between levels: they divide rounding errors, and must be narrower
than the levels."""

TRIED_HEADS = 256
"""The number of candidates for the head of layer 2; more give little improvement."""


@dataclass(frozen=True)
class Universal(AbstractConstruction):
    """4 layers per step, for one weight and a fixed number of examples.

    Args:
        levels: the number of levels to which every entry is rounded.
        n_examples: the number of examples in every prompt.
        kink_width: the width of the ramps between levels relative to half the range of an entry, a
            power of two.

    Raises:
        SettingError: if a number is out of range.

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
        set_fields(
            self,
            levels=count("levels", self.levels, least=2),
            n_examples=count("n_examples", self.n_examples),
            kink_width=power_of_two("kink_width", self.kink_width),
        )
        require_between("kink_width", self.kink_width, NARROWEST, WIDEST)

    def finer(self, setting: int, excess: float) -> int:
        count("setting", setting), positive("excess", excess)
        # The error is proportional to 1 / levels.
        return ceil(min(setting * excess, float(LARGEST_COUNT)))

    def objection(self, problem: Problem) -> str | None:
        target = problem.network
        if target.n_parameters > 1:
            size = table_size(problem, self.n_examples, self.levels)
            return (
                "it looks up whole steps in a table, and is built for a single weight, widths "
                f"(1, 1). For widths {target.widths} with {size.n_examples} examples and "
                f"{size.levels} levels the table would need {size.levels}^({size.numbers} * "
                f"{size.n_examples}) = {size.paper_entries} entries ({size.entries} without "
                "repetitions)."
            )
        if problem.loss_function.is_softmax:
            return f"the slope of the {problem.loss} loss of a single output is 0."
        if problem.loss_function.slope_terms is None:
            return (
                f"the slope of the {problem.loss} loss is not a sum of functions of one variable, "
                "from which its error bound is computed; use relu-stack."
            )
        if reason := text_objection(problem):
            return reason
        activation = target.layer_activation(1).value
        if isinstance(activation, KinkedFunction) and activation.knots:
            return (
                f"the gradient of {target.output_activation} jumps, so it has no Lipschitz "
                "constant, which would bound the error between the levels of a table."
            )
        deltas = backward_ranges(problem, ranges_on_domain(problem, 0.0), 0.0).deltas
        update = problem.gradient_step
        # Bound |w - step_size * gradient|.
        largest = update.reach + update.size_of(0) / 2 * deltas[0] * problem.domain.x
        if not largest <= LARGEST_ANSWER:
            return (
                f"a step can lead to {largest:.3g}, where float64 has too few digits for the "
                "table; use a smaller step size, box or domain."
            )
        return None

    def may_be_accurate(self, problem: Problem) -> bool:
        return False

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        levels, n_examples, box = self.levels, self.n_examples, problem.gradient_step.reach
        size = table_size(problem, n_examples, levels)
        settings = f"levels={levels} with n_examples={n_examples}"
        if not fits(size.log10_entries):
            raise ConstructionError(
                f"{settings} needs a table of {size.entries} entries; at most {MOST_ENTRIES:,} "
                "fit. Give fewer levels or examples."
            )
        head = context_head(levels, n_examples, width=2, room=levels)
        head.require_distinct(settings, "examples")
        ranges = (problem.domain.x, problem.domain.y, box)
        to_levels = [
            map_everywhere(Combination((read,), (1 / reach,)), IDENTITY, write)
            for read, write, reach in zip(("x", "y", WEIGHT), LEVEL_SLOTS, ranges, strict=True)
        ]
        level_x, level_y, level_w = LEVEL_SLOTS
        look_up = LookUpStep(
            key=head.key((level_w,)),
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
        # For a prediction, round x and w to levels again and look them up, at queries only.
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
                *three_layers(to_levels, head, (level_x, level_y), look_up),
                Layer("project", (clip, wipe)),
            ),
            n_steps=n_steps,
            prediction=(
                Layer("quantise", (to_levels[0], to_levels[2])),
                Layer("look up prediction", (predict, WipeSlots((level_x, level_w)))),
            ),
        )


def level_values(levels: int) -> Tensor:
    """Return the levels, which are the centres of `levels` equal cells of [-1, 1]."""
    return (2 * torch.arange(levels, dtype=torch.float64) + 1) / levels - 1


def levels_of(levels: int, width: float) -> ReluSum:
    """Return the staircase that rounds numbers in [-1, 1] to levels, as an inexact identity.

    The ramps begin at the edges of the cells, rounded to multiples of the ramp width.
    """
    values = level_values(levels)
    edges = torch.round((values[1:] - 1 / levels) / width) * width
    knots = torch.stack([edges, edges + width], dim=-1).flatten()
    slopes = torch.stack([torch.zeros_like(edges), values.diff() / width], dim=-1).flatten()
    # The errors: the largest distance to the level on every flat piece, to both on every ramp.
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
    """The head of layer 2: coefficients of a token's levels in its score and in its value.

    `contexts` has a row for every multiset of tokens, and `codes` the outputs of the head for them.
    A token is numbered by its levels as digits, the last one varying fastest. Codes are at least
    `room` apart, where `room` is the number of possible own tokens, so that adding the number of
    the own token keeps keys distinct.
    """

    levels: int
    score: tuple[float, ...]
    value: tuple[float, ...]
    contexts: Tensor
    codes: Tensor
    room: int

    @property
    def largest_key(self) -> float:
        return float(self.codes.abs().max()) + self.room / 2

    def require_distinct(self, settings: str, tokens: str) -> None:
        """Raise `ConstructionError` if the rounding of keys is not small against their distance."""
        if self.largest_key > LARGEST_KEY:
            raise ConstructionError(
                f"{settings} needs keys that are too close for float64 to tell apart. Give fewer "
                f"levels or {tokens}."
            )

    def key(self, own_levels: Sequence[str]) -> Combination:
        """Return the context plus the number of the token, whose digits are its own levels."""
        digits = tuple(self.levels**place * self.levels / 2 for place in range(len(own_levels)))
        return Combination((CONTEXT, *own_levels), (1.0, *digits[::-1]))

    def own_numbers(self) -> Tensor:
        """Return the numbers that own tokens add to their keys, centred around 0."""
        return torch.arange(self.room, dtype=torch.float64) - (self.room - 1) / 2


@lru_cache(maxsize=64)
def context_head(levels: int, n_tokens: int, width: int, room: int) -> ContextHead:
    """Return the head whose codes are farthest apart relative to their range."""
    value = level_values(levels)
    tokens = torch.cartesian_prod(*[value] * width).view(-1, width).unbind(-1)
    multisets = combinations_with_replacement(range(levels**width), n_tokens)
    contexts = torch.tensor(list(multisets))

    def codes(scores: Sequence[float], values: Sequence[float]) -> Tensor:
        """Return the output of a head for every context."""
        score: Tensor
        carried: Tensor
        score, carried = (
            reduce(torch.add, map(mul, factors, tokens)) for factors in (scores, (1.0, *values))
        )
        share = torch.softmax(score[contexts], dim=-1)
        return (share * carried[contexts]).sum(-1)

    def distance(head: tuple[tuple[float, ...], tuple[float, ...]]) -> float:
        """Return the smallest distance of two codes relative to the range of all codes."""
        ordered = codes(*head).sort().values
        return float(ordered.diff().min() / (ordered[-1] - ordered[0]))

    # Candidates from a low-discrepancy sequence in [-4, 4]^d x [1/4, 4]^(d - 1): multiples of
    # powers of 1 / g, modulo 1.
    n_free = 2 * width - 1
    g = _spread(n_free)
    numbers = torch.arange(1, TRIED_HEADS + 1, dtype=torch.float64)
    shares = torch.stack([(numbers / g**power) % 1 for power in range(1, n_free + 1)], dim=-1)
    heads = [
        (tuple(8 * a - 4 for a in row[:width]), tuple(0.25 + 3.75 * c for c in row[width:]))
        for row in shares.tolist()
    ]
    scores, values = max(heads, key=distance)
    # Scale the codes such that the smallest distance exceeds `room` slightly.
    raw = codes(scores, values)
    scale = (1 + 2.0**-20) * room / float(raw.sort().values.diff().min())
    carried = (scale, *(c * scale for c in values))
    return ContextHead(levels, scores, carried, contexts, scale * raw, room)


def _spread(dimension: int) -> float:
    """Return the g > 1 with g^(dimension + 1) = g + 1, the base of a low-discrepancy sequence."""
    g = 2.0
    for _ in range(64):
        g = (1 + g) ** (1 / (dimension + 1))
    return g


def three_layers(
    quantise: Sequence[Instruction],
    head: ContextHead,
    levels: tuple[str, ...],
    look_up: Instruction,
    *wipe: Instruction,
) -> tuple[Layer, Layer, Layer]:
    """Return the layers of Lemma 16: rounding to levels, the context of `levels`, the look-up."""
    score, value = (Combination(levels, factors) for factors in (head.score, head.value))
    return (
        Layer("quantise", tuple(quantise)),
        Layer("context", (AverageExamples(score, value, CONTEXT),)),
        Layer("look up", (look_up, *wipe)),
    )


def _table(name: str, keys: Tensor, answers: Tensor) -> ReluSum:
    """Return the staircase with these answers, constant within 7/32 of every key.

    Answers are rounded to multiples of a power of two such that sums of jumps times knots are
    exact.
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

    Answers are clamped to twice the box, which layer 4 clips to the same weights.
    """
    levels, domain, update = level_values(head.levels), problem.domain, problem.gradient_step
    n_contexts, n_levels = len(head.contexts), head.levels
    x, y = (levels[head.contexts // n_levels], levels[head.contexts % n_levels])
    data = [
        values.unsqueeze(-1).repeat_interleave(n_levels, dim=0)
        for values in (domain.x * x, domain.y * y)
    ]
    w = update.reach * levels.repeat(n_contexts).unsqueeze(-1)
    moved = w - update.size_of(0) * gradient(problem.network, problem.loss_function, w, *data)
    answers = moved.clamp(-2 * update.reach, 2 * update.reach)
    keys = head.codes.repeat_interleave(n_levels) + head.own_numbers().repeat(n_contexts)
    return _table(STEP_TABLE, keys, answers.squeeze(-1))


def _predictions(problem: Problem, levels: int) -> ReluSum:
    """Tabulate r(w x) for every level of w and of x, with x varying fastest."""
    value = level_values(levels)
    w = problem.gradient_step.reach * value.repeat_interleave(levels).unsqueeze(-1)
    x = problem.domain.x * value.repeat(levels)[:, None, None]
    keys = torch.arange(levels**2, dtype=torch.float64) - (levels**2 - 1) / 2
    return _table(PREDICTION_TABLE, keys, predict(problem.network, w, x).flatten())


EXACT_DIGITS = 12
"""Counts with more digits are displayed as powers of ten."""

SUMMED = 10_000
"""The largest number of examples for which logarithms are summed one by one."""


@dataclass(frozen=True)
class TableSize:
    """The size of a table, as logarithms because it is astronomic for all but small problems.

    The paper's table has an entry for every assignment of d n numbers to `levels` levels, where a
    token has d = d_x + d_y + |w| numbers. Many of them are repetitions: the weights are the same in
    all tokens, and the order of the examples does not matter. This leaves

        levels^|w| * C(levels^(d_x + d_y) + n - 1, n)

    entries, each with two hidden units in the MLP that looks them up.
    """

    levels: int
    n_examples: int
    numbers: int
    """d, the number of entries of a token."""
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
        """The number of entries without repetitions, in words."""
        return in_words(self.log10_entries)

    @property
    def hidden_units(self) -> str:
        """The number of hidden units of the MLP that looks entries up, in words."""
        return in_words(self.log10_hidden_units)

    @property
    def bytes(self) -> str:
        """The memory of the MLP's float64 weights, in words."""
        d_model = 2 * self.numbers + 4  # the token, its levels, the context, three constants
        return in_words(self.log10_hidden_units + log10(8 * (2 * d_model + 1)))


def in_words(log10_count: float) -> str:
    """Return a count, given its decimal logarithm, as 1,234 or 5.6e+78 or 10^9,012."""
    if log10_count < EXACT_DIGITS:
        return f"{round(10**log10_count):,}"
    return f"{10**log10_count:.2g}" if log10_count < 300 else f"10^{log10_count:,.0f}"


def table_size(problem: Problem, n_examples: int, levels: int) -> TableSize:
    """Return the size of the table for steps of `problem` on `n_examples` examples."""
    n = count("n_examples", n_examples)
    count("levels", levels, least=2)
    target = problem.network
    n_data, n_weights = target.input_width + target.output_width, target.n_parameters
    multisets = log10_multisets(levels, n_data, n)
    return TableSize(levels, n, n_data + n_weights, n_weights * log10(levels) + multisets)


def log10_multisets(levels: int, width: int, n: int) -> float:
    """Return log10 of the number of multisets of n tokens, C(levels^width + n - 1, n)."""
    log_kinds = width * log10(levels)
    if log_kinds > 300:  # beyond float64, where n - 1 is negligible
        ordered = n * log_kinds
    elif n <= SUMMED:
        ordered = sum(log10(levels**width + i) for i in range(n))
    elif log_kinds > 6 + log10(n):  # the n factors are nearly equal
        ordered = n * log10(levels**width + (n - 1) / 2)
    else:
        kinds = float(levels**width)
        ordered = (lgamma(kinds + n) - lgamma(kinds)) / log(10)
    return ordered - lgamma(n + 1) / log(10)


def fits(log10_entries: float) -> bool:
    """Return whether a table of this size may be built."""
    return log2(10) * log10_entries <= log2(MOST_ENTRIES)


# The program of a given function.

ANSWERS, TOKENS = "f", "z"
"""Prefixes of the tables of f, one for each row, and of the slots of a token's levels."""

MOST_CALLS = 2**15
"""The limit on calls of f in the check of equivariance. Within it, all orders of all prompts of the
grid are checked; otherwise swaps of two neighbouring columns, at an even selection of prompts."""

MOST_PAIRS = 2**25
"""The limit on pairs of grid points in the check of the Lipschitz constant. Within it, all pairs
are checked; otherwise an even selection of points against all others."""

DIRECT = "donot_use_mm_for_euclid_dist"
"""Compute distances from differences, because matrix products lose small distances to rounding."""

SAME = 1e-9
"""The tolerance for rounding in f, relative to the largest answer."""

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Grid:
    """The prompts of n tokens of d numbers, each the centre of one of D cells of [low, high]."""

    d: int
    n: int
    levels: int
    low: float
    high: float

    @property
    def log10_entries(self) -> float:
        """The logarithm of the table's size: all tokens times all multisets of n - 1 others."""
        others = log10_multisets(self.levels, self.d, self.n - 1) if self.n > 1 else 0.0
        return self.d * log10(self.levels) + others

    def require_room(self) -> None:
        """Raise `ConstructionError` if the table is too large; name the largest D that fits."""
        if fits(self.log10_entries):
            return
        finest = 1
        while fits(replace(self, levels=finest + 1).log10_entries):
            finest += 1
        remedy = f"With d={self.d} and n={self.n} at most D={finest} fits."
        if finest < 2:
            remedy = "Not even D=2 fits: take a function of fewer rows or columns."
        ordered, entries = in_words(self.d * self.n * log10(self.levels)), self.log10_entries
        raise ConstructionError(
            f"D={self.levels} with d={self.d} and n={self.n} needs a table of D^(dn) = {ordered} "
            f"entries ({in_words(entries)} without repetitions); at most {MOST_ENTRIES:,} fit. "
            f"{remedy}"
        )

    def points(self, contexts: Tensor) -> Tensor:
        """Return a (d, n) matrix for each multiset of numbered tokens."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        places = self.levels ** torch.arange(self.d - 1, -1, -1)
        digits = contexts.unsqueeze(-2) // places.unsqueeze(-1) % self.levels
        return middle + half * level_values(self.levels)[digits]


def function_program(
    f: Callable[[Matrix], Any], grid: Grid, lipschitz: float, kink_width: float
) -> StackProgram:
    """Return the three layers of Lemma 16 for an equivariant f, tabulated on the grid."""
    grid.require_room()
    d, n, levels = grid.d, grid.n, grid.levels
    head = context_head(levels, n, width=d, room=levels**d)
    head.require_distinct(f"D={levels} with d={d} and n={n}", "tokens")
    points = grid.points(head.contexts)
    answers = tabulated(f, points)
    require_lipschitz(points, answers, lipschitz)

    # Equal tokens of a prompt have equal keys and answers, and are neighbours because tokens of a
    # multiset are sorted: keep the first of each.
    is_first = torch.ones_like(head.contexts, dtype=torch.bool)
    is_first[:, 1:] = head.contexts.diff(dim=-1) != 0
    keys = (head.codes.unsqueeze(-1) + head.own_numbers()[head.contexts])[is_first]
    tables = tuple(_table(f"{ANSWERS}_{i + 1}", keys, answers[:, i][is_first]) for i in range(d))
    slots = tuple(f"{TOKENS}_{i + 1}" for i in range(d))
    middle, half = (grid.low + grid.high) / 2, (grid.high - grid.low) / 2
    quantise = QuantiseEntries("x", 1 / half, -middle / half, IDENTITY, slots)
    names = tuple(table.name for table in tables)
    look_up = LookUpFunction(head.key(slots), names, grid.low, grid.high, lipschitz, n, "y")
    scratch = (Slot(name, (1,), Role.SCRATCH) for name in (*slots, CONTEXT))
    return StackProgram(
        construction=Universal.name,
        layout=Layout(
            (
                Slot("x", (d,), Role.INPUT),
                Slot("y", (d,), Role.LABEL),
                *scratch,
                Slot(ONE, (1,), Role.CONSTANT),
            )
        ),
        functions=(levels_of(levels, kink_width), *tables),
        block=three_layers((quantise,), head, slots, look_up, WipeSlots((*slots, CONTEXT))),
        n_steps=1,
        prediction=(),
    )


def tabulated(f: Callable[[Matrix], Any], points: Tensor) -> Tensor:
    """Return the values of f at all points (..., d, n), and check that f is equivariant."""
    answers = torch.stack([answer_of(f, point) for point in points])
    n = points.shape[-1]
    room = SAME * float(answers.abs().max())
    orders = [list(order) for order in permutations(range(n))][1:] if n <= 8 else []
    if not 0 < len(points) * len(orders) <= MOST_CALLS:
        orders = [[*range(i), i + 1, i, *range(i + 2, n)] for i in range(n - 1)]
    checked = slice(None, None, ceil(len(points) * len(orders) / MOST_CALLS) or 1)
    for point, answer in zip(points[checked], answers[checked], strict=True):
        for order in orders:
            other = answer_of(f, point[:, order])
            if not (other - answer[:, order]).abs().max() <= room:
                raise ConstructionError(
                    f"f is not permutation-equivariant: at Z = {_shown(point)} it is "
                    f"{_shown(answer)}, but with the columns of Z in the order {order} (counted "
                    f"from 0) it is {_shown(other)} instead of {_shown(answer[:, order])}. A "
                    "transformer without positional encodings computes equivariant functions only."
                )
    return answers


def answer_of(f: Callable[[Matrix], Any], point: Tensor) -> Tensor:
    """Return f(point), which must be a finite matrix of the same shape."""
    value = f(point.numpy().copy())
    if np.iscomplexobj(value):
        raise ConstructionError(
            f"f must return real numbers, but at Z = {_shown(point)} it returns {quoted(value)}."
        )
    try:
        answer = torch.as_tensor(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise ConstructionError(
            f"f must return numbers, an array of shape {tuple(point.shape)}; at Z = "
            f"{_shown(point)} it returns {quoted(value)}."
        ) from None
    if answer.shape != point.shape:
        raise ConstructionError(
            f"f must return an array of shape {tuple(point.shape)}, that of its argument; at Z = "
            f"{_shown(point)} it has shape {tuple(answer.shape)}."
        )
    if not answer.isfinite().all() or answer.abs().max() > LARGEST_ANSWER:
        raise ConstructionError(
            f"f must be finite and at most {LARGEST_ANSWER:g} in absolute value, so that float64 "
            f"has digits for the table; at Z = {_shown(point)} it is {_shown(answer)}."
        )
    return answer


def require_lipschitz(points: Tensor, answers: Tensor, lipschitz: float) -> None:
    """Raise `ConstructionError` if two points of the grid show that f is steeper.

    A point represents all orders of its columns, so the first of each pair takes all orders.
    """
    n_points, _, n = points.shape
    orders = list(permutations(range(n))) if n <= 8 else [tuple(range(n))]
    n_rows = max(1, min(n_points, MOST_PAIRS // (n_points * len(orders))))
    room = SAME * float(answers.abs().max())
    flat_points, flat_answers = points.flatten(1), answers.flatten(1)
    for rows in (torch.arange(n_rows) * n_points // n_rows).split(max(1, 2**20 // n_points)):
        for order in map(list, orders):
            others, values = points[rows][..., order], answers[rows][..., order]
            distances, changes = (
                torch.cdist(first.flatten(1), second, compute_mode=DIRECT)
                for first, second in ((others, flat_points), (values, flat_answers))
            )
            excess = changes - lipschitz * distances
            if not excess.max() <= room:
                row, place = divmod(int(excess.argmax()), n_points)
                distance, change = float(distances[row, place]), float(changes[row, place])
                raise ConstructionError(
                    f"f is steeper than lipschitz={lipschitz:g}: between Z = "
                    f"{_shown(others[row])} and Z = {_shown(points[place])}, which are "
                    f"{distance:.4g} apart, it changes by {change:.4g} (Frobenius norms). Give "
                    f"lipschitz={change / distance:.4g} or more."
                )


def _shown(matrix: Tensor) -> str:
    """Return a small matrix as text for a message."""
    return str([[float(f"{entry:.4g}") for entry in row] for row in matrix.tolist()])
