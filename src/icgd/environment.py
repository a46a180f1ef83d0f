"""Memory limits, torch's modes and threads, and warnings that point at the user's line.

Large computations check their memory before they start, against a share of the tightest limit that
the system reports.
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
"""The share of the available memory that one computation may take."""

SURELY_FREE = 2**24
"""Requests below this size are not checked."""


@dataclass(frozen=True)
class Memory:
    """A number of bytes, and a description of the limit it comes from."""

    n_bytes: int
    limit: str


def require_memory(what: str, n_bytes: int, remedy: str) -> None:
    """Raise `SizeError` if `what` needs more than may be used; `remedy` says what to do."""
    if n_bytes < SURELY_FREE:  # reading the limits would take longer than most computations
        return
    usable = usable_memory()
    if n_bytes > usable.n_bytes:
        raise SizeError(
            f"{what} takes about {n_bytes / 2**30:,.1f} GiB; {usable.n_bytes / 2**30:,.1f} GiB "
            f"may be used, {usable.limit}. {remedy}"
        )


def usable_memory(root: Path = Path("/")) -> Memory:
    """Return the memory that may be used, unbounded if the system reports no limit.

    `root` is the folder that holds `proc` and `sys`, which only Linux has.
    """
    unlimited = Memory(sys.maxsize, "memory")
    tightest = min(_limits(root), key=lambda memory: memory.n_bytes, default=unlimited)
    return Memory(int(MEMORY_SHARE * tightest.n_bytes), f"{MEMORY_SHARE:.0%} of {tightest.limit}")


def _limits(root: Path) -> Iterator[Memory]:
    """Yield all limits that the system reports."""
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Memory(n_bytes, "the machine's memory")

    # MemAvailable counts free memory and caches that Linux would reclaim.
    kibibytes = _number_after("MemAvailable:", _text(root / "proc/meminfo"))
    if kibibytes is not None:
        yield Memory(1024 * kibibytes, "the memory that is free now")

    yield from _left_in_container(root)

    if sys.platform != "win32":  # `ulimit -v` limits the address space of this process
        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = _number_after("", _text(root / "proc/self/statm"))
        if most != resource.RLIM_INFINITY and pages is not None:
            left = max(0, most - pages * resource.getpagesize())
            yield Memory(left, "the memory left under this process's limit")


_VERSION_1 = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file ",
)
_VERSION_2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ")


def _left_in_container(root: Path) -> Iterator[Memory]:
    """Yield the memory left to this process's control group and to each of its parent groups.

    Inactive file pages count as free, because the kernel reclaims them when memory is short.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, limit, usage, cache = _VERSION_1 if controllers else _VERSION_2
        innermost = root / top / group.lstrip("/")
        for folder in (innermost, *innermost.parents):
            most, taken = (_number_after("", _text(folder / name)) for name in (limit, usage))
            if most is not None and taken is not None:
                reclaimable = _number_after(cache, _text(folder / "memory.stat")) or 0
                left = max(0, most - taken + reclaimable)
                yield Memory(left, "the memory left under the container's limit")


def _text(path: Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _number_after(name: str, text: str) -> int | None:
    """Return the integer after `name` in the first line that starts with it, or None."""
    match = re.search(rf"^{re.escape(name)}\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


DEVICES = ("cpu", "cuda", "mps", "xpu")
"""The device types for which autocast is switched off."""


@contextmanager
def own_modes(*, exact_products: bool = True) -> Iterator[None]:
    """Compute in the precision of the data and on the CPU, whatever modes of torch are set.

    A caller's modes must not change icgd's results. Autocast or a lower matmul precision
    (`torch.set_float32_matmul_precision`) would silently round float32 to bfloat16; training keeps
    the latter, which speeds it up on purpose, with `exact_products=False`. A default device would
    mix devices, and tensors cached in a caller's inference mode could not be used outside of it.
    """
    with ExitStack() as modes:
        for device in filter(torch.is_autocast_enabled, DEVICES):
            modes.enter_context(torch.autocast(device, enabled=False))
        if exact_products:
            try:
                precision = torch.get_float32_matmul_precision()
            except RuntimeError:  # set per library in torch.backends, so there is no single value
                precision = "highest"
            if precision != "highest":
                modes.callback(torch.set_float32_matmul_precision, precision)
                torch.set_float32_matmul_precision("highest")
        if torch.empty(0).device.type != "cpu":  # four times faster than get_default_device
            modes.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        yield


INNER = ("icgd", "contextlib")
"""Modules whose stack frames `warn` skips: icgd, and the frames of its context managers."""


def warn(warning: Warning) -> None:
    """Issue a warning that points at the line outside icgd that led here.

    Python 3.12 has `skip_file_prefixes` of `warnings.warn` for this.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: sums then have one order, and small jobs no overhead."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
