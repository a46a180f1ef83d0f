"""The construction that `compile` chooses, against a search that builds them all."""

from dataclasses import replace

import pytest

import icgd
from icgd import choice
from icgd.choice import FULL_ACCURACY, function_error
from icgd.constructions.recursion import Recursion
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import SettingError, ToleranceError, UnsupportedProblemError
from icgd.problems.functions import ACTIVATIONS
from icgd.weights.sizes import summarise
from tests.cases import BATCHED, KERNEL_CASES

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
        for activation in ACTIVATIONS
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
        (3, 2, "relu"): "recursion",
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


@pytest.mark.parametrize("activation", ACTIVATIONS)
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
    assert text.startswith("tolerance=1e-06 cannot be proved by any construction that serves this ")
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
        "No construction that serves this problem has all of the given settings (peices): "
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
    assert ": the slope of the cross_entropy loss couples all outputs" in text
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
