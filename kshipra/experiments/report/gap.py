"""The gap between arithmetic and clock: how it follows from raw samples, and how it moves.

The FLOP ratio of an uncached and a cached step over the ratio of their times: 1 where the clock agrees with
the arithmetic. It is also, by definition, the ratio of the rates at which the two compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kshipra.experiments.report.parts import middle
from kshipra.experiments.results import CaseResult
from kshipra.ui.show import digits


@dataclass(frozen=True)
class Step:
    """A cached against an uncached step: raw samples of one model, context and number of rows."""

    label: str
    is_gpt2: bool  # one of the shapes that differ in size alone
    context: int
    rows: int
    parameters: int
    uncached_s: list[float]
    cached_s: list[float]
    uncached_flops: float
    cached_flops: float
    uncached_bytes: float
    cached_bytes: float

    @property
    def speed_up(self) -> float:
        return middle(self.uncached_s) / middle(self.cached_s)

    @property
    def flop_ratio(self) -> float:
        return self.uncached_flops / self.cached_flops

    @property
    def gap(self) -> float:
        return self.flop_ratio / self.speed_up

    @property
    def gaps(self) -> list[float]:
        """Least, median and greatest that the samples allow."""
        least = self.flop_ratio * min(self.cached_s) / max(self.uncached_s)
        return [least, self.gap, self.flop_ratio * max(self.cached_s) / min(self.uncached_s)]

    def roofline_gap(self, bytes_per_s: float, flops_per_s: float) -> float:
        """The gap if both steps took what the machine's memory and arithmetic allow."""
        uncached_s = max(self.uncached_bytes / bytes_per_s, self.uncached_flops / flops_per_s)
        cached_s = max(self.cached_bytes / bytes_per_s, self.cached_flops / flops_per_s)
        return self.flop_ratio * cached_s / uncached_s


@dataclass(frozen=True)
class Trend:
    """How the gap moves along a line of steps from `first` to `last`, `doublings` apart."""

    first: Step
    last: Step
    doublings: float

    @property
    def per_doubling(self) -> float:
        return (self.last.gap / self.first.gap) ** (1 / self.doublings)

    @property
    def verdict(self) -> str:
        """By all samples, not by medians: a change is one that no two samples contradict."""
        if max(self.last.gaps) < min(self.first.gaps):
            return "narrows"
        return "widens" if min(self.last.gaps) > max(self.first.gaps) else "does not clearly change"


def step_of(case: CaseResult) -> Step:
    samples = case.samples
    name = samples["model"].removesuffix(", random weights")
    return Step(
        label=f"{name} ({digits(samples['parameters'] / 1e6)} M)",
        is_gpt2=name.startswith("gpt2"),
        context=case.settings["context"],
        rows=case.settings["rows"],
        parameters=samples["parameters"],
        uncached_s=samples["uncached_s"],
        cached_s=samples["cached_s"],
        **{
            key: middle(samples[key])
            for key in ("uncached_flops", "cached_flops", "uncached_bytes", "cached_bytes")
        },
    )


def lines(
    steps: Sequence[Step], same: Callable[[Step], tuple], along: Callable[[Step], float]
) -> list[list[Step]]:
    """Steps that agree in `same`, in the order of `along`: lines of two and more."""
    groups: dict[tuple, list[Step]] = {}
    for step in steps:
        groups.setdefault(same(step), []).append(step)
    return [sorted(group, key=along) for group in groups.values() if len(group) > 1]


def trend(line: Sequence[Step], along: Callable[[Step], float]) -> Trend:
    return Trend(line[0], line[-1], math.log2(along(line[-1]) / along(line[0])))


def by_rows(steps: Sequence[Step]) -> list[Trend]:
    found = lines(steps, lambda step: (step.label, step.context), lambda step: step.rows)
    return [trend(line, lambda step: step.rows) for line in found]


def by_size(steps: Sequence[Step]) -> list[Trend]:
    """Among GPT-2's shapes."""
    shaped = [step for step in steps if step.is_gpt2]
    found = lines(shaped, lambda step: (step.context, step.rows), lambda step: step.parameters)
    return [trend(line, lambda step: step.parameters) for line in found]
