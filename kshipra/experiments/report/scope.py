"""Whether the cache's speed-up moves toward the FLOP ratio with rows and with size, in figures and words."""

from __future__ import annotations

from collections.abc import Sequence

from kshipra.experiments import experiment_named
from kshipra.experiments.report import study
from kshipra.experiments.report.gap import Step, Trend, by_rows, by_size, step_of
from kshipra.experiments.report.parts import (
    PUBLISHED,
    Figure,
    Report,
    Table,
    add_line,
    add_published,
    chart,
    middle,
    where,
)
from kshipra.experiments.results import Results
from kshipra.ui.show import count, digits, listing, seconds, times


def report(results: Results) -> Report:
    steps = [step_of(case) for case in results.of(kind="steps") if "skipped" not in case.samples]
    roofline = next((case.samples for case in results.of(kind="roofline")), None)
    experiment = experiment_named("scope")
    parts: list[Figure | Table] = []
    for context in sorted({step.context for step in steps}):
        parts.append(_share_figure([step for step in steps if step.context == context], context, results))
    if steps:
        parts += [_size_figure(steps, results), _table(steps, roofline, results)]
    return Report(
        experiment.title, experiment.question, tuple(_answers(results, steps, roofline)), tuple(parts)
    )


def _share_figure(steps: Sequence[Step], context: int, results: Results) -> Figure:
    plot = chart("rows in a step", "speed-up as a share of the FLOP ratio (%)", log_x=True, log_y=True)
    labels = list(dict.fromkeys(step.label for step in steps))
    for number, label in enumerate(labels):
        line = sorted((step for step in steps if step.label == label), key=lambda step: step.rows)
        shares = [[100 / gap for gap in step.gaps] for step in line]
        add_line(plot, label, [step.rows for step in line], shares, number=number)
    theirs = study.B_SPEED_UP[-1] / study.B_FLOP_RATIO[-1] * 100
    add_published(plot, "published at 1,000 tokens: study B, A40", [1], [theirs])
    rows = sorted({step.rows for step in steps})
    grey = {"color": PUBLISHED, "dash": "dot", "width": 1}
    plot.add_scatter(x=[rows[0], rows[-1]], y=[100, 100], mode="lines", line=grey, name="the FLOP ratio")
    plot.update_xaxes(tickvals=rows, ticktext=[str(row) for row in rows])
    plot.update_yaxes(tickvals=[0.5, 1, 2, 5, 10, 20, 50, 100])
    best = max(steps, key=lambda step: 1 / step.gap)
    ratios = [step.flop_ratio for step in steps]
    caption = (
        f"At {count(context)} tokens an uncached step has {_span(ratios)} times the FLOPs of a cached one. "
        f"The closest to that is {best.label} with {_rows(best.rows)}: "
        f"{times(best.speed_up)} of {times(best.flop_ratio)}, {digits(100 / best.gap)} %. Bars: what the "
        f"samples allow. {where(results)}."
    )
    title = f"Speed-up against the FLOP ratio by rows, {count(context)} tokens"
    return Figure(f"scope-rows-{context}", title, plot, caption)


def _size_figure(steps: Sequence[Step], results: Results) -> Figure:
    plot = chart("parameters (M)", "gap: FLOP ratio / speed-up", log_x=True, log_y=True)
    context = max(
        {step.context for step in steps}, key=lambda c: len({s.label for s in steps if s.context == c})
    )
    here = [step for step in steps if step.context == context]
    for number, rows in enumerate(sorted({step.rows for step in here})):
        line = sorted((s for s in here if s.rows == rows), key=lambda step: step.parameters)
        shown = [step for step in line if step.is_gpt2]
        if shown:
            sizes = [step.parameters / 1e6 for step in shown]
            add_line(plot, _rows(rows), sizes, [step.gaps for step in shown], number=number)
    for number, step in enumerate(step for step in here if not step.is_gpt2 and step.rows == 1):
        add_line(plot, f"{step.label}, 1 row", [step.parameters / 1e6], [step.gaps], number=5 + number)
    sizes = sorted({step.parameters for step in here})
    plot.update_xaxes(tickvals=[s / 1e6 for s in sizes], ticktext=[count(round(s / 1e6)) for s in sizes])
    found = by_size(here)
    moves = listing([f"{times(t.per_doubling)} with {_rows(t.first.rows)}" for t in found]) if found else None
    caption = (
        f"GPT-2's shapes at {count(context)} tokens"
        + (f": each doubling of parameters multiplies the gap by {moves}." if moves else ".")
        + f" 1 would be the arithmetic's own ratio. {where(results)}."
    )
    return Figure("scope-size", f"The gap by model size, {count(context)} tokens", plot, caption)


def _table(steps: Sequence[Step], roofline: dict | None, results: Results) -> Table:
    columns = (
        "model",
        "tokens",
        "rows",
        "no cache",
        "cache",
        "speed-up",
        "by FLOPs",
        "gap",
        "roofline gap",
    )
    rows = [
        (
            step.label,
            count(step.context),
            count(step.rows),
            seconds(middle(step.uncached_s)),
            seconds(middle(step.cached_s)),
            times(step.speed_up),
            times(step.flop_ratio),
            digits(step.gap),
            digits(step.roofline_gap(**roofline) if roofline else None),
        )
        for step in steps
    ]
    caption = (
        "Medians of steps in the engine, sampling included, the output projection at the last position only. "
        "Gap: FLOP ratio over speed-up, which is also the ratio of the two steps' FLOP/s. Roofline gap: "
        "what it would be if both steps ran as fast as this machine's memory and arithmetic allow. "
    )
    skipped = [case.samples["skipped"] for case in results.of(kind="steps") if "skipped" in case.samples]
    return Table("scope", "Every step", columns, tuple(rows), caption + " ".join(dict.fromkeys(skipped)))


