import json
from dataclasses import replace

import pytest
import torch

import icgd
from icgd.certificates import trial
from icgd.certificates.trial import refuted
from icgd.errors import FileError, InterruptedRunError, KernelError, OverflowedRunError
from icgd.problems.problem import Problem
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import ClipSlots
from icgd.program.program import AbstractProgram
from icgd.program.registry import from_data
from icgd.weights import files
from tests.campaigns.compiled_files import ORDERS, compiled, network


def program_with(name: str, **update: object) -> AbstractProgram:
    """What a construction makes of its problem with another update."""
    problem, settings = ORDERS[name]
    other = replace(problem, update=replace(problem.update, **update))
    return icgd.compile(other, name.partition(",")[0], n_steps=2, **settings).program


@pytest.mark.parametrize("name", ORDERS)
def test_a_program_of_its_problem_is_not_refuted(name):
    assert refuted(compiled(name).problem, compiled(name).program) is None


# Three levels of `universal` err by more than a step moves; steps that differ have tests below.
PRECISE = [name for name in ORDERS if name not in ("universal", "relu-stack, momentum")]


@pytest.mark.parametrize("name", PRECISE)
def test_another_step_size_is_refuted(name):
    problem, size = compiled(name).problem, compiled(name).problem.update.step_size
    found = refuted(problem, program_with(name, step_size=10 * size))
    assert found is not None
    assert found.startswith("a step on data of the domain is off by ")


@pytest.mark.parametrize("step", [0, 1])
def test_each_step_of_a_schedule_that_is_tried_is_told_apart(step):
    sizes = [0.1, 0.2]
    sizes[step] = 0.4
    program = program_with("relu-stack, momentum", step_size=tuple(sizes))
    assert refuted(compiled("relu-stack, momentum").problem, program) is not None


def test_later_steps_of_a_schedule_are_left_to_verify():
    sizes = (0.1,) * trial.DIFFERENT_STEPS
    problem, other = (
        network(icgd.MomentumStep((*sizes, last), momentum=0.5, box=2.0)) for last in (0.1, 0.4)
    )
    program = icgd.compile(other, "relu-stack", n_steps=len(sizes) + 1, pieces=64).program
    assert refuted(problem, program) is None
    x = torch.tensor([[0.5, 1.0], [-1.0, 0.25]], dtype=torch.float64)
    report = icgd.verify(icgd.Compiled(problem, program), x, [1.0, -1.0], seed=0)
    assert report.verdict is icgd.Verdict.BROKEN


@pytest.mark.parametrize("n_steps", [0, 1])
def test_a_prediction_of_another_network_is_refuted(n_steps):
    step = icgd.GradientStep(0.1, box=2.0)
    own, other = (
        icgd.compile(network(step, activation=name), "relu-stack", n_steps=n_steps)
        for name in ("tanh", "sigmoid")
    )
    functions = (*own.program.functions, *other.program.functions)
    program = replace(own.stack, functions=functions, prediction=other.stack.prediction)
    found = refuted(own.problem, program)
    assert found is not None
    assert found.startswith("a prediction on data of the domain is off by ")
    assert refuted(own.problem, own.program) is None


def test_a_run_that_overflows_refutes_nothing():
    machine, domain = icgd.KernelMachine(2, "exp"), icgd.Domain(x=1e3, y=1.0)
    own, other = (
        Problem(machine, "squared", icgd.FunctionalStep(size), domain) for size in (0.1, 0.2)
    )
    with pytest.raises(KernelError):
        icgd.compile(own, n_steps=2).run([[1e3, 1e3]], [1.0])
    assert refuted(own, icgd.compile(other, n_steps=2).program) is None


def test_where_the_domain_is_too_large_to_be_filled_smaller_inputs_are_tried():
    problem, settings = ORDERS["cot-lasso"]
    wide = replace(problem, domain=icgd.Domain(x=1e9, y=1.0))
    other = replace(wide, update=replace(wide.update, l1=0.0))
    program = icgd.compile(problem, "cot-lasso", n_steps=2, **settings).program
    found = refuted(other, program)
    assert found is not None
    assert found.startswith("a step on data of the domain is off by ")


def test_a_large_program_is_left_to_verify(monkeypatch):
    altered = program_with("relu-stack", step_size=0.5)
    monkeypatch.setattr(trial, "MOST_NUMBERS", 100)
    assert refuted(compiled("relu-stack").problem, altered) is None


def test_load_refuses_a_sound_program_of_another_problem(tmp_path):
    path, altered = tmp_path / "run.safetensors", program_with("relu-stack", step_size=0.5)
    files.save(path, compiled("relu-stack").problem, altered, {})
    with pytest.raises(FileError, match="holds a program that does not train its problem: a step"):
        icgd.load(path)


