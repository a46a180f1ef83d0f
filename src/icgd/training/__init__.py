"""Learnt models: data, the training loop, and measures of what training found."""
