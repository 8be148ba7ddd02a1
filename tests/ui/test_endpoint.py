"""`compare`, as a program uses it: in process, through gradio_client, and as an MCP tool."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import time
from collections.abc import Callable

import gradio as gr
import httpx
import pytest
from gradio_client import Client
from page_fake import CHOICE, HELD_AFTER, FakeBackend, in_a_loop

from kshipra.ui import words
from kshipra.ui.endpoint import compare_endpoint
from kshipra.ui.form import Form


def answer(backend: FakeBackend, *args, **kwargs) -> dict:
    return in_a_loop(compare_endpoint(backend, CHOICE)(*args, **kwargs))


def test_it_gives_the_document_that_the_page_exports():
    found = answer(FakeBackend(), ["One", "Two"], ["kv_cache", "no_cache"], 5)
    assert found["format"] == "kshipra-run"
    assert [way["key"] for way in found["ways"]] == ["no_cache", "kv_cache"]  # the page's order
    assert [row["new_tokens"] for row in found["ways"][0]["result"]["rows"]] == [5, 5]
    assert found["comparisons"][0]["verdict"] == "identical"
    json.dumps(found, allow_nan=False)


def test_it_takes_everything_that_the_form_takes():
    parameters = set(inspect.signature(compare_endpoint(FakeBackend(), CHOICE)).parameters)
    assert parameters == set(Form.__dataclass_fields__) - {"recipes"} | {"ways", "limits"}  # its prompts have


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"prompts": []}, "Prompts: give from 1 to 16, not 0."),
        ({"prompts": "One"}, "Prompts must be a list of texts."),
        ({"prompts": ["One"], "max_new_tokens": 1.5}, "Max new tokens: give a whole number from 0 to 2,048."),
        (
            {"prompts": ["One"], "ways": ["beam"]},
            "'beam' is not one of no_cache, kv_cache, static_batch, continuous, speculative, compiled, ",
        ),
        ({"prompts": ["One"], "temperature": float("nan")}, "Temperature: give a number."),
    ],
)
def test_what_it_cannot_use_is_one_sentence(call, sentence):
    with pytest.raises(gr.Error) as refused:
        answer(FakeBackend(), **call)
    assert sentence in refused.value.message


def test_a_failure_is_its_sentence_and_a_fault_of_ours_is_admitted(monkeypatch, caplog):
    with pytest.raises(gr.Error) as failed:
        answer(FakeBackend(fail_at=3), ["One"])
    assert failed.value.message == FakeBackend.failure
    backend = FakeBackend()
    monkeypatch.setattr(backend, "submit", lambda plan: 1 / 0)
    with pytest.raises(gr.Error) as broken:
        answer(backend, ["One"])
    assert broken.value.message == words.BUG
    assert "ZeroDivisionError" in caplog.text


def test_a_caller_that_goes_away_stops_its_run():
    backend = FakeBackend(hold_in="kv_cache")

    async def leave():
        task = asyncio.create_task(compare_endpoint(backend, CHOICE)(["One"], ["kv_cache"], 500))
        while not backend.runs or backend.runs[0].steps < HELD_AFTER:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    in_a_loop(leave())
    assert backend.runs[0].stops >= 1
    assert backend.runs[0].over.wait(60)
    assert backend.runs[0].steps == HELD_AFTER


FIELDS = [
    ["One"],
    ["kv_cache"],
    500,
    0,
    0,
    1,
    1,
    None,
    False,
    CHOICE.model,
    "auto",
    "auto",
    [],
    None,
    False,
    "",
    *[""] * 3,  # of a server
]
GONE_WITHIN_S = 10.0


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def leave_the_queue(api: str, running: Callable[[], bool]) -> None:
    """As gradio_client and the page call it, and the process dies."""
    known = httpx.get(f"{api.removesuffix('gradio_api/')}config").json()["dependencies"]
    number = next(each["id"] for each in known if each["api_name"] == "compare")
    call = {"data": FIELDS, "fn_index": number, "session_hash": "somebody"}
    httpx.post(f"{api}queue/join", json=call).raise_for_status()
    with httpx.stream("GET", f"{api}queue/data", params={"session_hash": "somebody"}):
        until(running)


def leave_the_answer(api: str, running: Callable[[], bool]) -> None:
    """As curl calls it."""
    event = httpx.post(f"{api}call/compare", json={"data": FIELDS}).json()["event_id"]
    with httpx.stream("GET", f"{api}call/compare/{event}"):
        until(running)


def leave_a_plain_post(api: str, running: Callable[[], bool]) -> None:
    """Past the queue, so that Gradio knows of no event."""
    with contextlib.suppress(httpx.TimeoutException):
        httpx.post(f"{api}run/compare", json={"data": FIELDS}, timeout=2)
    until(running)


@pytest.mark.slow
@pytest.mark.parametrize("leave", [leave_the_queue, leave_the_answer, leave_a_plain_post])
def test_a_dropped_connection_stops_its_run(serve, leave):
    backend = FakeBackend(hold_in="kv_cache")
    url = serve(backend)
    leave(f"{url}gradio_api/", lambda: bool(backend.runs) and backend.runs[0].steps == HELD_AFTER)
    assert backend.runs[0].over.wait(GONE_WITHIN_S)
    assert backend.runs[0].steps == HELD_AFTER


@pytest.mark.slow
def test_gradio_client_sees_this_endpoint_alone_and_uses_it(serve):
    client = Client(serve(FakeBackend()), verbose=False)
    assert list(client.view_api(return_format="dict", print_info=False)["named_endpoints"]) == ["/compare"]
    found = client.predict(["One"], ["kv_cache"], 4, api_name="/compare")
    assert found["ways"][0]["result"]["new_tokens"] == 4
    with pytest.raises(Exception, match="Prompts: give from 1 to 16, not 0"):
        client.predict([], api_name="/compare")


@pytest.mark.slow
def test_an_mcp_client_finds_the_tool_and_calls_it(serve):
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    url = serve(FakeBackend())

    async def call():
        async with (
            streamablehttp_client(f"{url}gradio_api/mcp/") as (reader, writer, _),
            ClientSession(reader, writer) as session,
        ):
            await session.initialize()
            (tool,) = (await session.list_tools()).tools
            assert tool.name == "compare"
            assert "several ways of generating" in tool.description
            assert tool.inputSchema["required"] == ["prompts"]
            said = await session.call_tool("compare", {"prompts": ["One"], "ways": ["kv_cache"]})
            assert not said.isError
            return said.content[0].text

    started = time.monotonic()
    assert "kshipra-run" in in_a_loop(call())
    assert time.monotonic() - started < 30
