"""What this process may use: cores, memory and its own resident bytes, containers' limits included. No
torch."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


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


@functools.cache
def _process() -> psutil.Process:
    return psutil.Process()


def resident_bytes() -> int:
    """Bytes of this process that are in memory now."""
    return _process().memory_info().rss


def release_free_memory() -> None:
    """Give memory that the allocator keeps for later back to the system, so that a baseline is comparable."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(0)
