"""What watching costs: the same plan without a page and watched in a browser on this machine, in turns.

    PYTHONPATH=. .venv/bin/python tests/watch_cost.py [ROUNDS]

Prints each way's end-to-end tokens a second both ways (medians) and their ratio. Model, engine and process
are the same; only the page and the browser come and go.
"""

from __future__ import annotations

import statistics
import sys

from playwright.sync_api import Page, sync_playwright

from browser import FLAGS, find_chromium
from kshipra.backends.local import LocalBackend
from kshipra.models import catalogue
from kshipra.recipes import RECIPE_KEYS
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
    run = backend.submit(Plan(choice, prompts, RECIPE_KEYS, SamplingParams(NEW_TOKENS)))
    while not any(isinstance(message, Ended) for message in run.messages(10)):
        pass
    return backend.rates


def watched(backend: Recorder, page: Page) -> dict[str, float | None]:
    backend.rates = {}
    page.click("#run")
    page.wait_for_selector("#status[data-state='running']", timeout=60_000)
    page.wait_for_selector("#status[data-state='done']", timeout=180_000)
    return backend.rates


def main(rounds: int) -> None:
    choice = ModelChoice(catalogue.DEFAULT)
    backend = Recorder()
    demo = build_page(backend, choice)
    demo.queue(default_concurrency_limit=None)
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    found: dict[str, dict[str, list[float]]] = {"alone": {}, "watched": {}}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        for count in range(rounds + 1):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(url)
            page.wait_for_selector("#run")
            prompts = tuple(
                box.input_value() for box in page.locator("#prompts textarea").all() if box.input_value()
            )
            page.wait_for_timeout(1500)
            with_page = watched(backend, page)
            page.close()
            without = alone(backend, choice, prompts)
            for name, rates in (("watched", with_page), ("alone", without)):
                for key, rate in rates.items():
                    if count and rate is not None:
                        found[name].setdefault(key, []).append(rate)
            print(f"round {count}: watched {with_page}, alone {without}", flush=True)
    for key in RECIPE_KEYS:
        ours, base = (statistics.median(found[name][key]) for name in ("watched", "alone"))
        print(f"{key}: watched {ours:.1f}, alone {base:.1f} tok/s, ratio {ours / base:.3f}")
    demo.close()
    backend.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
