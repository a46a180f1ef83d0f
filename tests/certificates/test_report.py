"""Which bounds a program has, what is measured beside them, and the verdict."""

from dataclasses import replace
from math import inf, isnan, nan

import pytest
import torch

import icgd
from icgd.certificates import balls
from icgd.certificates.balls import Straddle, Trajectory
from icgd.certificates.chain import ChainBounds
from icgd.certificates.enclosures import Arithmetic, one_by_one
from icgd.certificates.functional import FunctionBounds
from icgd.certificates.linear import LinearBounds
from icgd.certificates.network import StackBounds
from icgd.certificates.report import (
    MOST_EVENTS,
    Certificate,
    NearKink,
    NearKinks,
    Report,
    Verdict,
    bounds_of,
    coefficient_errors,
    stepwise_errors,
    trajectory_errors,
)
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from tests import cases, linear_cases
from tests.backends import chain_cases
from tests.cases import FEW, KERNEL_CASES, SMALL, build, exact_step


def report(step: float = 1.0, trajectory: float = 2.0, domain: float = 4.0) -> Report:
    return Report(
        certificate=Certificate(domain, 8.0, 16.0, n_tokens=3),
        step_errors=torch.tensor([0.5, step]),
        step_bounds=torch.tensor([1.0, 2.0]),
        trajectory_errors=torch.tensor([0.5, trajectory]),
        trajectory_bounds=torch.tensor([1.0, 3.0]),
        near_kinks=NearKinks(0, ()),
    )


def test_a_certificate_alone_is_a_promise():
    assert report().certificate.verdict is Verdict.PROMISED


def test_errors_within_all_bounds_hold():
    assert report().verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    "broken",
    [
        {"step": 2.1},
        {"trajectory": 3.1},
        {"domain": 0.9},
        {"step": nan},
        {"trajectory": nan},
    ],
)
def test_one_error_beyond_a_bound_or_not_a_number_breaks_it(broken):
    assert report(**broken).verdict is Verdict.BROKEN


def test_a_run_may_be_beyond_the_line_of_a_paper_and_hold():
    def with_line(*line: float) -> Report:
        return replace(report(), paper_trajectory=torch.tensor(line))

    assert report().beyond_paper is None
    assert with_line(0.5, 2.0).beyond_paper is None
    assert with_line(0.5, 1.9).beyond_paper == 2
    assert with_line(0.5, 1.9).verdict is Verdict.HOLDS
    batch = replace(
        with_line(1.0, 1.0),
        trajectory_errors=torch.tensor([[0.5, 0.5], [0.5, 1.5]]),
        paper_trajectory=torch.ones(2, 2),
    )
    assert batch.beyond_paper == 2


@pytest.mark.parametrize(
    ("widest", "empty"),
    [
        (8.5, ()),
        (8.0, ("domain_trajectory",)),
        (4.0, ("domain_step", "domain_trajectory")),
        (2.5, ("trajectory_bounds", "domain_step", "domain_trajectory")),
    ],
)
def test_a_bound_that_is_no_smaller_than_the_box_holds_but_says_nothing(widest, empty):
    certificate = replace(report().certificate, widest=widest)
    found = replace(report(), certificate=certificate)
    assert found.empty == empty
    is_empty_of_run = "trajectory_bounds" in empty  # one for all data spoils no verdict of a run
    assert found.verdict is (Verdict.HOLDS_EMPTY if is_empty_of_run else Verdict.HOLDS)
    assert found.verdict.holds
    assert certificate.informative(4.0) == (None if "domain_step" in empty else 4.0)
    broken = replace(found, step_errors=torch.tensor([0.5, 9.0]))
    assert broken.verdict is Verdict.BROKEN
    assert not broken.verdict.holds


def test_predictions_of_weights_that_may_be_anywhere_say_nothing():
    def of_two_tasks(*ends, bounds=((1.0,), (2.0,))):
        runs = torch.tensor([[1.0, end] for end in ends])
        zeros = torch.zeros_like(runs)
        return replace(
            report(),
            certificate=replace(report().certificate, widest=9.0),
            **{"step_errors": zeros, "step_bounds": zeros, "trajectory_errors": zeros},
            trajectory_bounds=runs,
            prediction_errors=torch.zeros(2, 1, 1),
            prediction_bounds=torch.tensor(bounds).unsqueeze(-1),
        )

    found = of_two_tasks(3.0, 3.0)
    assert found.empty == ()
    assert torch.equal(found.informative_bounds["prediction_bounds"], found.prediction_bounds)
    found = of_two_tasks(3.0, 9.0)
    assert found.empty == ("trajectory_bounds", "prediction_bounds")
    assert found.informative_bounds["prediction_bounds"].isnan().flatten().tolist() == [False, True]
    found = of_two_tasks(3.0, 3.0, bounds=((inf,), (2.0,)))
    assert found.empty == ("prediction_bounds",)
    assert found.verdict is Verdict.HOLDS_EMPTY


