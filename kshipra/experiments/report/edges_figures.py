"""Figures and tables of the pairs at tiles' ends, and of the products at every length."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from kshipra.experiments.report import study
from kshipra.experiments.report.edges import PERIODS, Edges, Ladder, Place, estimate, median_within
from kshipra.experiments.report.fits import Estimate
from kshipra.experiments.report.parts import (
    COLOURS,
    Figure,
    Table,
    add_line,
    add_published,
    chart,
    middle,
    where,
)
from kshipra.experiments.report.staircase_series import ALONE, PRODUCTS
from kshipra.experiments.results import Results
from kshipra.ui.show import DASH, count, digits, percent

SYMBOLS = {True: "circle", False: "circle-open"}  # at an edge, beside one
APART = 4  # tokens, between what would lie on top of one another


def limits(found: Estimate) -> str:
    """The median, and between what it is known to lie: "1.2 % (0.3 to 2 %)"."""
    if not math.isfinite(found.low):
        return percent(found.value)
    return f"{percent(found.value)} ({digits(found.low * 100)} to {percent(found.high)})"


def add_rises(plot: go.Figure, label: str, places: list[Place], name: str, *, number: int) -> None:
    found = [estimate([place], name) for place in places]
    known = [rise for rise in found if math.isfinite(rise.low)]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [(rise.high - rise.value) * 100 for rise in found],
        "arrayminus": [(rise.value - rise.low) * 100 for rise in found],
        "thickness": 1,
        "visible": len(known) == len(found),
    }
    plot.add_trace(
        go.Scatter(
            x=[place.tokens + APART * number for place in places],
            y=[rise.value * 100 for rise in found],
            error_y=bars,
            name=label,
            mode="markers",
            marker={"size": 8, "symbol": SYMBOLS[places[0].is_edge], "color": COLOURS[number]},
        )
    )


def edges_figure(found: Edges, results: Results) -> Figure:
    plot = chart("context, tokens", "rise to one token more, % of a step")
    for number, (name, label) in enumerate((("step", "whole step"), ("products", "products alone"))):
        add_rises(plot, f"{label}, where a tile ends", found.at, name, number=number)
        if found.beside:
            add_rises(plot, f"{label}, where none ends", found.beside, name, number=number)
    add_published(plot, f"jumps of {study.STUDY_B}", study.B_JUMPS, [0] * len(study.B_JUMPS))
    plot.update_xaxes(range=[0, found.at[-1].tokens * 1.05])
    every, first = found.groups[0], found.at[0]
    caption = (
        f"Pairs taken in turns, {count(len(first.step))} of the step and {count(len(first.products))} of "
        "each product a place, beyond the arithmetic of one token: medians, which lie within the bars 95 "
        f"times in 100. All tiles' ends together: the step {limits(every.step)}, its products "
        f"{limits(every.products)}. {where(results)}."
    )
    return Figure("edges", "One token more where a tile ends", plot, caption)


def edges_table(found: Edges) -> Table:
    rows = tuple(
        (
            f"{count(place.tokens)} to {count(place.tokens + 1)}",
            "yes" if place.is_edge else "no",
            limits(estimate([place], "step")),
            limits(estimate([place], "products")),
            "yes" if place.tokens in study.B_JUMPS else "no",
        )
        for place in sorted((*found.at, *found.beside), key=lambda place: place.tokens)
    )
    columns = ("tokens", "end of a tile", "step", "its products", "study B jumps")
    caption = (
        "Rises beyond the arithmetic of one token, of a step; in brackets where the median lies 95 times in "
        "100."
    )
    return Table("edges", "One token more", columns, rows, caption)


def groups_table(found: Edges) -> Table:
    rows = tuple(
        (
            group.label,
            count(len(group.places)),
            limits(group.step),
            limits(group.products),
        )
        for group in (*found.groups, *([found.control] if found.control else []))
    )
    columns = ("at", "places", "step", "its products")
    caption = "The same by what a tile of so many rows would end at: all pairs of these places together."
    return Table("tiles", "One token more, by tile", columns, rows, caption)


def products_table(found: Edges) -> Table:
    """Each part beside its own time."""
    rows = tuple(
        (
            label,
            limits(estimate(found.at, name)),
            limits(estimate(found.beside, name)) if found.beside else DASH,
        )
        for name, label in ALONE.items()
    )
    columns = ("part", "where a tile ends", "where none ends")
    caption = (
        "Rises beyond the arithmetic of one token, of the part's own time; all places together. The head on "
        "all positions is part of study B's step, not of this one."
    )
    return Table("rises", "One token more, part by part", columns, rows, caption)


def ladder_figure(found: Ladder, results: Results) -> Figure:
    plot = chart("context, tokens", "time per token of context, µs", log_y=True)
    for number, (name, label) in enumerate(PRODUCTS.items()):
        samples = [[value / n] for n, value in zip(found.lengths, found.taken_s[name], strict=True)]
        add_line(plot, label, found.lengths, samples, number=number, scale=1e6, markers=False)
    for tokens in study.B_JUMPS:
        if tokens <= found.lengths[-1]:
            plot.add_vline(tokens, line={"color": "#6b7280", "dash": "dot", "width": 1})
    per_token = [value / n * 1e6 for n, value in zip(found.lengths, found.products_s, strict=True)]
    caption = (
        f"One call at each of {count(len(found.lengths))} lengths, times the layers; all products together "
        f"take {digits(middle(per_token))} µs a token at the median length. Dotted: the contexts of "
        f"{study.STUDY_B}'s jumps. {where(results)}."
    )
    return Figure("ladder", "Each product at every length", plot, caption)


def periods_table(found: Ladder) -> Table:
    rows = [
        (f"a multiple of {period}", count(len(rises)), limits(median_within(rises)))
        for period in PERIODS
        if (rises := found.after(period))
    ]
    rows.append(
        (
            f"no multiple of {PERIODS[0]}",
            count(len(found.elsewhere())),
            limits(median_within(found.elsewhere())),
        )
    )
    columns = ("from", "lengths", "rise to the next")
    caption = "All products at every length: rises beyond the arithmetic of one token, of their own time."
    return Table("periods", "One token more, at every length", columns, tuple(rows), caption)
