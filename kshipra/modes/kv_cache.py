"""KV cache: the keys and values of the past are kept, so a step takes one token."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from kshipra.modes.base import Mode
from kshipra.types import StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


def kv_cache(job: Job) -> Generator[StepEvent, None, None]:
    for request in job.requests:
        batch = job.batch([request], cached=True)
        while batch.running:
            yield job.step(batch)


MODE = Mode(
    "kv_cache",
    "KV cache",
    "One prompt after another; keys and values of past tokens are kept, so a step takes one token.",
    kv_cache,
)
