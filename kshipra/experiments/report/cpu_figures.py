"""Study A's case in numbers of each mode, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, median
from typing import Any, NamedTuple

from kshipra.experiments.report import study
from kshipra.experiments.report.parts import Figure, Table, add_bars, add_line, add_published, chart
from kshipra.experiments.report.spread import ratios, spread
from kshipra.ui import show

NAMES = {"no_cache": "no cache", "kv_cache": "KV cache", "static_batch": "batch of 4"}
FLAT = 0.1  # a fitted line is called flat where it changes the step by less than this over the whole run
US = 1e6


class Line(NamedTuple):
    """Decode steps against the columns of text, fitted run by run."""

    slopes_s: list[float]  # per token of text, one a run
    rises: list[float]  # over the columns seen, as a part of the median step, one a run
    columns: int  # from the shortest text to the longest
    start: int
    offset_s: float  # of the line through the medians at each length, which is drawn
    slope_s: float

    @property
    def flat(self) -> bool:
        return abs(median(self.rises)) < FLAT or min(self.slopes_s) <= 0 <= max(self.slopes_s)


def rates(runs: Sequence[dict[str, Any]]) -> list[float]:
    """New tokens a second of each run, prompts included in its time."""
    return [run["new_tokens"] / run["wall_s"] for run in runs]


def decoded(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for step in run["steps"] if step["phase"] == "decode"]


def decode_s(runs: Sequence[dict[str, Any]]) -> list[float]:
    """The median decode step of each run."""
    return [median(step["elapsed_s"] for step in decoded(run)) for run in runs]


def fitted(runs: Sequence[dict[str, Any]]) -> Line:
    slopes_s, rises = [], []
    columns = [step["columns"] for step in decoded(runs[0])]
    width = max(columns) - min(columns)
    for run, middle_s in zip(runs, decode_s(runs), strict=True):
        fit = linear_regression(columns, [step["elapsed_s"] for step in decoded(run)])
        slopes_s.append(fit.slope)
        rises.append(fit.slope * width / middle_s)
    by_columns = steps_by_columns(runs)
    drawn = linear_regression(list(by_columns), [median(steps) for steps in by_columns.values()])
    return Line(slopes_s, rises, width, min(columns), drawn.intercept, drawn.slope)


def steps_by_columns(runs: Sequence[dict[str, Any]]) -> dict[int, list[float]]:
    """Decode steps of all runs by the columns of text, shortest first."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for step in decoded(run):
            found.setdefault(step["columns"], []).append(step["elapsed_s"])
    return dict(sorted(found.items()))


def life(sample: dict[str, Any]) -> float | None:
    """The most that was ever resident; every run resets the mark, the warm-up's too."""
    marks = [sample[at]["high_water_bytes"] for at in ("loaded", "warm", "after")]
    return None if None in marks else max(marks)


def lives(samples: Sequence[dict[str, Any]]) -> list[float]:
    return [peak for sample in samples if (peak := life(sample)) is not None]


def steps_figure(speeds: dict[str, Any], lines: dict[str, Line], place: str) -> Figure:
    figure = chart("tokens of text (longest row)", "one decode step, ms")
    for number, (mode, runs) in enumerate(speeds.items()):
        steps = steps_by_columns(runs)
        add_line(figure, NAMES[mode], list(steps), list(steps.values()), number=number, scale=1e3)
        figure.data[-1].mode = "markers"
        figure.data[-1].error_y.color = "rgba(107, 114, 128, 0.35)"  # three modes of bars behind one another
        line = lines[mode]
        ends = [line.start, line.start + line.columns]
        add_line(
            figure,
            f"{NAMES[mode]}, fitted",
            ends,
            [[line.offset_s + line.slope_s * at] for at in ends],
            number=number,
            scale=1e3,
            markers=False,
        )
        figure.data[-1].showlegend = False
    theirs = [mode for mode in speeds if mode in study.A_STEP_S]
    if theirs:
        last = max(line.start + line.columns for line in lines.values())
        y = [study.A_STEP_S[mode] * 1e3 for mode in theirs]
        add_published(figure, "study A: cache, batch of 4", [last + 1] * len(y), y)
    runs = min(len(found) for found in speeds.values())
    fits = "; ".join(
        f"{NAMES[mode]} {spread([s * US for s in line.slopes_s], show.digits)} µs a token"
        for mode, line in lines.items()
    )
    return Figure(
        "steps",
        "Decode steps and their fitted lines",
        figure,
        f"Medians and extremes of {runs} runs, and the line through the medians. Slopes, run by run: "
        f"{fits}. {place}. "
        f"Diamonds: {study.STUDY_A}.",
    )


