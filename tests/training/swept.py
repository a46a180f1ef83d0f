"""Functions to sweep over. A worker imports this module, so that it holds next to nothing."""

import torch


def threads_and_square(number: int) -> tuple[int, int]:
    return torch.get_num_threads(), number**2


def reciprocal(number: int) -> float:
    return 1 / number
