from dataclasses import replace

from icgd.program.instructions import ApplyUnits, ClipSlots, WipeSlots
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import Layout, Role, Slot
from icgd.program.linear_instructions import PredictMean
from icgd.program.shape_rules import shape_problem
from icgd.program.unit_instructions import ClipByUnits

LAYOUT = Layout(
    (
        Slot("x", (3,), Role.INPUT),
        Slot("weights", (2, 3), Role.PARAMETER),
        Slot("units", (2,), Role.SCRATCH),
    )
)
"""`test_check.py` breaks the shapes of whole programs."""


def test_an_instruction_whose_shapes_agree_has_no_problem():
    assert shape_problem(ApplyUnits("weights", "x", "relu", "units"), LAYOUT) is None
    assert shape_problem(WipeSlots(("units",)), LAYOUT) is None
    assert shape_problem(ClipSlots(("weights",), 1.0, "one"), LAYOUT) is None


def test_a_problem_names_the_slot_and_both_shapes():
    problem = shape_problem(ApplyUnits("weights", "units", "relu", "units"), LAYOUT)
    assert problem == "'weights' has shape (2, 3), expected (2, 2)"


def test_scores_are_checked_at_examples_or_at_queries():
    predict = PredictMean("logistic", ("weights",), ("x",), 1.0, "somewhere", "units")
    expected = "checks scores where 'somewhere', expected is_example or is_query"
    assert shape_problem(predict, LAYOUT) == expected


def test_weights_multiply_inputs():
    weights = Layout((*LAYOUT.slots, Slot("w", (2,), Role.PARAMETER)))
    predict = PredictMean("logistic", ("w",), ("units",), 1.0, "is_query", "units")
    assert shape_problem(predict, weights) == "multiplies weights by 'units', which is no input"


def test_units_clip_something():
    clip = ClipByUnits((), 1.0, "clip")
    assert shape_problem(clip, LAYOUT) == "clips no slot, expected at least one"


def test_a_transform_has_rows():
    residual = Layout((*LAYOUT.slots, Slot("y", (1,), Role.RESIDUAL)))
    term = KernelTerm("rbf", (), 1.0, None)
    problem = shape_problem(DescendFunction((term,), 0.1, 0.0, None), residual)
    assert problem == "transforms 'x' by a matrix without rows"


def test_momentum_needs_a_velocity_as_wide_as_what_is_left():
    slots = (Slot("x", (2,), Role.INPUT), Slot("y", (1,), Role.RESIDUAL))
    term = KernelTerm("rbf", None, 1.0, None)
    step = DescendFunction((term,), 0.1, 0.0, None, momentum=0.5)
    alone = Layout(slots)
    assert shape_problem(step, alone) == "has momentum 0.5, but no slot for the velocity"
    step = replace(step, velocity="v")
    for shape, role, problem in (
        ((1,), Role.VELOCITY, None),
        ((1,), Role.SCRATCH, "keeps its last change in 'v', which is no velocity"),
        ((2,), Role.VELOCITY, "widths differ: y 1, v 2"),
    ):
        assert shape_problem(step, Layout((*slots, Slot("v", shape, role)))) == problem
