"""The bug lab in a real browser: plant a fault, see both columns, and read what catches it."""

from __future__ import annotations

from dataclasses import replace

import page_fake
import pytest
from page_fake import FakeBackend
from test_page_browser import wait_for_state
from test_proof_browser import badge

from kshipra.recipes import BUGS
from kshipra.types import Check

pytestmark = pytest.mark.slow
TITLES = ".k-columns .k-column h3"


def open_lab(page, bug: str = "pads-counted") -> None:
    page.click("#lab > button")
    page.wait_for_selector("#plant")
    page.check(f"#bug input[value='{bug}']")


def plant(page, bug: str = "pads-counted") -> None:
    open_lab(page, bug)
    page.click("#plant")
    wait_for_state(page, "done")
    page.click("#tab-proof")


def test_a_planted_fault_shows_both_columns_and_the_next_run_the_usual_ways(open_page):
    backend = FakeBackend()
    page = open_page(backend)
    assert page.locator(".k-columns .k-column").count() == 3  # the lab's are not in the preview
    plant(page)
    assert page.locator(TITLES).all_inner_texts() == ["Healthy", "Positions count pads"]
    assert backend.runs[0].plan.recipes == ("pads-counted-healthy", "pads-counted-broken")
    assert page.locator("#summary tbody tr").count() == 2
    page.click("#run:enabled")
    page.wait_for_selector("#column-no_cache")
    wait_for_state(page, "done")
    assert page.locator(TITLES).all_inner_texts() == ["No cache", "KV cache", "Batched"]
    assert page.locator(".k-lab").count() == 0
    assert badge(page) == "= identical"


def test_the_sentence_follows_the_choice_without_the_server(open_page):
    page = open_page()
    page.wait_for_function("window.Plotly")  # the last file that the page's start asks for
    open_lab(page)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for bug in BUGS:
        page.check(f"#bug input[value='{bug.key}']")
        page.wait_for_function(
            "(text) => document.querySelector('.k-bug-sentence').textContent === text", arg=bug.sentence
        )
    assert asked == []


def test_run_and_plant_exclude_each_other_and_stop_ends_either(open_page):
    backend = FakeBackend(hold_in="order-two-healthy")
    page = open_page(backend)
    open_lab(page, "order-two")
    page.click("#plant")
    assert page.is_disabled("#plant")
    assert page.is_disabled("#run")
    wait_for_state(page, "running")
    page.click("#stop:enabled")
    wait_for_state(page, "stopped")
    page.wait_for_selector("#plant:enabled")
    backend.hold_in = "no_cache"
    page.click("#run:enabled")
    assert page.is_disabled("#plant")
    page.evaluate("document.querySelector('#plant').click()")
    wait_for_state(page, "running")
    page.click("#stop:enabled")
    wait_for_state(page, "stopped")
    assert len(backend.runs) == 2


def test_a_lab_that_is_opened_while_a_run_is_going_on_cannot_plant(open_page):
    page = open_page(FakeBackend(hold_in="no_cache"))
    page.click("#run")
    wait_for_state(page, "running")
    page.click("#lab > button")
    page.wait_for_selector("#plant:disabled")
    page.click("#stop:enabled")
    page.wait_for_selector("#plant:enabled")


def test_healthy_and_broken_differ_in_colour_and_in_dash(open_page):
    page = open_page()
    plant(page)
    marks = page.locator("#summary .k-mark")
    assert marks.all_inner_texts() == ["H", "X"]
    looks = marks.evaluate_all(
        "nodes => nodes.map(n => [getComputedStyle(n).color,"
        " n.querySelector('line').getAttribute('stroke-dasharray')])"
    )
    assert looks[0][0] != looks[1][0]
    assert looks[0][1] != looks[1][1]


def test_the_panel_says_which_check_catches_it_and_why(open_page):
    page = open_page()
    plant(page)
    assert page.inner_text(".k-lab h3") == "Planted: Positions count pads"
    bug = BUGS[0]
    assert bug.sentence in page.inner_text(".k-lab")
    assert f"Why: {bug.why}" in page.inner_text(".k-lab")
    cells = page.locator(".k-lab [data-check='padding'] td").all_inner_texts()
    assert [" ".join(text.split()) for text in cells] == [
        "✓ passed off by 0, 0.02 allowed",
        "✗ caught off by 4.2, 0.02 allowed",
    ]
    assert page.inner_text(".k-lab-outcome") == "What catches it here: the padding check."
    assert "rotary" in page.inner_text(".k-lab-positions")
    assert badge(page) == "≠ real fault"


@pytest.mark.parametrize(
    ("family", "named"), [("gpt2", "learned a vector"), ("qwen2", "rotary"), ("bloom", None)]
)
def test_positions_are_explained_for_families_that_are_known(open_page, monkeypatch, family, named):
    monkeypatch.setattr(
        page_fake, "READY", replace(page_fake.READY, spec=replace(page_fake.SPEC, family=family))
    )
    page = open_page()
    plant(page)
    said = page.locator(".k-lab-positions").all_inner_texts()
    assert len(said) == (1 if named else 0)
    assert not named or named in said[0]


def test_a_fault_that_nothing_catches_and_that_met_no_pad_is_admitted(open_page, monkeypatch):
    review = page_fake.review_of
    blind = (Check("padding", "A left-padded row gives the logits of the row alone.", True, 1e-5, 0.02),)
    monkeypatch.setattr(
        page_fake,
        "review_of",
        lambda results: replace(review(results), checks=dict.fromkeys(results, blind)),
    )
    page = open_page()
    page.select_option("#prompts select", label="One short prompt")
    plant(page)
    assert page.inner_text(".k-lab-outcome") == "No check catches it on this model."
    assert "no row was padded" in page.inner_text(".k-lab-nopads")


def test_a_stopped_lab_run_says_that_it_has_no_checks(open_page):
    page = open_page(FakeBackend(hold_in="order-one-broken"))
    open_lab(page, "order-one")
    page.click("#plant")
    page.wait_for_selector('#column-order-one-broken[data-state="decoding"]')
    page.click("#stop")
    wait_for_state(page, "stopped")
    page.click("#tab-proof")
    page.wait_for_selector(".k-lab")
    assert page.inner_text(".k-lab-outcome") == "The run ended before its checks were taken."
    assert page.locator(".k-lab table").count() == 0
    assert badge(page) == "○ not compared"
