"""What this process may use: cores, memory and its own resident bytes, containers' limits included. No
torch."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import psutil

CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PACKAGES = ("torch", "transformers", "gradio")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _least(cgroup: Path, own: Path, controller: str, limit_of: Callable[[Path], int | None]) -> int | None:
    """The least limit of the process's own group and of every group around it, in the tree of cgroup v2, else
    in the controller's of v1. A container may see its own group as root, and its path from outside: then the
    groups in between are not there, and set no limit."""
    paths = {}  # by controller; v2 has none
    for each in (_read(own) or "").splitlines():
        _, controllers, path = each.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for root, path in ((cgroup, paths.get("", "")), (cgroup / controller, paths.get(controller, ""))):
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders = [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
        if limits := [limit for folder in folders if (limit := limit_of(folder)) is not None]:
            return min(limits)
    return None


def _quota_cores(group: Path) -> int | None:
    """Of one group, rounded down."""
    if (limit := _read(group / "cpu.max")) is not None:
        quota, _, period = limit.partition(" ")
    else:
        quota = _read(group / "cpu.cfs_quota_us") or "-1"
        period = _read(group / "cpu.cfs_period_us") or "100000"
    return None if quota in ("max", "-1") else int(quota) // int(period or 100_000)


def _memory_limit_bytes(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = _read(group / name)
        if limit and limit.isdigit():
            return int(limit)
    return None


def quota_cores(cgroup: Path = CGROUP, own: Path = OWN_GROUPS) -> int | None:
    """Whole cores of the container's CPU quota (cgroup v2, then v1), at least 1; None without a quota."""
    cores = _least(cgroup, own, "cpu", _quota_cores)
    return None if cores is None else max(1, cores)


def threads(cgroup: Path = CGROUP) -> int:
    """Cores that this process may really use: the least of its affinity and the container's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affinity, quota_cores(cgroup) or affinity)


def memory_bytes(cgroup: Path = CGROUP, own: Path = OWN_GROUPS) -> int:
    """The lesser of the machine's memory and the container's limit."""
    total, limit = psutil.virtual_memory().total, _least(cgroup, own, "memory", _memory_limit_bytes)
    return total if limit is None else min(total, limit)


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
