"""What watching costs: the same plan alone, served to a reader, and drawn by a browser, in turns.

    PYTHONPATH=. .venv/bin/python tests/watch_cost.py [ROUNDS]

Prints each way's end-to-end tokens a second (medians) and the median of the rounds' ratios to `alone`. Model,
engine and process are the same. The reader takes the page's stream over HTTP and draws nothing, as a browser
on another machine would. The browser is headless Chromium, which draws on the engine's own cores.
"""

from __future__ import annotations

import statistics
import sys

import gradio as gr
import httpx
from playwright.sync_api import Page, sync_playwright

from browser import FLAGS, find_chromium
from kshipra.backends.local import LocalBackend
from kshipra.models import catalogue
from kshipra.recipes import USUAL_KEYS
from kshipra.types import Ended, Finished, ModelChoice, Plan, SamplingParams
from kshipra.ui.build import build_page, launch_options

NEW_TOKENS = 24


class Recorder(LocalBackend):
    """Keeps the results of every run, so that both ways are read at the same place."""

    rates: dict[str, float | None]

    def _recipe(self, run, key, requests, engine):
        told = run.tell

        def tell(message):
            if isinstance(message, Finished):
                self.rates[message.recipe] = message.result.end_to_end_tok_per_s
            told(message)

        run.tell = tell
        try:
            return super()._recipe(run, key, requests, engine)
        finally:
            run.tell = told


def alone(backend: Recorder, choice: ModelChoice, prompts: tuple[str, ...]) -> dict[str, float | None]:
    backend.rates = {}
    run = backend.submit(Plan(choice, prompts, USUAL_KEYS, SamplingParams(NEW_TOKENS)))
    while not any(isinstance(message, Ended) for message in run.messages(10)):
        pass
    return backend.rates


def read(backend: Recorder, demo: gr.Blocks, url: str) -> dict[str, float | None]:
    """Press Run as a browser does, with the page's own first values, and read the stream to its end."""
    backend.rates = {}
    config = demo.config
    of_id = {component["id"]: component["props"] for component in config["components"]}
    run = next(id for id, props in of_id.items() if props.get("elem_id") == "run")
    press = next(
        d for d in config["dependencies"] if (run, "click") in map(tuple, d["targets"]) and d["inputs"]
    )
    call = {
        "data": [of_id[id].get("value") for id in press["inputs"]],
        "fn_index": press["id"],
        "session_hash": "reader",
    }
    with httpx.Client(base_url=f"{url}gradio_api/queue/", timeout=180, trust_env=False) as client:
        client.post("join", json=call).raise_for_status()
        with client.stream("GET", "data", params={"session_hash": "reader"}) as stream:
            for line in stream.iter_lines():
                if '"process_completed"' in line:
                    break
    return backend.rates


def drawn(backend: Recorder, page: Page) -> dict[str, float | None]:
    backend.rates = {}
    page.click("#run")
    page.wait_for_selector("#status[data-state='running']", timeout=60_000)
    page.wait_for_selector("#status[data-state='done']", timeout=180_000)
    return backend.rates


def main(rounds: int) -> None:
    choice = ModelChoice(catalogue.DEFAULT)
    backend = Recorder()
    demo = build_page(backend, choice)
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    found: dict[str, list[dict[str, float | None]]] = {"alone": [], "read": [], "drawn": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        for count in range(rounds + 1):  # the first round warms up
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(url)
            page.wait_for_selector("#run")
            prompts = tuple(
                box.input_value() for box in page.locator("#prompts textarea").all() if box.input_value()
            )
            page.wait_for_timeout(1500)
            rates = {"drawn": drawn(backend, page)}
            page.close()
            rates["alone"] = alone(backend, choice, prompts)
            rates["read"] = read(backend, demo, url)
            for name, each in rates.items():
                if count:
                    found[name].append(each)
            print(f"round {count}: {rates}", flush=True)
    for key in USUAL_KEYS:
        tok_per_s = {name: [each[key] for each in rates] for name, rates in found.items()}
        medians = ", ".join(f"{name} {statistics.median(rates):.1f}" for name, rates in tok_per_s.items())
        ratios = {
            name: [ours / base for ours, base in zip(tok_per_s[name], tok_per_s["alone"], strict=True)]
            for name in ("read", "drawn")
        }
        shown = ", ".join(f"{name} {statistics.median(each):.3f}" for name, each in ratios.items())
        print(f"{key}: {medians} tok/s; of alone: {shown}")
    demo.close()
    backend.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
