"""How large the table of `universal` is, for any problem: counted, never built.

The paper's table has an entry for every way to put d n numbers on `levels` levels each, where a
token has d = d_x + d_y + |w| numbers. Without repetitions it is smaller: the weights are equal in
all tokens, and the order of the examples does not matter, which leaves

    levels^|w| * C(levels^(d_x + d_y) + n - 1, n)

entries, each with two hidden units in the MLP that looks them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log, log10

from icgd.problems.problem import Problem
from icgd.problems.settings import count

EXACT_DIGITS = 12
"""Counts with more digits are given as powers of ten."""

SUMMED = 10_000
"""The most examples for which logarithms are summed one by one."""


@dataclass(frozen=True)
class TableSize:
    """Counts of one table, astronomic for all but the smallest problems, so given as logarithms."""

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
    """A count by its decimal logarithm: 1,234 or 5.6e+78 or 10^9,012."""
    if log10_count < EXACT_DIGITS:
        return f"{round(10**log10_count):,}"
    return f"{10**log10_count:.2g}" if log10_count < 300 else f"10^{log10_count:,.0f}"


def table_size(problem: Problem, n_examples: int, levels: int) -> TableSize:
    """The table that would perform steps of `problem` on `n_examples` examples."""
    count("n_examples", n_examples)
    count("levels", levels, least=2)
    target = problem.network
    n_data, n_weights = target.input_width + target.output_width, target.n_parameters
    entries = n_weights * log10(levels) + _log10_multisets(levels, n_data, n_examples)
    return TableSize(levels, n_examples, n_data + n_weights, entries)


def _log10_multisets(levels: int, n_data: int, n_examples: int) -> float:
    """log10 C(levels^n_data + n - 1, n)."""
    log_kinds, n = n_data * log10(levels), n_examples
    if log_kinds > 300:  # n - 1 more are nothing beside so many
        ordered = n * log_kinds
    elif n <= SUMMED:
        ordered = sum(log10(levels**n_data + i) for i in range(n))
    elif log_kinds > 6 + log10(n):  # the n factors are nearly equal
        ordered = n * log10(levels**n_data + (n - 1) / 2)
    else:
        kinds = float(levels**n_data)
        ordered = (lgamma(kinds + n) - lgamma(kinds)) / log(10)
    return ordered - lgamma(n + 1) / log(10)
