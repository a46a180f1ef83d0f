"""Ctrl-C between two steps: it is noticed when the step that is under way is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

IsStopped = Callable[[], bool]
"""Whether Ctrl-C was pressed since the block began."""


@contextmanager
def postponed_interrupt() -> Iterator[IsStopped]:
    """Let the first Ctrl-C only be noticed; a second one interrupts at once, as usual.

    Nothing changes in a thread, which receives no signals, and where the program has its own
    handler of Ctrl-C.
    """
    usual = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or usual is not signal.default_int_handler:
        yield lambda: False
        return
    stopped = threading.Event()

    def notice(*_: object) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, notice)
    try:
        yield stopped.is_set
    finally:
        signal.signal(signal.SIGINT, usual)