def _answers(results: Results, steps: Sequence[Step], roofline: dict | None) -> list[str]:
    if not steps:
        return ["No step has been measured yet."]
    rows, sizes = by_rows(steps), by_size(steps)
    answers = [_verdict("rows", rows), _verdict("size, from one shape of GPT-2 to another,", sizes)]
    answers += [_moves(trend, f"from {_rows(trend.first.rows)} to {trend.last.rows}") for trend in rows]
    answers += [
        _moves(trend, f"from {trend.first.label} to {trend.last.label} with {_rows(trend.first.rows)}")
        for trend in sizes
        if trend.first.rows == min(t.first.rows for t in sizes)
    ]
    if roofline:
        answers += _by_roofline(steps, roofline)
    return [*answers, _study(steps, rows, sizes)]


def _verdict(what: str, trends: Sequence[Trend]) -> str:
    if not trends:
        return f"Whether the speed-up moves toward the FLOP ratio with {what} cannot be said of these cases."
    verdicts = [trend.verdict for trend in trends]
    changes = [trend.per_doubling for trend in trends]
    says = (
        "moves toward" if set(verdicts) == {"narrows"}
        else "moves away from" if set(verdicts) == {"widens"}
        else "does not clearly move toward or away from" if set(verdicts) == {"does not clearly change"}
        else "sometimes moves toward"
    )  # fmt: skip
    kinds = [f"{kind} in {verdicts.count(kind)}" for kind in dict.fromkeys(verdicts)]
    return (
        f"With {what} the speed-up {says} the FLOP ratio: the gap {listing(kinds)} of {len(trends)} lines, "
        f"and a doubling multiplies it by {_span(changes)}."
    )


def _moves(trend: Trend, how: str) -> str:
    first, last = trend.first, trend.last
    whose = "" if first.label != last.label else f"{first.label}, "
    return (
        f"{whose}{count(first.context)} tokens, {how}: the speed-up goes from {times(first.speed_up)} to "
        f"{times(last.speed_up)}, of {times(first.flop_ratio)} and {times(last.flop_ratio)} by FLOPs; the "
        f"gap {trend.verdict}: {digits(first.gap)} to {digits(last.gap)}, times "
        f"{digits(trend.per_doubling)} a doubling."
    )


def _by_roofline(steps: Sequence[Step], roofline: dict) -> list[str]:
    """How much of the gap at one row memory and arithmetic explain, and what is left for the overhead."""
    single = [step for step in steps if step.rows == 1]
    if not single:
        return []
    explained = [step.roofline_gap(**roofline) for step in single]
    left = [step.gap / own for step, own in zip(single, explained, strict=True)]
    reads = [step.cached_bytes / middle(step.cached_s) / roofline["bytes_per_s"] for step in single]
    largest = "reading the weights, which rows share and larger models do not"
    other = "a step's overhead, which larger models and more rows dilute"
    return [
        f"At one row a cached step reads its weights at {_span([100 * share for share in reads])} % of this "
        f"machine's {digits(roofline['bytes_per_s'] / 1e9)} GB/s. Memory and arithmetic alone would leave a "
        f"gap of {_span(explained)}; the clock's is {_span([step.gap for step in single])}, {_span(left)} "
        f"times that: most of the gap is {largest if middle(left) < middle(explained) else other}."
    ]


def _study(steps: Sequence[Step], rows: Sequence[Trend], sizes: Sequence[Trend]) -> str:
    theirs = study.B_FLOP_RATIO[-1] / study.B_SPEED_UP[-1]
    nearest = max((step for step in steps if step.rows == 1), key=lambda s: s.context, default=steps[-1])
    both = [trend.verdict for trend in (*rows, *sizes)]
    agrees = (
        "these numbers support that" if both and set(both) == {"narrows"}
        else "these numbers do not support that" if "narrows" not in both
        else "these numbers support that only in part: "
        + listing([_part("rows", rows), _part("size", sizes)])
    )  # fmt: skip
    return (
        f"In {study.STUDY_B} it was {times(study.B_SPEED_UP[-1])} of {times(study.B_FLOP_RATIO[-1])} at "
        f"1,000 tokens and one row, a gap of {digits(theirs)}, with the output projection at every position; "
        f"here it is {times(nearest.speed_up)} of {times(nearest.flop_ratio)} at {count(nearest.context)} "
        f"tokens and {_rows(nearest.rows)}, a gap of {digits(nearest.gap)}. It "
        f"expected that a bigger model or more rows move the speed-up toward the ratio: {agrees}."
    )


def _part(what: str, trends: Sequence[Trend]) -> str:
    narrowing = sum(trend.verdict == "narrows" for trend in trends)
    return f"with {what} the gap narrows in {narrowing} of {len(trends)} lines"


def _rows(rows: int) -> str:
    return f"{rows} row{'s' if rows > 1 else ''}"


def _span(values: Sequence[float]) -> str:
    low, high = digits(min(values)), digits(max(values))
    return low if low == high else f"{low} to {high}"
