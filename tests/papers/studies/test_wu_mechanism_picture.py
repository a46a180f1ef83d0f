"""The words follow from the numbers: all seeds have to agree."""

import pytest

from icgd_papers.studies.wu_mechanism_picture import conclusions, draw, last_stages, summary_lines

STEPS = (0, 1, 10)


def rows(learnt=(0.5, 0.1), ridge=(0.4, 0.2), arc_cosine=0.3, untrained=0.6, near="descent"):
    """Two seeds; a predictor of distance D is nearest to 10 steps if D < 0.3, or else to 1 step."""
    stages = {
        "learnt block": learnt,
        "untrained block": (untrained,),
        "ridge": ridge,
        "label mean": (0.7,),
        "arc-cosine": (arc_cosine,),
        "descent, other start": (0.8, 0.02),
    }
    return [
        {
            **{"attention": "relu", "seed": seed, "predictor": name, "stage": stage},
            **{"descent_steps": steps, "distance": distance + 0.1 * abs(steps - best)},
            **{"is_nearest": steps == best, "r_squared": 1 - distance, "error_cosine": 0.5},
            **{f"to_{other}": 0.0 if other == near else 1.0 for other in REFERENCES},
        }
        for seed in (0, 1)
        for name, distances in stages.items()
        for stage, distance in enumerate(distances, start=1)
        for best in (10 if distance < 0.3 else 1,)
        for steps in STEPS
    ]


REFERENCES = ("label mean", "ridge", "arc-cosine")


def test_what_is_nearer_than_every_control_is_said_to_be_so():
    first, second, third = conclusions(rows())
    assert first == "The last block is nearer to descent than every control."
    assert second == "Nearest to the last block: descent."
    assert third == (
        "The number of nearest steps rises from the first block to the last. So does ridge "
        "regression as its penalty falls."
    )


def test_a_control_that_is_nearer_leaves_no_sign_of_descent():
    first, second, third = conclusions(rows(learnt=(0.25, 0.25), near="arc-cosine"))
    assert first == "The last block is not nearer to descent than ridge: no sign of descent."
    assert second == "Nearest to the last block: arc-cosine."
    assert third == "The number of nearest steps does not rise from block to block."


def test_seeds_that_disagree_are_said_to():
    mixed = [
        {**row, "to_ridge": 0.0} if row["seed"] == 1 else row for row in rows(near="arc-cosine")
    ]
    mixed = [{**row, "to_arc-cosine": 1.0} if row["seed"] == 1 else row for row in mixed]
    assert conclusions(mixed)[1] == ("Nearest to the last block: no one reference for all seeds.")


def test_a_control_must_be_farther_for_every_seed():
    close = [
        {**row, "distance": 0.01} if row["seed"] == 1 and row["predictor"] == "arc-cosine" else row
        for row in rows()
    ]
    assert "not nearer to descent than arc-cosine" in conclusions(close)[0]


def test_the_last_stage_is_that_of_the_largest_number():
    assert {(row["predictor"], row["stage"]) for row in last_stages(rows())} >= {
        ("learnt block", 2),
        ("ridge", 2),
        ("label mean", 1),
    }
    assert ("learnt block", 1) not in {(r["predictor"], r["stage"]) for r in last_stages(rows())}


def test_the_summary_has_means_at_the_nearest_steps():
    lines = {(line[1], line[2]): line for line in summary_lines(rows()).rows}
    assert lines["learnt block", "2"] == (
        *("relu", "learnt block", "2", "0.900", "10 (10 to 10)", "0.1000", "0.50"),
        *("1.0000", "1.0000", "1.0000"),
    )
    assert ("descent, other start", "1") not in lines
    assert lines["descent, other start", "2"][5] == "0.0200"


def test_each_panel_stands_below_its_sentence():
    axes = draw(rows()).axes
    assert len(axes) == 3
    titles = [ax.get_title(loc="left").replace("\n", " ") for ax in axes]
    assert titles == [f"relu: {sentence}" for sentence in conclusions(rows())]
    learnt = axes[0].lines[1]  # after the first block, which is faint
    assert learnt.get_ydata().tolist() == pytest.approx([0.1 + 1.0, 0.1 + 0.9, 0.1])
