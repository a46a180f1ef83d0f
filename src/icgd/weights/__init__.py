"""From instructions to layers with numbers in them."""
