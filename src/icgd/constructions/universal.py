r"""universal: a function of a whole prompt, looked up in a table, and gradient steps as such.

wu, Lemma 16 and Theorem 6, literally, at the sizes that fit in float64. Let f map d x n matrices,
a column for each token, to such matrices, equivariantly: where the columns of Z are permuted, so
are those of f(Z). Three layers compute f at the centres of a grid (`three_layers`):

    1  MLP        every number, brought to [-1, 1], is rounded to one of `levels` levels
    2  attention  context = sum_t p_t v_t over the tokens, with p = softmax(s), where s and v are
                  linear in the levels: a number that identifies the multiset of tokens
    3  MLP        f's column = table(key), where the key is the context and the token's own levels

The lemma takes weights for layer 2 that tell contexts apart by exp(-(levels^d + 1)^4 ...), which
no float64 holds. The head here has the same form (rank 1, softmax), with weights found by trying
some and keeping those that tell the finitely many contexts apart best. Keys are then scaled so
that any two are 1 apart at least, and neighbouring values of the own levels change the key by 1.

The table is a staircase: constant within 7/32 of every key, so that it returns the answers
themselves although keys are rounded. A number on the ramp between two levels has no context, and
is refused before a run.

`function_program` is that transformer for an f that is given. `Universal` is the same for the f of
Theorem 6, which moves the weight w of all tokens [x; y; w] by a gradient step. Because w is equal
in all tokens, the context is that of x and y alone, and the token's own level that of w: between
neighbouring levels of w the table runs from one answer to the next, so a weight may lie anywhere. A
fourth layer clips the weight to the box and wipes all scratch. Predictions come from a table too,
of levels^2 entries.
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
    defined_by_text,
    map_everywhere,
    network_layout,
    ranges_on_domain,
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
        set_fields(
            self,
            levels=count("levels", self.levels, least=2),
            n_examples=count("n_examples", self.n_examples),
            kink_width=power_of_two("kink_width", self.kink_width),
        )
        require_between("kink_width", self.kink_width, NARROWEST, WIDEST)

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
        if reason := defined_by_text(problem):
            return reason
        activation = target.layer_activation(1).value
        if isinstance(activation, KinkedFunction) and activation.knots:
            return (
                f"the gradient of {target.output_activation} jumps, so it has no Lipschitz "
                "constant, without which nothing is known between the levels of a table."
            )
        deltas = backward_ranges(problem, ranges_on_domain(problem, 0.0), 0.0).deltas
        update = problem.gradient_step  # a bound on |w - step_size * gradient|:
        largest = update.reach + update.size_of(0) / 2 * deltas[0] * problem.domain.x
        if not largest <= LARGEST_ANSWER:
            return (
                f"a step can lead to {largest:.3g}, where float64 leaves no digits for the table; "
                "use a smaller step size, box or domain."
            )
        return None

    def may_be_accurate(self, problem: Problem) -> bool:
        return False

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        levels, n_examples, box = self.levels, self.n_examples, problem.gradient_step.reach
        size = table_size(problem, n_examples, levels)
        given = f"levels={levels} with n_examples={n_examples}"
        if not fits(size.log10_entries):
            raise ConstructionError(
                f"{given} needs a table of {size.entries} "
                f"entries; at most {MOST_ENTRIES:,} fit. Give fewer levels or examples."
            )
        head = context_head(levels, n_examples, width=2, room=levels)
        head.require_distinct(given, "examples")
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
    """Coefficients of the levels of a token in the scores and in the values of layer 2.

    `contexts` has a row for every multiset of tokens, and `codes` what the head returns for it. A
    token is numbered by its levels as by digits, the last one fastest. Codes are at least as far
    apart as there are own tokens, whose numbers are added to them.
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

    def require_distinct(self, given: str, tokens: str) -> None:
        """Raise `ConstructionError` if float64 rounds keys by too much."""
        if self.largest_key > LARGEST_KEY:
            raise ConstructionError(
                f"{given} needs keys that are too close for float64 to tell apart. Give fewer "
                f"levels or {tokens}."
            )

    def key(self, own: Sequence[str]) -> Combination:
        """Return the context and the token's own levels as digits, whose neighbours are 1 apart."""
        digits = tuple(self.levels**place * self.levels / 2 for place in range(len(own)))
        return Combination((CONTEXT, *own), (1.0, *digits[::-1]))

    def own_numbers(self) -> Tensor:
        """Return what levels of a token add to its key, as many numbers as there is room for."""
        return torch.arange(self.room, dtype=torch.float64) - (self.room - 1) / 2


