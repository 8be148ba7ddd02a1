"""A report as files: report.html, which needs no network, and each figure as SVG and PNG."""

from __future__ import annotations

import html
from pathlib import Path

import plotly.io
from plotly.offline import get_plotlyjs

from kshipra.experiments.report.parts import Figure, Report, Table, where
from kshipra.experiments.results import Results

SIZE = {"width": 900, "height": 520}
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 "IBM Plex Sans", system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; color: #111827; background: #fff; }
table { border-collapse: collapse; } td, th { padding: .25rem .75rem; text-align: right;
  border-bottom: 1px solid #e5e7eb; font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; } .scroll { overflow-x: auto; }
figcaption, .where { color: #4b5563; } figure { margin: 2rem 0; }
"""


def save(report: Report, results: Results, folder: Path) -> tuple[list[Path], str | None]:
    """Write the report into `folder`: the files, and where there are no pictures one sentence that says
    why."""
    page = folder / "report.html"
    page.write_text(page_of(report, results), encoding="utf-8")
    try:
        return [page, *_pictures(report, folder)], None
    except Exception as error:  # whatever keeps a browser from starting is no reason to lose the figures
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return [page], (
            f"No SVG and PNG, because Chrome or Chromium could not draw them ({reason:.120}): install one, "
            "and draw again with --plots-only."
        )


def page_of(report: Report, results: Results) -> str:
    """The whole report as one HTML page with Plotly inside."""
    answers = "".join(f"<li>{html.escape(answer)}</li>" for answer in report.answers)
    parts = "".join(_figure(part) if isinstance(part, Figure) else _table(part) for part in report.parts)
    title = html.escape(report.title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><h1>{title}</h1><p>{html.escape(report.question)}</p>"
        f"<ul>{answers}</ul><p class=where>{html.escape(where(results))}. {_taken(results)}</p>"
        f"{parts}</body></html>"
    )


def _taken(results: Results) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in results.versions.items() if found)
    unfinished = "" if results.finished else " Unfinished: the run was stopped."
    day = results.cases[-1].taken_at[:10]
    return html.escape(f"{day}; {versions}; commit {results.commit or 'unknown'}.{unfinished}")


def _figure(figure: Figure) -> str:
    plot = plotly.io.to_html(
        figure.plot,
        full_html=False,
        include_plotlyjs=False,
        config={"responsive": True, "displaylogo": False},
    )
    return (
        f"<figure><h2>{html.escape(figure.title)}</h2>{plot}"
        f"<figcaption>{html.escape(figure.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f"<figure><h2>{html.escape(table.title)}</h2><div class=scroll><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div><figcaption>{html.escape(table.caption)}</figcaption></figure>"
    )


def _pictures(report: Report, folder: Path) -> list[Path]:
    figures = [part for part in report.parts if isinstance(part, Figure)]
    paths = [folder / f"{figure.key}.{kind}" for figure in figures for kind in ("svg", "png")]
    plots = [figure.plot for figure in figures for _ in ("svg", "png")]
    if plots:
        plotly.io.write_images(plots, paths, **SIZE)
    return paths
