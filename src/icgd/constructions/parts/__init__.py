"""Sub-programs that constructions share."""
