"""The author's explanation of study A's memory, put to the test: what churn and fragmentation predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kshipra.experiments.report.memory_runs import (
    ARENA,
    CONCATENATED,
    FIRST,
    FOUR,
    ONE,
    PLAIN,
    TRIMMED,
    Group,
    Run,
    beyond,
    noise,
    peaks,
    shown,
)
from kshipra.experiments.report.spread import apart
from kshipra.ui import show

EFFECT, TRACE, CURE = "effect", "trace", "cure"  # a higher peak; freed memory kept; what takes that away


class Prediction(NamedTuple):
    kind: str
    claim: str
    first: list[float]
    second: list[float]
    holds: bool


def predictions(runs: Group) -> list[Prediction]:
    """What must be seen if churn and fragmentation make one prompt at a time peak above a batch: in each, the
    first must be above the second by more than processes differ in which nothing was changed."""
    found: list[Prediction] = []
    one, four = (ONE, PLAIN), (FOUR, PLAIN)
    least = max((noise(runs[case]) for case in (one, four) if case in runs), default=0.0)

    def test(
        kind: str,
        claim: str,
        more: tuple[int, str],
        less: tuple[int, str],
        of: Callable[[list[Run]], list[float]] = peaks,
    ) -> None:
        if more in runs and less in runs and of(runs[more]) and of(runs[less]):
            first, second = of(runs[more]), of(runs[less])
            found.append(Prediction(kind, claim, first, second, apart(first, second, least=least) == 1))

    test(EFFECT, "one at a time peaks above a batch of four", one, four)
    test(
        EFFECT,
        "with a cache made anew in each pass, as the study's, one at a time peaks above a batch of four",
        (ONE, CONCATENATED),
        (FOUR, CONCATENATED),
    )
    # Of a cache with room to grow, part is alive and not resident, so here only the other kind is telling.
    test(
        TRACE,
        "with that cache, one at a time, more of the peak is no live tensor",
        (ONE, CONCATENATED),
        (FOUR, CONCATENATED),
        beyond,
    )
    test(TRACE, "one at a time, more freed memory is kept", one, four, lambda rs: [run.kept for run in rs])
    test(CURE, "returning freed memory after each pass lowers the peak of one at a time", one, (ONE, TRIMMED))
    test(CURE, "a single arena lowers it", one, (ONE, ARENA))
    for name in sorted({change for _, change in runs} - {PLAIN, TRIMMED, FIRST, CONCATENATED, ARENA}):
        test(CURE, f"{name} in the allocator's place lowers it", one, (ONE, name))
    return found


def verdict(tests: list[Prediction]) -> list[str]:
    """Whether the explanation stands: it needs the higher peak, its traces, and a change that cures it."""
    if not any(test.kind == EFFECT for test in tests):
        return []
    held = {kind: [t for t in tests if t.kind == kind and t.holds] for kind in (EFFECT, TRACE, CURE)}
    count = f"{sum(map(len, held.values()))} of its {len(tests)} predictions hold"
    seen = [f"{test.claim} ({shown(test.first)} to {shown(test.second)})" for test in tests if test.holds]
    found = f"{count}: {show.listing(seen)}" if seen else count
    if all(held.values()):
        return [f"The numbers support churn and fragmentation; {found}."]
    if held[EFFECT]:
        missing = (
            "the freed memory it should leave behind" if not held[TRACE] else "a change that takes it away"
        )
        return [
            "The numbers do not support churn and fragmentation: the higher peak is there, but not "
            f"{missing}; {found}."
        ]
    if held[TRACE]:
        return [
            "The numbers do not support churn and fragmentation as the cause: one at a time does leave more "
            f"memory behind, but not enough to peak above a batch; {found}."
        ]
    return [
        "The numbers do not support churn and fragmentation: there is no higher peak for it to explain; "
        f"{found}."
    ]
