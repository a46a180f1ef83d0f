"""Sets that weights are projected onto: against projections and descent of their own."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb, arb_mat, ctx
from scipy.optimize import minimize
from typer.testing import CliRunner

import icgd
import icgd_check
from icgd.certificates import enclosures
from icgd.certificates.balls import _checksummed
from icgd.certificates.enclosures import Arithmetic, Enclosure, Interval
from icgd.cli.app import app
from icgd.constructions.network import (
    backward_ranges,
    ranges_on_domain,
    sorting_network,
    tournament,
)
from icgd.errors import ConstructionError, DomainError, SettingError, UnsupportedProblemError
from icgd.problems.sets import checked_sets, sets_of
from icgd.program.set_instructions import running_means

WIDTHS = (3, 4, 2)
GENERATOR = np.random.default_rng(5)
NORMAL = GENERATOR.normal(size=(4, 3))
ROW = GENERATOR.normal(size=4)
SIZES = GENERATOR.uniform(0.1, 0.5, (2, 4))
SIZES[0, 1] = 0.0  # this weight is 0 in the whole run

# Independent projections of each layer's matrix.


def clipped(low, high):
    return lambda w: np.clip(w, low, high)


def beyond_half_space(normal, offset):
    """One unit; the cubes of these tests are so wide that no run comes to them."""
    return lambda w: w - normal * max((normal * w).sum() - offset, 0.0) / (normal**2).sum()


def on_simplex(total):
    def project(rows):
        return np.stack([bisected(row, total) for row in rows])

    return project


def bisected(row, total):
    """max(w - theta, 0) with the theta for which it adds up to the total, by bisection."""
    low, high = row.min() - total, row.max()
    for _ in range(200):
        middle = (low + high) / 2
        is_low = np.maximum(row - middle, 0).sum() > total
        low, high = (middle, high) if is_low else (low, middle)
    return np.maximum(row - low, 0)


def rows(project):
    return lambda w: np.stack([project(row) for row in w])


CASES = {
    "a box for each layer": ((0.4, 0.2), clipped(-0.4, 0.4), clipped(-0.2, 0.2)),
    "an interval": (icgd.Box(-0.1, 0.4), clipped(-0.1, 0.4), clipped(-0.1, 0.4)),
    "a box for each weight": ((1.0, SIZES), clipped(-1.0, 1.0), clipped(-SIZES, SIZES)),
    "half-spaces": (
        (icgd.HalfSpace(NORMAL, -0.1, 4.0), icgd.HalfSpace(ROW, -0.2, 4.0)),
        beyond_half_space(NORMAL, -0.1),
        rows(beyond_half_space(ROW, -0.2)),
    ),
    "a simplex": ((icgd.Simplex(0.8), icgd.Simplex()), on_simplex(0.8), on_simplex(1.0)),
}


def data(seed, n=8, widths=WIDTHS):
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (n, widths[0]))
    return x, np.sin(3 * x @ generator.normal(size=(widths[0], widths[-1])))


def problem_with(box, step=icgd.GradientStep, widths=WIDTHS, activation="relu", **options):
    network = icgd.MLP(widths, activation, **options)
    return icgd.Problem(network, "squared", step(0.4, box), icgd.Domain(2.0, 2.0))


def descent(x, y, w, n_steps, projections, step_size=0.4):
    """Projected descent on a relu network by autograd, with numpy's projections."""
    matrices = [torch.tensor(part) for part in np.split(w, [12])]
    matrices = [m.view(s) for m, s in zip(matrices, [(4, 3), (2, 4)], strict=True)]
    x, y = torch.tensor(x), torch.tensor(y)
    for _ in range(n_steps):
        leaves = [m.clone().requires_grad_() for m in matrices]
        risk = ((torch.relu(x @ leaves[0].T) @ leaves[1].T - y) ** 2).sum() / (2 * len(x))
        gradients = torch.autograd.grad(risk, leaves)
        moved = [(m - step_size * g).numpy() for m, g in zip(matrices, gradients, strict=True)]
        matrices = [torch.tensor(p(m)) for p, m in zip(projections, moved, strict=True)]
    return np.concatenate([m.numpy().ravel() for m in matrices])


