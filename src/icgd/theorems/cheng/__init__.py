"""The statements of cheng."""
