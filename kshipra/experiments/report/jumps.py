"""Where a series of times jumps, and whether two series jump together. Knows nothing of experiments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

NOISES = 4.0  # a jump is more than this many times the usual scatter beyond the local line,
LEAST_JUMP = 0.03  # and more than this part of the time itself
SIDE = 3  # lengths on either side that stand for it
WINDOW = 5  # lengths on either side that make the local line
FEWEST = 8  # lengths below which there is no such line
TO_NORMAL = 1.4826  # the median absolute deviation of a normal distribution, as its standard deviation


@dataclass(frozen=True)
class Jumps:
    """Rises of a series beyond its local line. `excess` belongs to `lengths`: what the time rises by from
    the lengths before to this one and those after, beyond the line, as a part of the time there."""

    lengths: tuple[int, ...]
    excess: tuple[float, ...]
    seconds: tuple[float, ...]  # the same excess in seconds
    threshold: float
    at: tuple[int, ...]  # the lengths that a jump leads to
    drops: int  # found by the same rule upside down: what noise and sawteeth do


def jumps(lengths: Sequence[int], taken_s: Sequence[float]) -> Jumps | None:
    """Where times at evenly spaced lengths jump; None where there are too few."""
    if len(lengths) < FEWEST:
        return None
    places = range(1, len(taken_s))
    beyond = [_rise(taken_s, place) for place in places]
    excess = [rise / taken_s[place] for place, rise in zip(places, beyond, strict=True)]
    centre = median(excess)
    scatter = TO_NORMAL * median(abs(value - centre) for value in excess)
    threshold = max(NOISES * scatter, LEAST_JUMP)
    steps = [later - sooner for sooner, later in itertools.pairwise(taken_s)]
    at = _peaks(lengths[1:], excess, steps, threshold)
    drops = _peaks(lengths[1:], [-value for value in excess], [-step for step in steps], threshold)
    return Jumps(tuple(lengths[1:]), tuple(excess), tuple(beyond), threshold, at, len(drops))


def _rise(values: Sequence[float], place: int) -> float:
    """From the median of the SIDE values before `place` to that of those from it on, both moved along the
    local line to the same place: a lone outlier does not count. The line's slope is the median over
    neighbours that lie SIDE apart, which a jump in the middle does not bend."""
    near = values[max(0, place - WINDOW) : place + WINDOW]
    slope = median((later - sooner) / SIDE for sooner, later in zip(near, near[SIDE:], strict=False))
    first = max(0, place - SIDE)
    level = [value - slope * (first + n) for n, value in enumerate(values[first : place + SIDE])]
    return median(level[place - first :]) - median(level[: place - first])


def _peaks(
    lengths: Sequence[int], excess: Sequence[float], steps: Sequence[float], threshold: float
) -> tuple[int, ...]:
    """Of each group of neighbours above the threshold, the one with the largest step of its own."""
    groups: list[list[int]] = []
    for place, value in enumerate(excess):
        if value > threshold:
            if groups and groups[-1][-1] == place - 1:
                groups[-1].append(place)
            else:
                groups.append([place])
    return tuple(lengths[max(group, key=steps.__getitem__)] for group in groups)


def near(one: Sequence[int], other: Sequence[int], within: int) -> tuple[int, ...]:
    """Those of `one` that have one of `other` within `within` tokens."""
    return tuple(length for length in one if any(abs(length - there) <= within for there in other))


def by_chance(many: int, lengths: Sequence[int], other: Sequence[int], within: int) -> float:
    """How many of `many` lengths, drawn anywhere, would lie so near to one of `other`."""
    return many * len(near(lengths, other, within)) / len(lengths)
