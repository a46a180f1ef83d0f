"""Functions of one's own in three layers, measured against the functions themselves."""

from itertools import permutations
from math import sqrt

import numpy as np
import pytest
import torch

import icgd
from icgd.backends.prompt import encode
from icgd.errors import (
    ConstructionError,
    DataError,
    DomainError,
    FileError,
    SettingError,
    UnknownNameError,
)
from icgd.looked_up import UniversalFunction

BACKENDS = ("fused", "literal", "dense")


def moved(Z):
    """Every number moves along with its row's mean: 2 is a Lipschitz constant."""
    return Z + np.tanh(Z.mean(1, keepdims=True))


def attended(Z):
    """A mean weighted by a softmax of the first row, which every column gets."""
    shares = np.exp(Z[0] - Z[0].max())
    return np.tile((Z * shares).sum(1, keepdims=True) / shares.sum(), Z.shape[1])


CASES = {
    "one number": (moved, {"d": 1, "n": 1, "D": 40}),
    "pairs": (moved, {"d": 1, "n": 2, "D": 8}),
    "two rows": (attended, {"d": 2, "n": 2, "D": 4}),
    "three tokens": (attended, {"d": 2, "n": 3, "D": 3}),
    "off centre": (moved, {"d": 1, "n": 3, "D": 5, "box": (0.5, 3.0)}),
    "large box": (moved, {"d": 2, "n": 2, "D": 3, "box": 100.0}),
}


def drawn(found, n_tasks, seed=0):
    """Matrices anywhere in the box, but for those with a number on a ramp."""
    low, high = found.box
    matrices = np.random.default_rng(seed).uniform(low, high, (n_tasks, *found.shape))
    knots = np.array(found.program.relu_sum("identity").knots)
    scaled = (2 * matrices - low - high) / (high - low)
    on_ramp = (scaled[..., None] > knots[::2] - 1e-9) & (scaled[..., None] < knots[1::2] + 1e-9)
    return matrices[~on_ramp.any((1, 2, 3))]


@pytest.fixture(params=CASES, scope="module")
def case(request):
    f, settings = CASES[request.param]
    return f, icgd.universal(f, lipschitz=2.0, **settings)


