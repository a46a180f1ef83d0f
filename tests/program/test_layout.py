import pytest

from icgd.errors import LayoutError
from icgd.program.layout import Layout, Role, Slot

LAYOUT = Layout(
    (
        Slot("x", (3,), Role.INPUT),
        Slot("weights_1", (2, 3), Role.PARAMETER),
        Slot("units_1", (2,), Role.SCRATCH),
        Slot("weights_2", (1, 2), Role.PARAMETER),
        Slot("one", (1,), Role.CONSTANT),
    )
)


def test_a_matrix_slot_is_as_wide_as_its_entries_are_many():
    assert [slot.width for slot in LAYOUT.slots] == [3, 6, 2, 2, 1]


def test_the_stream_is_as_wide_as_all_slots_together():
    assert LAYOUT.width == 14


def test_widths_of_several_slots_add_up():
    assert LAYOUT.width_of("weights_1") == 6
    assert LAYOUT.width_of("x", "weights_2", "one") == 6
    assert LAYOUT.width_of() == 0


def test_slots_lie_one_after_the_other_in_their_order():
    ranges = [LAYOUT.range_of(name) for name in LAYOUT.names]
    assert LAYOUT.names == ("x", "weights_1", "units_1", "weights_2", "one")
    assert ranges == [slice(0, 3), slice(3, 9), slice(9, 11), slice(11, 13), slice(13, 14)]


def test_slots_are_found_by_name_and_by_role():
    assert LAYOUT.slot("units_1") == Slot("units_1", (2,), Role.SCRATCH)
    assert [slot.name for slot in LAYOUT.having(Role.PARAMETER)] == ["weights_1", "weights_2"]
    assert LAYOUT.having(Role.LABEL) == ()


@pytest.mark.parametrize("look_up", [LAYOUT.slot, LAYOUT.range_of, LAYOUT.width_of])
def test_an_unknown_name_lists_the_known_ones_and_suggests_the_nearest(look_up):
    with pytest.raises(LayoutError) as caught:
        look_up("weight_1")
    assert str(caught.value) == (
        "Layout has no slot 'weight_1'; it has x, weights_1, units_1, weights_2, one. "
        "Did you mean 'weights_1'?"
    )


def test_a_name_may_occur_only_once():
    with pytest.raises(LayoutError, match=r"^Layout names slot 'x' twice; slot names must be un"):
        Layout((*LAYOUT.slots, Slot("x", (1,), Role.SCRATCH)))


def test_a_role_says_in_words_what_it_is_for():
    assert Role.SCRATCH.value == "intermediate result, zero at the start and the end of every step"
