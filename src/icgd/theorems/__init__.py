"""The theorem book: every numbered statement of the papers, with a check that computes its verdict."""
