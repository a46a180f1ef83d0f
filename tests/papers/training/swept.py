"""Functions to sweep over. A worker imports this module, so that it holds next to nothing."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch


def threads_and_square(number: int) -> tuple[int, int]:
    return torch.get_num_threads(), number**2


def reciprocal(number: int) -> float:
    return 1 / number


def counted(number: int, report: Callable[[int], None]) -> int:
    """Report 1, 2, ..., number."""
    for done in range(1, number + 1):
        report(done)
    return number


def waits(folder: Path, report: Callable[[int], None]) -> None:
    """Report this process's number, and wait until Ctrl-C, which is written down."""
    try:
        report(os.getpid())
        time.sleep(60)
    except KeyboardInterrupt:
        (folder / f"interrupted-{os.getpid()}").touch()
        raise


def is_killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class TwoPartError(Exception):
    """Can be sent, but not received: its copy is made with one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def fails_oddly(_: int) -> None:
    raise TwoPartError("two", "parts")


def raises(problem: type[BaseException]) -> None:
    raise problem
