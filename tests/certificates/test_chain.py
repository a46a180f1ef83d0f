"""Bounds of chains, against runs of both generators."""

from dataclasses import replace
from math import inf

import pytest
import torch

import icgd
from icgd.backends.chain import GENERATORS, run_chain
from icgd.certificates.chain import BlockEnclosures, ChainBounds
from icgd.certificates.enclosures import Arithmetic, Enclosure, Interval
from icgd.certificates.report import near_kinks, stepwise_errors
from icgd.constructions.cot_network import CotNetwork
from icgd.errors import SizeError
from icgd.problems.data import as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep, MomentumStep
from tests.backends.chain_cases import problem_of, program_of, task_of

RELU = problem_of(MLP((3, 4, 2), "relu", biases=True))
PROBLEMS = {
    "relu": problem_of(MLP((3, 4, 2), "relu"), step_size=0.5),
    "leaky, batches": problem_of(MLP((2, 3, 3, 2), "leaky_relu"), batch_size=2, step_size=0.5),
    "small box": problem_of(MLP((3, 2), "identity"), batch_size=5, step_size=2.0, box=0.6),
    "tanh": problem_of(MLP((3, 4, 2), "tanh"), step_size=0.5, box=1.0),
    "softplus, logistic": problem_of(MLP((2, 3, 1), "softplus"), 2, loss="logistic", box=1.0),
    "classes": problem_of(MLP((3, 4, 3), "relu"), 2, loss="cross_entropy", step_size=0.5),
    "tanh, classes": problem_of(MLP((2, 3, 2), "tanh"), 5, loss="cross_entropy", box=1.0),
    "decay": replace(RELU, update=MomentumStep(0.5, 3.0, 2, momentum=0.0, weight_decay=1.9)),
    "schedule": replace(RELU, update=GradientStep((0.5, 0.0, 0.2), 3.0, 2)),
    "momentum": replace(RELU, update=MomentumStep(0.5, 3.0, 2, weight_decay=0.2)),
    "nesterov": replace(RELU, update=MomentumStep((0.5, 0.0, 0.2), 0.6, 2, nesterov=True)),
    "dampening": replace(RELU, update=MomentumStep(0.5, 3.0, 2, dampening=0.5)),
    "biases, huber": problem_of(
        MLP((2, 3, 1), "relu", "tanh", biases=True), 2, loss="huber", box=1.0
    ),
}
SMALL = {"fused": 1e-12, "literal": 1e-8, "dense": 1e-8}
LOOKED_UP = 1e-9


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("backend", GENERATORS)
def test_steps_stay_within_small_bounds(problem, backend):
    task, program = task_of(problem), program_of(problem, 3)
    history = run_chain(program, task, backend=backend).parameters
    real = problem.oracle.train(task, 3)
    arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, backend)
    bounds = ChainBounds(problem, program, arithmetic).run(task, history, real)
    assert (stepwise_errors(problem, task, history).errors <= bounds.steps).all()
    is_smooth = len(program.functions) > 1
    assert bounds.steps.max() <= (LOOKED_UP if is_smooth else SMALL[backend])
    torch.testing.assert_close(bounds.paper, bounds.steps.cumsum(-1))


def test_a_run_in_float32_has_bounds_of_its_own():
    problem = PROBLEMS["relu"]
    task64, program = task_of(problem), program_of(problem, 2)
    task = as_task(problem, task64.x, task64.y, seed=5, dtype="float32")
    history = run_chain(program, task, backend="dense").parameters
    arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, "dense")
    bounds = ChainBounds(problem, program, arithmetic).steps(task, history)
    errors = stepwise_errors(problem, task, history).errors
    assert (errors <= bounds).all()
    assert errors.max() > 1e-8, "float32 rounds more than float64"


@pytest.mark.parametrize("backend", GENERATORS)
def test_a_unit_on_a_kink_is_found_and_bounded(backend):
    """z_1 = 2^-32 is inside the kink of width 2^-30, where the unit stays flat; really it is not.

    So the first weight misses a step of 0.1, and the second example, x = 2, is on the kink too.
    """
    problem = problem_of(MLP((1, 1, 1), "relu"))
    start = torch.tensor([2.0**-32, 1.0]).double()
    task = as_task(problem, [[1.0], [2.0]], [[1.0], [1.0]], initial=start)
    program = CotNetwork(kink_width=2.0**-30).build(problem, n_steps=2)
    history = run_chain(program, task, backend=backend).parameters
    errors = stepwise_errors(problem, task, history).errors
    arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, backend)
    bounds = ChainBounds(problem, program, arithmetic).steps(task, history)
    assert errors[0] == pytest.approx(0.1, rel=1e-6)
    assert (errors <= bounds).all()
    assert bounds.max() < 1
    events = near_kinks(program, problem, task, history).events
    assert [(event.step, event.layer, event.token) for event in events] == [(1, 1, 0), (2, 1, 1)]


