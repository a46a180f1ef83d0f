"""The papers beside the library: their figures, studies beyond them, a theorem book, training."""
