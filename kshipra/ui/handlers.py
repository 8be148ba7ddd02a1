"""What the page's events do on the server: run and watch, follow a load, open a link. Never imports torch.

What is shown and when is `view`'s to decide; how it is drawn, the scripts' in assets/.
"""

from __future__ import annotations

import asyncio
import html
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from kshipra.backends.base import Backend, Run
from kshipra.errors import DoesNotFit, KshipraError, ModelError
from kshipra.limits import Limits
from kshipra.recipes import recipe_named
from kshipra.types import DeviceChoice, Loading, ModelChoice
from kshipra.ui import words
from kshipra.ui.form import Form, in_order, plan_of
from kshipra.ui.lines import line
from kshipra.ui.links import form_of
from kshipra.ui.record import Recording, to_json
from kshipra.ui.sessions import Sessions
from kshipra.ui.view import RunView, estimate_text, model_text, refusal

WAKE_EVERY_S = 0.3  # drawn without a GPU, an update costs 30 ms of a core, of the machine that also computes
LOADING_POLL_S = 0.4
MOST_STEPS = 20_000  # some 10 MB of JSON

_log = logging.getLogger(__name__)


def watch(run: Run, view: RunView, recording: Recording) -> Iterator[tuple[str, str]]:
    """The stage's whole text, each time it has grown, at most once every WAKE_EVERY_S; and, once the run has
    ended, its record."""
    text = view.lines(time.monotonic())
    yield text, ""
    while not view.ended:
        woken_at = time.monotonic()
        messages = run.messages(0.5)
        view.add(messages)
        for message in messages:
            recording.add(message)
        if new := view.lines(time.monotonic()):
            text += new
            yield text, study_text(recording) if view.ended else ""
        time.sleep(max(0.0, woken_at + WAKE_EVERY_S - time.monotonic()))


def study_text(recording: Recording) -> str:
    """The record for the page, or the sentence that stands for one that no browser should hold."""
    if recording.steps > MOST_STEPS:
        return to_json({"left_out": words.STUDY_TOO_LONG.format(steps=recording.steps, most=MOST_STEPS)})
    document = recording.document()
    return to_json(document) if document else ""


def run_handler(
    backend: Backend, choice: ModelChoice, sessions: Sessions
) -> Callable[..., Iterator[tuple[str, str]]]:
    """What Run does. However it ends (stopped, tab closed, error), its run is stopped and forgotten."""

    def start(request: gr.Request, *fields: Any) -> Iterator[tuple[str, str]]:
        run_id, session = uuid.uuid4().hex, str(request.session_hash)
        try:
            plan = in_order(plan_of(Form(*fields), choice, backend.limits))
            run = backend.submit(plan)
        except KshipraError as error:
            yield refusal(run_id, str(error)), ""
            return
        except Exception:
            _log.exception("a plan was not taken")
            yield refusal(run_id, words.BUG), ""
            return
        sessions.begin(session, run)
        text = ""
        try:
            ways = tuple(map(recipe_named, plan.recipes))
            view = RunView(run_id, ways, plan.prompts, ragged=plan.ragged, reuse=plan.reuse)
            for text, record in watch(run, view, Recording(plan)):
                yield text, record
        except Exception:
            _log.exception("a run could not be shown")
            yield text + line("status", "failed", words.BUG) + line("over"), ""
        finally:
            sessions.end(session, run)

    return start


def estimator(backend: Backend, choice: ModelChoice) -> Callable[..., str]:
    """Says under the form what its plan takes of memory, or why its model cannot be had."""

    def say(*fields: Any) -> str:
        try:
            found = backend.estimate(in_order(plan_of(Form(*fields), choice, backend.limits)))
            found.check()
        except DoesNotFit as error:
            return line("run", str(error))
        except ModelError as error:
            return line("model", error.in_public if backend.limits.public else str(error))
        except KshipraError:
            return line("unfinished", "")  # Run says it
        except Exception:
            _log.exception("an estimate could not be made")
            return line("unfinished", "")
        return line("fits", estimate_text(found))

    return say


def model_watcher(backend: Backend) -> Callable[[], AsyncIterator[str]]:
    """The header's model line, until there is a model or a reason why not. Asynchronous: who waits here holds
    no thread."""

    async def follow() -> AsyncIterator[str]:
        while isinstance(message := backend.model(), Loading | None):
            yield line("model", model_text(message))
            await asyncio.sleep(LOADING_POLL_S)
        yield line("model", model_text(message))

    return follow


def link_opener(
    choice: ModelChoice, devices: Sequence[DeviceChoice], first: Form, limits: Limits
) -> Callable[[gr.Request], list[Any]]:
    """Fills the form in from the page's address; what the form would not take is said, and changes
    nothing."""

    def restore(request: gr.Request) -> list[Any]:
        unchanged = [gr.skip() for _ in vars(first)]
        try:
            form = form_of(request.query_params, first, choice, [device.name for device in devices], limits)
        except KshipraError as error:
            gr.Warning(html.escape(words.LINK["refused"].format(sentence=error)))
            return unchanged
        return unchanged if form is None else list(vars(form).values())

    return restore
