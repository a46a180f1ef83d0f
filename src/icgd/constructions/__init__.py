"""One theorem a file: from a problem to a program."""