def nearest(found, matrices):
    """The centres of the cells, computed anew."""
    low, high = found.box
    width = (high - low) / found.levels
    return low + width * (np.floor((matrices - low) / width).clip(max=found.levels - 1) + 0.5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_transformer_is_the_function_at_the_centre_of_the_cell(case, backend):
    f, found = case
    matrices = drawn(found, 50)
    exact = np.stack([f(centre) for centre in nearest(found, matrices)])
    gap = np.abs(found.run(matrices, backend=backend).numpy() - exact).max()
    assert gap <= 1e-8 * (1 + np.abs(exact).max())


def test_the_error_keeps_to_its_bound_and_that_to_the_lemmas(case):
    f, found = case
    (d, n), (low, high) = found.shape, found.box
    lemma = 2.0 * (8 * sqrt(d * n) + sqrt(n)) * (high - low) / (2 * found.levels)
    assert found.paper_bound == pytest.approx(lemma)
    half_cell = 2.0 * sqrt(d * n) * (high - low) / (2 * found.levels)
    for backend in BACKENDS:
        report = found.verify(f, drawn(found, 200), backend=backend)
        assert report.holds
        assert report.errors.max() <= report.bound < 1.02 * half_cell < lemma / 8
        assert report.errors.max() > report.bound / 4


def test_columns_are_permuted_along(case):
    _, found = case
    matrices = drawn(found, 20)
    plain = found.run(matrices, backend="literal")
    for order in permutations(range(found.shape[1])):
        other = found.run(matrices[:, :, order], backend="literal")
        assert (other - plain[:, :, order]).abs().max() <= 1e-9


def test_three_layers_with_one_head_whose_scratch_is_empty_in_the_end(case):
    f, found = case
    kinds = [layer.kind.value for layer in found.program.block]
    assert (kinds, found.summary().n_layers, found.summary().n_heads) == (
        ["mlp", "softmax", "mlp"],
        3,
        1,
    )
    matrix = torch.as_tensor(drawn(found, 5)[0])
    stream = encode(found.program, found._task(matrix))
    with torch.no_grad():
        after = found.transformer()(stream)
    layout = found.program.layout
    scratch = [name for name in layout.names if name not in ("x", "y", "one")]
    assert max(float(after[:, layout.range_of(name)].abs().max()) for name in scratch) <= 1e-9
    answer = after[:, layout.range_of("y")].T.numpy()
    assert np.abs(answer - f(nearest(found, matrix.numpy()))).max() <= 1e-6


def test_a_report_compares_errors_with_the_distance_from_the_argument():
    found = icgd.universal(np.zeros_like, d=1, n=2, D=4, lipschitz=1.0)
    report = found.verify(np.zeros_like, [[0.3, -0.4]])
    assert (float(report.errors), float(report.idle_errors)) == (0.0, pytest.approx(0.5))
    text = "f(Z) is up to 0.5 from Z; the mean error is 0 times the mean distance"
    assert report.facts()["for comparison"] == text
    assert "every error is within the bound; backend: literal" in repr(report)
    wrong = found.verify(lambda Z: Z + 9, [[0.3, -0.4]])
    assert not wrong.holds
    assert "an error exceeds the bound: f is steeper" in repr(wrong)


def test_files_hold_the_table_and_not_the_function(tmp_path):
    found = icgd.universal(moved, d=2, n=2, D=3, lipschitz=2.0, box=(0.0, 1.0))
    path = tmp_path / "moved.safetensors"
    found.save(path)
    loaded = UniversalFunction.load(path)
    assert loaded == found
    matrices = drawn(found, 20)
    assert torch.equal(
        loaded.run(matrices, backend="literal"), found.run(matrices, backend="literal")
    )
    assert loaded.bound() == found.bound()
    with pytest.raises(FileError, match=r"holds no training run .* icgd\.UniversalFunction\.load"):
        icgd.load(path)
    problem = icgd.Problem(
        icgd.MLP((1, 1)), "squared", icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0)
    )
    icgd.compile(problem, "relu-stack", n_steps=1).save(path)
    with pytest.raises(FileError, match=r"holds a training run, .* icgd\.load"):
        UniversalFunction.load(path)