def test_units_at_0_are_flat():
    """z_1 = 0, so z_2 = 0 too, which the heads give but for rounding; then no weight moves."""
    problem = problem_of(MLP((2, 2, 2, 1), "relu"))
    start = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.7, 0.3, -0.2, 0.9, 0.5, 0.5]).double()
    task = as_task(problem, [[1.0, 0.5]], [[1.0]], initial=start)
    program = program_of(problem, 1)
    history = run_chain(program, task, backend="dense").parameters
    arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, "dense")
    assert stepwise_errors(problem, task, history).errors.max() <= 1e-12
    assert ChainBounds(problem, program, arithmetic).steps(task, history).max() <= 1e-8


def test_the_papers_line_fails_where_a_round_expands_distances():
    """w - 0.37 is multiplied by 1 - 0.9 * 1.9^2 = -2.2 in every round, and starts near 0.

    What rounding to float32 adds grows with it, and soon exceeds the sum of the step bounds, which
    would do if no round expanded anything.
    """
    problem = problem_of(MLP((1, 1), "identity"), step_size=0.9)
    compiled = icgd.compile(problem, "cot-network", n_steps=20)
    start = {"initial": [0.37], "dtype": "float32"}
    report = icgd.verify(compiled, [[1.9]], [[0.37 * 1.9]], **start)
    assert report.trajectory_errors[-1] > report.paper_trajectory[-1]
    assert (report.trajectory_errors <= report.trajectory_bounds).all()
    assert report.verdict.holds


def known(*rows: list[float]) -> Enclosure:
    """An enclosure of numbers that are known."""
    return Enclosure.common(Interval.point(torch.tensor(rows, dtype=torch.float64)))


@pytest.mark.parametrize("backend", GENERATORS)
def test_what_attention_reads_is_enclosed_closely(backend):
    """z = 0.5 * 0.6 - 0.25 * 0.8 and delta = 0.5 * 3 in the first unit."""
    program = program_of(PROBLEMS["softplus, logistic"])
    arithmetic = Arithmetic.of(torch.float64, 5, backend)
    weights = known([0.5, -0.25, 0.0], [0.0] * 3, [0.0] * 3)
    inputs, up, slope = (
        known([a, a], [b, b], [0.0] * 2) for a, b in ((0.6, 0.8), (3.0, 1.0), (0.5, 1.0))
    )
    stream = {"weights": weights, "inputs": inputs, "up": up, "slope": slope}
    z = torch.tensor(0.1, dtype=torch.float64)
    expected = {"z": z, "delta": torch.tensor(1.5), "sigmoid of z": torch.sigmoid(z)}
    for part in program.layers[2].instructions:
        slots = dict.fromkeys(program.layout.names, 0.0) | stream
        value = part.meaning(slots, BlockEnclosures(program, arithmetic))[part.write]
        assert value.exact.size.isfinite().all()
        if part.write in expected:
            truth = float(expected[part.write])
            assert float(value.exact.low[0, 0]) == pytest.approx(truth, abs=1e-12)
            assert float(value.exact.high[0, 0]) == pytest.approx(truth, abs=1e-12)
            assert 0 < float(value.error[0, 0]) < 1e-10


def test_closed_units_are_known_to_be_0():
    program = program_of(PROBLEMS["softplus, logistic"])
    arithmetic = Arithmetic.of(torch.float64, 5, "fused")
    flags = {"padding": known([0.0], [0.0], [1.0]), "softplus": 1.0, "is_backward": 1.0}
    weights = known(*[[1.0] * 3] * 3)
    data = {"first": known(*[[1.0] * 2] * 3), "is_data": 1.0}
    bounds = ChainBounds(PROBLEMS["softplus, logistic"], program, arithmetic)
    first = bounds.next_block({**flags, "weights": weights}, data)["first"]
    assert first.exact.low[:2].min() > 3
    assert not any(part[2].any() for part in (first.actual.low, first.actual.high, first.error))


@pytest.mark.parametrize("decay", [1 / 3, 0.3, 0.7])
@pytest.mark.parametrize("backend", GENERATORS)
def test_a_weight_that_its_decay_cancels_leaves_its_rounding(decay, backend):
    """w - (1 / decay) * (decay * w) is 0 but for rounding, and the block has no such term."""
    update = MomentumStep(1 / decay, 3.0, 1, momentum=0.0, weight_decay=decay)
    problem = replace(problem_of(MLP((1, 1))), update=update)
    start = torch.linspace(0.3, 2.9, 40, dtype=torch.float64)[:, None]
    x = torch.zeros(40, 1, 1, dtype=torch.float64)
    task, program = as_task(problem, x, x, initial=start), program_of(problem, 1)
    history = run_chain(program, task, backend=backend).parameters
    arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, backend)
    bounds = ChainBounds(problem, program, arithmetic).steps(task, history)
    assert (stepwise_errors(problem, task, history).errors <= bounds).all()


