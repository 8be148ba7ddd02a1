"""Earlier runs in a real browser: what is kept of a run, and how another one compares with it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from page_fake import FakeBackend

pytestmark = pytest.mark.slow

NASTY = "<img src=x onerror=window.pwned=1>"


@pytest.fixture(autouse=True)
def a_minute_a_run(monkeypatch):
    """Runs of one second are one run: here each says that it was taken a minute after the last."""

    class Minutes:
        at = datetime(2026, 2, 3, tzinfo=UTC)

        def now(self, zone):
            self.at += timedelta(minutes=1)
            return self.at

    monkeypatch.setattr("kshipra.ui.record.datetime", Minutes())


def run(page) -> None:
    """Press Run and wait for that run's record: the study then says whose it is."""
    page.evaluate("document.querySelector('.k-study-caption').textContent = ''")
    page.click("#run:enabled")
    page.wait_for_selector('#status[data-state="done"]')
    page.wait_for_function("document.querySelector('.k-study-caption').textContent")


def kept(page) -> list[dict]:
    return json.loads(page.evaluate("localStorage.getItem('kshipra-runs')") or "[]")


def cells(page, way: str, figure: str) -> list[str]:
    row = page.locator(f'.k-pair-of-runs[aria-label="{way}"] tr', has_text=figure)
    return row.locator("td").all_inner_texts()


def number(text: str) -> float:
    return float(re.search(r"[\d.]+", text.replace(",", "")).group())


def test_a_run_leaves_a_summary_and_a_second_one_is_compared_with_it(open_page):
    backend = FakeBackend(pace=0.1)
    page = open_page(backend)
    run(page)
    (first,) = kept(page)
    assert (first["model"], first["device"], first["dtype"], first["prompts"]) == (
        "SmolLM2-135M-Instruct", "cpu", "float32", 3,
    )  # fmt: skip
    assert [way["new_tokens"] for way in first["ways"]] == [72, 72, 72]
    assert len(json.dumps(first)) < 4000
    backend.pace = 0.2
    run(page)
    second, again = kept(page)
    assert again == first  # newest first
    page.click("#tab-history")
    assert page.locator(".k-runs li").count() == 2
    assert page.locator(".k-runs input:checked").count() == 1
    ratio = second["ways"][1]["end_to_end_tok_per_s"] / first["ways"][1]["end_to_end_tok_per_s"]
    now, before, shown = cells(page, "KV cache", "end to end")
    assert number(now) == pytest.approx(second["ways"][1]["end_to_end_tok_per_s"], rel=0.01)
    assert number(before) == pytest.approx(first["ways"][1]["end_to_end_tok_per_s"], rel=0.01)
    assert number(shown) == pytest.approx(ratio, rel=0.01)
    assert number(shown) == pytest.approx(0.5, rel=0.01)
    assert "worse" in shown
    assert "worse" in cells(page, "KV cache", "TTFT")[2]
    assert cells(page, "KV cache", "new tokens") == ["72", "72", "1×"]
    assert cells(page, "No cache", "KV used") == ["0", "0", "–"]
    assert page.locator(".k-pair-of-runs p").all_inner_texts() == ["The same tokens as before."] * 3
    assert "Same model, machine, settings and versions." in page.inner_text(".k-history")


def test_other_tokens_models_settings_and_ways_are_said(open_page):
    backend = FakeBackend()
    page = open_page(backend)
    run(page)
    backend.odd = "kv_cache"
    run(page)
    page.click("#tab-history")
    assert page.locator(".k-pair-of-runs p").all_inner_texts() == [
        "The same tokens as before.", "Other tokens than before.", "The same tokens as before.",
    ]  # fmt: skip
    backend.model_name = NASTY
    page.fill("#max-new-tokens input", "5")
    page.uncheck("#recipes input >> nth=0")
    run(page)
    page.click("#tab-history")
    assert (
        page.locator(".k-pair-of-runs p").all_inner_texts() == ["Another model: tokens are not compared."] * 2
    )
    differing = page.locator(".k-texts-table tbody th").all_inner_texts()
    assert differing == ["model", "settings"]
    assert page.inner_text(".k-texts-table tbody td >> nth=0") == NASTY
    assert "Only in the earlier run: A No cache." in page.inner_text(".k-history")
    backend.model_name = None
    page.fill("#prompts textarea >> nth=0", "Another prompt")
    run(page)
    page.click("#tab-history")
    page.check(".k-runs input >> nth=2")  # the second run: other prompts, other length
    assert "Other prompts or settings" in page.inner_text(".k-pair-of-runs p >> nth=0")
    assert page.locator(".k-texts-table tbody th").all_inner_texts() == ["settings", "prompts"]
    assert page.evaluate("window.pwned") is None


def test_runs_are_there_after_a_reload_and_are_forgotten_one_by_one_or_all(open_page):
    page = open_page()
    for _ in range(3):
        run(page)
    page.reload()
    page.wait_for_selector("#column-no_cache")
    page.click("#tab-history")
    assert page.locator(".k-runs li").count() == 3
    assert "Open or make a run" in page.inner_text(".k-history")
    oldest = kept(page)[2]
    page.click(".k-runs button >> nth=2")
    assert oldest not in kept(page)
    assert page.locator(".k-runs li").count() == 2
    assert page.evaluate("document.activeElement.textContent") == "Forget"
    clear = page.locator(".k-runs-head button")
    clear.click()
    assert clear.inner_text() == "Press again to forget 2 runs"
    page.focus("#tab-history")  # going elsewhere takes it back
    assert clear.inner_text() == "Forget all"
    clear.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert kept(page) == []
    assert clear.is_hidden()
    assert "No earlier run yet" in page.inner_text(".k-history")


def test_at_most_twenty_runs_are_kept_the_newest_first(open_page):
    page = open_page()
    run(page)
    (one,) = kept(page)
    many = [{**one, "when": f"2025-01-{day:02}T00:00:00+00:00"} for day in range(1, 26)]
    page.evaluate("(runs) => localStorage.setItem('kshipra-runs', runs)", json.dumps(many))
    run(page)
    found = kept(page)
    assert len(found) == 20
    assert found[1:] == many[:19]


@pytest.mark.parametrize(
    "garbage",
    [
        "not json", "{}", "17", '[null, 3, {"when": "x"}, [[]]]',
        '[{"when": "2025-01-01", "model": "<img src=x>", "ways": [{}]}]',
    ],
)  # fmt: skip
def test_garbage_in_the_store_is_left_out(open_page, garbage):
    page = open_page()
    page.evaluate("(text) => localStorage.setItem('kshipra-runs', text)", garbage)
    run(page)
    page.click("#tab-history")
    assert page.locator(".k-runs li").count() == 1
    assert len(kept(page)) == 1


@pytest.mark.parametrize(
    "store",
    [
        "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }",
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no'); } })",
        "Object.defineProperty(window, 'localStorage', { value: null })",
    ],
)
def test_a_browser_that_keeps_nothing_says_so_and_still_compares(open_page, store):
    page = open_page()
    page.evaluate(f"void ({store})")
    run(page)
    run(page)
    page.click("#tab-history")
    page.wait_for_function("document.querySelectorAll('.k-runs li').length === 2")
    assert page.locator(".k-pair-of-runs").count() == 3
    assert "This browser keeps no data for this page" in page.inner_text(".k-history")


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_is_wider_than_the_window(open_page, width):
    page = open_page(FakeBackend(model_name="m" * 90), viewport={"width": width, "height": 844})
    run(page)
    run(page)
    for tab in ("history", "export"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
