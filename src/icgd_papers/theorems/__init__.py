"""The theorem book: the numbered statements of the papers, each with a check and a verdict."""
