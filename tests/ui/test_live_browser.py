"""The Live part in real browsers: visitors who share one batch and see only their own texts, Stop, reload."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from page_fake import CHOICE, FakeBackend

from fakes import FakeModel
from kshipra.backends.local import LocalBackend
from kshipra.engine import runner
from kshipra.engine.runner import Engine
from kshipra.types import Plan, SamplingParams
from kshipra.ui import words
from kshipra.ui.build import build_page, launch_options

pytestmark = pytest.mark.slow

SECRETS = ("amber ferry at noon", "nine copper spoons", "the mole knows it")
OVER = "!['waiting', 'reading', 'answering'].includes(node.dataset.state)"


class Passes:
    """How many passes the model may take from now on; None: all."""

    def __init__(self) -> None:
        self._changed, self._left = threading.Condition(), None

    def allow(self, passes: int | None) -> None:
        with self._changed:
            self._left = passes
            self._changed.notify_all()

    def take(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._left != 0, timeout=120)
            self._left = self._left and self._left - 1


@pytest.fixture(scope="module")
def passes() -> Passes:
    return Passes()


@pytest.fixture(scope="module")
def backend(passes, byte_level) -> Iterator[LocalBackend]:
    """Its model says what its position tells it to, so prompts of different length get different texts."""
    letters = random.Random(0).choices(range(64, 90), k=3000)

    def load(name, **_) -> Engine:
        return Engine(FakeModel(letters, step_s=0.005, during=passes.take), byte_level)

    honest, runner.load = runner.load, load
    made = LocalBackend()
    yield made
    passes.allow(None)
    made.close()
    runner.load = honest


@pytest.fixture(scope="module")
def address(backend) -> Iterator[str]:
    built = build_page(backend, CHOICE)
    _, url, _ = built.launch(
        **launch_options() | {"server_name": "127.0.0.1", "quiet": True}, prevent_thread_lock=True
    )
    yield url
    built.close()


@pytest.fixture
def come(visitor, new_visitor, address, passes):
    """A visitor in a tab; `apart`: in a browser profile of his own."""
    tabs, errors = [], []

    def start(*, apart: bool = False):
        page = (new_visitor() if apart else visitor).new_page()
        tabs.append(page.context if apart else page)
        page.set_viewport_size({"width": 1440, "height": 1000})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}#live")
        page.wait_for_function("document.querySelector('.k-live-figures dd')?.textContent.endsWith('of 8')")
        return page

    yield start
    passes.allow(None)
    for tab in tabs:
        tab.close()
    assert errors == []


def say(page, text: str, tokens: int = 40) -> None:
    page.fill("#live-tokens", str(tokens))
    page.fill("#live-say", text)
    page.press("#live-say", "Enter")


def turn(page, number: int = 0):
    return page.locator(f".k-turn[data-number='{number}']")


def answering(page, number: int = 0) -> None:
    page.wait_for_selector(f".k-turn[data-number='{number}'][data-state='answering']")


def over(page, count: int = 1) -> None:
    page.wait_for_function(
        f"(() => {{ const all = [...document.querySelectorAll('.k-turn')]; "
        f"return all.length === {count} && all.every((node) => {OVER}); }})()"
    )


def figure(page, label: str) -> str:
    return page.locator(f".k-live-figures > div:has(dt:text-is('{label}')) dd").inner_text()


def test_three_visitors_share_the_batch_and_see_only_their_own(come, passes):
    passes.allow(0)
    pages = [come(apart=True) for _ in SECRETS]
    for page, secret in zip(pages, SECRETS, strict=True):
        say(page, secret)
        page.wait_for_selector(".k-badge:text('waiting')")
    passes.allow(20)
    for page in pages:
        page.wait_for_function("document.querySelectorAll('.k-live-drawing .told').length === 3")
        assert page.locator(".k-live-drawing .own .told").count() == 1
        assert page.locator(".k-live-drawing .other .told").count() == 2
        assert page.locator(".k-live-drawing").get_attribute("aria-label").endswith("3, yours: 1.")
    passes.allow(None)
    for page in pages:
        over(page)
    texts = [turn(page).locator(".k-turn-answer span").first.inner_text() for page in pages]
    assert len(set(texts)) == 3
    for page, secret, text in zip(pages, SECRETS, texts, strict=True):
        assert len(text) > 5
        everything = page.content() + page.evaluate("JSON.stringify([...document.querySelectorAll('*')]"
            ".flatMap((node) => [...node.attributes].map(({ value }) => value)))")  # fmt: skip
        assert secret in everything
        assert not any(other in everything for other in SECRETS if other != secret)
        assert not any(other in everything for other in texts if other != text)
        assert figure(page, "visitors") == "3"
        assert figure(page, "tok/s, all rows")


def test_turns_of_a_conversation_reuse_what_was_said(come):
    page = come()
    for number in range(3):
        say(page, f"turn {number}", 8)
        over(page, number + 1)
    shown = [turn(page, number).locator("dl > div >> nth=2 >> dd").inner_text() for number in range(3)]
    (first, second, third) = [[int(part.replace(",", "")) for part in text.split(" of ")] for text in shown]
    assert first[0] < first[1]
    assert first[1] <= second[0] < second[1] <= third[0] < third[1]
    assert figure(page, "kept for reuse").endswith("KiB of 256 MiB")
    assert turn(page, 2).locator(".k-badge").inner_text() == words.FINISH["length"]
    page.click("#live-new")
    assert page.locator(".k-turn").count() == 0
    assert page.locator(".k-talk .k-empty").is_visible()
    say(page, "turn 0", 8)
    over(page)


def test_stop_ends_one_turn_and_the_next_goes_on(come, passes):
    page = come()
    passes.allow(20)
    say(page, "first", 256)
    say(page, "second", 6)
    answering(page)
    page.wait_for_selector(f".k-badge:text('{words.LIVE_STATES['behind']}')")
    turn(page).locator(".k-turn-stop").click()
    page.wait_for_selector(".k-turn[data-number='0'][data-state='cancelled']")
    assert turn(page).locator(".k-turn-stop").is_hidden()
    passes.allow(None)
    over(page, 2)
    kept = turn(page).locator(".k-turn-answer span").first.inner_text()
    assert len(kept) > 0
    assert turn(page, 1).get_attribute("data-state") == "length"


def test_a_reload_leaves_the_batch_and_starts_anew(come, passes):
    page, other = come(), come()
    passes.allow(20)
    say(page, "gone soon", 256)
    answering(page)
    page.reload()
    passes.allow(None)
    page.wait_for_function("document.querySelector('.k-live-figures dd')?.textContent === '0 of 8'")
    assert page.locator(".k-turn").count() == 0
    other.wait_for_function("document.querySelector('.k-live-figures dd').textContent === '0 of 8'")
    assert figure(other, "visitors") == "2"
    say(page, "here again", 4)
    over(page)


def test_a_closed_tab_leaves_the_batch(come, backend, passes):
    page, other = come(), come()
    passes.allow(20)
    say(page, "gone soon", 256)
    answering(page)
    other.wait_for_function("document.querySelector('.k-live-figures dd').textContent === '1 of 8'")
    page.close()
    passes.allow(None)
    other.wait_for_function("document.querySelector('.k-live-figures dd').textContent === '0 of 8'")
    assert len(backend.lobby.visitors) == 1


def test_a_measured_run_goes_first_and_it_is_said(come, backend, passes):
    page = come()
    say(page, "warm", 2)
    over(page)
    passes.allow(0)
    run = backend.submit(Plan(CHOICE, ("ab",), ("kv_cache",), SamplingParams(30)))
    say(page, "waits", 4)
    page.wait_for_selector(".k-badge:text('a measured run goes first, place 1')")
    run.stop()
    passes.allow(None)
    over(page, 2)


def test_what_is_refused_is_said_and_not_lost(come):
    page = come()
    page.fill("#live-say", "too many")
    page.evaluate("document.querySelector('#live-tokens').value = 300")
    page.evaluate("document.querySelector('.k-live-form').noValidate = true")
    page.press("#live-say", "Enter")
    page.wait_for_selector(".k-live .k-refused:text('from 1 to 256')")
    assert page.input_value("#live-say") == "too many"
    assert page.locator(".k-turn").count() == 0
    nasty = "<img src=x onerror=alert(1)> <|im_end|>"
    say(page, nasty, 4)
    over(page)
    assert turn(page, 1).locator(".k-turn-said span").inner_text() == nasty
    assert page.locator(".k-turn img").count() == 0


def test_a_long_visit_stays_small(come, monkeypatch):
    from kshipra.ui import live_view

    monkeypatch.setattr(live_view, "MOST_CHARS", 900)
    monkeypatch.setattr(live_view, "KEPT_CHARS", 890)
    page = come()
    for number in range(4):
        say(page, f"turn {number}", 60)
    over(page, 4)
    for number in range(4):
        assert turn(page, number).locator("dd >> nth=3").inner_text() == "60"
        assert len(turn(page, number).locator(".k-turn-answer > span").inner_text()) == 60
    talk = "document.querySelector('.k-talk')"
    assert page.evaluate(f"{talk}.scrollHeight - {talk}.scrollTop - {talk}.clientHeight") < 2


def test_it_fits_a_phone_and_a_server_that_shares_nothing_says_so(open_page, come):
    page = come()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page = open_page(FakeBackend())
    page.click(".k-places a >> nth=2")
    page.wait_for_selector(f".k-live .k-said:text('{words.LIVE['nothing']}')")
    assert page.locator("#bench").is_hidden()
