"""Documents of made-up runs, for the study's views, and how a visitor opens one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from page_fake import READY, events, make_plan, requests_of, review_of

from kshipra.metrics import fold
from kshipra.recipes import recipe_named
from kshipra.types import Finished, Plan, Ready, Started, StepEvent, plain
from kshipra.ui.record import Recording

Change = Callable[[str, list[StepEvent]], list[StepEvent]]  # (recipe, its steps) -> other steps


def document(
    plan: Plan | None = None,
    *,
    change: Change = lambda recipe, steps: steps,
    stopped: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """The document of `plan`; `change` rewrites a way's steps, `stopped` names the way that was stopped."""
    plan = plan or make_plan()
    recording, results = Recording(plan), {}
    spec = replace(READY.spec, name=model or READY.spec.name)
    recording.add(Ready(spec, "cpu", 2, READY.weight_bytes, READY.kv_bytes_per_token))
    for key in plan.recipes:
        requests = requests_of(plan)
        steps = change(key, list(events(recipe_named(key).mode, requests)))
        results[key] = fold(key, requests, steps)
        recording.add(Started(key, requests))
        recording.add(Finished(key, results[key], key == stopped))
    recording.add(review_of(results))
    found = recording.document()
    assert found is not None
    return plain(found) | {
        "machine": {"processor": "Fake CPU 9000", "system": "Linux", "memory_bytes": 1},
        "taken_at": "2026-02-03T12:00:00+00:00",
    }


def record_in(folder: Path, monkeypatch, **documents: dict[str, Any]) -> None:
    """Make `documents` the recorded runs that the page offers."""
    folder.mkdir(exist_ok=True)
    for name, content in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr("kshipra.ui.recorded.FOLDER", folder)


def give(page, content: dict | str | bytes, name: str = "run.json") -> None:
    """Choose a file as a person does."""
    page.click("#tab-export")
    text = json.dumps(content) if isinstance(content, dict) else content
    data = text if isinstance(text, bytes) else text.encode()
    page.set_input_files(".k-drop input", {"name": name, "mimeType": "", "buffer": data})


def give_good(page, content: dict | str, name: str = "run.json") -> None:
    give(page, content, name)
    page.wait_for_selector("#tab-race[aria-selected='true']")


def every(seconds: float, pads: int = 0) -> Change:
    """Steps that each take `seconds`, with `pads` pads, so that a test knows when what happens."""

    def steps_of(recipe: str, steps: list[StepEvent]) -> list[StepEvent]:
        return [
            replace(step, elapsed_s=seconds, at_s=seconds * (at + 1), pad_tokens=pads)
            for at, step in enumerate(steps)
        ]

    return steps_of
