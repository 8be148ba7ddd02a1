"""A page's server side as a visitor's clicks, and how to read what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from page_fake import CHOICE, FakeBackend

from kshipra.ui.form import Form
from kshipra.ui.handlers import run_handler
from kshipra.ui.lab import Handler, planting
from kshipra.ui.sessions import Sessions

FIELDS = Form(
    prompts=["One", "Two"],
    recipes=["no_cache", "kv_cache"],
    model="smollm2-135m-instruct",
    device="auto",
    dtype="auto",
    chat="raw",
    max_new_tokens=6,
    temperature=0,
    top_k=0,
    top_p=1,
    repetition_penalty=1,
    seed="",
)


@dataclass
class Bench:
    """A backend, its sessions, and the two buttons that begin a run."""

    backend: FakeBackend
    sessions: Sessions = field(default_factory=Sessions)
    record: str = ""  # the last that a run gave

    def run(self, session: str = "tab", **changes: Any) -> Iterator[str]:
        return self._press(self._handler(), session, changes)

    def plant(self, bug: object, session: str = "tab", **changes: Any) -> Iterator[str]:
        return self._press(planting(self._handler()), session, changes, bug)

    def _handler(self) -> Handler:
        return run_handler(self.backend, CHOICE, self.sessions)

    def _press(
        self, handler: Handler, session: str, changes: dict[str, Any], *before: object
    ) -> Iterator[str]:
        request = SimpleNamespace(session_hash=session)
        answers = handler(request, *before, *(vars(FIELDS) | changes).values())
        try:
            for text, self.record in answers:
                yield text
        finally:
            answers.close()


def lines(text: str) -> list[list]:
    return [json.loads(line) for line in text.splitlines()]


def last_status(text: str) -> list:
    return [line for line in lines(text) if line[0] == "status"][-1][1:]


def until(run: Iterator[str], sign: str) -> str:
    """Read `run` until its text holds `sign`."""
    return next(text for text in run if sign in text)
