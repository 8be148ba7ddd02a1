"""`kv-cache`: step times with and without cache at every context, against the arithmetic and study B."""

from __future__ import annotations

from kshipra.experiments import experiment_named
from kshipra.experiments.report import kv_answers
from kshipra.experiments.report.kv_numbers import Numbers, numbers, total_s
from kshipra.experiments.report.parts import Figure, Report, Table, add_line, add_published, chart, middle
from kshipra.experiments.report.spread import spread
from kshipra.experiments.report.study import (
    B_CACHE_S,
    B_CONTEXTS,
    B_FLOPS_PER_S,
    B_NO_CACHE_S,
    B_SPEED_UP,
    B_TOTAL_S,
    STUDY_B,
)
from kshipra.experiments.results import Results
from kshipra.ui.show import DASH, count, digits, seconds, times

CONTEXT = "context (tokens)"
MARKED = 60  # a line of more points needs no markers


def report(results: Results) -> Report:
    experiment = experiment_named("kv-cache")
    found = numbers(results)
    parts: list[Figure | Table] = [_checks(results)]
    if found.can_tell:
        parts += [_clock(found), _step_times(found), _cached_alone(found), _speed_up(found), _totals(found)]
        if found.roofline is not None:
            parts += [_rates(found), _rate_table(found)]
    return Report(experiment.title, experiment.question, kv_answers.answers(results, found), tuple(parts))


def _lines(found: Numbers) -> dict:
    return {"markers": len(found.contexts) <= MARKED}


def _studied(found: Numbers) -> list[int]:
    """The study's contexts among ours, and our longest."""
    return sorted({context for context in B_CONTEXTS if context in found.contexts} | {found.contexts[-1]})


def _checks(results: Results) -> Table:
    rows = []
    for case in (*results.of(kind="logits"), *results.of(kind="pieces")):
        samples = case.samples
        for size, own in {"": samples}.items() if "difference" in samples else samples.items():
            name = f"{case.name}, {size} at a time" if size else case.name
            rows.append(
                (
                    name,
                    f"{len(own['difference'])} columns",
                    digits_or_less(max(own["difference"])),
                    digits_or_less(own["tolerance"]),
                )
            )
    for case in results.of(kind="ids"):
        comparison = case.samples["comparison"]
        tokens = f"{len(case.samples['token_ids']['no_cache'])} tokens"
        rows.append((case.name, tokens, comparison["verdict"], "identical, or a near-tie"))
    return Table(
        "checks",
        "Both ways compute what transformers computes",
        ("check", "compared", "largest logit difference", "allowed"),
        tuple(rows),
        "The experiment stops where one of these fails. What is allowed is rounding's share of the logits' "
        "scale.",
    )


def digits_or_less(value: float) -> str:
    """A difference that may be far below what plain digits show."""
    return digits(value) if value == 0 or value >= 1e-3 else f"{value:.2g}"


def _clock(found: Numbers) -> Table:
    rows = []
    for context in _studied(found):
        theirs = B_SPEED_UP[B_CONTEXTS.index(context)] if context in B_CONTEXTS else None
        rows.append(
            (
                count(context),
                spread(found.whole[context], seconds),
                spread(found.cached[context], seconds),
                times(found.speed_up(context)),
                times(found.flop_ratio(context, as_study=True)),
                times(found.flop_ratio(context, as_study=False)),
                digits(found.gap(context, as_study=True)),
                digits(found.gap(context, as_study=False)),
                times(theirs),
                digits(theirs and context / theirs),
            )
        )
    return Table(
        "clock",
        "The clock against the arithmetic",
        (
            "context",
            "no cache",
            "cache",
            "speed-up",
            "FLOP ratio, study's model",
            "FLOP ratio, as computed",
            "gap, study's model",
            "gap, as computed",
            "study B: speed-up",
            "study B: gap",
        ),
        tuple(rows),
        "Medians, least to greatest in brackets. Gap: FLOP ratio over measured speed-up. The study's model "
        "2Nt + 4Ldt² counts the output projection for every column; computed is it for the last column only. "
        f"The last two columns are the numbers of {STUDY_B}.",
    )


def _step_times(found: Numbers) -> Figure:
    plot = chart(CONTEXT, "time of a step (ms)", log_x=True, log_y=True)
    for number, (name, samples) in enumerate((("no cache", found.whole), ("cache", found.cached))):
        ordered = sorted(samples)
        add_line(
            plot, name, ordered, [samples[c] for c in ordered], number=number, scale=1e3, **_lines(found)
        )
    add_published(plot, "study B, no cache", B_CONTEXTS, [value * 1e3 for value in B_NO_CACHE_S])
    add_published(plot, "study B, cache", B_CONTEXTS, [value * 1e3 for value in B_CACHE_S])
    plot.data[-1].marker.symbol = "circle-open"
    last = found.contexts[-1]
    return Figure(
        "steps",
        "Time of a step",
        plot,
        f"At {count(last)} tokens a step takes {seconds(middle(found.whole[last]))} without cache and "
        f"{seconds(middle(found.cached[last]))} with one. On logarithmic axes what grows in "
        f"proportion rises as steeply as the axes do. Grey: {STUDY_B}.",
    )


