"""universal: steps looked up in a table, measured against the theorem and against its bounds."""

from dataclasses import replace
from itertools import combinations_with_replacement, product
from math import comb, isclose, log10
from pathlib import Path

import pytest
import torch
from torch import Tensor

import icgd
from icgd.choice import construction_for
from icgd.constructions import universal
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.constructions.universal import (
    Universal,
    context_head,
    in_words,
    level_values,
    levels_of,
    table_size,
)
from icgd.errors import (
    DataError,
    IcgdError,
    SettingError,
    ToleranceError,
    UnsupportedProblemError,
)
from icgd.problems import oracles as network
from icgd.program.check import check_program
from icgd.program.instructions import Combination
from icgd.program.layout import Layout, Role, Slot
from icgd.program.stack import StackProgram
from tests.cases import exact_step

UNIVERSAL = Universal()
GOLDEN = Path(__file__).parents[1] / "golden"
PROBLEM = icgd.Problem(
    icgd.MLP((1, 1)), "squared", icgd.GradientStep(0.3, 1.0), icgd.Domain(1.0, 2.0)
)
RAMP = 2.0**-13


def compiled(levels: int = 4, n_examples: int = 2, n_steps: int = 1, **settings) -> icgd.Compiled:
    return icgd.compile(
        settings.pop("problem", PROBLEM),
        n_steps=n_steps,
        construction="universal",
        levels=levels,
        n_examples=n_examples,
        **settings,
    )