def rates_figure(speeds: dict[str, Any], place: str) -> Figure:
    figure = chart("", "new tokens a second, end to end")
    names = [NAMES[mode] for mode in speeds]
    add_bars(figure, "measured here", names, [rates(runs) for runs in speeds.values()], number=0)
    figure.data[-1].opacity = 0.6  # the points inside stay readable
    add_published(figure, "study A", names, [study.A_TOK_PER_S[mode] for mode in speeds])
    shown = ", ".join(f"{NAMES[mode]} {spread(rates(runs), show.digits)}" for mode, runs in speeds.items())
    return Figure(
        "rates",
        "New tokens a second",
        figure,
        f"Four prompts, {tokens_a_prompt(speeds)} new tokens each; tok/s: {shown}. {place}. Diamonds: "
        f"{study.STUDY_A}.",
    )


def tokens_a_prompt(speeds: dict[str, Any]) -> int:
    return max(step["number"] for runs in speeds.values() for step in runs[0]["steps"])


def speed_table(speeds: dict[str, Any], lines: dict[str, Line], place: str) -> Table:
    base = rates(speeds["no_cache"]) if "no_cache" in speeds else None
    rows = []
    for mode, runs in speeds.items():
        theirs = study.A_TOK_PER_S[mode]
        rows.append(
            (
                NAMES[mode],
                show.count(runs[0]["passes"]),
                spread(rates(runs), show.digits),
                show.digits(theirs),
                _over(rates(runs), base),
                show.times(theirs / study.A_TOK_PER_S["no_cache"]),
                spread(decode_s(runs), show.seconds),
                show.seconds(study.A_STEP_S.get(mode)),
                spread([s * US for s in lines[mode].slopes_s], show.digits),
            )
        )
    columns = (
        "mode", "passes", "tok/s", "study A", "speed-up", "study A", "decode step", "study A",
        "slope, µs a token",
    )  # fmt: skip
    return Table(
        "speed",
        "Speed, beside the study's",
        columns,
        tuple(rows),
        f"Median (least to greatest) of {len(next(iter(speeds.values())))} runs; speed-up over no cache. "
        f"{place}.",
    )


def _over(samples: list[float], base: list[float] | None) -> str:
    """How many times the baseline's rate; the baseline is once itself, without a spread."""
    if base is None:
        return show.DASH
    return show.times(1) if samples == base else spread(ratios(samples, base), show.times)


def memory_figure(memory: dict[str, Any], place: str) -> Figure:
    figure = chart("", "peak above the loaded model, MiB")
    names = [NAMES[mode] for mode in memory]
    extras = [[sample["peak_extra_bytes"] for sample in samples] for samples in memory.values()]
    add_bars(figure, "peak above the loaded, warm process", names, extras, number=0, scale=1 / show.MIB)
    used = [[sample["kv_bytes"] for sample in samples] for samples in memory.values()]
    add_bars(figure, "of that, keys and values", names, used, number=1, scale=1 / show.MIB)
    shown = ", ".join(
        f"{name} {spread(samples, show.size)}" for name, samples in zip(names, extras, strict=True)
    )
    method = next(iter(memory.values()))[0]["method"]
    return Figure(
        "memory",
        "What each mode adds to the process",
        figure,
        f"{shown}; a fresh process each, {processes(memory)}; by the {method}. {place}.",
    )


def processes(memory: dict[str, Any]) -> str:
    count = min(len(samples) for samples in memory.values())
    return "one process a mode" if count == 1 else f"{count} processes a mode"


def memory_table(memory: dict[str, Any], place: str) -> Table:
    rows = []
    for mode, samples in memory.items():
        whole = lives(samples)
        theirs = study.A_PEAK_MB.get(mode)
        rows.append(
            (
                NAMES[mode],
                spread([sample["warm"]["resident_bytes"] for sample in samples], show.size),
                spread([sample["peak_extra_bytes"] for sample in samples], show.size),
                spread([sample["kv_bytes"] for sample in samples], show.size),
                spread([sample["kv_held_bytes"] for sample in samples], show.size),
                spread(whole, show.size) if whole else show.DASH,
                f"{show.count(theirs)} MB" if theirs else show.DASH,
            )
        )
    columns = (
        "mode", "loaded and warm", "peak above that", "cache used", "cache held", "most in the whole life",
        "study A's peak",
    )  # fmt: skip
    return Table(
        "memory-of-each",
        "Memory of each mode in a fresh process",
        columns,
        tuple(rows),
        f"Median (least to greatest), {processes(memory)}. The whole life includes loading. {place}.",
    )
