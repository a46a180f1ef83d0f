import json
import re

import pytest
import torch

import icgd
import icgd_check
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.mlp import MLP
from icgd.problems.piecewise import Function

NETWORK = MLP((3, 4, 2), "gelu", "sigmoid")


def test_its_sizes_follow_from_its_widths():
    assert (NETWORK.depth, NETWORK.input_width, NETWORK.output_width) == (2, 3, 2)
    assert NETWORK.matrix_shapes == ((4, 3), (2, 4))
    assert NETWORK.n_parameters == 20


def test_the_last_layer_has_the_output_activation():
    assert [NETWORK.layer_activation(layer).name for layer in (1, 2)] == ["gelu", "sigmoid"]
    assert MLP((3, 2), "gelu").layer_activation(1).name == "identity"


def test_tanh_inside_and_identity_at_the_output_unless_said_otherwise():
    assert MLP((3, 1)) == MLP((3, 1), "tanh", "identity")


def test_parameters_run_layer_by_layer_and_row_by_row():
    first, second = NETWORK.matrices(torch.arange(20.0))
    assert torch.equal(first, torch.arange(12.0).view(4, 3))
    assert torch.equal(second, torch.arange(12.0, 20.0).view(2, 4))


def test_a_batch_of_parameter_vectors_gives_a_batch_of_matrices():
    vectors = torch.arange(40.0).view(2, 20)
    for task in range(2):
        for matrix, batched in zip(
            NETWORK.matrices(vectors[task]), NETWORK.matrices(vectors), strict=True
        ):
            assert torch.equal(matrix, batched[task])


def test_initial_weights_have_variance_one_over_fan_in():
    wide = MLP((100, 400, 25))
    first, second = wide.matrices(wide.initial_parameters(seed=0, box=9.0))
    assert first.std().item() == pytest.approx(1 / 10, rel=0.02)
    assert second.std().item() == pytest.approx(1 / 20, rel=0.02)


def test_initial_weights_are_repeatable_and_differ_between_seeds_and_tasks():
    once = NETWORK.initial_parameters(seed=5, box=3.0)
    assert once.dtype is torch.float64
    assert torch.equal(once, NETWORK.initial_parameters(seed=5, box=3.0))
    assert not torch.equal(once, NETWORK.initial_parameters(seed=6, box=3.0))
    batch = NETWORK.initial_parameters(seed=5, box=3.0, tasks=(2,))
    assert batch.shape == (2, 20)
    assert not torch.equal(batch[0], batch[1])


def test_initial_weights_leave_torchs_own_random_numbers_alone():
    state = torch.get_rng_state()
    NETWORK.initial_parameters(seed=5, box=3.0)
    assert torch.equal(state, torch.get_rng_state())


def test_initial_weights_stay_in_the_box():
    weights = NETWORK.initial_parameters(seed=0, box=0.25)
    assert weights.abs().max() == 0.25
    assert (weights.abs() < 0.25).any()


def test_biases_are_a_last_column_that_multiplies_a_constant_1():
    network = MLP((3, 4, 2), "gelu", biases=True)
    assert network.matrix_shapes == ((4, 4), (2, 5))
    assert network.n_parameters == 26
    assert network.layer_inputs(torch.tensor([[2.0, 3.0]])).tolist() == [[2.0, 3.0, 1.0]]
    assert NETWORK.layer_inputs(torch.tensor([[2.0, 3.0]])).tolist() == [[2.0, 3.0]]


def test_biases_start_at_0_beside_the_weights_of_the_network_without_them():
    network = MLP((3, 4, 2), "gelu", biases=True)
    with_biases = network.matrices(network.initial_parameters(seed=5, box=3.0, tasks=(2,)))
    without = NETWORK.matrices(NETWORK.initial_parameters(seed=5, box=3.0, tasks=(2,)))
    for ours, plain in zip(with_biases, without, strict=True):
        assert torch.equal(ours[..., :-1], plain)
        assert not ours[..., -1].any()


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        (
            (4,),
            "widths must have an input width and at least one layer width, such as (4, 16, 1), "
            "got (4,).",
        ),
        (
            (),
            "widths must have an input width and at least one layer width, such as (4, 16, 1), "
            "got ().",
        ),
        ((4, 0, 1), "widths[1] must be a whole number of at least 1, got 0."),
        ((4, -2, 1), "widths[1] must be a whole number of at least 1, got -2."),
    ],
)
def test_impossible_widths_are_refused(widths, message):
    with pytest.raises(SettingError) as caught:
        MLP(widths)
    assert str(caught.value) == message


@pytest.mark.parametrize("setting", ["activation", "output_activation"])
def test_unknown_activations_are_refused(setting):
    with pytest.raises(UnknownNameError, match=r"^Unknown activation 'geluu'.*Did you mean 'gelu'"):
        MLP((3, 1), **{setting: "geluu"})


@pytest.mark.parametrize("names", [[], ["identity", "tanh"]])
def test_all_outputs_have_one_activation(names):
    with pytest.raises(
        SettingError, match=f"^output_activation has {len(names)} entries; expected"
    ):
        MLP((3, 4, 2), output_activation=names)


