"""Make assets/page.png and assets/views/ from the running page: start `python app.py` on a quiet machine,
then python tests/screenshot.py [URL].
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, Page, sync_playwright

from browser import FLAGS, find_chromium

ASSETS = Path(__file__).parents[1] / "assets"
VIEWS = ("race", "timeline", "proof", "prediction", "export", "history")
SIZES = ((1440, 900), (390, 844))
SAID = (  # by three visitors of the live batch
    ("Write three sentences about rivers.", "Now about a mountain."),
    ("What is a cache?", "Give an example from a kitchen."),
    ("Tell me a story about a clock.", "How does it end?"),
)


def finish(page: Page, press: str) -> None:
    """Press a button and wait for the run to end and its study to be there."""
    page.click(press)
    page.wait_for_selector("#status[data-state='running']", timeout=60_000)
    page.wait_for_selector("#status[data-state='done']", timeout=180_000)
    page.wait_for_selector(".k-study.k-filled", timeout=60_000)
    page.wait_for_timeout(1000)


def study(page: Page, view: str, width: int) -> None:
    """The study with one view open, in the middle of the race where there is one."""
    page.click(f"#tab-{view}")
    if view == "race":
        slider = page.locator("#study-race input[type=range]")
        slider.evaluate("(node) => { node.value = Number(node.max) / 3; }")
        slider.dispatch_event("input")
    page.wait_for_timeout(500)
    page.locator("#study").screenshot(path=ASSETS / "views" / f"{view}-{width}.png")


def main(url: str = "http://127.0.0.1:7860/") -> None:
    """Press Run untouched and keep what a visitor then sees at each size; then one run of the bug lab."""
    (ASSETS / "views").mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        for width, height in SIZES:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(url)
            page.wait_for_selector("#stop:disabled")
            finish(page, "#run")
            phone = width < 640  # there the toolbar sticks to the window's end, not to the page's
            page.screenshot(path=ASSETS / "views" / f"page-{width}.png", full_page=not phone)
            if phone:
                page.locator(".k-charts").scroll_into_view_if_needed()
                page.wait_for_timeout(3000)
                page.screenshot(path=ASSETS / "views" / f"charts-{width}.png")
            if width == SIZES[0][0]:
                page.locator("#study").evaluate(
                    "(node) => { node.hidden = true; node.style.display = 'none'; }"
                )
                page.screenshot(path=ASSETS / "page.png", full_page=True)
                page.locator("#study").evaluate("(node) => { node.hidden = false; node.style.display = ''; }")
            page.add_style_tag(
                content="#toolbar { position: static !important; }"
            )  # it would cover the views
            for view in VIEWS:
                study(page, view, width)
            report(page, browser, width, height)
            page.close()
        for width, height in SIZES:
            lab(browser.new_page(viewport={"width": width, "height": height}), url, width)
        live(browser, url)
        browser.close()
    print(f"wrote {ASSETS / 'page.png'} and {ASSETS / 'views'}")


def report(page: Page, browser: Browser, width: int, height: int) -> None:
    """The exported report, opened from disk by a browser that has no network."""
    page.click("#tab-export")
    with TemporaryDirectory() as folder:
        with page.expect_download() as waited:
            page.get_by_role("button", name="HTML", exact=True).click()
        saved = Path(folder) / waited.value.suggested_filename
        waited.value.save_as(saved)
        offline = browser.new_context(viewport={"width": width, "height": height}, offline=True)
        opened = offline.new_page()
        opened.on("requestfailed", lambda request: print(f"the report asked for {request.url}"))
        opened.goto(saved.as_uri())
        opened.screenshot(path=ASSETS / "views" / f"report-{width}.png", full_page=True)
        offline.close()


def lab(page: Page, url: str, width: int) -> None:
    """One run of the bug lab, its columns and what the proof says of it; on a phone the proof alone."""
    page.goto(url)
    page.wait_for_selector("#stop:disabled")
    phone = width < 640
    if phone:
        page.click("#rail-toggle button")
    page.click("#lab button >> nth=0")
    page.get_by_label("Positions restart at 0").check()
    finish(page, "#plant")
    page.add_style_tag(content="#toolbar { position: static !important; }")
    target = ASSETS / "views" / f"lab-{width}.png"
    if phone:
        page.locator("#study").screenshot(path=target)
    else:
        page.screenshot(path=target, full_page=True)


def live(browser: Browser, url: str) -> None:
    """Three visitors of the live batch, each with two messages; what one of them sees in his second."""
    tabs = [browser.new_context(viewport=dict(zip(("width", "height"), SIZES[0], strict=True))) for _ in SAID]
    pages = [tab.new_page() for tab in tabs]
    for page in pages:
        page.goto(f"{url}#live")
        page.wait_for_function("document.querySelector('.k-live-figures dd')?.textContent.endsWith('of 8')")
    pages[0].wait_for_timeout(10_000)  # three pages that have just been built take the cores of the engine
    for page, said in zip(pages, SAID, strict=True):
        for text in said:
            page.fill("#live-say", text)
            page.press("#live-say", "Enter")
    first = pages[0]
    first.wait_for_selector(".k-turn[data-number='1'][data-state='answering']", timeout=180_000)
    for width, height in SIZES:
        first.set_viewport_size({"width": width, "height": height})
        first.wait_for_timeout(500)
        first.screenshot(path=ASSETS / "views" / f"live-{width}.png", full_page=True)
    for tab in tabs:
        tab.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
