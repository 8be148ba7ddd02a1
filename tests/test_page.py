"""The real page on the real default model in a real browser, used as a person would."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Page

from kshipra.backends.local import LocalBackend
from kshipra.engine.job import Job
from kshipra.models import catalogue
from kshipra.types import ModelChoice
from kshipra.ui.build import build_page, launch_options

pytestmark = pytest.mark.slow
WAYS = ("no_cache", "kv_cache", "static_batch")


class Counter:
    """Steps that the engine has really taken."""

    steps = 0


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    honest, counted = Job.step, Counter()

    def step(job, batch):
        counted.steps += 1
        return honest(job, batch)

    Job.step = step
    yield counted
    Job.step = honest


@pytest.fixture(scope="module")
def address(counter) -> Iterator[str]:
    choice = ModelChoice(catalogue.DEFAULT)
    backend = LocalBackend()
    backend.preload(choice)
    demo = build_page(backend, choice)
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, server_port=None, **launch_options())
    yield url
    demo.close()
    backend.close()
    torch.set_num_threads(1)


@pytest.fixture
def page(chromium, address) -> Iterator[Page]:
    opened = chromium.new_page(viewport={"width": 1440, "height": 900})
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(address)
    opened.wait_for_selector("#run:not([disabled])", timeout=30_000)
    yield opened
    opened.close()
    assert not errors


def wait_for_state(page: Page, state: str, limit_s: float = 120) -> None:
    page.wait_for_selector(f"#status[data-state='{state}']", timeout=limit_s * 1000)


def new_text(page: Page, way: str, row: int = 0) -> str:
    return page.locator(f"#column-{way} [data-row='{row}'] .new").inner_text()


def x_range(page: Page) -> list[float]:
    return page.evaluate("document.querySelector('#chart-latency .js-plotly-plot')._fullLayout.xaxis.range")


def test_run_untouched_tells_the_whole_lesson(page):
    page.click("#run")
    page.wait_for_selector("#column-no_cache [data-row='0'] .new:not(:empty)", timeout=60_000)
    assert page.locator("#status").get_attribute("data-state") == "running"  # tokens come before the end
    early = new_text(page, "no_cache")
    wait_for_state(page, "done")
    assert len(new_text(page, "no_cache")) > len(early)
    for row in range(3):
        texts = {new_text(page, way, row) for way in WAYS}
        assert len(texts) == 1
        assert len(texts.pop()) > 20
    summary = page.locator("#summary").inner_text()
    assert "All 72 tokens identical across A, B, C." in summary
    assert "×" in summary
    for chart in ("latency", "throughput", "memory"):
        points = page.evaluate(
            f"document.querySelector('#chart-{chart} .js-plotly-plot').data.map(trace => trace.x.length)"
        )
        assert sum(points) > 72


def test_a_zoom_survives_the_updates_of_a_run(page):
    page.fill("#max-new-tokens input", "40")
    page.click("#run")
    page.wait_for_function(
        "(document.querySelector('#chart-latency .js-plotly-plot')?.data?.[0]?.x?.length || 0) > 8",
        timeout=60_000,
    )
    page.locator("#chart-latency").scroll_into_view_if_needed()
    box = page.locator("#chart-latency .js-plotly-plot .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=5)
    page.mouse.up()
    page.wait_for_timeout(300)
    zoomed = x_range(page)
    points = (
        "document.querySelector('#chart-latency .js-plotly-plot').data.reduce((n, t) => n + t.x.length, 0)"
    )
    before = page.evaluate(points)
    page.wait_for_function(f"{points} > {before + 10}", timeout=60_000)
    assert x_range(page) == zoomed
    wait_for_state(page, "done")
    assert x_range(page) == zoomed
    page.locator("#chart-latency .js-plotly-plot .nsewdrag").first.dblclick()
    page.wait_for_timeout(500)
    assert x_range(page) != zoomed  # it was a zoom, not a chart that never scales


def test_stop_stops_the_engine(page, counter):
    page.fill("#max-new-tokens input", "400")
    page.click("#run")
    page.wait_for_selector("#column-no_cache [data-row='0'] .new:not(:empty)", timeout=60_000)
    page.click("#stop")
    wait_for_state(page, "stopped", 20)
    stands = counter.steps
    kept = new_text(page, "no_cache")
    time.sleep(1.5)
    assert counter.steps == stands
    assert kept
    assert new_text(page, "no_cache") == kept
    assert page.locator("#column-no_cache").get_attribute("data-state") == "stopped"
    page.fill("#max-new-tokens input", "2")
    page.click("#run")
    wait_for_state(page, "done")
    assert "All 6 tokens identical" in page.locator("#summary").inner_text()


def test_a_closed_tab_stops_its_run(chromium, address, counter):
    opened = chromium.new_page()
    opened.goto(address)
    opened.fill("#max-new-tokens input", "2000")
    opened.click("#run")
    opened.wait_for_selector("#column-no_cache [data-row='0'] .new:not(:empty)", timeout=60_000)
    opened.close()
    deadline = time.monotonic() + 10
    before = -1
    while counter.steps != before:
        assert time.monotonic() < deadline, "the engine still runs 10 s after its tab was closed"
        before = counter.steps
        time.sleep(1.0)