@cache
def compiled_case(case, construction):
    return icgd.compile(problem_with(CASES[case][0]), construction, n_steps=4)


RUNS = [(case, "relu-stack") for case in CASES]
RUNS += [(case, "softmax-stack") for case in CASES if case != "a simplex"]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("case", "construction"), RUNS)
def test_a_run_is_projected_descent_within_what_is_proved(case, construction, seed):
    projections = CASES[case][1:]
    (x, y), compiled = data(seed), compiled_case(case, construction)
    task = compiled.task(x, y, seed=seed)
    runs = {name: compiled.run_task(task, backend=name) for name in ("literal", "dense", "fused")}
    start = runs["literal"].parameters[0].numpy()
    exact = descent(x, y, start, 4, projections)
    report = icgd.verify(compiled, x, y, seed=seed)
    assert report.verdict is icgd.Verdict.HOLDS, report.verdict
    proved = float(report.rigorous.distances[-1])
    assert proved < 1e-9
    off = {name: np.abs(run.parameters[-1].numpy() - exact).max() for name, run in runs.items()}
    assert off["literal"] <= proved + 1e-14
    assert max(off.values()) < 1e-9
    free = descent(x, y, start, 4, [lambda w: w] * 2)
    assert np.abs(free - exact).max() > 0.02  # the set is active


@pytest.mark.parametrize("step", [icgd.MomentumStep, icgd.AdamStep])
@pytest.mark.parametrize("case", ["a box for each layer", "half-spaces", "a simplex"])
def test_other_rules_project_after_the_update_and_before_the_average(case, step):
    problem = problem_with(CASES[case][0])
    update = step(0.1, CASES[case][0], average=0.5)
    compiled = icgd.compile(replace(problem, update=update), "relu-stack", n_steps=3)
    x, y = data(3)
    literal = compiled.run(x, y, seed=0, backend="literal")
    report = icgd.verify(compiled, x, y, seed=0)
    assert report.verdict is icgd.Verdict.HOLDS
    weights = literal.parameters[-1][: 12 + 8]
    sets = compiled.problem.network_oracle.sets
    assert float((sets.project(weights) - weights).abs().max()) < 1e-12
    average = literal.parameters[:, -20:]
    after = literal.parameters[-1, :20]
    assert torch.allclose(average[-1], (average[-2] + after) / 2, atol=1e-12)


SHAPES = {
    "half-space of all": icgd.HalfSpace(NORMAL, -0.3, 0.8),
    "half-space of rows": icgd.HalfSpace((1.0, 0.0, -3.0), 0.2, 0.5),
    "simplex": icgd.Simplex(1.5),
    "box": icgd.Box(-0.2, 0.7),
}


@pytest.mark.parametrize("case", SHAPES)
def test_it_is_the_nearest_point_of_a_convex_set(case):
    sets = sets_of(icgd.MLP((3, 4)), SHAPES[case])
    generator = torch.Generator().manual_seed(1)
    points, others = 2 * torch.randn(2, 300, 12, generator=generator, dtype=torch.float64)
    projected, inside = sets.project(points), sets.project(others)
    assert float((sets.project(inside) - inside).abs().max()) < 1e-14
    # <point - projection, z - projection> <= 0 for all z of the set.
    away = points - projected
    assert float((away @ inside.mT - (away * projected).sum(-1, keepdim=True)).max()) < 1e-12
    low, high = sets.ends()
    assert bool(((low <= projected + 1e-15) & (projected <= high + 1e-15)).all())
    assert bool(((projected - inside).norm(dim=-1) <= (points - others).norm(dim=-1)).all())


