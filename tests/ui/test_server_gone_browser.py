"""A server that goes away: the page says so, keeps what had come, and does not wait for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from page_fake import FakeBackend
from relay import Relay

from kshipra.ui import words

pytestmark = pytest.mark.slow
TEXT = "document.querySelector('#column-no_cache .new').textContent"


@pytest.fixture
def relay(serve) -> Iterator[Relay]:
    one = Relay(serve(FakeBackend(hold_in="no_cache")))
    yield one
    one.shut()


@pytest.fixture
def page(visitor, relay):
    """Its console may complain: a connection is refused here."""
    tab = visitor.new_page()
    tab.goto(relay.address)
    tab.wait_for_selector("#stop:disabled")
    yield tab
    tab.close()


def run_until_held(page) -> str:
    page.click("#run")
    page.wait_for_function(f"{TEXT}.length > 3")
    return page.evaluate(TEXT)


def assert_kept(page, text: str) -> None:
    assert page.inner_text("#status") == words.PAGE["gone"]
    assert page.evaluate(TEXT).startswith(text)
    assert page.get_attribute("#column-no_cache", "data-state") == "failed"
    assert page.inner_text("#column-no_cache .k-badge") == words.PAGE["brokenOff"]
    assert page.is_disabled("#stop")
    assert page.is_disabled("#run")  # nothing answers, and Gradio's script sends nothing any more


def test_a_run_whose_server_has_gone_ends_with_a_sentence_and_its_partial_texts(page, relay):
    text = run_until_held(page)
    relay.shut()
    page.wait_for_selector("#status[data-state='failed']", timeout=20_000)
    assert_kept(page, text)


def test_the_texts_stay_when_a_server_is_there_again_and_a_reload_starts_anew(page, relay):
    text = run_until_held(page)
    relay.shut()
    page.wait_for_selector("#status[data-state='failed']", timeout=20_000)
    page.evaluate("window.isThisPage = true")
    with page.expect_response("**/app_id"):  # Gradio's own question, upon whose answer it loads the page anew
        relay.open()
    page.wait_for_timeout(3000)
    assert page.evaluate("window.isThisPage")
    assert_kept(page, text)
    page.reload()
    page.wait_for_selector("#stop:disabled")
    page.wait_for_selector("#run:enabled")
    assert page.get_attribute("#status", "data-state") == "idle"


def test_a_run_that_was_begun_after_the_server_had_gone_does_not_start_for_ever(page, relay):
    relay.shut()
    page.click("#run")
    page.wait_for_selector("#status[data-state='failed']", timeout=20_000)
    assert page.inner_text("#status") == words.PAGE["gone"]


def test_a_page_with_nothing_on_it_is_loaded_anew_by_itself(page, relay):
    relay.shut()
    page.click("#run")
    page.wait_for_selector("#status[data-state='failed']", timeout=20_000)
    relay.open()
    page.wait_for_selector("#status[data-state='idle']", timeout=20_000)
    page.wait_for_selector("#run:enabled")
