"""The page's wiring: components, events, and the generator that turns a run's messages into the stage's text.

What is shown and when is `view`'s to decide; how it is drawn, the scripts' in assets/. Never imports torch.
"""

from __future__ import annotations

import asyncio
import html
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr

from kshipra.backends.base import Backend, Run
from kshipra.errors import KshipraError
from kshipra.recipes import LAB_RECIPES, RECIPE_KEYS, RECIPES, recipe_named
from kshipra.types import Loading, ModelChoice
from kshipra.ui import recorded, words
from kshipra.ui.endpoint import compare_endpoint
from kshipra.ui.fields import ASSETS, lab, rail, script
from kshipra.ui.form import Form, in_order, plan_of
from kshipra.ui.lab import planting
from kshipra.ui.lines import line
from kshipra.ui.links import copy_script, form_of
from kshipra.ui.record import Recording, to_json
from kshipra.ui.sessions import Sessions
from kshipra.ui.theme import theme
from kshipra.ui.view import RunView, model_text, refusal

WAKE_EVERY_S = 0.3  # drawn without a GPU, an update costs 30 ms of a core, of the machine that also computes
QUEUE_POLL_S = (
    0.05  # Gradio's own on Windows; its 1 ms elsewhere wakes a thousand times a second, 5 % of a core
)
WATCHERS = 24  # runs that may be watched or wait at once: each holds one of Gradio's forty threads
LOADING_POLL_S = 0.4
PLOTLY = Path(str(resources.files("plotly") / "package_data" / "plotly.min.js"))

_SETTLED = "() => { document.dispatchEvent(new CustomEvent('kshipra:settled')); }"
_SHOW_RECIPES = (
    "(recipes) => { document.dispatchEvent(new CustomEvent('kshipra:form', { detail: { recipes } })); }"
)

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
            document = recording.document() if view.ended else None
            yield text, to_json(document) if document else ""
        time.sleep(max(0.0, woken_at + WAKE_EVERY_S - time.monotonic()))


def run_handler(
    backend: Backend, choice: ModelChoice, sessions: Sessions
) -> Callable[..., Iterator[tuple[str, str]]]:
    """What Run does. However it ends (stopped, tab closed, error), its run is stopped and forgotten."""

    def start(request: gr.Request, *fields: Any) -> Iterator[tuple[str, str]]:
        run_id, session = uuid.uuid4().hex, str(request.session_hash)
        try:
            plan = in_order(plan_of(Form(*fields), choice))
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
            view = RunView(run_id, tuple(map(recipe_named, plan.recipes)), plan.prompts)
            for text, record in watch(run, view, Recording(plan)):
                yield text, record
        except Exception:
            _log.exception("a run could not be shown")
            yield text + line("status", "failed", words.BUG) + line("over"), ""
        finally:
            sessions.end(session, run)

    return start


def model_watcher(backend: Backend) -> Callable[[], AsyncIterator[str]]:
    """The header's model line, until nothing loads any more. Asynchronous: who waits here holds no thread."""

    async def follow() -> AsyncIterator[str]:
        while isinstance(message := backend.model(), Loading):
            yield line("model", model_text(message))
            await asyncio.sleep(LOADING_POLL_S)
        yield line("model", model_text(message))

    return follow


def link_opener(backend: Backend, choice: ModelChoice, first: Form) -> Callable[[gr.Request], list[Any]]:
    """Fills the form in from the page's address; what the form would not take is said, and changes
    nothing."""

    def restore(request: gr.Request) -> list[Any]:
        unchanged = [gr.skip() for _ in vars(first)]
        try:
            form = form_of(request.query_params, first, choice, [device.name for device in backend.devices()])
        except KshipraError as error:
            gr.Warning(html.escape(words.LINK["refused"].format(sentence=error)))
            return unchanged
        return unchanged if form is None else list(vars(form).values())

    return restore


def _plotly_address() -> str:
    gr.set_static_paths([PLOTLY])
    return f"gradio_api/file={PLOTLY.as_posix()}"


def _header(first_line: str) -> gr.HTML:
    logo = (ASSETS / "logo.svg").read_text(encoding="utf-8")
    return gr.HTML(
        first_line,
        elem_id="header",
        html_template="<header class='k-header'><div class='k-brand'>"
        f"{logo}<h1>{html.escape(words.NAME)}</h1><p>{html.escape(words.SENTENCE)}</p></div>"
        "<div class='k-model'></div></header>",
        js_on_load=script("header.js"),
        apply_default_css=False,
        page={"words": words.HEADER},
    )


def _stage() -> gr.HTML:
    named = ("key", "label", "definition")
    return gr.HTML(
        "",
        elem_id="stage",
        html_template="<div class='k-stage'></div>",
        js_on_load=script("dom.js", "frames.js", "charts.js", "columns.js", "page.js"),
        apply_default_css=False,
        page={
            "words": words.PAGE,
            "recipes": [
                {"key": r.key, "letter": r.letter, "label": r.label, "sentence": r.sentence}
                for r in (*RECIPES, *LAB_RECIPES)
            ],
            "picked": list(RECIPE_KEYS),
            "figures": [dict(zip(named, figure, strict=True)) for figure in words.FIGURES],
            "charts": [dict(zip((*named[:2], "note", named[2]), c, strict=True)) for c in words.CHARTS],
            "summary": [{"label": label, "definition": text} for label, text in words.SUMMARY],
            "plotly": _plotly_address(),
        },
    )


