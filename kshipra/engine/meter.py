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
            self._high_water_bytes()
        except (OSError, StopIteration):
            return "resident memory, sampled after each pass"
        return "kernel's resident high-water mark"

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self._high_water_bytes() if self.method.startswith("kernel") else self._sampled

    @staticmethod
    def _high_water_bytes() -> int:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
