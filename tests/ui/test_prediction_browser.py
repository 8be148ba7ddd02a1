"""The prediction beside the measurement, as a person reads it."""

from __future__ import annotations

import pytest
from page_fake import SPEC, FakeBackend

pytestmark = pytest.mark.slow


def run_and_open(open_page, **view):
    page = open_page(FakeBackend(pace=0.5), **view)
    page.click("#run")
    page.wait_for_selector("#status[data-state='done']")
    page.click("#tab-prediction")
    return page


def test_each_way_has_its_prediction_its_shares_and_what_bounds_it(open_page):
    page = run_and_open(open_page)
    step_bytes = 4 * (SPEC.block_parameters + SPEC.width * SPEC.vocabulary)
    assert round(step_bytes / 2**20) == 512
    (first, second, third) = page.locator("#study-prediction li").all_inner_texts()
    # at the fake's 20 GB/s, 537 MB take 26.9 ms; its cached step of one row takes 25 ms, that of three 37 ms
    assert "Reading the weights bounds this run: 512 MiB a step at 18.6 GiB/s" in first
    assert "26.9 ms" in first
    assert "514 MiB a step" in second  # and 2 MiB of keys and values
    assert "of the 37" in third
    rows = page.locator("#study-prediction tbody tr")
    assert rows.count() == 3
    cells = rows.nth(0).locator("td").all_inner_texts()
    assert cells[1] == "26.9 ms"
    assert cells[5:] == ["weights read", "0", "0"]  # no cache, by the formula and in the tensors
    share = float(rows.nth(2).locator("td").nth(3).inner_text().removesuffix(" %"))
    measured_ms = float(rows.nth(2).locator("td").nth(2).inner_text().removesuffix(" ms"))
    assert share == pytest.approx(100 * 27.1 / measured_ms, rel=0.02)
    line = page.locator("#study-prediction .k-small").first.inner_text()
    assert "18.6 GiB/s of memory read, 200 GFLOP/s in float32 on cpu, 2 threads" in line


def test_a_stopped_run_says_that_it_has_none(open_page):
    page = open_page(FakeBackend(hold_in="no_cache"))
    page.click("#run")
    page.wait_for_selector("#status[data-state='running']")
    page.wait_for_selector("#column-no_cache .k-fresh")
    page.click("#stop")
    page.wait_for_selector("#status[data-state='stopped']")
    page.click("#tab-prediction")
    assert "the run was stopped" in page.inner_text("#study-prediction")


def test_the_keyboard_moves_between_tabs_and_definitions_stay_inside_a_phone(open_page):
    page = run_and_open(open_page, viewport={"width": 390, "height": 844})
    page.focus("#tab-prediction")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-export"
    assert page.is_hidden("#study-prediction")
    page.keyboard.press("ArrowLeft")
    page.locator("#study-prediction th .k-term").nth(3).focus()
    tip = page.locator(".k-tip.shown").last.bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= 390