def test_a_half_space_in_a_cube_is_what_a_general_solver_finds():
    part = icgd.HalfSpace((1.0, 2.0, -1.0), 0.3, 0.5)
    layer = sets_of(icgd.MLP((3, 1)), part).layers[0]
    basis, point = np.array(layer.faces[0].basis), np.array([0.9, 0.8, 0.4])
    assert np.allclose(basis @ basis.T, np.eye(3), atol=1e-15)
    normal = np.array([1.0, 2.0, -1.0])
    assert np.allclose(basis[0], normal / np.linalg.norm(normal))
    cube = [
        {"type": "ineq", "fun": lambda w, q=q, s=s: 0.5 - s * q @ w} for q in basis for s in (1, -1)
    ]
    found = minimize(
        lambda w: ((w - point) ** 2).sum(),
        np.zeros(3),
        constraints=[*cube, {"type": "ineq", "fun": lambda w: 0.3 - normal @ w}],
        tol=1e-14,
    )
    ours = layer.project(torch.tensor(point)).numpy()
    assert np.allclose(ours, found.x, atol=1e-6)
    assert abs(normal @ ours - 0.3) < 1e-14  # on the face of the half-space


@pytest.mark.parametrize("width", range(3, 9))
def test_networks_sort_and_find_the_largest(width):
    generator = np.random.default_rng(width)
    for network, wanted in ((sorting_network(width), width), (tournament(width), 1)):
        numbers = generator.normal(size=(200, width))
        after = numbers.copy()
        for pairs in network:
            assert len({place for pair in pairs for place in pair}) == 2 * len(pairs)
            for i, j in pairs:
                one, other = after[:, i].copy(), after[:, j].copy()
                after[:, i], after[:, j] = np.maximum(one, other), np.minimum(one, other)
        assert np.array_equal(after[:, :wanted], -np.sort(-numbers)[:, :wanted])


def test_a_layer_of_rows_of_eight_is_on_the_simplex():
    problem = problem_with((1.0, icgd.Simplex()), widths=(2, 8, 2))
    compiled = icgd.compile(problem, "relu-stack", n_steps=2)
    x, y = data(0, widths=(2, 8, 2))
    assert icgd.verify(compiled, x, y, seed=0).verdict is icgd.Verdict.HOLDS
    after = compiled.run(x, y, seed=0, backend="literal").weights["weights_2"]
    assert np.allclose(after.sum(-1), 1.0, atol=1e-14)
    assert float(after.min()) == 0.0
    plain = icgd.compile(problem_with(1.0, widths=(2, 8, 2)), "relu-stack", n_steps=2)
    more = compiled.summary().layers_per_step - plain.summary().layers_per_step
    assert more == 6 + 1 + 3 + 1  # sorting, means, tournament, threshold


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_intervals_that_the_sets_leave_are_tighter_for_all_data(construction):
    both = [problem_with(box, widths=(2, 3, 1)) for box in (0.5, (0.5, 0.1))]
    wide, narrow = (icgd.compile(p, construction, n_steps=2).certificate() for p in both)
    assert narrow.domain_step < wide.domain_step


def test_float32_runs_stay_within_their_bounds():
    for case in ("half-spaces", "a simplex"):
        compiled = icgd.compile(problem_with(CASES[case][0]), "relu-stack", n_steps=3)
        x, y = data(4)
        report = icgd.verify(compiled, x, y, seed=0, dtype="float32", rigorous=False)
        assert report.verdict is icgd.Verdict.HOLDS


# Bounds.


HOW = [Arithmetic(2.0**-53, 8, True), Arithmetic(2.0**-24, 8, False)]


def drawn_enclosure(generator, *shape):
    low = torch.randn(200, *shape, generator=generator, dtype=torch.float64)
    exact = Interval(low, low + 0.3 * torch.rand(low.shape, generator=generator).double())
    error = 0.1 * torch.rand(low.shape, generator=generator).double()
    value = Enclosure.around(exact, error)
    at = torch.rand(low.shape, generator=generator).double()
    point = exact.low + at * (exact.high - exact.low)
    off = error * (2 * torch.rand(low.shape, generator=generator).double() - 1)
    return value, point, point + off


