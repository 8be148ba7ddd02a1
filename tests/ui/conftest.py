"""What the page's tests share: plans, a page served from a FakeBackend, and a real browser.

A page's start is what such a test costs: so all tests share one server, whose backend they exchange, and one
browser profile, whose caches stay warm. Each tab finds the browser's store empty, as on a first visit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import pytest
from page_fake import CHOICE, FakeBackend, make_plan

from kshipra.types import Plan
from kshipra.ui import handlers
from kshipra.ui.build import build_page, launch_options

CUT_OFF = re.compile("AbortError|Connection errored out|Failed to fetch|ERR_ABORTED")
PATIENCE_MS = 120_000  # of a wait: only a fault uses it up, however slow the machine
WIDE = {"width": 1440, "height": 1200}


class Exchanged:
    """The shared server's backend: whichever the test at hand has put there."""

    def __init__(self) -> None:
        self.now = FakeBackend()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


def launched(backend: FakeBackend | Exchanged) -> tuple[gr.Blocks, str]:
    page = build_page(backend, CHOICE)
    options = launch_options() | {"server_name": "127.0.0.1", "quiet": True}
    _, url, _ = page.launch(**options, prevent_thread_lock=True)
    return page, url


@pytest.fixture
def plan() -> Plan:
    return make_plan()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[tuple[Exchanged, str]]:
    backend = Exchanged()
    page, url = launched(backend)
    yield backend, url
    page.close()


@pytest.fixture(scope="session")
def new_visitor(chromium):
    """Make a browser profile."""

    def make():
        context = chromium.new_context()
        context.set_default_timeout(PATIENCE_MS)
        return context

    return make


@pytest.fixture(scope="session")
def visitor(new_visitor, shared_server):
    """The shared profile; a tab at rest keeps the process of all its pages, and what is compiled there."""
    context = new_visitor()
    context.new_page().goto(f"{shared_server[1]}favicon.ico")
    yield context
    context.close()


@pytest.fixture
def serve(shared_server, monkeypatch) -> Iterator[Callable[..., str]]:
    """Serve a page for a backend; gives its address. `own`: from a server that is built for it, since what a
    page is built with (recorded runs, the model's name) does not change any more."""
    exchanged, shared_url = shared_server
    backends, pages = [], []
    monkeypatch.setattr(handlers, "WAKE_EVERY_S", 0.03)

    def start(backend: FakeBackend, *, own: bool = False) -> str:
        backends.append(backend)
        if not own:
            exchanged.now = backend
            return shared_url
        page, url = launched(backend)
        pages.append(page)
        return url

    yield start
    for backend in backends:
        backend.close()
    for page in pages:
        page.close()
    exchanged.now = FakeBackend()


@pytest.fixture
def open_page(visitor, new_visitor, serve):
    """Open a backend's page in a tab; at the end the tab must have had no error. `apart`: in a profile of its
    own, for what Playwright changes in a whole profile."""
    tabs, errors = [], []

    def start(
        backend: FakeBackend | None = None,
        url: str | None = None,
        *,
        own: bool = False,
        apart: bool = False,
        viewport=WIDE,
        **media,
    ):
        url = url or serve(backend or FakeBackend(pace=0.1), own=own)
        tab = (new_visitor() if apart else visitor).new_page()
        tabs.append((tab, apart))
        tab.set_viewport_size(viewport)
        tab.emulate_media(**media)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        tab.context.new_cdp_session(tab).send(
            "Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "local_storage"}
        )
        tab.goto(url)
        tab.wait_for_selector(".k-column")
        tab.wait_for_selector("#stop:disabled")  # the scripts have taken over the buttons
        tab.wait_for_selector(
            "#estimate[data-state], #estimate [data-state]", state="attached"
        )  # the last to come
        tab.reload = lambda: reload(tab)
        return tab

    def reload(tab) -> None:
        """What was still being asked is cut off, of which Gradio complains."""
        before = len(errors)
        type(tab).reload(tab)
        tab.wait_for_selector(".k-column")
        errors[before:] = [said for said in errors[before:] if not CUT_OFF.search(said)]

    yield start
    for tab, apart in tabs:
        (tab.context if apart else tab).close()
    assert errors == []
