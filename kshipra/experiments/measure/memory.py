"""What a process's memory looks like from outside, from its allocator and from torch. Knows no case.

Readings that a system does not give are None: glibc alone has mallinfo2, Linux alone a high-water mark.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from kshipra import machine
from kshipra.engine.meter import high_water_bytes


@dataclass(frozen=True)
class Allocator:
    """One that may take glibc's place: a function of its own by which it is known, and which gives free
    memory back."""

    libraries: tuple[str, ...]
    function: str
    arguments: tuple[Any, ...]

    def library(self) -> str | None:
        """What LD_PRELOAD takes, or None where it is not installed."""
        return next(filter(None, map(ctypes.util.find_library, self.libraries)), None)

    def loaded(self) -> bool:
        return sys.platform != "win32" and hasattr(ctypes.CDLL(None), self.function)


ALLOCATORS = {
    "jemalloc": Allocator(("jemalloc",), "mallctl", (b"arena.4096.purge", None, None, None, 0)),  # 4096: all
    "tcmalloc": Allocator(("tcmalloc", "tcmalloc_minimal"), "MallocExtension_ReleaseFreeMemory", ()),
    "mimalloc": Allocator(("mimalloc",), "mi_collect", (True,)),
}


SYSTEM = "the system's allocator"


def loaded_allocator() -> str:
    """Whose malloc this process uses."""
    return next((name for name, found in ALLOCATORS.items() if found.loaded()), SYSTEM)


def give_back() -> None:
    """Have whichever allocator there is return its free memory to the system."""
    machine.release_free_memory()
    for allocator in ALLOCATORS.values():
        if allocator.loaded():
            getattr(ctypes.CDLL(None), allocator.function)(*allocator.arguments)


def mallinfo2() -> dict[str, int] | None:
    """glibc's books in bytes; None where another allocator does the work, so that they would be empty."""
    return machine.malloc_books() if loaded_allocator() == SYSTEM else None


def reading() -> dict[str, Any]:
    return {
        "resident_bytes": machine.resident_bytes(),
        "high_water_bytes": high_water_bytes(),
        "allocator": mallinfo2(),
    }


def tensor_bytes(call: Callable[[], Any]) -> dict[str, int]:
    """Of the tensors that `call` makes on the processor: most bytes alive at once, bytes and number in all.

    torch's own allocator is asked, so what happens inside an operation counts, and what other libraries
    allocate for themselves does not. Tensors from before `call` count as nothing, when they go too.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    alive = peak = allocated = count = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
            allocated += max(0, event.nbytes())
            count += event.nbytes() > 0
    return {"live_peak_bytes": peak, "allocated_bytes": allocated, "allocations": count}
