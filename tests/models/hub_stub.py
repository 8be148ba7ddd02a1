"""A Hugging Face Hub on this machine: folders served as repositories, a log of every request, faults on
demand."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + 34 * "0"
API = re.compile(r"/api/models/(?P<repo>.+?)(?:/(?P<what>revision|tree)/[^/]+)?")
FILE = re.compile(r"/(?P<repo>.+?)/resolve/[^/]+/(?P<file>.+)")


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass(frozen=True)
class Fault:
    """What befalls the requests of `method` (any if empty) with `path` in their address.

    An answer with `status`; or a body that ends after `cut_after` bytes, by a reset or by a plain end of the
    stream; or, with neither, silence until the stub closes. It spares `after` requests and befalls `times`.
    """

    path: str = "/"
    method: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    reset: bool = True
    after: int = 0
    times: int = 1_000_000


class Hub:
    """`repos` maps ids to folders, `faults` is looked up in order, `log` holds what was asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Path] = {}
        self.faults: list[Fault] = []
        self.log: list[Asked] = []
        self.closed = threading.Event()
        self._met: dict[int, int] = {}
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def asked(self, text: str, method: str = "GET") -> list[Asked]:
        """The requests of `method` with `text` in their address."""
        return [asked for asked in self.log if text in asked.path and asked.method == method]

    def fault(self, asked: Asked) -> Fault | None:
        for fault in self.faults:
            if fault.path in asked.path and fault.method in asked.method:
                met = self._met.get(id(fault), 0)
                self._met[id(fault)] = met + 1
                if fault.after <= met < fault.after + fault.times:
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's system

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = Asked(self.command, path, self.headers.get("Range"), self.headers.get("Authorization"))
        self.hub.log.append(asked)
        fault = self.hub.fault(asked)
        if fault is None or fault.cut_after is not None:
            self._serve(path, fault)
        elif fault.status:
            self._answer(fault.status, b'{"error": "planted"}', dict(fault.headers))
        else:
            self.hub.closed.wait()
            self.close_connection = True

    do_HEAD = do_GET

    def _serve(self, path: str, fault: Fault | None) -> None:
        if (match := FILE.fullmatch(path)) and match["repo"] in self.hub.repos:
            file = self.hub.repos[match["repo"]] / match["file"]
            if file.is_file():
                return self._file(file.read_bytes(), fault)
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        if (match := API.fullmatch(path)) and match["repo"] in self.hub.repos:
            described = self._tree if match["what"] == "tree" else self._info
            return self._answer(200, json.dumps(described(match["repo"])).encode(), {})
        return self._answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def _files(self, repo: str) -> dict[str, Path]:
        folder = self.hub.repos[repo]
        return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}

    def _info(self, repo: str) -> dict[str, Any]:
        files = self._files(repo)
        siblings = [{"rfilename": name, "size": path.stat().st_size} for name, path in files.items()]
        return {"id": repo, "modelId": repo, "sha": COMMIT, "private": False, "siblings": siblings}

    def _tree(self, repo: str) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": path.stat().st_size, "oid": _etag(path.read_bytes())}
            for name, path in self._files(repo).items()
        ]

    def _file(self, content: bytes, fault: Fault | None) -> None:
        headers = {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked, status = self.headers.get("Range"), 200
        if asked:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        self._answer(status, content, headers, fault)

    def _answer(
        self, status: int, content: bytes, headers: dict[str, str], fault: Fault | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is None:
            self.wfile.write(content)
            return
        self.wfile.write(content[: fault.cut_after])
        self.wfile.flush()
        if fault.reset:  # lingering for no time turns the close into a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        self.close_connection = True


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
