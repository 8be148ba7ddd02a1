"""The race as a visitor uses it: recorded runs before any run, playing, scrubbing, what is on screen when."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from page_fake import FakeBackend, make_plan
from record_fake import document, every, give_good, record_in
from test_page_browser import wait_until_idle

pytestmark = pytest.mark.slow

SLIDER = ".k-race-controls input[type=range]"
NASTY = "<img src=x onerror=window.pwned=1>${7*7}"


def watch(page) -> None:
    """Begin the recorded run."""
    page.click(".k-watch")
    page.wait_for_selector(".k-play:has-text('Pause')")


def lane(page, way: str) -> dict[str, str | list[str]]:
    """What a lane says now."""
    inside = f".k-lane[data-way={way}]"
    tokens, rate, finished = page.locator(f"{inside} dd").all_inner_texts()
    return {
        "tokens": tokens,
        "rate": rate,
        "finished": finished,
        "badge": page.text_content(f"{inside} .k-badge"),
        "texts": page.locator(f"{inside} .new").all_text_contents(),
    }


def now(page) -> float:
    return float(page.input_value(SLIDER))


@pytest.fixture
def even():
    """A run in which every pass takes half a second: A and B 24 passes, C 8."""
    return document(change=every(0.5))


@pytest.fixture
def endless(tmp_path, monkeypatch):
    """Make the recorded run one whose last passes take a day: however slow the machine, it plays on."""

    def change(key, steps):
        *most, last = every(0.5)(key, steps)
        return [*most, replace(last, at_s=86_400.0)]

    record_in(tmp_path, monkeypatch, endless=document(change=change))


def test_a_first_visitor_watches_a_recorded_race_and_sees_that_it_was_not_measured_here(open_page, endless):
    backend = FakeBackend(hold_in="no_cache")
    page = open_page(backend, own=True)
    assert page.inner_text(".k-recorded span >> nth=0").startswith(
        "SmolLM2-135M-Instruct, cpu: 3 ways, 3 prompts"
    )
    page.click(".k-watch")
    page.wait_for_function("document.querySelector('.k-lane[data-way=static_batch] .new')?.textContent")
    assert page.inner_text(".k-race-note") == "Recorded on Fake CPU 9000, 2/3/2026: not measured here."
    assert "Fake CPU 9000" in page.inner_text(".k-study-caption")
    assert backend.runs == []
    page.click("#run")
    assert page.inner_text(".k-play") == "Play"  # the engine needs the cores
    backend.go()
    page.wait_for_selector("#status[data-state=done]")
    page.wait_for_selector(".k-race-note", state="hidden")
    assert lane(page, "no_cache")["tokens"] == "0 of 72"


def test_each_way_is_where_its_own_clock_says(open_page, even):
    page = open_page()
    give_good(page, even)
    texts = {way["key"]: [[] for _ in way["result"]["rows"]] for way in even["ways"]}
    for way in even["ways"]:
        for step in way["result"]["steps"]:
            for token in step["new_tokens"]:
                texts[way["key"]][token["row"]].append((step["at_s"], token["text"]))
    for at_s in (0, 0.499, 0.5, 1.25, 4.0, 11.9, 3.25, 12.0):  # also backwards
        page.fill(SLIDER, str(at_s))
        for key, rows in texts.items():
            due = ["".join(text for at, text in row if at <= at_s) for row in rows]
            assert lane(page, key)["texts"] == due
    page.fill(SLIDER, "1.25")
    assert page.get_attribute(SLIDER, "aria-valuetext") == "1.25 s"
    assert page.inner_text(".k-race-clock") == "1.25 s of 12.0 s"
    assert lane(page, "no_cache")["tokens"] == "2 of 24"
    assert lane(page, "no_cache")["rate"] == "1.6"
    assert lane(page, "static_batch")["tokens"] == "6 of 24"
    assert lane(page, "static_batch")["rate"] == "4.8"
    bar = page.locator(".k-lane[data-way=static_batch] [role=progressbar]")
    assert (bar.get_attribute("aria-valuenow"), bar.get_attribute("aria-valuemax")) == ("6", "24")
    filling = bar.locator("i").bounding_box()["width"] / bar.bounding_box()["width"]
    assert filling == pytest.approx(6 / 24, abs=0.01)


def test_the_finishing_order_is_told_and_a_tie_is_a_tie(open_page, even):
    page = open_page()
    give_good(page, even)
    page.fill(SLIDER, "3.999")
    assert page.inner_text(".k-race-order").endswith("None has finished yet.")
    assert lane(page, "static_batch")["finished"] == "–"
    page.fill(SLIDER, "4")
    assert page.inner_text(".k-race-order") == "1st: C Batched, 4 s"
    assert lane(page, "static_batch")["badge"] == "1st"
    assert lane(page, "static_batch")["finished"] == "4 s"
    page.fill(SLIDER, "12")
    assert [lane(page, way)["badge"] for way in ("no_cache", "kv_cache")] == ["2nd", "2nd"]
    assert lane(page, "static_batch")["rate"] == "6"  # 24 tokens in its own 4 s, not in 12
    assert page.inner_text(".k-play") == "Play again"


def test_it_plays_at_the_measured_speed_pauses_and_starts_again(open_page, even):
    page = open_page(apart=True)  # a clock is a whole profile's
    page.evaluate("delete performance.now")  # dom.js wraps it at first, for the browser's own clock alone
    page.clock.install()
    give_good(page, even)
    page.clock.pause_at("2099-01-01")  # from here on, only what the test lets pass passes
    for factor in (1, 4, 0.5):
        page.check(f".k-speeds input[value='{factor}']")
        page.fill(SLIDER, "2")
        page.focus(".k-play")
        page.keyboard.press("Space")
        page.clock.run_for(1000)
        page.keyboard.press("Enter")
        assert now(page) - 2 == pytest.approx(factor, abs=0.1 * factor)
        assert page.inner_text(".k-play") == "Play"
    stands = now(page)
    page.clock.run_for(1000)
    assert now(page) == stands
    page.check(".k-speeds input[value='4']")
    page.fill(SLIDER, "11.5")
    page.click(".k-play")
    page.clock.run_for(1000)
    assert page.inner_text(".k-play") == "Play again"
    assert now(page) == 12
    page.click(".k-play")
    assert now(page) == 0
    assert lane(page, "no_cache")["tokens"] == "0 of 24"
    page.clock.run_for(500)
    assert lane(page, "no_cache")["tokens"] == "3 of 24"


def test_it_draws_little_and_only_while_it_plays(open_page, endless):
    page = open_page(own=True)
    wait_until_idle(page)
    frames_per_s = (
        "new Promise((tell) => { const [began, first] = [performance.now(), requestAnimationFrame(() => {})];"
        " setTimeout(() => tell(1000 * (requestAnimationFrame(() => {}) - first - 1)"
        " / (performance.now() - began)), 1000); })"
    )
    watch(page)
    assert page.evaluate(frames_per_s) <= 16
    stands = now(page)
    page.wait_for_function(f"document.querySelector('{SLIDER}').valueAsNumber > {stands}")
    page.click("#tab-timeline")  # out of sight
    wait_until_idle(page)
    page.click("#tab-race")
    assert page.inner_text(".k-play") == "Play"
    page.click(".k-play")
    page.evaluate(
        "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange'))"
    )
    assert page.inner_text(".k-play") == "Play"
    assert page.evaluate(frames_per_s) == 0


@pytest.mark.parametrize(("button", "way"), [("#run", "no_cache"), ("#plant", "pads-counted-healthy")])
def test_it_stops_when_the_engine_needs_the_cores(open_page, endless, button, way):
    page = open_page(FakeBackend(hold_in=way), own=True)
    if button == "#plant":
        page.click("#lab button >> nth=0")  # the accordion
    watch(page)
    page.click(button)
    assert page.inner_text(".k-play") == "Play"


def test_the_keyboard_scrubs_and_chooses_the_speed(open_page, even):
    page = open_page()
    give_good(page, even)
    page.fill(SLIDER, "6")
    page.focus(SLIDER)
    page.keyboard.press("ArrowRight")
    assert now(page) == pytest.approx(6.12)
    assert page.get_attribute(SLIDER, "aria-valuetext") == "6.12 s"
    page.keyboard.press("End")
    assert lane(page, "no_cache")["tokens"] == "24 of 24"
    page.focus(".k-speeds input:checked")
    page.keyboard.press("ArrowRight")
    assert page.is_checked(".k-speeds input[value='2']")


def test_the_text_that_grows_stays_in_sight_unless_someone_reads_elsewhere(open_page):
    page = open_page()
    give_good(page, document(make_plan(max_new_tokens=200), change=every(0.1)))
    texts = page.locator(".k-lane[data-way=no_cache] .k-texts")
    page.fill(SLIDER, "18")
    assert texts.evaluate("node => node.scrollTop") > 100
    page.fill(SLIDER, "1")
    assert texts.evaluate("node => node.scrollTop") < 50
    page.fill(SLIDER, "18")
    texts.evaluate("node => { node.scrollTop = 20; }")
    page.fill(SLIDER, "19")
    assert texts.evaluate("node => node.scrollTop") == 20


def five_ways() -> dict:
    """Five ways; B was stopped after three passes, E has no token at all, and texts and names are markup."""
    content = document(make_plan(("a", NASTY), max_new_tokens=6), stopped="kv_cache",
                       change=lambda key, steps: steps[:3] if key == "kv_cache" else steps)  # fmt: skip
    for letter in "DE":
        way = copy.deepcopy(content["ways"][2]) | {
            "key": letter,
            "letter": letter,
            "label": f"{letter}{NASTY}",
        }
        content["ways"].append(way)
    empty = content["ways"][4]["result"]
    empty |= {"steps": [], "wall_s": 0.0, "new_tokens": 0}
    for row in empty["rows"]:
        row |= {"text": "", "new_tokens": 0, "token_ids": []}
    return content


@pytest.mark.parametrize("width", [1440, 390])
def test_ways_that_ended_early_and_markup_are_shown_as_what_they_are(open_page, tmp_path, monkeypatch, width):
    one = document(make_plan(("Hi",), ("kv_cache",), max_new_tokens=1))
    record_in(tmp_path, monkeypatch, five=five_ways(), one=one)
    page = open_page(own=True, viewport={"width": width, "height": 900})
    page.select_option(".k-recorded select", "0")
    page.click(".k-watch")
    page.wait_for_selector(".k-lane[data-way=E]")
    page.focus(SLIDER)
    page.keyboard.press("End")
    assert lane(page, "kv_cache")["badge"] == "stopped"
    assert lane(page, "kv_cache")["finished"] == "–"
    assert "B KV cache" not in page.inner_text(".k-race-order")
    assert lane(page, "E") | {"texts": 0} == {
        "tokens": "0 of 0", "rate": "–", "finished": "–", "badge": "", "texts": 0
    }  # fmt: skip
    assert page.inner_text(".k-lane[data-way=D] h3") == f"D{NASTY}"
    assert page.locator(".k-lane[data-way=no_cache] .prompt").all_inner_texts()[1] == NASTY
    assert page.evaluate("window.pwned") is None
    assert page.locator("#study img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tops = {box["y"] for box in (found.bounding_box() for found in page.locator(".k-lane").all())}
    assert len(tops) == (2 if width == 1440 else 5)  # three and two
    page.locator(".k-lane").last.evaluate("node => node.scrollIntoView({ block: 'center' })")
    assert (
        page.locator(".k-play").bounding_box()["y"] >= 0
    )  # the controls stay with whoever watches the last lane
    page.select_option(".k-recorded select", "1")
    page.click(".k-watch")
    page.wait_for_selector(".k-lane[data-way=no_cache]", state="detached")
    assert page.locator(".k-lane").count() == 1


def test_a_recorded_run_that_is_gone_is_said_so(open_page, endless):
    page = open_page(own=True)
    page.route("**/endless.json", lambda route: route.fulfill(status=200, body="not a document"))
    page.click(".k-watch")
    page.wait_for_selector(".k-problem:has-text('could not be loaded')")
