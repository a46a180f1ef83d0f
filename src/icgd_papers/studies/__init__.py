"""Studies that no paper has."""
