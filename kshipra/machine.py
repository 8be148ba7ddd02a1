"""What this process may use: cores, memory and its own resident bytes, containers' limits included. No
torch."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import psutil

CGROUP = Path("/sys/fs/cgroup")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PACKAGES = ("torch", "transformers", "gradio")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def quota_cores(cgroup: Path = CGROUP) -> int | None:
    """Whole cores of the container's CPU quota (cgroup v2, then v1), at least 1; None without a quota."""
    if (limit := _read(cgroup / "cpu.max")) is not None:
        quota, _, period = limit.partition(" ")
    else:
        quota = _read(cgroup / "cpu" / "cpu.cfs_quota_us") or "-1"
        period = _read(cgroup / "cpu" / "cpu.cfs_period_us") or "100000"
    if quota in ("max", "-1"):
        return None
    return max(1, int(quota) // int(period or 100_000))


def threads(cgroup: Path = CGROUP) -> int:
    """Cores that this process may really use: the least of its affinity and the container's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affinity, quota_cores(cgroup) or affinity)


def memory_bytes(cgroup: Path = CGROUP) -> int:
    """The lesser of the machine's memory and the container's limit."""
    total = psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _read(cgroup / name)
        if limit and limit.isdigit():
            total = min(total, int(limit))
    return total


def processor() -> str:
    """The processor's name as the system gives it."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def caches(folder: Path = CACHES) -> dict[str, str]:
    """The first core's caches as Linux gives them: {"L1 data": "48K", "L2 unified": "2048K", ...}; empty
    elsewhere."""
    found = {}
    for cache in sorted(folder.glob("index*")):
        level, kind, size = (_read(cache / name) for name in ("level", "type", "size"))
        if level and kind and size:
            found[f"L{level} {kind.lower()}"] = size
    return found


def describe() -> dict[str, Any]:
    """What numbers taken here depend on: processor, cores, caches, memory, and the container's limits."""
    return {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": threads(),
        "quota_cores": quota_cores(),
        "memory_bytes": memory_bytes(),
        "caches": caches(),
    }


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that decide how fast something is; None for one that is missing."""

    def of(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {"python": platform.python_version(), **{name: of(name) for name in PACKAGES}}


@functools.cache
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def resident_bytes() -> int:
    """Bytes of this process that are in memory now; in a forked one its own, not its parent's."""
    return _process(os.getpid()).memory_info().rss


class _Mallinfo2(ctypes.Structure):
    """What glibc 2.33 and later tells about its allocator, in bytes and numbers (mallinfo(3))."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


BOOKS = ("arena", "hblkhd", "uordblks", "fordblks", "keepcost")


def malloc_books() -> dict[str, int] | None:
    """glibc's own books, in bytes: heap from the system, mapped blocks, of the heap in use and free, free at
    its top; None where malloc does not tell."""
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Mallinfo2
    found = libc.mallinfo2()
    return {name: getattr(found, name) for name in BOOKS}


def release_free_memory() -> None:
    """Give memory that the allocator keeps for later back to the system, so that a baseline is comparable."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(0)
