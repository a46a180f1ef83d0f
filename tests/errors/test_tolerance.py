import pytest

from icgd.errors import tolerance
from icgd.errors.tolerance import ToleranceError
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(ToleranceError.of_estimates, "tolerance=1e-06", ("mine",)),
        "tolerance=1e-06 cannot be proved: no Lipschitz constant was stated of the kernel 'mine'. "
        "Register it with icgd.register_kernel(..., lipschitz=...).",
    ),
    (
        made(ToleranceError.no_room, "tolerance=1e-06", "relu-stack", 12345.0),
        "tolerance=1e-06 takes relu-stack more than 12,345 weights.",
    ),
    (
        made(
            ToleranceError.by_all,
            "tolerance=1e-06 of the predictions",
            {"relu-stack": ValueError("a."), "recursion": "b."},
        ),
        "tolerance=1e-06 of the predictions cannot be proved by any construction that serves this "
        "problem. relu-stack: a. recursion: b.",
    ),
    (
        made(
            ToleranceError.unreachable,
            "tolerance=1e-09",
            0.0012345,
            "4096 pieces",
            "Rounding is larger.",
        ),
        "tolerance=1e-09 cannot be proved: the smallest bound is 0.00123, with 4096 pieces. "
        "Rounding is larger.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(tolerance)
