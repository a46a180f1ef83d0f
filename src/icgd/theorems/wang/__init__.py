"""The statements of wang."""