def test_where_nothing_is_clipped_only_an_infinite_bound_says_nothing():
    assert not report().certificate.says_nothing(1e300)
    assert report().certificate.says_nothing(inf)
    assert report().certificate.says_nothing(nan)


def test_what_rests_on_a_statement_is_in_doubt_where_it_breaks():
    stated = replace(report().certificate, stated=("mine",))
    assert replace(report(), certificate=stated).verdict is Verdict.HOLDS
    broken = replace(report(step=2.1), certificate=stated)
    assert broken.verdict is Verdict.IN_DOUBT
    assert not broken.verdict.holds


def test_what_rests_on_an_estimate_is_never_called_proved():
    estimated = replace(report().certificate, estimated=("mine",), domain_step=inf)
    found = replace(report(), certificate=estimated)
    assert found.verdict is Verdict.HOLDS_ESTIMATED
    assert found.verdict.holds
    assert found.empty == ("domain_step",)
    assert replace(report(step=2.1), certificate=estimated).verdict is Verdict.IN_DOUBT
    for verdict in (Verdict.HOLDS_ESTIMATED, Verdict.IN_DOUBT):
        assert "proved" not in verdict.value


def test_an_infinite_bound_of_a_prediction_says_nothing():
    found = replace(
        report(),
        prediction_errors=torch.tensor([[0.5], [0.5]]),
        prediction_bounds=torch.tensor([[1.0], [inf]]),
    )
    assert found.empty == ("prediction_bounds",)
    assert found.verdict is Verdict.HOLDS_EMPTY


BEYOND_THE_BOX = 6.0


def proof_of(*distances: float, kinks: tuple[Straddle, ...] = ()) -> Trajectory:
    zeros, nothing = torch.zeros(len(distances)), torch.zeros(0, 1)
    parts = (torch.tensor(distances, dtype=torch.float64), zeros, nothing, zeros, nothing)
    return Trajectory(*parts, bits=160, n_kinks=len(kinks), kinks=kinks)


WITHIN = "proved: the whole run is within {} of exact gradient descent"
IN_PART = (
    "proved: the run up to step 1 is within 0.000977 of exact gradient descent; nothing is proved "
    "of later steps"
)
AT_KINK = (
    "; from step 2 on this allows for both slopes of a kink that exact descent may lie on (layer "
    "1, example 3, unit 4)"
)


@pytest.mark.parametrize(
    ("proof", "headline"),
    [
        (proof_of(1.0, 0.5), WITHIN.format("1")),
        (proof_of(1e-9, 2.3412e-9), WITHIN.format("2.35e-09")),
        (proof_of(2.0**-10, inf), IN_PART),
        (proof_of(2.0**-10, BEYOND_THE_BOX), IN_PART),
        (proof_of(inf, inf), "nothing is proved of the whole run"),
        (
            proof_of(0.25, 0.5, kinks=(Straddle(0, 2, 1, 3, 4), Straddle(0, 2, 2, 0, 0))),
            WITHIN.format("0.5") + AT_KINK,
        ),
        (None, None),
    ],
)
def test_a_headline_says_what_is_proved_of_the_whole_run(proof, headline):
    certificate = replace(report().certificate, widest=BEYOND_THE_BOX)
    found = replace(report(), certificate=certificate, rigorous=proof)
    assert found.headline == headline
    assert found.facts().get("whole run") == headline


def test_a_headline_says_why_nothing_is_proved():
    because = replace(report(), unproved_because="it would take a week")
    assert because.headline == "not proved by balls: it would take a week"


def test_verdicts_are_sentences():
    assert Verdict.HOLDS.value == "every measured error is within its proved bound"


