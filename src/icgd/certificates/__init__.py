"""Proofs and measurements of how close a run comes."""
