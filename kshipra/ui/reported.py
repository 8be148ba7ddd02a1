"""A results file as the page shows it: its report, and what was measured where, as plain data. No gradio.

Runs in a process of its own (`python -m kshipra.ui.reported`): a file can come from anywhere, and arithmetic
on it must neither keep the page's process from answering nor take its memory. No torch there either.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import Any

from kshipra.errors import InputError
from kshipra.experiments.report import report_of
from kshipra.experiments.report.parts import Figure, Report, Table, where
from kshipra.experiments.results import FORMAT, VERSION, Results, from_document, parsed
from kshipra.ui import words

MOST_MEMORY_BYTES = 3 * 2**30  # of addresses, most of which are libraries

MOST_CHARS = 400  # of a refusal: a library's own may be a page
# Plotly reads tags, entities and %{...} in its texts. A report may mean them, a file never: what they begin
# with is exchanged for private characters before the report is made, and back afterwards, in a figure as
# entities.
_VEILED = {ord("<"): "\ue000", ord(">"): "\ue001", ord("&"): "\ue002", ord("{"): "\ue003"}
_HALVES = dict.fromkeys(range(55296, 57344), "�")  # of characters, alone: no text
_VEIL = {**_HALVES, **{0xE000 + at: None for at in range(4)}, **_VEILED}
_AS_TEXT = {0xE000: "<", 0xE001: ">", 0xE002: "&", 0xE003: "{"}
_AS_LABEL = {0xE000: "&lt;", 0xE001: "&gt;", 0xE002: "&amp;", 0xE003: "&#123;"}


def _translated(value: Any, table: dict[int, str | None]) -> Any:
    """`value` with every string in it, keys included, translated."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, dict):
        return {key.translate(table): _translated(item, table) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_translated(item, table) for item in value]
    return value


def shown(text: str, name: str) -> dict[str, Any]:
    """The report on a results file's `text`, as the page's script takes it. InputError where it is none."""
    try:
        results = from_document(parsed(text, name), name)
        document = {"format": FORMAT, "version": VERSION, **asdict(results)}
        results = from_document(_translated(document, _VEIL), name)
        report = report_of(results)
        facts, note = _facts(results), _note(results)
        parts = [_part(part) for part in report.parts]
    except InputError as error:
        raise InputError(" ".join(str(error).translate(_AS_TEXT).split())[:MOST_CHARS]) from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(words.EXPERIMENTS["damaged"].format(file=name)) from error
    return {**_translated(_head(report) | {"note": note, "facts": facts}, _AS_TEXT), "parts": parts}


def _head(report: Report) -> dict[str, Any]:
    return {"title": report.title, "question": report.question, "answers": list(report.answers)}


def _days(results: Results) -> str:
    days = sorted({case.taken_at[:10] for case in results.cases})
    return days[0] if len(days) == 1 else f"{days[0]} – {days[-1]}"


def _note(results: Results) -> str:
    machine = results.machine.get("gpu") or results.machine["processor"]
    return words.EXPERIMENTS["note"].format(machine=machine, days=_days(results))


def _facts(results: Results) -> list[tuple[str, str]]:
    """What the samples depend on, as pairs of label and text."""
    said = words.EXPERIMENTS["facts"]
    grid = "quick" if results.settings.get("quick") else "full"
    state = "finished" if results.finished else "unfinished"
    versions = ", ".join(f"{name} {found}" for name, found in results.versions.items() if found)
    return [
        (said["where"], where(results)),
        (said["days"], _days(results)),
        (said["grid"], said[grid]),
        (said["state"], said[state].format(n=len(results.cases))),
        (said["versions"], versions),
        (said["commit"], results.commit or said["noCommit"]),
    ]


def _part(part: Figure | Table) -> dict[str, Any]:
    words_of = _translated({"title": part.title, "caption": part.caption}, _AS_TEXT)
    if isinstance(part, Table):
        return words_of | _translated({"columns": part.columns, "rows": part.rows}, _AS_TEXT)
    plot = _translated(json.loads(part.plot.to_json()), _AS_LABEL)
    plot["layout"].pop("template", None)  # the page has its own, light and dark
    return words_of | {"data": plot["data"], "layout": plot["layout"]}


def main() -> int:
    """{"text", "name"} from stdin; {"report"} or {"refused"} on stdout."""
    _bound_memory()
    asked = json.load(sys.stdin)
    try:
        answer = {"report": shown(asked["text"], asked["name"])}
    except InputError as error:
        answer = {"refused": str(error)}
    json.dump(answer, sys.stdout, allow_nan=False)
    return 0


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    with contextlib.suppress(ValueError, OSError):  # macOS knows the limit and does not take it
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


if __name__ == "__main__":
    sys.exit(main())