def test_they_show_themselves_in_a_line():
    found = report()
    assert repr(found.certificate) == (
        "Certificate(error of a step: at most 4; error of the run: at most 8; "
        "holds for: literal runs in float64, 3 tokens or fewer)"
    )
    assert repr(replace(found.certificate, widest=8.0, condition="x > 0")) == (
        "Certificate(error of a step: at most 4; error of the run: at most 8, which says nothing; "
        "holds for: literal runs in float64, 3 tokens or fewer; if: x > 0)"
    )
    assert repr(found) == (
        "Report(verdict: HOLDS for this run: every measured error is within its proved bound; "
        "steps: 2; backend: literal; error of a step: 1, the bound of the run is 2; "
        "distance from real descent: 2, the bound of the run is 3)"
    )
    silent = replace(found, certificate=replace(found.certificate, widest=1.5))
    assert silent.conclusion.endswith(
        "not every bound says something. No bound for a step of this run, this whole run, "
        "one step on all data, the whole run on all data"
    )
    assert "error of a step: 1, the bound of the run says nothing" in repr(silent)
    parts = ("step_errors", "step_bounds", "trajectory_errors", "trajectory_bounds")
    nothing = {name: torch.zeros(0) for name in parts}
    assert "error of a step: no step was taken" in repr(replace(found, **nothing))


def test_a_report_names_the_column_whose_coefficient_is_furthest_off():
    named = replace(report(), coefficient_errors={"age": 0.5, "in $": 2.0, "(intercept)": 1.0})
    assert named.furthest == "in $"
    assert repr(named).endswith("the bound of the run is 3; furthest at the end: in $)")
    _, panel = named.plot().figure.axes
    names = [text.get_text() for text in panel.get_legend().get_texts()]
    assert names[0] == r"measured, at the end largest for in \$"
    assert panel.lines[0].get_ydata().tolist() == [0.5, 2.0]
    assert replace(named, coefficient_errors={"age": 0.0}).furthest is None
    assert report().furthest is None


def test_the_theorem_s_own_bound_is_drawn_where_it_says_something():
    def last_of_step(paper_step: float) -> tuple[str, float]:
        of_paper = replace(report().certificate, paper_step=paper_step, widest=8.0)
        panel, _ = replace(report(), certificate=of_paper).plot().figure.axes
        return panel.get_legend().get_texts()[-1].get_text(), panel.lines[-1].get_ydata()[0]

    assert last_of_step(7.0) == ("the theorem's own bound (c), 7", 7.0)
    name, height = last_of_step(3e10)
    assert name == "the theorem's own bound (c), 3e+10: says nothing"
    assert isnan(height)


# Measured errors.


CASE = SMALL[0]
ROUNDING = 1e-15
"""Several steps at once may be rounded otherwise than one by one."""


def test_the_reference_itself_has_no_error_and_a_nudge_shows_as_itself():
    task = CASE.task()
    real = CASE.problem.oracle.train(task, 3)
    assert stepwise_errors(CASE.problem, task, real).errors.max() < ROUNDING
    nudged = real.clone()
    nudged[-1, 0] += 0.25
    errors = stepwise_errors(CASE.problem, task, nudged).errors
    assert errors[:2].max() < ROUNDING
    assert abs(float(errors[2]) - 0.25) < ROUNDING
    assert trajectory_errors(nudged, real).tolist() == [0.0, 0.0, 0.25]


def test_a_nudge_in_the_middle_counts_as_a_step_error_once():
    task = CASE.task()
    real = CASE.problem.oracle.train(task, 2)
    first = real[1] + 0.01
    second = exact_step(CASE.problem, first, task.x, task.y)
    errors = stepwise_errors(CASE.problem, task, torch.stack([real[0], first, second])).errors
    torch.testing.assert_close(errors, torch.tensor([0.01, 0.0]).double())


def test_a_step_is_measured_on_its_own_batch():
    problem = replace(CASE.problem, update=GradientStep(0.5, 3.0, batch_size=2))
    task = CASE.task()
    real = problem.oracle.train(task, 3)
    assert stepwise_errors(problem, task, real).errors.tolist() == [0.0, 0.0, 0.0]
    assert stepwise_errors(CASE.problem, task, real).errors.min() > 1e-3


def test_coefficients_of_named_columns_have_errors_of_their_own():
    problem = icgd.Problem(
        icgd.LinearModel(2, intercept=True),
        "matching",
        icgd.ProximalStep(0.1, box=3.0),
        icgd.Domain(4.0, 2.0),
    )
    task = icgd.as_task(problem, [[1.0, 2.0], [3.0, -1.0]], [1.0, 0.5])
    named = replace(task, input_names=("age", "size"))
    real = problem.oracle.train(task, 2)
    nudged = real + torch.tensor([0.0, -0.25, 0.5])
    assert coefficient_errors(problem, task, nudged, real) is None
    errors = coefficient_errors(problem, named, nudged, real)
    assert errors == {"age": 0.0, "size": 0.25, "(intercept)": 0.5}
    network = replace(CASE.task(), input_names=("x",) * CASE.task().x.shape[-1])
    real = CASE.problem.oracle.train(network, 1)
    assert coefficient_errors(CASE.problem, network, real, real) is None


