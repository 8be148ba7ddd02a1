"""What the floor's sentences and figures count with."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, quantiles
from typing import Any

from kshipra.experiments.report.parts import middle
from kshipra.experiments.results import CaseResult, Results

WAYS = {
    "preallocated": "eager, preallocated cache",
    "concatenated": "eager, concatenated cache",
    "compiled": "compiled",
    "CUDA graph": "CUDA graph",
}
HEADS = {"last position": "head on the last position", "all positions": "head on all positions"}


def by_tokens(results: Results, kind: str) -> list[CaseResult]:
    return sorted(results.of(kind=kind), key=lambda case: case.settings["tokens"])


def step_s(case: CaseResult, way: str) -> list[float] | None:
    """The samples of `way`, None where there is no such way here."""
    return case.samples["ways"][way].get("step_s")


def least_s(samples: dict[str, Any], results: Results) -> float | None:
    """What the roofline allows at best for what was asked: the longer of reading and arithmetic."""
    roof = results.case("roofline")
    if roof is None:
        return None
    return max(
        samples["bytes"] / max(roof.samples["bytes_per_s"]),
        samples["flops"] / max(roof.samples["flops_per_s"]),
    )


def widths(results: Results) -> list[CaseResult]:
    return sorted(results.of(kind="width"), key=lambda case: case.samples["width"])


def nothing_to_do_s(results: Results) -> float | None:
    """The step's time at no width: a line through the narrower half of the models, at least two, over the
    bytes of their weights. Between 0 and the narrowest one's time."""
    cases = widths(results)
    if len(cases) < 2:
        return None
    used = cases[: max(2, (len(cases) + 1) // 2)]
    points = [(case.samples["bytes"], middle(case.samples["step_s"])) for case in used]
    at_zero = linear_regression(*zip(*points, strict=True)).intercept
    return min(max(at_zero, 0.0), points[0][1])


def differ(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the middle halves of the samples lie apart."""
    (low, _, high), (other_low, _, other_high) = quantiles(one, n=4), quantiles(other, n=4)
    return low > other_high or high < other_low
