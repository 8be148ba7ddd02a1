"""The floor's figures and its table of ways."""

from __future__ import annotations

from kshipra.experiments.report import study
from kshipra.experiments.report.floor_numbers import (
    HEADS,
    WAYS,
    by_tokens,
    least_s,
    nothing_to_do_s,
    step_s,
    widths,
)
from kshipra.experiments.report.parts import Figure, Table, add_line, add_published, chart, middle, where
from kshipra.experiments.results import Results
from kshipra.ui.show import count, digits, seconds

MS = 1e3


def decode_figure(results: Results) -> Figure | None:
    cases = by_tokens(results, "decode")
    if not cases:
        return None
    plot = chart("context, tokens", "cached step, ms", log_x=True)
    for number, (way, label) in enumerate(WAYS.items()):
        there = [(case.settings["tokens"], step_s(case, way)) for case in cases if step_s(case, way)]
        if there:
            add_line(plot, label, *zip(*there, strict=True), number=number, scale=MS)
    if results.case("roofline"):
        least = [[least_s(case.samples, results)] for case in cases]
        add_line(plot, "least possible", [c.settings["tokens"] for c in cases], least, number=5, scale=MS)
    add_published(plot, study.STUDY_B, study.B_CONTEXTS, [s * MS for s in study.B_CACHE_S])
    first, last = cases[0], cases[-1]
    caption = (
        f"One row, cached: {seconds(middle(step_s(first, 'preallocated')))} at "
        f"{count(first.settings['tokens'])} tokens and {seconds(middle(step_s(last, 'preallocated')))} at "
        f"{count(last.settings['tokens'])} with the preallocated cache; medians, bars from least to "
        f"greatest. {where(results)}."
    )
    return Figure("ways", "A cached step, done in other ways", plot, caption)


def ways_table(results: Results) -> Table | None:
    cases = by_tokens(results, "decode")
    if not cases:
        return None
    rows = []
    for way, label in WAYS.items():
        cells = []
        for case in cases:
            taken = step_s(case, way)
            cells.append(
                f"{seconds(middle(taken))} ({digits(min(taken) * MS)} to {digits(max(taken) * MS)})"
                if taken
                else "not here"
            )
        rows.append((label, *cells))
    if results.case("roofline"):
        rows.append(("least possible", *(seconds(least_s(case.samples, results)) for case in cases)))
    ways = [way for case in cases for way in case.samples["ways"].values()]
    worst = max(way.get("largest_difference", 0.0) for way in ways)
    return Table(
        "ways",
        "A cached step by way and context",
        ("way", *(f"{count(case.settings['tokens'])} tokens" for case in cases)),
        tuple(rows),
        f"Medians (least to greatest). The ways' logits differ by at most {worst:.1g}.",
    )


def uncached_figure(results: Results) -> Figure | None:
    cases = by_tokens(results, "no cache")
    if not cases:
        return None
    tokens = [case.settings["tokens"] for case in cases]
    plot = chart("context, tokens", "uncached step, ms", log_x=True, log_y=True)
    for number, (way, label) in enumerate(HEADS.items()):
        add_line(plot, label, tokens, [step_s(case, way) for case in cases], number=number, scale=MS)
    if results.case("roofline"):
        least = [[least_s(case.samples, results)] for case in cases]
        add_line(plot, "least possible, last position", tokens, least, number=5, scale=MS)
    add_published(plot, study.STUDY_B, study.B_CONTEXTS, [s * MS for s in study.B_NO_CACHE_S])
    last = cases[-1]
    caption = (
        f"At {count(tokens[-1])} tokens {seconds(middle(step_s(last, 'last position')))} with the head on "
        f"the last position and {seconds(middle(step_s(last, 'all positions')))} on all. {where(results)}."
    )
    return Figure("no-cache", "An uncached step, and where its head works", plot, caption)


def width_figure(results: Results) -> Figure | None:
    cases = widths(results)
    if len(cases) < 2:
        return None
    plot = chart("width", "cached step, ms", log_x=True, log_y=True)
    add_line(
        plot,
        "as many layers, random weights",
        [case.samples["width"] for case in cases],
        [case.samples["step_s"] for case in cases],
        number=0,
        scale=MS,
    )
    at_zero = nothing_to_do_s(results)
    ends = [cases[0].samples["width"], cases[-1].samples["width"]]
    if at_zero:
        add_line(plot, "at no width", ends, [[at_zero]] * 2, number=1, scale=MS, markers=False)
    plot.update_xaxes(tickvals=[case.samples["width"] for case in cases])
    operations = sorted(
        {
            sum(calls for calls, _ in trace["operations"].values())
            for c in cases
            for trace in c.samples["traces"]
        }
    )
    caption = (
        f"{count(ends[0])} wide the step takes {seconds(middle(cases[0].samples['step_s']))}, and "
        f"{count(ends[1])} wide {seconds(middle(cases[-1].samples['step_s']))}, with "
        f"{' to '.join(count(n) for n in dict.fromkeys((operations[0], operations[-1])))} operations each; a "
        f"line through the narrower ones over their bytes meets no width at {seconds(at_zero)}. That is the "
        f"overhead, kernels' starts included. {where(results)}."
    )
    return Figure("width", "The same layers, ever narrower", plot, caption)
