"""Compiled transformers in other tools: one module per tool, each with its own extra."""
