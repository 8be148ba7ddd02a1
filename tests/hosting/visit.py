"""What a visitor does on the page, wherever it is hosted, and what may not happen meanwhile. Each step says
what it has seen, or fails."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Frame, Page

TOKENS = 100
GROWTH = """() => {
  window.grown = [];
  const length = () => document.querySelector(".k-columns").textContent.length;
  new MutationObserver(() => grown.push([performance.now(), length()]))
    .observe(document.querySelector(".k-columns"), { childList: true, subtree: true, characterData: true });
}"""
DRAWN = """() => [...document.querySelectorAll('.k-charts .k-plot')]
  .filter(({ data }) => data?.some(({ x }) => x?.length > 10)).length >= 3"""


@contextmanager
def watched(tab: Page, address: str) -> Iterator[list[str]]:
    """Whatever goes wrong in `tab`, or elsewhere than under `address`: at the end that must be nothing."""
    wrong: list[str] = []
    own = (address, "data:", "blob:")

    def answered(answer) -> None:
        if answer.status >= 400 or not answer.url.startswith(own):
            wrong.append(f"{answer.status} {answer.url}")

    def failed(request) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # a stream of a page that was left
            wrong.append(f"{request.failure} {request.url}")

    def complained(said: ConsoleMessage) -> None:
        is_own_icon = said.location["url"].endswith("/favicon.ico")  # asked for before any script has run
        is_framed = "Clipboard API has been blocked" in said.text  # then it is copied the old way
        if said.type in ("error", "warning") and not is_own_icon and not is_framed:
            wrong.append(f"{said.text} ({said.location['url']})")

    tab.on("response", answered)
    tab.on("requestfailed", failed)
    tab.on("pageerror", lambda error: wrong.append(f"page error: {error}"))
    tab.on("console", complained)
    try:
        yield wrong
    finally:
        assert not wrong, wrong[:8]


def wait_for(view: Page | Frame, state: str) -> str:
    view.wait_for_selector(f"#status[data-state='{state}']")
    return view.inner_text("#status")


def begin(view: Page | Frame, tokens: int) -> None:
    view.fill("#max-new-tokens input", str(tokens))
    view.press("#max-new-tokens input", "Tab")
    view.click("#run:enabled")
    view.wait_for_function("document.querySelector('#column-no_cache .new')?.textContent")


def watch_recorded_race(view: Page | Frame) -> str:
    view.click(".k-watch")
    view.wait_for_function("document.querySelector('.k-lane .new')?.textContent")
    return "a recorded race plays before any run"


def run(view: Page | Frame) -> str:
    """The text must come bit by bit, not at the end."""
    view.evaluate(GROWTH)
    begin(view, TOKENS)
    wait_for(view, "done")
    grown = [(at_ms, length) for at_ms, length in view.evaluate("grown") if length]
    updates, lasted_s = len({length for _, length in grown}), (grown[-1][0] - grown[0][0]) / 1000
    assert updates >= 3, grown
    assert lasted_s > 0.5, grown
    view.locator("#chart-memory").scroll_into_view_if_needed()  # a chart out of sight is not drawn
    view.wait_for_function(DRAWN)
    return f"a run streamed: {updates} updates of the texts over {lasted_s:.1f} s; three charts are drawn"


def stop(view: Page | Frame) -> str:
    begin(view, TOKENS)
    view.click("#stop")
    wait_for(view, "stopped")
    return "Stop works"


def look_at_tabs(view: Page | Frame) -> str:
    names = view.evaluate("[...document.querySelectorAll('.k-tabs [role=tab]')].map(({ id }) => id)")
    for name in names:
        view.click(f"#{name}")
        view.wait_for_function(
            "document.querySelector('[role=tabpanel]:not([hidden])').textContent.length > 20"
        )
    return f"{len(names)} tabs of the study open"


def download(tab: Page, view: Page | Frame) -> str:
    view.click("#tab-export")
    names = []
    for label in ("JSON", "CSV", "HTML", "PNG"):
        with tab.expect_download() as waited, tempfile.TemporaryDirectory() as folder:
            view.locator(f"#study-export button:has-text('{label}')").first.click()
            waited.value.save_as(file := Path(folder) / waited.value.suggested_filename)
            assert file.stat().st_size > 500
            if label == "JSON":
                assert json.loads(file.read_text())["ways"]
        names.append(file.suffix)
    return f"downloads: {' '.join(names)}"


def copy_link(tab: Page, view: Page | Frame, address: str) -> str:
    view.click("#copy-link")
    view.wait_for_selector("#copy-link:has-text('Copied')")
    tab.context.grant_permissions(["clipboard-read"])
    reader = tab.context.new_page()
    reader.goto(f"{address}favicon.ico")
    link = reader.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{address}?"), link
    reader.goto(link)
    reader.wait_for_function(f"document.querySelector('#max-new-tokens input')?.value === '{TOKENS}'")
    reader.close()
    return f"the copied link begins with {address} and opens as it was"


def open_experiment(view: Page | Frame) -> str:
    view.click(".k-places a >> nth=1")
    view.click(".k-shelf button >> nth=0")
    view.locator(".k-result-plot").first.scroll_into_view_if_needed()  # it is drawn when it is seen
    view.wait_for_function("document.querySelector('.k-experiments .js-plotly-plot')?._fullLayout")
    return "a shipped experiment is drawn"


def talk(view: Page | Frame) -> str:
    view.click(".k-places a >> nth=2")
    view.fill("#live-tokens", "40")
    view.fill("#live-say", "Hello")
    view.press("#live-say", "Enter")
    view.wait_for_selector(".k-turn[data-number='0']:is([data-state='length'], [data-state='stop'])")
    answer = view.inner_text(".k-turn-answer span")
    assert answer
    view.click(".k-places a >> nth=0")
    return "the Live part answers"


def visit(tab: Page, view: Page | Frame, address: str) -> Iterator[str]:
    """All of it; `view` is the tab itself, or the frame in it that has the page."""
    view.wait_for_selector("#stop:disabled")
    yield watch_recorded_race(view)
    yield run(view)
    yield look_at_tabs(view)
    yield download(tab, view)
    yield copy_link(tab, view, address)
    yield stop(view)
    yield open_experiment(view)
    yield talk(view)
