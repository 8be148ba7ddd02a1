"""No cache: every token is paid for by running the whole text again."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from kshipra.modes.base import Mode
from kshipra.types import StepEvent

if TYPE_CHECKING:
    from kshipra.engine.job import Job


def no_cache(job: Job) -> Generator[StepEvent, None, None]:
    for request in job.requests:
        batch = job.batch([request], cached=False)
        while batch.running:
            yield job.step(batch)


MODE = Mode(
    "no_cache",
    "No cache",
    "One prompt after another; each new token runs the whole text through the model again.",
    no_cache,
    caches=False,
)
