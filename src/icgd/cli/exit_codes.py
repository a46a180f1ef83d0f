"""The exit codes of `icgd` beside 0 and 1."""

WRONG_INPUT = 2
"""The input cannot be used; the same code as for a wrong option."""

INTERRUPTED = 130
"""Ctrl-C stopped it: 128 plus the number of the signal, as in a shell."""
