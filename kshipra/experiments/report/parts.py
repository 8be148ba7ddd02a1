"""What a report is made of, and how its figures look: lines with their spread, units on every axis, and an
author's published points as theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import plotly.graph_objects as go

from kshipra.experiments.results import Results

# The palette of the page (assets/page.css); dashes tell lines apart without colour.
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#65a30d", "#db2777")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")
PUBLISHED = "#6b7280"  # grey: not measured here
PUBLISHED_META = "published"  # of such a trace, by which the page finds it


@dataclass(frozen=True)
class Figure:
    """`caption`: a sentence or two made from the numbers."""

    key: str  # of its file
    title: str
    plot: go.Figure
    caption: str


@dataclass(frozen=True)
class Table:
    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # as they are shown
    caption: str


@dataclass(frozen=True)
class Report:
    """`answers`: sentences made from the numbers that answer the experiment's question, what contradicts a
    study included."""

    title: str
    question: str
    answers: tuple[str, ...]
    parts: tuple[Figure | Table, ...]


def where(results: Results) -> str:
    """What was measured on what, for a caption: model, weights, device, machine."""
    model = results.model
    weights = "random weights" if model["weights_from"] == "random" else "published weights"
    if model["name"].endswith("random weights"):  # it says so itself
        weights = "seeded"
    return (
        f"{model['name']} ({weights}, {model['dtype']}) on {model['device']}, {model['threads']} threads, "
        f"{results.machine.get('gpu') or results.machine['processor']}"
    )


def middle(samples: Sequence[float]) -> float:
    """The median: one slow moment of a shared machine does not move it."""
    return median(samples)


def chart(x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> go.Figure:
    """An empty figure; `x` and `y` are the axes' titles with their units."""
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        font={"family": "IBM Plex Sans, system-ui, sans-serif", "size": 14},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        margin={"l": 70, "r": 20, "t": 60, "b": 60},
        hovermode="closest",
    )
    figure.update_xaxes(title=x, type="log" if log_x else "-")
    figure.update_yaxes(title=y, type="log" if log_y else "linear", rangemode="normal" if log_y else "tozero")
    for axis, is_log in ((figure.layout.xaxis, log_x), (figure.layout.yaxis, log_y)):
        if is_log:
            axis.dtick = "D2"  # 1, 2 and 5 of every decade: all nine digits run into each other
    return figure


def add_line(
    figure: go.Figure,
    name: str,
    x: Sequence[float],
    samples: Sequence[Sequence[float]],
    *,
    number: int,
    scale: float = 1.0,
    markers: bool = True,
) -> None:
    """Medians of the samples at each x, times `scale`, with bars from the least to the greatest. `number`
    picks colour and dash."""
    figure.add_trace(
        go.Scatter(
            x=list(x),
            **_medians(samples, scale),
            name=name,
            mode="lines+markers" if markers else "lines",
            line={"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]},
            marker={"size": 6},
        )
    )


def add_bars(
    figure: go.Figure,
    name: str,
    x: Sequence[str],
    samples: Sequence[Sequence[float]],
    *,
    number: int,
    scale: float = 1.0,
) -> None:
    """As `add_line`, in bars over named places."""
    colour = COLOURS[number % len(COLOURS)]
    figure.add_trace(go.Bar(x=list(x), **_medians(samples, scale), name=name, marker_color=colour))


def _medians(samples: Sequence[Sequence[float]], scale: float) -> dict[str, Any]:
    """A trace's heights, with bars from the least to the greatest where there is a spread."""
    middles = [middle(values) * scale for values in samples]
    above = [max(values) * scale - m for values, m in zip(samples, middles, strict=True)]
    below = [m - min(values) * scale for values, m in zip(samples, middles, strict=True)]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "visible": any(above) or any(below),
        "thickness": 1,
        "width": 2,
    }
    return {"y": middles, "error_y": bars}


def add_published(figure: go.Figure, name: str, x: Sequence, y: Sequence[float]) -> None:
    """An author's own numbers, in grey diamonds and named as theirs; never part of ours."""
    figure.add_trace(
        go.Scatter(
            x=list(x),
            y=list(y),
            name=name,
            mode="markers",
            meta=PUBLISHED_META,
            marker={"symbol": "diamond-open", "size": 10, "color": PUBLISHED, "line": {"width": 2}},
        )
    )
