from inspect import signature

import pytest

from icgd.cli.compare import compare
from icgd.cli.compile import compile
from icgd.cli.fitting import fitted_to
from icgd.cli.problem_options import (
    SETTINGS,
    compiled_from,
    options_of,
    parse_widths,
    problem_from,
    run_options,
    takes_problem,
    takes_training_run,
)
from icgd.cli.size import size
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import IcgdError, SettingError
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.steps import FunctionalStep
from tests.cli.files import PROBLEM


def test_widths_are_numbers_joined_by_commas():
    assert parse_widths("4,16, 1") == (4, 16, 1)


@pytest.mark.parametrize("text", ["", "4,", "4;1", "4,x", "4,1.5"])
def test_other_texts_are_refused(text):
    with pytest.raises(SettingError) as caught:
        parse_widths(text)
    assert str(caught.value) == (
        f"--widths must be whole numbers joined by commas, such as 4,16,1, got {text!r}."
    )


def test_only_the_widths_must_be_given():
    compiled = compiled_from(problem_from("4,3,1"))
    assert compiled.problem == PROBLEM
    assert compiled.program.n_steps == 20
    assert compiled.program.construction == "softmax-stack"
    assert compiled.program.look_up("tanh").error <= 1e-11
    by_pieces = compiled_from(problem_from("4,3,1"), construction="relu-stack")
    assert by_pieces.program.relu_sum("tanh").n_pieces == 74  # as good as 64 of its own


def test_registers_reach_softmax_stack():
    compiled = compiled_from(problem_from("4,3,1"), construction="softmax-stack", registers=66)
    assert compiled.program.construction == "softmax-stack"
    assert compiled.program.n_registers == 66


PROBLEM_OPTIONS = options_of(problem_from)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tanh(t-y)", "tanh(t - y) on -64 to 64"),
        ("tanh(t - y) on -9 to 9", "tanh(t - y) on -9 to 9"),
        ("quantile_1e-3", "quantile_1e-3"),
        ("smooth_l1_0.5", "smooth_l1_0.5"),
    ],
)
def test_a_loss_is_a_name_or_the_text_of_a_slope(text, name):
    assert problem_from("4,3,1", loss=text).loss == name


@pytest.mark.parametrize(
    ("command", "shared"),
    [
        (compile, [*PROBLEM_OPTIONS, *run_options()]),
        (size, [*PROBLEM_OPTIONS, *run_options()]),
        (compare, PROBLEM_OPTIONS),
    ],
)
def test_commands_share_their_options(command, shared):
    offered = signature(command).parameters
    assert len(shared) >= 18
    for option in shared:
        assert offered[option.name].annotation == option.annotation
        assert offered[option.name].default == option.default


def test_every_setting_of_a_construction_is_an_option():
    settings = {name for each in CONSTRUCTIONS.values() for name in each.settings()}
    assert settings == set(SETTINGS)


def test_a_command_receives_the_run_and_its_own_options():
    received = []

    @takes_training_run
    def command(compiled, loud: bool = False) -> None:
        received.append((compiled, loud))

    of_table = options_of(fitted_to)[2:]
    options = [*PROBLEM_OPTIONS, *of_table, *run_options()]
    defaults = {option.name: option.default for option in options}
    command(**{**defaults, "widths": "4,3,1", "steps": 2, "pieces": 8}, loud=True)
    [(compiled, loud)] = received
    assert loud
    assert compiled.problem == PROBLEM
    assert compiled.program.n_steps == 2


def test_a_command_may_take_the_problem_alone():
    received = []
    command = takes_problem(lambda problem, times=1: received.append((problem, times)))
    defaults = {option.name: option.default for option in PROBLEM_OPTIONS}
    command(**{**defaults, "widths": "4,3,1"}, times=3)
    assert received == [(PROBLEM, 3)]


def test_a_batch_size_is_part_of_the_update():
    assert problem_from("4,3,1", batch_size=2).update == GradientStep(0.1, 3.0, 2)


def test_biases_are_part_of_the_network():
    assert problem_from("4,3,1", "relu", biases=True).target == MLP((4, 3, 1), "relu", biases=True)


def test_a_kernel_makes_it_functional_descent():
    problem = problem_from("4,2", kernel="exp", step_size=0.25, noise=0.5)
    compiled = compiled_from(problem, steps=3)
    assert compiled.program.construction == "functional"
    assert compiled.problem.target == KernelMachine(4, "exp", 2)
    assert compiled.problem.update == FunctionalStep(0.25, 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widths": "4,3,1", "kernel": "rbf"}, "widths has 3 entries; expected 2 with --kernel"),
        ({"widths": "4,1", "noise": 0.1}, "noise has no effect without --kernel"),
        ({"widths": "4,1", "kernel": "rbf", "batch_size": 1}, "either --batch-size or --kernel"),
        ({"widths": "4,1", "kernel": "rbf", "biases": True}, "either --biases or --kernel"),
        ({"widths": "4,1", "kernel": "rfb"}, "Unknown kernel 'rfb'.* Did you mean 'rbf'"),
    ],
)
def test_wrong_kernels_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        problem_from(**settings)


def test_a_box_is_refused_beside_a_kernel_which_has_no_weights_to_clip():
    with pytest.raises(SettingError, match="Give either --box or --kernel, not both"):
        problem_from("4,1", kernel="rbf", box="1")


OWN = '[functions.swoosh]\nof = ["x * tanh(log(1 + exp(x)))"]\nlow = -90\nhigh = 90.5\n'


def test_an_activation_may_be_defined_in_a_file(tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    problem = problem_from("4,3,1", activation="swoosh", functions=tmp_path / "own.toml")
    assert problem.network.activation == "x*tanh(softplus(x)) on -90 to 90.5"
    assert problem_from("4,3,1", activation="mish").network.activation == "mish"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[functions", "Cannot read"),
        ("x = 1", "has no table [functions.NAME], such as [functions.swish]."),
        ('[functions.f]\nof = ["1/x"]', "no finite value near x = 0"),
        ('[functions.f]\nof = ["tahn(x)"]', "Unknown function 'tahn'"),
        (OWN, "Unknown activation 'f'; known are relu, "),
    ],
)
def test_a_file_that_does_not_define_it_is_refused(content, words, tmp_path):
    (tmp_path / "own.toml").write_text(content)
    with pytest.raises(IcgdError) as caught:
        problem_from("4,3,1", activation="f", functions=tmp_path / "own.toml")
    assert words in str(caught.value)
