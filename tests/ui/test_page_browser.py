"""The page in a real browser, with a FakeBackend behind it."""

from __future__ import annotations

import asyncio
import time

import pytest
from page_fake import HELD_AFTER, FakeBackend

from kshipra.ui import handlers, show
from kshipra.ui.fields import ASSETS

pytestmark = pytest.mark.slow

NASTY = "<img src=x onerror=window.pwned=1>${7*7}{{7*7}}<script>window.pwned=1</script>"


def wait_for_state(page, *states: str) -> None:
    """After a click on Run too: the page then leaves the last run's state before anything else."""
    page.wait_for_selector(", ".join(f'#status[data-state="{state}"]' for state in states))


def column_text(page, recipe: str, row: int) -> str:
    return page.inner_text(f'#column-{recipe} [data-row="{row}"] .new')


def wait_until_idle(page) -> None:
    """Until the page asks for no frame in a whole second."""
    asked = (
        "new Promise((tell) => { const first = requestAnimationFrame(() => {});"
        " setTimeout(() => tell(requestAnimationFrame(() => {}) - first - 1), 1000); })"
    )
    for _ in range(60):
        if page.evaluate(asked) == 0:
            return
    raise AssertionError("The page asks for frames without end.")


def range_of(page, chart: str) -> list[float]:
    found = page.evaluate(f"document.querySelector('#chart-{chart} .k-plot')._fullLayout?.xaxis.range")
    return [round(x, 6) for x in found]


def test_run_untouched_streams_and_ends_with_the_comparison(open_page):
    backend = FakeBackend(hold_in="no_cache")
    page = open_page(backend)
    page.click("#run")
    page.wait_for_function("document.querySelector('#column-no_cache .new').textContent.length > 3")
    assert page.get_attribute("#status", "data-state") == "running"  # tokens are there before the end
    assert page.is_disabled("#run")
    assert page.get_attribute("#column-kv_cache", "data-state") == "waiting"
    backend.go(until="kv_cache")
    page.wait_for_selector('#column-kv_cache[data-state="decoding"]')
    assert page.get_attribute("#column-no_cache", "data-state") == "done"
    backend.go()
    wait_for_state(page, "done")
    assert "All 72 tokens identical across A, B, C." in page.inner_text("#summary")
    assert page.locator("#summary tbody tr").count() == 3
    texts = [column_text(page, key, 2) for key in ("no_cache", "kv_cache", "static_batch")]
    assert len(set(texts)) == 1
    assert len(texts[0]) > 50
    assert page.inner_text('#column-kv_cache [data-row="0"] .prompt') == "Once upon a time"
    assert page.inner_text("#column-kv_cache .k-passes dd") == "72"


def test_charts_have_every_last_point_and_a_table_behind_them(open_page):
    page = open_page()
    page.click("#run")
    wait_for_state(page, "done")
    lines = "document.querySelector('#chart-latency .k-plot').data.filter(t => t.mode === 'lines')"
    page.wait_for_function(f"String({lines}.map(t => t.x.at(-1))) === '72,72,24'")
    page.click("#chart-memory .k-switch")
    assert page.locator("#chart-memory tbody tr").count() == 72 + 72 + 24
    page.click("#chart-memory .k-switch")
    assert page.locator("#chart-memory .k-data").is_hidden()


def test_zoom_and_legend_choice_survive_updates(open_page):
    backend = FakeBackend(hold_in="kv_cache")
    page = open_page(backend)
    page.click("#run")
    page.wait_for_selector('#column-kv_cache[data-state="decoding"]')
    for chart in ("latency", "throughput", "memory"):  # they take turns
        page.wait_for_function(f"Number(document.querySelector('#chart-{chart}').dataset.updates) >= 1")
    page.evaluate(
        "Plotly.relayout(document.querySelector('#chart-latency .k-plot'), {'xaxis.range': [2, 9]})"
    )
    before = range_of(page, "throughput")
    drag = page.locator("#chart-throughput .nsewdrag").first.bounding_box()
    page.mouse.move(drag["x"] + 20, drag["y"] + 20)
    page.mouse.down()
    page.mouse.move(drag["x"] + 120, drag["y"] + 90, steps=4)
    page.mouse.up()
    page.locator("#chart-memory .legendtoggle").first.click()
    hidden = "document.querySelector('#chart-memory .k-plot')._fullData.some(t => t.visible === 'legendonly')"
    page.wait_for_function(hidden)  # a legend's click waits for a second one
    zoomed = range_of(page, "throughput")
    assert zoomed != before
    updates = int(page.get_attribute("#chart-latency", "data-updates"))
    backend.go()
    wait_for_state(page, "done")
    assert int(page.get_attribute("#chart-latency", "data-updates")) > updates
    assert range_of(page, "latency") == [2, 9]
    assert range_of(page, "throughput") == zoomed
    assert page.evaluate(hidden)
    page.click("#run")  # a new run starts with a fresh view
    wait_for_state(page, "done")
    assert range_of(page, "latency") != [2, 9]


