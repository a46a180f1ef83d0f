"""The statements of cot."""
