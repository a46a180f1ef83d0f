"""The functions that a construction evaluates or looks up."""

from __future__ import annotations

from icgd.constructions.parts.forward_pass import positive_layers
from icgd.constructions.parts.ranges import Ranges, largest_size, loss_parts
from icgd.problems.activations import IDENTITY_FUNCTION, RELU, Activation
from icgd.problems.functions import ScalarFunction, SmoothFunction
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.program.functions import LatticeFunction


def activations_of(target: MLP) -> list[Activation]:
    """The activation of every layer."""
    return [target.layer_activation(layer) for layer in range(1, target.depth + 1)]


def needed_functions(problem: Problem) -> dict[str, ScalarFunction]:
    """Activations, their slopes, the parts of the loss slope, and what copies the prediction."""
    activations = activations_of(problem.network)
    functions = [activation.value for activation in activations]
    functions += [activation.derivative for activation in activations]
    functions += [part.function for part in loss_parts(problem)]
    functions += [RELU] if positive_layers(problem.network) else []
    return {function.name: function for function in (*functions, IDENTITY_FUNCTION)}


def looked_up(problem: Problem) -> tuple[SmoothFunction, ...]:
    """The smooth functions of activations and loss, all of them bounded, each once.

    An activation that grows like a line is z gate(z) + rest(z) instead.
    """
    functions: dict[str, ScalarFunction] = {}
    for activation in activations_of(problem.network):
        value = activation.gate or activation.value
        for function in (value, activation.rest, activation.derivative):
            if function is not None:
                functions[function.name] = function
    for part in loss_parts(problem):
        functions[part.function.name] = part.function
    return tuple(f for f in functions.values() if isinstance(f, SmoothFunction))


def largest_output(activation: Activation, reach: float) -> float:
    """Bound on |r|, also if it is put together from its gate and rest."""
    bound = largest_size(activation.value, reach)
    if activation.gate is None:
        return bound
    rest = largest_size(activation.rest, reach) if activation.rest else 0.0
    return max(bound, reach * largest_size(activation.gate, reach) + rest)


def overshoot(problem: Problem, forward: Ranges, look_ups: tuple[LatticeFunction, ...]) -> float:
    """How far an activation or a slope can be off, by the errors of its look-ups."""
    errors = {function.name: function.error for function in look_ups}
    largest = 0.0
    layers = zip(activations_of(problem.network), forward.preactivations, strict=True)
    for activation, reach in layers:
        if isinstance(activation.value, SmoothFunction):
            gate, rest = activation.gate, activation.rest
            value = errors[gate.name] * reach if gate else errors[activation.value.name]
            value += errors[rest.name] if rest else 0.0
            largest = max(largest, value, errors[activation.derivative.name])
    in_loss = (errors.get(part.function.name, 0.0) for part in loss_parts(problem))
    return max(largest, sum(in_loss))
