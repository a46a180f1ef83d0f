"""What the exit codes of `icgd` mean, beside 0 and 1."""

WRONG_INPUT = 2
"""Input that cannot be used, the same as for a wrong option."""

INTERRUPTED = 130
"""What Ctrl-C has stopped: 128 and the signal's number, as in a shell."""
