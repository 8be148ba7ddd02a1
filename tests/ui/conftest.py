"""What the page's tests share: plans, a page served from a FakeBackend, and a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from page_fake import CHOICE, FakeBackend, make_plan

from kshipra.types import Plan
from kshipra.ui.build import build_page, launch_options


@pytest.fixture
def plan() -> Plan:
    return make_plan()


@pytest.fixture
def serve() -> Iterator[Callable[[FakeBackend], str]]:
    """Serve a page for a backend; gives its address."""
    pages = []

    def start(backend: FakeBackend) -> str:
        page = build_page(backend, CHOICE)
        pages.append((page, backend))
        options = launch_options() | {"server_name": "127.0.0.1", "quiet": True}
        _, url, _ = page.launch(**options, prevent_thread_lock=True)
        return url

    yield start
    for page, backend in pages:
        backend.close()
        page.close()


@pytest.fixture
def open_page(chromium, serve):
    """Open a backend's page in a tab; at the end the tab must have had no error."""
    tabs, errors = [], []

    def start(backend: FakeBackend | None = None, url: str | None = None, **view):
        tab = chromium.new_page(viewport=view.pop("viewport", {"width": 1440, "height": 1200}), **view)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        tab.goto(url or serve(backend or FakeBackend(pace=0.1)))
        tab.wait_for_selector("#column-no_cache")
        tab.wait_for_selector("#stop:disabled")  # the scripts have taken over the buttons
        tabs.append(tab)
        return tab

    yield start
    for tab in tabs:
        tab.close()
    assert errors == []
