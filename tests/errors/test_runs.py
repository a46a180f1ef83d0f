import pytest

from icgd.errors import runs
from icgd.errors.runs import InterruptedRunError, OverflowedRunError, ProofError
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(OverflowedRunError.of_reference),
        "Real training leaves the range of float64 on these data, so that there is nothing to "
        "compare the run with. Rescale the data, or use a smaller step size.",
    ),
    (
        made(OverflowedRunError.never_falls, 0.25),
        "The loss is larger after the run than before it, even with step_size=0.25. Look for "
        "examples that are far larger than all others, or take fewer steps.",
    ),
    (
        made(OverflowedRunError.beyond_grid, "z", 8, "forward 2 of round 2", 5000.5, 4096.0),
        "Row z of block 8 (forward 2 of round 2) reaches 5000.5, but the grid that its heads read "
        "ends at 4096. Use a smaller step size, box or domain.",
    ),
    (
        made(InterruptedRunError.after, 3, 20, "the run"),
        "The run was interrupted after 3 of 20 steps. The weights so far are in the error's "
        "`partial.parameters`; go on with initial=...[-1].",
    ),
    (
        made(InterruptedRunError.after, 2, 5, None, 3, can_go_on=False),
        "The run was interrupted after 2 of 5 steps. The weights so far are in the error's "
        "`partial.parameters`; no run goes on from there, because a run starts with the first of "
        "its steps.",
    ),
    (
        made(InterruptedRunError.after, 3, 20, "the run", 6),
        "The run was interrupted after 3 of 20 steps. The weights so far are in the error's "
        "`partial.parameters`; go on with initial=...[-1] and with the examples from number 6 "
        "(counted from 0) first.",
    ),
    (
        made(InterruptedRunError.of_tasks, 3, 20, True, "the runs"),
        "The run was interrupted: the whole runs of the first 3 of 20 tasks are in the error's "
        "`partial`. Run the other tasks again.",
    ),
    (
        made(OverflowedRunError.beyond_gates, "momentum", 3, 2e20, 2.0**64),
        "The momentum of a weight is 2e+20 after 3 rounds, but the gates of the block close no "
        "more than 1.84467e+19. Use a smaller step size or momentum, or start from a smaller "
        "state.",
    ),
    (
        made(OverflowedRunError.beyond_root, 1, 999.153, 25.0489),
        "Step 1 divides by the root of 999.153, but the transformer was made for roots of up to "
        "25.0489, which no run that starts from 0 leaves. Give initial with a smaller second "
        "moment, or without one.",
    ),
    (
        made(OverflowedRunError.beyond_scores, "step 3, example", 4, -7.25, 6.5),
        "The score <w, x> at step 3, example 4 (counted from 0) is -7.25, but the heads are made "
        "for scores up to 6.5. Compile with a larger Domain(score=...), or use a smaller step size "
        "or box.",
    ),
    (
        made(ProofError.no_steps),
        "The run has no steps, so there is nothing to certify. Compile at least one step.",
    ),
    (
        made(ProofError.unbounded, 7, 65536),
        "Nothing can be proved of step 7: 65536 bits enclose exact descent by no finite interval. "
        "Certify fewer steps, or take a smaller step size.",
    ),
    (
        made(ProofError.no_chain, "3-6-3 gelu network, shortcut 0 to 2, layer norm in 2"),
        "icgd-check knows no shortcuts and layer norms, and no proof of a 3-6-3 gelu network, "
        "shortcut 0 to 2, layer norm in 2. Leave out `rigorous` or `certify`; bounds of single "
        "steps and of the run hold without it.",
    ),
    (
        made(ProofError.rated),
        "icgd-check knows no rates of examples. Leave out `rigorous` or `certify`; bounds of "
        "single steps and of the run hold without it.",
    ),
    (
        made(ProofError.unknown_update, "Adam steps (0.9, 0.999, eps 0.001) of 0.1, box 4"),
        "icgd-check knows plain gradient steps of one size, and no proof of Adam steps (0.9, "
        "0.999, eps 0.001) of 0.1, box 4. Leave out `rigorous` or `certify`; bounds of single "
        "steps and of the run hold without it.",
    ),
    (
        made(ProofError.refused, "it needs 400000000 balls at once, too many"),
        "icgd-check would refuse a proof of this run: it needs 400000000 balls at once, too many. "
        "Take fewer examples, or a narrower network.",
    ),
    (
        made(OverflowedRunError.of, "float32", 0.5),
        "The run leaves the range of float32: step_size=0.5 is too large for these data. Use a "
        "smaller step size.",
    ),
    (
        made(OverflowedRunError.of, "float32"),
        "The run leaves the range of float32: a step is too large for these data. Use a "
        "smaller step size.",
    ),
    (
        made(OverflowedRunError.by_transforms, "float64", 2.5),
        "The run leaves the range of float64: transforms with entries of up to 2.5 are too large "
        "for these data, as they let the inputs grow with every step. Use smaller transforms.",
    ),
    (
        made(OverflowedRunError.constant, "gate", 1e40, "float32"),
        "The program's gate is 1e+40, outside the range of float32. "
        "Run in float64, or change the problem.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(runs)
