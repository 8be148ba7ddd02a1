"""Several visitors on one device: each sees his place, one too many is refused politely, and who stops or
goes away makes way at once. A real backend with a slow model."""

from __future__ import annotations

import time

import pytest

from fakes import FakeModel
from kshipra.backends import local
from kshipra.backends.local import LocalBackend
from kshipra.engine import roofline, runner
from kshipra.engine.runner import Engine
from kshipra.types import Roofline

pytestmark = pytest.mark.slow
GONE_WITHIN_S = 10.0


@pytest.fixture
def slow(monkeypatch, byte_level) -> FakeModel:
    """A model whose every pass takes at least 20 ms."""
    model = FakeModel([72, 105, 33], step_s=0.02, prefill_s=0.02)
    monkeypatch.setattr(runner, "load", lambda *_, **__: Engine(model, byte_level))
    speed = Roofline("cpu", "float32", 2, 1e10, 1e11, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(roofline, "cached_roofline", lambda *_, **__: speed)
    monkeypatch.setattr(local, "MAX_WAITING", 2)
    return model


@pytest.fixture
def visitors(slow, open_page, serve):
    """Open the tab of one more visitor, who asks for a run that would take minutes."""
    url = serve(LocalBackend())

    def one():
        page = open_page(url=url, apart=True)  # a browser has six connections to a server, a tab holds two
        page.fill(".k-prompts textarea >> nth=0", "abcabc")
        page.fill("#max-new-tokens input", "2000")
        page.keyboard.press("Tab")
        page.click("#run")
        return page

    return one


def says(page, text: str) -> None:
    page.wait_for_function(
        "(text) => document.getElementById('status').textContent.includes(text)", arg=text, timeout=60_000
    )


def runs(page) -> None:
    page.wait_for_selector("#status[data-state='running']")


def test_places_move_up_one_too_many_is_refused_and_who_stops_makes_way(visitors):
    first, second, third = visitors(), None, None
    runs(first)
    second = visitors()
    says(second, "Queued: 1 run goes first.")
    third = visitors()
    says(third, "Queued: 2 runs go first.")

    fourth = visitors()
    says(fourth, "2 runs are waiting already: try again in a few minutes.")
    assert fourth.get_attribute("#status", "data-state") == "failed"
    assert fourth.input_value(".k-prompts textarea >> nth=0") == "abcabc"
    assert fourth.input_value("#max-new-tokens input") == "2000"

    first.dblclick("#stop")  # twice in a row
    says(first, "Stopped: what there is stays.")
    runs(second)
    says(third, "Queued: 1 run goes first.")
    fourth.click("#run")  # there is room again
    says(fourth, "Queued: 2 runs go first.")

    third.click("#stop")  # who waits makes way at once, too
    says(third, "Stopped")
    says(fourth, "Queued: 1 run goes first.")
    for page in (second, fourth):
        page.click("#stop")
        says(page, "Stopped")


def test_a_closed_tab_makes_way_whether_it_runs_or_waits(visitors, slow):
    first = visitors()
    runs(first)
    second, third = visitors(), visitors()
    says(third, "Queued: 2 runs go first.")
    second.close()
    says(third, "Queued: 1 run goes first.")
    closed_s = time.monotonic()
    first.close()
    runs(third)
    assert time.monotonic() - closed_s < GONE_WITHIN_S
    third.close()
    closed_s = time.monotonic()
    before = -1
    while before != slow.passes:  # until no pass is made any more
        before = slow.passes
        time.sleep(0.3)
        assert time.monotonic() - closed_s < GONE_WITHIN_S
