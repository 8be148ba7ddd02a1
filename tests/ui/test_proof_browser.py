"""The proof in a real browser: two ways token by token, the verdict, and the box on a token."""

from __future__ import annotations

from dataclasses import replace

import page_fake
import pytest
from page_fake import WORDS, FakeBackend
from test_page_browser import wait_for_state

from kshipra.types import Comparison

pytestmark = pytest.mark.slow


def run(page, tokens: int = 8, ways: tuple[int, ...] = (0, 1, 2)) -> None:
    for place in range(3):
        page.set_checked(f"#recipes input >> nth={place}", place in ways)
    page.fill("#max-new-tokens input", str(tokens))
    page.click("#run")
    wait_for_state(page, "done")
    page.click("#tab-proof")


def picked(page) -> list[str]:
    return page.locator(".k-pickers select").evaluate_all(
        "nodes => nodes.map(n => n.selectedOptions[0].label)"
    )


def tokens(page, row: int) -> list[str]:
    return page.locator(f".k-proof [data-row='{row}'] .k-tok").all_inner_texts()


def badge(page) -> str:
    return " ".join(page.inner_text(".k-proof-badge").split())


def box(page) -> str:
    return " ".join(page.inner_text("#token-box:visible").split())


def test_identical_ways_are_one_line_a_prompt(open_page):
    page = open_page()
    run(page)
    assert picked(page) == ["A No cache", "B KV cache"]
    assert badge(page) == "= identical"
    assert "A and B: every token is identical." in page.inner_text(".k-proof-verdict")
    assert page.locator(".k-parting, .k-first, .k-differs").count() == 0
    expected = [WORDS[(31 + step * 7) % len(WORDS)].replace(" ", "·") for step in range(8)]
    assert tokens(page, 1) == expected
    assert "8 new tokens, the same in both" in page.inner_text(".k-proof [data-row='1'] header")


def test_the_pair_that_parts_comes_first_with_place_candidates_and_figures(open_page):
    page = open_page(FakeBackend(odd="static_batch"))
    run(page)
    assert picked(page) == ["A No cache", "C Batched"]
    assert badge(page) == "≠ real fault"
    facts = page.locator(".k-parting > div").evaluate_all(
        "nodes => nodes.map(n => n.innerText.split(/\\s*\\n\\s*/))"
    )
    assert facts == [
        ["where they part", "prompt 2, new token 5", "go to it"],
        ["A takes", "A", '"." · id 19'],
        ["C takes", "C", '" odd" · id 20'],
        ["margin", "1.25"],
        ["largest logit difference", "3.5"],
    ]
    assert page.locator(".k-first").count() == 1
    pair = page.locator(".k-proof [data-row='1'] [data-at='4'].k-first .k-tok")
    assert pair.all_inner_texts() == [".", "·odd"]
    assert pair.last.get_attribute("aria-label") == "C, token 5: ·odd, first difference"
    boxes = [node.bounding_box() for node in pair.all()]
    assert boxes[0]["x"] == boxes[1]["x"]  # one above the other
    assert boxes[0]["y"] < boxes[1]["y"]
    assert len(tokens(page, 0)) == 8  # the prompts that agree are one line
    page.click(".k-parting button")
    assert page.evaluate("document.activeElement.textContent") == "."


def test_any_pair_can_be_chosen_in_either_order(open_page):
    page = open_page(FakeBackend(odd="static_batch"))
    run(page)
    page.locator(".k-pickers select").nth(1).select_option("kv_cache")
    assert badge(page) == "= identical"
    page.locator(".k-pickers select").nth(0).select_option("static_batch")
    assert badge(page) == "≠ real fault"
    assert [" ".join(t.split()) for t in page.locator(".k-parting dd").all_inner_texts()][1:3] == [
        'C " odd" · id 20',
        'B "." · id 19',
    ]
    assert page.locator(".k-first .k-tok").all_inner_texts() == ["·odd", "."]
    page.locator(".k-pickers select").nth(1).select_option(
        "static_batch"
    )  # both the same: they change places
    assert picked(page) == ["B KV cache", "C Batched"]
    assert page.evaluate("document.activeElement.value") == "static_batch"


@pytest.mark.parametrize(
    ("verdict", "sign"), [("near-tie", "≈ rounding near-tie"), ("ended", "⊣ ended earlier")]
)
def test_other_verdicts_have_a_sign_and_words(open_page, monkeypatch, verdict, sign):
    second = None if verdict == "ended" else 20
    figures = (None, None) if verdict == "ended" else (0.0001, 0.0002)
    found = Comparison("no_cache", "kv_cache", verdict, 1, 4, 19, second, *figures)
    review = page_fake.review_of
    monkeypatch.setattr(
        page_fake, "review_of", lambda results: replace(review(results), comparisons=(found,))
    )
    page = open_page(FakeBackend(odd="kv_cache"))
    run(page, ways=(0, 1))
    assert badge(page) == sign
    assert ("had ended" in page.inner_text(".k-parting")) == (verdict == "ended")
    values = page.locator(".k-parting dd").all_inner_texts()[-2:]
    assert values == (["–", "–"] if verdict == "ended" else ["0.0001", "0.0002"])


