"""Functions by sums of activations, with a certified error."""