def test_stop_keeps_the_partial_texts_and_the_next_run_works(open_page):
    backend = FakeBackend(hold_in="kv_cache")
    page = open_page(backend)
    page.click("#run")
    page.wait_for_selector('#column-kv_cache[data-state="decoding"]')
    page.wait_for_function("document.querySelector('#column-kv_cache .new').textContent.length > 3")
    page.click("#stop")
    wait_for_state(page, "stopped")
    assert backend.runs[0].over.wait(60)
    assert backend.runs[0].steps == 72 + HELD_AFTER  # and none behind the stop
    assert column_text(page, "kv_cache", 0)
    assert page.get_attribute("#column-kv_cache", "data-state") == "stopped"
    assert page.get_attribute("#column-static_batch", "data-state") == "stopped"
    assert page.is_disabled("#stop")
    backend.go()
    page.click("#run:enabled")
    wait_for_state(page, "done")
    assert len(backend.runs) == 2


def test_a_closed_tab_ends_its_run(open_page):
    backend = FakeBackend(hold_in="no_cache")
    page = open_page(backend)
    page.click("#run")
    page.wait_for_function("document.querySelector('#column-no_cache .new').textContent.length > 3")
    page.close()
    assert backend.runs[0].over.wait(60)
    assert backend.runs[0].steps == HELD_AFTER


def test_nothing_typed_or_generated_becomes_an_element_or_a_template(open_page):
    page = open_page(FakeBackend(pace=0.1, model_name=NASTY, failure=NASTY, fail_at=150), own=True)
    page.fill("#prompts textarea >> nth=0", NASTY)
    page.click("#run")
    wait_for_state(page, "failed")
    assert page.inner_text('#column-no_cache [data-row="0"] .prompt') == NASTY
    assert "<b>bold</b>" in page.inner_text("#column-no_cache")
    assert page.inner_text("#status") == NASTY
    assert NASTY in page.inner_text(".k-model")
    assert page.evaluate("window.pwned") is None
    inside = "#stage :is(img, b:not(.k-mark b)), #stage script, #status img, .k-model img"
    assert page.locator(inside).count() == 0
    assert "49" not in page.inner_text('#column-no_cache [data-row="0"]')


def test_prompts_are_added_removed_edited_and_reach_the_server(open_page):
    backend = FakeBackend()
    page = open_page(backend)
    page.click("#prompts .k-add")
    page.keyboard.type("Typed by hand\nover two lines")  # the new prompt has the focus
    page.click('#prompts [aria-label="Remove prompt 1"]')
    page.fill("#prompts textarea >> nth=0", "Edited")
    page.uncheck("#recipes input >> nth=0")
    page.click("#run")
    wait_for_state(page, "done")
    plan = backend.runs[0].plan
    assert plan.prompts[0] == "Edited"
    assert plan.prompts[2] == "Typed by hand\nover two lines"
    assert len(plan.prompts) == 3
    assert plan.recipes == ("kv_cache", "static_batch")
    page.select_option("#prompts select", label="One short prompt")
    page.click("#run:enabled")
    page.wait_for_function("document.querySelectorAll('#column-kv_cache [data-row]').length === 1")
    wait_for_state(page, "done")
    assert backend.runs[1].plan.prompts == ("The capital of France is",)


def test_a_refusal_is_one_line_keeps_the_input_and_the_last_results(open_page):
    page = open_page()
    page.click("#run")
    wait_for_state(page, "done")
    page.fill("#prompts textarea >> nth=1", "")
    page.click("#run:enabled")
    wait_for_state(page, "failed")
    assert page.inner_text("#status") == "Prompt 2 is empty: write something or remove it."
    assert page.input_value("#prompts textarea >> nth=0") == "Once upon a time"
    assert column_text(page, "static_batch", 2)
    page.fill("#prompts textarea >> nth=1", "Better")
    page.click("#run:enabled")
    wait_for_state(page, "done")