@pytest.mark.parametrize("backend", GENERATORS)
def test_a_domain_bound_holds_for_every_rule(backend):
    """The second step is ten times the first, so that it may be off by more."""
    target, domain = MLP((2, 2, 1)), icgd.Domain(1.0, 1.0)
    update = GradientStep((0.01, 0.1, 0.01), 0.5, 2)
    arithmetic = Arithmetic.of(torch.float64, 5, backend)
    found = []
    for step_size in (update.step_size, 0.1, 0.01):
        problem = icgd.Problem(target, "squared", replace(update, step_size=step_size), domain)
        found.append(ChainBounds(problem, program_of(problem, 3), arithmetic).domain())
    assert found[0].step == found[1].step > found[2].step
    assert found[2].trajectory < found[0].trajectory < found[1].trajectory < 1e-10


def test_a_domain_says_nothing_of_what_an_optimiser_remembers():
    arithmetic = Arithmetic.of(torch.float64, 5, "fused")
    problem = PROBLEMS["momentum"]
    domain = ChainBounds(problem, program_of(problem, 2), arithmetic).domain()
    assert domain.step == domain.trajectory == torch.inf


def test_a_wrong_step_exceeds_its_bound():
    problem = PROBLEMS["relu"]
    task, program = task_of(problem), program_of(problem, 2)
    other = replace(problem, update=replace(problem.gradient_step, step_size=0.501))
    history = run_chain(program_of(other, 2), task).parameters
    arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, "fused")
    bounds = ChainBounds(problem, program, arithmetic).steps(task, history)
    assert (stepwise_errors(problem, task, history).errors > bounds).any()


@pytest.mark.parametrize("seed", range(8))
def test_units_on_a_kink_leave_room_for_the_rounding_of_the_real_step(seed):
    """What the transformer closes is exactly 0; the real step sums three terms, and rounds."""
    problem = icgd.Problem(
        icgd.MLP((2, 1), "relu", "relu"),
        "squared",
        icgd.GradientStep(step_size=0.05, box=1.0, batch_size=3),
        icgd.Domain(x=1.0, y=2.0),
    )
    x = torch.tensor([[1e-10, 1.0]] * 3, dtype=torch.float64)
    y = 4 * torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 2
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    compiled = icgd.compile(problem, n_steps=1, construction="cot-network")
    assert icgd.verify(compiled, x, y, initial=start).verdict.holds


@pytest.mark.parametrize(("box", "is_conditional"), [(0.5, False), (50.0, True)])
def test_a_domain_that_leaves_the_grids_is_certified_under_a_condition(box, is_conditional):
    problem = icgd.Problem(
        target=icgd.MLP((2, 2, 1), "identity"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=box, batch_size=1),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    condition = icgd.compile(problem, "cot-network", n_steps=1).certificate().condition
    assert (condition is not None) == is_conditional
    assert condition is None or "no query of a head is beyond 4096" in condition


def test_bounds_of_padded_layers_ask_for_their_memory():
    step = icgd.GradientStep(0.1, box=1.0, batch_size=1)
    network, domain = icgd.MLP((2, 10**6, 1), "relu"), icgd.Domain(x=1.0, y=1.0)
    run = icgd.compile(icgd.Problem(network, "squared", step, domain), "cot-network", n_steps=1)
    with pytest.raises(SizeError, match=r"Bounding .* weights of padded layers"):
        run.certificate()


def test_many_rounds_are_bounded_as_if_they_were_followed(monkeypatch):
    problem = replace(problem_of(MLP((2, 2, 1))), update=GradientStep(1e-3, 0.5, 1))
    bounds = ChainBounds(problem, program_of(problem, 40), Arithmetic.of(torch.float64, 5, "fused"))
    trajectories = []
    for n_followed in (20, 40):
        for module in ("chain", "network"):
            monkeypatch.setattr(f"icgd.certificates.{module}.STEPS_ONE_BY_ONE", n_followed)
        trajectories.append(bounds.domain().trajectory)
    found, followed = trajectories
    assert followed <= found <= 1.5 * followed


def test_a_billion_rounds_are_certified():
    problem = replace(problem_of(MLP((2, 1))), update=GradientStep(0.1, 1.0, 1))
    bounds = ChainBounds(
        problem, program_of(problem, 10**9), Arithmetic.of(torch.float64, 5, "fused")
    )
    assert bounds.domain().step < 1e-12
    assert bounds.domain().trajectory == inf


def test_rounds_after_one_of_which_nothing_is_known_have_no_bound():
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.rand(4, 2, generator=generator, dtype=torch.float64) - 1
    step = icgd.GradientStep((3.0,) * 6 + (1e8,) * 3, box=1.0, batch_size=4)
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", step, icgd.Domain(x=1.0, y=1.0))
    run = icgd.compile(problem, "cot-network", n_steps=9)
    report = icgd.verify(run, x, x.sin().mean(1), seed=3, backend="dense", dtype="float32")
    assert report.certificate.domain_trajectory == inf
    assert report.verdict is icgd.Verdict.HOLDS_EMPTY
