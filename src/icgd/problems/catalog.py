"""Every function of one variable that a program may approximate, by its name."""

from __future__ import annotations

from icgd.problems.activations import ACTIVATIONS
from icgd.problems.class_functions import class_function_named
from icgd.problems.functions import ScalarFunction
from icgd.problems.losses import LOSSES
from icgd.problems.roots import root_named
from icgd.problems.settings import by_name, named

FUNCTIONS: dict[str, ScalarFunction] = by_name(
    *(activation.value for activation in ACTIVATIONS.values()),
    *(activation.derivative for activation in ACTIVATIONS.values()),
    *(part for a in ACTIVATIONS.values() for part in (a.gate, a.rest) if part is not None),
    *(part.function for loss in LOSSES.values() for part in loss.slope_parts or ()),
)


def function_named(name: str) -> ScalarFunction:
    """The function called `name`; a derivative is called by its function's name and a prime."""
    return root_named(name) or class_function_named(name) or named("function", name, FUNCTIONS)