def test_the_page_loads_nothing_from_elsewhere(open_page, serve, chromium):
    url, asked = serve(FakeBackend()), []
    tab = chromium.new_page()
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(url)
    tab.wait_for_selector("#column-no_cache")
    tab.wait_for_function("window.Plotly")
    tab.close()
    assert [address for address in asked if not address.startswith((url, "data:", "blob:"))] == []


def test_a_definition_shows_on_focus_and_the_keyboard_reaches_run(open_page):
    page = open_page()
    page.focus("#column-no_cache .k-ttft dt")
    assert "Time to first token" in page.inner_text(".k-tip.shown")
    page.focus("#run")
    page.keyboard.press("Enter")
    wait_for_state(page, "done")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (390, 844)])
def test_nothing_is_wider_than_the_window(open_page, width, height):
    page = open_page(FakeBackend(), viewport={"width": width, "height": height})
    page.click("#run")
    wait_for_state(page, "done")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width == 390:
        assert page.locator("#run").bounding_box()["y"] > height - 120  # sticks to the bottom


def test_light_and_dark_switch_restyles_the_charts(open_page):
    page = open_page(color_scheme="light")
    page.click("#run")
    wait_for_state(page, "done")
    colour = "document.querySelector('#chart-latency .k-plot').data?.[0]?.line.color"
    light = page.wait_for_function(colour).json_value()
    page.click(".k-model button")
    page.wait_for_function(f"{colour} !== '{light}'")


def test_an_idle_page_asks_for_no_frames(open_page):
    """Gradio's loading screen left a loop behind that took a sixth of the engine's speed."""
    wait_until_idle(open_page())


def test_an_idle_server_sleeps(serve, monkeypatch):
    """Gradio's queue looks for work a thousand times a second, on the cores that compute."""
    naps = []
    sleep = asyncio.sleep

    def counted(*args, **kwargs):
        naps.append(args)
        return sleep(*args, **kwargs)

    serve(FakeBackend())
    monkeypatch.setattr(asyncio, "sleep", counted)
    began = time.monotonic()
    while len(naps) < 20:  # it goes on looking
        time.sleep(0.01)
    assert len(naps) / (time.monotonic() - began) < 300  # and what else this process does meanwhile


def test_the_newest_text_stands_out_until_more_comes_or_its_row_ends(open_page):
    backend = FakeBackend(hold_in="no_cache")
    page = open_page(backend)
    page.click("#run")
    page.wait_for_selector("#column-no_cache .k-fresh")
    assert page.locator('#column-no_cache [data-row="0"] .k-fresh').count() <= 1
    backend.go()
    wait_for_state(page, "done")
    assert page.locator(".k-fresh").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('.new')].every(({ childNodes }) => childNodes.length === 1)"
    )


def test_a_run_too_long_to_study_says_so_and_leaves_the_one_before_on_show(open_page, monkeypatch):
    page = open_page()
    page.click("#run")
    page.wait_for_selector(".k-study.k-filled")
    caption = page.inner_text(".k-study-caption")
    assert page.is_hidden(".k-study-idle")
    monkeypatch.setattr(handlers, "MOST_STEPS", 10)
    page.click("#run")
    page.wait_for_selector(".k-study-idle:has-text('more than the 10 that can be studied')")
    assert page.inner_text(".k-study-caption") == caption  # whose run the views still show
    monkeypatch.undo()
    page.click("#run")
    page.wait_for_selector(".k-study-idle", state="hidden")


NUMBERS = [
    None,
    0,
    1e-7,
    0.00004,
    0.01234,
    0.5,
    0.9996,
    1,
    16.449,
    99.96,
    999.4,
    1208.4,
    46_080,
    123_456_789,
    513 * 2**20,
]


def test_the_study_writes_numbers_as_the_server_does(chromium):
    """record.js says again in the browser what show.py says: an opened file has no server to ask."""
    page = chromium.new_page()
    script = (ASSETS / "record.js").read_text(encoding="utf-8")
    for name, shown in (("digits", show.digits), ("seconds", show.seconds), ("bytes", show.size)):
        found = page.evaluate(f"(values) => {{ {script}; return values.map({name}); }}", NUMBERS)
        assert found == [shown(value) for value in NUMBERS], name
    page.close()
