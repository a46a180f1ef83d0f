"""Optimisers: what a training step makes of weights, their gradient and what is remembered."""
