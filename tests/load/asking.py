"""What the load scripts share: a tiny model, a real server, its answers, and what stays in the server."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from gradio_client import Client
from gradio_client.exceptions import AppError
from model_folders import write_gpt2

from serving import App

WAYS = ["no_cache", "kv_cache", "static_batch"]
GROWTH_BYTES = 96 * 2**20  # of the server's resident memory: what Gradio keeps of hundreds of sessions
GROWTH_THREADS = 40  # of its pool, which grows when many ask at once
GROWTH_FILES = 16  # open ones, connections among them


@contextmanager
def tiny_app() -> Iterator[tuple[App, Path]]:
    """A server with a tiny GPT-2 of random weights, and that model's folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "tiny"
        write_gpt2(folder)
        with served("--model", str(folder)) as app:
            yield app, folder


@contextmanager
def served(*arguments: str) -> Iterator[App]:
    """A server, looked over at the end: it ends when it is told to, and its log has no traceback."""
    with tempfile.TemporaryDirectory() as place:
        app = App("--log-level", "info", *arguments, log=Path(place) / "log")
        try:
            app.wait()
            yield app
            status = app.end()
            said = app.log.read_text()
            assert status == 0, f"it ended with {status}"
            assert "Traceback" not in said, said[-4000:]
        finally:
            app.kill()


def compare(client: Client, *arguments: Any, **named: Any) -> dict[str, Any] | str:
    """The document, or the sentence of a refusal."""
    try:
        return client.predict(*arguments, api_name="/compare", **named)
    except AppError as error:
        return str(error)


def ids(document: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Each way's new ids, row by row."""
    return {way["key"]: [row["token_ids"] for row in way["result"]["rows"]] for way in document["ways"]}


def logged_runs(app: App) -> list[dict[str, Any]]:
    """What the server's log says of each run that has ended."""
    lines = [line for line in app.log.read_text().splitlines() if "kshipra.runs: {" in line]
    found = [json.loads(line[line.index("{") :]) for line in lines]
    return [line for line in found if line["what"] == "run"]


@dataclass(frozen=True)
class Reading:
    """What the server holds at one moment."""

    resident_bytes: int
    threads: int
    files: int

    @classmethod
    def of(cls, app: App) -> Reading:
        time.sleep(2)  # for what ends by itself
        process = psutil.Process(app.process.pid)
        return cls(process.memory_info().rss, process.num_threads(), process.num_fds())

    def leaked_since(self, before: Reading) -> list[str]:
        """What there is more of than a server in use gathers by itself."""
        grown = {
            "bytes": (self.resident_bytes - before.resident_bytes, GROWTH_BYTES),
            "threads": (self.threads - before.threads, GROWTH_THREADS),
            "open files": (self.files - before.files, GROWTH_FILES),
        }
        return [f"{amount:,} {what} more" for what, (amount, most) in grown.items() if amount > most]

    def __str__(self) -> str:
        return f"{self.resident_bytes / 2**20:.0f} MiB, {self.threads} threads, {self.files} open files"


def verdict(what: str, tried: int, before: Reading, after: Reading, **defects: list[Any]) -> int:
    """Print "N tried, 0 lost, 0 leaked, 0 wrong" and what the server held; the status to end with."""
    defects = defects | {"leaked": after.leaked_since(before)}
    counts = ", ".join(f"{len(defects.get(kind, []))} {kind}" for kind in ("lost", "leaked", "wrong"))
    print(f"{what}: {tried:,} tried, {counts}\nserver before: {before}\nserver after:  {after}")
    for kind, found in defects.items():
        for each in found[:3]:
            print(f"FAULT ({kind}): {each!s:.400}")
    return 1 if any(defects.values()) else 0
