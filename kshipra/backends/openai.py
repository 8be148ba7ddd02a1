"""A contestant that is somewhere else: any server that speaks OpenAI's interface (vLLM, SGLang, TGI,
llama.cpp, Ollama, `transformers serve`), told as the same StepEvents as an engine here.

Decides what is asked, and what of the answer is known: text and the time at which it came in, and tokens
where the server counts them. Where and whether a server may be asked is `addresses`' to say.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx
from httpx_sse import EventSource, SSEError

from kshipra.backends.addresses import Target, target_of
from kshipra.backends.refusals import refused, sentence_of
from kshipra.engine.runner import Engine, never
from kshipra.errors import ServerError
from kshipra.modes import server as mode
from kshipra.types import UNBOUNDED, Batching, FinishReason, NewToken, Request, Server, Started, StepEvent

CONNECT_S = 10.0
SILENT_S = 120.0  # until a first piece comes, or another: a long prompt on a busy server takes long
POLL_S = 0.05  # how soon Stop closes the connection
MOST_CHARS = 500_000  # of one answer, whatever was asked for
METHOD = "not told by the server"


@dataclass(frozen=True)
class Piece:
    """What came in at once of a row: text, how many tokens all of its text so far are, and how it ended."""

    row: int
    at_s: float
    text: str
    tokens: int | None = None
    finish_reason: FinishReason | None = None


def server_engine(
    server: Server, here: Engine, *, model: str, chat: bool = False, public: bool = False
) -> ServerEngine:
    """The engine that asks `server`; `here` is that of the model named `model` in this process. Raises
    InputError for a server that is not to be asked."""
    target = target_of(server, public=public)
    last_parts = {name.rpartition("/")[2].lower() for name in (target.model, model)}
    return ServerEngine(target, here, chat=chat, counts=len(last_parts) == 1)


class ServerEngine:
    """To a run what an Engine is. The tokenizer of `here` writes prompts that are given as ids, and counts
    where the server does not, if it is that of the server's model (`counts`)."""

    def __init__(self, target: Target, here: Engine, *, chat: bool = False, counts: bool = False) -> None:
        self.target, self.here, self.chat, self.counts = target, here, chat, counts

    def started(self, recipe: str, requests: tuple[Request, ...]) -> Started:
        return Started(recipe, requests, server_model=self.target.model)

    def check(self, requests: Sequence[Request], *_: Any) -> None:
        mode.check(requests)

    def run(
        self,
        requests: Sequence[Request],
        *,
        stopped: Callable[[], bool] = never,
        batching: Batching = UNBOUNDED,
        **_: Any,
    ) -> Iterator[StepEvent]:
        """One event for each piece of text, and one for each row's end. All requests are sent at once, or as
        many as `batching` lets. Raises ServerError; closing it, or `stopped`, closes the connections."""
        asked = [request for request in requests if request.params.max_new_tokens]
        if not asked:
            return
        asking = Asking(self.target, {each.row: self._question(each) for each in asked}, batching.rows)
        texts: dict[int, str] = {}
        counted: dict[int, int] = {}
        last_s = 0.0
        try:
            for index, piece in enumerate(asking.pieces(stopped)):
                row, before = piece.row, texts.get(piece.row, "")
                texts[row] = before + piece.text
                tokens = piece.tokens
                if piece.finish_reason and tokens is None and self.counts:
                    tokens = len(self.here.tokenizer.encode(texts[row], add_special_tokens=False))
                new = None if tokens is None else tokens - counted.get(row, 0)
                counted[row] = counted.get(row, 0) + (new or 0)
                token = NewToken(row, None, piece.text, piece.finish_reason, count=new)
                yield _event(index, token, piece.at_s, last_s, is_first=not before)
                last_s = piece.at_s
        finally:
            asking.close()

    def _question(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The path and the body that ask for one row. Only what is in every server's interface: so a row may
        end before its length."""
        text = request.prompt or self.here.tokenizer.decode(request.prompt_ids)
        params = request.params
        body: dict[str, Any] = {
            "model": self.target.model,
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if params.seed is not None:
            body["seed"] = params.seed
        if params.stop:
            body["stop"] = list(params.stop)
        if self.chat:
            return "chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
        return "completions", {**body, "prompt": text}


def _event(index: int, token: NewToken, at_s: float, last_s: float, *, is_first: bool) -> StepEvent:
    unknown = dict.fromkeys(
        ("processed_tokens", "pad_tokens", "kv_bytes", "kv_held_bytes", "resident_bytes", "peak_extra_bytes")
    )
    return StepEvent(
        index=index,
        phase="prefill" if is_first else "decode",
        rows=(token.row,),
        new_tokens=(token,),
        elapsed_s=at_s - last_s,
        at_s=at_s,
        memory_method=METHOD,
        flops=None,
        **unknown,
    )


class Asking:
    """All questions of a run, at once, on a thread of their own, so that times are not those of whoever
    reads. `most`: how many are open at a time; None: all."""

    def __init__(
        self, target: Target, questions: dict[int, tuple[str, dict[str, Any]]], most: int | None
    ) -> None:
        self._target, self._questions, self._most = target, questions, most or len(questions)
        self._told: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._ask_all())
        self._thread = threading.Thread(target=self._work, name="kshipra-server", daemon=True)
        self._thread.start()

    def pieces(self, stopped: Callable[[], bool]) -> Iterator[Piece]:
        while not stopped():
            try:
                told = self._told.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if told is None:
                return
            if isinstance(told, BaseException):
                raise told
            yield told

    def close(self) -> None:
        """Close every connection now. A name that is just being looked up holds nobody up."""
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=1.0)

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
            self._told.put(None)
        except asyncio.CancelledError:
            self._told.put(None)
        except BaseException as error:
            self._told.put(error)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _ask_all(self) -> None:
        places = asyncio.Semaphore(self._most)
        timeout = httpx.Timeout(SILENT_S, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=None)
        address, options = await self._target.resolved()
        # A redirect would take key and prompts to an address that nobody has named, and a proxy strangers to
        # one that nobody has checked; authorities that are trusted here are so for all.
        async with httpx.AsyncClient(
            timeout=timeout,
            limits=limits,
            verify=httpx.create_ssl_context(),
            follow_redirects=False,
            trust_env=not self._target.public,
        ) as client:
            began_s = time.perf_counter()

            async def one(row: int, path: str, body: dict[str, Any]) -> None:
                question = client.stream("POST", f"{address}/{path}", json=body, **options)
                async with (
                    places,
                    question as answer,
                    aclosing(_pieces(row, answer, self._target)) as pieces,
                ):
                    async for piece in pieces:
                        self._told.put(replace(piece, at_s=time.perf_counter() - began_s))

            tasks = [
                asyncio.ensure_future(self._in_words(one(row, *question)))
                for row, question in self._questions.items()
            ]
            try:
                await asyncio.gather(*tasks)
            finally:  # one that fails ends the run, and with it the others
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_words(self, asking: Any) -> None:
        try:
            await asking
        except (httpx.HTTPError, httpx.InvalidURL, SSEError, OSError) as error:
            raise sentence_of(error, self._target) from None  # it may hold headers, and the key in them


async def _pieces(row: int, answer: httpx.Response, target: Target) -> AsyncIterator[Piece]:
    """What comes in, at 0 s. Raises ServerError for an answer that is none, and one that breaks off."""
    if answer.status_code != 200:
        raise refused(answer.status_code, (await answer.aread())[:2_000], target)
    reason: FinishReason | None = None
    tokens: int | None = None
    chars, done = 0, False
    async for event in EventSource(answer).aiter_sse():
        if event.data.strip() == "[DONE]":
            done = True
            break
        text, ended, used = _read(event.data, target)
        reason, tokens = ended or reason, used if used is not None else tokens
        chars += len(text)
        if chars > MOST_CHARS:
            raise ServerError(f"The server sends far more than was asked for: {MOST_CHARS:,} characters.")
        if text:
            yield Piece(row, 0.0, text, used if not ended else None)
    if not done and reason is None:
        raise ServerError(
            "The server's stream broke off in the middle: what had come stays; see the server's log and run "
            "again."
        )
    yield Piece(row, 0.0, "", tokens, reason or "stop")


def _read(data: str, target: Target) -> tuple[str, FinishReason | None, int | None]:
    """The text, end and count of one event; each may be missing, and several tokens may be in one text."""
    try:
        chunk = json.loads(data)
        if "error" in chunk or chunk.get("object") == "error":
            raise refused(None, data.encode(), target)
        choice = (chunk.get("choices") or [{}])[0]
        said = choice.get("delta") or choice
        text = next((said[name] for name in ("content", "text", "reasoning_content", "reasoning")
                     if said.get(name)), "")  # fmt: skip
        tokens = (chunk.get("usage") or {}).get("completion_tokens")
        ended = choice.get("finish_reason")
        if not isinstance(text, str) or not isinstance(tokens, int | None):
            raise TypeError
    except (ValueError, TypeError, AttributeError, LookupError):
        raise ServerError(
            "What came from the server is not OpenAI's interface: check its address, which ends before /v1."
        ) from None
    return text, ("length" if ended == "length" else "stop") if ended else None, tokens
