"""Worker processes that take one job after another, report on it, and end with their parent.

A worker ends within moments if its parent is gone, even if that was killed, and even if the worker
is still importing: Linux kills it. Elsewhere it watches a pipe once it has begun. Ctrl-C reaches
the parent alone, which then stops its workers: each has `GRACE` seconds to save what it has.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker, spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Lock, Thread, get_ident
from time import monotonic
from traceback import format_exception
from types import FrameType
from typing import Any

import torch

from icgd.errors import WorkerError

GRACE = 2.0
"""The seconds that workers have to end by themselves."""

END_WITH_PARENT = """
import ctypes, os
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != {parent}:  # it was gone before
    os._exit(1)
"""
"""What a worker runs before anything else on Linux. It imports nothing that takes time."""

_STARTING = Lock()
"""Held while a process is started: one thread at a time changes how that is done."""

Report = Callable[[Any], None]
"""A function by which a job tells how far it is, in any value that can be sent."""

Job = Callable[[Any, Report], Any]
"""A function of a configuration and of a way to report."""


@dataclass(frozen=True)
class News:
    """What a worker sends. `kind` is "report", "result" or "failure"; `value` belongs to it."""

    index: int
    kind: str
    value: Any


@contextmanager
def working(job: Job, configurations: Sequence[Any], n_workers: int) -> Iterator[Iterator[News]]:
    """News of the jobs as they come, from `n_workers` processes that end with the block.

    Processes are spawned, not forked: a fork of a process with torch's threads may hang.
    """
    workers: list[_Worker] = []
    try:
        with _without_interrupts():
            for _ in configurations[:n_workers]:
                workers.append(_Worker.started(job))
        yield _news(workers, configurations)
    finally:
        _end(workers)


def _news(workers: Sequence[_Worker], configurations: Sequence[Any]) -> Iterator[News]:
    """Give every worker a job, and a new one after each result."""
    waiting = iter(enumerate(configurations))
    busy = {worker.channel: worker for worker in workers if worker.takes(next(waiting, None))}
    while busy:
        for worker in _with_news(busy):
            news = worker.news()
            yield news
            if news.kind != "report" and not worker.takes(next(waiting, None)):
                del busy[worker.channel]


def _with_news(busy: Mapping[Connection, _Worker]) -> list[_Worker]:
    """The next workers that have something to tell: first those that got no configuration."""
    idle = [worker for worker in busy.values() if worker.unsent is not None]
    return idle or [busy[channel] for channel in wait(list(busy))]  # type: ignore[index]


@dataclass(eq=False)
class _Worker:
    """A process, and the parent's end of the pipe to it."""

    process: BaseProcess
    channel: Connection
    index: int = -1
    """The number of the configuration that it works on."""
    unsent: Exception | None = None
    """Why that configuration could not be sent."""

    @classmethod
    def started(cls, job: Job) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, job))
        with _bound_to_this_process():
            process.start()
        theirs.close()  # so that the pipe ends with the process
        return cls(process, ours)

    def takes(self, configuration: tuple[int, Any] | None) -> bool:
        """Send the next configuration, if there is one."""
        if configuration is None:
            return False
        self.index, content = configuration
        try:
            with suppress(OSError):  # the process is gone, which its news will tell
                self.channel.send(content)
        except Exception as problem:  # what cannot be sent raises whatever its class likes
            self.unsent = problem
        return True

    def news(self) -> News:
        """What the process sent, or that it has ended, or that it got no configuration."""
        if self.unsent is not None:
            problem, self.unsent = self.unsent, None
            return News(self.index, "failure", problem)
        try:
            return News(self.index, *self.channel.recv())
        except (EOFError, OSError):
            self.process.join(GRACE)
            ended = WorkerError(
                f"A worker's process ended with exit code {self.process.exitcode}; -9 often means "
                "that memory ran out. Use fewer workers."
            )
            return News(self.index, "failure", ended)
        except Exception as problem:  # an exception that cannot be sent
            return News(self.index, "failure", problem)


def _end(workers: Sequence[_Worker]) -> None:
    """End the processes: they are asked, and after the time of grace they are killed."""
    deadline = monotonic() + GRACE
    try:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(max(0.0, deadline - monotonic()))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.channel.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach; the parent hears of it after the block.

    A process inherits which signals are held back. The tracker is started first, because it lets
    them through again.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _bound_to_this_process() -> Iterator[None]:
    """Let the commands of spawned processes begin with `END_WITH_PARENT`.

    A process that is spawned first imports what its parent has, which takes seconds, and only then
    what it is to run. The command is the one place before that. Processes that other threads spawn
    meanwhile are not ours to end.
    """
    if sys.platform != "linux":
        yield
        return
    ours = get_ident()
    with _STARTING:
        plain = spawn.get_command_line

        def command(**handles: Any) -> list[Any]:
            found = plain(**handles)
            return _bound(found) if get_ident() == ours else found

        spawn.get_command_line = command
        try:
            yield
        finally:
            spawn.get_command_line = plain


def _bound(command: Sequence[str | bytes]) -> list[str]:
    """The command of a Python process; that of a frozen program, which has no -c, as it is.

    The path of Python itself comes as bytes, as the system has it.
    """
    parts = list(map(os.fsdecode, command))
    if "-c" in parts:
        code = parts.index("-c") + 1
        parts[code] = END_WITH_PARENT.format(parent=os.getpid()) + parts[code]
    return parts


def _work(channel: Connection, job: Job) -> None:
    """Do jobs until the pipe ends; this is what a worker runs.

    The process then ends at once: to take Python and torch down in order would take a second.
    """
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        while True:
            _answer(channel, job, channel.recv())
    except (EOFError, OSError, KeyboardInterrupt):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _answer(channel: Connection, job: Job, configuration: Any) -> None:
    """Send the job's result, or the exception that it raised, with its traceback as a note."""
    try:
        result = job(configuration, lambda value: channel.send(("report", value)))
        channel.send(("result", result))
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt) and _is_to_end():
            raise
        text = "".join(format_exception(problem))
        problem.add_note(text)
        try:
            channel.send(("failure", problem))
        except (AttributeError, TypeError, ValueError):  # it holds what cannot be sent
            channel.send(("failure", RuntimeError(text)))


def _is_to_end() -> bool:
    """Whether the parent, or on Windows the user, has interrupted this process."""
    is_asked = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    return is_asked or not hasattr(signal, "pthread_sigmask")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do once what Ctrl-C would do here."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)


def _end_with_parent() -> None:
    """End this process at once when its parent has ended, however that came about."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