@pytest.mark.parametrize("how", HOW)
def test_enclosures_hold_what_is_projected(how):
    generator = torch.Generator().manual_seed(2)
    layer = sets_of(icgd.MLP((3, 4)), icgd.HalfSpace(NORMAL, -0.3, 0.8)).layers[0]
    value, exact, actual = drawn_enclosure(generator, 12)
    faces = Interval(*(torch.tensor(p).double() for p in (layer.faces[0].low, layer.faces[0].high)))
    found, _ = enclosures.projected(value, faces, torch.tensor(layer.faces[0].basis).double(), how)
    holds(found, layer.project(exact), layer.project(actual))
    # A vector inside is not touched, and its error does not grow.
    inside = Enclosure.around(Interval.point(0.01 * torch.ones(12).double()), torch.ones(12) * 1e-9)
    wide = Interval(*(torch.full((12,), end, dtype=torch.float64) for end in (-9.0, 9.0)))
    found, off = enclosures.projected(
        inside, wide, torch.tensor(layer.faces[0].basis).double(), how
    )
    assert float(off.max()) == 0.0
    assert float(found.error.max()) <= 1.001e-9


@pytest.mark.parametrize("how", HOW)
def test_enclosures_hold_what_is_sorted(how):
    generator = torch.Generator().manual_seed(3)
    value, exact, actual = drawn_enclosure(generator, 2, 4)

    def swapped(v):
        one, other = torch.maximum(v[..., 0], v[..., 2]), torch.minimum(v[..., 0], v[..., 2])
        return torch.stack([one, v[..., 1], other, v[..., 3]], dim=-1)

    holds(enclosures.exchanged(value, [0], [2], how), swapped(exact), swapped(actual))
    means, counts = torch.tensor(running_means(4)).double(), torch.arange(1, 5).double()
    excess = [(v.cumsum(-1) - 1.0) / counts for v in (exact, actual)]
    holds(enclosures.mean_excess(value, means, 1.0, how), *excess)
    sets = sets_of(icgd.MLP((4, 2)), icgd.Simplex())
    sums = exact.sort(-1, descending=True).values.cumsum(-1)
    theta = ((sums - 1.0) / counts).amax(-1, keepdim=True).expand_as(exact)
    off = 1e-3 * torch.ones_like(theta)
    threshold = Enclosure.around(Interval(theta - off, theta + off), off)
    found = enclosures.above(value, threshold, 1.0, how)
    after = sets.project(exact.flatten(-2)).unflatten(-1, (2, 4))
    holds(found, after, (actual - theta + 0.999 * off).clamp(min=0.0))
    assert not bool((found.exact.high > 1.0 + 1e-6).any())


def holds(found, exact, actual):
    assert bool(((found.exact.low <= exact) & (exact <= found.exact.high)).all())
    assert bool(((actual - exact).abs() <= found.error).all())


# Certificates.


NAMED = {
    "weights_1": icgd.HalfSpace((1.0, -2.0, 0.5), 0.1, 2.0),
    "bias_1": icgd.HalfSpace((1.0, 1.0, 1.0, 1.0), -0.2, 1.0),
    "weights_2": icgd.Simplex(0.7),
    "bias_2": icgd.Box((0.0, -0.5), (0.0, 0.2)),
}


@cache
def certificate():
    problem, (x, y) = problem_with(NAMED, biases=True), data(6)
    return icgd.compile(problem, "relu-stack", n_steps=2).certify(x, y, seed=0).text


def resealed(text, change):
    fields = json.loads(text)
    fields.pop("sha256")
    change(fields["problem"]["box"])
    return _checksummed(fields).encode()


