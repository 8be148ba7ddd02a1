"""The page's wiring: which components there are and which event does what. Never imports torch."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import Any

import gradio as gr

from kshipra.backends.base import Backend
from kshipra.types import ModelChoice
from kshipra.ui import parts, words
from kshipra.ui.endpoint import compare_endpoint
from kshipra.ui.fields import ASSETS, lab, preset_script, rail
from kshipra.ui.files import routes
from kshipra.ui.form import Form
from kshipra.ui.handlers import estimator, link_opener, model_watcher, run_handler
from kshipra.ui.lab import planting
from kshipra.ui.lines import line
from kshipra.ui.links import NAMES as LINKED
from kshipra.ui.links import copy_script
from kshipra.ui.live import wire_live
from kshipra.ui.sessions import Sessions
from kshipra.ui.shelf import open_results
from kshipra.ui.theme import theme
from kshipra.ui.view import kept_text, model_text

# Gradio's own on Windows; its 1 ms elsewhere wakes a thousand times a second, 5 % of a core.
QUEUE_POLL_S = 0.05
WATCHERS = 24  # runs that may be watched or wait at once: each holds one of Gradio's forty threads

_SETTLED = "() => { document.dispatchEvent(new CustomEvent('kshipra:settled')); }"
_REPORT_LOST = "() => { document.dispatchEvent(new CustomEvent('kshipra:report-lost')); }"
_SHOW_RECIPES = (
    "(recipes) => { document.dispatchEvent(new CustomEvent('kshipra:form', { detail: { recipes } })); }"
)


def build_page(backend: Backend, choice: ModelChoice) -> gr.Blocks:
    """The page of `backend`, with `choice` as its first model, device and precision."""
    sessions, devices = Sessions(), backend.devices()
    with gr.Blocks(title=words.NAME, fill_width=True, analytics_enabled=False) as page:
        header = parts.header(line("model", model_text(backend.model())))
        with gr.Row(elem_id="bench"):
            with gr.Column(elem_id="rail", scale=0, min_width=300):
                parts.rail_toggle()
                fields, estimate, kept, clear = rail(choice, devices, backend.unavailable(), backend.limits)
                bug, sentence, plant = lab()
                link = gr.Button(words.LINK["label"], size="sm", elem_id="copy-link")
            with gr.Column(elem_id="main", scale=1, min_width=300):
                with gr.Row(elem_id="toolbar"):
                    run = gr.Button("Run", variant="primary", elem_id="run", scale=0, min_width=110)
                    stop = gr.Button("Stop", elem_id="stop", scale=0, min_width=90)
                    parts.status()
                stage = parts.stage()
                study = parts.study()
        experiments = parts.experiments()
        wire_live(page, parts.live(), backend, choice)

        def stop_run(request: gr.Request) -> None:
            sessions.stop(str(request.session_hash))

        def tell_kept() -> str:
            return kept_text(backend.kept())

        def forget_kept() -> str:
            backend.forget()
            return tell_kept()

        say = estimator(backend, choice)
        named = dict(zip((field.name for field in dataclasses.fields(Form)), fields, strict=True))
        sized = ("recipes", "model", "device", "dtype", "max_new_tokens", "rows", "draft")
        gr.on(
            [page.load, named["prompts"].input, *(named[name].change for name in sized)],
            say,
            inputs=fields,
            outputs=estimate,
            show_progress="hidden",
            api_visibility="private",
            concurrency_limit=4,  # a name may have to be looked up on the Hub
            trigger_mode="always_last",
        )
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
            running.then(say, fields, estimate, show_progress="hidden", api_visibility="private")
            running.then(tell_kept, outputs=kept, show_progress="hidden", api_visibility="private")
        bug.change(None, bug, sentence, js="(key) => key")
        fields[1].change(None, fields[1], js=_SHOW_RECIPES)
        fields[0].select(None, fields[:2], fields[1], js=preset_script(), api_visibility="private")
        clear.click(forget_kept, outputs=kept, show_progress="hidden", api_visibility="private")
        page.load(tell_kept, outputs=kept, show_progress="hidden", api_visibility="private")
        stop.click(stop_run, queue=False, show_progress="hidden", api_visibility="private")
        page.load(
            model_watcher(backend),
            outputs=header,
            show_progress="hidden",
            api_visibility="private",
            concurrency_limit=None,
        )
        link.click(
            None, [named[name] for name in LINKED], js=copy_script(words.LINK), api_visibility="private"
        )
        page.load(
            link_opener(choice, devices, Form(*(field.value for field in fields)), backend.limits),
            outputs=fields,
            show_progress="hidden",
            api_visibility="private",
            concurrency_limit=None,
        )
        opened = experiments.submit(
            open_results,
            outputs=experiments,
            show_progress="hidden",
            api_visibility="private",
            concurrency_id="reports",
            concurrency_limit=1,  # a report takes a core, perhaps from a run
            trigger_mode="once",
        )
        opened.failure(None, js=_REPORT_LOST)
        page.unload(stop_run)
        gr.api(compare_endpoint(backend, choice), api_name="compare", concurrency_limit=WATCHERS)
    page.queue(max_size=64, default_concurrency_limit=None)
    page._queue.sleep_when_free = QUEUE_POLL_S
    return page


def launch_options() -> dict[str, Any]:
    """What Gradio 6 takes at `launch`, not at `Blocks`."""
    return {
        "theme": theme(),
        "css_paths": [ASSETS / f"{name}.css" for name in ("page", "study", "experiments", "live")],
        "head": '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="favicon.ico">',  # the page's, not that of the host's root
        "favicon_path": ASSETS / "logo.svg",
        "app_kwargs": {"routes": routes()},
        "ssr_mode": False,  # said, not left out: else GRADIO_SSR_MODE decides, which a Space sets
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": ["gradio"],
        "show_error": False,
        "mcp_server": find_spec("mcp") is not None,  # `compare` as a tool; requirements.txt brings it
    }
