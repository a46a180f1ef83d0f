"""What a softmax construction looks up in its grid."""

from __future__ import annotations

from icgd.constructions.parts.ranges import largest_size
from icgd.problems.activations import Activation
from icgd.problems.functions import ScalarFunction, SmoothFunction
from icgd.problems.problem import Problem


def looked_up(problem: Problem) -> tuple[SmoothFunction, ...]:
    """The smooth functions of activations and loss, all of them bounded, each once.

    An activation that grows like a line is z gate(z) + rest(z) instead.
    """
    target = problem.network
    functions: dict[str, ScalarFunction] = {}
    for layer in range(1, target.depth + 1):
        activation = target.layer_activation(layer)
        value = activation.gate or activation.value
        for function in (value, activation.rest, activation.derivative):
            if function is not None:
                functions[function.name] = function
    for part in problem.loss_function.slope_parts or ():
        functions[part.function.name] = part.function
    return tuple(f for f in functions.values() if isinstance(f, SmoothFunction))


def largest_output(activation: Activation, reach: float) -> float:
    """Bound on |r|, also if it is put together from its gate and rest."""
    bound = largest_size(activation.value, reach)
    if activation.gate is None:
        return bound
    rest = largest_size(activation.rest, reach) if activation.rest else 0.0
    return max(bound, reach * largest_size(activation.gate, reach) + rest)
