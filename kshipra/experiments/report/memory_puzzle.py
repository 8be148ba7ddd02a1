"""The memory puzzle, read: what the churn-and-fragmentation explanation predicts, and which predictions hold.

Numbers of a run: its peak above the warm process; tensors alive at their peak; what the allocator kept of
freed memory when all was over; and the most that was resident in the process's whole life.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from kshipra.experiments import experiment_named
from kshipra.experiments.report import churn, memory_figures, study
from kshipra.experiments.report.memory_runs import (
    FIRST,
    FOUR,
    ONE,
    PLAIN,
    Group,
    Run,
    alive,
    beyond,
    grouped,
    noise,
    peaks,
    shown,
)
from kshipra.experiments.report.parts import Figure, Report, Table
from kshipra.experiments.report.spread import apart
from kshipra.experiments.results import Results
from kshipra.ui import show

STUDY_GAP_BYTES = (study.A_PEAK_MB["kv_cache"] - study.A_PEAK_MB["static_batch"]) * 1e6


def report(results: Results) -> Report:
    runs = grouped(results)
    plain = {rows: found for (rows, change), found in runs.items() if change == PLAIN}
    experiment = experiment_named(results.experiment)
    place = f"{results.model['name']} on {results.machine['processor']}, {results.model['threads']} threads"
    tests = churn.predictions(runs)
    parts: list[Figure | Table] = []
    if plain:
        parts.append(memory_figures.rows_figure(plain, place))
        parts.append(memory_figures.climb_figure(plain, place))
        parts.append(memory_figures.rows_table(plain, place))
    if tests:
        parts.append(memory_figures.predictions_table(tests, place))
    if any(change != PLAIN for _, change in runs):
        parts.append(memory_figures.changes_figure(runs, place))
    if books := [(rows, run) for rows, found in plain.items() for run in found[:1] if run.books]:
        parts.append(memory_figures.books_table(books, place))
    answers = (
        *peak_answer(plain), *churn.verdict(tests), *live_answer(plain), *life_answer(plain),
        *order_answer(runs), *library_answer(runs), *other_answer(results, runs),
    )  # fmt: skip
    for case in results.of(kind="cache"):
        parts.append(memory_figures.cache_table(case.samples, place))
        answers += cache_answer(case.samples, results.model)
    return Report(experiment.title, experiment.question, answers, tuple(parts))


def peak_answer(plain: dict[int, list[Run]]) -> list[str]:
    if not {ONE, FOUR} <= plain.keys():
        return []
    one, four = plain[ONE], plain[FOUR]
    order = apart(peaks(one), peaks(four))
    verdict = {
        1: "Batching peaks lower here too",
        -1: "Batching does not peak lower here but higher, which contradicts study A",
        0: "Batching and one at a time peak alike here, within their spread, unlike in study A",
    }[order]
    return [
        f"{verdict}: {shown(peaks(one))} above the warm process in {one[0].passes} passes one at a time, "
        f"{shown(peaks(four))} in {four[0].passes} passes of four rows."
    ]


def live_answer(plain: dict[int, list[Run]]) -> list[str]:
    """Which part of a peak moves when more rows share a pass: what is alive, or the rest."""
    least, most = min(plain, default=0), max(plain, default=0)
    if least == most or None in (alive(plain[least]), alive(plain[most])):
        return []
    live = [alive(plain[rows]) or 0 for rows in (least, most)]
    rest = [median(beyond(plain[rows])) for rows in (least, most)]
    change = median(peaks(plain[most])) - median(peaks(plain[least]))
    moved, other = live[1] - live[0], rest[1] - rest[0]
    cause = "what is alive" if abs(moved) >= abs(other) else "memory that is no live tensor"
    return [
        f"From {least} to {most} rows at once the peak changes by {show.size(change)}: live tensors by "
        f"{show.size(moved)} ({show.size(live[0])} to {show.size(live[1])}) and the rest by "
        f"{show.size(other)}. "
        f"So the peak follows {cause}."
    ]


def life_answer(plain: dict[int, list[Run]]) -> list[str]:
    """What a process monitor shows, as the author read it."""
    runs = [run for found in plain.values() for run in found if run.life is not None and run.load is not None]
    if not runs:
        return []
    lives = [run.life for run in runs]
    loading = sum(run.load >= run.life for run in runs)
    gap = max(lives) - min(lives)
    most = max(run.peak for run in runs)
    said = (
        f"The whole life's peak, which is what a process monitor shows, is {shown(lives)} over {len(runs)} "
        f"processes, and set by loading in {loading} of them; generating adds {show.size(most)} at most."
    )
    if loading == len(runs):
        said += " Such a peak says nothing about batching."
    comparison = "as much as" if gap >= STUDY_GAP_BYTES else "less than"
    return [
        f"{said} It differs by {show.size(gap)} between processes, {comparison} study A's gap of "
        f"{STUDY_GAP_BYTES / 1e6:.0f} MB."
    ]


def order_answer(runs: Group) -> list[str]:
    pairs = [(rows, runs[rows, PLAIN], runs[rows, FIRST]) for rows in (ONE, FOUR) if (rows, FIRST) in runs]
    said = []
    for rows, last, first in pairs:
        moved = apart(peaks(first), peaks(last), least=noise(last))
        verdict = {1: "raises the peak", -1: "lowers the peak", 0: "changes nothing beyond the spread"}[moved]
        said.append(f"{verdict} with {rows} at once ({shown(peaks(first))} for {shown(peaks(last))})")
    return [f"The longest prompt first instead of last {' and '.join(said)}."] if said else []


def library_answer(runs: Group) -> list[str]:
    left = [run.libraries for (_, change), found in runs.items() if change == PLAIN for run in found]
    if not left:
        return []
    return [
        f"What libraries keep for themselves after the first passes is {shown(left)}, once a process and "
        f"before "
        "any mode begins, so it cannot tell modes apart."
    ]


def other_answer(results: Results, runs: Group) -> list[str]:
    installed = [name for case in results.of(kind="cache") for name in case.samples["allocators"]]
    if not results.of(kind="cache") or installed:
        return []
    return ["Another allocator: – (neither jemalloc, tcmalloc nor mimalloc is installed here)."]


def cache_answer(samples: dict[str, Any], model: dict[str, Any]) -> tuple[str, ...]:
    tokens, used = samples["tokens"], samples["used_bytes"]
    agree = "as" if used == samples["formula_bytes"] else "unlike"
    theirs, expected = study.A_KV_30_TOKENS_MB * 1e6, tokens * study.A_KV_TOKEN_BYTES
    wrong = abs(theirs - expected) > 0.1 * expected
    verdict = (
        f"is not that of {tokens} tokens but of {theirs / study.A_KV_TOKEN_BYTES:.0f}"
        if wrong
        else f"is that of {tokens} tokens"
    )
    return (
        f"The cache of {tokens} tokens of {model['name']} is {show.size(used)} in its real tensors, "
        f"{agree} the "
        f"formula says ({show.size(samples['formula_bytes'])}). Study A's {study.A_KV_30_TOKENS_MB} MB "
        f"{verdict}: "
        f"GPT-2 small in fp32 takes {show.size(study.A_KV_TOKEN_BYTES)} a token, {expected / 1e6:.2f} MB for "
        f"{tokens}.",
    )
