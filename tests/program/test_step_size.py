"""The step size is a factor of one tensor, and no other weight depends on it."""

import pytest
import torch

import icgd
from icgd.errors import SettingError
from icgd.program.stack import of_unit_step, step_layer
from icgd.weights.lowering import lower_program


def compiled(construction, step_size, **settings):
    problem = icgd.Problem(
        target=icgd.MLP((2, 3, 2, 1), "relu"),
        loss="squared",
        update=icgd.GradientStep(step_size=step_size, box=1.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, construction, n_steps=2, **settings)


@pytest.mark.parametrize(("construction", "place"), [("relu-stack", 8), ("softmax-stack", 8)])
def test_the_layer_of_the_step_is_the_last_but_one(construction, place):
    program = compiled(construction, 0.3).program
    assert step_layer(program) == place
    assert program.block[place].title == "gradient step"
    assert place == len(program.block) - 2


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("step_size", [1e-3, 0.3, 7.0])
def test_the_derivative_of_every_weight_by_the_step_size_is_known_exactly(construction, step_size):
    """It is W_O(1) in one layer and 0 elsewhere; a transformer of any step size follows from it."""
    real = dict(compiled(construction, step_size).transformer().named_parameters())
    program = compiled(construction, 0.3).stack
    unit = dict(lower_program(of_unit_step(program, 0.3)).named_parameters())
    moved = f"block.{step_layer(program)}.W_O"
    assert unit.keys() == real.keys()
    assert unit[moved].abs().max() > 0
    for name, weights in unit.items():
        if name == moved:
            torch.testing.assert_close(step_size * weights, real[name], rtol=4e-16, atol=0)
        else:
            assert torch.equal(weights, real[name]), name


@pytest.mark.parametrize(
    ("construction", "widths", "batch_size"),
    [("universal", (1, 1), None), ("cot-network", (2, 3, 1), 4), ("recursion", (2, 3, 1), None)],
)
def test_a_program_whose_step_size_is_no_such_factor_is_refused(construction, widths, batch_size):
    problem = icgd.Problem(
        target=icgd.MLP(widths, "relu"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.3, box=1.0, batch_size=batch_size),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    settings = {"n_examples": 1} if construction == "universal" else {}
    program = icgd.compile(problem, construction, n_steps=1, **settings).program
    with pytest.raises(SettingError, match=f"^In {construction} the step size is not a factor"):
        step_layer(program)
