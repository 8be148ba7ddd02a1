"""The Live part on the server: what goes over the wire to whom, and when a tab's stream and rows end."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from page_fake import CHOICE

from fakes import FakeModel
from kshipra.backends.local import LocalBackend
from kshipra.engine import runner
from kshipra.engine.runner import Engine
from kshipra.ui import live, live_view
from kshipra.ui.live import LivePart

SECRET = "the secret of the well, of which nobody else may ever read as much as a word"


class Server:
    def __init__(self, backend: LocalBackend) -> None:
        self.backend, self.part = backend, LivePart(backend, CHOICE)

    def stream(self, tab: str) -> AsyncIterator[str]:
        return self.part.enter(SimpleNamespace(session_hash=tab))

    async def act(self, tab: str, **said: Any) -> None:
        known = self.part._tabs.get(tab)
        said = {"wish": known.wishes if known else 0} | said
        await self.part.act(SimpleNamespace(_data=said), SimpleNamespace(session_hash=tab))

    async def send(self, tab: str, number: int, text: Any, tokens: Any = 6, temperature: Any = 0) -> None:
        await self.act(tab, do="send", number=number, text=text, tokens=tokens, temperature=temperature)


@pytest.fixture
def gate() -> threading.Event:
    made = threading.Event()
    made.set()
    return made


@pytest.fixture
def server(monkeypatch, byte_level, gate) -> Iterator[Server]:
    letters = random.Random(0).choices(range(64, 90), k=3000)
    model = FakeModel(letters, step_s=0.002, during=lambda _: gate.wait(20))
    monkeypatch.setattr(runner, "load", lambda *_, **__: Engine(model, byte_level))
    monkeypatch.setattr(live, "WAKE_EVERY_S", 0.01)
    backend = LocalBackend()
    yield Server(backend)
    gate.set()
    backend.close()


def lines(text: str) -> list[list[Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def until(stream: AsyncIterator[str], texts: list[str], wanted: str) -> list[list[Any]]:
    """Read on until a line has `wanted`; all lines of the last text."""
    async with asyncio.timeout(20):
        async for text in stream:
            texts.append(text)
            if wanted in text:
                return lines(text)
    raise AssertionError(f"the stream ended before {wanted}")


def test_nobody_is_told_a_word_of_others(server):
    async def visit() -> None:
        mine, theirs = [], []
        one, other = server.stream("mine"), server.stream("theirs")
        await until(one, mine, '"now"')
        await until(other, theirs, '"now"')
        await server.send("theirs", 5, SECRET, 30)
        await server.send("mine", 0, "hello", 30)
        told = await until(other, theirs, '"length"')
        await until(one, mine, '"length"')
        answer = "".join(parts[1] for kind, _, *parts in told if kind == "t")
        assert len(answer) == 30
        assert SECRET not in "".join(mine)
        assert answer[:8] not in "".join(mine)
        own = {parts[0]: parts[1] for kind, _, *parts in lines(mine[-1]) if kind == "bar"}
        assert sorted(own.values()) == [False, True]

    asyncio.run(visit())


def test_a_text_only_grows_and_each_line_has_its_number(server):
    async def visit() -> None:
        texts: list[str] = []
        stream = server.stream("tab")
        await until(stream, texts, '"now"')
        await server.send("tab", 0, "hello", 40)
        told = await until(stream, texts, '"length"')
        assert all(later.startswith(sooner) for sooner, later in pairwise(texts))
        assert [line[1] for line in told] == list(range(len(told)))
        states = [line[3] for line in told if line[0] == "turn"]
        assert states[-1] == "length"

    asyncio.run(visit())


def test_a_long_visit_goes_on_from_its_last_lines(server, monkeypatch):
    monkeypatch.setattr(live_view, "MOST_CHARS", 2000)
    monkeypatch.setattr(live_view, "KEPT_CHARS", 700)

    async def visit() -> None:
        texts: list[str] = []
        stream = server.stream("tab")
        await until(stream, texts, '"now"')
        seen, answer = -1, ""
        for number in range(3):
            await server.send("tab", number, "hello", 60)
            await until(stream, texts, f',{number},"length"')
        for text in texts:
            for kind, count, *parts in lines(text):
                if count > seen:
                    assert count == seen + 1
                    seen, answer = count, answer + (parts[1] if kind == "t" else "")
        assert len(answer) == 180
        assert max(map(len, texts)) < 2000 + 1500

    asyncio.run(visit())


def test_a_closed_stream_or_tab_leaves_the_batch(server, gate):
    room = server.backend.lobby

    async def visit() -> None:
        texts: list[str] = []
        first, second = server.stream("first"), server.stream("second")
        for stream, tab in ((first, "first"), (second, "second")):
            await until(stream, texts, '"now"')
            await server.send(tab, 0, "hello", 256)
            await until(stream, texts, '"answering"')
        assert len(room.visitors) == 2
        await first.aclose()  # what Gradio does when the connection is gone
        await server.part.unload(SimpleNamespace(session_hash="second"))  # and when it hears of it
        assert room.visitors == set()
        assert [text async for text in second] == []
        async with asyncio.timeout(10):
            while room.occupancy.figures().running:
                await asyncio.sleep(0.01)
        await server.send("first", 1, "hello")  # nobody's
        assert room.waiting == {}

    asyncio.run(visit())


def test_a_second_stream_of_a_tab_ends_the_first(server):
    async def visit() -> None:
        texts: list[str] = []
        first = server.stream("tab")
        await until(first, texts, '"now"')
        second = server.stream("tab")
        await until(second, texts, '"now"')
        assert [text async for text in first] == []
        assert len(server.backend.lobby.visitors) == 1
        await server.send("tab", 0, "hello")
        await until(second, texts, '"length"')

    asyncio.run(visit())


@pytest.mark.parametrize(
    ("text", "tokens", "temperature", "sentence"),
    [
        (None, 5, 0, "Write something"),
        (["x"], 5, 0, "Write something"),
        ("x", "5", 0, "max_new_tokens"),
        ("x", None, 0, "max_new_tokens"),
        ("x", 1e999, 0, "max_new_tokens"),
        ("x", 5, float("nan"), "temperature"),
        ("x", 5, None, "temperature"),
        ("x", 300, 0, "from 1 to 256"),
    ],
)
def test_odd_wishes_are_refused_in_a_sentence(server, text, tokens, temperature, sentence):
    async def visit() -> None:
        stream = server.stream("tab")
        await until(stream, [], '"now"')
        await server.send("tab", 3, text, tokens, temperature)
        (refused,) = [line for line in await until(stream, [], '"refused"') if line[0] == "refused"]
        assert refused[2] == 3
        assert sentence in refused[3]
        await server.send("tab", "x", text)  # no number: nobody to tell
        await server.act("tab", do="dance", number=4)
        await server.part.act(SimpleNamespace(_data=[1]), SimpleNamespace(session_hash="tab"))

    asyncio.run(visit())


def test_wishes_are_taken_in_order_and_once(server):
    async def visit() -> None:
        stream = server.stream("tab")
        await until(stream, [], '"now"')
        for wish, number in ((1, 8), (0, 7), (0, 7), (1, 8)):  # the first too early, the third again
            said = {"do": "send", "text": "hello", "tokens": 3, "temperature": 0}
            await server.act("tab", **said, wish=wish, number=number)
        told = await until(stream, [], '8,"length"')
        assert [line[2] for line in told if line[0] == "took"] == [0, 1]
        ended = [line[2] for line in told if line[0] == "turn" and line[3] == "length"]
        assert ended == [7, 8]

    asyncio.run(visit())


def test_something_comes_at_least_so_often(server, monkeypatch):
    monkeypatch.setattr(live, "BEAT_S", 0.05)

    async def visit() -> None:
        stream, texts = server.stream("tab"), []
        async with asyncio.timeout(10):
            async for text in stream:
                texts.append(text)
                if len(texts) == 4:
                    break
        assert texts[1] == texts[2] == texts[3]

    asyncio.run(visit())


def test_where_no_batch_is_shared_it_is_said():
    async def visit() -> None:
        stream = LivePart(SimpleNamespace(lobby=None), CHOICE).enter(SimpleNamespace(session_hash="tab"))
        assert [line[0] for text in [text async for text in stream] for line in lines(text)] == ["nothing"]

    asyncio.run(visit())
