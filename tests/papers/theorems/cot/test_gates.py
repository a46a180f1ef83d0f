"""The shifts of the gates on the four types of input."""

from icgd_papers.theorems.cot.gates import PRINTED, RIGHT, TAGS


def shifts(gates) -> dict[str, list[float]]:
    return {own: [gate(*tags) for tags in TAGS.values()] for own, gate in gates.items()}


def test_corrected_gates_are_0_on_their_own_type_and_at_most_minus_1_on_others():
    assert shifts(RIGHT) == {
        "forward": [0, -2, -3, -2],
        "backward": [-1, 0, -1, -2 - 1],
        "x": [-3, -1, 0, -1],
        "y": [-2, -2, -1, 0],
    }


def test_printed_gates_open_for_other_types():
    found = shifts(PRINTED)
    assert found["backward"][0] == 0  # on the forward type
    assert found["x"] == [-2, 0, 1, 0]  # open on backward and y types, beyond open on its own