@pytest.mark.parametrize("case", SHAPES)
def test_the_checker_projects_as_the_reference_does(case):
    sets = sets_of(icgd.MLP((3, 4)), SHAPES[case])
    [project] = icgd_check.projections(sets.in_certificates(), [(4, 3)])
    generator = torch.Generator().manual_seed(7)
    for point in 2 * torch.randn(50, 12, generator=generator, dtype=torch.float64):
        with ctx.workprec(128):
            balls = project(arb_mat(4, 3, [arb(entry) for entry in point.tolist()])).entries()
        assert max(ball.rad() for ball in balls) < 1e-30
        ours = torch.tensor([float(ball.mid()) for ball in balls], dtype=torch.float64)
        assert float((ours - sets.project(point)).abs().max()) < 1e-14


def test_the_checker_trains_with_sets_of_its_own():
    text = certificate()
    kinds = [part["kind"] for layer in json.loads(text)["problem"]["box"] for part in layer]
    assert kinds == ["half-space", "half-space", "simplex", "box"]
    icgd_check.check(text.encode())


WRONG_SETS = {
    "another offset": (
        lambda b: b[0][0].update(offset=(-0.3).hex()),
        "not as close to exact descent",
    ),
    "another kind": (lambda b: b[0][0].update(kind="ball"), None),
    "no set of a weight": (lambda b: b[0].pop(), "cover each weight once"),
    "an empty box": (lambda b: b[1][1].update(low=[[(1.0).hex()], [(1.0).hex()]]), "empty"),
    "an empty half-space": (lambda b: b[0][0].update(offset=(-9.0).hex()), "empty"),
    "other columns": (lambda b: b[0][0].update(columns=[0, 9]), "columns"),
    "a negative total": (lambda b: b[1][0].update(total=(-1.0).hex()), "not positive"),
    "a normal of another shape": (lambda b: b[0][0]["normal"][0].pop(), "does not fit"),
    "another field": (lambda b: b[0][0].update(also=1), "other fields"),
}


@pytest.mark.parametrize("case", WRONG_SETS)
def test_the_checker_refuses_sets_that_are_none(case, tmp_path, capsys):
    change, reason = WRONG_SETS[case]
    path = tmp_path / "certificate.json"
    path.write_bytes(resealed(certificate(), change))
    with pytest.raises(SystemExit) as end:
        raise SystemExit(icgd_check.main([str(path)]))
    assert end.value.code == 1
    said = "".join(capsys.readouterr())
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in said
    assert reason is None or reason in said, said


# Data, files, the command line.


@pytest.mark.parametrize(
    "box", [*(case[0] for case in CASES.values()), NAMED], ids=[*CASES, "named"]
)
def test_a_problem_and_a_file_keep_the_sets(box, tmp_path):
    problem = problem_with(box, biases=box is NAMED)
    assert icgd.Problem.from_data(problem.to_data()) == problem
    assert icgd.Problem.from_data(json.loads(json.dumps(problem.to_data()))) == problem
    compiled = icgd.compile(problem, "relu-stack", n_steps=2)
    compiled.save(tmp_path / "run.safetensors")
    loaded, (x, y) = icgd.load(tmp_path / "run.safetensors"), data(2)
    assert loaded.problem == problem
    assert loaded.program == compiled.program
    ours, theirs = (c.run(x, y, seed=1, backend="literal").parameters for c in (compiled, loaded))
    assert torch.equal(ours, theirs)


def test_words_name_the_sets():
    words = problem_with(NAMED, biases=True).update.in_words()
    assert words == (
        "gradient steps of 0.4, boxes weights_1 half-space of 3 weights within 2, bias_1 "
        "half-space of 4 weights within 1, weights_2 rows on the simplex of 0.7, bias_2 [-0.5, "
        "0.2] or narrower"
    )
    assert problem_with((0.4, 0.2)).update.in_words() == "gradient steps of 0.4, boxes 0.4, 0.2"
    # One number is one box, however it is given.
    assert problem_with((0.4, icgd.Box(0.4))).network_oracle.sets.bound == 0.4
    assert problem_with(icgd.Box(0.4)) == problem_with(0.4)


