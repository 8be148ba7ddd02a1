"""Memory of a run: how far its peak rose above a baseline, by the best means that the machine offers.

CUDA: the allocator's own peak. Linux: the kernel's resident high-water mark, which writing 5 to clear_refs
resets (proc(5)). Elsewhere: the highest of the samples after each pass. The method is named beside the
number.
"""

from __future__ import annotations

from pathlib import Path

import torch

from kshipra import machine

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
SAMPLED = "resident memory, sampled after each pass"


def high_water_bytes() -> int | None:
    """The most that was ever resident, or since the mark was reset; None where the system does not tell.

    Not getrusage's ru_maxrss: a child process starts with its parent's.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


class MemoryMeter:
    """Made at a run's start, after a warm-up pass; the baseline is taken then, with freed memory given
    back."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        machine.release_free_memory()
        self.method = self._reset()
        self._sampled = machine.resident_bytes()
        self.baseline_bytes = self._peak()

    def read(self) -> tuple[int, int]:
        """(resident or allocated bytes now, highest so far minus the baseline)."""
        if self.device.type == "cuda":
            now = torch.cuda.memory_allocated(self.device)
        else:
            now = machine.resident_bytes()
        self._sampled = max(self._sampled, now)
        return now, max(0, self._peak() - self.baseline_bytes)

    def _reset(self) -> str:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return "CUDA allocator peak"
        try:
            CLEAR_REFS.write_text("5")
        except OSError:
            return SAMPLED
        return SAMPLED if high_water_bytes() is None else "kernel's resident high-water mark"

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        mark = None if self.method == SAMPLED else high_water_bytes()
        return self._sampled if mark is None else mark
