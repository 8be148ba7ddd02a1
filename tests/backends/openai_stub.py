"""A server that says what a test writes down for it, byte by byte, in OpenAI's interface or out of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Part = bytes | float  # what is sent, or seconds of silence


def said(text: str, **more: Any) -> bytes:
    """One event of /v1/completions."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}], **more})


def event(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def ended(reason: str = "length") -> bytes:
    return event({"choices": [{"index": 0, "text": "", "finish_reason": reason}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


DONE = b"data: [DONE]\n\n"


class Stub:
    """`answer(body)` gives status, content type and the parts of what is sent; then the connection ends."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, Any]], tuple[int, str, list[Part]]] = lambda body: (
            500,
            "text/plain",
            [],
        )
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.hung_up = threading.Event()  # the other side has closed a connection before its end
        self.address = ""

    def streams(self, *parts: Part) -> None:
        self.answer = lambda body: (200, "text/event-stream", list(parts))

    def refuses(self, status: int, body: str = "", kind: str = "application/json") -> None:
        self.answer = lambda _: (status, kind, [body.encode()])


@contextmanager
def stub_server() -> Iterator[Stub]:
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.asked.append((self.path, dict(self.headers), body))
            status, kind, parts = stub.answer(body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status in (301, 302, 307):
                self.send_header("Location", f"{stub.address}/elsewhere")
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                for part in parts:
                    if isinstance(part, float):
                        self._wait(part)
                    else:
                        self.wfile.write(part)
            except OSError:
                stub.hung_up.set()

        def _wait(self, seconds: float) -> None:
            """Raises OSError once the other side is gone."""
            self.connection.settimeout(0.01)
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                try:
                    if self.connection.recv(1) == b"":
                        raise ConnectionResetError
                except TimeoutError:
                    pass
            self.connection.settimeout(None)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    stub.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield stub
    server.shutdown()
    server.server_close()
    thread.join()
