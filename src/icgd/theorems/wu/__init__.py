"""The statements of wu."""