def _cached_alone(found: Numbers) -> Figure:
    plot = chart(CONTEXT, "time of a cached step (ms)")
    ordered = sorted(found.cached)
    samples = [found.cached[context] for context in ordered]
    add_line(plot, "cache", ordered, samples, number=1, scale=1e3, **_lines(found))
    if found.roofline is not None:
        read = [[found.read_s(context)] for context in ordered]
        name = "reading weights and cache once, at the measured rate"
        add_line(plot, name, ordered, read, number=2, scale=1e3, markers=False)
    said = kv_answers.cached_growth(found) or "Too few contexts to fit a line to."
    return Figure("cached-step", "Is the cached step flat?", plot, said)


def _speed_up(found: Numbers) -> Figure:
    plot = chart(CONTEXT, "speed-up (times)", log_x=True, log_y=True)
    ways = (
        ("measured", found.speed_up),
        ("FLOP ratio, study's model", lambda context: found.flop_ratio(context, as_study=True)),
        ("FLOP ratio, as computed", lambda context: found.flop_ratio(context, as_study=False)),
    )
    for number, (name, value) in enumerate(ways):
        points = [[value(context)] for context in found.contexts]
        add_line(plot, name, found.contexts, points, number=number, markers=number == 0)
    add_published(plot, "study B, measured", B_CONTEXTS, B_SPEED_UP)
    last = found.contexts[-1]
    return Figure(
        "speed-up",
        "Speed-up by the clock and by the arithmetic",
        plot,
        f"At {count(last)} tokens the clock says {times(found.speed_up(last))}, the study's model "
        f"{times(found.flop_ratio(last, as_study=True))}, and what is really computed "
        f"{times(found.flop_ratio(last, as_study=False))}. Grey: {STUDY_B}.",
    )


def _totals(found: Numbers) -> Table:
    first, longest = found.contexts[0], found.contexts[-1]
    rows = []
    for last in sorted({longest, 1024} if longest > 1024 else {longest}):
        cells = [
            f"{seconds(total_s(samples, last))} ({seconds(total_s(samples, last, min))} to "
            f"{seconds(total_s(samples, last, max))})"
            for samples in (found.whole, found.cached)
        ]
        quotient = total_s(found.whole, last) / total_s(found.cached, last)
        rows.append((f"{count(last - first)}, up to {count(last)}", *cells, times(quotient)))
    theirs = (B_TOTAL_S["no_cache"], B_TOTAL_S["cache"])
    rows.append((f"1,016, {STUDY_B}", *map(seconds, theirs), times(theirs[0] / theirs[1])))
    return Table(
        "totals",
        "All tokens one after another",
        ("tokens", "no cache", "cache", "speed-up"),
        tuple(rows),
        f"The sum over every context from {count(first)} on, of the medians (in brackets: of the least and "
        "of the greatest samples), on the straight line between contexts that were measured. Without the "
        "prompt's own pass.",
    )


def _rates(found: Numbers) -> Figure:
    assert found.roofline is not None
    plot = chart(CONTEXT, "achieved rate (GFLOP/s)", log_x=True, log_y=True)
    ways = (
        ("no cache, as computed", False, False),
        ("cache", True, False),
        ("no cache, study's model", False, True),
    )
    for number, (name, cached, as_study) in enumerate(ways):
        points = [[found.flops_per_s(c, cached=cached, as_study=as_study)] for c in found.contexts]
        add_line(plot, name, found.contexts, points, number=number, scale=1e-9, markers=False)
    peak = found.roofline["flops_per_s"]
    ends = [found.contexts[0], found.contexts[-1]]
    add_line(plot, "measured peak", ends, [[peak], [peak]], number=4, scale=1e-9, markers=False)
    add_published(plot, "study B, no cache", B_CONTEXTS, [rate * 1e-9 for rate in B_FLOPS_PER_S])
    return Figure("rates", "What the arithmetic was worth", plot, kv_answers.rates(found))


def _rate_table(found: Numbers) -> Table:
    assert found.roofline is not None
    peak = found.roofline["flops_per_s"]

    def cell(context: int, cached: bool, as_study: bool) -> str:
        rate = found.flops_per_s(context, cached=cached, as_study=as_study)
        return f"{digits(rate * 1e-9)} ({digits(100 * rate / peak)} %)"

    rows = []
    for context in _studied(found):
        ours = (cell(context, *way) for way in ((False, True), (False, False), (True, False)))
        at = B_CONTEXTS.index(context) if context in B_CONTEXTS else None
        rows.append((count(context), *ours, DASH if at is None else digits(B_FLOPS_PER_S[at] * 1e-9)))
    columns = ("context", "no cache, study's model", "no cache, as computed", "cache", "study B: no cache")
    memory = digits(found.roofline["bytes_per_s"] * 1e-9)
    return Table(
        "achieved",
        "Achieved GFLOP/s, and share of the measured peak",
        columns,
        tuple(rows),
        f"This machine was seen to reach {digits(peak * 1e-9)} GFLOP/s, and to read {memory} GB/s. A cached "
        "step has the same FLOPs in both models.",
    )