# Near-kink events.


WIDTH = 2.0**-6


def report_for(x: list[list[float]], activation: str = "relu") -> icgd.Report:
    """One unit with weight 1: its preactivation is x itself."""
    problem = icgd.Problem(
        target=icgd.MLP((1, 1), output_activation=activation),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=2.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    compiled = icgd.compile(problem, "relu-stack", n_steps=1, kink_width=WIDTH)
    inputs = torch.tensor(x).double()
    return icgd.verify(compiled, inputs, torch.zeros_like(inputs), initial=torch.ones(1).double())


def test_only_preactivations_strictly_inside_the_ramp_count():
    kinks = report_for([[-0.5], [0.0], [WIDTH / 2], [WIDTH], [0.5]]).near_kinks
    assert kinks.count == 1
    assert kinks.events == (NearKink(0, 1, 1, token=2, unit=0, preactivation=WIDTH / 2),)


def test_a_near_kink_is_where_the_error_comes_from_and_the_run_bound_knows():
    near, far = report_for([[WIDTH / 2]]), report_for([[0.5]])
    assert float(far.step_errors.max()) <= 1e-15
    assert 1e-6 < float(near.step_errors.max()) <= float(near.step_bounds.max()) < 1e-4
    assert near.verdict.holds


def test_smooth_and_linear_activations_have_none():
    assert report_for([[WIDTH / 2]], "tanh").near_kinks.count == 0
    assert report_for([[WIDTH / 2]], "identity").near_kinks.count == 0


def test_all_are_counted_and_the_first_are_listed():
    kinks = report_for([[WIDTH / 2]] * (MOST_EVENTS + 5)).near_kinks
    assert kinks.count == MOST_EVENTS + 5
    assert len(kinks.events) == MOST_EVENTS


# What all kinds of bounds share: progress, shapes, and one set of bounds however one asks.


N_STEPS = 3
CHAIN = chain_cases.problem_of(MLP((2, 3, 1), "tanh"))


def compiled_and_task(kind):
    if kind == "linear":
        problem = linear_cases.PROBLEMS["logistic"]
        return linear_cases.compiled_of(problem, N_STEPS), linear_cases.task_of(problem)
    if kind == "chain":
        compiled = icgd.compile(CHAIN, n_steps=N_STEPS, construction="cot-network")
        return compiled, chain_cases.task_of(CHAIN)
    case = KERNEL_CASES[0] if kind == "function" else FEW[0]
    return icgd.compile(case.problem, n_steps=N_STEPS), case.task()


@pytest.mark.parametrize("kind", ["network", "chain", "function", "linear"])
def test_a_run_has_the_bounds_of_its_steps_and_tells_how_far_it_is(kind):
    compiled, task = compiled_and_task(kind)
    history = compiled.run_task(task).parameters
    real = compiled.problem.oracle.train(task, N_STEPS)
    calls: list[tuple[int, int]] = []
    bounds = compiled.bounds_for(task, "fused")
    proved = bounds.run(task, history, real, lambda *call: calls.append(call))
    at_once = [(3, 3)]  # a small network
    assert calls == (at_once if kind == "network" else [(1, 3), (2, 3), (3, 3)])
    torch.testing.assert_close(proved.steps, bounds.steps(task, history), rtol=1e-12, atol=0)
    assert proved.steps.shape == (N_STEPS,)
    assert (stepwise_errors(compiled.problem, task, history).errors <= proved.steps).all()


@pytest.mark.parametrize("kind", ["network", "chain", "function", "linear"])
def test_a_whole_run_is_proved_by_balls_or_by_contraction_where_that_is_tighter(kind):
    compiled, task = compiled_and_task(kind)
    given = {"initial": task.initial} if kind in ("network", "chain") else {}

    def verified(rigorous: bool | None) -> icgd.Report:
        parts = (compiled, task.x, task.y)
        return icgd.verify(*parts, queries=task.queries, rigorous=rigorous, **given)

    found, without = verified(None), verified(False)
    proof = found.rigorous
    assert (found.verdict, without.verdict) == (Verdict.HOLDS, Verdict.HOLDS)
    assert without.rigorous is without.headline is None
    for name in ("trajectory", "prediction"):
        errors, bounds = (getattr(found, f"{name}_{part}") for part in ("errors", "bounds"))
        by_contraction = getattr(without, f"{name}_bounds")
        assert (errors <= bounds).all()
        assert (by_contraction is None) == (kind in ("network", "chain"))
        assert by_contraction is None or (bounds <= by_contraction).all()
    # Balls are as tight as the measurement: they add no more than float64 is off itself.
    assert (proof.least <= proof.distances).all()
    assert (proof.distances <= 1.1 * (found.trajectory_errors + proof.of_oracle)).all()


def test_a_run_that_takes_long_to_prove_is_proved_only_if_that_is_asked_for(monkeypatch):
    compiled, task = compiled_and_task("network")
    monkeypatch.setattr(balls, "LARGEST_WORK", 10)
    found = icgd.verify(compiled, task.x, task.y, seed=0)
    assert found.rigorous is found.trajectory_bounds is found.prediction_bounds is None
    assert found.headline.startswith("not proved by balls: exact descent in balls takes")
    assert found.headline.endswith("; ask for it with rigorous=True or --rigorous")
    assert found.verdict is Verdict.HOLDS
    asked = icgd.verify(compiled, task.x, task.y, seed=0, rigorous=True)
    assert (asked.trajectory_errors <= asked.trajectory_bounds).all()
    assert asked.unproved_because is None


@pytest.mark.parametrize("kind", ["function", "linear"])
def test_the_papers_have_no_closed_form_for_these(kind):
    compiled, _ = compiled_and_task(kind)
    assert compiled.certificate().paper_step is None


def test_bounds_found_one_by_one_are_a_row_with_progress_after_each():
    history, calls = torch.zeros(2, 4, 5), []
    found = (torch.full((2,), float(step)) for step in range(3))
    rows = one_by_one(found, history, lambda *call: calls.append(call))
    assert rows.tolist() == [[0.0, 1.0, 2.0]] * 2
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_no_steps_have_no_bounds():
    none = one_by_one((), torch.zeros(2, 1, 5))
    assert none.shape == (2, 0)
    assert none.dtype == torch.float64


# Which bounds a program has.


DOUBLE = Arithmetic.of(torch.float64, 64, "dense")


@pytest.mark.parametrize("kind", ["network", "chain", "function", "linear"])
def test_each_is_picked_by_its_problem_and_program(kind):
    linear = linear_cases.PROBLEMS["logistic"]
    chain = CHAIN
    kernel, network = KERNEL_CASES[0].problem, cases.FEW[0]
    parts = {
        "network": (network.problem, build(CONSTRUCTIONS["relu-stack"], network), StackBounds),
        "chain": (chain, chain_cases.program_of(chain), ChainBounds),
        "function": (kernel, icgd.compile(kernel, n_steps=3).program, FunctionBounds),
        "linear": (linear, linear_cases.compiled_of(linear).program, LinearBounds),
    }
    problem, program, expected = parts[kind]
    picked = bounds_of(problem, program, DOUBLE)
    assert type(picked) is expected
    assert (picked.problem, picked.program, picked.arithmetic) == (problem, program, DOUBLE)
    assert 0 < picked.domain().step < float("inf")


def test_a_report_says_what_doing_nothing_would_err_by():
    """A coarse table may err by more than not to move at all, within its bounds."""
    step, domain = icgd.GradientStep(0.3, 1.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((1, 1)), "squared", step, domain)
    compiled = icgd.compile(problem, "universal", n_steps=2, levels=2)
    x, y = [[0.1], [0.9]], [-0.2, 0.3]
    found = icgd.verify(compiled, x, y, initial=[0.3])
    weights = compiled.run(x, y, initial=[0.3], backend="literal").parameters
    data = torch.tensor(x).double(), torch.tensor(y).double()[:, None]
    moves = [exact_step(problem, weight, *data) - weight for weight in weights[:-1]]
    torch.testing.assert_close(found.step_sizes, torch.cat(moves).abs())
    assert found.verdict.holds
    assert found.step_errors.max() > found.step_sizes.max()
    size, share = found.step_sizes.max(), found.step_errors.sum() / found.step_sizes.sum()
    text = (
        f"exact steps move a weight by up to {size:.4g}; "
        f"the mean error is {share:.4g} times the mean step"
    )
    assert f"for comparison: {text};" in repr(found)
    assert share > 1
    assert replace(found, step_sizes=torch.zeros(0)).idle is None
    assert replace(found, step_sizes=torch.zeros(2)).idle == "exact steps move a weight by up to 0"
