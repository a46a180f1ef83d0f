"""What surrounds a computation: the memory it may take, torch's modes, and the user's own line.

Work asks for memory before it begins; it may take a share of the tightest limit known.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from icgd.errors import SizeError

if sys.platform != "win32":
    import resource

MEMORY_SHARE = 0.6
"""The part of the memory that one thing may take; the rest is for all others."""

SURELY_FREE = 2**24
"""Requests below this size are not checked."""


@dataclass(frozen=True)
class Memory:
    """A number of bytes, and the limit that it comes from, in words."""

    n_bytes: int
    limit: str


def require_memory(what: str, n_bytes: int, remedy: str) -> None:
    """Raise `SizeError` if `what` takes more than may be used; `remedy` says what to do."""
    if n_bytes < SURELY_FREE:  # most calls: reading the limits takes longer than the work
        return
    room = usable_memory()
    if n_bytes > room.n_bytes:
        raise SizeError(
            f"{what} takes about {n_bytes / 2**30:,.1f} GiB; {room.n_bytes / 2**30:,.1f} GiB "
            f"may be used, {room.limit}. {remedy}"
        )


def usable_memory(root: Path = Path("/")) -> Memory:
    """Return the memory that may be used; there is no bound if the system tells of no limit.

    `root` is the folder that holds `proc` and `sys`, which only Linux has.
    """
    known = list(_limits(root))
    tightest = min(known, key=lambda memory: memory.n_bytes, default=Memory(sys.maxsize, "memory"))
    return Memory(int(MEMORY_SHARE * tightest.n_bytes), f"{MEMORY_SHARE:.0%} of {tightest.limit}")


def _limits(root: Path) -> Iterator[Memory]:
    """All limits that the system tells of."""
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Memory(n_bytes, "the machine's memory")

    # Linux counts here what is free, and what it would give back when asked.
    kibibytes = _number_after("MemAvailable:", _text(root / "proc/meminfo"))
    if kibibytes is not None:
        yield Memory(1024 * kibibytes, "the memory that is free now")

    yield from _left_in_container(root)

    if sys.platform != "win32":  # what `ulimit -v` leaves of the addresses of this process
        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = _number_after("", _text(root / "proc/self/statm"))
        if most != resource.RLIM_INFINITY and pages is not None:
            left = max(0, most - pages * resource.getpagesize())
            yield Memory(left, "what the limit on this process leaves")


_VERSION_1 = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file ",
)
_VERSION_2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ")


def _left_in_container(root: Path) -> Iterator[Memory]:
    """Yield the memory that is left to this process's control group and to all groups around it.

    Inactive pages of files count as left: they are given back when memory is short.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, limit, usage, cache = _VERSION_1 if controllers else _VERSION_2
        place = root / top / group.lstrip("/")
        for folder in (place, *place.parents):
            most, taken = (_number_after("", _text(folder / name)) for name in (limit, usage))
            if most is not None and taken is not None:
                given_back = _number_after(cache, _text(folder / "memory.stat")) or 0
                left = max(0, most - taken + given_back)
                yield Memory(left, "what the container's limit leaves")


def _text(path: Path) -> str:
    """Return the text of a file, which is empty if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _number_after(name: str, text: str) -> int | None:
    """Return the whole number in the first line that starts with `name`, if there is one."""
    found = re.search(rf"^{re.escape(name)}\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


DEVICES = ("cpu", "cuda", "mps", "xpu")
"""The kinds of devices whose autocast is switched off."""


@contextmanager
def own_modes(*, exact_products: bool = True) -> Iterator[None]:
    """Compute in the precision of the data, with new tensors on the processor.

    Modes of torch that a caller has set must not change what icgd computes. Autocast, or a lower
    precision of products (`torch.set_float32_matmul_precision`), would round float32 to bfloat16
    unnoticed. Training keeps the latter, which speeds it up on purpose: `exact_products=False`. A
    default device would mix devices, and what icgd caches inside a caller's inference mode could
    not be used outside of it.
    """
    with ExitStack() as modes:
        for device in filter(torch.is_autocast_enabled, DEVICES):
            modes.enter_context(torch.autocast(device, enabled=False))
        if exact_products:
            try:
                precision = torch.get_float32_matmul_precision()
            except RuntimeError:  # set for each library by torch.backends: left as it is
                precision = "highest"
            if precision != "highest":
                modes.callback(torch.set_float32_matmul_precision, precision)
                torch.set_float32_matmul_precision("highest")
        if torch.empty(0).device.type != "cpu":  # a quarter of what get_default_device takes
            modes.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        yield


INNER = ("icgd", "contextlib")
"""The package, and what its context managers put around a function."""


def warn(warning: Warning) -> None:
    """Issue a warning at the line outside icgd that led here.

    In Python 3.12 this is `skip_file_prefixes` of `warnings.warn`.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, so that sums have one order, or because jobs are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