BOXED = [name for name in ORDERS if name not in ("functional", "universal", "relu-stack, adam")]


@pytest.mark.parametrize("name", BOXED)
def test_another_box_is_refuted(name):
    assert refuted(compiled(name).problem, program_with(name, box=1.9)) is not None


def test_weights_that_are_not_clipped_are_refuted():
    own = compiled("relu-stack")
    last = own.stack.block[-1]
    kept = tuple(part for part in last.instructions if not isinstance(part, ClipSlots))
    block = (*own.stack.block[:-1], replace(last, instructions=kept))
    assert refuted(own.problem, replace(own.stack, block=block)) is not None


def test_a_program_of_all_examples_is_refuted_where_batches_are_asked_for():
    step = icgd.GradientStep(0.1, box=2.0, batch_size=5)
    problem, program = network(step), program_with("relu-stack")
    assert refuted(problem, program) is not None
    assert refuted(problem, icgd.compile(problem, "relu-stack", n_steps=2).program) is None


def test_a_program_that_does_not_heed_rates_is_refuted():
    step, domain = icgd.GradientStep(0.1, box=2.0), icgd.Domain(x=1.0, y=1.0, rate=1.0)
    problem = replace(network(step), domain=domain)
    assert refuted(problem, program_with("relu-stack")) is not None
    assert refuted(problem, icgd.compile(problem, "relu-stack", n_steps=2).program) is None


def test_a_prediction_that_is_wrong_at_some_queries_alone_is_refuted():
    own = compiled("relu-stack, kinks")
    *first, last = own.stack.prediction
    copied = last.instructions[0]
    clipped = replace(copied, summands=(replace(copied.summands[0], function="relu"),))
    last = replace(last, instructions=(clipped, *last.instructions[1:]))
    assert refuted(own.problem, replace(own.stack, prediction=(*first, last))) is not None


UNFIT = {
    "relu-stack": ('"left": "slope_2"', '"left": "is_query"'),
    "cot-glm": ('"label": "y"', '"label": "tokens_per_example"'),
    "cot-network": ('"function": "tanh"', '"function": "identity"'),
}


@pytest.mark.parametrize("name", UNFIT)
def test_load_refuses_a_program_whose_parts_do_not_fit(tmp_path, name):
    run, path = compiled(name), tmp_path / "run.safetensors"
    program = json.loads(json.dumps(run.program.to_data()).replace(*UNFIT[name]))
    files.save(path, run.problem, from_data(program), {})
    with pytest.raises(FileError, match="parts do not fit each other"):
        icgd.load(path)


def test_many_registers_are_left_to_verify():
    own = compiled("softmax-stack")
    assert refuted(own.problem, program_with("softmax-stack", step_size=0.5)) is not None
    functions = tuple(
        replace(function, spacing=1e-9) if isinstance(function, LatticeFunction) else function
        for function in own.program.functions
    )
    assert refuted(own.problem, replace(own.stack, functions=functions)) is None


def test_long_chains_are_left_to_verify():
    step = icgd.GradientStep(0.1, box=0.5, batch_size=1)
    deep = network(step, widths=(1,) * 200)
    program = icgd.compile(deep, "cot-network", n_steps=2).program
    assert refuted(replace(deep, update=replace(step, step_size=0.5)), program) is None


def test_the_beginning_of_no_steps_has_a_block():
    own = compiled("cot-ridge")
    twice = replace(own.stack, block=own.stack.block * 2, steps_per_block=2, n_steps=0)
    assert refuted(own.problem, twice) is None


def test_a_task_that_overflows_does_not_hide_what_the_others_refute():
    machine, domain = icgd.KernelMachine(2, "exp"), icgd.Domain(x=1.0, y=1.0)
    own, other = (
        Problem(machine, "squared", icgd.FunctionalStep(size, transforms=(0.1,) * 5), domain)
        for size in (0.1, 0.2)
    )
    program = icgd.compile(other, "functional", n_steps=5).program
    drawn = trial._drawn(own, 3, trial.TASKS)
    with pytest.raises(OverflowedRunError):
        icgd.Compiled(other, program).run_task(drawn)
    assert refuted(own, program) is not None


def test_ctrl_c_while_a_program_is_tried_interrupts_its_loading(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise InterruptedRunError("after 1 of 2 steps", None)

    path = tmp_path / "run.safetensors"
    compiled("relu-stack").save(path)
    monkeypatch.setattr(trial.FusedBackend, "run", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        icgd.load(path)
    assert caught.type is KeyboardInterrupt
