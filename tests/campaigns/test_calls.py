"""Every public callable, with one argument replaced by each of about 200 kinds of values."""

from functools import partial

from tests.campaigns.outcomes import Campaign, both_sizes, of_process

CAMPAIGN = Campaign(
    name="calls",
    title="Every public callable with wrong values, one argument at a time",
    sample=1000,
    whole=1_000_000,
    allowed={
        "done": "the value is right, or one of those that the argument may have",
        "refused": "an error of icgd names the argument",
        "refused in other words": "an error of icgd names what follows from the argument",
        "raised by what was given": "a callback of the caller raises, and icgd lets it through",
    },
    cases=partial(of_process, "tests.campaigns.calls"),
)


@both_sizes
def test_wrong_values_are_refused_by_errors_of_icgd(whole):
    CAMPAIGN.carry_out(whole=whole)
