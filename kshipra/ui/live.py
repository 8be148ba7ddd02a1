"""The Live part on the server: one stream a browser tab, and what its visitor does. A tab that is closed
leaves the batch. Never imports torch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from kshipra.backends.base import Backend
from kshipra.backends.lobby import Lobby
from kshipra.backends.visitors import Visitor
from kshipra.errors import InputError, KshipraError
from kshipra.limits import clean_text
from kshipra.types import ModelChoice, SamplingParams
from kshipra.ui import words
from kshipra.ui.handlers import WAKE_EVERY_S
from kshipra.ui.lines import line
from kshipra.ui.live_view import LiveView

BEAT_S = 10.0  # something is sent at least so often: how Gradio finds out who is still there

_LOST = "() => { document.dispatchEvent(new CustomEvent('kshipra:live-lost')); }"
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Tab:
    lobby: Lobby
    visitor: Visitor
    view: LiveView = field(default_factory=LiveView)
    wishes: int = 0  # that were taken: the next one's number


class LivePart:
    """The tabs that have come here, by session. Its methods run in the server's one event loop."""

    def __init__(self, backend: Backend, choice: ModelChoice) -> None:
        self._backend, self._choice = backend, choice
        self._tabs: dict[str, Tab] = {}

    async def enter(self, request: gr.Request) -> AsyncIterator[str]:
        """The tab's lines, as long as it is there."""
        lobby, session = self._backend.lobby, str(request.session_hash)
        if lobby is None:
            yield line("nothing", 0, words.LIVE["nothing"])
            return
        self._leave(session)
        tab = self._tabs[session] = Tab(lobby, lobby.enter(self._choice))
        try:
            text, told_at = "", 0.0
            while not tab.visitor.gone:
                new = tab.view.text(lobby.scene(tab.visitor), self._backend.model())
                if new is not None or time.monotonic() - told_at > BEAT_S:
                    text, told_at = new or text, time.monotonic()
                    yield text
                await asyncio.sleep(WAKE_EVERY_S)
        finally:
            lobby.leave(tab.visitor)
            if self._tabs.get(session) is tab:
                del self._tabs[session]

    async def act(self, event: gr.EventData, request: gr.Request) -> None:
        """What a visitor does: send, stop or forget, in his order and each once. Anything can be posted."""
        said: dict[str, Any] = event._data if isinstance(event._data, dict) else {}
        tab, number = self._tabs.get(str(request.session_hash)), said.get("number")
        if tab is None or not isinstance(number, int) or said.get("wish") != tab.wishes:
            return
        tab.wishes += 1
        tab.view.took(tab.wishes - 1)
        try:
            self._do(tab, number, said)
        except KshipraError as error:
            tab.view.refuse(number, str(error))
        except Exception:
            _log.exception("a visitor's wish was not taken")
            tab.view.refuse(number, words.BUG)

    def _do(self, tab: Tab, number: int, said: dict[str, Any]) -> None:
        match said.get("do"):
            case "send":
                if not isinstance(text := said.get("text"), str):
                    raise InputError("Write something first.")
                params = SamplingParams(said.get("tokens"), temperature=said.get("temperature"))
                tab.lobby.send(tab.visitor, number, clean_text(text), params)
            case "stop":
                tab.lobby.cancel(tab.visitor, number)
            case "forget":
                tab.lobby.forget(tab.visitor)

    async def unload(self, request: gr.Request) -> None:
        self._leave(str(request.session_hash))

    def _leave(self, session: str) -> None:
        if (tab := self._tabs.pop(session, None)) is not None:
            tab.lobby.leave(tab.visitor)


def wire_live(page: gr.Blocks, part: gr.HTML, backend: Backend, choice: ModelChoice) -> None:
    """Connect the part's two events, in the current context."""
    live = LivePart(backend, choice)
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    entered = part.enter(live.enter, outputs=part, concurrency_limit=None, trigger_mode="once", **quiet)
    for event in (entered.then, entered.failure):  # a stream that ends is lost
        event(None, js=_LOST)
    part.act(live.act, queue=False, trigger_mode="multiple", **quiet)
    page.unload(live.unload)