SHAPED = MLP((3, 4, 3), "gelu", shortcuts=((0, 2),), norms=(2,))


def test_shortcuts_and_norms_are_kept_in_order_and_said_in_words():
    assert (SHAPED.shortcuts, SHAPED.norms, SHAPED.norm_eps) == (((0, 2),), (2,), 1e-5)
    assert SHAPED.in_words() == "3-4-3 gelu network, shortcut 0 to 2, layer norm in 2"
    assert [SHAPED.sources(layer) for layer in (1, 2)] == [(), (0,)]
    assert [SHAPED.ends(layer) for layer in (0, 1)] == [(2,), ()]
    assert NETWORK.is_chain
    assert not SHAPED.is_chain
    assert not MLP((2, 2), shortcuts=((0, 1),)).is_chain
    assert MLP((2, 2, 2, 2), norms=(3, 1), norm_eps=1.0).norms == (1, 3)
    assert MLP((2, 2), norms=(1,), norm_eps=1e30).norm_eps == 1e30


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shortcuts": ((0, 1),)}, "adds the 3 outputs of layer 0 to the 4 of layer 1"),
        ({"shortcuts": ((2, 0),)}, "the end of a shortcut must be a whole number of at least 1"),
        ({"shortcuts": ((2, 2),)}, "the start of a shortcut must be at most 1, got 2"),
        ({"shortcuts": ((0, 3),)}, "the end of a shortcut must be at most 2, got 3"),
        ({"shortcuts": ((0, 2), (0, 2))}, "has (0, 2) twice"),
        ({"norms": (0,)}, "a layer in norms must be a whole number of at least 1, got 0"),
        ({"norms": (1, 1)}, "norms has 1 twice"),
        ({"norms": (3,)}, "a layer in norms must be at most 2, got 3"),
        ({"norms": (2,), "widths": (3, 4, 1)}, "norms has layer 2, whose width is 1"),
        ({"norms": (2,), "norm_eps": 0.0}, "norm_eps must be a positive finite number, got 0.0"),
        ({"norms": (2,), "norm_eps": -1e-5}, "norm_eps must be a positive finite number"),
        ({"norms": (2,), "norm_eps": 1e-40}, "norm_eps must lie between 1e-30 and 1e+30"),
        ({"norm_eps": 1e-3}, "norm_eps has no effect without norms"),
    ],
)
def test_shortcuts_and_norms_that_do_not_fit_are_refused(given, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        MLP(**{"widths": (3, 4, 3)} | given)


@pytest.mark.parametrize("width", [3, 200])  # remembered by their seed, and not
def test_weights_that_were_drawn_belong_to_who_asked_for_them(width):
    network = MLP((width, width, 1), biases=True)
    drawn = network.initial_parameters(seed=1, box=2.0)
    before = drawn.clone()
    drawn.zero_()
    with torch.inference_mode():
        assert torch.equal(network.initial_parameters(seed=1, box=2.0), before)
    assert torch.equal(network.initial_parameters(seed=1, box=0.5), before.clamp(-0.5, 0.5))
    assert not torch.equal(network.initial_parameters(seed=2, box=2.0), before)
    assert not torch.equal(MLP((width, width, 1)).initial_parameters(1, 2.0), before)


MIXED = MLP((2, 3, 3, 1), ("gelu", "relu"), "sigmoid")


def test_every_hidden_layer_may_have_its_own_activation():
    assert [MIXED.layer_activation(j).name for j in (1, 2, 3)] == ["gelu", "relu", "sigmoid"]
    assert MIXED.in_words() == "2-3-3-1 gelu/relu network, sigmoid at the output"
    assert MLP((2, 3, 3, 1), ["relu", "relu"]) == MLP((2, 3, 3, 1), "relu")
    assert MLP((2, 1), ()) == MLP((2, 1))
    own = Function("cubic", "x + 0.1*x**3")
    assert MLP((2, 3, 3, 1), (own, "tanh")).activation == (own.name, "tanh")


def test_a_row_of_activations_has_one_for_each_hidden_layer():
    with pytest.raises(SettingError, match="activation has 1 entries; expected 2, one for each"):
        MLP((2, 3, 3, 1), ("gelu",))
    with pytest.raises(UnknownNameError, match="tanhh"):
        MLP((2, 3, 3, 1), ("gelu", "tanhh"))


def test_mixed_activations_are_written_and_proved():
    problem = icgd.Problem(MIXED, "squared", icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0))
    assert icgd.Problem.from_data(json.loads(json.dumps(problem.to_data()))) == problem
    compiled = icgd.compile(problem, "relu-stack", n_steps=2)
    certificate = compiled.certify([[0.5, -1.0], [1.0, 0.25]], [0.5, 1.0], seed=0)
    assert icgd_check.check(certificate.text.encode())["problem"]["activation"] == ["gelu", "relu"]
    described = problem.oracle.described(compiled.task([[0.5, -1.0]], [0.5]), 1)
    row = [icgd_check.ZERO]
    with pytest.raises(icgd_check.RefusedError, match="no activation for each hidden layer"):
        icgd_check.Network({**described, "activation": ["gelu"]}, [row * 2], [row], [], 64)