def test_hovering_a_token_shows_its_probability_and_the_five_best(open_page):
    page = open_page()
    run(page)
    page.hover(".k-proof [data-row='0'] [data-at='0'] .k-tok")
    assert box(page) == (
        "A ·the id 0 67 % token id probability log p "
        '" the"✓ chosen 0 67 % -0.4 " model" 1 33.3 % -1.1 " reads" 2 16.5 % -1.8 '
        '" <b>bold</b>" 3 8.21 % -2.5 " ${7*7}" 4 4.08 % -3.2'
    )
    widths = page.locator("#token-box .k-share").evaluate_all("nodes => nodes.map(n => n.offsetWidth)")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 30
    assert page.locator("#token-box b b, #token-box img").count() == 0
    page.mouse.move(0, 0)
    assert page.locator("#token-box").is_hidden()


def test_the_keyboard_goes_from_token_to_token_with_one_stop_a_prompt(open_page):
    page = open_page(FakeBackend(odd="kv_cache"))
    run(page)
    assert page.locator(".k-proof .k-tok[tabindex='0']").count() == 3
    page.locator(".k-pickers select").nth(1).focus()
    for _ in range(4):  # "go to it", two definitions, the first prompt's tokens
        page.keyboard.press("Tab")
    assert "id 0" in box(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "id 14" in box(page)
    page.keyboard.press("End")
    assert "id 9" in box(page)
    page.keyboard.press("ArrowRight")  # nothing behind it
    assert "id 9" in box(page)
    page.keyboard.press("Tab")  # the second prompt: where it parts
    assert "id 19" in box(page)
    described = page.evaluate(
        "document.getElementById(document.activeElement.getAttribute('aria-describedby')).id"
    )
    assert described == "token-box"
    page.keyboard.press("ArrowDown")
    assert "B ·odd id 20" in box(page)
    page.keyboard.press("ArrowLeft")
    assert "B " in box(page)
    page.keyboard.press("Escape")
    assert page.locator("#token-box").is_hidden()


def test_a_run_without_probabilities_shows_dashes(open_page, monkeypatch):
    honest = page_fake.events

    def bare(*args, **kwargs):
        for event in honest(*args, **kwargs):
            yield replace(
                event, new_tokens=tuple(replace(t, log_probability=None, best=()) for t in event.new_tokens)
            )

    monkeypatch.setattr(page_fake, "events", bare)
    page = open_page()
    run(page)
    page.hover(".k-proof [data-row='0'] [data-at='0'] .k-tok")
    assert box(page) == "A ·the id 0 – This run holds no probabilities."


def test_long_rows_are_drawn_in_chunks_and_the_place_is_still_reached(open_page, monkeypatch):
    late = [Comparison("no_cache", "kv_cache", "near-tie", 0, 700, 0, 1, 0.1, 0.1)]
    review = page_fake.review_of
    monkeypatch.setattr(
        page_fake, "review_of", lambda results: replace(review(results), comparisons=tuple(late))
    )
    page = open_page()
    page.select_option("#prompts select", label="One short prompt")
    run(page, tokens=1300, ways=(0, 1))
    assert len(tokens(page, 0)) == 500
    assert page.inner_text(".k-proof-row .k-more") == "Show the next 500 of 800 more tokens"
    page.click(".k-parting button")
    assert page.evaluate("document.activeElement.closest('.k-cell').dataset.at") == "700"
    page.click(".k-proof-row .k-more")
    assert len(tokens(page, 0)) == 1300
    assert page.locator(".k-proof-row .k-more").is_hidden()


def test_one_way_no_tokens_and_a_stopped_way(open_page):
    backend = FakeBackend()
    page = open_page(backend)
    run(page, ways=(1,))
    assert page.locator(".k-pickers select").count() == 1
    assert badge(page) == "○ not compared"
    assert len(tokens(page, 0)) == 8
    page.fill("#max-new-tokens input", "0")
    page.click("#run:enabled")
    page.wait_for_function("document.querySelector('.k-proof').textContent.includes('no new tokens')")
    page.check("#recipes input >> nth=2")
    page.fill("#max-new-tokens input", "20")
    backend.hold_in = "static_batch"
    page.click("#run:enabled")
    page.wait_for_selector('#column-static_batch[data-state="decoding"]')
    page.click("#stop")
    wait_for_state(page, "stopped")
    page.wait_for_function("document.querySelectorAll('.k-pickers select').length === 2")
    assert "gone to its end" in page.inner_text(".k-proof-verdict")
    assert page.locator(".k-first").count() == 0  # what a stopped way lacks is no difference


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1024, "dark"), (390, "light")])
def test_nothing_is_wider_than_the_window(open_page, width, scheme):
    page = open_page(
        FakeBackend(odd="kv_cache"), viewport={"width": width, "height": 844}, color_scheme=scheme
    )
    page.click("#run")
    wait_for_state(page, "done")
    page.click("#tab-proof")
    page.locator(".k-first .k-tok").first.focus()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    at = page.locator("#token-box").bounding_box()
    assert at["x"] >= 0
    assert at["x"] + at["width"] <= width
