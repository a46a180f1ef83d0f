"""The real training algorithms in float64, one file for each kind of target."""
