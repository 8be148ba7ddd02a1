"""Make assets/page.png from the running page: start `python app.py`, then python tests/screenshot.py
[URL]."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from browser import FLAGS, find_chromium

TARGET = Path(__file__).parents[1] / "assets" / "page.png"


def main(url: str = "http://127.0.0.1:7860/") -> None:
    """Press Run untouched, wait for the end, and keep what a visitor then sees at 1440 pixels."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.click("#run")
        page.wait_for_selector("#status[data-state='done']", timeout=180_000)
        page.wait_for_timeout(1000)
        page.screenshot(path=TARGET, full_page=True)
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main(*sys.argv[1:])
