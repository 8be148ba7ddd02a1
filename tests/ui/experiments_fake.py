"""Results of an experiment and a report on them, for the page's tests: every kind of part, with strings of
the file in every place that a report may put one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kshipra.experiments import Experiment
from kshipra.experiments.report.parts import (
    Figure,
    Report,
    Table,
    add_bars,
    add_line,
    add_published,
    chart,
    where,
)
from kshipra.experiments.results import FILE, FORMAT, VERSION, Results
from kshipra.ui import reported, shelf

CONTEXTS = (8, 32, 128, 512, 1024)
NASTY = (
    "<script>window.pwned=1</script><img src=x onerror=window.pwned=1> {{7*7}} ${7*7} <b>bold</b> &lt; %{x}"
)


def document(name: str = "kv-cache", *, text: str = "", **changes: Any) -> dict[str, Any]:
    """A results file; `text` goes into every string that a report shows."""
    cases = [
        {
            "name": f"{way}, {context} tokens{text}",
            "settings": {"way": way, "context": context},
            "samples": {"step_s": [base + slope * context + 1e-4 * n for n in range(3)]},
            "took_s": 1.5,
            "taken_at": "2026-07-04T12:00:00+00:00",
        }
        for way, base, slope in ((f"no cache{text}", 0.02, 1e-3), (f"cache{text}", 0.04, 1e-6))
        for context in CONTEXTS
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "experiment": name,
        "settings": {"model": f"gpt2{text}", "device": "cpu", "dtype": "auto", "quick": True},
        "model": {
            "name": f"GPT-2 small{text}", "weights_from": "random", "dtype": "float32", "device": "cpu",
            "threads": 2,
        },
        "machine": {"processor": f"A processor of 2026{text}"},
        "versions": {"python": "3.11", "torch": f"2.9{text}", "gradio": None},
        "commit": "abc123456789",
        "finished": True,
        "cases": cases,
    } | changes  # fmt: skip


def report(results: Results) -> Report:
    ways = list(dict.fromkeys(case.settings["way"] for case in results.cases))
    lines, bars = chart("context, tokens", "step, ms", log_x=True, log_y=True), chart("", "step, ms")
    for number, way in enumerate(ways):
        cases = results.of(way=way)
        samples = [case.samples["step_s"] for case in cases]
        add_line(lines, way, [case.settings["context"] for case in cases], samples, number=number, scale=1e3)
        add_bars(bars, way, [cases[-1].name], samples[-1:], number=number, scale=1e3)
    add_published(lines, "study B, no cache", (10, 100, 500, 1000), (4.89, 5.2, 12.7, 29.69))
    last = results.cases[-1]
    step_ms = max(last.samples["step_s"]) * 1e3
    title, caption = f"Step by context, {results.model['name']}", f"Measured on {where(results)}."
    rows = tuple((case.name, str(len(case.samples["step_s"]))) for case in results.cases)
    return Report(
        "A step's time at every context",
        "How do step times grow with the context?",
        (f"The last step, {last.name}, took at most {step_ms:.1f} ms.", "The study's were faster."),
        (
            Figure("steps", title, lines, caption),
            Figure("bars", "The last context", bars, "Bars from the least to the greatest of three."),
            Table("table", "All cases", ("case", "samples"), rows, "Three samples each."),
        ),
    )  # fmt: skip


def put(folder: Path, model: str, name: str = "kv-cache", **changes: Any) -> Path:
    path = folder / model / name / FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document(name, **changes)))
    return path


@contextmanager
def fake_reports(folder: Path) -> Iterator[None]:
    """A shelf of two results, and the report above for every experiment, made in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "FOLDER", folder)
        patch.setattr(shelf, "report_in_own_process", reported.shown)
        patch.setattr(Experiment, "reporting", lambda experiment: SimpleNamespace(report=report))
        put(folder, "gpt2")
        put(folder, "smollm2-135m-instruct", "floor")
        yield
