from dataclasses import replace

import pytest

from icgd.errors import ProgramError
from icgd.program.check import Shapes
from icgd.program.instructions import LayerKind
from icgd.program.layout import Layout, Role, Slot
from icgd.program.linear_instructions import MoveByVelocity, ShrinkMoved, ShrinkSlot

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
    more = (("u", (2, 1), Role.VELOCITY), ("s", (1, 2), Role.SCRATCH), ("one", (1,), Role.CONSTANT))
    shapes = Shapes(Layout((*SLOTS, *(Slot(*slot) for slot in more))), is_chain=False)
    assert shapes.problem_with(MoveByVelocity("w", "v", 0.5, 0.0, 0.0)) is None
    for move in (MoveByVelocity("w", "u", 0.5, 0.0, 0.0), ShrinkMoved("w", "u", 0.0, 2.0)):
        problem = shapes.problem_with(move)
        assert problem is not None
        assert problem.endswith(" with w (1, 2), u (2, 1), one (1)")
    # What tokens hold each for themselves is no velocity of weights that they share.
    assert shapes.problem_with(ShrinkMoved("w", "s", 0.0, 2.0)) is not None


@pytest.mark.parametrize("verb", [ShrinkSlot("w", 1.0, 2.0), ShrinkMoved("w", "v", 1.0, 2.0)])
def test_nothing_is_shrunk_by_less_than_nothing(verb):
    with pytest.raises(ProgramError, match=f"{type(verb).__name__}: shrinks w by -1"):
        replace(verb, threshold=-1.0)
