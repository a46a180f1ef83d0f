import pytest

from icgd.errors import UnknownNameError
from icgd.problems.activations import ACTIVATIONS, FUNCTIONS, function_named
from icgd.problems.losses import LOSSES


def test_it_holds_activations_their_derivatives_their_parts_and_those_of_losses():
    derivatives = {f"{name}'" for name in ACTIVATIONS}
    parts = {part.function.name for loss in LOSSES.values() for part in loss.slope_parts or ()}
    assert parts == {"double", "negate", "clip", "sigmoid"}
    gates_and_rests = {"normal_distribution", "coin_entropy", "sigmoid"}
    assert FUNCTIONS.keys() == ACTIVATIONS.keys() | derivatives | parts | gates_and_rests


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_found_by_its_own_name(name):
    assert function_named(name).name == name


def test_a_derivative_is_called_by_a_prime():
    assert function_named("gelu'") == ACTIVATIONS["gelu"].derivative


def test_an_unknown_function_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        function_named("clop")
    message = str(caught.value)
    assert message.startswith("Unknown function 'clop'; known are relu, leaky_relu, identity, ")
    assert message.endswith("Did you mean 'clip'?")
