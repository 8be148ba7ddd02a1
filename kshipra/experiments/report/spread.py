"""Samples in sentences: a middle with its spread, and whether two sets of samples differ beyond theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

Shown = Callable[[float], str]


def spread(samples: Sequence[float], shown: Shown) -> str:
    """The median, and the least and greatest where they are written differently: "4.1 (3.9 to 4.4)"."""
    low, middle, high = shown(min(samples)), shown(median(samples)), shown(max(samples))
    return middle if low == high else f"{middle} ({low} to {high})"


def apart(first: Sequence[float], second: Sequence[float], *, least: float = 0.0) -> int:
    """1 where every sample of `first` is above all of `second` by more than `least`, -1 the other way
    round, 0 where they overlap: no difference that these samples show."""
    if min(first) - max(second) > least:
        return 1
    return -1 if min(second) - max(first) > least else 0


def ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """`first` over `second`: of the medians, and the least and greatest that the samples allow."""
    return [
        min(first) / max(second),
        median(first) / median(second),
        max(first) / min(second),
    ]
