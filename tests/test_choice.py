"""Constructions by name, tolerances, and the choice among constructions."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

import icgd
from icgd import choice
from icgd.choice import FULL_ACCURACY, Evidence, Tolerance, function_error
from icgd.constructions.recursion import Recursion
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.errors import (
    ConstructionError,
    DataError,
    SettingError,
    ToleranceError,
    UnsupportedProblemError,
)
from icgd.weights.sizes import summarise
from tests.cases import BATCHED, KERNEL_CASES, KNOWN

DOMAIN = icgd.Domain(x=1.0, y=1.0)


def problem_of(widths: tuple[int, ...], activation: str = "tanh", loss: str = "squared", **update):
    step = icgd.GradientStep(0.1, **{"box": 0.5, **update})
    return icgd.Problem(icgd.MLP(widths, activation), loss, step, DOMAIN)


def linear_problem(link: str, l1: float = 0.0) -> icgd.Problem:
    step = icgd.ProximalStep(0.1, l2=0.1, l1=l1, box=1.0)
    return icgd.Problem(icgd.LinearModel(2, link), "matching", step, DOMAIN)


NETWORKS = {
    **{
        f"{activation}-{widths}": problem_of(widths, activation)
        for activation in KNOWN
        for widths in ((3, 2), (1, 3, 1), (4, 5, 2), (2, 3, 3, 1), (2, 2, 2, 2, 2))
    },
    "softplus-logistic": problem_of((1, 2, 1), "softplus", "logistic"),
    "relu-logistic": problem_of((3, 4, 1), "relu", "logistic"),
    "gelu-huber": problem_of((3, 4, 1), "gelu", "huber"),
    "output": replace(problem_of((2, 3, 1)), target=icgd.MLP((2, 3, 1), "tanh", "sigmoid")),
    "one-weight": problem_of((1, 1)),
    **{f"batches-{case.name}": case.problem for case in BATCHED},
    "biases": replace(
        problem_of((2, 3, 1), "relu", batch_size=2), target=icgd.MLP((2, 3, 1), "relu", biases=True)
    ),
    **{case.name: case.problem for case in KERNEL_CASES[:3]},
}
EVERY_OTHER = list(NETWORKS)[1:40:2]
"""Every second one of activations and widths: the others have every activation and all widths."""

LINEAR = {
    "ridge": linear_problem("identity"),
    "lasso": linear_problem("identity", l1=0.1),
    "logistic": linear_problem("logistic"),
}


def exhaustive(problem: icgd.Problem) -> str:
    """Build all that serve; of the accurate ones the fewest weights, then the least arithmetic."""
    costs = {}
    for name, construction in CONSTRUCTIONS.items():
        if construction.why_not(problem) is None and not construction.is_last_resort:
            run = icgd.compile(problem, name, n_steps=2)
            if function_error(run.program) <= FULL_ACCURACY["float64"]:
                costs[name] = (run.summary().parameters, run.summary().flops)
    return min(costs, key=costs.__getitem__)


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(problem, id=name, marks=pytest.mark.slow if name in EVERY_OTHER else [])
        for name, problem in NETWORKS.items()
    ],
)
def test_the_choice_is_that_of_a_search_through_all(problem):
    compiled = icgd.compile(problem, n_steps=2)
    assert compiled.program.construction == exhaustive(problem)
    assert compiled == icgd.compile(problem, compiled.program.construction, n_steps=2)


@pytest.mark.parametrize("problem", LINEAR.values(), ids=LINEAR)
def test_the_choice_for_a_linear_model_is_that_of_a_search_through_all(problem):
    compiled = icgd.compile(problem, n_steps=2)
    assert compiled.program.construction == exhaustive(problem)


def test_the_choices_are_these():
    """So that a change of sizes that changes a choice is seen."""
    chosen = {
        (3, 2, "relu"): "relu-stack",
        (8, 16, 16, 1, "relu"): "relu-stack",
        (8, 16, 16, 1, "tanh"): "softmax-stack",
        (1, 3, 1, "gelu"): "recursion",
        (4, 5, 2, "gelu"): "softmax-stack",
    }
    for (*widths, activation), expected in chosen.items():
        compiled = icgd.compile(problem_of(tuple(widths), activation), n_steps=1)
        assert compiled.program.construction == expected


def test_nothing_is_fitted_in_vain(monkeypatch):
    """relu-stack and recursion are too coarse for tanh, and recursion is too large for gelu."""
    built = []

    def record(construction: type) -> None:
        original = construction.build

        def build(self, problem, n_steps):
            built.append((self.name, problem.target.activation))
            return original(self, problem, n_steps)

        monkeypatch.setattr(construction, "build", build)

    for construction in (icgd.ReluStack, icgd.SoftmaxStack, icgd.Recursion):
        record(construction)
    icgd.compile(problem_of((8, 16, 16, 1), "tanh"), n_steps=1)
    assert built == [("softmax-stack", "tanh")]
    built.clear()
    icgd.compile(problem_of((8, 16, 16, 1), "gelu"), n_steps=1)
    assert built == [("recursion", "relu"), ("softmax-stack", "gelu")], "a sketch, and the chosen"


@pytest.mark.parametrize("activation", KNOWN)
@pytest.mark.parametrize("widths", [(3, 2), (1, 3, 1), (2, 2, 2, 1)])
def test_a_sketch_of_recursion_is_no_larger_than_what_it_builds(activation, widths):
    problem = problem_of(widths, activation)
    sizes = [
        summarise(program, 1).parameters
        for program in (Recursion().sketch(problem), Recursion().build(problem, 1))
    ]
    assert 0 < sizes[0] <= sizes[1]


def test_the_sketch_of_a_network_with_relu_is_as_large_as_what_is_built():
    problem = problem_of((2, 3, 3, 1), "relu")
    sketch, program = Recursion().sketch(problem), Recursion().build(problem, 1)
    assert summarise(sketch, 1).parameters == summarise(program, 1).parameters


@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-6])
def test_with_a_tolerance_it_is_the_smallest_that_proves_it(tolerance):
    problem = problem_of((1, 4, 1))
    chosen = icgd.compile(problem, n_steps=2, tolerance=tolerance)
    assert chosen.certificate().domain_step <= tolerance
    assert chosen.chosen_because == (
        f"no other construction proves tolerance={tolerance:g} with fewer weights"
    )
    for name in ("relu-stack", "softmax-stack", "recursion"):
        try:
            other = icgd.compile(problem, name, n_steps=2, tolerance=tolerance)
        except ToleranceError:
            continue
        assert chosen.summary().parameters <= other.summary().parameters


def test_a_tolerance_that_nobody_proves_is_refused_with_all_reasons():
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(problem_of((2, 3, 1), "relu"), n_steps=1, tolerance=1e-6)
    text = str(refused.value)
    assert text.startswith("tolerance=1e-06 cannot be proved by any construction that can compile ")
    for name in ("relu-stack", "softmax-stack", "recursion"):
        assert f"{name}: tolerance=1e-06 cannot be proved: the smallest bound is " in text


def test_a_tolerance_that_the_only_candidate_misses_is_refused_with_its_own_reason():
    with pytest.raises(ToleranceError, match=r"^tolerance=1e-16 cannot be proved: the smallest"):
        icgd.compile(KERNEL_CASES[0].problem, n_steps=1, tolerance=1e-16)


def test_settings_leave_those_that_have_them():
    problem = problem_of((2, 3, 1))
    for settings, expected in (
        ({"pieces": 9}, "relu-stack"),
        ({"registers": 40}, "softmax-stack"),
        ({"units": 40}, "recursion"),
        ({"unit_activation": "relu", "kink_width": 2.0**-14}, "recursion"),
        ({"dtype": "float32"}, "softmax-stack"),
    ):
        compiled = icgd.compile(problem, n_steps=1, **settings)
        assert compiled == icgd.compile(problem, expected, n_steps=1, **settings)


@pytest.mark.parametrize("name", [None, "softmax-stack", "recursion"])
def test_a_dtype_may_be_called_as_torch_calls_it(name):
    problem = problem_of((2, 3, 1))
    by_name, by_torch = (
        icgd.compile(problem, name, n_steps=1, dtype=dtype)
        for dtype in ("float32", "torch.float32")
    )
    assert by_name == by_torch


def test_settings_that_nobody_has_are_refused():
    problem = problem_of((2, 3, 1))
    with pytest.raises(SettingError) as refused:
        icgd.compile(problem, n_steps=1, peices=9)
    able = [c for c in CONSTRUCTIONS.values() if c.why_not(problem) is None]
    owned = "; ".join(f"{c.name} has {', '.join(c.settings())}" for c in able)
    assert "relu-stack has pieces, kink_width; " in owned
    assert str(refused.value) == (
        "No construction that can compile this problem has all of the given settings (peices): "
        f"{owned}. Did you mean 'pieces'?"
    )
    with pytest.raises(SettingError, match=r"settings \(pieces, registers\): relu-stack has"):
        icgd.compile(problem, n_steps=1, pieces=9, registers=40)
    with pytest.raises(SettingError, match="Give either pieces or tolerance, not both"):
        icgd.compile(problem, n_steps=1, pieces=9, tolerance=0.1)


def test_a_problem_that_nothing_serves_is_refused_with_the_reasons_of_its_kind():
    with pytest.raises(UnsupportedProblemError) as refused:
        icgd.compile(problem_of((2, 3), loss="cross_entropy", box=1e15), n_steps=1)
    text = str(refused.value)
    assert text.startswith("No construction can compile this problem. relu-stack")
    assert ", and the slope of the cross_entropy loss is not a sum" in text
    assert "cot-network: " in text
    assert "functional" not in text


WIDE = icgd.Problem(
    icgd.MLP((1000, 20000, 20000, 1000)), "squared", icgd.GradientStep(0.1, 3.0), DOMAIN
)
"""Beyond the reach of softmax-stack; of the others none is accurate to rounding."""


def test_where_none_is_accurate_the_smallest_are_compared_by_their_functions():
    assert icgd.SoftmaxStack().why_not(WIDE) is not None
    compiled = icgd.compile(WIDE, n_steps=1)
    assert compiled.program.construction == "relu-stack"
    assert compiled.chosen_because == choice.SMALLEST_ERROR


def test_the_most_accurate_is_taken_where_none_is_accurate(monkeypatch):
    monkeypatch.setitem(choice.FULL_ACCURACY, "float64", 0.0)
    problem = problem_of((1, 3, 1))
    compiled = icgd.compile(problem, n_steps=1)
    bounds = {
        name: icgd.compile(problem, name, n_steps=1).certificate().domain_step
        for name in ("relu-stack", "softmax-stack", "recursion")
    }
    assert compiled.chosen_because == choice.SMALLEST_ERROR
    assert compiled.program.construction == min(bounds, key=bounds.__getitem__)


def test_the_summary_says_why_and_a_loaded_run_needs_no_reason(tmp_path):
    compiled = icgd.compile(problem_of((2, 3, 1)), n_steps=1)
    assert compiled.summary().construction == "softmax-stack"
    assert compiled.summary().chosen_because == (
        "no other construction is accurate to rounding with fewer weights"
    )
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded == compiled
    assert loaded.summary().chosen_because is None


def problem_with(activation: str = "tanh", loss: str = "squared", box: float = 1.0) -> icgd.Problem:
    return icgd.Problem(
        target=icgd.MLP((2, 3, 1), activation),
        loss=loss,
        update=icgd.GradientStep(step_size=0.1, box=box),
        domain=icgd.Domain(x=1.0, y=1.0),
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    return x, x.mean(1, keepdim=True)


def pieces_of(compiled: icgd.Compiled) -> int:
    return compiled.program.relu_sum(compiled.problem.target.activation).n_pieces


def by_softmax(problem: icgd.Problem | None = None, n_steps: int = 2, **settings) -> icgd.Compiled:
    problem = problem or problem_with()
    return icgd.compile(problem, n_steps=n_steps, construction="softmax-stack", **settings)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_a_tolerance_is_proved_on_the_domain_with_about_the_fewest_pieces(tolerance):
    compiled = icgd.compile(problem_with(), "relu-stack", n_steps=2, tolerance=tolerance)
    assert compiled.certificate().domain_step <= tolerance
    fewer = icgd.compile(
        problem_with(), "relu-stack", n_steps=2, pieces=int(0.6 * pieces_of(compiled))
    )
    assert fewer.certificate().domain_step > tolerance


def test_a_tolerance_for_one_task_needs_fewer_pieces_and_is_proved_for_its_run():
    x, y = data()
    task = icgd.as_task(problem_with(), x, y, seed=1)
    for_run = icgd.compile(problem_with(), "relu-stack", n_steps=2, tolerance=1e-5, task=task)
    for_domain = icgd.compile(problem_with(), "relu-stack", n_steps=2, tolerance=1e-5)
    assert pieces_of(for_run) < pieces_of(for_domain)
    report = icgd.verify(for_run, x, y, seed=1)
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-5


def test_a_relu_network_reaches_a_tolerance_for_one_run_only():
    x, y = data()
    problem = problem_with("relu")
    with pytest.raises(ToleranceError, match=r"tolerance=1e-06 cannot be proved: .* with 4 pieces"):
        icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-6)
    with pytest.raises(ToleranceError, match="Prove it for one run with task="):
        icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-6)
    task = icgd.as_task(problem, x, y, seed=1)
    compiled = icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-6, task=task)
    assert float(icgd.verify(compiled, x, y, seed=1).step_bounds.max()) <= 1e-6


def near_a_kink(problem: icgd.Problem) -> icgd.Task:
    """One example whose preactivations are 1.8e-5."""
    x, y = torch.full((1, 2), 1e-5).double(), torch.ones(1, 1).double()
    return icgd.as_task(problem, x, y, initial=torch.full((9,), 0.9).double())


def test_a_ramp_that_a_run_comes_to_lie_on_is_named_with_its_width():
    problem = problem_with("relu")
    task = near_a_kink(problem)
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(
            problem, "relu-stack", n_steps=1, kink_width=2.0**-13, tolerance=1e-9, task=task
        )
    assert str(refused.value).endswith(
        "The run comes too close to a kink of the activation: 3 preactivations lie on the ramp "
        "that approximates the jump of its slope; see report.near_kinks. Omit "
        "kink_width=0.00012207, or make it smaller."
    )


@pytest.mark.parametrize("name", ["relu-stack", "softmax-stack", "recursion"])
def test_ramps_that_are_left_to_a_construction_do_not_stand_in_the_way(name):
    """recursion has wide ones, and narrower ones for a tolerance."""
    problem = problem_with("relu")
    task = near_a_kink(problem)
    compiled = icgd.compile(problem, name, n_steps=1, tolerance=1e-9, task=task)
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-9
    (start, end), *_ = compiled.program.ramps("relu'")
    assert end < 1e-8
    if name == "recursion":
        assert (start, end) == (-(2.0**-30), 2.0**-30)
        (_, default), *_ = icgd.compile(problem, name, n_steps=1).program.ramps("relu'")
        assert default == 2.0**-13


def test_where_no_number_lies_on_a_ramp_rounding_is_to_blame():
    problem = problem_with("relu")
    task = near_a_kink(problem)
    with pytest.raises(ToleranceError, match="Rounding or the size of the domain limits"):
        icgd.compile(problem, "relu-stack", n_steps=1, tolerance=1e-18, task=task)


def test_a_tolerance_below_rounding_is_refused(monkeypatch):
    monkeypatch.setattr(ReluStack, "finest", 256)
    with pytest.raises(ToleranceError, match=r"with 256 pieces\. Rounding or the size of the dom"):
        icgd.compile(problem_with(), "relu-stack", n_steps=1, tolerance=1e-14)


@pytest.mark.parametrize("tolerance", [1e-5, 1e-7, 1e-9])
def test_a_tolerance_is_proved_on_the_domain_with_about_the_fewest_registers(tolerance):
    problem = problem_with(box=2.0)  # for a box of 1 the fewest registers do
    compiled = by_softmax(problem, tolerance=tolerance)
    assert compiled.certificate().domain_step <= tolerance
    fewer = by_softmax(problem, registers=compiled.program.n_registers - 6)
    assert fewer.certificate().domain_step > tolerance


def test_a_tolerance_for_one_task_needs_fewer_registers_and_is_proved_for_its_run():
    x, y = data()
    problem = problem_with(box=2.0)
    task = icgd.as_task(problem, x, y, seed=1)
    for_run = by_softmax(problem, tolerance=1e-7, task=task)
    for_domain = by_softmax(problem, tolerance=1e-7)
    assert for_run.program.n_registers < for_domain.program.n_registers
    report = icgd.verify(for_run, x, y, seed=1)
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-7


def test_a_tolerance_below_rounding_is_refused_with_the_best_number_of_registers():
    """More registers round more: the search stops where it gets no better."""
    problem = problem_with(box=2.0)
    with pytest.raises(ToleranceError) as refused:
        by_softmax(problem, tolerance=1e-13)
    text = str(refused.value)
    best = int(text.split("with ")[1].split(" registers")[0])
    assert 60 < best < 120
    bound = by_softmax(problem, registers=best).certificate().domain_step
    assert f"the smallest bound is {bound:.3g}, with {best} registers. Rounding" in text


def test_where_the_bound_says_nothing_the_search_ends_with_the_accuracy_of_functions(monkeypatch):
    """Weights are clipped to the box, so that a bound beyond it is the same for all settings."""
    tried = []

    def beyond_the_box(self, compiled: icgd.Compiled) -> Evidence:
        tried.append(compiled.program.n_registers)
        return Evidence(compiled, 2.0)

    monkeypatch.setattr(Tolerance, "evidence", beyond_the_box)
    with pytest.raises(ToleranceError, match=r"the smallest bound is 2, with \d\d registers"):
        by_softmax(tolerance=1e-3)
    assert max(tried) < 256


def test_the_search_goes_past_settings_that_are_too_coarse_for_the_ranges(monkeypatch):
    build = SoftmaxStack.build

    def picky(self, problem, n_steps):
        if self.registers < 50:
            raise ConstructionError(f"registers={self.registers} is too few here")
        return build(self, problem, n_steps)

    monkeypatch.setattr(SoftmaxStack, "build", picky)
    assert by_softmax(tolerance=1e-3).program.n_registers == 64
    monkeypatch.setattr(SoftmaxStack, "finest", 40)
    with pytest.raises(SettingError, match=r"^registers=40 is too few here$"):
        by_softmax(tolerance=1e-3)


def test_a_tolerance_that_a_kink_forbids_says_so_for_chains_too():
    update = icgd.GradientStep(0.1, 1.0, batch_size=2)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "relu"), "squared", update, icgd.Domain(1.0, 1.0))
    with pytest.raises(ToleranceError, match=r"put a unit on a kink of its activation"):
        icgd.compile(problem, n_steps=1, construction="cot-network", tolerance=1e-6)


def task_with_queries(problem: icgd.Problem) -> icgd.Task:
    x, y = data()
    return icgd.as_task(problem, x, y, queries=x[:3] / 2, seed=1)


def proved_and_measured(compiled: icgd.Compiled, task: icgd.Task, of: str) -> tuple[float, float]:
    """The bound of a whole run, and its distance from the oracle, both largest."""
    report = icgd.verify(compiled, task.x, task.y, queries=task.queries, initial=task.initial)
    assert report.verdict.holds
    if of == "weights":
        return float(report.trajectory_bounds[-1]), float(report.trajectory_errors[-1])
    return float(report.prediction_bounds.max()), float(report.prediction_errors.max())


@pytest.mark.parametrize("of", ["weights", "predictions"])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_a_tolerance_of_a_whole_run_is_proved_for_it_with_few_pieces(of, tolerance):
    problem = problem_with()
    task = task_with_queries(problem)
    settings = {"tolerance": tolerance, "task": task}
    compiled = icgd.compile(problem, "relu-stack", n_steps=20, tolerance_of=of, **settings)
    bound, error = proved_and_measured(compiled, task, of)
    assert error <= bound <= tolerance
    assert bound <= (1 + 1e-6) * error, "as tight as the measurement"
    fewer = icgd.compile(problem, "relu-stack", n_steps=20, pieces=pieces_of(compiled) // 2)
    assert proved_and_measured(fewer, task, of)[1] > tolerance


@pytest.mark.parametrize("of", ["weights", "predictions"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_softmax_stack_proves_a_tolerance_of_a_whole_run(of, activation):
    problem = problem_with(activation)
    task = task_with_queries(problem)
    compiled = by_softmax(problem, 20, tolerance=1e-7, tolerance_of=of, task=task)
    bound, error = proved_and_measured(compiled, task, of)
    assert error <= bound <= 1e-7


def test_the_best_construction_is_chosen_for_a_whole_run_too():
    problem = problem_with("relu")
    task = task_with_queries(problem)
    compiled = icgd.compile(
        problem, n_steps=5, tolerance=1e-9, tolerance_of="predictions", task=task
    )
    assert compiled.chosen_because == (
        "no other construction proves tolerance=1e-09 of the predictions with fewer weights"
    )
    bound, error = proved_and_measured(compiled, task, "predictions")
    assert error <= bound <= 1e-9


@pytest.mark.parametrize("of", ["weights", "predictions"])
def test_without_a_task_a_short_run_is_proved_for_the_whole_domain(of):
    compiled = icgd.compile(
        problem_with(), "relu-stack", n_steps=3, tolerance=1e-2, tolerance_of=of
    )
    certificate = compiled.certificate()
    bounds = {
        "weights": certificate.domain_trajectory,
        "predictions": certificate.domain_predictions,
    }
    assert bounds[of] <= 1e-2
    task = task_with_queries(compiled.problem)
    assert proved_and_measured(compiled, task, of)[1] <= bounds[of]


def test_without_a_task_a_long_run_says_that_the_bound_proves_nothing(monkeypatch):
    monkeypatch.setattr(ReluStack, "finest", 64)
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(
            problem_with(), "relu-stack", n_steps=500, tolerance=1e-3, tolerance_of="weights"
        )
    assert str(refused.value) == (
        "tolerance=0.001 of the final weights cannot be proved: the smallest bound is 2, with 64 "
        "pieces. The bound on the weights grows with every step; after 500 steps it is as large as "
        "the box and proves nothing. Prove it for one run with task=..."
    )


@pytest.mark.parametrize("of", ["weights", "predictions"])
def test_a_run_that_expands_distances_says_that_it_is_too_long(of):
    """w - 0.37 is multiplied by 1 - 0.9 * 1.9^2 = -2.2 in every step, but float64 stays at 0.37.

    So the bound is twice the distance of exact descent: of the run, and of training in float64.
    """
    update, domain, box = icgd.GradientStep(0.9, box=3.0), icgd.Domain(2.0, 2.0), 3
    problem = icgd.Problem(icgd.MLP((1, 1), "identity"), "squared", update, domain)
    x, start = 1.9, 0.37
    y = start * x
    task = icgd.as_task(problem, [[x]], [[y]], queries=[[1.0]], initial=[start])
    weight, far = Fraction(start), []
    for _ in range(60):
        gradient = (weight * Fraction(x) - Fraction(y)) * Fraction(x)
        weight = max(-box, min(box, weight - Fraction(0.9) * gradient))
        far.append(float(abs(weight - Fraction(start))))

    def refusal(n_steps: int) -> str:
        goal = {"tolerance": 1e-9, "tolerance_of": of, "task": task}
        with pytest.raises(ToleranceError, match=r"of the .* cannot be proved: the") as refused:
            icgd.compile(problem, "relu-stack", n_steps=n_steps, **goal)
        return str(refused.value)

    grows = (
        r"the smallest bound is (\S+), with .* The error of a step is at most \S+, but the bound "
        r"grows with every step, to (\S+) after 40\. Take fewer or shorter steps\.$"
    )
    bounds = re.search(grows, refusal(40)).groups()
    assert [float(bound) for bound in bounds] == pytest.approx([2 * far[39]] * 2, rel=0.01)
    where = 1 + next(step for step, distance in enumerate(far) if 2 * distance >= box)
    assert (
        f"The bound on the weights grows with every step; after {where} of 60 steps it is as "
        "large as the box and proves nothing. Take fewer or shorter steps."
    ) in refusal(60)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tolerance": 1e-3, "tolerance_of": "predicitons"},
            "Unknown tolerance_of 'predicitons'; known are step, weights, predictions. Did you "
            "mean 'predictions'?",
        ),
        (
            {"tolerance_of": "weights"},
            "tolerance_of has no effect without tolerance; give both or neither.",
        ),
    ],
)
def test_what_a_tolerance_is_of_is_checked(settings, message):
    with pytest.raises(ValueError, match=r"^" + re.escape(message) + "$"):
        icgd.compile(problem_with(), n_steps=1, **settings)


def test_a_tolerance_of_predictions_needs_queries():
    x, y = data()
    task = icgd.as_task(problem_with(), x, y, seed=1)
    with pytest.raises(DataError, match="and the task has none"):
        icgd.compile(
            problem_with(), n_steps=1, tolerance=1e-3, tolerance_of="predictions", task=task
        )


def test_a_tolerance_for_an_optimiser_that_remembers_is_proved_for_one_run_only():
    update, domain = icgd.AdamStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "tanh"), "squared", update, domain)
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-2)
    assert str(refused.value) == (
        "tolerance=0.01 cannot be proved: the bound is infinite with any setting, because on "
        "the whole domain nothing bounds the first moment and second moment at the start of a "
        "step. Prove it for one run with task=..."
    )
    task = icgd.as_task(problem, torch.tensor([[0.5, -0.25], [1.0, 0.5]]), torch.tensor([1.0, 0.0]))
    compiled = icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-2, task=task)
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert float(report.step_bounds.max()) <= 1e-2


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_a_tolerance_for_momentum_is_proved_on_the_whole_domain(construction):
    update, domain = icgd.MomentumStep(0.1, 0.5, nesterov=True), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "tanh"), "squared", update, domain)
    compiled = icgd.compile(problem, construction, n_steps=3, tolerance=1e-4)
    assert compiled.certificate(backend="fused").domain_step <= 1e-4
    task = icgd.as_task(problem, torch.tensor([[0.5, -0.25], [1.0, 0.5]]), torch.tensor([1.0, 0.0]))
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert report.verdict is icgd.Verdict.HOLDS
    assert float(report.step_errors.max()) <= 1e-4
