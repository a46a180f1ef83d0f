"""What is trained: targets, losses, updates, data, and the exact algorithm."""
