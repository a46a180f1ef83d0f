from icgd.program.instructions import LayerKind
from icgd.program.layout import Layout, Role, Slot
from icgd.program.linear_instructions import MoveByVelocity, ShrinkMoved
from icgd.program.shape_rules import shape_problem

SLOTS = (Slot("w", (1, 2), Role.PARAMETER), Slot("v", (1, 2), Role.VELOCITY))


def test_weights_move_by_some_of_their_velocity():
    plain = MoveByVelocity("w", "v", 0.5, 0.0, 0.0)
    assert plain.formula() == "v = 0.5 v; w += v"
    ahead = MoveByVelocity("w", "v", 0.5, 0.5, 0.1)
    assert ahead.kept == 0.45
    assert ahead.formula() == "v = 0.45 v - 0.1 w; w += v"
    assert ahead.writes() == ("w", "v")
    assert set(ahead.reads()) == {"w", "v", "one"}
    assert ahead.kind is LayerKind.GRID


def test_what_is_shrunk_and_clipped_changes_the_velocity_too():
    both = ShrinkMoved("w", "v", 0.25, 2.0)
    assert both.formula() == "shrink w by 0.25, clip w to [-2, 2]; v likewise"
    assert both.pieces() == ((0.0, 1.0), (0.25, -1.0), (2.25, 1.0))
    clip = ShrinkMoved("w", "v", 0.0, 2.0)
    assert clip.formula() == "clip w to [-2, 2]; v likewise"
    assert clip.pieces() == ((2.0, 1.0),)
    assert clip.kind is LayerKind.MLP


def test_a_velocity_is_as_its_weights_are():
    layout = Layout((*SLOTS, Slot("u", (2, 1), Role.VELOCITY), Slot("s", (1, 2), Role.SCRATCH)))
    assert shape_problem(MoveByVelocity("w", "v", 0.5, 0.0, 0.0), layout) is None
    problem = shape_problem(MoveByVelocity("w", "u", 0.5, 0.0, 0.0), layout)
    assert problem == "'u' has shape (2, 1), expected (1, 2)"
    problem = shape_problem(ShrinkMoved("w", "s", 0.0, 2.0), layout)
    assert problem == "keeps its last change in 's', which is no velocity"
    assert shape_problem(ShrinkMoved("w", "v", -1.0, 2.0), layout) == "shrinks by less than 0"
