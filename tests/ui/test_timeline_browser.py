"""The timeline: where a run's time went, read off the drawing, by pointer, by keyboard and from its table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from page_fake import make_plan
from record_fake import document, every, give_good

pytestmark = pytest.mark.slow

TALL, SHORT = 44, 32  # a prefill's height and a decode's


def bar(way: str) -> str:
    return f".k-timeline-way[data-way={way}] .k-timebar"


def boxes(page, way: str, kind: str) -> list[list[float]]:
    """[x, y, width, height] of each box of a kind in a bar."""
    path = page.locator(f"{bar(way)} path[data-kind={kind}]")
    drawn = path.get_attribute("d") if path.count() else ""
    return [list(map(float, found)) for found in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", drawn)]


@pytest.fixture
def timeline(open_page):
    """Open a page on the timeline of a document."""

    def start(content, **view):
        page = open_page(**view)
        give_good(page, content)
        page.click("#tab-timeline")
        page.wait_for_selector(".k-timebar")
        return page

    return start


def quarter_padded(key, steps):
    """Passes of 0.1 s; in the batch a quarter of what is computed is padding."""
    batch = key == "static_batch"
    return [replace(s, pad_tokens=s.processed_tokens if batch else 0, processed_tokens=3 * s.processed_tokens)
            for s in every(0.1)(key, steps)]  # fmt: skip


def test_waiting_prefill_and_decode_stand_where_and_as_long_as_they_were(timeline):
    page = timeline(document(change=every(0.1)))  # A and B take 24 passes, C 8: 2.4, 2.4 and 0.8 of 5.6 s
    width = page.locator(bar("kv_cache")).evaluate("node => node.clientWidth")
    scale = width / 5.6
    assert boxes(page, "no_cache", "waiting") == []
    for way, begin, passes, prefills in (
        ("no_cache", 0, 24, [0, 8, 16]), ("kv_cache", 2.4, 24, [0, 8, 16]), ("static_batch", 4.8, 8, [0]),
    ):  # fmt: skip
        if begin:
            ((x, _, waited, _),) = boxes(page, way, "waiting")
            assert (x, waited) == pytest.approx((0, begin * scale), abs=0.02)
        starts = [begin + 0.1 * at for at in range(passes)]
        expected = [starts[at] * scale for at in prefills]
        found = boxes(page, way, "prefill")
        assert [x for x, *_ in found] == pytest.approx(expected, abs=0.02)
        assert all(height == TALL and 0.1 * scale - 1 < w <= 0.1 * scale for _, _, w, height in found)
        expected = [start * scale for at, start in enumerate(starts) if at not in prefills]
        found = boxes(page, way, "decode")
        assert [x for x, *_ in found] == pytest.approx(expected, abs=0.02)
        assert all(height == SHORT for *_, height in found)
        assert boxes(page, way, "pads") == []
    assert "waiting 2.4 s · prefill 300 ms · decode 2.1 s" in page.inner_text(
        ".k-timeline-way[data-way=kv_cache]"
    ).replace("\u00a0", " ")
    assert page.locator(".k-axis text").all_text_contents() == ["0", "1", "2", "3", "4", "5"]
    assert page.inner_text(".k-axis p") == "seconds since the first way started"
    assert page.locator(".k-legend li").all_inner_texts() == ["waiting", "prefill", "decode", "padding"]


def test_padding_is_drawn_as_its_share_of_each_pass(timeline):
    page = timeline(document(change=quarter_padded))
    assert [box[3] for box in boxes(page, "static_batch", "pads")] == [TALL / 4] + [SHORT / 4] * 7
    assert [box[3] for box in boxes(page, "static_batch", "decode")] == [SHORT * 3 / 4] * 7
    assert page.locator(bar("static_batch")).bounding_box()["height"] >= TALL  # nothing of it lies outside
    assert all(y + height == TALL for _, y, _, height in boxes(page, "static_batch", "pads"))
    said = page.locator(".k-padding").all_inner_texts()
    assert said == ["no padding", "no padding", "25 % of the computed positions were padding"]


def test_arrow_keys_go_from_pass_to_pass_with_one_tab_stop(timeline):
    page = timeline(document(change=quarter_padded))
    page.focus(bar("kv_cache"))
    shown = f"{bar('kv_cache')} .k-pass-tip"
    assert page.inner_text(shown) == "Waiting 2.4 s for A"
    page.keyboard.press("ArrowRight")
    assert page.inner_text(shown).startswith("Pass 1 of 24: prefill\nrows 1 · tokens in ")
    page.keyboard.press("ArrowRight")
    second = "Pass 2 of 24: decode\nrows 1 · tokens in 3 · new tokens 1 · pads 0 · 100 ms"
    assert page.inner_text(shown) == second
    assert page.get_attribute(bar("kv_cache"), "aria-valuetext") == second.replace("\n", "; ")
    page.keyboard.press("End")
    assert page.inner_text(shown).startswith("Pass 24 of 24: decode")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(shown).startswith("Pass 24 of 24")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.k-timeline-way').dataset.way") == "static_batch"
    assert page.inner_text(f"{bar('static_batch')} .k-pass-tip") == "Waiting 4.8 s for A, B"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(f"{bar('static_batch')} .k-pass-tip") == (
        "Pass 2 of 8: decode\nrows 3 · tokens in 9 · new tokens 3 · pads 3 · 100 ms"
    )
    page.keyboard.press("Escape")
    assert page.locator(".k-pass-tip:visible").count() == 0


def test_the_pointer_shows_the_pass_under_it(timeline):
    page = timeline(document(change=every(0.1)))
    page.locator(bar("no_cache")).scroll_into_view_if_needed()
    at = page.locator(bar("no_cache")).bounding_box()
    page.mouse.move(at["x"] + at["width"] * 1.05 / 5.6, at["y"] + 30)  # the eleventh tenth of a second
    assert page.inner_text(f"{bar('no_cache')} .k-pass-tip").startswith("Pass 11 of 24: decode")
    cursor = page.locator(f"{bar('no_cache')} .k-cursor").bounding_box()
    assert cursor["x"] == pytest.approx(at["x"] + at["width"] * 1.0 / 5.6, abs=2)
    page.mouse.move(at["x"] - 30, at["y"] + 30)
    assert page.locator(".k-pass-tip:visible").count() == 0


def test_thousands_of_passes_cost_no_more_than_the_bar_is_wide_and_none_is_lost(timeline):
    page = timeline(document(make_plan(max_new_tokens=1500), change=every(0.01)))
    width = page.locator(bar("no_cache")).evaluate("node => node.clientWidth")
    drawn = len(boxes(page, "no_cache", "prefill")) + len(boxes(page, "no_cache", "decode"))
    assert width * 4500 / 10500 - 2 < drawn <= width * 4500 / 10500 + 2
    page.focus(bar("no_cache"))
    said = page.evaluate(
        """() => { const bar = document.activeElement; const said = [];
        for (let at = 0; at < Number(bar.getAttribute("aria-valuemax")); at += 1) {
          said.push(bar.getAttribute("aria-valuetext"));
          bar.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
        } return said; }"""
    )
    reached = 0
    for text in said:
        first, last = re.match(r"Pass(?:es)? (\d+)(?: to (\d+))? of 4500: ", text).groups()
        assert int(first) == reached + 1
        reached = int(last or first)
    assert reached == 4500
    first = re.match(
        r"Passes 1 to (1[3-5]) of 4500: prefill and decode; .* new tokens (\d+) · pads 0 · ", said[0]
    )
    assert first[1] == first[2]
    page.click("#study-timeline .k-switch")
    assert page.locator(".k-timeline-data tbody tr").count() == 3 * 166
    assert "The first 166 passes of each way" in page.inner_text(".k-timeline-data")


def test_the_table_has_every_pass_and_hides_again(timeline):
    page = timeline(document(change=every(0.1)))
    page.click("#study-timeline .k-switch")
    rows = page.locator(".k-timeline-data tbody tr")
    assert rows.count() == 24 + 24 + 8
    cells = rows.nth(49).locator("td").all_inner_texts()
    assert cells == ["C", "2", "decode", "100 ms", "100 ms", "3", "3", "3", "0"]
    assert page.locator(".k-cut").count() == 0
    page.click("#study-timeline .k-switch")
    assert page.locator(".k-timeline-data").is_hidden()


@pytest.mark.parametrize("width", [1440, 390])
def test_ways_cut_short_and_narrow_windows(timeline, width):
    def cut(key, steps):
        return every(0.001)(key, steps[: {"no_cache": 5, "kv_cache": 2, "static_batch": 0}[key]])

    page = timeline(document(change=cut, stopped="static_batch"), viewport={"width": width, "height": 900})
    assert page.inner_text(".k-axis p") == "milliseconds since the first way started"
    said = page.inner_text(".k-timeline-way[data-way=static_batch]")
    assert "no forward pass" in said
    assert "stopped" in said
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ((_, _, waited, _),) = boxes(page, "static_batch", "waiting")
    assert waited == pytest.approx(
        page.locator(bar("static_batch")).evaluate("node => node.clientWidth"), abs=1
    )
    page.set_viewport_size({"width": 800, "height": 900})  # drawn anew
    page.wait_for_function(
        f"Math.abs(document.querySelector('{bar('static_batch')} path').getBBox().width"
        f" - document.querySelector('{bar('static_batch')}').clientWidth) < 1"
    )