@lru_cache(maxsize=64)
def context_head(levels: int, n_tokens: int, width: int, room: int) -> ContextHead:
    """Choose the head that tells contexts apart best, relative to the range of its codes."""
    value = level_values(levels)
    tokens = torch.cartesian_prod(*[value] * width).view(-1, width).unbind(-1)
    multisets = combinations_with_replacement(range(levels**width), n_tokens)
    contexts = torch.tensor(list(multisets))

    def codes(scores: Sequence[float], values: Sequence[float]) -> Tensor:
        score: Tensor
        carried: Tensor
        score, carried = (
            reduce(torch.add, map(mul, factors, tokens)) for factors in (scores, (1.0, *values))
        )
        share = torch.softmax(score[contexts], dim=-1)
        return (share * carried[contexts]).sum(-1)

    def distance(head: tuple[tuple[float, ...], tuple[float, ...]]) -> float:
        ordered = codes(*head).sort().values
        return float(ordered.diff().min() / (ordered[-1] - ordered[0]))

    # Points spread evenly over [-4, 4]^d x [1/4, 4]^(d - 1): multiples of powers of 1 / g.
    n_free = 2 * width - 1
    g = _spread(n_free)
    numbers = torch.arange(1, TRIED_HEADS + 1, dtype=torch.float64)
    shares = torch.stack([(numbers / g**power) % 1 for power in range(1, n_free + 1)], dim=-1)
    heads = [
        (tuple(8 * a - 4 for a in row[:width]), tuple(0.25 + 3.75 * c for c in row[width:]))
        for row in shares.tolist()
    ]
    scores, values = max(heads, key=distance)
    raw = codes(scores, values)
    scale = (1 + 2.0**-20) * room / float(raw.sort().values.diff().min())
    carried = (scale, *(c * scale for c in values))
    return ContextHead(levels, scores, carried, contexts, scale * raw, room)


def _spread(dimension: int) -> float:
    """Return the g > 1 with g^(dimension + 1) = g + 1, whose powers spread points evenly."""
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
    """Lemma 16: levels of all numbers, the context of the tokens' `levels`, and the look-up."""
    score, value = (Combination(levels, factors) for factors in (head.score, head.value))
    return (
        Layer("quantise", tuple(quantise)),
        Layer("context", (AverageExamples(score, value, CONTEXT),)),
        Layer("look up", (look_up, *wipe)),
    )


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
    w = update.reach * levels.repeat(n_contexts).unsqueeze(-1)
    moved = w - update.size_of(0) * gradient(problem.network, problem.loss_function, w, *data)
    answers = moved.clamp(-2 * update.reach, 2 * update.reach)
    keys = head.codes.repeat_interleave(n_levels) + head.own_numbers().repeat(n_contexts)
    return _table(STEP_TABLE, keys, answers.squeeze(-1))


def _predictions(problem: Problem, levels: int) -> ReluSum:
    """Tabulate r(w x) for every level of w and of x, the x of a weight side by side."""
    value = level_values(levels)
    w = problem.gradient_step.reach * value.repeat_interleave(levels).unsqueeze(-1)
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
    multisets = log10_multisets(levels, n_data, n)
    return TableSize(levels, n, n_data + n_weights, n_weights * log10(levels) + multisets)


def log10_multisets(levels: int, width: int, n: int) -> float:
    """Return the logarithm of the number of multisets of n tokens, C(levels^width + n - 1, n)."""
    log_kinds = width * log10(levels)
    if log_kinds > 300:  # n - 1 more are nothing beside so many
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
    """Return whether a table is built that has so many entries."""
    return log2(10) * log10_entries <= log2(MOST_ENTRIES)


# A function that is given.

ANSWERS, TOKENS = "f", "z"
"""The tables of f, one for each of its rows, and the slots of the levels of a token."""

MOST_CALLS = 2**15
"""Up to so many calls of f it is checked on all orders of all prompts of the grid, which are as
many as the entries of the paper's table; beyond, on swaps of two neighbours, at evenly chosen
prompts."""

MOST_PAIRS = 2**25
"""Up to so many pairs of points of the grid the Lipschitz constant is checked on all of them;
beyond, on the pairs of some points with all others."""

DIRECT = "donot_use_mm_for_euclid_dist"
"""Distances by differences: products of matrices lose small ones to rounding."""