def _study() -> gr.HTML:
    gr.set_static_paths([recorded.FOLDER])
    return gr.HTML(
        "",
        elem_id="study",
        html_template="<div class='k-study'></div>",
        js_on_load=script(
            "dom.js",
            "record.js",
            "race.js",
            "timeline.js",
            "proof_box.js",
            "proof_tokens.js",
            "proof_lab.js",
            "proof.js",
            "prediction.js",
            "check_record.js",
            "figures.js",
            "report.js",
            "export.js",
            "runs.js",
            "history.js",
            "study.js",
        ),
        apply_default_css=False,
        page={
            "words": words.STUDY,
            "recorded": recorded.runs(),
            "charts": [dict(zip(("key", "label", "note"), chart, strict=False)) for chart in words.CHARTS],
            "summary_heads": [label for label, _ in words.SUMMARY],
            "report_css": (ASSETS / "report.css").read_text(encoding="utf-8"),
        },
    )


def _status() -> None:
    gr.HTML(
        "",
        elem_id="status-slot",
        html_template="<div class='k-status'>"
        "<div id='status' role='status' aria-live='polite' data-state='idle'>"
        f"<i aria-hidden='true'></i><span>{html.escape(words.PAGE['idle'])}</span></div>"
        "<div id='live-rate' aria-hidden='true'></div></div>",
        js_on_load=None,
        apply_default_css=False,
    )


def build_page(backend: Backend, choice: ModelChoice) -> gr.Blocks:
    """The page of `backend`, with `choice` as its first model, device and precision."""
    sessions = Sessions()
    with gr.Blocks(title=words.NAME, fill_width=True, analytics_enabled=False) as page:
        header = _header(line("model", model_text(backend.model())))
        with gr.Row(elem_id="bench"):
            with gr.Column(elem_id="rail", scale=0, min_width=300):
                gr.HTML(
                    "<button type='button' aria-expanded='false'></button>",
                    elem_id="rail-toggle",
                    html_template="${value}",
                    js_on_load=script("rail.js"),
                    apply_default_css=False,
                    page={"words": words.RAIL},
                )
                fields = rail(choice, backend.devices())
                bug, sentence, plant = lab()
                link = gr.Button(words.LINK["label"], size="sm", elem_id="copy-link")
            with gr.Column(elem_id="main", scale=1, min_width=300):
                with gr.Row(elem_id="toolbar"):
                    run = gr.Button("Run", variant="primary", elem_id="run", scale=0, min_width=110)
                    stop = gr.Button("Stop", elem_id="stop", scale=0, min_width=90)
                    _status()
                stage = _stage()
                study = _study()

        def stop_run(request: gr.Request) -> None:
            sessions.stop(str(request.session_hash))

        handler = run_handler(backend, choice, sessions)
        for button, start, inputs in (
            (run, handler, fields),
            (plant, planting(handler), [bug, *fields]),
        ):
            running = button.click(
                start,
                inputs=inputs,
                outputs=[stage, study],
                show_progress="hidden",
                api_visibility="private",
                concurrency_id="runs",  # both buttons' together
                concurrency_limit=WATCHERS,
                trigger_mode="once",
            )
            for event in (running.then, running.failure):  # `then` alone is silent after an error
                event(None, js=_SETTLED)
        bug.change(None, bug, sentence, js="(key) => key")
        fields[1].change(None, fields[1], js=_SHOW_RECIPES)
        stop.click(stop_run, queue=False, show_progress="hidden", api_visibility="private")
        page.load(
            model_watcher(backend),
            outputs=header,
            show_progress="hidden",
            api_visibility="private",
            concurrency_limit=None,
        )
        link.click(None, fields, js=copy_script(words.LINK), api_visibility="private")
        page.load(
            link_opener(backend, choice, Form(*(field.value for field in fields))),
            outputs=fields,
            show_progress="hidden",
            api_visibility="private",
            concurrency_limit=None,
        )
        page.unload(stop_run)
        gr.api(compare_endpoint(backend, choice), api_name="compare", concurrency_limit=WATCHERS)
    page.queue(max_size=64, default_concurrency_limit=None)
    page._queue.sleep_when_free = QUEUE_POLL_S
    return page


def launch_options() -> dict[str, Any]:
    """What Gradio 6 takes at `launch`, not at `Blocks`."""
    return {
        "theme": theme(),
        "css_paths": [ASSETS / "page.css", ASSETS / "study.css"],
        "head": '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "favicon_path": ASSETS / "logo.svg",
        "ssr_mode": False,
        "run_history": False,
        "footer_links": ["gradio"],
        "show_error": False,
        "mcp_server": find_spec("mcp") is not None,  # `compare` as a tool; requirements.txt brings it
    }
