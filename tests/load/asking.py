"""What the load scripts share: a tiny model, a real server, its answers, and what the figures must say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradio_client import Client
from gradio_client.exceptions import AppError
from model_folders import write_gpt2

from serving import App

WAYS = ["no_cache", "kv_cache", "static_batch"]


@contextmanager
def tiny_app(*arguments: str) -> Iterator[tuple[App, Path]]:
    """A server with a tiny GPT-2 of random weights, and that model's folder; looked over at the end."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "tiny"
        write_gpt2(folder)
        app = App("--model", str(folder), "--log-level", "info", *arguments, log=Path(place) / "log")
        try:
            app.wait()
            yield app, folder
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
    return {
        way["recipe"]["key"]: [row["token_ids"] for row in way["result"]["rows"]] for way in document["ways"]
    }