SAME = 1e-9
"""Answers may differ by so much, relative to the largest, with the order in which f sums up."""

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Grid:
    """The prompts of n tokens of d numbers, each at the centre of one of D cells of [low, high]."""

    d: int
    n: int
    levels: int
    low: float
    high: float

    @property
    def log10_entries(self) -> float:
        """A table has an entry for every token with every multiset of the n - 1 others."""
        others = log10_multisets(self.levels, self.d, self.n - 1) if self.n > 1 else 0.0
        return self.d * log10(self.levels) + others

    def require_room(self) -> None:
        """Raise `ConstructionError` if its table is too large, and say what fits."""
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
        """Return the matrices (d, n) of multisets of numbered tokens."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        places = self.levels ** torch.arange(self.d - 1, -1, -1)
        digits = contexts.unsqueeze(-2) // places.unsqueeze(-1) % self.levels
        return middle + half * level_values(self.levels)[digits]


def function_program(
    f: Callable[[Matrix], Any], grid: Grid, lipschitz: float, kink_width: float
) -> StackProgram:
    """Return the three layers of Lemma 16 for an equivariant f, which is tabulated on the grid."""
    grid.require_room()
    d, n, levels = grid.d, grid.n, grid.levels
    head = context_head(levels, n, width=d, room=levels**d)
    head.require_distinct(f"D={levels} with d={d} and n={n}", "tokens")
    points = grid.points(head.contexts)
    answers = tabulated(f, points)
    require_lipschitz(points, answers, lipschitz)

    # A token that stands in a prompt again has the same answer there; tokens are in order.
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
    """Return what f makes of all points (..., d, n), where it is equivariant and finite."""
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
                    "transformer without positions computes only functions whose columns are "
                    "permuted along."
                )
    return answers


def answer_of(f: Callable[[Matrix], Any], point: Tensor) -> Tensor:
    """Return what f makes of a matrix, which must be finite and of the same shape."""
    found = f(point.numpy().copy())
    if np.iscomplexobj(found):
        raise ConstructionError(
            f"f must return real numbers, but at Z = {_shown(point)} it returns {quoted(found)}."
        )
    try:
        answer = torch.as_tensor(np.asarray(found, dtype=np.float64))
    except (TypeError, ValueError):
        raise ConstructionError(
            f"f must return numbers, an array of shape {tuple(point.shape)}; at Z = "
            f"{_shown(point)} it returns {quoted(found)}."
        ) from None
    if answer.shape != point.shape:
        raise ConstructionError(
            f"f must return an array of shape {tuple(point.shape)}, that of its argument; at Z = "
            f"{_shown(point)} it has shape {tuple(answer.shape)}."
        )
    if not answer.isfinite().all() or answer.abs().max() > LARGEST_ANSWER:
        raise ConstructionError(
            f"f must be finite, and at most {LARGEST_ANSWER:g}, where float64 leaves digits for "
            f"the table; at Z = {_shown(point)} it is {_shown(answer)}."
        )
    return answer


def require_lipschitz(points: Tensor, answers: Tensor, lipschitz: float) -> None:
    """Raise `ConstructionError` if two points of the grid show that f is steeper.

    Points stand for all orders of their columns, so one of each two is taken in all of them.
    """
    n_points, _, n = points.shape
    orders = list(permutations(range(n))) if n <= 8 else [tuple(range(n))]
    n_rows = max(1, min(n_points, MOST_PAIRS // (n_points * len(orders))))
    room = SAME * float(answers.abs().max())
    flat, made = points.flatten(1), answers.flatten(1)
    for rows in (torch.arange(n_rows) * n_points // n_rows).split(max(1, 2**20 // n_points)):
        for order in map(list, orders):
            others, values = points[rows][..., order], answers[rows][..., order]
            apart, changed = (
                torch.cdist(one.flatten(1), all_of_them, compute_mode=DIRECT)
                for one, all_of_them in ((others, flat), (values, made))
            )
            excess = changed - lipschitz * apart
            if not excess.max() <= room:
                row, place = divmod(int(excess.argmax()), n_points)
                distance, change = float(apart[row, place]), float(changed[row, place])
                raise ConstructionError(
                    f"f is steeper than lipschitz={lipschitz:g}: between Z = "
                    f"{_shown(others[row])} and Z = {_shown(points[place])}, which are "
                    f"{distance:.4g} apart, it changes by {change:.4g} (Frobenius norms). Give "
                    f"lipschitz={change / distance:.4g} or more."
                )


def _shown(matrix: Tensor) -> str:
    """Return a small matrix in a message."""
    return str([[float(f"{entry:.4g}") for entry in row] for row in matrix.tolist()])
