from math import comb, isclose, log10

import pytest

import icgd
from icgd.constructions.universal import in_words, table_size
from icgd.errors import SettingError


def problem(*widths: int) -> icgd.Problem:
    return icgd.Problem(
        icgd.MLP(widths), "squared", icgd.GradientStep(0.3, 1.0), icgd.Domain(1.0, 1.0)
    )


def test_one_weight_two_examples_and_four_levels():
    size = table_size(problem(1, 1), n_examples=2, levels=4)
    assert size.numbers == 3
    assert size.paper_entries == "4,096"
    assert size.entries == "544"  # 4 levels of w, 136 pairs of examples out of 16
    assert size.hidden_units == "1,088"
    assert size.bytes == f"{1088 * 21 * 8:,}"


@pytest.mark.parametrize(("levels", "n_examples"), [(2, 2), (3, 2), (2, 3)])
def test_what_is_counted_is_what_is_built(levels, n_examples):
    """But for the entries that repeat their neighbour, a constant, and two units that wipe w."""
    summary = icgd.compile(
        problem(1, 1), n_steps=1, construction="universal", levels=levels, n_examples=n_examples
    ).summary()
    counted = table_size(problem(1, 1), n_examples, levels)
    units = int(counted.hidden_units.replace(",", ""))
    assert 0.9 * units <= summary.d_mlp <= units + 1
    assert f"{units * (2 * summary.d_model + 1) * 8:,}" == counted.bytes


@pytest.mark.parametrize(("widths", "n_examples", "levels"), [((2, 1), 3, 5), ((3, 4, 2), 7, 3)])
def test_other_sizes_follow_the_formula(widths, n_examples, levels):
    size = table_size(problem(*widths), n_examples, levels)
    n_weights = problem(*widths).target.n_parameters
    kinds = levels ** (widths[0] + widths[-1])
    distinct = levels**n_weights * comb(kinds + n_examples - 1, n_examples)
    assert size.numbers == widths[0] + widths[-1] + n_weights
    assert isclose(size.log10_paper_entries, log10(levels ** (size.numbers * n_examples)))
    assert isclose(size.log10_entries, log10(distinct))
    assert isclose(size.log10_hidden_units, log10(2 * distinct))


def test_astronomic_tables_are_counted_without_building_a_number_of_that_length():
    size = table_size(problem(1000, 20000, 20000, 1000), n_examples=32, levels=10)
    assert size.paper_entries == "10^14,080,064,000"
    assert size.entries == "10^440,063,965"  # 440,000,000 + 32 * 2000 - log10 32!


@pytest.mark.parametrize(
    ("logarithm", "words"),
    [
        (0.0, "1"),
        (log10(1234), "1,234"),
        (11.9, "794,328,234,724"),
        (14.45, "2.8e+14"),
        (1234.4, "10^1,234"),
    ],
)
def test_counts_are_put_in_words(logarithm, words):
    assert in_words(logarithm) == words


@pytest.mark.parametrize(
    ("n_examples", "levels", "message"),
    [
        (0, 4, "n_examples must be a whole number of at least 1, got 0."),
        (2, 1, "levels must be a whole number of at least 2, got 1."),
    ],
)
def test_impossible_tables_are_refused(n_examples, levels, message):
    with pytest.raises(SettingError) as caught:
        table_size(problem(1, 1), n_examples, levels)
    assert str(caught.value) == message
