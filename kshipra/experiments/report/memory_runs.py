"""A process of the memory puzzle as numbers, and what its samples say together. Knows no figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kshipra.experiments.report.spread import spread
from kshipra.experiments.results import Results
from kshipra.ui import show

PLAIN, TRIMMED = "as it is", "freed memory returned after each pass"
ARENA, FIRST, CONCATENATED = "one arena", "longest prompt first", "concatenated cache"
ONE, FOUR = 1, 4  # the author's two cases: rows to a pass


class Run(NamedTuple):
    """One process."""

    passes: int
    peak: float  # above the warm process, bytes as all that follows
    kept: float  # freed by torch, not given back by the allocator, at the end
    life: float | None  # most ever resident
    load: float | None  # most resident when the model had just been loaded
    libraries: float  # what the first passes left behind for good
    warm: float
    climb: list[float]  # resident above the warm process after each pass
    tensors: dict[str, int] | None
    books: tuple[dict[str, int], dict[str, int]] | None  # mallinfo2 when warm and in the end
    held: int  # the cache's tensors, with room to grow


Group = dict[tuple[int, str], list[Run]]


def read(sample: dict[str, Any]) -> Run:
    warm, ended, steps = sample["warm"], sample["ended"], sample["steps"]
    marks = [at["high_water_bytes"] for at in (sample["loaded"], warm, ended)]  # each run resets the mark
    books = (warm["allocator"], ended["allocator"])
    return Run(
        passes=len(steps),
        peak=steps[-1]["peak_extra_bytes"],
        kept=ended["resident_bytes"] - sample["returned"]["resident_bytes"],
        life=None if None in marks else max(marks),
        load=sample["loaded"]["high_water_bytes"],
        libraries=warm["resident_bytes"] - sample["trimmed"]["resident_bytes"],
        warm=warm["resident_bytes"],
        climb=[step["resident_bytes"] - warm["resident_bytes"] for step in steps],
        tensors=sample["tensors"],
        books=None if None in books else books,
        held=max(step["kv_held_bytes"] for step in steps),
    )


def grouped(results: Results) -> Group:
    found: Group = {}
    for case in results.of(kind="run"):
        found.setdefault((case.settings["rows"], case.settings["change"]), []).append(read(case.samples))
    return found


def peaks(runs: Sequence[Run]) -> list[float]:
    return [run.peak for run in runs]


def alive(runs: Sequence[Run]) -> float | None:
    """Tensors alive at their peak. Allocations are the same in every process, so one was asked."""
    return next((run.tensors["live_peak_bytes"] for run in runs if run.tensors), None)


def beyond(runs: Sequence[Run]) -> list[float]:
    """Of each peak, what is no live tensor (below zero: room of a cache that was never touched); empty where
    nobody asked what is alive."""
    live = alive(runs)
    return [] if live is None else [run.peak - live for run in runs]


def noise(runs: Sequence[Run]) -> float:
    return max(peaks(runs)) - min(peaks(runs))


def shown(samples: Sequence[float]) -> str:
    return spread(samples, show.size)