def random_data(n_tasks: int, n_examples: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Examples and weights anywhere in the domain of PROBLEM."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n_tasks, n_examples, 1)
    x, y = (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1 for _ in range(2))
    w = 2 * torch.rand(n_tasks, 1, generator=generator, dtype=torch.float64) - 1
    return x, 2 * y, w


def every_entry(levels: int, n_examples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Examples and weights on every choice of levels, in the domain of PROBLEM."""
    values = level_values(levels).tolist()
    kinds = list(product(values, repeat=2))
    rows = list(product(combinations_with_replacement(kinds, n_examples), values))
    data = torch.tensor([examples for examples, _ in rows], dtype=torch.float64)
    w = torch.tensor([[weight] for _, weight in rows], dtype=torch.float64)
    return data[..., :1], 2 * data[..., 1:], w


def test_a_step_takes_4_layers_and_a_prediction_2():
    program = compiled(n_steps=5).program
    assert [layer.kind.value for layer in program.block] == ["mlp", "softmax", "mlp", "mlp"]
    assert [layer.kind.value for layer in program.prediction] == ["mlp", "mlp"]
    assert program.n_layers == 22
    assert compiled().summary().n_heads == 1


def test_the_golden_listing_of_3_levels():
    listing = compiled(levels=3, n_steps=2).program.listing()
    assert listing == (GOLDEN / "universal_3_levels.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("levels", "n_examples"), [(2, 2), (5, 2), (3, 3), (2, 6)])
def test_contexts_are_told_apart_whatever_their_order(levels, n_examples):
    head = context_head(levels, n_examples, width=2, room=levels)
    codes = head.codes.sort().values
    assert codes.diff().min() >= levels
    assert len(codes) == len(set(combinations_with_replacement(range(levels**2), n_examples)))
    assert head.largest_key < 1e6


@pytest.mark.parametrize("levels", [2, 3, 7])
def test_levels_are_the_centres_of_equal_cells(levels):
    staircase = levels_of(levels, RAMP)
    off_the_ramps = torch.linspace(-1, 1, 998, dtype=torch.float64)
    cell = ((off_the_ramps + 1) * levels / 2).floor().clamp(max=levels - 1)
    expected = (2 * cell + 1) / levels - 1
    found = torch.tensor([staircase(float(z)) for z in off_the_ramps], dtype=torch.float64)
    assert (found - expected).abs().max() <= 1e-11
    assert 1 / levels < staircase.error <= 1 / levels + 2.0**-9


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize(("levels", "n_examples"), [(3, 2), (2, 3)])
def test_on_its_levels_every_step_and_prediction_is_exact(backend, levels, n_examples):
    x, y, w = every_entry(levels, n_examples)
    queries = x[:, :1]
    run = compiled(levels, n_examples).run(x, y, queries=queries, initial=w, backend=backend)
    after = run.parameters[:, 1]
    assert (after - exact_step(PROBLEM, w, x, y)).abs().max() <= 1e-11
    on_levels = level_values(levels)[((after + 1) * levels / 2).long().clamp(max=levels - 1)]
    truth = network.predict(PROBLEM.target, on_levels, queries)
    assert (run.predictions - truth).abs().max() <= 1e-12


@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_the_order_of_the_examples_does_not_matter(backend):
    x, y, w = random_data(30, 3)
    transformer = compiled(3, 3, n_steps=3)
    forward = transformer.run(x, y, initial=w, backend=backend).parameters
    backward = transformer.run(x.flip(1), y.flip(1), initial=w, backend=backend).parameters
    assert (forward - backward).abs().max() <= 1e-11


@pytest.mark.parametrize("n_examples", [2, 3])
def test_the_error_keeps_to_the_theorem_and_falls_like_one_over_levels(n_examples):
    x, y, w = random_data(1000, n_examples)
    products = []
    for levels in (2, 3, 4):
        report = icgd.verify(compiled(levels, n_examples, kink_width=2.0**-20), x, y, initial=w)
        measured = float(report.step_errors.max())
        assert report.verdict.holds
        assert (
            measured <= report.step_bounds.max() <= report.certificate.domain_step <= 6 * measured
        )
        assert 10 * measured <= report.certificate.paper_step
        products.append(levels * measured)
    assert max(products) <= 1.15 * min(products)


def test_dense_and_fused_agree_within_their_bounds():
    x, y, w = random_data(20, 2, seed=1)
    transformer = compiled(5, n_steps=4)
    runs = [transformer.run(x, y, queries=x, initial=w, backend=b) for b in ("dense", "fused")]
    assert (runs[0].parameters - runs[1].parameters).abs().max() <= 1e-10
    assert (runs[0].predictions - runs[1].predictions).abs().max() <= 1e-10
    for backend in ("dense", "fused"):
        report = icgd.verify(transformer, x, y, initial=w, backend=backend)
        assert report.verdict.holds
        assert report.step_errors.max() <= report.step_bounds.max() < 1


@pytest.mark.parametrize("output", ["identity", "tanh", "softplus"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_bounds_hold_for_every_smooth_gradient(output, loss):
    target = icgd.MLP((1, 1), output_activation=output)
    problem = icgd.Problem(target, loss, icgd.GradientStep(0.7, 1.0), PROBLEM.domain)
    x, y, w = random_data(30, 2, seed=2)
    report = icgd.verify(compiled(3, problem=problem, n_steps=2), x, y.abs() / 2, initial=w)
    assert report.verdict.holds
    assert 0.1 < report.step_errors.max() < report.step_bounds.max() < report.certificate.paper_step


@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_float32_may_misread_keys_and_then_promises_only_the_range_of_the_table(backend):
    x, y, w = random_data(20, 2)
    double = icgd.verify(compiled(), x, y, initial=w, backend=backend)
    single = icgd.verify(compiled(), x, y, initial=w, backend=backend, dtype="float32")
    assert single.verdict.holds
    assert double.step_bounds.max() < 1 < 1.9 < single.step_bounds.max()
    assert double.certificate.domain_step < 1 < 1.9 < single.certificate.domain_step


def test_a_weight_on_a_ramp_gets_a_step_between_those_of_its_neighbours():
    x, y = torch.tensor([[0.3], [-0.8]]), torch.tensor([[0.5], [1.6]])
    shares = torch.tensor([0.0, 0.3, 0.5, 0.7, 1.0], dtype=torch.float64)
    w = 0.5 + RAMP * shares[:, None]
    batch = (x.double().expand(5, 2, 1), y.double().expand(5, 2, 1))
    for backend in ("dense", "fused"):
        report = icgd.verify(compiled(), *batch, initial=w, backend=backend)
        assert report.verdict.holds
        after = compiled().run(*batch, initial=w, backend=backend).parameters[:, 1, 0]
        assert after[0] < after[2] < after[4]
        assert torch.equal(after.sort().values, after)


@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_another_number_of_examples_is_refused(backend):
    x, y, _ = random_data(1, 3)
    with pytest.raises(DataError) as caught:
        compiled().run(x[0], y[0], backend=backend)
    assert str(caught.value) == (
        "X has 3 examples, but the transformer was made for prompts of 2. Give 2, or compile with "
        "n_examples=3."
    )


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize(
    ("name", "x", "y", "ramp"),
    [
        ("X[1, 0] is 0.50006", 0.50006, 0.2, "0.5 and 0.500122070312"),
        ("y[1, 0] is -0.9999", 0.2, -0.9999, "-1 and -0.999755859375"),
    ],
)
def test_an_example_on_a_ramp_is_refused(backend, name, x, y, ramp):
    with pytest.raises(DataError) as caught:
        compiled().run([[0.1], [x]], [0.1, y], backend=backend)
    assert str(caught.value) == (
        f"{name}, on the ramp between two levels: the table has no entry for examples strictly "
        f"between {ramp}. Move it out, or compile with a smaller kink_width."
    )


@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_the_ends_of_a_ramp_are_on_a_level(backend):
    run = compiled().run([[0.5], [0.5 + RAMP]], [-1.0, 0.3], initial=[0.9], backend=backend)
    x, y = torch.tensor([[0.25], [0.75]]).double(), torch.tensor([[-1.5], [0.5]]).double()
    truth = exact_step(PROBLEM, torch.tensor([0.75]).double(), x, y)
    assert (run.parameters[1] - truth).abs().max() <= 1e-10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"levels": 11},
            "levels=11 with n_examples=2 needs a table of 81,191 entries; at most 65,536 fit. Give "
            "fewer levels or examples.",
        ),
        ({"levels": 1}, "levels must be a whole number of at least 2, got 1."),
        ({"n_examples": 0}, "n_examples must be a whole number of at least 1, got 0."),
        (
            {"kink_width": 0.25},
            "kink_width must lie between 9.31323e-10 and 0.015625, got 0.25.",
        ),
        (
            {"pieces": 8},
            "universal has no setting 'pieces'; its settings are levels, n_examples, kink_width. "
            "pieces is a setting of relu-stack.",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingError) as caught:
        icgd.compile(PROBLEM, n_steps=1, construction="universal", **settings)
    assert str(caught.value) == message


def test_keys_that_float64_cannot_tell_apart_are_refused(monkeypatch):
    largest = context_head(3, 2, width=2, room=3).largest_key
    monkeypatch.setattr(universal, "LARGEST_KEY", 0.99 * largest)
    with pytest.raises(SettingError) as caught:
        compiled(3)
    assert str(caught.value) == (
        "levels=3 with n_examples=2 needs keys that are too close for float64 to tell apart. "
        "Give fewer levels or examples."
    )


def test_it_is_chosen_only_for_its_own_settings():
    """Another construction always comes closer, for prompts of any length."""
    assert icgd.compile(PROBLEM, n_steps=1).program.construction != "universal"
    assert icgd.compile(PROBLEM, n_steps=1, tolerance=1.0).program.construction != "universal"
    assert icgd.compile(PROBLEM, n_steps=1, n_examples=2, levels=4) == compiled(4, 2)


def test_other_constructions_take_no_number_of_examples():
    with pytest.raises(SettingError) as caught:
        icgd.compile(PROBLEM, "relu-stack", n_steps=1, n_examples=2)
    assert str(caught.value) == (
        "relu-stack has no setting 'n_examples'; its settings are pieces, kink_width. n_examples "
        "is a setting of universal, cot-ridge, cot-lasso, cot-glm."
    )


def test_a_tolerance_chooses_the_levels(monkeypatch):
    monkeypatch.setattr(Universal, "finest", 4)
    coarse = icgd.compile(PROBLEM, n_steps=1, construction="universal", tolerance=1.0)
    assert coarse.certificate().domain_step <= 1.0 < compiled(2).certificate().domain_step
    with pytest.raises(ToleranceError) as caught:
        icgd.compile(PROBLEM, n_steps=1, construction="universal", tolerance=0.1)
    assert str(caught.value).endswith(
        "with 4 levels. The error falls like 1 / levels, and larger tables do not fit."
    )


def test_more_than_one_weight_is_refused_with_the_size_of_the_table():
    problem = icgd.Problem(icgd.MLP((2, 3, 1)), "squared", PROBLEM.update, PROBLEM.domain)
    with pytest.raises(UnsupportedProblemError) as caught:
        construction_for(problem, "universal")
    able = ", ".join(c.name for c in CONSTRUCTIONS.values() if c.why_not(problem) is None)
    assert "relu-stack" in able
    assert str(caught.value) == (
        "universal cannot compile this problem: it looks up whole steps in a table, and is built "
        "for a single weight, widths (1, 1). For widths (2, 3, 1) with 2 examples and 4 levels the "
        "table would need 4^(12 * 2) = 2.8e+14 entries (545,259,520 without repetitions). "
        f"Constructions that can: {able}."
    )


@pytest.mark.parametrize(
    ("output", "loss", "step_size", "reason"),
    [
        ("relu", "squared", 0.3, "the gradient of relu jumps, so it has no Lipschitz constant, "),
        ("tanh", "cross_entropy", 0.3, "the slope of the cross_entropy loss of a single output"),
        (
            "tanh",
            icgd.Loss("t*y**2"),
            0.3,
            "the slope of the t*y**2 on -64 to 64 loss is not a sum",
        ),
        ("identity", "squared", 1e13, "a step can lead to 3e+13, where float64 has too few digits"),
    ],
)
def test_gradients_that_a_table_cannot_follow_are_refused(output, loss, step_size, reason):
    target = icgd.MLP((1, 1), output_activation=output)
    problem = icgd.Problem(target, loss, icgd.GradientStep(step_size, 1.0), PROBLEM.domain)
    assert (UNIVERSAL.why_not(problem) or "").startswith(reason)


def test_a_program_survives_saving(tmp_path):
    transformer = compiled(3, 3)
    transformer.save(tmp_path / "run.safetensors")
    assert icgd.load(tmp_path / "run.safetensors") == transformer


def test_the_default_table_is_for_2_examples_on_4_levels():
    assert (UNIVERSAL.levels, UNIVERSAL.n_examples) == (4, 2)
    assert icgd.compile(PROBLEM, n_steps=1, construction="universal") == compiled(4, 2)


def tampered(number: int, **changes: object) -> StackProgram:
    """The program with other fields in the only instruction of one of its layers."""
    program = compiled(2).program
    layer = program.block[number]
    changed = replace(layer, instructions=(replace(layer.instructions[0], **changes),))
    return replace(program, block=(*program.block[:number], changed, *program.block[number + 1 :]))


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (
            2,
            {"write": "level_w"},
            "block layer 3 (look up), LookUpStep: writes (1, 1) to level_w",
        ),
        (
            2,
            {"table": "stairs"},
            "block layer 3 (look up), LookUpStep: needs a ReluSum called 'stairs', and there is",
        ),
        (
            1,
            {"score": Combination.of("wide")},
            "block layer 2 (context), AverageExamples: (2) coordinates, expected one number",
        ),
        (
            1,
            {"value": Combination(("level_x", "wide"), (1.0, 1.0))},
            "block layer 2 (context), AverageExamples: (1) meets (2), expected equal shapes, in ",
        ),
    ],
    ids=["no weight", "no table", "wide score", "wide value"],
)
def test_programs_that_would_mislead_a_backend_are_refused(number, changes, message):
    program = tampered(number, **changes)
    wide = Slot("wide", (2,), Role.INPUT)
    with pytest.raises(IcgdError) as caught:
        check_program(replace(program, layout=Layout((*program.layout.slots, wide))))
    assert str(caught.value).startswith(message)


# How large the table is.


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