def test_a_learnable_run_projects_too():
    problem = problem_with(CASES["half-spaces"][0])
    compiled, (x, y) = icgd.compile(problem, "relu-stack", n_steps=2), data(1)
    learnable = icgd.LearnableRun(compiled, seed=0)
    task = compiled.task(x, y, seed=0)
    steps = learnable.steps(*map(torch.tensor, (x, y, x[:1])))
    exact = problem.oracle.train(task, 2)
    assert torch.allclose(steps.parameters, exact, atol=1e-12)


WRONG = {
    "a function": (lambda: checked_sets("box", lambda w: w / 2), "impossible for a function"),
    "an annulus": (lambda: problem_with({"inner": 1.0, "outer": 2.0}), "inner is unknown"),
    "too few layers": (lambda: problem_with((1.0, 2.0, 3.0)), "3 entries; expected 2"),
    "no layers": (lambda: problem_with(()), "is empty"),
    "an empty box": (lambda: icgd.Box(1.0, 0.5), "low=1 above high=0.5"),
    "an infinite box": (lambda: icgd.Box(float("inf")), "finite"),
    "a box of nothing": (lambda: icgd.Box(0.0), "contains only 0"),
    "a negative box": (lambda: problem_with(-1.0), "positive finite number"),
    "a shape": (lambda: problem_with((1.0, np.ones((4, 2)))), r"shape \(4, 2\); expected \(2, 4\)"),
    "rows of a box": (lambda: icgd.Box(((1.0, 2.0), (1.0,))), "different lengths"),
    "no normal": (lambda: icgd.HalfSpace((0.0, 0.0), 1.0, 1.0), "not all 0"),
    "an infinite normal": (lambda: icgd.HalfSpace((1.0, float("nan")), 1.0, 1.0), "finite"),
    "an empty half-space": (lambda: icgd.HalfSpace((1.0, 0.0), -2.0, 1.0), "is empty"),
    "a large half-space": (lambda: icgd.HalfSpace([1.0] * 513, 1.0, 1.0), "at most 512"),
    "another normal": (
        lambda: problem_with((icgd.HalfSpace((1.0, 2.0), 1.0, 1.0), 1.0)),
        r"shape \(2,\); expected \(4, 3\)",
    ),
    "a negative simplex": (lambda: icgd.Simplex(-1.0), "total must be a positive"),
    "a wide simplex": (
        lambda: problem_with(icgd.Simplex(), widths=(9, 2)),
        "with at most 8 entries",
    ),
    "a bias on a simplex": (
        lambda: problem_with({**NAMED, "bias_1": icgd.Simplex()}, biases=True),
        "bias_1 cannot be on a Simplex",
    ),
    "a missing name": (lambda: problem_with({"weights_1": 1.0}), "weights_2 is missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_sets_that_cannot_be_are_refused(case):
    make, reason = WRONG[case]
    with pytest.raises(SettingError, match=reason):
        make()


def test_softmax_stack_does_not_sort():
    with pytest.raises(UnsupportedProblemError, match="does not sort rows"):
        icgd.compile(problem_with(icgd.Simplex()), "softmax-stack", n_steps=1)


def test_one_softmax_layer_has_one_box():
    step = icgd.GradientStep(0.1, icgd.Box(0.0, 1.0))
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", step, icgd.Domain(1.0, 1.0))
    with pytest.raises(UnsupportedProblemError, match=r"not onto box \[0, 1\]"):
        icgd.compile(problem, "cot-glm", n_steps=1, n_examples=3)


@pytest.mark.parametrize("construction", ["recursion", "cot-network", "universal"])
def test_other_constructions_have_one_box(construction):
    step = icgd.GradientStep(
        0.1, (1.0, 0.5), batch_size=1 if construction == "cot-network" else None
    )
    problem = icgd.Problem(icgd.MLP((1, 1, 1)), "squared", step, icgd.Domain(1.0, 1.0))
    with pytest.raises(UnsupportedProblemError, match="it projects all weights onto one box"):
        icgd.compile(problem, construction, n_steps=1)


def test_a_narrower_network_has_boxes_alone():
    narrow = icgd.compile(problem_with((0.4, 0.2)), "relu-stack", n_steps=2).for_widths((3, 2, 2))
    x, y = data(0)
    assert icgd.verify(narrow, x, y, seed=0).verdict is icgd.Verdict.HOLDS
    wide = icgd.compile(problem_with(icgd.Simplex()), "relu-stack", n_steps=1)
    with pytest.raises(
        ConstructionError, match=r"box of the compiled problem, .* is made for its widths"
    ):
        wide.for_widths((3, 2, 2))


def test_a_start_outside_a_set_is_refused():
    problem = problem_with(CASES["half-spaces"][0])
    compiled, (x, y) = icgd.compile(problem, "relu-stack", n_steps=1), data(0)
    start = torch.cat([torch.tensor(NORMAL).flatten(), torch.zeros(8)])
    with pytest.raises(DomainError, match=r"initial\[\d+\] is .*, outside the boxes half-space"):
        compiled.run(x, y, initial=start)
    compiled.run(x, y, initial=problem.oracle.sets.project(start.double()))


def test_the_command_line_takes_a_box_for_each_layer(tmp_path):
    out, runner = tmp_path / "run.safetensors", CliRunner()
    file = tmp_path / "problem.toml"
    given = ["compile", str(file), "--steps", "2", "-o", str(out)]
    file.write_text("target.widths = [2, 3, 1]\nupdate.box = [2, 0.5]\n")
    assert runner.invoke(app, given).exit_code == 0
    assert icgd.load(out).problem.gradient_step.box == (2.0, 0.5)
    for box, reason in (
        ("[2, 'x']", "positive finite number"),
        ("[2, 1, 1]", "3 entries; expected 2"),
    ):
        file.write_text(f"target.widths = [2, 3, 1]\nupdate.box = {box}\n")
        found = runner.invoke(app, given)
        assert found.exit_code == 1
        assert reason in str(found.exception)


def test_ranges_follow_the_boxes_of_single_weights():
    first = icgd.Box(((-1.0, 0.0, 0.5), (0.5, 2.0, -3.0)), ((1.0, 0.0, 0.5), (0.5, 2.0, 2.0)))
    second = icgd.Box(((-1.0, 2.0, 0.0),), ((4.0, 2.0, 0.0),))
    network = icgd.MLP((2, 2, 1), "identity", biases=True)
    step, domain = icgd.GradientStep(0.1, box=(first, second)), icgd.Domain(x=10.0, y=1.0)
    problem = icgd.Problem(network, "squared", step, domain)
    ranges = ranges_on_domain(problem, margin=0.0)
    assert ranges.linear == (0.5 * 10 + 2.0 * 10 + 3.0, (4.0 + 2.0) * 28.0)
    backward = backward_ranges(problem, ranges, margin=0.0)
    assert backward.deltas == (4.0 * 2 * (168.0 + 1.0), 2 * (168.0 + 1.0))


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_the_golden_listing_of_sets(construction):
    rows = icgd.Simplex() if construction == "relu-stack" else icgd.HalfSpace((1.0, -1.0), 0.0, 1.0)
    named = {"weights_1": rows, "bias_1": 1.0, "weights_2": icgd.Box(-0.5, 1.0), "bias_2": 0.5}
    widths = (3 if construction == "relu-stack" else 2, 2, 1)
    problem = problem_with(named, widths=widths, biases=True)
    name = f"sets_{construction.replace('-', '_')}.txt"
    listing = icgd.compile(problem, construction, n_steps=2).listing()
    assert listing == (GOLDEN / name).read_text(encoding="utf-8")
