"""The construction of Proposition 3.1: its program, its size, and what it refuses."""

import re
from pathlib import Path

import pytest

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import SettingError, ToleranceError, UnsupportedProblemError
from icgd.problems import kernel_machine as kernels
from tests.cases import KERNEL_CASES, SMALL

GOLDEN = Path(__file__).parents[1] / "golden"
FUNCTIONAL = CONSTRUCTIONS["functional"]
BY_NAME = {case.name: case.problem for case in KERNEL_CASES}


def problem_of(update: icgd.FunctionalStep, kernel: str = "rbf") -> icgd.Problem:
    return icgd.Problem(icgd.KernelMachine(3, kernel), "squared", update, icgd.Domain(2.0, 4.0))


@pytest.mark.parametrize("name", ["sum-noise", "rbf-moved", "sum-heavy-ball", "nesterov"])
def test_the_listing_is_the_golden_one(name):
    listing = icgd.compile(BY_NAME[name], n_steps=3).listing()
    golden = GOLDEN / f"functional_{name.replace('-', '_')}.txt"
    assert listing == golden.read_text()


def test_one_layer_is_one_step_and_equal_steps_share_their_weights():
    constant = icgd.compile(problem_of(icgd.FunctionalStep(0.1)), n_steps=40)
    varied = icgd.compile(problem_of(icgd.FunctionalStep([0.1] * 40)), n_steps=40)
    assert constant.summary().n_layers == varied.summary().n_layers == 40
    assert varied.summary().parameters == 40 * constant.summary().parameters
    assert constant.summary().d_model == 5
    assert (constant.summary().max_heads, constant.summary().d_head) == (1, 3)
    assert constant.summary().d_mlp == 0


def test_momentum_takes_a_head_and_a_slot_but_no_layer():
    plain = icgd.compile(problem_of(icgd.FunctionalStep(0.1)), n_steps=40).summary()
    for nesterov in (False, True):
        update = icgd.FunctionalStep(0.1, momentum=0.5, nesterov=nesterov)
        summary = icgd.compile(problem_of(update), n_steps=40).summary()
        assert (summary.n_layers, summary.layers_per_step) == (40, 1)
        assert (summary.d_model, summary.max_heads) == (plain.d_model + 1, plain.max_heads + 1)


def test_counted_weights_are_those_that_are_built():
    for problem in BY_NAME.values():
        compiled = icgd.compile(problem, n_steps=3)
        weights = list(compiled.transformer().parameters())
        summary = compiled.summary()
        assert sum(weight.numel() for weight in weights) == summary.parameters
        assert sum(int(weight.count_nonzero()) for weight in weights) == summary.nonzeros


def test_it_is_what_a_kernel_machine_is_compiled_with_by_default():
    compiled = icgd.compile(BY_NAME["rbf"], n_steps=1)
    assert compiled.program.construction == FUNCTIONAL.name
    assert (
        compiled.chosen_because == "no other construction serves this problem with these settings"
    )


def test_networks_and_functions_are_told_apart():
    assert FUNCTIONAL.why_not(SMALL[0].problem) == (
        "it trains the function of a kernel, not the weights of a network."
    )
    with pytest.raises(UnsupportedProblemError) as caught:
        icgd.compile(BY_NAME["rbf"], n_steps=1, construction="relu-stack")
    assert str(caught.value) == (
        "relu-stack cannot compile this problem: it trains the weights of a network, not the "
        "function of a kernel. Constructions that can: functional."
    )


def test_no_steps_leave_the_function_zero():
    for update in (icgd.FunctionalStep(0.1), icgd.FunctionalStep(0.1, transforms=1.0)):
        run = icgd.compile(problem_of(update), n_steps=0).run(
            KERNEL_CASES[0].x, KERNEL_CASES[0].y, queries=KERNEL_CASES[0].queries
        )
        assert not run.predictions.any()
        assert run.parameters.shape == (1, 10)


def test_a_tolerance_is_met_by_rounding_alone_or_not_at_all():
    problem, case = problem_of(icgd.FunctionalStep(1e-3)), KERNEL_CASES[3]
    task = icgd.as_task(problem, case.x, case.y)
    assert icgd.compile(problem, n_steps=3, tolerance=1e-10)
    assert icgd.compile(problem, n_steps=3, tolerance=1e-13, task=task)
    with pytest.raises(
        ToleranceError, match=r"tolerance=1e-16 cannot .* Rounding is the only source"
    ):
        icgd.compile(problem, n_steps=3, tolerance=1e-16, task=task)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: icgd.compile(problem_of(icgd.FunctionalStep((0.1, 0.2))), n_steps=3),
            "step_size has 2 entries; expected 3, one for each step",
        ),
        (
            lambda: icgd.compile(problem_of(icgd.FunctionalStep(0.1)), n_steps=3, pieces=8),
            "functional has no setting 'pieces'; it has no settings. pieces is a setting of relu-",
        ),
        (
            lambda: icgd.compile(problem_of(icgd.FunctionalStep(0.1)), n_steps=3).run(
                KERNEL_CASES[0].x, KERNEL_CASES[0].y, initial=KERNEL_CASES[0].y
            ),
            "initial has no effect for a kernel machine, which starts from the function 0",
        ),
        (
            lambda: icgd.Problem(
                icgd.KernelMachine(3), "huber", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0)
            ),
            "loss of a kernel machine must be 'squared', got 'huber'",
        ),
        (
            lambda: icgd.Problem(
                icgd.KernelMachine(3), "squared", icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0)
            ),
            "update must be of type FunctionalStep, got GradientStep",
        ),
        (
            lambda: problem_of(icgd.FunctionalStep(0.1, transforms=(((1.0,),),))),
            "transforms must be 3 x 3 matrices, got one of 1 x 1",
        ),
    ],
)
def test_wrong_settings_are_refused(call, message):
    with pytest.raises(SettingError, match=message):
        call()


def test_the_examples_of_its_page_run(capsys, monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))  # it registers two
    page = Path(__file__).parents[2] / "docs" / "constructions" / "functional.md"
    first, own = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    assert names["report"].verdict.holds
    exec(own, names)
    assert icgd.KernelMachine(2, "falling").heads[0].function.lipschitz == 1.0
    assert "every measured error is within its proved bound" in capsys.readouterr().out
