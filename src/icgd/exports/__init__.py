"""Compiled transformers in other tools: one tool a file, each an extra of its own."""
