"""What a person is told where a server does not answer as it should: one sentence that says what to do. It
never holds the key, and strangers are not told what the server said of itself."""

from __future__ import annotations

import json
import ssl
from typing import Any

import httpx
from httpx_sse import SSEError

from kshipra.backends.addresses import Target
from kshipra.errors import ServerError

SAID_CHARS = 200


def sentence_of(error: Exception, target: Target) -> ServerError:
    """The ServerError for what the connection or the stream came to."""
    name = target.name
    if isinstance(error, SSEError):
        return ServerError(
            f"{name} answered with something that is no stream of OpenAI's interface: check its address, "
            "which ends before /v1."
        )
    if isinstance(error, httpx.ConnectTimeout):
        return ServerError(f"{name} did not answer in time: check its address, and that it can be reached.")
    if isinstance(error, httpx.TimeoutException):
        return ServerError(f"{name} fell silent for too long: see whether it still works, and run again.")
    if isinstance(error, httpx.ConnectError):
        return ServerError(f"{name} {_why_unconnected(error)}.")
    return ServerError(f"{name} closed the connection too early: what had come stays; see its log.")


def _why_unconnected(error: Exception) -> str:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return (
            "shows a certificate that this machine does not trust: check the name, or name its authority in "
            "SSL_CERT_FILE"
        )
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "does not speak https there: check http against https, and the port"
    if "name" in str(error).lower() and "refused" not in str(error).lower():
        return "has no address that is known here: check its name"
    return "refuses the connection: check that it runs, and its port"


def refused(status: int | None, body: bytes, target: Target) -> ServerError:
    """The ServerError for an answer that is a refusal; `status` is None for one in the middle of a stream."""
    name, said = target.name, _said(body, target)
    if status in (401, 403):
        return ServerError(f"{name} does not take the key: give the right one, or none if it needs none.")
    if status == 404:
        return ServerError(
            f"{name} has no model of that name, or not this kind of prompt (try the chat template){said}."
        )
    if status == 429:
        return ServerError(f"{name} has too much to do, or the key is used up: try again later{said}.")
    if status is not None and 300 <= status < 400:
        return ServerError(f"{name} sends on to another address, which is not followed: give that one.")
    if status is not None and status < 500:
        return ServerError(f"{name} refuses the request ({status}): check model and settings{said}.")
    told = f" ({status})" if status is not None else ""
    return ServerError(f"{name} failed{told}: see its log, and run again{said}.")


def _said(body: bytes, target: Target) -> str:
    """What the server says itself, for its owner."""
    if target.public:
        return ""
    try:
        found: Any = json.loads(body)
        for name in ("error", "detail", "message"):
            found = found.get(name, found) if isinstance(found, dict) else found
    except ValueError:
        return ""
    if not isinstance(found, str):
        return ""
    text = " ".join((found.replace(target.key, "…") if target.key else found).split()).rstrip(".")
    return f"; it says: {text[:SAID_CHARS]}" if text else ""