def test_what_it_shows_and_draws(tmp_path):
    found = icgd.universal(moved, d=2, n=2, D=3, lipschitz=2.0)
    assert repr(found) == (
        "UniversalFunction(function: of 2 x 2 matrices in [-1, 1], Lipschitz constant 2 (assumed); "
        "table: 81 keys, of D^(dn) = 81 entries; layers: 3 layers; error: at most 1.34; the "
        "lemma's bound: 11.61)"
    )
    assert "y = f_1, f_2 at +1 context +4.5 z_1 +1.5 z_2, of 2 tokens" in found.listing()
    found.draw(tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert "a token for each column of the matrix" in text
    assert "y at every token" in text


def test_a_function_that_is_not_equivariant_is_refused_with_the_input():
    with pytest.raises(ConstructionError) as caught:
        icgd.universal(lambda Z: np.cumsum(Z, axis=1), d=1, n=2, D=2, lipschitz=9.0)
    assert str(caught.value) == (
        "f is not permutation-equivariant: at Z = [[-0.5, -0.5]] it is [[-0.5, -1.0]], but with "
        "the columns of Z in the order [1, 0] (counted from 0) it is [[-0.5, -1.0]] instead of "
        "[[-1.0, -0.5]]. A transformer without positional encodings computes equivariant functions "
        "only."
    )


def test_every_order_of_the_columns_is_tried():
    """No swap of two neighbours in order shows this one, only a rotation."""

    def rotated(Z):
        return np.full_like(Z, Z[0, 2] < Z[0, 0] < Z[0, 1])

    with pytest.raises(ConstructionError, match=r"in the order \[1, 2, 0\] \(counted from 0\)"):
        icgd.universal(rotated, d=1, n=3, D=3, lipschitz=9.0)


def test_a_function_that_is_steeper_than_stated_is_refused_with_two_inputs():
    with pytest.raises(ConstructionError) as caught:
        icgd.universal(lambda Z: 3 * Z, d=1, n=1, D=2, lipschitz=2.5)
    assert str(caught.value) == (
        "f is steeper than lipschitz=2.5: between Z = [[-0.5]] and Z = [[0.5]], which are 1 apart, "
        "it changes by 3 (Frobenius norms). Give lipschitz=3 or more."
    )
    icgd.universal(lambda Z: 3 * Z, d=1, n=1, D=2, lipschitz=3.0)


def test_steepness_is_looked_for_between_all_orders_of_the_columns():
    """Steep only along the difference of the columns, in which sorted points hardly differ."""

    def apart(Z):
        return np.where(np.equal(Z, Z.max()), 1.0, -1.0) * (Z.max() > Z.min())

    with pytest.raises(ConstructionError, match=r"^f is steeper than lipschitz=3\.9:"):
        icgd.universal(apart, d=1, n=2, D=4, lipschitz=3.9)
    icgd.universal(apart, d=1, n=2, D=4, lipschitz=4.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"d": 3, "n": 3, "D": 4},
            "D=4 with d=3 and n=3 needs a table of D^(dn) = 262,144 entries (133,120 without "
            "repetitions); at most 65,536 fit. With d=3 and n=3 at most D=3 fits.",
        ),
        (
            {"d": 9, "n": 9, "D": 10},
            "D=10 with d=9 and n=9 needs a table of D^(dn) = 1e+81 entries (2.5e+76 without "
            "repetitions); at most 65,536 fit. Not even D=2 fits: take a function of fewer rows or "
            "columns.",
        ),
        ({"d": 0, "n": 1, "D": 4}, "d must be a whole number of at least 1, got 0."),
        ({"d": 1, "n": 1, "D": 1}, "D must be a whole number of at least 2, got 1."),
        ({"d": 1, "n": 1, "D": 2, "box": (1.0, 0.0)}, "box must be a pair (low, high) with low < "),
        ({"d": 1, "n": 1, "D": 2, "box": -1.0}, "box must be a positive finite number, got -1.0."),
        ({"d": 1, "n": 1, "D": 2, "lipschitz": 0.0}, "lipschitz must be a positive finite number"),
        ({"d": 1, "n": 1, "D": 2, "kink_width": 0.3}, "kink_width must be a power of two, such"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(SettingError) as caught:
        icgd.universal(moved, **{"lipschitz": 2.0, **settings})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda Z: Z.sum(), "f must return an array of shape (1, 2), that of its argument; at Z "),
        (lambda Z: "none", "f must return numbers, an array of shape (1, 2); at Z = [[-0.5, -0.5]"),
        (lambda Z: Z * 1j, "f must return real numbers, but at Z ="),
        (lambda Z: Z / 0.0 * 0, "f must be finite and at most 1e+12 in absolute value"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_no_function_of_matrices_is_refused(f, message):
    with pytest.raises(SettingError) as caught:
        icgd.universal(f, d=1, n=2, D=2, lipschitz=2.0)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("matrix", "kind", "message"),
    [
        ([[0.1, 0.2, 0.3]], DataError, "Z has shape (1, 3); expected (1, "),
        ([[0.1, 1.5]], DomainError, "Z[0, 1] is 1.5, outside [-1, 1]. Rescale the data, or give u"),
        ([[0.1, 0.50005]], DataError, "Z[0, 1] is 0.50005, on the ramp between two levels: the ta"),
        ([[0.1, float("nan")]], DataError, "Z[0, 1] is nan; every entry must be finite."),
    ],
)
def test_matrices_that_it_is_not_made_for_are_refused(matrix, kind, message):
    found = icgd.universal(moved, d=1, n=2, D=4, lipschitz=2.0)
    with pytest.raises(kind) as caught:
        found.run(matrix)
    assert str(caught.value).startswith(message)
    with pytest.raises(UnknownNameError):
        found.run([[0.1, 0.2]], backend="slow")
