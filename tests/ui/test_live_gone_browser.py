"""A server that goes away while visitors use the Live part: it is said, what was answered stays, and nothing
that is written afterwards waits for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from relay import Relay
from test_live_browser import address, answering, backend, passes, say, turn  # noqa: F401  (three are fixtures)

from kshipra.ui import words

pytestmark = pytest.mark.slow


@pytest.fixture
def relay(address) -> Iterator[Relay]:  # noqa: F811
    one = Relay(address)
    yield one
    one.shut()


@pytest.fixture
def page(visitor, relay, passes):  # noqa: F811
    """Its console may complain: a connection is refused here."""
    tab = visitor.new_page()
    tab.goto(f"{relay.address}#live")
    tab.wait_for_function("document.querySelector('.k-live-figures dd')?.textContent.endsWith('of 8')")
    yield tab
    passes.allow(None)
    tab.close()


def assert_lost(page, number: int) -> None:
    page.wait_for_selector(f".k-turn[data-number='{number}'][data-state='cancelled']", timeout=20_000)
    assert page.inner_text(".k-live .k-said") == words.LIVE["lost"]
    assert turn(page, number).locator(".k-badge").inner_text() == words.LIVE["brokenOff"]
    assert turn(page, number).locator(".k-turn-stop").is_hidden()
    assert page.is_disabled("#live-send")  # nothing answers any more


def test_an_answer_whose_server_has_gone_ends_with_a_sentence_and_stays(page, relay, passes):  # noqa: F811
    passes.allow(20)
    say(page, "the first", 256)
    answering(page)
    page.wait_for_function("document.querySelector('.k-turn-answer span').innerText.length > 3")
    relay.shut()
    assert_lost(page, 0)
    answer = turn(page).locator(".k-turn-answer span").first
    text = answer.inner_text()
    assert len(text) > 3
    page.evaluate("window.isThisPage = true")
    with page.expect_response("**/app_id"):  # Gradio's own question, upon whose answer it loads the page anew
        relay.open()
    page.wait_for_timeout(3000)
    assert page.evaluate("window.isThisPage")
    assert answer.inner_text() == text
    say(page, "the second", 4)  # Enter sends no more than the button does
    assert page.locator(".k-turn").count() == 1
    assert page.input_value("#live-say") == "the second"


def test_what_is_sent_after_the_server_has_gone_does_not_wait_for_ever(page, relay):
    relay.shut()
    say(page, "into the void", 4)
    assert_lost(page, 0)
    assert turn(page).locator(".k-turn-said span").inner_text() == "into the void"
