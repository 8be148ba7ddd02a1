"""The staircase's figures and tables."""

from __future__ import annotations

import plotly.graph_objects as go

from kshipra.experiments.report import study
from kshipra.experiments.report.jumps import LEAST_JUMP, NOISES, near
from kshipra.experiments.report.parts import Figure, Table, add_line, add_published, chart, middle, where
from kshipra.experiments.report.staircase_series import ALONE, PARTS, PRODUCTS, Series, at
from kshipra.experiments.results import Results
from kshipra.ui.show import count, digits, percent, seconds

MS = 1e3


def add_study(plot: go.Figure, taken: Series) -> None:
    """Where the study saw jumps, on the axis, and the lengths that were measured here as the axis."""
    add_published(plot, f"jumps of {study.STUDY_B}", study.B_JUMPS, [0] * len(study.B_JUMPS))
    plot.data[-1].cliponaxis = False
    plot.update_xaxes(range=[0, taken.lengths[-1] * 1.03])


def step_figure(taken: Series, results: Results) -> Figure:
    plot = chart("context, tokens", "uncached step, ms")
    add_line(plot, "whole step", taken.lengths, taken.taken_s["step"], number=0, scale=MS, markers=False)
    for number, (names, label) in enumerate(
        ((PARTS, "products and attention alone"), (PRODUCTS, "products alone")), start=1
    ):
        samples = [
            [sum(values) for values in zip(*(taken.taken_s[name][place] for name in names), strict=True)]
            for place in range(len(taken.lengths))
        ]
        add_line(plot, label, taken.lengths, samples, number=number, scale=MS, markers=False)
    add_study(plot, taken)
    step = taken.taken_s["step"]
    caption = (
        f"The step takes {seconds(middle(step[0]))} at {count(taken.lengths[0])} tokens and "
        f"{seconds(middle(step[-1]))} at {count(taken.lengths[-1])}; medians of {count(len(step[0]))} sweeps "
        f"in orders of their own, bars from least to greatest, one layer's products times the layers. "
        f"{where(results)}."
    )
    return Figure("step", "The whole step and its products alone", plot, caption)


def excess_figure(taken: Series, results: Results) -> Figure | None:
    if taken.whole is None:
        return None
    plot = chart("context, tokens", "rise beyond the local line, % of the time")
    for number, (found, label) in enumerate(
        ((taken.whole, "whole step"), (taken.products, "products alone"))
    ):
        add_line(
            plot, label, found.lengths, [[e] for e in found.excess], number=number, scale=100, markers=False
        )
    ends = [taken.lengths[0], taken.lengths[-1]]
    limit = [[taken.whole.threshold]] * 2
    add_line(plot, "a jump of the step", ends, limit, number=4, scale=100, markers=False)
    add_study(plot, taken)
    caption = (
        f"Above {percent(taken.whole.threshold)} it is a jump: {digits(NOISES)} times the usual scatter "
        f"(median absolute deviation), at least {percent(LEAST_JUMP)}. The step has "
        f"{count(len(taken.whole.at))}, and {count(taken.whole.drops)} drops by the same rule upside down; "
        f"its products have {count(len(taken.products.at))}. {where(results)}."
    )
    return Figure("excess", "Where the step and its products jump", plot, caption)


def parts_figure(taken: Series, results: Results) -> Figure:
    plot = chart("context, tokens", "time per token of context, µs", log_y=True)
    for number, (name, label) in enumerate(ALONE.items()):
        samples = [
            [value / tokens for value in values]
            for tokens, values in zip(taken.lengths, taken.taken_s[name], strict=True)
        ]
        add_line(plot, label, taken.lengths, samples, number=number, scale=1e6, markers=False)
    ends = [
        f"{digits(min(taken.taken_s['mlp_in'][place]) / taken.lengths[place] * 1e6)} µs at "
        f"{count(taken.lengths[place])}"
        for place in (0, -1)
    ]
    caption = (
        "A product that takes the same for every token lies level, and one more tile lifts it: MLP in "
        f"takes at best {ends[0]} tokens and {ends[1]}. {where(results)}."
    )
    return Figure("parts", "Each product alone, per token", plot, caption)


def jumps_table(taken: Series) -> Table | None:
    whole = taken.whole
    if whole is None or not whole.at:
        return None
    rows = []
    for tokens in whole.at:
        place = whole.lengths.index(tokens)
        rises = {name: taken.jumps(name).seconds[place] for name in PARTS}
        rows.append(
            (
                count(tokens),
                seconds(whole.seconds[place]),
                percent(whole.excess[place]),
                seconds(taken.products.seconds[place]),
                PARTS[max(rises, key=rises.__getitem__)],
                "yes" if near((tokens,), study.B_JUMPS, taken.within) else "no",
            )
        )
    columns = ("to tokens", "rise", "of the step", "products' rise", "most of it", "near study B's")
    caption = f"Rises beyond the local line; near is within {count(taken.within)} tokens."
    return Table("jumps", "The jumps of the step", columns, tuple(rows), caption)


def parts_table(taken: Series) -> Table | None:
    if taken.whole is None:
        return None
    step = taken.least("step")
    rows = []
    for name, label in ALONE.items():
        found = taken.jumps(name)
        rows.append(
            (
                label,
                seconds(taken.least(name)[-1]),
                percent(taken.least(name)[-1] / step[-1]) if name in PARTS else "not in it",
                at(found.at) if found.at else "none",
                count(len(near(found.at, taken.whole.at, taken.within))),
            )
        )
    columns = ("part", "alone", "of the step", "jumps at", "where the step jumps")
    caption = (
        f"Least times of all layers at {count(taken.lengths[-1])} tokens. The step has its head on the last "
        "position only; the head on all positions is part of study B's step."
    )
    return Table("parts", "The parts alone", columns, tuple(rows), caption)
