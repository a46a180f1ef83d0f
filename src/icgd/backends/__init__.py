"""Running a program: the dense transformer and its fused twin."""
