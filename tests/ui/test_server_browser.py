"""A server's way as a visitor meets it: its settings, its column of dashes, every view of its run, and a key
that stays in its field."""

from __future__ import annotations

import json

import pytest
from page_fake import FakeBackend
from test_batching_browser import columns, figures, finish

pytestmark = pytest.mark.slow

KEY = "sk-secret-9012"


def test_a_server_is_picked_told_where_it_is_and_shown_like_the_others(open_page):
    backend = FakeBackend(pace=0.1)
    page = open_page(backend)
    page.wait_for_function("window.Plotly")
    assert not page.locator("#server-part").is_visible()
    page.check("#recipes label:has-text('Server') input")
    page.wait_for_selector("#server-part", state="visible")
    for field, value in (("server", "http://127.0.0.1:8000"), ("server-model", "tiny"), ("server-key", KEY)):
        page.fill(f"#{field} input", value)
    assert page.get_attribute("#server-key input", "type") == "password"
    for way in ("No cache", "Batched"):
        page.uncheck(f"#recipes label:has-text('{way}') input")
    columns(page, "kv_cache", "server")
    finish(page)
    page.wait_for_selector(
        "#chart-memory .js-plotly-plot, #chart-memory .k-plot .plot-container", state="attached"
    )
    asked = backend.runs[-1].plan.server
    assert (asked.address, asked.model, asked.key) == ("http://127.0.0.1:8000", "tiny", KEY)
    shown = figures(page, "server")
    assert "Asked for: tiny." in page.inner_text("#column-server .k-sentence")
    assert [shown[name] for name in ("passes", "KV cache", "peak extra")] == ["–"] * 3
    assert "–" not in (shown["tok/s"], shown["TTFT"], shown["step p50"])
    assert "2 of 1" in page.inner_text("#column-server [data-row='1']")

    drawn = page.evaluate("document.querySelector('#chart-memory .k-plot').data.map(({ y }) => y)")
    assert {amount for y in drawn[4:] for amount in y} == {None}  # of the second way nothing is known, not 0

    page.click("#tab-race")
    lane = page.locator(".k-lane[data-way=server]")
    page.evaluate("""() => { const slider = document.querySelector('.k-race input[type=range]');
        slider.value = slider.max; slider.dispatchEvent(new Event('input')); }""")
    all_tokens = sum(each.max_new_tokens for each in backend.runs[-1].plan.each)
    assert f"{all_tokens} of {all_tokens}" in lane.inner_text()
    page.click("#tab-timeline")
    assert "padding" not in page.inner_text(".k-timeline-way[data-way=server]")
    page.click("#tab-proof")
    assert page.locator(".k-proof select").count() == 1  # of two ways one has ids to be compared
    for tab in ("prediction", "history", "export"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#study-{tab}", state="visible")
    with page.expect_download() as saving:
        page.click("#study-export button:has-text('JSON')")
    text = saving.value.path().read_text(encoding="utf-8")
    assert json.loads(text)["ways"][1]["result"]["kv_bytes"] is None
    stored = page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + location.href")
    page.click("#copy-link")
    assert KEY not in text + stored + page.url + page.content()
    assert "127.0.0.1:8000" not in text + stored + page.url
    page.set_input_files(".k-drop input", {"name": "r.json", "mimeType": "", "buffer": text.encode()})
    page.wait_for_selector("#tab-race[aria-selected='true']")  # the page takes back what it gave
